"""What only looks, and what people decide, in real processes."""

import json
import sqlite3
import time

import pytest

from tests.cli.conftest import FLOWS

pytestmark = pytest.mark.timeout(60)

NOBODY = "r_00000000000000000000000000"


@pytest.mark.parametrize(
    "arguments",
    [
        ["ps"],
        ["ps", "--workers"],
        ["show", NOBODY],
        ["history", "t"],
        ["approve"],
        ["approve", "a_1", "--yes", "--by", "ada"],
        ["signal", NOBODY, "go"],
        ["resolve", "e_1", "--happened", "--by", "ada"],
        ["cancel", NOBODY],
        ["doctor"],
    ],
)
def test_reading_creates_no_store(inside, cli, arguments):
    done = inside(*arguments)
    assert done.code == 30
    assert f"there is no store at '{cli.folder / 'perdure.db'}'" in done.err
    assert "create it" in done.err
    assert list(cli.folder.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["show", NOBODY], 4),
        (["history", "nobody"], 4),
        (["approve", "a_1", "--yes", "--by", "ada"], 4),
        (["approve", "a_1", "--yes"], 2),
        (["approve", "a_1", "--by", "ada"], 2),
        (["approve", "a_1", "--yes", "--by", "ada", "--tenant", "t"], 2),
        (["approve", "--yes", "--by", "ada"], 2),
        (["approve", "--value", "1"], 2),
        (["approve", "--by", "ada"], 2),
        (["ps", "--workers", "--all"], 2),
        (["ps", "--workers", "--graph", "hello"], 2),
        (["approve", "a_1", "--yes", "--no", "--by", "ada"], 2),
        (["signal", NOBODY, "go"], 4),
        (["resolve", "e_1", "--happened", "--by", "ada"], 4),
        (["resolve", "e_1", "--happened"], 2),
        (["resolve", "e_1", "--by", "ada"], 2),
        (["resolve", "e_1", "--not-happened", "--result", "1", "--by", "ada"], 2),
        (["resolve", NOBODY, "--retry", "--by", "ada"], 4),
        (["cancel", NOBODY], 4),
        (["ps", "--status", "sleeping"], 2),
        (["ps", "--limit", "0"], 2),
        (["dance"], 2),
    ],
)
def test_mistakes_exit_with_the_code_of_the_catalogue(inside, arguments, code):
    inside("start", f"{FLOWS}:hello", "--input", '"ada"')
    done = inside(*arguments, "--json")
    assert (done.code, done.json["error"]["exit_code"]) == (code, code)
    assert inside(*arguments).err.startswith("error PD")


@pytest.mark.parametrize(
    ("url", "code", "says"),
    [
        (
            "sqlite:///no/x.db",
            30,
            "folder {here}/no does not exist, and nothing was written: mkdir -p ",
        ),
        ("sqlite:///folder", 30, "{here}/folder is a folder; name a file in it"),
        ("sqlite:///file/x.db", 30, "{here}/file is a file, so {here}/file/x.db can't be in it"),
        (
            "redis://x",
            2,
            "no store has the scheme 'redis'; known: memory://, postgres://, postgresql://, sqlite://",
        ),
        ("x.db", 2, "'x.db' is no store URL; for a file of that name write 'sqlite:///x.db'"),
    ],
)
def test_store_that_cannot_be_opened_says_why(inside, cli, url, code, says):
    (cli.folder / "folder").mkdir()
    (cli.folder / "file").touch()
    done = inside("start", f"{FLOWS}:hello", "--input", '"ada"', "--store", url)
    says = says.format(here=cli.folder)
    assert (done.code, says in done.err) == (code, True), done.err


def test_store_is_taken_from_the_environment_and_named_in_next_commands(cli):
    url = "sqlite:///other.db"
    done = cli("run", f"{FLOWS}:refunds", "--input", '{"order_id": "o"}', "--store", url)
    assert f"--by NAME --store {url}" in done.out
    assert (cli.folder / "other.db").exists()
    listed = cli("approve", PERDURE_STORE=url)
    assert "Refund o?" in listed.out
    assert "--store" not in listed.out


def test_ps_lists_what_is_asked_for(cli):
    one = cli.run_id("hello", "ada", "--thread", "t")
    cli("run", f"{FLOWS}:hello", "--input", '"bob"', "--thread", "t")
    two = cli.run_id("refunds", {"order_id": "o"})
    assert [row["id"] for row in cli("ps", "--json").json["runs"]] == [two]
    assert len(cli("ps", "--all", "--json").json["runs"]) == 3
    assert len(cli("ps", "--all", "--limit", "1", "--json").json["runs"]) == 1
    by_thread = cli("ps", "--all", "--thread", "t", "--status", "succeeded", "--json").json["runs"]
    assert len(by_thread) == 2
    assert by_thread[1]["id"] == one
    assert cli("ps", "--graph", "hello").out == "no unfinished runs; 'perdure ps --all' lists all\n"
    assert cli("ps", "--tenant", "nobody", "--json").json["runs"] == []


def test_reader_that_goes_away_is_no_error(cli):
    cli.run_id("hello", "ada")
    process = cli.start("ps", "--all")
    process.stdout.close()
    assert process.wait(timeout=20) == 141
    assert process.stderr.read() == ""


def test_ps_lists_workers(cli):
    cli.run_id("hello", "ada")
    assert "no workers" in cli("ps", "--workers").out
    worker = cli.worker("charges", "hello")
    (row,) = cli("ps", "--workers", "--json").json["workers"]
    assert row["pid"] == worker.pid
    assert {"graph": "charges", "version": 3} in row["graphs"]
    assert "charges v3" in cli("ps", "--workers").out


def test_approve_lists_checks_and_answers_once(cli):
    run_id = cli("run", f"{FLOWS}:refunds", "--input", '{"order_id": "o"}', "--json").json["run"][
        "id"
    ]
    (ask,) = cli("approve", "--json").json["asks"]
    assert (ask["run"], ask["question"], ask["state"]) == (run_id, "Refund o?", "open")
    wrong = cli("approve", ask["id"], "--yes", "--by", "ada")
    assert (wrong.code, "the ask stays open" in wrong.err) == (2, True)
    value = json.dumps({"granted": False, "limit": 1})
    assert cli("approve", ask["id"], "--value", value, "--by", "ada").code == 0
    late = cli("approve", ask["id"], "--value", value, "--by", "bob", "--json")
    assert (late.code, late.json["error"]["code"]) == (5, "PD304")
    assert late.json["error"]["fields"]["by"] == "ada"
    assert cli("approve").out == "no open asks\n"
    cli.worker("refunds")
    assert cli.until(run_id, "succeeded")["state"]["notes"][0] == "ada: False"


def test_expired_ask_is_marked_and_takes_no_answer(cli):
    run_id = cli("run", f"{FLOWS}:ask_shortly", "--json").json["run"]["id"]
    (ask,) = cli("approve", "--json").json["asks"]
    time.sleep(0.7)
    listed = cli("approve").out
    assert "(expired)" in listed
    assert "perdure approve" not in listed
    late = cli("approve", ask["id"], "--yes", "--by", "ada")
    assert (late.code, "PD304" in late.err) == (5, True)
    assert "ask_expired" in {each["code"] for each in cli("doctor", "--json").json["findings"]}
    cli.worker("ask_shortly")
    assert cli.until(run_id, "succeeded")["state"]["result"] is False


def test_signal_reaches_the_run(cli):
    waiting = cli("run", f"{FLOWS}:listen", "--input", '"paid"')
    assert waiting.code == 13
    (row,) = cli("ps", "--json").json["runs"]
    assert f"perdure signal {row['id']} paid --value JSON" in waiting.out
    (cli.folder / "value.json").write_text('{"amount": 40}')
    sent = cli("signal", row["id"], "paid", "--value", "@value.json", "--by", "bank", "--json")
    assert sent.json["value"] == {"amount": 40}
    cli.worker("listen")
    shown = cli.until(row["id"], "succeeded")
    assert shown["state"]["result"] == {"amount": 40}
    late = cli("signal", row["id"], "paid")
    assert (late.code, "PD306" in late.err) == (5, True)


def test_cancel_is_done_by_a_worker(cli):
    cli("run", f"{FLOWS}:listen", "--input", '"paid"')
    (row,) = cli("ps", "--json").json["runs"]
    assert cli("cancel", row["id"], "--compensate", "--by", "ada").code == 0
    cli.worker("listen")
    shown = cli.until(row["id"], "cancelled")
    assert "ada" in shown["run"]["failure"]["message"]


def test_only_a_parked_run_is_retried(cli):
    run_id = cli.run_id("hello", "ada")
    done = cli("resolve", run_id, "--retry", "--by", "ada")
    assert (done.code, "not parked" in done.err) == (2, True)


def test_answer_without_an_ask_names_the_open_ones(cli):
    cli("run", f"{FLOWS}:ask_shortly")
    (ask,) = cli("approve", "--json").json["asks"]
    done = cli("approve", "--yes", "--by", "ada", "--json")
    assert done.code == 2
    if done.json["error"]["fields"]["asks"]:  # else it expired meanwhile
        assert f"which ask? Open: {ask['id']}" in done.json["error"]["message"]


def test_effect_and_run_are_told_apart(cli):
    run_id = cli("run", f"{FLOWS}:risky", "--json").json["run"]["id"]
    (effect,) = cli("show", run_id, "--json").json["uncertain"]
    decide = [
        f"perdure resolve {effect} --happened --result JSON --by NAME",
        f"perdure resolve {effect} --not-happened --by NAME",
    ]
    for given, code, says in (
        ([run_id, "--happened"], 2, f"undecided: effect unsure [{effect}]"),
        ([run_id, "--not-happened"], 2, f"undecided: effect unsure [{effect}]"),
        ([effect, "--retry"], 2, "is an effect (unsure, uncertain)"),
        ([run_id, "--retry"], 12, f"effect unsure [{effect}]"),
    ):
        done = cli("resolve", *given, "--by", "ada", "--json")
        assert (done.code, done.json["next"]) == (code, decide)
        assert says in done.json["error"]["message"]
    assert f"next: {decide[0]}" in cli("resolve", run_id, "--happened", "--by", "ada").err


def test_list_is_short_and_the_reason_is_said_once(cli):
    run_id = cli("run", f"{FLOWS}:risky", "--json").json["run"]["id"]
    (line,) = cli("ps").out.splitlines()[1:]
    status = line.removeprefix(run_id).split("  ")[1]
    assert status == "needs_decision: UncertainEffect, effect unsure"
    shown = cli("show", run_id).out
    assert shown.count("did it happen?") == 1


def test_decision_after_the_end_does_not_claim_that_anything_is_sent(cli):
    run_id = cli("run", f"{FLOWS}:risky", "--json").json["run"]["id"]
    (effect,) = cli("show", run_id, "--json").json["uncertain"]
    cli("cancel", run_id, "--by", "ada")
    cli.worker("risky")
    shown = cli.until(run_id, "cancelled")
    assert all(line.endswith("nothing is sent") for line in shown["next"])
    done = cli("resolve", effect, "--not-happened", "--by", "ada")
    assert "its run has ended: recorded, nothing is sent" in done.out


def test_failed_run_does_not_suggest_the_command_just_run(cli):
    done = cli("run", f"{FLOWS}:burst", "--input", "null", "--json")
    show = f"perdure show {done.json['run']['id']}"
    assert done.json["next"] == [show]
    shown = cli("show", done.json["run"]["id"]).out
    assert show not in shown
    place = done.json["run"]["failure"]["trace"]
    assert place.startswith("flows.py:")
    assert f"  at {place}\n" in shown
    assert place in done.json["error"]["message"]


def test_history_lists_checkpoints(cli):
    cli("run", f"{FLOWS}:hello", "--input", '"ada"', "--thread", "t")
    cli("run", f"{FLOWS}:hello", "--input", '"bob"', "--thread", "t")
    found = cli("history", "t", "--json").json["checkpoints"]
    assert [each["id"] for each in found] == [4, 3, 2, 1]
    assert cli("history", "t").out.startswith("thread t\n  run r_")


def test_queued_run_is_blocked_by_what_blocks_the_one_before(cli):
    cli("run", f"{FLOWS}:listen", "--input", '"paid"', "--thread", "t")
    done = cli("run", f"{FLOWS}:listen", "--input", '"paid"', "--thread", "t", "--json")
    assert done.code == 13
    first = cli("ps", "--json").json["runs"][1]["id"]
    assert [blocker["run"] for blocker in done.json["outlook"]["blockers"]] == [first]
    assert done.json["run"]["status"] == "pending"


def test_doctor_tells_what_nobody_executes(cli):
    cli.run_id("hello", "ada")
    done = cli("doctor")
    assert done.code == 0
    assert "graph_unserved" in done.out
    assert "perdure worker FILE:GRAPH  # hello v1" in done.out
    cli.worker("hello")
    cli("run", f"{FLOWS}:hello", "--input", '"bob"')
    assert "checked 0 unfinished runs" in cli("doctor").out


def test_doctor_finds_damage(cli):
    cli("run", f"{FLOWS}:listen", "--input", '"paid"')
    with sqlite3.connect(cli.folder / "perdure.db") as db:
        db.execute("UPDATE perdure_frames SET body = x'01ff' WHERE first_seq = 1")
    done = cli("doctor", "--json")
    assert (done.code, done.json["is_sound"]) == (1, False)
    assert "journal_damaged" in {finding["code"] for finding in done.json["findings"]}
    assert cli("show", done.json["findings"][0]["run"]).code in {36, 37}


def test_doctor_wakes_a_run_whose_wake_up_was_lost(cli):
    cli("run", f"{FLOWS}:listen", "--input", '"paid"')
    (row,) = cli("ps", "--json").json["runs"]
    cli("signal", row["id"], "paid")
    with sqlite3.connect(cli.folder / "perdure.db") as db:
        db.execute("UPDATE perdure_runs SET ready_at_us = NULL")
    broken = cli("doctor", "--json")
    assert (broken.code, broken.json["findings"][0]["code"]) == (1, "wake_up_lost")
    mended = cli("doctor", "--repair", "--json")
    assert mended.code == 0
    assert mended.json["findings"][0]["is_repaired"]
    cli.worker("listen")
    cli.until(row["id"], "succeeded")
