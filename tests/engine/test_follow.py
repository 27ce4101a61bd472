"""Who follows a run misses nothing that happens while it looks."""

import asyncio

import pytest

from perdure import Runtime


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_commit_between_a_look_and_the_wait_is_not_missed(kind, tmp_path, monkeypatch):
    url = "memory://" if kind == "memory" else f"sqlite:///{tmp_path}/store.db"
    go, done = asyncio.Event(), asyncio.Event()

    async def talk(_given: object, ctx) -> None:
        await ctx.emit("before")
        await go.wait()
        await ctx.emit("between")
        await done.wait()

    async with Runtime.open(url, [talk]) as runtime:
        run = await runtime.start(talk)
        store, queue = runtime.engine.store, runtime.engine.queue
        read_run = store.read_run
        seen = []

        async def read_and_dawdle(run_id):
            """Return a row that is old by the time that it arrives."""
            row = await read_run(run_id)
            if seen and not go.is_set():
                committed = queue.listen(run_id)
                go.set()
                await committed
            return row

        monkeypatch.setattr(store, "read_run", read_and_dawdle)
        try:
            async with asyncio.timeout(5):
                async for event in run.events():
                    if event.kind == "emitted":
                        seen.append(event.chunk)
                    if event.chunk == "between":
                        break
        finally:
            done.set()
        assert seen == ["before", "between"]
        await run.result(timeout=5)
