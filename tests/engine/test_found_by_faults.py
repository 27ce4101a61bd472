"""What the fault tests found, each as small as it can be."""

import asyncio
from dataclasses import dataclass, field
from typing import Annotated

import pytest

from perdure import (
    END,
    START,
    Graph,
    Retry,
    RunCancelled,
    Runtime,
    WorkerSettings,
    append,
    effect,
)
from perdure.engine.loading import read_records
from perdure.errors import StoreLocked
from perdure.model import records as rec
from perdure.sandbox import DirectorySandboxes


@dataclass
class Notes:
    name: str = ""
    lines: Annotated[list[str], append] = field(default_factory=list)


@effect(kind="contained")
async def scribble(text: str, *, sandbox) -> str:
    with (sandbox.path / "notes").open("a") as file:
        file.write(text)
    return text


async def test_start_key_gives_the_first_run_after_it_has_ended(open_runtime):
    graph = Graph(Notes, name="notes")

    @graph.node
    async def write(_state: Notes) -> dict:
        return {"lines": ["one"]}

    graph.edge(START, write)
    graph.edge(write, END)
    runtime = await open_runtime(graph)
    first = await runtime.start(graph, Notes(name="n"), thread="t", key="k")
    await first.result(timeout=10)
    again = await runtime.start(graph, Notes(name="n"), thread="t", key="k")
    assert again.id == first.id


async def test_contained_effects_go_with_the_files_of_a_failed_attempt(open_runtime, tmp_path):
    graph = Graph(Notes, name="notes")

    @graph.node(retry=Retry(max_attempts=2, base_s=0.0, cap_s=0.0))
    async def write(_state: Notes, ctx) -> dict:
        one = await ctx.call(scribble, "one ")
        if ctx.attempt == 1:
            msg = "the first attempt"
            raise RuntimeError(msg)
        return {"lines": [one, await ctx.call(scribble, "two ")]}

    graph.edge(START, write)
    graph.edge(write, END)
    sandboxes = DirectorySandboxes(tmp_path / "sandboxes")
    runtime = await open_runtime(graph, sandbox=sandboxes)
    run = await runtime.start(graph, {}, thread="t")
    assert (await run.result(timeout=10)).lines == ["one ", "two "]
    assert (sandboxes.open("default", "t").path / "notes").read_text() == "one two "


async def test_contained_effects_that_ran_again_can_be_loaded_by_the_third_holder(tmp_path):
    url = f"sqlite:///{tmp_path}/store.db"
    graph = Graph(Notes, name="notes")
    tries: list[int] = []

    @graph.node
    async def write(_state: Notes, ctx) -> dict:
        one = await ctx.call(scribble, "one ")
        tries.append(1)
        if len(tries) < 3:
            await ctx.call(stopped)
        return {"lines": [one]}

    @effect(kind="pure")
    async def stopped() -> None:
        runtime.worker._held[run.id][1].stop_now()  # as a drain does whose window is over

    graph.edge(START, write)
    graph.edge(write, END)
    sandboxes = DirectorySandboxes(tmp_path / "sandboxes")
    async with Runtime.open(url, graphs=[graph], sandbox=sandboxes) as runtime:
        run = await runtime.start(graph, {}, thread="t")
        assert (await run.result(timeout=10)).lines == ["one "]
        records = [record for _s, _f, record in await read_records(runtime.engine.store, run.id)]
        assert sum(isinstance(record, rec.EffectConfirmed) for record in records) == 3
        assert (await runtime.state("t")).lines == ["one "]


@effect(kind="transaction")
async def note(text: str, *, transaction) -> str:
    await transaction.execute("CREATE TABLE IF NOT EXISTS notes (text)")
    await transaction.execute("INSERT INTO notes VALUES (?)", (text,))
    return text


def _noting(**options) -> Graph:
    graph = Graph(Notes, name="noting")

    @graph.node(**options)
    async def write(_state: Notes, ctx) -> dict:
        return {"lines": [await ctx.call(note, "one")]}

    graph.edge(START, write)
    graph.edge(write, END)
    return graph


async def test_store_that_cannot_serve_is_no_failure_of_a_transaction(tmp_path, monkeypatch):
    graph = _noting()
    async with Runtime.open(f"sqlite:///{tmp_path}/store.db", graphs=[graph]) as runtime:
        transact = runtime.engine.store.transact
        locked = []

        async def busy(body, **fence):
            if not locked:
                locked.append(1)
                raise StoreLocked("locked")
            return await transact(body, **fence)

        monkeypatch.setattr(runtime.engine.store, "transact", busy)
        run = await runtime.start(graph, {})
        assert (await run.result(timeout=10)).lines == ["one"]
        assert locked


async def test_transaction_whose_commit_outlives_its_node_is_known(tmp_path, monkeypatch):
    retry = Retry(max_attempts=20, base_s=0.0, cap_s=0.0)
    graph = _noting(timeout_s=0.5, retry=retry)
    async with Runtime.open(f"sqlite:///{tmp_path}/store.db", graphs=[graph]) as runtime:
        transact = runtime.engine.store.transact

        async def slow(body, **fence):
            outcome = await transact(body, **fence)
            await asyncio.sleep(1.0)  # longer than the node has
            return outcome

        monkeypatch.setattr(runtime.engine.store, "transact", slow)
        run = await runtime.start(graph, {})
        assert (await run.result(timeout=10)).lines == ["one"]
        assert (await run.row()).token == 1
        records = [record for _s, _f, record in await read_records(runtime.engine.store, run.id)]
        assert sum(isinstance(record, rec.EffectConfirmed) for record in records) == 1


async def test_cancel_is_not_lost_with_the_holder_that_took_it_in(open_runtime):
    graph = Graph(Notes, name="notes")

    @graph.node
    async def wait(_state: Notes, ctx) -> None:
        await ctx.receive("never")

    graph.edge(START, wait)
    graph.edge(wait, END)
    settings = WorkerSettings(lease_ttl_s=0.5, heartbeat_s=0.1)
    runtime = await open_runtime(graph, worker=settings)
    run = await runtime.start(graph, {})
    while (await run.status()) != "waiting":  # noqa: ASYNC110  # the store tells, no event
        await asyncio.sleep(0.01)
    died = _next_holder_dies_before_it_concludes(runtime.worker)
    await run.cancel(by="test")
    with pytest.raises(RunCancelled):
        await run.result(timeout=10)
    assert died


def _next_holder_dies_before_it_concludes(worker):
    died: list[int] = []
    execute = worker._execute

    def patched(row, loaded=None):
        execute(row, loaded)
        execution = worker._held[row.run_id][1]
        supervise = execution._supervise

        async def dies():
            if died:
                return await supervise()
            await execution.journal.barrier()  # the cancel is durably taken in
            died.append(1)
            return None

        execution._supervise = dies

    worker._execute = patched
    return died
