"""The probe for the LangGraph server API, against LangGraph's own development server."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from perdure.contracts.inject._langgraph_probe import LangGraphProbe, thread_id
from perdure.contracts.inject.outside import OutsideServer
from perdure.contracts.inject.probes import ProbeFailed, RunState, Target, Work
from tests.contracts.inject.serving import free_port, serving
from tests.contracts.site_packages import NotInstalled, site

PACKAGES = Path(__file__).parent / "langgraph_server.txt"
AGENT = Path(__file__).parents[1] / "specimens" / "s1-holds" / "agent.py"
ENDED = (RunState.SUCCEEDED, RunState.FAILED)
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@contextmanager
def server(folder: Path, outside: OutsideServer):
    """Start the development server; its stored runs are in `folder`."""
    try:
        packages = site(PACKAGES)
    except NotInstalled as failed:
        pytest.skip(f"LangGraph's server can't be installed: {failed}")
    port = free_port()
    with (folder / "log").open("ab") as log:
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "langgraph_cli", "dev", "--port", str(port)),
                *("--no-browser", "--no-reload"),
            ],
            cwd=folder,
            env=os.environ | {"PYTHONPATH": str(packages), "OUTSIDE_URL": outside.url},
            stdout=log,
            stderr=log,
        )
    try:
        yield Target(name="server", url=f"http://127.0.0.1:{port}")
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()


async def ready(probe: LangGraphProbe, target: Target) -> None:
    while True:
        try:
            if await probe.ready(target):
                return
        except ProbeFailed:
            pass
        await asyncio.sleep(0.1)


async def reaches(probe: LangGraphProbe, target: Target, run_id: str, *states: RunState):
    while True:
        run = await probe.run(target, run_id, "alice")
        if run.state in states:
            return run
        await asyncio.sleep(0.1)


async def test_a_run_its_thread_its_question_and_its_stream(tmp_path):
    (tmp_path / "agent.py").write_text(AGENT.read_text() + "\ngraph = builder.compile()\n")
    graphs = {"dependencies": ["."], "graphs": {"agent": "./agent.py:graph"}}
    (tmp_path / "langgraph.json").write_text(json.dumps(graphs))
    probe = LangGraphProbe()
    with serving(OutsideServer()) as outside, server(tmp_path, outside) as target:
        await ready(probe, target)
        assert await probe.thread(target, "alice") is None
        unknown = await probe.run(target, thread_id("no run"), "alice")
        assert unknown.state is RunState.UNKNOWN

        started = await probe.start(
            target, Work(thread="alice", operation="letter", steps=3, asks=True)
        )
        asked = await reaches(probe, target, started.id, RunState.INTERRUPTED, *ENDED)
        assert asked.state is RunState.INTERRUPTED
        waiting = await probe.thread(target, "alice")
        assert [each.value for each in waiting.interrupts] == ["do step 3?"]
        assert set(outside.world.effects()) == {"letter:1", "letter:2"}

        whole = await probe.stream(target, started.id, "alice", after=None, count=100)
        assert whole.events[-1].is_last
        assert not whole.is_cut
        seen = whole.events[0].id
        rest = await probe.stream(target, started.id, "alice", after=seen, count=100)
        assert rest.events == whole.events[1:]

        resumed = await probe.resume(target, "alice", waiting.interrupts[0])
        ended = await reaches(probe, target, resumed.id, *ENDED)
        assert ended.state is RunState.SUCCEEDED
        done = await probe.thread(target, "alice")
        assert done.interrupts == ()
        assert done.steps > waiting.steps
        assert done.digest != waiting.digest
        assert set(outside.world.effects()) == {"letter:1", "letter:2", "letter:3"}

        await probe.remember(target, "colour", "green")
        assert await probe.recall(target, "colour") == "green"
        assert await probe.recall(target, "shape") is None
    said = probe.said((tmp_path / "log").read_text())
    assert (said.started, said.stop_signals, said.drained) == (1, 1, True)
