"""The scenario that is simulated unless another is given: every kind of effect, wait and graph."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any

from perdure.core.retry import Retry
from perdure.engine.context import Context
from perdure.engine.runtime import Run
from perdure.engine.worker import WorkerSettings
from perdure.errors import (
    AlreadyAnswered,
    AlreadyDecided,
    Rejected,
    RunCancelled,
    RunFailed,
    RunFinal,
    StoreError,
    UsageError,
)
from perdure.graph import START, Absent, Found, Graph, Request, Send, add, append, effect
from perdure.testing.simulator._checker import require
from perdure.testing.simulator._outside import Outside
from perdure.testing.simulator._stage import Stage

SIGNALS = (1, 2, 3)
PATIENT = Retry(max_attempts=200, base_s=0.1, cap_s=2.0)


@dataclass
class Order:
    """State of the main graph."""

    name: str = ""
    turns: Annotated[int, add] = 0
    log: Annotated[list[str], append] = field(default_factory=list)
    answers: Annotated[list[Any], append] = field(default_factory=list)


class Acts:
    """The effects of the scenario, one of each kind that can act outside."""

    def __init__(self, outside: Outside) -> None:
        """Declare them."""

        @effect(kind="keyed", retry=PATIENT, name="sim.undo")
        async def undo(request: Request, _result: str, *, idempotency_key: str) -> str:
            """Counter a keyed act."""
            label = f"undo {request.args[0]}"
            return await outside.act(label, idempotency_key, deduplicates=True)

        @effect(kind="keyed", retry=PATIENT, name="sim.keyed", compensate=undo)
        async def keyed(label: str, *, idempotency_key: str) -> str:
            """Do what the other side deduplicates."""
            return await outside.act(label, idempotency_key, deduplicates=True)

        async def reconcile(request: Request, _key: str) -> Found | Absent:
            """Look it up at the other side."""
            found = await outside.find(request.args[0])
            return Absent() if found is None else Found(found)

        @effect(kind="lookup", retry=PATIENT, name="sim.lookup", reconcile=reconcile)
        async def lookup(label: str, *, idempotency_key: str) -> str:
            """Do what can be looked up."""
            return await outside.act(label, idempotency_key)

        @effect(kind="once", name="sim.once")
        async def once(label: str, *, idempotency_key: str) -> str:
            """Do what nobody can find out about but by looking."""
            return await outside.act(label, idempotency_key, may_refuse=False)

        @effect(kind="pure", name="sim.pure")
        async def pure(value: int) -> int:
            """Read."""
            result: int = await outside.read(value * value)
            return result

        @effect(kind="once", name="sim.refuse")
        async def refuse(_label: str) -> str:
            """Be refused for good."""
            await outside.sleep(0.2)
            msg = "never"
            raise Rejected(msg)

        self.keyed, self.lookup, self.once = keyed, lookup, once
        self.pure, self.refuse = pure, refuse


def order_graph(acts: Acts, child: Graph[Any]) -> Graph[Any]:
    """Return a graph with loops, fan-out, people, timers and a child."""
    graph = Graph(Order, name="sim.order")

    @graph.node
    async def turn(state: Order, ctx: Context) -> dict[str, Any]:
        """Read, act, sleep."""
        square = await ctx.call(acts.pure, state.turns)
        done = await ctx.call(acts.keyed, f"{state.name} turn {square}")
        await ctx.sleep(1.5)
        return {"turns": 1, "log": [done]}

    @graph.node
    async def fan(item: str, ctx: Context) -> dict[str, Any]:
        """Act beside others."""
        return {"log": [await ctx.call(acts.lookup, item)]}

    @graph.node
    async def people(_state: Order, ctx: Context) -> dict[str, Any]:
        """Hear from people, in both ways, and of nobody."""
        answer = await ctx.ask("Go on?", schema=int)
        nobody = await ctx.ask("Anybody?", schema=int, expires_in=3, default=0)
        signals = [await ctx.receive("topic") for _ in SIGNALS]
        log = [f"signals {signals}", f"nobody {nobody.value}"]
        return {"log": log, "answers": [[answer.by, answer.value]]}

    @graph.node
    async def last(state: Order, ctx: Context) -> dict[str, Any]:
        """Start a child, act once, act on many."""
        spawned = await ctx.spawn(child, {"name": f"{state.name} child"})
        first = await ctx.call(acts.once, f"{state.name} once")
        labels = [f"{state.name} many {n}" for n in range(3)]
        many = await ctx.map(acts.lookup, labels, limit=2)
        result = await spawned.result()
        return {"log": [first, *many, *result.log]}

    graph.edge(START, turn)
    graph.branch(
        turn,
        lambda s: turn if s.turns < 3 else [Send(fan, f"{s.name} fan {n}") for n in range(3)],  # noqa: PLR2004  # three turns
        targets=[turn, fan],
    )
    graph.edge(fan, people)
    graph.edge(people, last)
    return graph


def small_graphs(acts: Acts) -> list[Graph[Any]]:
    """Return a child's graph, one that fails and compensates, and one that waits for ever."""
    child = Graph(Order, name="sim.child")

    @child.node
    async def work(state: Order, ctx: Context) -> dict[str, Any]:
        """Act between two pauses."""
        await ctx.sleep(2)
        done = await ctx.call(acts.keyed, f"{state.name} work")
        await ctx.sleep(0.1)
        return {"turns": 1, "log": [done, await ctx.call(acts.once, f"{state.name} once")]}

    child.edge(START, work)
    saga = Graph(Order, name="sim.saga", compensate_on_failure=True)

    @saga.node
    async def reserve(state: Order, ctx: Context) -> dict[str, Any]:
        """Act twice, then fail."""
        for n in range(2):
            await ctx.call(acts.keyed, f"{state.name} reserve {n}")
        await ctx.call(acts.refuse, state.name)
        return {}

    saga.edge(START, reserve)
    endless = Graph(Order, name="sim.endless")

    @endless.node
    async def wait(state: Order, ctx: Context) -> dict[str, Any]:
        """Act, then wait for somebody who does not come."""
        await ctx.call(acts.once, f"{state.name} once")
        await ctx.receive("never")
        return {}

    endless.edge(START, wait)
    return [child, saga, endless]


class DefaultScenario:
    """Orders with children, a queue on a thread, a saga, a cancelled run, and people for them."""

    settings = WorkerSettings(lease_ttl_s=9, heartbeat_s=3, drain_window_s=5)

    def graphs(self, outside: Outside) -> list[Any]:
        """Return its graphs."""
        acts = Acts(outside)
        small = small_graphs(acts)
        return [order_graph(acts, small[0]), *small]

    async def play(self, stage: Stage) -> dict[str, Any]:
        """Start all kinds of runs over half a minute, be the people, return the results."""
        return await Play(stage).run()


class Play:
    """One performance of the default scenario."""

    def __init__(self, stage: Stage) -> None:
        """Take the stage."""
        self._stage = stage
        self._used: list[tuple[str, str, int]] = []
        self._unheard: set[tuple[str, int]] = set()
        self._answers: dict[str, list[tuple[str, int]]] = {}
        self._is_over = False
        self._order, self._child, self._saga, self._endless = stage.graphs

    async def run(self) -> dict[str, Any]:
        """Play it."""
        stage = self._stage
        people = [self._answer_for_ever(), self._decide_for_ever(), self._retry_for_ever()]
        done = await stage.together(self._runs(), *people)
        self._check_answers()  # once more: nobody waits any more for the fate of an answer
        results: dict[str, Any] = done[0]
        return results

    def _check_answers(self) -> None:
        """Check that every answer that a run got is one that its sender knows to be accepted.

        Or does not know yet: whoever said it may still wait to hear of it.
        """
        known = {each for answers in self._answers.values() for each in answers} | self._unheard
        for name, by, value in self._used:
            is_known = (by, value) in known
            require(is_known, f"{name}: its answer {value} by {by} was not accepted")

    async def _runs(self) -> dict[str, Any]:
        pairs = await self._stage.together(
            self._one_order("order 1"),
            self._one_order("order 2", on_worker=True),
            self._queue("queue"),
            self._one_saga("saga"),
            self._one_cancelled("cancelled"),
            *(self._short(f"short {n}") for n in range(4)),
        )
        await self._stage.sleep(3.0)
        await self._until_decided()
        self._is_over = True
        return {name: value for each in pairs for name, value in each.items()}

    async def _start(self, graph: Any, name: str, **given: Any) -> Run:
        await self._stage.pause(25.0)
        return await self._stage.start(graph, {"name": name}, key=name, **given)

    async def _one_order(self, name: str, *, on_worker: bool = False) -> dict[str, Any]:
        stage = self._stage
        run = await self._start(self._order, name, on_worker=on_worker)
        for value in SIGNALS:
            await stage.pause(6.0)
            await run.signal("topic", value)
        state = await stage.result(run)
        self._used += [(name, by, value) for by, value in state.answers]
        self._check_answers()
        for ask, answers in self._answers.items():
            require(
                len(answers) == 1, f"ask {ask}: {len(answers)} answers were accepted: {answers}"
            )
        return {name: (state.turns, state.log, len(state.answers))}

    async def _queue(self, name: str) -> dict[str, Any]:
        stage = self._stage
        runs = []
        for n in range(3):
            await stage.pause(4.0)
            key = f"{name} {n}"
            run = await stage.start(
                self._child, {"name": key}, key=key, thread=name, on_worker=n > 0
            )
            runs.append(run)
        states = [await stage.result(run) for run in runs]
        return {name: [(state.turns, state.log) for state in states]}

    async def _short(self, name: str) -> dict[str, Any]:
        run = await self._start(self._child, name, on_worker=True)
        state = await self._stage.result(run)
        return {name: (state.turns, state.log)}

    async def _one_saga(self, name: str) -> dict[str, Any]:
        run = await self._start(self._saga, name, on_worker=True)
        try:
            await self._stage.result(run)
        except RunFailed as error:
            undone = [self._stage.world.count(f"undo {name} reserve {n}") for n in range(2)]
            return {name: (str(error.fields["type"]), undone)}
        return {name: "did not fail"}

    async def _one_cancelled(self, name: str) -> dict[str, Any]:
        stage = self._stage
        run = await self._start(self._endless, name)
        await stage.pause(8.0)
        await run.cancel(by="ann")
        try:
            await stage.result(run)
        except RunCancelled:
            return {name: "cancelled"}
        return {name: "was not cancelled"}

    # -- people ------------------------------------------------------------------------------------

    async def _for_ever(self, once: Callable[[], Any]) -> None:
        while not self._is_over:
            await self._stage.pause(3.0)
            try:
                await once()
            except StoreError:
                continue  # they look again a little later

    async def _answer_for_ever(self) -> None:
        await self._for_ever(self._answer)

    async def _answer(self) -> None:
        stage = self._stage
        for ask in await stage.runtime.asks():
            if ask.question == "Go on?":
                people = ("ann", "bob")[: stage.random.randint(1, 2)]
                await stage.together(*(self._say(ask.id, by, n) for n, by in enumerate(people)))

    async def _say(self, ask_id: str, by: str, n: int) -> None:
        await self._stage.pause(0.05)
        value = 2 * self._stage.random.randint(1, 1000) + n
        self._unheard.add((by, value))
        try:
            await self._stage.runtime.answer(ask_id, value, by=by)
        except AlreadyAnswered:
            self._unheard.discard((by, value))
            return
        self._unheard.discard((by, value))
        self._answers.setdefault(ask_id, []).append((by, value))

    async def _decide_for_ever(self) -> None:
        await self._for_ever(self._decide)

    async def _decide(self) -> None:
        stage = self._stage
        entries = await stage.runtime.effects("uncertain")
        await stage.sleep(1.0)  # what is on its way arrives
        for entry in entries:
            if entry.decision is None and entry.kind == "once":
                label = str(entry.args[0])
                happened = bool(stage.world.count(label))
                result = f"did {label}" if happened else None
                try:
                    await stage.runtime.resolve(
                        entry.id, happened=happened, result=result, by="ann"
                    )
                except AlreadyDecided:
                    continue

    async def _until_decided(self) -> None:
        while True:
            entries = await self._stage.insist(lambda: self._stage.runtime.effects("uncertain"))
            if all(entry.decision is not None for entry in entries):
                return
            await self._stage.sleep(1.0)

    async def _retry_for_ever(self) -> None:
        await self._for_ever(self._retry)

    async def _retry(self) -> None:
        for row in await self._stage.runtime.runs(status="needs_decision"):
            kind = row.failure.type if row.failure is not None else ""
            known = {"UncertainEffect", "AttemptsExhausted"}
            require(kind in known, f"run {row.run_id} is parked for {row.failure}")
            if kind == "AttemptsExhausted":
                try:
                    await self._stage.runtime.retry(row.run_id, by="ann")
                except (UsageError, RunFinal):
                    continue
