"""The same tests once more as a user without any rights, where root runs this suite."""

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from perdure.sandbox._cgroups import MOUNT

REPOSITORY = Path(__file__).resolve().parents[2]
NOBODY = 65_534
PYTHON = "/usr/bin/python3"


ENTER = """
import os, sys
with open(sys.argv[1], "w") as procs:
    procs.write("0")
os.setgroups([])
os.setresgid(*[int(sys.argv[2])] * 3)
os.setresuid(*[int(sys.argv[2])] * 3)
os.execv(sys.argv[3], sys.argv[3:])
"""
"""Enters a control group as root, and becomes a user without rights."""


@pytest.fixture
def nobody(is_root):
    """Yield a folder of a user without rights, and the environment to run these tests in."""
    if not is_root:
        pytest.skip("this suite is run by a user without rights already")
    paths = [str(REPOSITORY / "src"), str(REPOSITORY), sysconfig.get_paths()["purelib"]]
    folder = Path("/var/tmp") / f"perdure-rootless-{os.getpid()}"
    folder.mkdir(mode=0o700)
    os.chown(folder, NOBODY, NOBODY)
    env = {
        "PATH": "/usr/bin:/bin",
        "HOME": str(folder),
        "PYTHONPATH": os.pathsep.join(paths),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    try:
        code = "import sys, pytest, msgspec, perdure.sandbox; print(sys.version_info[:2])"
        able = subprocess.run(
            [PYTHON, "-c", code], **as_nobody(env), capture_output=True, check=False
        )
        if able.returncode != 0:
            pytest.skip(f"NOT TESTED: nobody can't run these tests with {PYTHON}: {able.stderr!r}")
        yield folder, env
    finally:
        subprocess.run(["/bin/rm", "-rf", str(folder)], check=True)


def as_nobody(env):
    return {"user": NOBODY, "group": NOBODY, "extra_groups": [], "env": env, "cwd": "/"}


def command_of(folder, names):
    """Return the command that runs some of these tests."""
    return [
        *(PYTHON, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", "-c"),
        *(str(REPOSITORY / "pyproject.toml"), "--rootdir", str(REPOSITORY)),
        *("--basetemp", str(folder / "t"), "-m", "not slow"),
        *("-k", "not random_turns and not deep_stack"),
        *(str(REPOSITORY / "tests/sandbox" / name) for name in names),
    ]


def check(ran):
    assert ran.returncode == 0, ran.stdout[-5000:] + ran.stderr[-2000:]
    assert " passed" in ran.stdout
    assert "NOT TESTED" not in ran.stdout, ran.stdout[-3000:]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", ["test_attacks.py", "test_layers.py", "test_export_attacks.py"])
def test_attacks_and_layers_as_nobody(nobody, name):
    folder, env = nobody
    command = command_of(folder, [name])
    check(subprocess.run(command, **as_nobody(env), capture_output=True, text=True, check=False))


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_everything_as_nobody(nobody):
    folder, env = nobody
    names = [path.name for path in (REPOSITORY / "tests/sandbox").glob("test_*.py")]
    command = command_of(folder, sorted({*names} - {"test_rootless.py"}))
    # The hundred lines of what is skipped would push out what failed.
    command += ["-r", "fE"]
    ran = subprocess.run(command, **as_nobody(env), capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout[-9000:] + ran.stderr[-2000:]


@pytest.mark.timeout(600)
def test_live_trees_as_nobody_with_a_group_of_its_own(nobody):
    folder, env = nobody
    top = next((path for path in (MOUNT / "unified", MOUNT) if is_writable(path)), None)
    if top is None:
        pytest.skip("NOT TESTED: no control group of version 2 can be delegated here")
    group = top / f"perdure-test-{os.getpid()}"
    try:
        (group / "worker").mkdir(parents=True)
        for path in [group, group / "worker"]:
            for each in (path, path / "cgroup.procs", path / "cgroup.subtree_control"):
                os.chown(each, NOBODY, NOBODY)
        enter = [sys.executable, "-S", "-c", ENTER, str(group / "worker/cgroup.procs"), str(NOBODY)]
        command = enter + command_of(folder, ["test_live.py", "test_live_attacks.py"])
        check(
            subprocess.run(command, env=env, cwd="/", capture_output=True, text=True, check=False)
        )
        assert [path.name for path in group.iterdir() if path.is_dir()] == ["worker"]
    finally:
        for path in (group / "worker", group):
            path.rmdir()


def is_writable(path):
    return (path / "cgroup.controllers").exists() and os.access(path, os.W_OK)


@pytest.mark.timeout(60)
def test_live_trees_are_refused_without_a_group(nobody):
    folder, env = nobody
    code = (
        "from perdure.errors import SandboxUnstoppable\n"
        "from perdure.sandbox import IsolatedSandboxes\n"
        f"try: IsolatedSandboxes({str(folder)!r}, live=True)\n"
        "except SandboxUnstoppable as error: print('refused:', error)"
    )
    ran = subprocess.run(
        [PYTHON, "-c", code], **as_nobody(env), capture_output=True, text=True, check=True
    )
    assert ran.stdout.startswith("refused: processes can't live between commands here")
