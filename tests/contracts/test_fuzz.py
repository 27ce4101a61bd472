"""Projects that were spoilt at random, a few of them; `make fuzz` plays many."""

import random
import subprocess
import sys

import pytest

from tests.contracts import fuzz


@pytest.mark.timeout(300)
def test_spoilt_specimens_are_read_or_named():
    command = [sys.executable, "-m", "tests.contracts.fuzz", "--trials", "60", "--seconds", "240"]
    done = subprocess.run(command, cwd=fuzz.ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert done.stdout == "fuzz: 60 projects from seed 0, 0 faults\n"


def test_a_seed_spoils_one_way_only(tmp_path):
    [source, *_] = fuzz.places(fuzz.SPECIMENS)
    seen = []
    for name in ("a", "b"):
        changed = fuzz.spoilt(source, tmp_path / name, random.Random(7))  # noqa: S311
        seen.append([path.read_bytes() for path in changed])
    assert seen[0] == seen[1]
    original = [source / path.relative_to(tmp_path / "b") for path in changed]
    assert seen[0] != [path.read_bytes() for path in original]


def test_a_reader_that_fails_and_one_that_reads_otherwise_are_faults(tmp_path, monkeypatch):
    (tmp_path / "Dockerfile").write_text("FROM a\nCMD x\n")
    (tmp_path / "compose.yaml").write_text("services:\n  api: {build: .}\n")
    assert list(fuzz.faults(tmp_path, [tmp_path / "Dockerfile"])) == []
    monkeypatch.setattr(fuzz, "shape", lambda text: [("FROM", 1, 1, False)])
    assert len(list(fuzz.faults(tmp_path, [tmp_path / "Dockerfile"]))) == 1

    def fails(*_):
        raise KeyError

    monkeypatch.setattr("perdure.contracts.deployment._compose_roots.ComposeService.read", fails)
    assert "KeyError" in " ".join(fuzz.faults(tmp_path, []))
