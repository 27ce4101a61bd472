"""Trials in a real Docker Engine, on an application that holds and one that breaks each."""

import asyncio
import os
import shutil
import sys
from dataclasses import replace

import pytest

from perdure.clock import system_services
from perdure.contracts.deployment.facts import Lifetime, Mount, Signal, Start
from perdure.contracts.evidence import Known
from perdure.contracts.findings import Contract
from perdure.contracts.inject import Event, Wanted, _owner, prove_folder
from perdure.contracts.inject._execute import execute
from perdure.contracts.inject.engines import ContainerSpec
from perdure.errors import EngineFailed
from tests.contracts.inject.kit import proven, service
from tests.contracts.inject.test_process_trials import case, story
from tests.contracts.trying import specimen

STATE = {"STATE": "/data/state.json"}
OUTSIDE = {"EFFECTS_URL": "{effects}"}
STEPS = {"steps": 8, "step_s": 0.3}

SLOW = pytest.mark.slow

pytestmark = [pytest.mark.fault, pytest.mark.timeout(600)]


def mounted(lifetime, kind="volume", source=None):
    mount = Mount(path="/data", lifetime=lifetime, kind=kind, evidence=(), source=source)
    return service(mounts=(mount,))


def started(*argv, has_init=False):
    known = Known(value=Signal.UNKNOWN)
    return service(
        start=Start(processes=(), server=None, signal=known, shape="", argv=argv, has_init=has_init)
    )


NAMED = mounted(Lifetime.NAMED, source="data")
SMALL = service(memory_bytes=Known(value=64_000_000))


@pytest.mark.parametrize(
    ("contract", "expected", "said"),
    [
        case("R2", "held", "says that it got the signal"),
        case(
            "R2", "violated", "never says", SLOW, grace_s=1.0,
            broken=started("sh", "-c", "python3 app.py; true"),
        ),
        case(
            "R2", "violated", "never says that", grace_s=1.0,
            broken=started("sh", "-c", "python3 app.py; true", has_init=True),
        ),
        case("S1", "held", "after a restart", SLOW, environment=STATE),
        case(
            "S1", "violated", "a restart loses", SLOW, environment=STATE,
            broken=mounted(Lifetime.TMPFS, "tmpfs"),
        ),
        case("S2", "held", "after a replacement", environment=STATE, broken=NAMED),
        case("S2", "violated", "a replacement loses", SLOW, environment=STATE),
        case(
            "S2", "violated", "a replacement loses the thread", SLOW, environment=STATE,
            broken=mounted(Lifetime.ANONYMOUS),
        ),
        case("S3", "violated", "api-2 does not know", SLOW, environment=STATE),
        case("R4", "held", "after 1 restarts", broken=service(restart=Known(value="on-failure:3"))),
        case("R4", "violated", "ended with exit code 137", SLOW),
        case(
            "R7", "held", "without a call", stubs=("effects",), broken=NAMED,
            environment=STATE | OUTSIDE | {"RESUMES": "1"},
        ),
        case(
            "R8", "held", "within the limit", SLOW, broken=SMALL, concurrency=2,
            payload_bytes=1_000_000,
        ),
        case(
            "R8", "violated", "the kernel killed", broken=SMALL, concurrency=4,
            payload_bytes=30_000_000,
        ),
        case(
            "C2", "held", "9 events came once", environment=STATE | {"RESUMES": "1"},
            broken=NAMED, **STEPS,
        ),
        case("C2", "violated", "can't be taken up", SLOW, environment=STATE, **STEPS),
    ],
)  # fmt: skip
async def test_the_trial_says_what_became_of_it(contract, expected, said, tmp_path, docker):
    verdict, text = expected
    proof = await proven(contract, tmp_path, engine=docker, **said)
    assert (proof.verdict, text in proof.text) == (verdict, True), story(proof)
    owner = _owner.myself()
    assert owner not in (await docker.labelled(_owner.LABEL)).values()


ONE = """PostgresSaver.from_conn_string(os.environ["DATABASE_URL"])"""
POOL = """ConnectionPool(
    os.environ["DATABASE_URL"], check=ConnectionPool.check_connection,
    kwargs={"autocommit": True, "row_factory": dict_row, "prepare_threshold": 0},
)"""


@pytest.mark.parametrize(
    ("has_pool", "verdict", "said"),
    [
        pytest.param(True, "held", "worked again by itself after db was lost", marks=SLOW),
        pytest.param(False, "violated", "db came back, and no run ended well", marks=SLOW),
    ],
)
async def test_postgres_is_lost_while_the_agent_serves(has_pool, verdict, said, tmp_path, docker):
    """One connection for ever breaks with its database; a pool that looks gets others."""
    folder = tmp_path / "project"
    shutil.copytree(specimen(Contract.S4, "holds"), folder)
    app = (folder / "app.py").read_text()
    assert ONE in app
    if has_pool:
        app = app.replace(ONE, POOL).replace("saver = ", "pool = ")
        app = app.replace("saver.setup()", "saver = PostgresSaver(pool)\nsaver.setup()")
        imports = "from psycopg.rows import dict_row\nfrom psycopg_pool import ConnectionPool\n"
        (folder / "app.py").write_text(
            app.replace("from agent import", f"{imports}from agent import")
        )
    wanted = Wanted(
        folder=folder, contract=Contract.S4, event=Event.LOST, output=tmp_path / "trials",
        repetitions=1,
    )  # fmt: skip
    proof = await prove_folder(wanted, docker, system_services())
    assert (proof.verdict, said in proof.text) == (verdict, True), story(proof)


async def test_the_tree_of_processes_is_in_the_transcript(tmp_path, docker):
    broken = started("sh", "-c", "python3 app.py; true")
    proof = await proven("R2", tmp_path, engine=docker, broken=broken, grace_s=1.0)
    told = story(proof)
    assert "sh -c python3 app.py; true" in told
    assert "python3 app.py (listens)" in told


async def test_what_a_killed_maker_left_is_removed_and_nothing_else(docker, tmp_path, monkeypatch):
    """Another process makes a container and is killed; one of a living maker stays."""
    script = "from perdure.contracts.inject import _owner; print(_owner.myself())"
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))  # without copies that others left
    done = await execute((sys.executable, "-c", script))
    left, mine = done.output.strip(), _owner.myself()
    assert _owner.is_left(left)
    for name, owner in (("left", left), ("mine", mine), ("others", "elsewhere-1-1")):
        labels = {_owner.LABEL: owner}
        spec = ContainerSpec(name=f"perdure-test-{name}", labels=labels, image="python:3.11-slim")
        await docker.make(spec)
        await docker.make_volume(f"perdure-test-{name}", labels)
    await docker.make_network("perdure-test-left", "10.19.77.0/24", {_owner.LABEL: left})
    assert await _owner.clean_up(docker) == 3
    found = await docker.labelled(_owner.LABEL)
    assert sorted(found.values()) == sorted([mine, mine, "elsewhere-1-1", "elsewhere-1-1"])
    for handle in sorted(found):
        await docker.discard(handle)
    assert await docker.labelled(_owner.LABEL) == {}


async def test_a_cancelled_proof_leaves_nothing(tmp_path, docker):
    broken = started("sh", "-c", "python3 app.py; true")
    task = asyncio.create_task(proven("R2", tmp_path, engine=docker, broken=broken, grace_s=600.0))
    story = tmp_path / "trials" / "01" / "story.txt"
    while not (story.exists() and "sent the stop signal" in story.read_text()):
        assert not task.done(), task.result()
        await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await docker.labelled(_owner.LABEL) == {}


async def test_only_a_process_of_the_container_is_killed(docker):
    """An engine that names a wrong process can't make us kill it."""
    bystander = await asyncio.create_subprocess_exec("sleep", "600")
    spec = ContainerSpec(
        name="perdure-test-kill", labels={}, image="python:3.11-slim", argv=("sleep", "600")
    )
    container = await docker.make(spec)
    try:
        await docker.start(container)
        [process] = await docker.processes(container)
        wrong = replace(process, pid=bystander.pid)
        with pytest.raises(EngineFailed, match="is not seen in container"):
            await docker.kill(container, (wrong,))
        assert bystander.returncode is None
    finally:
        bystander.kill()
        await bystander.wait()
        await docker.remove(container)
