"""The agent that repairs a project: its script, the whole demo with real kills, and over HTTP."""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from examples.fix_tests import demo
from examples.fix_tests.fixing import FOLDER, Fixing, build, sandboxes
from examples.fix_tests.script import STEPS
from perdure import RunFailed, Runtime
from perdure.agent import Ending, Message, OpenAIModel, Role, ScriptedModel, call
from perdure.agent._scripted import _as_reply
from tests.agent.endpoint import DONE, Answer, Endpoint, called, delta, split

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def is_able(tmp_path_factory):
    """Return whether this host can show it, or skip."""
    why = asyncio.run(demo.lacking(tmp_path_factory.mktemp("able")))
    if why:
        pytest.skip(f"NOT TESTED: {why}")
    return True


@pytest.mark.fault
@pytest.mark.timeout(180)
def test_kills_leave_no_trace(is_able, tmp_path):
    command = [sys.executable, "-m", "examples.fix_tests.demo", "--json", "--kills", "3"]
    command += ["--seed", "5", "--store", str(tmp_path), "--pause-s", "0.05"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=170, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    outcome = json.loads(done.stdout)
    assert outcome["ok"], outcome["checks"]
    assert len(outcome["kills"]) == 3
    assert outcome["difference"] == []
    assert outcome["turns"] == len(STEPS)


class ScriptedEndpoint(Endpoint):
    """An endpoint whose model follows the script, in streams that are split badly."""

    def __init__(self):
        super().__init__([])

    async def _answer(self, reader, writer):
        self.answers = [_FromScript(self)]
        await super()._answer(reader, writer)


class _FromScript(Answer):
    """Made when the request is known."""

    def __init__(self, endpoint):
        super().__init__()
        self._endpoint = endpoint

    def __getattribute__(self, name):
        if name == "pieces":
            return split(_body(self._endpoint.asked[-1]["messages"]), 37)
        return super().__getattribute__(name)


def _body(sent):
    messages = [Message(role=Role(each["role"]), text=each["content"] or "") for each in sent]
    step = STEPS[sum(each.role is Role.ASSISTANT for each in messages)]
    reply = _as_reply(step(messages) if callable(step) else step)
    pieces = [delta(content=reply.text)] if reply.text else []
    for place, each in enumerate(reply.tool_calls):
        half = len(each.arguments) // 2
        pieces += [
            called(place, id=f"c{len(messages)}-{place}", name=each.name),
            called(place, arguments=each.arguments[:half]),
            called(place, arguments=each.arguments[half:]),
        ]
    return b"".join([*pieces, delta(finish="stop"), DONE])


@pytest.mark.timeout(120)
async def test_a_model_behind_an_endpoint_repairs_it_too(is_able, tmp_path):
    backend = sandboxes(tmp_path / "boxes")
    async with ScriptedEndpoint() as endpoint:
        graph = build(OpenAIModel("scripted", base_url=endpoint.url))
        store = f"sqlite:///{tmp_path}/fixing.db"
        async with Runtime.open(store, graphs=[graph], sandbox=backend) as runtime:
            run = await runtime.start(graph, Fixing())
            state = await run.result(timeout=100)
    backend.close()
    assert (state.tests_pass, state.ended) == (True, Ending.ANSWERED)
    assert len(endpoint.asked) == len(STEPS)
    assert f"100755 {FOLDER}/bin/bills" in " ".join(state.tree)


@pytest.mark.timeout(60)
async def test_the_script_fails_where_the_files_are_not_as_it_expects(is_able, tmp_path):
    backend = sandboxes(tmp_path / "boxes")
    steps = [call("shell", command="rm -r vendor"), *STEPS]
    graph = build(ScriptedModel(steps))
    async with Runtime.open("memory://", graphs=[graph], sandbox=backend) as runtime:
        run = await runtime.start(graph, Fixing())
        with pytest.raises(RunFailed, match="the script expected"):
            await run.result(timeout=50)
    backend.close()


def test_a_host_that_can_not_isolate_is_said(tmp_path, capsys, monkeypatch):
    async def lacking(_folder):
        return "no namespaces here"

    monkeypatch.setattr(demo, "lacking", lacking)
    assert demo.main(["--store", str(tmp_path), "--json"]) == demo.NOT_SHOWN
    said = capsys.readouterr()
    assert json.loads(said.out) == {"shown": False, "why": "no namespaces here"}
    assert "NOT SHOWN" in said.err


def test_a_real_model_needs_its_name(capsys):
    with pytest.raises(SystemExit):
        demo.main(["--model", "http://127.0.0.1:1/v1"])
    assert "OPENAI_API_KEY" in capsys.readouterr().err
