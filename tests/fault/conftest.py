"""How a test plays a scene: in a process of its own, which forks the others."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import warm
from tests.fault import stores

ROOT = Path(__file__).parents[2]


def run_program(*arguments: str, timeout_s: float) -> subprocess.CompletedProcess[str]:
    """Run one of our programs; a hard deadline ends it and all that it started."""
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
    process = warm.Popen(
        [sys.executable, *arguments],
        cwd=ROOT,
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)
        output, _ = process.communicate()
        pytest.fail(f"{arguments} took longer than {timeout_s} s:\n{output}")
    return subprocess.CompletedProcess(arguments, process.returncode, output, "")


@pytest.fixture(params=stores.STORES)
def store_url(request):
    """Give the URL of each store that the scenes play on."""
    if request.param == "sqlite":
        return stores.SQLITE
    return stores.postgres_url(request.getfixturevalue("postgres"))


@pytest.fixture
def play(tmp_path, store_url):
    """Return a function that plays a scene and returns what it saw."""

    def play_one(name: str, *, timeout_s: float = 60.0, **options):
        place = tmp_path / name
        done = run_program(
            "-m",
            "tests.fault.scenes",
            name,
            str(place),
            json.dumps({"url": store_url, **options}),
            timeout_s=timeout_s,
        )
        assert done.returncode == 0, done.stdout
        return json.loads((place / "seen.json").read_text(encoding="utf-8"))

    return play_one
