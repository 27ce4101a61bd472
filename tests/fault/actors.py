"""What the processes of a scenario do: workers, starter, person, observer."""

import asyncio
import contextlib
import json
import logging
import signal
from collections import Counter
from dataclasses import asdict, dataclass, field, is_dataclass
from pathlib import Path
from typing import Any

from perdure import Runtime, WorkerSettings
from perdure.clock import Services, SystemClock, SystemIds, SystemRng
from perdure.engine.loading import read_records
from perdure.errors import AlreadyAnswered, AlreadyDecided, RunFinal
from perdure.model import records as rec
from tests.fault import reference, small, storm
from tests.fault.injector import Injector
from tests.fault.outside import OUTSIDE
from tests.fault.stores import Door, door_of, resolved

try:
    from perdure.sandbox import DirectorySandboxes
except ImportError:  # until that room has a backend, five kinds are swept
    DirectorySandboxes = None  # type: ignore[assignment,misc]

THREAD, KEY = "t", "k"
LOOK_S = 0.01
SETTINGS = WorkerSettings(lease_ttl_s=3.0, heartbeat_s=0.5, drain_window_s=3.0)
HAS_SANDBOX = DirectorySandboxes is not None


@dataclass(frozen=True, slots=True)
class Scene:
    """Where a scenario plays, and what it plays.

    Attributes:
        url: of the store; see `stores`.
        play: name of the graph.
        port: of the service.
    """

    place: Path
    url: str
    play: str
    port: int
    settings: WorkerSettings = field(default=SETTINGS)

    @property
    def store_url(self) -> str:
        """The URL of the scenario's own store."""
        return resolved(self.url, self.place)

    @property
    def door(self) -> Door:
        """The back door of the store."""
        return door_of(self.store_url)

    def runtime(self, *, worker: bool, injector: Injector | None = None) -> Runtime:
        """Return a runtime on the scenario's store."""
        OUTSIDE.port = self.port
        OUTSIDE.mark = self.door.mark
        probe = injector or (lambda _name: None)
        if injector is not None:
            OUTSIDE.is_chosen = injector.is_chosen
        services = Services(clock=SystemClock(), rng=SystemRng(), ids=SystemIds(), probe=probe)
        return Runtime.open(
            self.store_url,
            graphs=[*reference.GRAPHS, *small.GRAPHS, *storm.GRAPHS],
            worker=self.settings if worker else False,
            services=services,
            sandbox=self.sandboxes(probe),
        )

    def sandboxes(self, probe: Any = None) -> Any:
        """Return the backend of the sandboxes, if there is one."""
        if DirectorySandboxes is None:
            return None
        return DirectorySandboxes(self.place / "sandboxes", **({"probe": probe} if probe else {}))


async def start(runtime: Runtime, scene: Scene) -> str:
    """Start the run (once, by its key) and send the signal early."""
    graph = next(graph for graph in reference.GRAPHS if graph.name == scene.play)
    more = {"with_sandbox": HAS_SANDBOX} if scene.play == "order" else {}
    given = graph.state_type(label=scene.play, **more)
    run = await runtime.start(graph, given, thread=THREAD, key=KEY)
    if scene.play == "order":
        with contextlib.suppress(RunFinal):
            await run.signal("go", "gone", by="starter")
    return run.id


async def starter(scene: Scene, injector: Injector | None) -> None:
    """Start the run from a process that executes nothing."""
    async with scene.runtime(worker=False, injector=injector) as runtime:
        await start(runtime, scene)


async def worker(scene: Scene, injector: Injector | None, *, starts: bool = False) -> None:
    """Execute runs until SIGTERM."""
    logging.basicConfig(level=logging.INFO)
    ending = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ending.set)
    async with scene.runtime(worker=True, injector=injector) as runtime:
        if starts:
            await start(runtime, scene)
        await ending.wait()


async def person(scene: Scene, injector: Injector | None) -> None:
    """Answer, decide by the service's truth, cancel what is to be undone; until the end."""
    has_cancelled = scene.play != "undo"
    async with scene.runtime(worker=False, injector=injector) as runtime:
        while not await _is_over(runtime):
            await _answer(runtime)
            await decide(runtime)
            has_cancelled = has_cancelled or await _cancel(runtime)
            await asyncio.sleep(LOOK_S)


async def _is_over(runtime: Runtime) -> bool:
    rows = await runtime.runs(limit=1000)
    return bool(rows) and all(row.status.is_final for row in rows)


async def _answer(runtime: Runtime) -> None:
    for ask in await runtime.asks():
        if ask.expires_at is None:
            with contextlib.suppress(AlreadyAnswered):
                await runtime.answer(ask.id, True, by="person")


async def decide(runtime: Runtime) -> int:
    """Decide what nobody knows by the service's truth; return how many effects that were."""
    decided = 0
    for effect in await runtime.effects("uncertain"):
        if effect.kind != "once" or effect.decided_by:
            continue  # the runtime's own business, or done
        label = effect.args[0]
        happened = (await OUTSIDE.truth())["acts"].get(f"once/{label}", 0) > 0
        result = f"once:{label}" if happened else None
        with contextlib.suppress(AlreadyDecided):
            await runtime.resolve(effect.id, happened=happened, result=result, by="person")
            decided += 1
    return decided


async def _cancel(runtime: Runtime) -> bool:
    """Cancel the parent once it and its child stand still; return whether that was done."""
    rows = await runtime.runs()
    if len(rows) < 2 or any(row.status != "waiting" for row in rows):
        return False
    parent = next(row for row in rows if row.parent is None)
    await runtime.cancel(parent.run_id, compensate=True, by="person")
    return True


# -- looking at the end ----------------------------------------------------------------------------


async def observer(scene: Scene) -> None:
    """Write down what anybody can see when all is over."""
    async with scene.runtime(worker=False) as runtime:
        seen = await observe(runtime, scene)
    (scene.place / "seen.json").write_text(json.dumps(seen, default=str), encoding="utf-8")


async def observe(runtime: Runtime, scene: Scene) -> dict[str, Any]:
    """Return what is equal with and without a crash, and what is wrong by itself (`wrong`)."""
    rows = sorted(await runtime.runs(limit=1000), key=lambda row: row.graph)
    wrong: list[str] = []
    for row in rows:
        wrong += await broken_rules(runtime, row)
    truth = await OUTSIDE.truth()
    once = {name: n for name, n in truth["asked"].items() if name.startswith("once/")}
    wrong += [
        f"{name} was asked {n} times" for name, n in once.items() if n != truth["acts"].get(name)
    ]
    ledger = await runtime.effects(None)
    asks = await runtime.asks(open=False)
    return {
        "runs": {row.graph: row.status.value for row in rows},
        "states": {row.graph: await _state(runtime, row) for row in rows},
        "acts": truth["acts"],
        "ledger": sorted(
            [e.name, str(e.args[0]), e.kind.value, e.state.value, e.result] for e in ledger
        ),
        "asks": sorted([a.question, a.state.value, a.answered_by or "", a.value] for a in asks),
        "behind": scene.door.behind(),
        "files": _files(scene),
        "wrong": wrong,
    }


async def _state(runtime: Runtime, row: Any) -> Any:
    if row.checkpoint == 0:
        return None
    state = await runtime.state(row.thread)
    return asdict(state) if is_dataclass(state) else state  # type: ignore[arg-type]


def _files(scene: Scene) -> dict[str, str]:
    backend = scene.sandboxes()
    if backend is None:
        return {}
    tree = backend.open("default", THREAD).path
    return {
        str(path.relative_to(tree)): path.read_text(encoding="utf-8")
        for path in sorted(tree.rglob("*"))
        if path.is_file()
    }


ONCE_EACH = {
    rec.EffectConfirmed: "effect_id",
    rec.NodeFinished: "task",
    rec.AskAnswered: "ask_id",
    rec.AskLapsed: "ask_id",
    rec.Asked: "ask_id",
    rec.TimerSet: "call_id",
    rec.TimerFired: "call_id",
    rec.SignalConsumed: "call_id",
    rec.Spawned: "call_id",
    rec.ChildEnded: "call_id",
}
"""Records that are written at most once for each value of these fields."""


async def broken_rules(runtime: Runtime, row: Any) -> list[str]:
    """Return what is wrong with a run's journal; reading it checks seq and hash chain."""
    entries = await read_records(runtime.engine.store, row.run_id)
    wrong: list[str] = []
    seqs = [seq for seq, _frame, _record in entries]
    if seqs != list(range(1, row.last_seq + 1)):
        wrong.append(f"{row.graph}: seqs are {seqs}, the row says {row.last_seq}")
    tokens = [frame.token for _seq, frame, _record in entries]
    if tokens != sorted(tokens):
        wrong.append(f"{row.graph}: tokens are {tokens}")
    counts: Counter[tuple[str, str]] = Counter()
    for _seq, _frame, record in entries:
        name = ONCE_EACH.get(type(record))
        if name is not None and getattr(record, "kind", "") != "contained":
            counts[type(record).__name__, getattr(record, name)] += 1
    wrong += [
        f"{row.graph}: {n} times {what} {which}" for (what, which), n in counts.items() if n > 1
    ]
    steps = [
        r.checkpoint for _s, _f, r in entries if isinstance(r, rec.StepCommitted) and r.scope == ""
    ]
    if steps != list(range(1, len(steps) + 1)):
        wrong.append(f"{row.graph}: checkpoints are {steps}")
    ends = [seq for seq, _frame, record in entries if isinstance(record, rec.RunEnded)]
    if ends != [row.last_seq]:
        wrong.append(f"{row.graph}: ended at {ends} of {row.last_seq}")
    return wrong
