"""A probe that is a program: what it is asked, what becomes of answers that are none."""

import json
import sys

import pytest

from perdure.contracts.inject._probes import ProgramProbe, open_probe
from perdure.contracts.inject.engines import _host
from perdure.contracts.inject.probes import (
    Ability,
    Interrupt,
    ProbeFailed,
    RunState,
    Target,
    Work,
)
from perdure.contracts.inject.settings import read_settings
from tests.contracts.inject.kit import APPLICATION, proven

PROGRAM = """\
import json, sys
ANSWERS = {
    "ready": {"ready": True},
    "start": {"id": "r", "state": "running"},
    "run": {"id": "r", "state": "succeeded", "steps_done": 3},
    "thread": {"id": "t", "checkpoint": "c", "steps": 3, "digest": "d", "interrupts": [{"id":
    "i"}]}, "resume": {"id": "r", "state": "running"}, "remember": {}, "recall": {"value": "v"},
    "acquire": {"held": True}, "stream": {"events": [{"id": 1}, {"id": "2", "name": "end",
    "is_last": True}], "is_cut": False},
}
for line in sys.stdin:
    asked = json.loads(line)
    print(line, end="", file=open("asked", "a"), flush=True)
    print(json.dumps(ANSWERS[asked["ask"]]), flush=True)
"""

HERE = Target(name="api-1", url="http://127.0.0.1:1", enter=("docker", "exec", "-i", "x"))

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
async def opened(tmp_path):
    made = []

    def make(program):
        (tmp_path / "probe.py").write_text(program)
        made.append(ProgramProbe((sys.executable, "probe.py"), tmp_path, frozenset(Ability)))
        return made[-1]

    yield make
    for probe in made:
        await probe.close()


async def test_every_question_and_its_answer(opened, tmp_path):
    probe = opened(PROGRAM)
    assert await probe.ready(HERE)
    assert (await probe.start(HERE, Work(thread="t", operation="o"))).state is RunState.RUNNING
    assert (await probe.run(HERE, "r", "t")).steps_done == 3
    thread = await probe.thread(HERE, "t")
    assert (thread.checkpoint, thread.interrupts) == ("c", (Interrupt(id="i"),))
    assert (await probe.resume(HERE, "t", Interrupt(id="i"))).id == "r"
    await probe.remember(HERE, "k", "v")
    assert await probe.recall(HERE, "k") == "v"
    assert await probe.acquire(HERE, "lease")
    stream = await probe.stream(HERE, "r", "t", after="0", count=5)
    assert [event.id for event in stream.events] == ["1", "2"]
    assert not stream.is_cut
    asked = [json.loads(line) for line in (tmp_path / "asked").read_text().splitlines()]
    assert [each.pop("ask") for each in asked] == [
        "ready", "start", "run", "thread", "resume", "remember", "recall", "acquire", "stream",
    ]  # fmt: skip
    assert all(each.pop("target")["enter"][0] == "docker" for each in asked)
    assert asked[1]["work"]["operation"] == "o"
    assert asked[-1] == {"run": "r", "thread": "t", "after": "0", "count": 5}


@pytest.mark.parametrize(
    ("program", "text"),
    [
        ('print(\'{"error": "no such thing"}\', flush=True); input(); input()', "no such thing"),
        ("print('{}', flush=True); input(); input()", None),
        ("print('[1]', flush=True); input(); input()", r"\[1\]"),
        ("print('nothing', flush=True); input(); input()", "JSONDecodeError"),
        ("print('[' * 100000, flush=True); input(); input()", "Error"),
        ("print('x' * 5_000_000, flush=True); input()", "ValueError"),
        ("raise SystemExit(1)", "Error"),
    ],
)
async def test_an_answer_that_is_none_is_an_observation(program, text, opened):
    probe = opened(program)
    if text is None:
        assert not await probe.ready(HERE)
        return
    with pytest.raises(ProbeFailed, match=text):
        await probe.ready(HERE)


async def test_a_program_that_says_nothing_is_ended_and_started_again(opened, monkeypatch):
    monkeypatch.setattr("perdure.contracts.inject.limits.ANSWER_S", 0.2)
    probe = opened("import os, time\nopen('pid', 'a').write(f'{os.getpid()} ')\ntime.sleep(600)")
    for _ in range(2):
        with pytest.raises(ProbeFailed, match="TimeoutError"):
            await probe._ask("ready", HERE, timeout_s=1.0)
    pids = (probe.folder / "pid").read_text().split()
    assert len(set(pids)) == 2
    assert [_host.stat(int(pid)) for pid in pids] == [None, None]


async def test_a_trial_asks_it_and_ends_it(tmp_path):
    """The small application behind a program that passes on to its HTTP endpoints."""
    program = (
        "import json, sys, urllib.request\n"
        "for line in sys.stdin:\n"
        "    asked = json.loads(line)\n"
        "    try:\n"
        "        urllib.request.urlopen(asked['target']['url'] + '/ready', timeout=5)\n"
        "        print(json.dumps({'ready': True}), flush=True)\n"
        "    except OSError as error:\n"
        "        print(json.dumps({'error': str(error)}), flush=True)\n"
    )
    (tmp_path / "probe.py").write_text(program)
    command = (sys.executable, str(tmp_path / "probe.py"))
    probe = ProgramProbe(command, APPLICATION, frozenset())
    proof = await proven("R2", tmp_path, probe=probe)
    assert proof.verdict == "held", proof.text
    assert probe._process is None


@pytest.mark.parametrize("kind", ["http", "langgraph", "perdure", "program"])
def test_each_kind_of_probe_can_be_named(kind, tmp_path):
    settings = read_settings(f'probe = "{kind}"\ncommand = ["a.py:graph"]\n')
    assert isinstance(open_probe(settings, tmp_path).abilities, frozenset)
