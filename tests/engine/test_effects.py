"""Effects: what is recorded, what is repeated, and what is left to a person.

Size: one short test per rule of the ledger, in the order in which they are met.
"""

import asyncio
import threading
from contextlib import suppress
from functools import partial

import pytest

from perdure import (
    START,
    Absent,
    Context,
    EffectFailed,
    Found,
    Graph,
    Limit,
    NeedsDecision,
    Rejected,
    Retry,
    RunCancelled,
    RunFailed,
    Unknown,
    effect,
)
from perdure.errors import AlreadyDecided
from tests.engine.one_node import State
from tests.engine.one_node import one_node as one_node_of
from tests.engine.polled import reached

FAST = Retry(max_attempts=3, base_s=0.001, cap_s=0.002)


one_node = partial(one_node_of, name="effects")


async def finish(open_runtime, function, **options):
    runtime = await open_runtime(one_node(function, **options))
    run = await runtime.start("effects", {})
    return runtime, run, (await run.result(timeout=10)).results


async def parked(runtime, run):
    await reached(run, "needs_decision")


async def test_a_keyed_effect_is_resent_under_the_same_key(open_runtime):
    keys = []

    @effect(kind="keyed", retry=FAST)
    async def send(what: str, *, idempotency_key: str) -> str:
        keys.append(idempotency_key)
        if len(keys) < 3:
            raise ConnectionError("lost")
        return what.upper()

    runtime, run, results = await finish(open_runtime, lambda ctx: ctx.call(send, "x"))
    assert results == ["X"]
    assert len(keys) == 3
    assert len(set(keys)) == 1
    [entry] = await runtime.effects(None, run_id=run.id)
    assert (entry.state, entry.attempt, entry.result, entry.args) == ("confirmed", 3, "X", ["x"])


async def test_a_keyed_effect_that_never_answers_is_parked_not_failed(open_runtime):
    @effect(kind="keyed", retry=FAST)
    async def send(*, idempotency_key: str) -> str:
        raise TimeoutError("no answer")

    runtime = await open_runtime(one_node(lambda ctx: ctx.call(send)))
    run = await runtime.start("effects", {})
    with pytest.raises(NeedsDecision, match="perdure resolve e_"):
        await run.result(timeout=10)
    [entry] = await runtime.effects("uncertain")
    assert entry.attempt == 3
    await runtime.resolve(entry.id, happened=True, result="told", by="ann")
    assert (await run.result(timeout=10)).results == ["told"]


async def test_rejected_means_that_nothing_happened(open_runtime):
    calls = []

    @effect(kind="once")
    async def pay() -> str:
        calls.append(1)
        raise Rejected("card refused")

    async def body(ctx):
        try:
            return await ctx.call(pay)
        except EffectFailed as error:
            return f"handled {error.fields['effect']}"

    runtime, run, results = await finish(open_runtime, body)
    assert results[0].startswith("handled")
    assert len(calls) == 1
    [entry] = await runtime.effects("failed", run_id=run.id)
    assert entry.failure.message == "card refused"


async def test_declared_rejections_count_as_not_happened(open_runtime):
    class CardError(Exception):
        pass

    @effect(kind="once", rejects=CardError)
    async def pay() -> str:
        raise CardError("no")

    async def body(ctx):
        with pytest.raises(EffectFailed, match="CardError: no"):
            await ctx.call(pay)
        return "ok"

    assert (await finish(open_runtime, body))[2] == ["ok"]


async def test_retry_after_of_the_other_side_is_honoured(open_runtime):
    times = []

    @effect(kind="keyed", retry=FAST)
    async def send(*, idempotency_key: str) -> str:
        times.append(asyncio.get_running_loop().time())
        if len(times) == 1:
            raise Rejected("slow down", retry_after_s=0.15)
        return "ok"

    assert (await finish(open_runtime, lambda ctx: ctx.call(send)))[2] == ["ok"]
    assert times[1] - times[0] >= 0.14


@pytest.mark.parametrize("happened", [True, False])
async def test_a_once_effect_without_an_answer_is_decided_by_a_person(open_runtime, happened):
    calls = []

    @effect
    async def pay(amount: int) -> str:
        calls.append(amount)
        if len(calls) == 1:
            raise ConnectionResetError("the line broke")
        return "sent again"

    runtime = await open_runtime(one_node(lambda ctx: ctx.call(pay, 40)))
    run = await runtime.start("effects", {})
    await parked(runtime, run)
    [entry] = await runtime.effects()
    assert entry.failure.type == "ConnectionResetError"
    await runtime.resolve(entry.id, happened=happened, result="it did", by="ann")
    results = (await run.result(timeout=10)).results
    assert results == (["it did"] if happened else ["sent again"])
    assert len(calls) == (1 if happened else 2)


async def test_a_decision_counts_once(open_runtime):
    @effect
    async def pay() -> str:
        raise ConnectionError

    runtime = await open_runtime(one_node(lambda ctx: ctx.call(pay)))
    run = await runtime.start("effects", {})
    await parked(runtime, run)
    [entry] = await runtime.effects()
    await runtime.resolve(entry.id, happened=True, by="ann")
    with pytest.raises(AlreadyDecided, match=r"ann|confirmed"):
        await runtime.resolve(entry.id, happened=False, by="bob")


@pytest.mark.parametrize(("found", "calls_made"), [(Found("there"), 1), (Absent(), 2)])
async def test_a_lookup_effect_asks_what_became_of_it(open_runtime, found, calls_made):
    calls, asked = [], []

    async def reconcile(request, key):
        asked.append((request.args, request.kwargs, key))
        return found

    @effect(kind="lookup", reconcile=reconcile, retry=FAST)
    async def book(seat: int, *, idempotency_key: str) -> str:
        calls.append(idempotency_key)
        if len(calls) == 1:
            raise TimeoutError
        return "booked"

    _, _, results = await finish(open_runtime, lambda ctx: ctx.call(book, 7))
    assert results == ["there" if calls_made == 1 else "booked"]
    assert len(calls) == calls_made
    assert asked == [((7,), {}, calls[0])]


async def test_a_lookup_that_stays_unknown_goes_to_a_person(open_runtime, monkeypatch):
    monkeypatch.setattr(
        "perdure.engine.outside._RECONCILE", Retry(max_attempts=2, base_s=0.001, cap_s=0.001)
    )

    async def reconcile(request, key):
        return Unknown("their index lags")

    @effect(kind="lookup", reconcile=reconcile)
    async def book() -> str:
        raise TimeoutError

    runtime = await open_runtime(one_node(lambda ctx: ctx.call(book)))
    run = await runtime.start("effects", {})
    await parked(runtime, run)
    [entry] = await runtime.effects()
    assert entry.failure.message == "their index lags"


async def test_a_transaction_commits_with_its_record_or_not_at_all(open_runtime, url):
    if url.startswith("memory"):
        pytest.skip("capability 'transaction': the memory store has no SQL to write with")
    calls = []

    @effect(kind="transaction", retry=FAST)
    async def book(amount: int, *, transaction) -> int:
        calls.append(amount)
        await transaction.execute("CREATE TABLE IF NOT EXISTS ledger (amount INTEGER)")
        await transaction.execute("INSERT INTO ledger VALUES (?)", (amount,))
        if len(calls) == 1:
            raise ValueError("rolled back")
        return (await transaction.execute("SELECT count(*) FROM ledger"))[0][0]

    _, _, results = await finish(open_runtime, lambda ctx: ctx.call(book, 5))
    assert results == ["1"]
    assert calls == [5, 5]


async def test_a_transaction_may_not_touch_the_stores_own_tables(open_runtime, url):
    if url.startswith("memory"):
        pytest.skip("capability 'transaction': the memory store has no SQL to write with")

    @effect(kind="transaction")
    async def evil(*, transaction) -> None:
        await transaction.execute("DELETE FROM perdure_runs")

    runtime = await open_runtime(one_node(lambda ctx: ctx.call(evil)))
    run = await runtime.start("effects", {})
    with pytest.raises(RunFailed, match=r"perdure_runs|own tables"):
        await run.result(timeout=10)


async def test_equal_calls_are_told_apart_and_concurrent_ones_all_happen(open_runtime):
    calls = []

    @effect(kind="keyed")
    async def send(n: int, *, idempotency_key: str) -> int:
        calls.append(idempotency_key)
        await asyncio.sleep(0.001 * (5 - n))
        return n

    async def body(ctx):
        return await asyncio.gather(*(ctx.call(send, n % 3) for n in range(6)))

    _, _, results = await finish(open_runtime, body)
    assert results == ["[0, 1, 2, 0, 1, 2]"]
    assert len(set(calls)) == 6


async def test_map_keeps_the_order_and_the_limit(open_runtime):
    running, most = 0, 0
    full = asyncio.Event()

    @effect(kind="pure")
    async def work(n: int) -> int:
        nonlocal running, most
        running += 1
        most = max(most, running)
        if running == 3:
            full.set()
        await full.wait()
        await asyncio.sleep(0.005)  # one more would begin now
        running -= 1
        return n * n

    _, _, results = await finish(open_runtime, lambda ctx: ctx.map(work, range(10), limit=3))
    assert results == [str([n * n for n in range(10)])]
    assert most == 3


async def test_a_limit_holds_over_all_runs_of_a_worker(open_runtime):
    running, most = 0, 0
    full = asyncio.Event()

    @effect(kind="pure", limit=Limit(2, "api.example.com"))
    async def work(n: int) -> int:
        nonlocal running, most
        running += 1
        most = max(most, running)
        if running == 2:
            full.set()
        await full.wait()
        await asyncio.sleep(0.01)  # one more would begin now
        running -= 1
        return n

    runtime = await open_runtime(one_node(lambda ctx: ctx.call(work, 1)))
    runs = [await runtime.start("effects", {}) for _ in range(8)]
    await asyncio.gather(*(run.result(timeout=10) for run in runs))
    assert most == 2


async def test_a_business_key_gives_the_first_result_across_runs(open_runtime):
    calls = []

    @effect(kind="keyed")
    async def charge(amount: int, *, idempotency_key: str) -> str:
        calls.append(idempotency_key)
        return f"charge {len(calls)}"

    runtime = await open_runtime(one_node(lambda ctx: ctx.call(charge, 5, key="order-9")))
    first = await (await runtime.start("effects", {})).result(timeout=10)
    second = await (await runtime.start("effects", {})).result(timeout=10)
    other = await (await runtime.start("effects", {}, tenant="other")).result(timeout=10)
    assert first.results == second.results == ["charge 1"]
    assert other.results == ["charge 2"]
    assert calls == ["order-9", "other/order-9"]


async def test_a_result_by_a_business_key_is_no_divergence_for_what_follows(open_runtime):
    calls = []

    @effect(kind="keyed")
    async def charge(amount: int, *, idempotency_key: str) -> str:
        calls.append("charge")
        return "paid"

    @effect(kind="keyed")
    async def note(text: str, *, idempotency_key: str) -> str:
        calls.append("note")
        return text

    async def body(ctx):
        paid = await ctx.call(charge, 5, key="order-9")
        noted = await ctx.call(note, paid)
        said = await ctx.ask("Ship it?", schema=bool)
        return [noted, said.value, await ctx.call(note, "shipped")]

    runtime = await open_runtime(one_node(body))
    for number in (1, 2):
        run = await runtime.start("effects", {})
        await reached(run, "waiting")
        (ask,) = await runtime.asks(run_id=run.id)
        await runtime.answer(ask.id, True, by="ann")
        state = await run.result(timeout=10)
        assert state.results == [str(["paid", True, "shipped"])]
        assert calls.count("charge") == 1
        assert calls.count("note") == 2 * number


async def test_a_business_key_with_other_arguments_is_refused(open_runtime):
    @effect(kind="keyed")
    async def charge(amount: int, *, idempotency_key: str) -> str:
        return "ok"

    async def body(ctx):
        await ctx.call(charge, 5, key="order-9")
        return await ctx.call(charge, 6, key="order-9")

    runtime = await open_runtime(one_node(body))
    run = await runtime.start("effects", {})
    with pytest.raises(RunFailed, match=r"order-9.*other arguments"):
        await run.result(timeout=10)


async def test_compensation_runs_newest_first_and_its_failure_is_a_state(open_runtime):
    undone = []

    async def undo(request, result):
        undone.append((request.args, result))
        if request.args == (2,):
            raise RuntimeError("can't")

    @effect(kind="keyed", compensate=undo)
    async def act(n: int, *, idempotency_key: str) -> str:
        return f"r{n}"

    async def body(ctx):
        for n in (1, 2, 3):
            await ctx.call(act, n)
        await ctx.receive("never")

    runtime = await open_runtime(one_node(body))
    run = await runtime.start("effects", {})
    await reached(run, "waiting")
    await run.cancel(compensate=True, by="ann")
    with pytest.raises(RunCancelled, match="ann"):
        await run.result(timeout=10)
    assert undone == [((3,), "r3"), ((2,), "r2"), ((1,), "r1")]
    states = {entry.args[0]: entry.state for entry in await runtime.effects(None, run_id=run.id)}
    assert states == {1: "compensated", 2: "compensation_failed", 3: "compensated"}


async def test_a_failing_run_compensates_if_its_graph_says_so(open_runtime):
    undone = []

    async def undo(request, result):
        undone.append(request.args[0])

    @effect(kind="keyed", compensate=undo)
    async def act(n: int, *, idempotency_key: str) -> str:
        return "ok"

    async def body(ctx):
        await ctx.call(act, 1)
        raise ValueError("too late")

    runtime = await open_runtime(one_node(body, compensate_on_failure=True))
    run = await runtime.start("effects", {})
    with pytest.raises(RunFailed, match="too late"):
        await run.result(timeout=10)
    assert undone == [1]


async def test_cancel_lists_what_is_in_flight_as_uncertain(open_runtime):
    begun = asyncio.Event()

    @effect(kind="keyed")
    async def slow(*, idempotency_key: str) -> str:
        begun.set()
        await asyncio.sleep(30)
        return "never"

    runtime = await open_runtime(one_node(lambda ctx: ctx.call(slow)))
    run = await runtime.start("effects", {})
    await begun.wait()
    await run.cancel(by="ann")
    with pytest.raises(RunCancelled) as caught:
        await run.result(timeout=10)
    [entry] = await runtime.effects("uncertain")
    assert caught.value.fields["uncertain"] == [entry.id]


async def test_an_effect_that_takes_too_long_is_uncertain(open_runtime):
    @effect(timeout_s=0.02)
    async def slow() -> str:
        await asyncio.sleep(30)
        return "never"

    runtime = await open_runtime(one_node(lambda ctx: ctx.call(slow)))
    run = await runtime.start("effects", {})
    await parked(runtime, run)
    [entry] = await runtime.effects()
    assert entry.failure.type == "EffectTimedOut"


async def test_what_changes_between_executions_is_a_divergence_and_nothing_is_sent(open_runtime):
    sent = []
    executions = []

    @effect(kind="keyed")
    async def send(n: int, *, idempotency_key: str) -> int:
        sent.append(n)
        return n

    async def body(ctx):
        executions.append(1)
        await ctx.call(send, len(executions))
        await ctx.sleep(0.3)
        return "done"

    runtime = await open_runtime(one_node(body))
    run = await runtime.start("effects", {})
    with pytest.raises(NeedsDecision, match="ReplayDiverged"):
        await run.result(timeout=10)
    assert sent == [1]


async def test_an_unserializable_argument_names_its_place(open_runtime):
    @effect(kind="pure")
    async def look(thing) -> str:
        return "ok"

    runtime = await open_runtime(one_node(lambda ctx: ctx.call(look, {"a": [object()]})))
    run = await runtime.start("effects", {})
    with pytest.raises(RunFailed, match=r"argument of effect .*look.*'a'"):
        await run.result(timeout=10)


async def test_a_node_retry_repeats_no_confirmed_effect_and_resends_a_failed_one(open_runtime):
    good, bad = [], []

    @effect(kind="keyed")
    async def first(*, idempotency_key: str) -> str:
        good.append(idempotency_key)
        return "ok"

    @effect(kind="keyed")
    async def second(*, idempotency_key: str) -> str:
        bad.append(idempotency_key)
        if len(bad) == 1:
            raise Rejected("not now")
        return "ok"

    graph = Graph(State, name="retrying")

    @graph.node(retry=FAST)
    async def act(state: State, ctx: Context) -> dict:
        return {"results": [await ctx.call(first), await ctx.call(second)]}

    graph.edge(START, act)
    runtime = await open_runtime(graph)
    result = await (await runtime.start(graph, {})).result(timeout=10)
    assert result.results == ["ok", "ok"]
    assert len(good) == 1
    assert len(bad) == 2
    assert len(set(bad)) == 1


async def test_what_queues_for_its_limit_has_no_intent(open_runtime):
    begun = asyncio.Event()

    @effect(limit=1)
    async def act(n: int) -> int:
        begun.set()
        await asyncio.sleep(30)
        return n

    async def body(ctx):
        return await ctx.map(act, range(5))

    runtime = await open_runtime(one_node(body))
    run = await runtime.start("effects", {})
    await begun.wait()
    await run.cancel(by="ann")
    with pytest.raises(RunCancelled):
        await run.result(timeout=10)
    entries = await runtime.effects(None, run_id=run.id)
    assert [(entry.args, entry.state) for entry in entries] == [([0], "uncertain")]


async def test_a_plain_reconcile_does_not_stop_the_others(open_runtime):
    ticked = threading.Event()

    def reconcile(request, key):
        # Blocks its thread until the other effect is done: in the event loop, for ever.
        return Found("found") if ticked.wait(10) else Unknown("nobody else could run")

    @effect(kind="lookup", reconcile=reconcile)
    async def book() -> str:
        raise TimeoutError

    @effect(kind="pure")
    async def tick() -> str:
        await asyncio.sleep(0.05)
        ticked.set()
        return "ticked"

    async def body(ctx):
        return await asyncio.gather(ctx.call(book), ctx.call(tick))

    _, _, results = await finish(open_runtime, body)
    assert results == ["['found', 'ticked']"]


async def test_an_effect_that_the_node_gives_up_on_is_uncertain(open_runtime):
    is_sent = asyncio.Event()

    @effect(kind="keyed")
    async def slow(*, idempotency_key: str) -> str:
        is_sent.set()
        await asyncio.sleep(30)
        return "never"

    async def body(ctx):
        call = asyncio.ensure_future(ctx.call(slow))
        await is_sent.wait()
        call.cancel()
        with suppress(asyncio.CancelledError):
            await call
        return "gave up"

    runtime, run, results = await finish(open_runtime, body)
    assert results == ["gave up"]
    [entry] = await runtime.effects("uncertain", run_id=run.id)
    assert entry.failure.type == "Cancelled"
