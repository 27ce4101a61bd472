"""The command line as a user has it: a process of its own, in a folder of its own."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from perdure.cli import run
from tests import warm

ROOT = Path(__file__).resolve().parents[2]
FLOWS = Path(__file__).with_name("flows.py")


@dataclass
class Done:
    code: int
    out: str
    err: str

    @property
    def json(self):
        return json.loads(self.out)


class CommandLine:
    """Runs `perdure` in one folder; ends what it left running."""

    def __init__(self, folder):
        self.folder = folder
        self.environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT / "src"),
            "COLUMNS": "100",
            "CHARGED": str(folder / "charged"),
        }
        self.environment.pop("PERDURE_STORE", None)
        self.processes = []

    def start(self, *arguments, **environment):
        process = warm.Popen(
            [sys.executable, "-m", "perdure", *map(str, arguments)],
            cwd=self.folder,
            env={**self.environment, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            text=True,
        )
        self.processes.append(process)
        return process

    def __call__(self, *arguments, **environment):
        process = self.start(*arguments, **environment)
        out, err = process.communicate(timeout=80)  # on a busy machine; tests have 90
        return Done(process.returncode, out, err)

    def worker(self, *names, **environment):
        """Start a worker of some of the flows and wait until it is ready."""
        options = [name for name in names if str(name).startswith("--")]
        targets = [f"{FLOWS}:{name}" for name in names if name not in options]
        process = self.start("worker", *targets, *options, **environment)
        line = process.stdout.readline()
        assert line.startswith("ready: worker w_"), process.communicate()[1]
        return process

    def run_id(self, name, given, *options):
        """Enqueue a run and return its id."""
        done = self("start", f"{FLOWS}:{name}", "--input", json.dumps(given), *options)
        assert done.code == 0, done.err
        return done.out.strip()

    def until(self, run_id, *statuses, timeout_s=15):
        """Return what `show --json` says once the run has one of the statuses."""
        ends_at = time.monotonic() + timeout_s
        while True:
            shown = self("show", run_id, "--json").json
            if shown["run"]["status"] in statuses:
                return shown
            assert time.monotonic() < ends_at, shown["run"]
            time.sleep(0.05)

    def charged(self):
        """Wait until the effect `charge` is under way."""
        path = self.folder / "charged"
        ends_at = time.monotonic() + 10
        while not path.exists():
            assert time.monotonic() < ends_at, "the effect was never dispatched"
            time.sleep(0.02)


def end(process, number=signal.SIGTERM):
    """Signal a process and return its exit code and what it wrote to stderr."""
    process.send_signal(number)
    _out, err = process.communicate(timeout=20)
    return process.returncode, err


@pytest.fixture
def inside(cli, monkeypatch, capsys):
    """Return the command line without a process of its own: for what ends at once."""
    monkeypatch.chdir(cli.folder)
    monkeypatch.delenv("PERDURE_STORE", raising=False)
    monkeypatch.setattr(sys, "path", list(sys.path))

    def call(*arguments):
        capsys.readouterr()
        code = run([str(argument) for argument in arguments])
        return Done(code, *capsys.readouterr())

    return call


@pytest.fixture
def cli(tmp_path):
    command_line = CommandLine(tmp_path)
    yield command_line
    for process in command_line.processes:
        if process.poll() is None:
            process.kill()
        process.communicate()


def pytest_collection_modifyitems(items):
    """Give these tests longer: each starts the program several times."""
    for item in items:
        if item.path.parent == FLOWS.parent and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(90))
