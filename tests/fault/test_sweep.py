"""The sweep over a sample of its points; `make sweep` plays them all.

See sweep.py for what is played, and for how to play one case by hand.
"""

import json
import re
from pathlib import Path

import pytest

from perdure import Effect
from perdure.model import EffectKind
from tests.fault import reference
from tests.fault.conftest import ROOT, run_program

# One worker plays them: the report of the sweep is made once for all tests here.
pytestmark = [pytest.mark.fault, pytest.mark.timeout(600), pytest.mark.xdist_group("sweep")]

MARK = re.compile(r"#\s*crash-point:\s*([a-z_.]+)")
NOT_REACHED_MAX = 0.1
"""How commits group varies a little, so that now and then a last occurrence is not reached."""


SHARE = ("--play", "order", "--variant", "peer", "--variant", "doubt", "--each", "1")
"""What of the sweep is played on PostgreSQL as well."""


ELSEWHERE = {
    "version.move.": "tests/fault/test_moves.py",
    "erase.": "tests/fault/test_erase.py",
    "keys.rewrap.": "tests/sealing/test_rotation.py",
    "keys.seal.": "tests/sealing/test_in_place.py",
    "prune.": "tests/fault/test_retention.py",
    "collect.": "tests/fault/test_retention.py",
    "fork.pinned": "tests/fault/test_retention.py",
    "sandbox.freeze.": "tests/fault/test_isolated_crash.py",
    "sandbox.keep.": "tests/fault/test_live_crash.py",
    "sandbox.rollback.": "tests/fault/test_isolated_crash.py",
    "sandbox.collect.": "tests/fault/test_collect_crash.py",
    "prune.layers.": "tests/fault/test_collect_crash.py",
    "erase.sandbox.": "tests/fault/test_erase_files.py",
    "sandbox.export.": "tests/fault/test_export_crash.py",
    "sandbox.import.": "tests/fault/test_export_crash.py",
    "sandbox.condemn.": "tests/fault/test_exports_collect_crash.py",
}
"""Crash points, by the beginning of their names, that tests of their own kill at."""


def is_killed_elsewhere(name: str) -> bool:
    """Return whether a test of its own kills at this point."""
    files = [path for begin, path in ELSEWHERE.items() if name.startswith(begin)]
    return any(f'"{name}"' in (ROOT / path).read_text(encoding="utf-8") for path in files)


def swept(tmp_path_factory, *arguments):
    path = tmp_path_factory.mktemp("sweep") / "report.json"
    done = run_program("-m", "tests.fault.sweep", "--json", str(path), *arguments, timeout_s=570.0)
    assert path.exists(), done.stdout
    return json.loads(path.read_text(encoding="utf-8"))


@pytest.fixture(scope="session")  # of a module it was seen to be made twice in a run
def report(tmp_path_factory):
    """Return the report of one sweep over the sample: of each name the first and the last time."""
    return swept(tmp_path_factory, "--each", "2")


def marked() -> dict[str, str]:
    """Return every crash point that the source marks, with its file."""
    found = {}
    for path in sorted((ROOT / "src").rglob("*.py")):
        for name in MARK.findall(path.read_text(encoding="utf-8")):
            found[name] = str(path.relative_to(ROOT))
    return found


def test_nothing_differs_wherever_a_process_is_killed(report, record_property):
    record_property(
        "figure",
        f"sweep: {report['kills']} kills at {len(report['names'])} crash points, "
        f"{len(report['differences'])} differences, {report['seconds']} s",
    )
    shown = [(each["case"], each["differences"]) for each in report["differences"]]
    assert shown == [], report["differences"][0]["logs"]


def test_processes_were_really_killed(report):
    assert report["kills"] >= report["cases"] * (1 - NOT_REACHED_MAX), report["not_reached"]


def test_nothing_differs_on_postgres(tmp_path_factory, record_property):
    report = swept(tmp_path_factory, "--store", "postgres", *SHARE)
    record_property(
        "figure",
        f"sweep on PostgreSQL: {report['kills']} kills at {len(report['names'])} crash points, "
        f"{len(report['differences'])} differences, {report['seconds']} s",
    )
    shown = [(each["case"], each["differences"]) for each in report["differences"]]
    assert shown == [], report["differences"][0]["logs"]
    assert report["kills"] >= report["cases"] * (1 - NOT_REACHED_MAX), report["not_reached"]
    marks = {name for name, path in marked().items() if path.startswith("src/perdure/engine")}
    shared = {f"store.transact.{when}" for when in ("before", "during", "after")}
    missing = (marks | shared) - set(report["names"])
    # The rest are of compensations, which are not among what is played here.
    rest = {name for name in missing if not name.startswith("compensate.")}
    assert {name for name in rest if not is_killed_elsewhere(name)} == set()


def test_every_marked_crash_point_is_swept(report):
    missing = {name: path for name, path in marked().items() if name not in report["names"]}
    assert {name: path for name, path in missing.items() if not is_killed_elsewhere(name)} == {}


def test_every_probe_is_marked():
    probes = re.compile(r"probe\(\s*\"([a-z_.]+)\"")
    names = {
        name
        for path in (ROOT / "src").rglob("*.py")
        for name in probes.findall(Path(path).read_text(encoding="utf-8"))
    }
    assert names - marked().keys() == set()


def test_reference_graph_has_every_kind_of_effect():
    kinds = {each.kind for each in vars(reference).values() if isinstance(each, Effect)}
    assert kinds == set(EffectKind)
