"""The same tests once more as a user without any rights, where root runs this suite."""

import os
import subprocess
import sysconfig
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
NOBODY = 65_534
PYTHON = "/usr/bin/python3"


@pytest.mark.timeout(600)
def test_attacks_and_layers_as_nobody(is_root):
    if not is_root:
        pytest.skip("this suite is run by a user without rights already")
    code = "import sys, pytest, msgspec, perdure.sandbox; print(sys.version_info[:2])"
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
    as_nobody = {"user": NOBODY, "group": NOBODY, "extra_groups": [], "env": env, "cwd": "/"}
    try:
        able = subprocess.run([PYTHON, "-c", code], **as_nobody, capture_output=True, check=False)
        if able.returncode != 0:
            pytest.skip(f"NOT TESTED: nobody can't run these tests with {PYTHON}: {able.stderr!r}")
        tests = ["test_attacks.py", "test_layers.py", "test_collecting.py", "test_room.py"]
        tests += ["test_export.py", "test_export_attacks.py"]
        ran = subprocess.run(
            [PYTHON, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", "-c"]
            + [str(REPOSITORY / "pyproject.toml"), "--rootdir", str(REPOSITORY)]
            + ["--basetemp", str(folder / "t")]
            + ["-m", "not slow", "-k", "not random_turns and not deep_stack"]
            + [str(REPOSITORY / "tests/sandbox" / name) for name in tests],
            **as_nobody,
            capture_output=True,
            text=True,
            check=False,
        )
        assert ran.returncode == 0, ran.stdout[-5000:] + ran.stderr[-2000:]
        assert " passed" in ran.stdout
        assert "NOT TESTED" not in ran.stdout, ran.stdout[-3000:]
    finally:
        subprocess.run(["/bin/rm", "-rf", str(folder)], check=True)
