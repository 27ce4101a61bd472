"""Server, connections and workers that fail at random moments: nothing lost, nothing doubled."""

import json
import os

import pytest

from tests.fault.conftest import run_program
from tests.fault.outage import WRONG, summary

pytestmark = [pytest.mark.fault, pytest.mark.timeout(150)]

SEED = 20261129


def test_all_at_once(tmp_path, record_property):
    path = tmp_path / "seen.json"
    seed = os.environ.get("PERDURE_TEST_SEED", str(SEED))
    # Gap: without the session locks, see test_taken_for_dead.py.
    arguments = f"--runs 30 --kills 8 --spread-s 10 --deadline-s 90 --seed {seed}"
    arguments += f" --json {path}"
    done = run_program("-m", "tests.fault.outage", *arguments.split(), timeout_s=120.0)
    assert path.exists(), done.stdout
    seen = json.loads(path.read_text(encoding="utf-8"))
    record_property("figure", summary(seen))
    assert {name: seen[name] for name in WRONG} == {name: [] for name in WRONG}, done.stdout
    assert seen["finished"] == seen["runs"] == 30
    assert done.returncode == 0, done.stdout
    assert set(seen["stops"]) == {0}
    assert all(count > 0 for count in seen["faults"].values()), seen["faults"]
