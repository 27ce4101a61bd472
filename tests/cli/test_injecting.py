"""`perdure inject` and `check --prove`: what they print, exit codes, stopping, mistakes."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from perdure.contracts.inject.engines import _host

ROOT = Path(__file__).resolve().parents[2]
GIVEN = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
APPLICATION = Path(__file__).parents[1] / "contracts" / "inject" / "application" / "app.py"

COMPOSE = """\
services:
  api:
    build: .
    ports: ["8000"]
    environment: {IGNORES: "%s"}
"""

SETTINGS = """\
port = 8000
[environment]
PORT = "{port}"
[process]
argv = ["python3", "app.py"]
[trial]
grace_s = %s
"""

pytestmark = [pytest.mark.fault, pytest.mark.timeout(120)]


def folder(at, *, ignores="", grace_s=5, settings=SETTINGS):
    (at / "app.py").write_text(APPLICATION.read_text())
    (at / "Dockerfile").write_text(
        'FROM python:3.11-slim\nCOPY app.py .\nCMD ["python3", "app.py"]\n'
    )
    (at / "compose.yaml").write_text(COMPOSE % ignores)
    if settings is not None:
        (at / "perdure.inject.toml").write_text(settings.replace("%s", str(grace_s)))
    return at


def inject(at, *words):
    return subprocess.run(
        [sys.executable, "-m", "perdure", *words],
        cwd=at,
        capture_output=True,
        text=True,
        check=False,
        env=GIVEN,
    )


def test_a_contract_that_holds_is_exit_code_0(tmp_path):
    done = inject(
        folder(tmp_path), "inject", "--contract", "R2", "--engine", "process", "--repetitions", "3"
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "R2 api: held"
    assert lines[1].endswith("(3 of 3)")
    assert [line.split(".")[0].strip() for line in lines[3:6]] == ["1", "2", "3"]
    place = tmp_path / lines[-1].partition("transcripts: ")[2]
    assert sorted(path.name for path in place.iterdir()) == ["01", "02", "03", "proof.json"]


def test_json_has_the_documented_keys_and_exit_code_1(tmp_path):
    done = inject(
        folder(tmp_path, ignores="all", grace_s=1), "inject", "--contract", "r2", "--engine",
        "process", "--repetitions", "1", "--seed", "7", "--output", "out", "--json",
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    found = json.loads(done.stdout)
    assert found == json.loads((tmp_path / "out" / "proof.json").read_text())
    assert sorted(found) == [
        "contract", "engine", "event", "folder", "repetitions", "root", "schema", "seed",
        "service", "text", "verdict",
    ]  # fmt: skip
    assert (found["root"], found["service"], found["seed"]) == ("compose.yaml", "api", 7)
    assert sorted(found["repetitions"][0]) == ["ending", "number", "text", "transcript"]


def test_check_prove_tells_both_and_exits_as_inject_does(tmp_path):
    done = inject(
        folder(tmp_path, ignores="all", grace_s=1), "check", "--prove", "R2", "--engine", "process"
    )
    assert done.returncode == 1, done.stderr
    assert "R2 api: violated" in done.stdout
    assert "of compose.yaml (Compose)" in done.stdout


@pytest.mark.parametrize(
    ("settings", "words", "expected"),
    [
        ("port = 0", ["--contract", "R2"], ("PD106", "port is no port")),
        ("prot = 1", ["--contract", "R2"], ("PD106", "there is no prot")),
        ("x = [", ["--contract", "R2"], ("PD106", "perdure.inject.toml can't be used")),
        ("[trial]\nsteps = -1", ["--contract", "R2"], ("PD106", "trial.steps must lie between")),
        ('probe = "program"', ["--contract", "R2"], ("PD624", "needs command")),
        ("", ["--contract", "R9"], ("PD100", "--contract is one of")),
        ("", ["--contract", "R2", "--service", "web"], ("PD624", "no service 'web'")),
        ("", ["--contract", "R2", "--repetitions", "0"], ("PD106", "repetitions must lie between")),
        ("", ["--contract", "R2", "--engine", "lxc"], ("PD106", "there is no engine 'lxc'")),
    ],
)
def test_mistakes_are_named_and_nothing_is_started(settings, words, expected, cli, inside):
    folder(cli.folder, settings=settings)
    done = inside("inject", "--engine", "process", *words)
    assert done.code == 2
    assert all(each in done.err for each in expected), done.err
    assert not list((cli.folder / ".perdure-trials").glob("*/01"))


def test_an_engine_that_does_not_answer_is_said(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "perdure", "inject", "--contract", "R2"], cwd=folder(tmp_path),
        capture_output=True, text=True, check=False, env={**GIVEN, "PATH": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 2
    assert "PD622: docker can't be used: there is no program docker" in done.stderr
    assert "--engine process" in done.stderr


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_stopped_in_the_middle_it_removes_what_it_started(how, tmp_path):
    scratch, at = tmp_path / "scratch", tmp_path / "project"
    scratch.mkdir()
    at.mkdir()
    folder(at, ignores="all", grace_s=600)
    process = subprocess.Popen(
        [sys.executable, "-m", "perdure", "inject", "--contract", "R2", "--engine", "process",
         "--output", "out"],
        cwd=at, stderr=subprocess.PIPE, text=True, env={**GIVEN, "TMPDIR": str(scratch)},
    )  # fmt: skip
    story = at / "out" / "01" / "story.txt"
    while not (story.exists() and "sent the stop signal" in story.read_text()):
        assert process.poll() is None, process.stderr.read()
    process.send_signal(how)
    said = process.communicate()[1]
    assert process.returncode == 128 + how
    assert "what was started is removed" in said
    assert list(scratch.iterdir()) == []
    assert left(scratch) == []
    assert story.read_text().splitlines()[-1].endswith("stopped before its end")
    assert json.loads((at / "out" / "proof.json").read_text())["verdict"] == "inconclusive"


def test_the_next_start_removes_what_a_killed_one_left_and_nothing_else(tmp_path):
    scratch, at = tmp_path / "scratch", tmp_path / "project"
    scratch.mkdir()
    at.mkdir()
    folder(at, ignores="all", grace_s=600)
    given = {**GIVEN, "TMPDIR": str(scratch)}
    words = ["--contract", "R2", "--engine", "process", "--repetitions", "1", "--output"]
    command = [sys.executable, "-m", "perdure", "inject", *words]
    killed, living = (
        subprocess.Popen([*command, name], cwd=at, env=given, stderr=subprocess.DEVNULL)
        for name in ("killed", "living")
    )
    for name in ("killed", "living"):
        story = at / name / "01" / "story.txt"
        while not (story.exists() and "sent the stop signal" in story.read_text()):
            assert killed.poll() is None
    killed.kill()
    killed.wait()
    assert len(left(scratch)) == 2
    (at / "perdure.inject.toml").write_text(SETTINGS.replace("%s", "1"))
    third = subprocess.run([*command, "third"], cwd=at, env=given, capture_output=True, check=False)
    assert third.returncode == 1
    assert len(left(scratch)) == 1
    living.send_signal(signal.SIGTERM)
    living.wait()
    assert left(scratch) == []


def left(scratch):
    """Return the applications that run out of a folder."""
    return [
        pid for pid in _host.all_pids()
        if any("app.py" in word for word in _host.argv(pid))
        and str(scratch) in str(_cwd(pid))
    ]  # fmt: skip


def _cwd(pid):
    try:
        return Path(f"/proc/{pid}/cwd").readlink()
    except OSError:
        return ""


def test_an_event_is_named_and_one_that_a_contract_is_not_about_is_refused(tmp_path):
    words = ("inject", "--contract", "R2", "--engine", "process", "--repetitions", "1")
    done = inject(folder(tmp_path), *words, "--event", "stop", "--json")
    assert (done.returncode, json.loads(done.stdout)["event"]) == (0, "it is stopped")
    refused = inject(tmp_path, *words, "--event", "lost")
    assert refused.returncode == 2
    assert "R2 is not about the event 'lost'; it knows stop" in refused.stderr
    assert inject(tmp_path, *words, "--event", "rain").returncode == 2


def test_a_program_that_is_not_there_is_one_error(tmp_path):
    there = folder(tmp_path, settings=SETTINGS.replace('"python3"', '"no-such-program"'))
    done = inject(there, "inject", "--contract", "R2", "--engine", "process")
    assert done.returncode == 2
    assert "'no-such-program' can't be started: there is none on PATH" in done.stderr
    assert done.stderr.count("began repetition") == 1
    assert "PD624" in done.stderr
    assert len(list((tmp_path / ".perdure-trials").glob("*/0*"))) == 1
