"""Trials that processes can play, on an application that holds and one that breaks each."""

import json
import os
import shutil
import sys
import tempfile

import pytest

from perdure.contracts.deployment.facts import Dependency, Signal, Start, Update
from perdure.contracts.evidence import Known
from perdure.contracts.inject.engines import _host
from perdure.errors import SettingInvalid, TrialImpossible
from tests.contracts.inject.kit import PLACE, proven, service

OUTSIDE = {"EFFECTS_URL": "{effects}"}
KEPT = {"STATE": "state.json"}
ALWAYS = {"broken": service(restart=Known(value="always"))}
ROLLING = service(
    update=Update(mechanism="kubernetes_rolling", evidence=(), max_surge=Known(value=1)),
    has_readiness=True,
    health_test=("HTTP", "8000", "/ready"),
)
RUNS = {"stubs": ("effects",)}

pytestmark = [pytest.mark.fault, pytest.mark.timeout(120)]


def case(contract, verdict, text, *marks, **said):
    name = f"{contract}-{verdict}-{text[:24]}"
    return pytest.param(contract, (verdict, text), said, id=name, marks=marks)


@pytest.mark.parametrize(
    ("contract", "expected", "said"),
    [
        case("S1", "held", "are the same after a restart", environment=KEPT),
        case("S1", "violated", "loses the thread and what was remembered"),
        case("R1", "held", "finished what was under way", environment={"DRAINS": "1"}, drain_s=0.5),
        case(
            "R1", "violated", "killed after 1 s", environment={"DRAINS": "1"},
            drain_s=60.0, grace_s=1.0,
        ),
        case("R2", "held", "says that it got the signal, and that it drained"),
        case("R2", "violated", "never says", environment={"IGNORES": "default"}, grace_s=1.0),
        case("R2", "violated", "never says", environment={"IGNORES": "all"}, grace_s=1.0),
        case("R3", "held", "2 of 2 ended steps are stored", environment=OUTSIDE | KEPT, **RUNS),
        case("R3", "violated", "0 are stored", environment=OUTSIDE, **RUNS),
        case("R3", "held", "steps are stored", environment=KEPT, step_s=0.5),
        case("R4", "held", "after 1 restarts", **ALWAYS),
        case("R4", "violated", "ended with exit code 137"),
        case("R5", "violated", "nobody listened"),
        case("R5", "held", "requests failed", broken=ROLLING, abilities=frozenset()),
        case(
            "R6", "held", "4 operations happened once",
            environment=OUTSIDE | KEPT | {"RESUMES": "1", "KEYED": "1"}, **RUNS,
        ),
        case(
            "R6", "violated", "happened 2 times",
            environment=OUTSIDE | KEPT | {"RESUMES": "1"}, **RUNS,
        ),
        case(
            "R7", "held", "without a call of its client",
            environment=OUTSIDE | KEPT | {"RESUMES": "1"}, **RUNS,
        ),
        case("R7", "violated", "does not go on", environment=OUTSIDE | KEPT, run_s=2.0, **RUNS),
        case(
            "C1", "held", "was free again",
            environment={"LEASE": "lease", "LEASE_S": "1"}, lease_s=30.0,
        ),
        case("C1", "violated", "is still held", environment={"LEASE": "lease"}, lease_s=1.0),
    ],
)  # fmt: skip
async def test_the_trial_says_what_became_of_it(contract, expected, said, tmp_path):
    verdict, text = expected
    proof = await proven(contract, tmp_path, **said)
    assert (proof.verdict, text in proof.text) == (verdict, True), story(proof)
    assert kept(proof) == proof.to_json()
    assert nothing_is_left(tmp_path)


@pytest.mark.parametrize(
    ("pre_stop", "verdict", "said"),
    [
        (("CMD", "touch", "hooked"), "held", "touch hooked: exit code 0"),
        (("CMD", "false"), "violated", "false: exit code 1"),
        ((), "violated", "sent the stop signal"),
    ],
)
async def test_a_hook_is_run_before_the_signal(pre_stop, verdict, said, tmp_path):
    broken = service(pre_stop=pre_stop and ("CMD", "of", "the", "container"))
    hook = {"environment": {"HOOK": "hooked"}, "process_pre_stop": pre_stop[1:]}
    proof = await proven("R2", tmp_path, broken=broken, **hook)
    assert proof.verdict == verdict, story(proof)
    assert said in story(proof)
    assert "was not executed" not in story(proof)


@pytest.mark.parametrize(("contract", "is_told"), [("R2", True), ("R4", False)])
async def test_a_hook_for_a_container_is_not_executed_on_this_host(contract, is_told, tmp_path):
    broken = service(
        pre_stop=("CMD", "touch", str(tmp_path / "touched")), restart=Known(value="always")
    )
    proof = await proven(contract, tmp_path, broken=broken)
    assert not (tmp_path / "touched").exists()
    [transcript] = [each.transcript / "transcript.jsonl" for each in proof.repetitions]
    told = "the preStop hook of api was not executed: its words are for a container"
    assert (told in transcript.read_text(), told in proof.text) == (is_told, is_told)
    assert proof.verdict == "held", story(proof)
    assert kept(proof) == proof.to_json()


async def test_the_time_of_a_hook_is_of_the_grace_and_two_seconds_are_left(tmp_path):
    broken = service(pre_stop=("CMD", "nginx", "-s", "quit"), grace_s=Known(value=1.0))
    proof = await proven("R2", tmp_path, broken=broken, process_pre_stop=("sleep", "600"))
    assert proof.verdict == "held", story(proof)
    assert "sleep 600: exit code 124" in story(proof)
    assert "sent the stop signal to api-1, 2 s of grace" in story(proof)


def with_database(tmp_path):
    """Return the service and its database, which meet at a socket with a short path."""
    at = tempfile.mkdtemp(prefix="pd-")
    address = f"{at}/s"
    is_there = ("CMD", "test", "-S", address)
    argv = (sys.executable, "database.py", address)
    database = service(
        name="db",
        start=Start(
            processes=(), server=None, signal=Known(value=Signal.UNKNOWN), shape="", argv=argv
        ),
        health_test=is_there,
    )
    needs = Dependency(service="db", condition="service_healthy", evidence=PLACE)
    return at, service(depends_on=(needs,)), database


@pytest.mark.parametrize(
    ("environment", "verdict", "said"),
    [
        (KEPT | {"RECONNECTS": "1"}, "held", "after db was lost and came back, and lost nothing"),
        (KEPT, "violated", "db came back, and no run ended well within 8 s"),
    ],
)
async def test_a_database_is_lost_while_it_serves(environment, verdict, said, tmp_path):
    at, broken, database = with_database(tmp_path)
    try:
        proof = await proven(
            "S4", tmp_path, event="lost", broken=broken, others=(database,), late_s=0.2,
            ready_s=8.0, environment=environment | {"DATABASE": f"{at}/s"},
        )  # fmt: skip
    finally:
        shutil.rmtree(at)
    assert (proof.verdict, said in proof.text) == (verdict, True), story(proof)
    assert proof.event == "its database is stopped and started again while it serves"
    told = story(proof)
    assert told.index("stopped db") < told.rindex("started db") < told.index("try 1")


async def test_an_event_that_a_contract_is_not_about_is_refused(tmp_path):
    with pytest.raises(SettingInvalid, match="S4 is not about the event 'kill'; it knows late and"):
        await proven("S4", tmp_path, event="kill")


@pytest.mark.parametrize("contract", ["S0", "S2", "S3", "S4", "R8", "C2"])
async def test_what_processes_cant_show_is_inconclusive(contract, tmp_path):
    proof = await proven(contract, tmp_path)
    assert proof.verdict == "inconclusive"
    assert "engine process has no" in proof.text


async def test_a_trial_that_does_not_get_to_its_fault_says_nothing(tmp_path):
    proof = await proven(
        "R2", tmp_path, argv=("python3", "-c", "raise SystemExit(3)"), repetitions=3
    )
    assert proof.verdict == "inconclusive"
    assert "only 0 of 3 repetitions are valid: api-1 ended with exit code 3" in proof.text
    assert [each.ending for each in proof.repetitions] == ["invalid"] * 3


@pytest.mark.parametrize(
    ("program", "why"),
    [("no-such-program", "there is none on PATH, which is /"), ("./app.py", "no file that may be")],
)
async def test_a_program_that_is_not_there_is_said_once(program, why, tmp_path):
    with pytest.raises(TrialImpossible, match=rf"'{program}' can't be started: .*{why}") as error:
        await proven("R2", tmp_path, argv=(program,), repetitions=5)
    assert "name another command as [process] argv in perdure.inject.toml" in str(error.value)
    [folder] = [path for path in (tmp_path / "trials").iterdir() if path.is_dir()]
    assert "impossible: " in (folder / "story.txt").read_text()
    assert nothing_is_left(tmp_path)


async def test_five_repetitions_have_a_transcript_each(tmp_path):
    proof = await proven("R2", tmp_path, repetitions=5)
    assert proof.text.endswith("(5 of 5)")
    for each in proof.repetitions:
        lines = (each.transcript / "transcript.jsonl").read_text().splitlines()
        kinds = [json.loads(line)["kind"] for line in lines]
        assert kinds[0] == "did"
        assert kinds[-1] == "concluded"
        assert "said" in kinds
        assert "sent the stop signal" in (each.transcript / "story.txt").read_text()
    trials = {json.loads((r.transcript / "transcript.jsonl").read_text().splitlines()[0])["trial"]
              for r in proof.repetitions}  # fmt: skip
    assert len(trials) == 5


def story(proof):
    return proof.text + "\n" + (proof.repetitions[0].transcript / "story.txt").read_text()


def kept(proof):
    return json.loads((proof.folder / "proof.json").read_text())


def nothing_is_left(tmp_path):
    """Whether no copy of the project and no process of a trial is there any more."""
    marks = [
        pid for pid in _host.all_pids()
        if pid != os.getpid() and str(tmp_path).encode() in _host.read(pid, "environ")
    ]  # fmt: skip
    return not marks and [path.name for path in tmp_path.iterdir()] == ["trials"]
