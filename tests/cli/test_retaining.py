"""`prune`, `tag`, `untag`, `quota`."""

import pytest

from tests.cli.conftest import FLOWS

THREAD = "b"


@pytest.fixture
def thread(inside):
    """Make a thread of three runs."""
    for _ in range(3):
        assert inside("run", f"{FLOWS}:bills", "--thread", THREAD).code == 0


def test_prune_says_what_would_go_and_does_nothing(inside, thread):
    before = inside("history", THREAD, "--json").json
    done = inside("prune", "--keep", "1", "--dry-run", "--json")
    found = done.json["pruned"]
    assert (found["is_dry_run"], found["pages"]["count"], found["files"]) == (True, 0, None)
    [each] = found["threads"]
    assert (each["thread"], each["checkpoints"]) == (THREAD, len(before["checkpoints"]))
    assert inside("history", THREAD, "--json").json == before
    said = inside("prune", THREAD, "--keep", "1", "--dry-run")
    assert "next: perdure prune b --keep 1" in said.err


def test_prune_keeps_more_than_wanted_and_says_why(inside, thread):
    done = inside("prune", "--keep", "1")
    assert done.code == 0
    assert "needed to read the newest state" in done.out
    [each] = inside("prune", "--keep", "1", "--json").json["pruned"]["threads"]
    last = each["stays"][-1]
    assert (last["why"], last["of"]) == ("needed", str(each["checkpoints"]))
    assert "pages that nothing refers to any more: 0 pages" in done.out
    assert inside("audit", "verify").code == 0


def test_prune_needs_to_know_what_to_keep(inside, thread):
    assert inside("prune").code == 2
    assert "--keep N, --older-than AGE" in inside("prune").err
    assert inside("prune", "--keep", "0").code == 2
    assert inside("prune", "--older-than", "soon").code == 2
    assert inside("prune", "nobody", "--keep", "1").code == 4
    assert inside("prune", "--older-than", "30d", "--no-vacuum").code == 0


def test_a_tag_is_shown_and_removed(inside, thread):
    assert inside("tag", THREAD, "2", "release", "--by", "ada").code == 0
    assert "tagged release" in inside("history", THREAD).out
    [tag] = inside("history", THREAD, "--json").json["tags"]
    assert (tag["name"], tag["checkpoint"], tag["by"]) == ("release", 2, "ada")
    assert inside("tag", THREAD, "99", "none").code == 4
    assert inside("untag", THREAD, "release", "--json").json["is_removed"]
    assert "no tag release" in inside("untag", THREAD, "release").out
    assert inside("history", THREAD, "--json").json["tags"] == []


def test_a_quota_refuses_starts(inside, thread):
    assert "no quotas" in inside("quota", "list").out
    assert inside("quota", "set", "--max-bytes", "1KB", "--json").json["bytes_max"] == 1000
    refused = inside("start", f"{FLOWS}:bills")
    assert (refused.code, "perdure prune" in refused.err) == (45, True)
    assert "(all)" in inside("quota", "list").out
    [quota] = inside("quota", "list", "--json").json["quotas"]
    assert (quota["tenant"], quota["bytes_max"]) == (None, 1000)
    assert inside("quota", "set", "--max-bytes", "much").code == 2
    assert inside("quota", "drop").code == 0
    assert inside("quota", "drop", "--tenant", "x").code == 4
    assert inside("start", f"{FLOWS}:bills").code == 0


def test_a_pruned_run_is_shown_with_what_is_left(inside, monkeypatch):
    monkeypatch.setattr("perdure.engine.driver.SNAPSHOT_BYTES_MIN", 0)
    monkeypatch.setattr("perdure.engine.driver.WHOLE_COPY_SHARE", 0)
    monkeypatch.setattr("perdure.engine.driver.STATE_BYTES_SHARE", 1_000_000)
    runs = [
        inside("run", f"{FLOWS}:bills", "--thread", THREAD, "--json").json["run"]["id"]
        for _ in range(4)
    ]
    assert inside("prune", "--keep", "1", "--vacuum").code == 0
    shown = inside("show", runs[0])
    assert (shown.code, "was pruned" in shown.err) == (0, True)
    assert inside("show", runs[0], "--json").json["state"] is None
    assert inside("history", THREAD, "--at", "1").code == 44
    assert inside("history", THREAD).code == 0
    assert inside("show", runs[-1], "--json").json["state"]
    assert inside("doctor").code == 0
    assert inside("audit", "verify").code == 0
    assert inside("replay", runs[0], f"{FLOWS}:bills").code == 44
