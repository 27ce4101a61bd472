"""Tests that share what is dear to make are executed by one worker, so that it is made once."""

import subprocess
import sys

TESTS = """
import os
from pathlib import Path
import pytest

@pytest.mark.xdist_group("one")
@pytest.mark.parametrize("number", range(12))
def test_where(number):
    Path(f"{number}.txt").write_text(os.environ["PYTEST_XDIST_WORKER"])
"""


def test_a_group_is_kept_on_one_worker(tmp_path):
    (tmp_path / "test_where.py").write_text(TESTS, encoding="utf-8")
    words = ["-n", "2", "--dist", "loadgroup", "-q", "-p", "no:cacheprovider", "."]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *words],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    workers = [path.read_text(encoding="utf-8") for path in tmp_path.glob("*.txt")]
    assert (len(workers), len(set(workers))) == (12, 1)
