"""A program that is forked is what one that is executed would be."""

import asyncio
import json
import os
import signal
import subprocess
import sys

import pytest

from tests import warm

pytestmark = pytest.mark.timeout(120)  # the first one waits for the forker

TELL = """
import json, os, sys
print(json.dumps({
    "args": sys.argv, "cwd": os.getcwd(), "env": os.environ.get("MARK"), "path": sys.path[0],
    "pid": os.getpid(), "session": os.getsid(0), "name": __name__,
    "open": [each for each in os.listdir("/proc/self/fd") if int(each) > 2],
    "threads": len(os.listdir("/proc/self/task")),
}))
"""


def told(*args, **kwargs):
    """Return what such a program says of itself, and its pid as it is known here."""
    with warm.Popen(
        [sys.executable, *args], stdout=subprocess.PIPE, text=True, **kwargs
    ) as process:
        out, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    return json.loads(out), process.pid


def ended(code, **kwargs):
    return warm.run([sys.executable, "-c", code], capture_output=True, text=True, **kwargs)


@pytest.mark.parametrize("kind", ["-c", "-m", "file"])
def test_it_has_its_own_arguments_folder_environment_and_pid(tmp_path, kind):
    (tmp_path / "telling.py").write_text(TELL)
    args = {"-c": ["-c", TELL], "-m": ["-m", "telling"], "file": [str(tmp_path / "telling.py")]}
    environment = {**os.environ, "MARK": kind, "PYTHONPATH": str(tmp_path)}
    found, pid = told(*args[kind], "a", "b", cwd=tmp_path, env=environment)
    assert found["args"][1:] == ["a", "b"]
    assert (found["cwd"], found["env"], found["name"]) == (str(tmp_path), kind, "__main__")
    assert found["path"] == ("" if kind == "-c" else str(tmp_path))
    assert found["pid"] == pid
    assert found["session"] == os.getsid(0)
    assert found["threads"] == 1


def test_nothing_of_others_is_open_in_it():
    with warm.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        found, _ = told("-c", TELL)
        assert len(found["open"]) == 1  # the folder that it lists
        other.communicate(b"\n")
    assert other.returncode == 0


def test_a_session_of_its_own():
    found, pid = told("-c", TELL, start_new_session=True)
    assert found["session"] == pid


@pytest.mark.parametrize(
    ("code", "status", "said"),
    [
        ("print('out', end='')", 0, ""),
        ("import sys; sys.exit(7)", 7, ""),
        ("raise SystemExit('why')", 1, "why\n"),
        ("1 / 0", 1, "ZeroDivisionError"),
        ("import os; os.kill(os.getpid(), 9)", -9, ""),
        ("import os, signal; os.kill(os.getpid(), signal.SIGINT)", -2, "KeyboardInterrupt"),
        ("import atexit; atexit.register(print, 'out', end='')", 0, ""),
    ],
)
def test_it_ends_as_it_would(code, status, said):
    done = ended(code)
    assert done.returncode == status
    assert said in done.stderr
    assert done.stdout == ("out" if "print" in code else "")


def test_it_is_waited_for_and_signalled():
    code = "import time; print('up', flush=True); time.sleep(600)"
    with warm.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "up\n"
        assert process.poll() is None
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(timeout=0.01)
        process.terminate()
        assert process.wait(timeout=60) == -signal.SIGTERM
        assert process.poll() == -signal.SIGTERM
        process.kill()  # it has ended: nothing happens


def test_streams_that_are_one():
    code = "import sys; print(1, flush=True); print(2, file=sys.stderr)"
    command = [sys.executable, "-c", code]
    done = warm.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.stdout == "1\n2\n"


async def test_many_at_once():
    async def one(number):
        command = (sys.executable, "-c", f"import sys; print({number}); sys.exit({number})")
        process = await warm.execute(*command, stdout=subprocess.PIPE)
        out, _ = await process.communicate()
        return process.returncode, int(out)

    assert await asyncio.gather(*map(one, range(8))) == [(n, n) for n in range(8)]


@pytest.mark.parametrize("options", [["-I"], ["-X", "dev"]])
def test_what_is_about_the_interpreter_is_executed(options):
    code = "import sys; print('perdure' in sys.modules)"
    done = warm.run([sys.executable, *options, "-c", code], capture_output=True, text=True)
    assert done.stdout == "False\n"


def test_cold_is_cold(monkeypatch):
    monkeypatch.setenv("PERDURE_TEST_COLD", "1")
    assert ended("import sys; print('perdure.engine' in sys.modules)").stdout == "False\n"
