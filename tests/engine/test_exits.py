"""Code that calls sys.exit() ends its run, not the worker."""

import asyncio
import sys

import pytest

from perdure import NeedsDecision, RunFailed, effect


@effect(kind="once")
async def exiting() -> None:
    await asyncio.sleep(0)
    sys.exit(3)


async def in_node(_given: object) -> None:
    sys.exit(3)


def in_os_thread(_given: object) -> None:
    sys.exit(3)


async def in_effect(_given: object, ctx) -> None:
    await ctx.call(exiting)


@pytest.mark.parametrize("function", [in_node, in_os_thread, in_effect])
async def test_exit_fails_the_run_and_not_the_worker(open_runtime, function):
    runtime = await open_runtime(function)
    run = await runtime.start(function)
    # Of a `once` effect nobody knows what it did before: a person decides, as with any exception.
    ends_as = NeedsDecision if function is in_effect else RunFailed
    with pytest.raises(ends_as, match=r"sys\.exit\(3\)"):
        await run.result(timeout=5)
    states = [entry.state.value for entry in await runtime.effects(None, run_id=run.id)]
    assert states == (["uncertain"] if function is in_effect else [])
