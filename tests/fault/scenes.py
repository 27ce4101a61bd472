"""Scenes with several real processes: `python -m tests.fault.scenes NAME FOLDER [JSON]`.

A scene prints what it saw as JSON; the tests judge it. It runs apart from pytest, because it forks.

Size: one scene after the other over the same few processes; each is read by itself.
"""

import asyncio
import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from perdure import EffectState, NeedsDecision, Runtime, WorkerSettings
from perdure.engine.loading import read_records
from perdure.errors import ThreadBusy
from tests.fault import actors, small
from tests.fault.injector import Injector, Point
from tests.fault.partitions import partition
from tests.fault.processes import Child
from tests.fault.stage import Stage, finish_all, is_stopped, started_by
from tests.fault.stores import SQLITE

REPLAYS_MAX = 10
KILL_GAP_S = (0.02, 0.25)
"""Shortest and longest time between two kills of the soak."""
ZOMBIE = WorkerSettings(lease_ttl_s=1.0, heartbeat_s=0.2, drain_window_s=3.0)


# -- zombies ---------------------------------------------------------------------------------------


def zombie(
    place: Path,
    *,
    kind: str,
    stopped_at: str,
    nth: int = 1,
    revived: str = "after",
    url: str = SQLITE,
) -> dict[str, Any]:
    """Stop the holder past its lease, let another go on, revive it: what does it still do?

    A process that is stopped in the middle of a commit keeps SQLite's write lock, or the row of its
    run: nobody goes on before it does: such a stop proves nothing, and the scene is played again.

    Args:
        place: where to play.
        kind: of the effects.
        stopped_at: "call" (while the service works on the second effect), or a crash point.
        nth: which time that point is reached.
        revived: "after" the other has finished, or "amid" its work.
        url: of the store.
    """
    for number in range(REPLAYS_MAX):
        stage = Stage(place / str(number), "slow", deadline_s=25.0, settings=ZOMBIE, url=url)
        seen = _zombie(stage, kind, stopped_at, nth, revived)
        if seen is not None:
            return seen
    msg = f"stopped in a commit {REPLAYS_MAX} times"
    raise RuntimeError(msg)


def _zombie(
    stage: Stage, kind: str, stopped_at: str, nth: int, revived: str
) -> dict[str, Any] | None:
    place = stage.scene.place
    with stage.family:
        is_call = stopped_at == "call"
        given = {
            "kind": kind,
            "before_s": 0.4 if is_call else 0.0,
            "after_s": 0.4 if is_call else 0.0,
        }
        run_id = stage.do("start", started_by(small.slow, given))
        injector = None
        if not is_call:
            injector = Injector(place / "points", Point(stopped_at, nth), number=signal.SIGSTOP)
        holder = stage.worker("holder", injector)
        if is_call:
            endpoint = "reading" if kind == "pure" else kind
            stage.until(
                "second call", lambda: stage.counts()["asked"].get(f"{endpoint}/slow-second")
            )
            holder.send(signal.SIGSTOP)
        stage.until("stop", lambda: is_stopped(holder.pid))
        if not stage.scene.door.is_writable():
            return None
        before = stage.counts()["pids"].get(str(holder.pid), 0)
        frames_before = len(stage.journal())
        other = stage.worker("other")
        person, answer = stage.begin("person", finish_all)
        if revived == "amid":
            stage.until("takeover", lambda: len(stage.journal()) > frames_before)
        else:
            stage.end(person, answer)
        frames_done = stage.journal()
        holder.send(signal.SIGCONT)
        if revived == "amid":
            stage.end(person, answer)
            frames_done = stage.journal()
        time.sleep(1.0)
        lived = holder.poll() is None
        counts = stage.counts()
        frames = stage.journal()
        holder_status, other_status = holder.stop(), other.stop()

        async def look(runtime: Runtime) -> dict[str, Any]:
            run = await runtime.get(run_id)
            entries = await read_records(runtime.engine.store, run_id)
            state = await run.result(timeout=5)
            ledger = [effect.state.value for effect in await runtime.effects(None)]
            return {
                "status": await run.status(),
                "log": state.log,
                "ledger": ledger,
                "tokens": [frame.token for _seq, frame, _record in entries],
            }

        return {
            **stage.do("look", look),
            "acts": counts["acts"],
            "asked_by_zombie": counts["pids"].get(str(holder.pid), 0) - before,
            "written_after_end": len(frames) - len(frames_done),
            "lived": lived,
            "stops": [holder_status, other_status],
        }


# -- two processes, one thread ---------------------------------------------------------------------


def two_writers(
    place: Path, *, on_busy: str, at_once: bool, number: int = 100, url: str = SQLITE
) -> dict[str, Any]:
    """Let two processes increment the same thread."""
    stage = Stage(place, "count", deadline_s=60.0, settings=actors.SETTINGS, url=url)
    with stage.family:
        answers = [place / f"writer-{n}.json" for n in range(2)]

        async def write(answer: Path) -> None:
            async with stage.scene.runtime(worker=True) as runtime:
                seen = await _increments(runtime, on_busy=on_busy, at_once=at_once, number=number)
            _write(answer, seen)

        children = [
            stage.family.fork(f"writer-{n}", lambda answer=answer: write(answer))
            for n, answer in enumerate(answers)
        ]
        for child in children:
            if child.wait(stage.family.left_s) != 0:
                msg = f"{child.name}: {child.status}\n{stage.family.logs()}"
                raise RuntimeError(msg)

        async def look(runtime: Runtime) -> dict[str, Any]:
            state = await runtime.state("t")
            rows = await runtime.runs(limit=1000)
            return {
                "total": state.total,
                "seen": state.seen,
                "runs": [row.status.value for row in rows],
            }

        parts = [json.loads(answer.read_text(encoding="utf-8")) for answer in answers]
        return {**stage.do("look", look), "parts": parts}


def _write(answer: Path, seen: Any) -> None:
    answer.write_text(json.dumps(seen), encoding="utf-8")


async def _increments(
    runtime: Runtime, *, on_busy: str, at_once: bool, number: int
) -> dict[str, int]:
    seen = {"accepted": 0, "refused": 0}

    async def one() -> None:
        try:
            run = await runtime.start(small.count, {"total": 1}, thread="t", on_busy=on_busy)
        except ThreadBusy:
            seen["refused"] += 1
            return
        seen["accepted"] += 1
        await run.result(timeout=50)

    if at_once:
        await asyncio.gather(*(one() for _ in range(number)))
    else:
        for _ in range(number):
            await one()
    return seen


# -- poison ----------------------------------------------------------------------------------------


def poisoned(place: Path, *, url: str = SQLITE) -> dict[str, Any]:
    """Start workers until the run that kills them is parked; repair it, and let it go on."""
    stage = Stage(place, "poison", deadline_s=40.0, settings=actors.SETTINGS, url=url)
    with stage.family:
        fixed = place / "fixed"
        run_id = stage.do("start", started_by(small.poison, {"fixed": str(fixed)}))
        deaths = 0

        async def status(runtime: Runtime) -> dict[str, Any]:
            row = await runtime.read_row(run_id)
            failure = row.failure.type if row.failure else ""
            message = row.failure.message if row.failure else ""
            return {"status": row.status.value, "failure": failure, "message": message}

        while deaths < 20:
            worker = stage.worker(f"worker-{deaths}")
            parked: dict[str, Any] = {}

            def is_done(worker: Child = worker, parked: dict[str, Any] = parked) -> bool:
                parked.update(stage.do("status", status))
                return worker.poll() is not None or parked["status"] == "needs_decision"

            stage.until("parked or dead", is_done)
            if worker.poll() is None:
                break
            deaths += 1
        stop = worker.stop()

        async def attempts(runtime: Runtime) -> dict[str, Any]:
            entries = await read_records(runtime.engine.store, run_id)
            claims = [
                record.claims for _s, _f, record in entries if type(record).__name__ == "LeaseTaken"
            ]
            try:
                await (await runtime.get(run_id)).result(timeout=5)
            except NeedsDecision as error:
                reason = str(error)
            fixed.touch()
            await runtime.retry(run_id, by="person")
            return {"claims": claims, "reason": reason}

        seen = stage.do("attempts", attempts)
        worker = stage.worker("repaired")

        async def finish(runtime: Runtime) -> list[str]:
            log: list[str] = (await (await runtime.get(run_id)).result(timeout=20)).log
            return log

        log = stage.do("finish", finish)
        return {
            **seen,
            **parked,
            "deaths": deaths,
            "log": log,
            "acts": stage.counts()["acts"],
            "stops": [stop, worker.stop()],
        }


# -- drain -----------------------------------------------------------------------------------------


def drain(
    place: Path, *, kind: str, call_s: float, window_s: float, url: str = SQLITE
) -> dict[str, Any]:
    """Send SIGTERM to a worker while an effect is under way and another run waits."""
    settings = WorkerSettings(lease_ttl_s=30.0, heartbeat_s=5.0, drain_window_s=window_s)
    stage = Stage(place, "slow", deadline_s=40.0, settings=settings, url=url)
    with stage.family:
        given = {"kind": kind, "before_s": call_s, "after_s": 0.0}
        run_id = stage.do("start", started_by(small.slow, given))
        waiting = stage.do("start", started_by(small.rest, {}))
        worker = stage.worker("worker")
        stage.until("second call", lambda: stage.counts()["asked"].get(f"{kind}/slow-second"))
        begun_s = time.monotonic()
        status = worker.stop(timeout_s=window_s * 2 + 10)
        took_s = time.monotonic() - begun_s

        async def rows(runtime: Runtime) -> list[Any]:
            return [[row.run_id, row.status.value, row.holder] for row in await runtime.runs()]

        between = {run: [state, holder] for run, state, holder in stage.do("rows", rows)}

        async def tell(runtime: Runtime) -> None:
            await runtime.signal(waiting, "tell", "told")

        stage.do("tell", tell)
        begun_s = time.monotonic()
        other = stage.worker("other")
        stage.do("finish", finish_all)
        finish_s = time.monotonic() - begun_s
        counts = stage.counts()
        return {
            "status": status,
            "took_s": took_s,
            "finish_s": finish_s,
            "run": between[run_id],
            "waiting": between[waiting],
            "acts": counts["acts"],
            "asked": counts["asked"],
            "stops": [other.stop()],
        }


# -- soak ------------------------------------------------------------------------------------------


def soak(
    place: Path,
    *,
    runs: int,
    kills: int,
    workers: int = 3,
    seed: int = 0,
    deadline_s: float = 300.0,
    url: str = SQLITE,
) -> dict[str, Any]:
    """Execute many runs over several workers, killed at random moments and replaced."""
    chance = random.Random(seed)  # noqa: S311  # a course that can be repeated
    settings = WorkerSettings(lease_ttl_s=5.0, heartbeat_s=1.0, drain_window_s=5.0, concurrency=16)
    stage = Stage(place, "soak", deadline_s=deadline_s, settings=settings, url=url)
    begun_s = time.monotonic()
    with stage.family:

        async def start(runtime: Runtime) -> None:
            async def one(number: int) -> None:
                await runtime.start(small.soak, {"label": f"s{number}"}, key=f"s{number}")

            for number in range(runs):
                await one(number)
                await asyncio.sleep(KILL_GAP_S[1] * kills / runs)  # so that all kills meet work

        starter, started = stage.begin("start", start)
        holders = [stage.worker(f"worker-{n}") for n in range(workers)]
        person, finished = stage.begin("person", lambda runtime: _finish_soak(runtime, runs))
        killed = 0
        while person.poll() is None:
            time.sleep(chance.uniform(*KILL_GAP_S))
            if killed < kills and person.poll() is None:
                victim = chance.randrange(workers)
                holders[victim].kill()
                killed += 1
                holders[victim] = stage.worker(f"worker-{workers + killed}")
        stage.end(starter, started)
        seen = stage.end(person, finished)
        acts = stage.counts()["acts"]
        expected = {
            f"{endpoint}/s{number}-{part}"
            for number in range(runs)
            for endpoint, part in [("keyed", "a"), ("lookup", "b"), ("once", "c")]
            + [("keyed", f"d{n}") for n in range(3)]
        }
        return {
            **seen,
            "seed": seed,
            "kills": killed,
            "seconds": round(time.monotonic() - begun_s, 1),
            "lost": sorted(expected - acts.keys()),
            "doubled": sorted(name for name, times in acts.items() if times > 1),
            "strange": sorted(acts.keys() - expected),
            "stops": [holder.stop() for holder in holders],
        }


async def _finish_soak(runtime: Runtime, runs: int) -> dict[str, Any]:
    """Be the person until all runs have ended: decide, and retry what too many kills parked."""
    retried = decided = 0
    while True:
        rows = await runtime.runs(limit=1000)
        if len(rows) >= runs and all(row.status.is_final for row in rows):
            break
        decided += await actors.decide(runtime)
        for row in rows:
            if (
                row.status == "needs_decision"
                and row.failure
                and row.failure.type == "AttemptsExhausted"
            ):
                await runtime.retry(row.run_id, by="person")
                retried += 1
        await asyncio.sleep(0.05)
    wrong: list[str] = []
    totals = []
    for row in rows:
        wrong += await actors.broken_rules(runtime, row)
        totals.append((await runtime.state(row.thread)).total)
    unconfirmed = [state for state in EffectState if state is not EffectState.CONFIRMED]
    ledger = [effect for state in unconfirmed for effect in await runtime.effects(state)]
    return {
        "runs": len(rows),
        "statuses": sorted({row.status.value for row in rows}),
        "totals": sorted(set(totals)),
        "takeovers": sum(row.token - 1 for row in rows),
        "retried": retried,
        "decided": decided,
        "open_effects": [effect.id for effect in ledger],
        "wrong": wrong,
    }


SCENES: dict[str, Callable[..., dict[str, Any]]] = {
    "zombie": zombie,
    "two_writers": two_writers,
    "poisoned": poisoned,
    "drain": drain,
    "soak": soak,
    "partition": partition,
}


def main() -> int:
    """Play the scene that is named, in the folder that is named."""
    options = json.loads(sys.argv[3]) if len(sys.argv) > 3 else {}
    place = Path(sys.argv[2])
    seen = SCENES[sys.argv[1]](place, **options)
    (place / "seen.json").write_text(json.dumps(seen), encoding="utf-8")
    sys.stdout.write(json.dumps(seen) + "\n")
    return 0


if __name__ == "__main__":
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    sys.exit(main())
