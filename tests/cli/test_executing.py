"""`run`, `start` and `worker` in real processes."""

import json
import signal
import time

import pytest

from tests.cli.conftest import FLOWS, end

pytestmark = pytest.mark.timeout(60)


def test_run_prints_progress_to_stderr_and_the_result_to_stdout(cli):
    done = cli("run", f"{FLOWS}:hello", "--input", '"ada"')
    assert (done.code, json.loads(done.out)) == (0, "hello ada")
    assert "run succeeded" in done.err


def test_run_converts_json_to_the_declared_types(cli):
    given = {
        "order_id": "o-1",
        "at": "2026-11-29T10:00:00Z",
        "size": "l",
        "items": [{"sku": "x", "price": "1.50"}],
    }
    waiting = cli("run", f"{FLOWS}:refunds", "--input", json.dumps(given), "--json")
    assert (waiting.code, waiting.json["error"]) == (13, None)
    ask_id = waiting.json["outlook"]["blockers"][0]["wait"]["subject"]
    cli("approve", ask_id, "--value", '{"granted": true, "limit": 4}', "--by", "ada")
    cli.worker("refunds")
    shown = cli.until(waiting.json["run"]["id"], "succeeded")
    assert shown["state"]["notes"] == ["ada: True", "datetime", "LARGE"]
    assert shown["state"]["items"] == [{"$type": "Item", "sku": "x", "price": "1.50"}]


def test_run_that_waits_says_for_what_and_the_next_commands(cli):
    done = cli("run", f"{FLOWS}:refunds", "--input", '{"order_id": "o-1"}')
    assert done.code == 13
    assert "waits for approval" in done.out
    assert "Refund o-1?" in done.out
    asked = json.dumps({"granted": True, "limit": 0})
    assert f"--value '{asked}' --by NAME" in done.out
    assert f"perdure worker {FLOWS}:refunds" in done.out
    assert "error" not in done.err


def test_run_stays_through_a_short_timer_and_leaves_at_a_long_one(cli):
    assert cli("run", f"{FLOWS}:nap", "--input", "0.4").code == 0
    done = cli("run", f"{FLOWS}:nap", "--input", "3600")
    assert done.code == 13
    assert "goes on at" in done.out


def test_failed_run_exits_with_the_code_of_the_catalogue(cli):
    done = cli("run", f"{FLOWS}:burst", "--input", "null")
    assert done.code == 10
    assert "error PD401" in done.err
    assert "\x1b" not in done.err + done.out
    as_json = cli("run", f"{FLOWS}:burst", "--input", "null", "--json")
    assert as_json.code == 10
    assert as_json.json["error"]["code"] == "PD401"
    assert as_json.json["run"]["failure"]["type"] == "RuntimeError"


def test_parked_run_exits_with_12_and_says_how_to_decide(cli):
    done = cli("run", f"{FLOWS}:risky", "--json")
    assert (done.code, done.json["error"]["code"]) == (12, "PD403")
    decide = done.json["next"][0]
    assert decide.startswith("perdure resolve e_")
    cli("resolve", decide.split()[2], "--happened", "--result", '"sure"', "--by", "ada")
    codes = [finding["code"] for finding in cli("doctor", "--json").json["findings"]]
    assert codes == ["graph_unserved"]  # decided: not parked any more, only waiting for a worker
    cli.worker("risky")
    assert cli.until(done.json["run"]["id"], "succeeded")["state"]["result"] == "sure"


def test_run_names_the_graphs_of_children_that_it_waits_for(cli):
    done = cli("run", f"{FLOWS}:parent", "--input", '"go"')
    assert done.code == 13
    assert "waits for signal go" in done.out
    assert f"perdure worker {FLOWS}:parent  # and the target of listen v1" in done.out


def test_same_key_gives_the_first_run(cli):
    first = cli.run_id("hello", "ada", "--key", "k")
    assert cli.run_id("hello", "ada", "--key", "k") == first
    other = cli("start", f"{FLOWS}:hello", "--input", '"bob"', "--key", "k")
    assert (other.code, other.err[:11]) == (5, "error PD301")
    done = cli("run", f"{FLOWS}:hello", "--input", '"ada"', "--key", "k", "--json")
    assert (done.json["run"]["id"], done.json["result"]) == (first, "hello ada")


def test_start_only_enqueues(cli):
    run_id = cli.run_id("hello", "ada", "--thread", "t", "--tenant", "x", "--priority", "2")
    row = cli("show", run_id, "--json").json["run"]
    assert (row["status"], row["thread"], row["tenant"], row["priority"]) == (
        "pending",
        "t",
        "x",
        2,
    )


def test_start_takes_a_delay_and_refuses_a_busy_thread(cli):
    run_id = cli.run_id("hello", "ada", "--thread", "t", "--delay", "3600")
    assert "pending until" in cli("ps").out
    done = cli("start", f"{FLOWS}:hello", "--thread", "t", "--on-busy", "reject", "--input", '"b"')
    assert (done.code, "PD303" in done.err) == (5, True)
    assert run_id in cli("ps").out


def test_worker_executes_and_drains_on_sigterm(cli):
    run_id = cli.run_id("steps", {"order_id": "o-1"})
    first = cli.worker("steps")
    cli.until(run_id, "running")
    code, err = end(first)
    assert code == 0, err
    assert "drained" in err
    shown = cli("show", run_id, "--json").json
    assert shown["run"]["status"] == "pending"
    assert shown["leases"][-1]["reason"] == "drained"
    cli.worker("steps")
    shown = cli.until(run_id, "succeeded")
    assert shown["state"]["notes"] == [f"step {n}" for n in range(40)]
    assert len(shown["leases"]) == 2
    assert shown["takeovers"] == []


def test_second_signal_cuts_the_window_short(cli):
    run_id = cli.run_id("charges", {"order_id": "o-1"})
    worker = cli.worker("charges", "--drain-window=300", "--quiet", CHARGE_S="300")
    cli.charged()
    worker.send_signal(signal.SIGTERM)
    assert "draining 1 run " in worker.stderr.readline()
    time.sleep(0.3)  # at once again it would be the same request
    code, _err = end(worker)
    assert code == 0
    shown = cli("show", run_id, "--json").json
    assert shown["run"]["status"] == "pending"
    assert [effect["state"] for effect in shown["effects"]] == ["intended"]


def test_same_signal_at_once_again_counts_as_one(cli):
    cli.run_id("charges", {"order_id": "o-1"})
    worker = cli.worker("charges", "--drain-window=1", CHARGE_S="300")
    cli.charged()
    worker.send_signal(signal.SIGINT)
    code, err = end(worker, signal.SIGINT)
    assert (code, "stopping at once" in err) == (0, False)


def test_worker_logs_what_becomes_of_runs_unless_quiet(cli):
    worker, quiet = cli.worker("hello", "risky", "burst"), cli.worker("steps", "--quiet")
    runs = {name: cli.run_id(name, "ada") for name in ("hello", "risky", "burst")}
    steps = cli.run_id("steps", {"order_id": "o"})
    cli.until(runs["hello"], "succeeded")
    cli.until(runs["risky"], "needs_decision")
    cli.until(runs["burst"], "failed")
    cli.until(steps, "succeeded")
    _code, err = end(worker)
    for name, says in (
        ("hello", "taken (token 1)"),
        ("hello", "succeeded"),
        ("risky", "parked, needs a decision: UncertainEffect: "),
        ("burst", "failed: RuntimeError: out of"),
    ):
        assert f"run {runs[name]} ({name} v1, thread {runs[name]}) {says}" in err
    assert "\x1b" not in err
    assert steps not in end(quiet)[1]


def test_ctrl_c_of_run_drains_and_says_how_to_go_on(cli):
    process = cli.start("run", f"{FLOWS}:steps", "--input", '{"order_id": "o-1"}')
    while "step 1" not in process.stderr.readline():
        pass
    code, err = end(process, signal.SIGINT)
    assert code == 130
    assert f"perdure worker {FLOWS}:steps" in err
    (row,) = cli("ps", "--json").json["runs"]
    assert row["status"] == "pending"
    cli.worker("steps")
    assert len(cli.until(row["id"], "succeeded")["state"]["notes"]) == 40


def test_killed_worker_shows_in_show_and_the_effect_is_decided(cli):
    run_id = cli.run_id("charges", {"order_id": "o-1"})
    worker = cli.worker("charges", CHARGE_S="300")
    cli.charged()
    end(worker, signal.SIGKILL)
    second = cli.worker("charges")
    shown = cli.until(run_id, "needs_decision")
    (takeover,) = shown["takeovers"]
    assert takeover["nodes"] == ["1:take_money"]
    (in_flight,) = takeover["effects"]
    (uncertain,) = shown["uncertain"]
    assert in_flight["id"] == uncertain
    text = cli("show", run_id).out
    assert "reason: UncertainEffect in 1:take_money: " in text
    assert "died or lost its lease here" in text
    assert "without an outcome then: node 1:take_money" in text
    assert f"intended without a result then: effect charge, kind once [{uncertain}]" in text
    assert f"perdure resolve {uncertain} --not-happened --by NAME" in text

    doctor = cli("doctor", "--json").json
    codes = {finding["code"] for finding in doctor["findings"]}
    assert {"run_parked", "effect_uncertain"} <= codes
    assert doctor["is_sound"]

    decided = ["resolve", uncertain, "--happened", "--result", '"paid-by-hand"', "--by", "ada"]
    assert cli(*decided).code == 0
    again = cli(*decided)
    assert (again.code, "PD305" in again.err) == (5, True)
    shown = cli.until(run_id, "succeeded")
    assert shown["state"]["notes"] == ["paid-by-hand"]
    assert (cli.folder / "charged").read_text() == "o-1\n"
    assert end(second)[0] == 0


def test_not_happened_sends_the_effect_again(cli):
    run_id = cli.run_id("charges", {"order_id": "o-1"})
    end_now = cli.worker("charges", CHARGE_S="300")
    cli.charged()
    end(end_now, signal.SIGKILL)
    cli.worker("charges")
    (uncertain,) = cli.until(run_id, "needs_decision")["uncertain"]
    done = cli("resolve", uncertain, "--not-happened", "--by", "ada", "--json")
    assert done.json["decision"] == "not_happened"
    cli.until(run_id, "succeeded")
    assert (cli.folder / "charged").read_text() == "o-1\no-1\n"


@pytest.fixture
def orphan(cli):
    """Return a run whose only worker was killed."""
    run_id = cli.run_id("charges", {"order_id": "o-1"})
    worker = cli.worker("charges", CHARGE_S="300")
    cli.charged()
    end(worker, signal.SIGKILL)
    return run_id, worker


def test_show_notices_at_once_that_the_only_worker_was_killed(cli, orphan):
    run_id, _worker = orphan
    shown = cli("show", run_id).out
    assert "  pending: its holder w_" in shown
    assert "nobody has taken the run over yet" in shown
    assert shown.endswith("NEXT\n  perdure worker FILE:GRAPH  # charges v3\n")
    assert cli("show", run_id, "--json").json["next"] == ["perdure worker FILE:GRAPH  # charges v3"]


def test_ps_notices_at_once_that_the_only_worker_was_killed(cli, orphan):
    del orphan
    listed = cli("ps").out
    assert "pending: its holder died, no worker" in listed
    assert "perdure worker FILE:GRAPH  # charges v3" in listed
    assert "no workers" in cli("ps", "--workers").out


@pytest.mark.parametrize("options", [[], ["--repair"]])
def test_doctor_reports_a_killed_worker_and_what_it_freed(cli, orphan, options):
    run_id, worker = orphan
    done = cli("doctor", *options)
    assert "worker_dead" in done.out
    assert f"(pid {worker.pid} on " in done.out
    assert f"died; freed, any worker may take over: {run_id}" in done.out
    assert f"\nfreed run {run_id} of dead worker w_" in done.out
    assert "perdure worker FILE:GRAPH  # charges v3" in done.out
    later = cli("doctor", "--repair").out
    assert "repaired nothing" in later
    assert "lease_ended" in later


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["run", "nothing.py:graph"], 2, "there is no file"),
        (["run", "no.such.module:graph"], 2, "there is no module"),
        (["run", f"{FLOWS}:refund"], 2, f"did you mean {FLOWS}:refunds?"),
        (["run", f"{FLOWS}:Order"], 2, "is a type"),
        (["run", str(FLOWS)], 2, "write path/to/file.py:graph"),
        (["run", f"{FLOWS}:refunds", "--input", "{"], 2, "--input"),
        (["run", f"{FLOWS}:refunds", "--input", "[1]"], 2, "must be a JSON object"),
        (["run", f"{FLOWS}:refunds", "--input", "@nothing.json"], 2, "can't be read"),
        (["run", f"{FLOWS}:refunds", "--input", '{"order_id": 7}'], 2, "field 'order_id'"),
        (["run", f"{FLOWS}:refunds", "--input", '{"ordr": "7"}'], 2, "ordr"),
        (["run", f"{FLOWS}:refunds", "--input", '{"order_id": NaN}'], 2, "is no JSON"),
        (["run", f"{FLOWS}:refunds", "--input", "[" * 60_000], 2, "nested too deeply"),
        (["start", f"{FLOWS}:hello", "--store", "memory://"], 2, "memory store ends"),
        (["worker", f"{FLOWS}:hello", "--concurrency", "0"], 2, "--concurrency"),
    ],
)
def test_mistakes_are_named(inside, arguments, code, says):
    done = inside(*arguments)
    assert (done.code, says in done.err) == (code, True), done.err
    assert done.err.startswith("error PD1")
    if arguments[0] != "worker":
        as_json = inside(*arguments, "--json")
        assert (as_json.code, as_json.json["error"]["exit_code"]) == (code, code)


def test_file_that_breaks_shows_where(cli):
    (cli.folder / "broken.py").write_text("import perdure\n\nnothing.here()\n")
    done = cli("run", "broken.py:graph")
    assert done.code == 2
    assert "NameError" in done.err
    assert 'broken.py", line 3' in done.err


def test_files_import_their_neighbours_and_packages(cli):
    greet = "\n\nasync def greet(name: str) -> str:\n    return WORD + name\n"
    files = {
        "plain/near.py": "WORD = 'hi '\n",
        "plain/calendar.py": "from near import WORD\n" + greet,  # named as a standard module
        "shop/__init__.py": "",
        "shop/words.py": "WORD = 'hey '\n",
        "shop/flow.py": "from shop.words import WORD\n" + greet,
    }
    for name, text in files.items():
        path = cli.folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert cli("run", "plain/calendar.py:greet", "--input", '"ada"').out == '"hi ada"\n'
    assert cli("run", "shop/flow.py:greet", "--input", '"ada"').out == '"hey ada"\n'
    assert cli("run", "shop.flow:greet", "--input", '"ada"').out == '"hey ada"\n'
