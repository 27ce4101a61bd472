"""Time travel by commands: history, show --at, diff, replay, fork, rollback."""

import json
import os
import pty
import shlex
import subprocess
import sys

import pytest

from tests.cli.conftest import FLOWS

TARGET = f"{FLOWS}:bills"


@pytest.fixture
def done(inside, monkeypatch, tmp_path):
    """Return the command line, over a store where thread `t` has run to its end."""
    monkeypatch.setenv("CHARGED", str(tmp_path / "charged"))
    ran = inside("run", TARGET, "--input", '{"cents": 40}', "--thread", "t", "--json")
    assert ran.code == 0, ran.out
    inside.run_id = ran.json["run"]["id"]
    return inside


def charged(tmp_path):
    return (tmp_path / "charged").read_text().splitlines()


def execute(done, run_id, thread):
    """Execute what is due; the start of another run makes `run` do so."""
    ran = done("run", TARGET, "--thread", thread, "--json")
    assert ran.code == 0, ran.out
    return done("show", run_id, "--json").json


def test_a_tag_is_a_point_of_every_command(done):
    assert done("tag", "t", "2", "checked").code == 0
    for words in (["history", "t", "--at"], ["show", done.run_id, "--at"]):
        assert done(*words, "checked", "--json").json == done(*words, "2", "--json").json
    at_2 = done("history", "t", "--at", "2", "--json").json
    assert done("history", "t@checked", "--json").json == at_2
    assert done("show", "t@checked", "--json").json == at_2
    by_tag = done("diff", "t@checked", "t@3", "--json").json
    assert by_tag == done("diff", "t@2", "t@3", "--json").json
    replayed = done("replay", "t@checked", TARGET, "--json").json
    assert replayed["run"] == done.run_id
    forked = done("fork", "t@checked", "--thread", "t2", "--yes", "--json")
    assert forked.json["preview"]["checkpoint"] == 2
    refused = done("fork", "t@chekked", "--thread", "t3", "--yes")
    assert (refused.code, "did you mean: 'checked'" in refused.err) == (4, True)
    rolled = done("rollback", "t@checked", "--by", "ada", "--yes", "--json")
    assert rolled.json["checkpoint"] == 2


# -- history and show ------------------------------------------------------------------------------


def test_history_is_a_tree_with_forks_both_ways(done):
    forked = done("fork", "t@2", "--thread", "t2", "--yes", "--json").json["run"]["id"]
    done("fork", "t2@1" if execute(done, forked, "t2") else "", "--thread", "t3", "--yes")
    lines = done("history", "t").out.splitlines()
    assert lines[0] == "thread t"
    assert lines[1] == f"  run {done.run_id}, bills v1, succeeded"
    assert lines[2].startswith("    checkpoint 1: input; changed cents, ")
    assert lines[3].startswith("    checkpoint 2: check; changed item, notes; next settle; 20")
    assert lines[4:6] == ["      forked at checkpoint 2:", "        thread t2, forked from t@2"]
    assert "              forked at checkpoint 1:" in lines
    assert "                thread t3, forked from t2@1" in lines
    tree = done("history", "t", "--json").json
    assert [fork["tree"]["thread"] for fork in tree["forks"]] == ["t2"]
    assert tree["forks"][0]["tree"]["origin"] == {"thread": "t", "checkpoint": 2}
    assert [fork["run"] for fork in tree["forks"]] == [forked]
    assert [each["id"] for each in tree["checkpoints"]] == [3, 2, 1]


def test_the_state_at_a_checkpoint_and_what_led_to_it(done):
    found = done("history", "t", "--at", "2", "--json").json
    assert found["at"] == {"thread": "t", "checkpoint": 2, "run": done.run_id}
    assert found["state"]["notes"] == ["checked 40"]
    assert (found["next_nodes"], found["effects"]) == (["settle"], [])
    found = done("show", done.run_id, "--at", "3", "--json").json
    [effect] = found["effects"]
    assert (effect["name"], effect["args"], effect["state"]) == ("pay", ["o-1", 40], "confirmed")
    assert [step["nodes"][0]["node"] for step in found["steps"][1:]] == ["check", "settle"]
    text = done("show", done.run_id, "--at", "3").out
    assert f"thread t, checkpoint 3, run {done.run_id}; next: (end)" in text
    assert 'pay("o-1", 40): confirmed -> "paid-o-1", kind keyed' in text
    assert done("history", "t", "--at", "9").code == 4
    other = done("run", TARGET, "--thread", "t", "--json").json["run"]["id"]
    wrong = done("show", other, "--at", "2")
    assert (wrong.code, done.run_id in wrong.err) == (4, True)


# -- diff ------------------------------------------------------------------------------------------


def test_diff_of_two_checkpoints(done):
    text = done("diff", "t@1", "t@3").out
    assert "in common up to t@1" in text
    assert '+ /notes/-: "checked 40"' in text
    assert "B checkpoint 2: check" in text
    assert 'only B: pay("o-1", 40): confirmed' in text
    found = done("diff", "t@2", "t", "--json").json
    assert found["patch"] == [{"op": "add", "path": "/notes/-", "value": "paid-o-1"}]
    assert done("diff", "t@2", "t@2").out.splitlines()[-1] == "no difference"
    missing = done("diff", "t@2", "nowhere")
    assert (missing.code, "no run and no thread 'nowhere'" in missing.err) == (4, True)


def test_diff_of_a_run_and_its_fork(done):
    forked = done("fork", "t@2", TARGET, "--set", "cents=60", "--yes", "--json").json["run"]
    execute(done, forked["id"], "elsewhere")
    found = done("diff", done.run_id, forked["id"], "--json").json
    assert found["parted"] == {"thread": "t", "checkpoint": 2, "run": done.run_id}
    assert found["steps"] == {"same": 1, "a": [], "b": []}
    [pair] = found["effects"]["differing"]
    assert (pair["a"]["args"], pair["b"]["args"]) == (["o-1", 40], ["o-1", 60])
    assert found["patch"] == [{"op": "replace", "path": "/cents", "value": 60}]


# -- replay ----------------------------------------------------------------------------------------


def test_replay_is_clean_or_says_what_differs(done, tmp_path):
    clean = done("replay", done.run_id, TARGET)
    assert (clean.code, "no divergence" in clean.out) == (0, True)
    assert "recomputed 3 steps and 2 node executions" in clean.out
    assert len(charged(tmp_path)) == 1
    edited = tmp_path / "edited.py"
    edited.write_text(FLOWS.read_text().replace("checked {", "CHECKED {"))
    differs = done("replay", done.run_id, f"{edited}:bills")
    assert differs.code == 14
    assert (
        "code changed: node `1:check` now writes notes=['CHECKED 40'], recorded ['checked 40']"
        in differs.out
    )
    found = done("replay", done.run_id, f"{edited}:bills", "--json")
    assert (found.code, found.json["is_clean"]) == (14, False)
    [divergence] = found.json["divergences"]
    assert (divergence["kind"], divergence["subject"]) == ("update", "notes")
    assert divergence["expected"] == ["checked 40"]
    assert len(charged(tmp_path)) == 1


def test_replay_of_what_is_not_there(done):
    assert done("replay", "r_none", TARGET).code == 4
    wrong = done("replay", done.run_id, f"{FLOWS}:refunds")
    assert (wrong.code, "of graph 'bills', not 'refunds'" in wrong.err) == (2, True)


# -- fork ------------------------------------------------------------------------------------------


def test_a_fork_previews_and_refuses_where_nobody_can_be_asked(done, tmp_path):
    asked = done("fork", "t@2")
    assert asked.code == 2
    key = charged(tmp_path)[0].split()[-1]
    assert "would be done AGAIN" in asked.out
    assert f'pay("o-1", 40): confirmed -> "paid-o-1", kind keyed, key {key}' in asked.out
    assert "next: settle" in asked.out
    assert "next: perdure fork t@2 --yes" in asked.err
    assert len(done("ps", "--all", "--json").json["runs"]) == 1
    as_json = done("fork", "t@2", "--json").json
    assert as_json["error"]["fields"]["preview"]["again"][0]["args"] == ["o-1", 40]
    again = shlex.split(as_json["next"][0])[1:]
    assert done(*again).code == 0


SETS = [
    ("cents=60", "cents", 60),
    ('notes[0]="other"', "notes", ["other"]),
    ('size="l"', "size", "Size.LARGE"),
    ("item.price=7.5", "item", {"$type": "Item", "sku": "sku", "price": "7.5"}),
    ("prices.a=1", "prices", {"a": 1}),
    ('prices["a=b c"]=1', "prices", {"a=b c": 1}),
    ("item=null", "item", None),
]


@pytest.mark.parametrize(("text", "name", "value"), SETS)
def test_set_changes_a_place_of_the_typed_state(done, text, name, value):
    found = done("fork", "t@2", TARGET, "--set", text, "--yes", "--json")
    assert found.code == 0, found.out
    assert found.json["preview"]["state"][name] == value


UNFIT = [
    ("cent=60", "the state has no field 'cent'; it has: order_id, cents"),
    ('cents="many"', "field 'cents'"),
    ("cents=1.5", "field 'cents'"),
    ("notes[1]=2", "notes has no item 1; it has 1"),
    ("notes[0]=2", "field 'notes'"),
    ("item.name=1", "item has no 'name'; it has: sku, price"),
    ("cents.x=1", "cents is a int and has no 'x'"),
    ("prices.a.b=1", "prices has no 'a'; it has: nothing"),
    ("cents", "write path=JSON"),
    ("cents=4O", "is no JSON"),
    (".cents=1", "is no path"),
    ("notes[=1", "is no path"),
    ("=1", "a path is missing"),
]


@pytest.mark.parametrize(("text", "message"), UNFIT)
def test_a_set_that_does_not_fit_is_refused_by_name(done, text, message):
    refused = done("fork", "t@2", TARGET, "--set", text, "--yes")
    assert refused.code == 2
    assert message in refused.err
    assert len(done("ps", "--all", "--json").json["runs"]) == 1


def test_several_sets_of_one_field_and_the_graph_that_they_need(done):
    sets = ["--set", "prices.a=1", "--set", "prices.b=2", "--set", 'notes[0]="x"']
    found = done("fork", "t@2", TARGET, *sets, "--yes", "--json").json["preview"]["state"]
    assert (found["prices"], found["notes"]) == ({"a": 1, "b": 2}, ["x"])
    without = done("fork", "t@2", "--set", "cents=1", "--yes")
    assert (without.code, "name the graph" in without.err) == (2, True)
    assert "perdure fork t@2 FILE:GRAPH --set cents=1" in without.err
    other = done("fork", "t@2", f"{FLOWS}:refunds", "--set", "cents=1", "--yes")
    assert (other.code, "is of bills v1, not refunds v1" in other.err) == (2, True)


def test_a_rerun_and_the_name_of_a_fork(done):
    found = done("fork", "t@3", "--rerun", "--thread", "anew", "--yes", "--json").json
    assert (found["run"]["thread"], found["preview"]["next_nodes"]) == ("anew", ["check"])
    assert found["preview"]["is_rerun"]
    taken = done("fork", "t@3", "--thread", "anew", "--yes")
    assert (taken.code, "thread 'anew' exists" in taken.err) == (5, True)


# -- rollback --------------------------------------------------------------------------------------


def test_a_rollback_previews_and_puts_back(done):
    asked = done("rollback", "t@1", "--by", "ada", "--reason", "wrong amount")
    assert asked.code == 2
    assert "thread t would go back from checkpoint 3 to 1" in asked.out
    assert "NOT undone:" in asked.out
    assert 'pay("o-1", 40): confirmed' in asked.out
    following = "perdure rollback t@1 --by ada --reason 'wrong amount' --yes"
    assert f"next: {following}" in asked.err
    back = done(*shlex.split(following)[1:])
    assert back.code == 0
    assert "has the state of checkpoint 1 again, as checkpoint 4" in back.out
    state = done("history", "t", "--at", "4", "--json").json["state"]
    assert state == done("history", "t", "--at", "1", "--json").json["state"]
    assert "rolled back to checkpoint 1 by ada: wrong amount" in done("history", "t").out
    ran = done("run", TARGET, "--thread", "t", "--json").json
    assert ran["result"]["notes"] == ["checked 40", "paid-o-1"]


def test_every_command_that_is_printed_finds_the_same_store(done, tmp_path):
    """Pasted as it is, also from JSON and from errors."""
    (tmp_path / "perdure.db").rename(tmp_path / "other.db")
    store = ("--store", "sqlite:///other.db")
    run_id = done.run_id
    told = []
    for words in (
        ("rollback", "t@1", "--by", "ada", "--json"),
        ("rollback", "t@1", "--by", "ada"),
        ("rollback", "t@99", "--by", "ada", "--yes", "--json"),
        ("rollback", "t", "--by", "ada", "--json"),
        ("fork", "t@1", "--json"),
        ("fork", "t@77", "--yes", "--json"),
        ("history", "nowhere", "--json"),
        ("diff", "t@1", "nowhere", "--json"),
        ("show", "r_nowhere", "--json"),
        ("show", run_id, "--json"),
        ("cancel", run_id, "--by", "ada", "--json"),
        ("resolve", run_id, "--retry", "--by", "ada", "--json"),
        ("approve", "a_nowhere", "--json"),
        ("signal", "r_nowhere", "topic", "--json"),
        ("limit", "remove", "--graph", "nothing", "--json"),
        ("schedule", "remove", "nothing", "--json"),
        ("audit", "verify", "--run", "r_nowhere", "--json"),
    ):
        found = done(*words, *store)
        told += commands_in(found)
    assert len(told) > 8
    assert [line for line in told if "--store sqlite:///other.db" not in line] == []


def commands_in(said):
    """Return the commands in the JSON that was printed, or behind `next: `."""
    if not said.out.startswith("{"):
        return [line[6:] for line in said.err.splitlines() if line.startswith("next: perdure")]
    found, queue = [], [said.json]
    while queue:
        value = queue.pop()
        if isinstance(value, dict):
            queue += value.values()
        elif isinstance(value, list):
            queue += value
        elif isinstance(value, str) and value.startswith("perdure "):
            found.append(value)
    return found


def test_rollbacks_that_are_refused(done):
    assert "say who" in done("rollback", "t@1", "--yes").err
    without = done("rollback", "t", "--by", "ada", "--yes")
    assert (without.code, "next: perdure history t" in without.err) == (2, True)
    newest = done("rollback", "t@3", "--by", "ada", "--yes", "--json")
    assert (newest.code, "is the newest" in newest.json["error"]["message"]) == (2, True)
    started = done("start", TARGET, "--thread", "t")
    busy = done("rollback", "t@1", "--by", "ada", "--yes")
    assert busy.code == 5
    assert f"next: perdure cancel {started.out.strip()}" in busy.err


def test_a_thread_with_an_at_sign_is_meant_as_it_is(done):
    ran = done("run", TARGET, "--thread", "ada@1", "--json")
    assert ran.code == 0
    found = done("diff", "ada@1@1", "ada@1", "--json").json
    assert (found["a"]["thread"], found["a"]["checkpoint"]) == ("ada@1", 1)
    assert found["b"]["checkpoint"] == 3
    assert json.loads(done("fork", "ada@1@2", "--json").out)["error"]["fields"]["preview"]


@pytest.mark.parametrize(("answer", "code", "runs"), [("y", 0, 2), ("n", 1, 1)])
def test_on_a_terminal_it_asks(done, cli, answer, code, runs):
    outer, inner = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "perdure", "fork", "t@2"],
        cwd=cli.folder,
        env=cli.environment,
        stdin=inner,
        stdout=inner,
        stderr=inner,
    )
    os.close(inner)
    os.write(outer, f"{answer}\n".encode())
    assert process.wait(timeout=20) == code
    os.close(outer)
    assert len(done("ps", "--all", "--json").json["runs"]) == runs


# -- costs -----------------------------------------------------------------------------------------


def test_costs_of_every_checkpoint(done):
    lines = done("history", "t", "--cost").out.splitlines()
    assert lines[0].split()[:3] == ["CHECKPOINT", "RAN", "JOURNAL"]
    assert [line.split()[:2] for line in lines[1:4]] == [
        ["1", "input"],
        ["2", "check"],
        ["3", "settle"],
    ]
    assert "stored" in lines[4]
    costs = done("history", "t", "--cost", "--json").json["costs"]
    assert [cost["checkpoint"] for cost in costs] == [1, 2, 3]
    assert costs[2]["again"] == ["pay"]
    assert all(cost["stored_bytes"] > 0 for cost in costs)
    assert done("history", "t", "--cost", "--at", "2").code == 2
    assert done("history", "nowhere", "--cost").code != 0
