"""What applications, probes and trials that are stopped leave behind, or hold up: nothing."""

import asyncio
import os
import shutil
import sys
from pathlib import Path

import pytest

from perdure.clock import system_services
from perdure.contracts.deployment.facts import Lifetime, Mount
from perdure.contracts.inject import _owner, _plan, limits
from perdure.contracts.inject._execute import execute
from perdure.contracts.inject._probes import ProgramProbe
from perdure.contracts.inject.engines import (
    ContainerSpec,
    ProcessEngine,
    _host,
)
from perdure.contracts.inject.probes import Ability, ProbeFailed, Target
from tests.contracts.inject.kit import proven, service
from tests.contracts.inject.test_plan import names, plan


def spec(**changes):
    return ContainerSpec(**({"name": "perdure-t", "labels": {}, "image": "python:3.12"} | changes))


def python(*lines):
    return (sys.executable, "-c", "\n".join(lines))


async def until(condition):
    """Look until it is so; the test's own limit ends what never is."""
    while not await condition():  # noqa: ASYNC110  # the state of another process
        await asyncio.sleep(0.02)


async def test_a_flood_of_output_fills_no_disk_and_its_end_is_kept(tmp_path):
    engine = ProcessEngine(system_services().clock, tmp_path)
    container = await engine.make(
        spec(argv=python("for n in range(400): print('x' * 99_999)", "print('the end')"))
    )
    await engine.start(container)

    async def ended():
        return (await engine.state(container)).exit_code == 0

    await until(ended)
    log = await engine.log(container)
    assert log.endswith("the end\n")
    assert len(log) <= limits.LOG_BYTES_MAX
    assert sum(file.lstat().st_size for file in tmp_path.rglob("*")) < 1_000_000
    await engine.remove(container)


async def test_who_is_started_again_at_once_is_not_taken_for_what_was_left(tmp_path, monkeypatch):
    engine = ProcessEngine(system_services().clock, tmp_path)
    container = await engine.make(
        spec(argv=python("import time", "time.sleep(1000)"), restart="no")
    )
    await engine.start(container)
    found = engine._containers[container]
    looks = []

    def look(name, kill=engine._kill_all):
        looks.append(kill(name))
        return len(looks) < 3  # as if what it killed were slow to go

    monkeypatch.setattr(engine, "_kill_all", look)
    first = found.process
    first.kill()
    await first.wait()

    async def has_looked(times):
        return len(looks) >= times

    await until(lambda: has_looked(1))
    await engine.start(container)
    await until(lambda: has_looked(3))
    assert found.process is not first
    assert (await engine.state(container)).is_running
    monkeypatch.undo()
    await engine.remove(container)


async def test_an_application_that_removes_its_folder_is_removed_as_others_are(tmp_path):
    engine = ProcessEngine(system_services().clock, tmp_path)
    remove = python("import os, shutil", "shutil.rmtree(os.getcwd())")
    container = await engine.make(spec(argv=remove, restart="always"))
    await engine.start(container)

    async def ended():
        return (await engine.state(container)).restarts > 0

    await until(ended)
    await engine.stop(container, 600.0)
    await engine.remove(container)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("how", ["the application", "and its folder", "beside it"])
async def test_what_takes_its_mark_off_or_is_beside_is_gone_with_the_container(how, tmp_path):
    engine = ProcessEngine(system_services().clock, tmp_path)
    escape = f"env -i {shutil.which('setsid')} sleep 300 >/dev/null 2>&1 & echo $!; sleep 300"
    escape = f"cd / && {escape}" if how == "and its folder" else escape
    left = f"{shutil.which('setsid')} sleep 300 >/dev/null 2>&1 & echo $!"
    container = await engine.make(
        spec(argv=("sh", "-c", "sleep 300" if how == "beside it" else escape))
    )
    await engine.start(container)
    if how != "beside it":

        async def said():
            return (await engine.log(container)).strip().isdecimal()

        await until(said)
        pid = int(await engine.log(container))
        assert pid in {each.pid for each in await engine.processes(container)}
    else:
        pid = int((await engine.execute(container, ("sh", "-c", left))).output)
        assert pid not in {each.pid for each in await engine.processes(container)}
    await engine.remove(container)

    async def gone():
        return _host.stat(pid) is None

    await until(gone)


async def test_what_has_left_is_gone_when_the_command_ends_or_its_maker_was_killed(tmp_path):
    engine = ProcessEngine(system_services().clock, tmp_path)
    escape = f"cd / && env -i {shutil.which('setsid')} sleep 300 >/dev/null 2>&1 & echo $!"
    ends = await engine.make(spec(argv=("sh", "-c", f"{escape}; sleep 0.1")))
    stays = await engine.make(spec(argv=("sh", "-c", f"{escape}; sleep 300")))
    for container in (ends, stays):
        await engine.start(container)

    async def ended():
        return (await engine.state(ends)).exit_code == 0

    await until(ended)
    assert _host.stat(int(await engine.log(ends))) is None

    async def said():
        return (await engine.log(stays)).strip().isdecimal()

    await until(said)
    pid = int(await engine.log(stays))
    await ProcessEngine(system_services().clock, tmp_path).discard(stays)  # as another start does
    assert _host.stat(pid) is None
    for container in (ends, stays):
        await engine.remove(container)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("how", ["it ends", "it is stopped", "its maker was killed"])
async def test_what_is_executed_beside_does_not_get_away(how, tmp_path):
    engine = ProcessEngine(system_services().clock, tmp_path)
    container = await engine.make(spec(argv=("sleep", "300")))
    await engine.start(container)
    at = tmp_path / "pid"
    inner = f"cd /; echo $$ > {at}.new; mv {at}.new {at}; exec sleep 300"
    left = f"env -i {shutil.which('setsid')} sh -c '{inner}' >/dev/null 2>&1 &"
    wait = f"while ! test -e {at}; do sleep 0.02; done"
    rest = "exit 3" if how == "it ends" else "sleep 300"
    words = ("sh", "-c", f"{left} {wait}; {rest}")

    async def is_there():
        return at.exists()

    if how == "its maker was killed":
        guard = await asyncio.create_subprocess_exec(
            *engine.enter(container), *words, start_new_session=True
        )
        await until(is_there)
        await ProcessEngine(system_services().clock, tmp_path).discard(container)
        await guard.wait()
    elif how == "it is stopped":
        executed = asyncio.ensure_future(engine.execute(container, words))
        await until(is_there)
        executed.cancel()
        with pytest.raises(asyncio.CancelledError):
            await executed
    else:
        assert (await engine.execute(container, words)).exit_code == 3
    pid = int(at.read_text())

    async def gone():
        return _host.stat(pid) is None

    await until(gone)
    await engine.remove(container)


async def test_what_is_executed_beside_has_the_folder_the_variables_and_its_exit_code(tmp_path):
    engine = ProcessEngine(system_services().clock, tmp_path)
    container = await engine.make(spec(argv=("sleep", "300"), environment={"A": "b=\u00e9 c"}))
    say = ("sh", "-c", 'echo "$A|$PWD|$1"; cat; exit 5', "sh", "a b")
    done = await engine.execute(container, say)
    assert done.output == f"b=\u00e9 c|{tmp_path / container / 'project'}|a b\n"
    assert done.exit_code == 5
    done = await engine.execute(container, ("no-such-program",))
    assert (done.exit_code, "no-such-program can't be started" in done.output) == (127, True)
    await engine.remove(container)


async def test_who_marks_itself_as_a_supervisor_is_killed_as_others_are(tmp_path):
    engine = ProcessEngine(system_services().clock, tmp_path)
    marks = "PERDURE_INJECT_SUPERVISES=$PERDURE_INJECT_CONTAINER"
    marks += " PERDURE_INJECT_BESIDE=$PERDURE_INJECT_CONTAINER"
    masked = f"trap '' TERM; echo ready; exec env {marks} sleep 300"
    container = await engine.make(spec(argv=("sh", "-c", masked)))
    await engine.start(container)

    async def ready():
        return "ready" in await engine.log(container)

    await until(ready)
    await asyncio.wait_for(engine.stop(container, 0.5), 60)
    assert (await engine.state(container)).exit_code == 137
    await engine.remove(container)


async def test_an_application_has_nothing_of_its_supervisor_open(tmp_path):
    engine = ProcessEngine(system_services().clock, tmp_path)
    listed = python("import os", "print([os.readlink(f'/proc/self/fd/{n}') for n in range(3, 64)",
                    "  if os.path.exists(f'/proc/self/fd/{n}')])")  # fmt: skip
    container = await engine.make(spec(argv=listed))
    await engine.start(container)

    async def ended():
        return (await engine.state(container)).exit_code == 0

    await until(ended)
    assert await engine.log(container) == "[]\n"
    await engine.remove(container)


async def test_a_signal_is_for_the_command_alone(tmp_path):
    engine = ProcessEngine(system_services().clock, tmp_path)
    container = await engine.make(
        spec(argv=("sh", "-c", "trap 'exit 7' INT; echo ready; while :; do sleep 0.05; done"),
             stop_signal="SIGINT")
    )  # fmt: skip
    await engine.start(container)

    async def ready():
        return "ready" in await engine.log(container)

    await until(ready)
    await engine.stop(container, 600.0)
    assert (await engine.state(container)).exit_code == 7
    await engine.remove(container)


async def test_a_pipe_in_the_place_of_labels_holds_nobody_up(tmp_path):
    (tmp_path / "perdure-inject-x").mkdir()
    os.mkfifo(tmp_path / "perdure-inject-x" / "labels.json")
    engine = ProcessEngine(system_services().clock, tmp_path)
    assert await engine.labelled("a") == {}


async def test_a_command_ends_though_a_child_of_it_keeps_its_output(tmp_path):
    keeps = f"{shutil.which('setsid')} sleep 300 & echo $! > {tmp_path / 'pid'}"
    done = await asyncio.wait_for(execute(("sh", "-c", keeps), timeout_s=0.5), 60)
    _host.kill(int((tmp_path / "pid").read_text()), None)
    assert done.exit_code is None


ASKED = Target(name="api-1", url=None, enter=())


async def test_a_late_answer_is_none_to_the_next_question(tmp_path):
    program = tmp_path / "probe.py"
    program.write_text(
        "import json, sys, os\n"
        "for line in sys.stdin:\n"
        "    asked = json.loads(line)\n"
        "    if asked.get('key') == 'slow':\n"
        "        open('asked', 'w').close()\n"
        "        while not os.path.exists('go'): pass\n"
        "    print(json.dumps({'value': asked.get('key')}), flush=True)\n"
    )
    probe = ProgramProbe((sys.executable, str(program)), tmp_path, frozenset(Ability))
    slow = asyncio.ensure_future(probe.recall(ASKED, "slow"))

    async def asked():
        return (tmp_path / "asked").exists() or slow.done()

    await until(asked)
    slow.cancel()
    with pytest.raises((asyncio.CancelledError, ProbeFailed)):
        await slow
    (tmp_path / "go").touch()
    for key in ("two", "three"):
        assert await probe.recall(ASKED, key) == key
    await probe.close()


async def test_a_probe_whose_child_keeps_its_output_is_closed(tmp_path):
    keeps = "sleep 300 & read line; echo nonsense"
    probe = ProgramProbe(("sh", "-c", keeps), tmp_path, frozenset(Ability))
    with pytest.raises(ProbeFailed):
        await asyncio.wait_for(probe.ready(ASKED), 60)
    await asyncio.wait_for(probe.close(), 60)


async def test_copies_that_a_killed_trial_left_are_removed_by_the_next(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    mine = _owner.myself()
    place, _, _ = mine.partition("-")
    (tmp_path / f"perdure-binds-{place}-{2**22 + 1}-1.abc").mkdir()
    (tmp_path / f"perdure-binds-{mine}.abc").mkdir()
    (tmp_path / "perdure-binds-other").mkdir()
    assert await _owner.clean_up(ProcessEngine(system_services().clock, tmp_path)) == 1
    left = {each.name for each in tmp_path.iterdir()}
    assert left == {f"perdure-binds-{mine}.abc", "perdure-binds-other"}


class Slow(ProcessEngine):
    """Makes things to their end, whoever asked has gone."""

    def __init__(self, *arguments, at):
        super().__init__(*arguments)
        self.begun, self.go, self.at, self.removed = asyncio.Event(), asyncio.Event(), at, []

    async def make(self, spec):
        if self.at == "container":
            self.begun.set()
            await self.go.wait()
        return await super().make(spec)

    async def make_network(self, name, subnet, labels):
        if self.at == "network":
            self.begun.set()
            await self.go.wait()

    async def discard(self, handle):
        self.removed.append(handle)


@pytest.mark.parametrize("at", ["container", "network"])
async def test_what_is_being_made_when_a_trial_is_stopped_is_removed(at, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    engine = Slow(system_services().clock, tmp_path, at=at)
    trial = asyncio.ensure_future(proven("R2", tmp_path, engine=engine))
    await engine.begun.wait()
    trial.cancel()
    engine.go.set()
    with pytest.raises(asyncio.CancelledError):
        await trial
    assert {each.name for each in tmp_path.iterdir()} == {"trials"}
    assert [each.partition(":")[0] for each in engine.removed] == ["network"]


def test_binds_of_one_trial_have_copies_of_their_own(tmp_path):
    project = tmp_path / "project"
    for name in (".data", "data", "a/b"):
        (project / name).mkdir(parents=True)
        (project / name / "file").write_text(name)
    (project / "a" / "other").write_text("other")
    mounts = tuple(
        Mount(path=f"/{n}", lifetime=Lifetime.NAMED, kind="bind", evidence=(), source=source)
        for n, source in enumerate(("./.data", "./data", "./a/b", "./a", "data/"))
    )
    made = _plan.service_spec(
        plan(project), names(tmp_path), service(mounts=mounts), outside=None
    ).mounts
    hidden, data, inner, outer, again = (Path(each.source) for each in made)
    assert (hidden / "file").read_text() == ".data"
    assert (data / "file").read_text() == "data"
    assert (inner / "file").read_text() == "a/b"
    assert (outer / "other").read_text() == "other"
    assert again == data
