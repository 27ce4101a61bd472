"""Trials in a real Podman: what it does differently from Docker does not leak into verdicts."""

import os
import sys
from dataclasses import replace

import pytest

from perdure.contracts.deployment.facts import Lifetime
from perdure.contracts.evidence import Known
from perdure.contracts.inject import _owner
from perdure.contracts.inject._execute import execute
from perdure.contracts.inject.engines import ContainerSpec, MountKind, MountSpec
from perdure.errors import EngineFailed, TrialImpossible
from tests.contracts.inject.kit import proven, service
from tests.contracts.inject.test_docker_trials import (
    NAMED,
    OUTSIDE,
    SLOW,
    SMALL,
    STATE,
    STEPS,
    mounted,
    started,
)
from tests.contracts.inject.test_process_trials import case, story

pytestmark = [pytest.mark.fault, pytest.mark.timeout(600)]


@pytest.mark.parametrize(
    ("contract", "expected", "said"),
    [
        case("R2", "held", "says that it got the signal", SLOW),
        case(
            "R2", "violated", "never says that", grace_s=1.0,
            broken=started("sh", "-c", "python3 app.py; true", has_init=True),
        ),
        case("S2", "held", "after a replacement", SLOW, environment=STATE, broken=NAMED),
        case(
            "S2", "violated", "a replacement loses the thread", SLOW, environment=STATE,
            broken=mounted(Lifetime.ANONYMOUS),
        ),
        case("S3", "violated", "api-2 does not know", SLOW, environment=STATE),
        case("R4", "held", "after 1 restarts", broken=service(restart=Known(value="on-failure:3"))),
        case("R4", "violated", "ended with exit code 137", SLOW),
        case(
            "R7", "held", "without a call", SLOW, stubs=("effects",), broken=NAMED,
            environment=STATE | OUTSIDE | {"RESUMES": "1"},
        ),
        case(
            "R8", "violated", "the kernel killed", SLOW, broken=SMALL, concurrency=4,
            payload_bytes=30_000_000,
        ),
        case(
            "C2", "held", "9 events came once", SLOW, broken=NAMED,
            environment=STATE | {"RESUMES": "1"}, **STEPS,
        ),
    ],
)  # fmt: skip
async def test_the_trial_says_what_became_of_it(contract, expected, said, tmp_path, podman):
    verdict, text = expected
    proof = await proven(contract, tmp_path, engine=podman, **said)
    assert (proof.verdict, text in proof.text) == (verdict, True), story(proof)
    assert _owner.myself() not in (await podman.labelled(_owner.LABEL)).values()


async def test_variables_mounts_files_and_logs_are_as_said(podman, tmp_path):
    show = (
        "import os; said = [f'{n}={v}' for n, v in os.environ.items() if 'SAID' in n];"
        "os.write(1, '\\n'.join([*said, open('/given').read(), '']).encode());"
        "open('/data/x', 'w'); os.write(2, b'error\\n')"
    )
    container = await podman.make(
        ContainerSpec(
            name="perdure-test-said", labels={}, image="python:3.11-slim",
            argv=("python3", "-c", show), environment={"SAID_A": 'a "b" $c #d\\', "SAID.B": "=="},
            mounts=(MountSpec(kind=MountKind.ANONYMOUS, path="/data"),),
            files={"/given": "a file"},
        )
    )  # fmt: skip
    try:
        await podman.start(container)
        while (await podman.state(container)).exit_code is None:
            assert (await podman.state(container)).restarts == 0
        log = await podman.log(container)
        assert sorted(log.splitlines()) == sorted(
            ['SAID_A=a "b" $c #d\\', "SAID.B===", "a file", "error"]
        )
    finally:
        await podman.remove(container)


async def test_what_a_killed_maker_left_is_removed_and_nothing_else(podman, tmp_path, monkeypatch):
    script = "from perdure.contracts.inject import _owner; print(_owner.myself())"
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))  # without copies that others left
    left = (await execute((sys.executable, "-c", script))).output.strip()
    mine = _owner.myself()
    for name, owner in (("left", left), ("mine", mine), ("others", "elsewhere-1-1")):
        labels = {_owner.LABEL: owner}
        spec = ContainerSpec(name=f"perdure-test-{name}", labels=labels, image="python:3.11-slim")
        await podman.make(spec)
        await podman.make_volume(f"perdure-test-{name}", labels)
    await podman.make_network("perdure-test-left", "10.19.77.0/24", {_owner.LABEL: left})
    with pytest.raises(EngineFailed, match="already used"):
        await podman.make_network("perdure-test-same", "10.19.77.0/24", {})
    assert await _owner.clean_up(podman) == 3
    found = await podman.labelled(_owner.LABEL)
    assert sorted(found.values()) == sorted([mine, mine, "elsewhere-1-1", "elsewhere-1-1"])
    for handle in sorted(found):
        await podman.discard(handle)
        await podman.discard(handle)  # gone already
    assert await podman.labelled(_owner.LABEL) == {}


async def test_a_program_that_an_image_lacks_is_said_once(podman, tmp_path):
    with pytest.raises(TrialImpossible, match="can't be started"):
        await proven("R2", tmp_path, engine=podman, broken=started("no-such-program"))


async def test_only_a_process_of_the_container_is_killed(podman):
    spec = ContainerSpec(
        name="perdure-test-kill", labels={}, image="python:3.11-slim", argv=("sleep", "600")
    )
    container = await podman.make(spec)
    try:
        await podman.start(container)
        [process] = await podman.processes(container)
        with pytest.raises(EngineFailed, match="is not seen in container"):
            await podman.kill(container, (replace(process, pid=os.getpid()),))
        await podman.kill(container, (process,))
        while (await podman.state(container)).is_running:
            assert (await podman.state(container)).restarts == 0
        assert (await podman.state(container)).exit_code == 137
    finally:
        await podman.remove(container)
