"""Runs whose tools work in an isolated sandbox: resumed, forked and rolled back with it."""

import asyncio
import os
import signal
import subprocess
import sys
import textwrap

import pytest

from perdure import START, Context, Graph, Runtime, effect
from perdure.errors import EffectFailed, RunFailed
from perdure.sandbox import DirectorySandboxes, IsolatedSandboxes, Limits
from tests import warm
from tests.engine.one_node import State
from tests.engine.polled import answered, reached
from tests.sandbox.kept import living_sandboxes

pytestmark = pytest.mark.timeout(120)


@effect(kind="contained")
async def shell(command: str, *, sandbox) -> str:
    ran = await sandbox.run(command)
    return ran.output + ran.errors


def graph_of(*commands, name="shells"):
    graph = Graph(State, name=name)
    before = START
    for n, command in enumerate(commands):

        @graph.node(name=f"n{n}")
        async def node(state: State, ctx: Context, command: str = command) -> dict:
            return {"results": [await ctx.call(shell, command)]}

        graph.edge(before, f"n{n}")
        before = f"n{n}"
    return graph


async def test_a_thread_a_fork_and_a_rollback_have_their_files(is_able, tmp_path):
    graph = graph_of("echo a >> log; cat log", "echo b >> log; cat log; rm -rf /usr/local/x")
    backend = IsolatedSandboxes(tmp_path / "boxes")
    url = f"sqlite:///{tmp_path / 'p.db'}"
    async with Runtime.open(url, graphs=[graph], sandbox=backend) as runtime:
        for _ in range(2):
            state = await (await runtime.start(graph, {}, thread="t")).result(timeout=60)
        assert state.results == ["a\n", "a\nb\n", "a\nb\na\n", "a\nb\na\nb\n"]
        forked = await runtime.fork("t", at=2)
        assert (await forked.result(timeout=60)).results == ["a\n", "a\nb\n"]
        await runtime.rollback("t", at=2, by="ada")
        state = await (await runtime.start(graph, {}, thread="t")).result(timeout=60)
        assert state.results[-1] == "a\na\nb\n"


COUNTER = (
    "import time\nn = 0\nwhile True:\n n += 1\n open('count', 'w').write(str(n))\n time.sleep(0.01)"
)
ALIVE = "grep -al ^/usr/bin/python3.counter /proc/[0-9]*/cmdline | wc -l"
MOVES = f'a=$(cat count); until [ "$(cat count)" != "$a" ]; do :; done; {ALIVE}'


@effect(kind="contained")
async def told(command: str, *, sandbox) -> str:
    await sandbox.write("/workspace/counter.py", COUNTER.encode())
    ran = await sandbox.run(command)
    return f"{ran.output.strip()} lost: {' '.join(ran.lost)}".strip()


async def test_what_a_node_left_running_goes_on_for_the_run_and_ends_with_it(is_able, tmp_path):
    graph = Graph(State, name="living")
    commands = [
        "/usr/bin/python3 counter.py & until [ -s count ]; do :; done",
        MOVES,
        MOVES,
    ]

    @graph.node
    async def begin(state: State, ctx: Context) -> dict:
        if state.results:
            return {"results": [await ctx.call(told, ALIVE)]}
        return {"results": [await ctx.call(told, commands[0])]}

    graph.edge(START, begin)
    before = "begin"
    for n, command in enumerate(commands[1:]):

        @graph.node(name=f"n{n}")
        async def node(state: State, ctx: Context, command: str = command) -> dict:
            if len(state.results) > len(commands):
                return {}
            return {"results": [await ctx.call(told, command)]}

        graph.edge(before, f"n{n}")
        before = f"n{n}"
    backend = living_sandboxes(tmp_path / "boxes")
    url = f"sqlite:///{tmp_path / 'p.db'}"
    async with Runtime.open(url, graphs=[graph], sandbox=backend) as runtime:
        state = await (await runtime.start(graph, {}, thread="t")).result(timeout=100)
        assert state.results == ["lost:", "1 lost:", "1 lost:"]
        state = await (await runtime.start(graph, {}, thread="t")).result(timeout=100)
        said = state.results[3]
        assert said.startswith("0 lost:")
        assert "counter.py" in said
        assert "is not running any more" in said


WORKER = textwrap.dedent("""
    import asyncio, sys
    from perdure import Runtime
    from perdure.sandbox import IsolatedSandboxes
    from tests.sandbox.test_runs import killed_graph

    async def main():
        folder, run_id = sys.argv[1:]
        backend = IsolatedSandboxes(folder + "/boxes")
        graph = killed_graph()
        async with Runtime.open(f"sqlite:///{folder}/p.db", graphs=[graph], sandbox=backend) as r:
            run = await r.get(run_id)
            print((await run.result(timeout=100)).results[-1], end="", flush=True)

    asyncio.run(main())
""")

COMMANDS = [
    f"echo {n} >> log; mkdir -p d{n}; sleep 0.1; rm -rf d{n - 1}; cat log" for n in range(8)
]


def killed_graph():
    return graph_of(*COMMANDS, "cat log; ls -d d*")


async def test_a_killed_worker_loses_and_repeats_nothing_in_the_files(is_able, tmp_path):
    graph = killed_graph()
    url = f"sqlite:///{tmp_path / 'p.db'}"
    async with Runtime.open(url, graphs=[graph], worker=False) as runtime:
        run = await runtime.start(graph, {}, thread="t")
    kills = 0
    for delay_s in (1.0, 1.3, 1.6, 1.2, None):
        worker = warm.Popen(  # it is waited for in an OS thread
            [sys.executable, "-c", WORKER, str(tmp_path), run.id],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            stdout=subprocess.PIPE,
        )
        try:
            output, _ = await asyncio.to_thread(worker.communicate, timeout=delay_s)
            break
        except subprocess.TimeoutExpired:
            worker.send_signal(signal.SIGKILL)
            worker.communicate()
            kills += 1
    assert output.decode() == "".join(f"{n}\n" for n in range(8)) + "d7\n"


async def test_what_a_node_does_by_its_sandbox_is_recorded(is_able, tmp_path):
    executions = []
    graph = Graph(State, name="direct")

    @graph.node
    async def act(state: State, ctx: Context) -> dict:
        executions.append(1)
        await ctx.sandbox.write("/workspace/log", b"begun\n")
        ran = await ctx.sandbox.run("echo one >> log; cat log", limits=Limits(deadline_s=60))
        await ctx.ask("Go on?", schema=bool)
        again = await ctx.sandbox.run(["/bin/sh", "-c", "echo two >> log; exit 3"])
        changed = [each.path for each in (await ctx.sandbox.changes("base")).paths]
        try:
            await ctx.sandbox.read("/workspace/none")
        except EffectFailed as error:
            refused = "No such file" in str(error)
        log = await ctx.sandbox.read("/workspace/log")
        return {"results": [ran.output, str(again.code), log.decode(), str(changed), str(refused)]}

    graph.edge(START, act)
    url = f"sqlite:///{tmp_path / 'p.db'}"
    async with Runtime.open(url, [graph], sandbox=IsolatedSandboxes(tmp_path / "b")) as runtime:
        run = await runtime.start(graph, {}, thread="t")
        await reached(run)
    async with Runtime.open(url, [graph], sandbox=IsolatedSandboxes(tmp_path / "b")) as runtime:
        run = await runtime.get(run.id)
        await answered(runtime, run)
        results = (await run.result(timeout=60)).results
        assert results[:3] == ["begun\none\n", "3", "begun\none\ntwo\n"]
        assert "/workspace/log" in results[3]
        assert results[4] == "True"
        assert len(executions) == 2
    async with Runtime.open(url, [graph], worker=False) as runtime:
        assert (await runtime.replay(run.id)).divergences == ()


async def test_a_backend_without_commands_says_so(tmp_path):
    graph = Graph(State, name="direct")

    @graph.node
    async def act(state: State, ctx: Context) -> dict:
        return {"results": [(await ctx.sandbox.run("true")).output]}

    graph.edge(START, act)
    boxes = DirectorySandboxes(tmp_path / "b")
    async with Runtime.open(f"sqlite:///{tmp_path / 'p.db'}", [graph], sandbox=boxes) as runtime:
        run = await runtime.start(graph, {}, thread="t")
        with pytest.raises(RunFailed, match="DirectorySandbox has no 'run'"):
            await run.result(timeout=60)


async def test_what_each_turn_changed_is_in_the_journal(is_able, tmp_path):
    commands = ["ls /", "head -c 100000 /dev/urandom > data", "cat data > /dev/null"]
    graph = graph_of(*commands)
    url = f"sqlite:///{tmp_path / 'p.db'}"
    async with Runtime.open(url, [graph], sandbox=IsolatedSandboxes(tmp_path / "b")) as runtime:
        await (await runtime.start(graph, {}, thread="t")).result(timeout=60)
        costs = await runtime.costs("t")
    assert [cost.sandbox for cost in costs] == ["", "nothing", "files", "nothing"]
    assert [cost.sandbox_bytes > 90_000 for cost in costs] == [False, False, True, False]
