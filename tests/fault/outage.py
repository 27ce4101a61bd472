"""Outages by hand: `python -m tests.fault.outage --runs 200 --kills 50 [--faults stop,kill]`.

Runs with effects of every kind on several workers, while the server is crashed and started again,
connections are cut one by one, workers are killed, and workers are stopped for longer than their
lease. Nothing may be lost, nothing doubled, everything finished.
"""

import argparse
import asyncio
import contextlib
import json
import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from perdure import EffectState, Runtime, WorkerSettings
from perdure.errors import UsageError
from perdure.testing.postgres import PostgresServer
from tests.fault import actors
from tests.fault.faults import KINDS, Storm, Workers
from tests.fault.proxy import ProxyProcess
from tests.fault.stage import Stage
from tests.fault.stores import PostgresDoor, postgres_url
from tests.fault.storm import TOTAL, expected_acts, storm

SETTINGS = WorkerSettings(lease_ttl_s=3.0, heartbeat_s=0.75, drain_window_s=5.0, concurrency=16)
ALL = (*KINDS, "lose")
WRONG = ("lost", "doubled", "strange", "open_effects", "wrong")


def outage(
    place: Path,
    *,
    runs: int,
    faults: tuple[str, ...] = ALL,
    kills: int = 50,
    workers: int = 4,
    seed: int = 0,
    spread_s: float = 30.0,
    deadline_s: float = 300.0,
    liveness: str = "on",
) -> dict[str, Any]:
    """Execute many runs while faults happen; return what was counted."""
    begun_s = time.monotonic()
    chance = random.Random(seed)  # noqa: S311  # a course that can be repeated
    with PostgresServer() as server:
        plain = {"sslmode": "disable", "gssencmode": "disable", "liveness": liveness}
        url = postgres_url(server, over_tcp=True, **plain)
        stage = Stage(place, "storm", deadline_s=deadline_s, settings=SETTINGS, url=url)
        with stage.family:
            labels = [f"r{number}" for number in range(runs)]
            stage.do("open", _open)
            starting, started = stage.begin("start", lambda r: _start(r, labels, spread_s))
            proxy = ProxyProcess(stage, server.port, seed) if "lose" in faults else None
            family = Workers(stage, workers, proxy.port if proxy else server.port)
            person, finished = stage.begin("person", lambda r: _finish(r, runs))
            weather = Storm(
                server,
                family,
                kinds=tuple(each for each in faults if each in KINDS),
                kills=kills,
                lease_ttl_s=SETTINGS.lease_ttl_s,
                chance=chance,
            )
            while person.poll() is None and stage.family.left_s > 0:
                weather.blow()
                time.sleep(0.005)
            if person.poll() is None:
                family.go_on(all_of_them=True)
                stage.family.show_tasks()
                sys.stdout.write(_unfinished(stage))
            seen = stage.end(person, finished)
            stage.end(starting, started)
            seen |= _counted(stage, labels)
            stops = family.end()  # through the proxy, so before it ends
            return {
                **seen,
                "seed": seed,
                "faults": dict(weather.counts) | (proxy.end() if proxy else {}),
                "late_starts": family.late_starts,
                "stops": stops,
                "drain_s": family.drain_s,
                "seconds": round(time.monotonic() - begun_s, 1),
            }


def _unfinished(stage: Stage) -> str:
    """Return what is known of the runs that did not end in time."""
    sql = (
        "SELECT graph, run_id, status, holder, token, claims, to_timestamp(ready_at_us / 1e6), "
        "to_timestamp(lease_until_us / 1e6), now(), waits, failure FROM @.runs "
        "WHERE ended_at_us IS NULL"
    )
    door = stage.scene.door
    assert isinstance(door, PostgresDoor)
    backends = (
        "SELECT pid, state, wait_event, query FROM pg_stat_activity WHERE wait_event IS NOT NULL"
    )
    lines = [*door.rows(sql), *door.rows(backends)]
    return "".join(f"not over: {row}\n" for row in lines)


def _counted(stage: Stage, labels: list[str]) -> dict[str, list[str]]:
    """Compare what was done outside, and in the user's own table, with what should have been."""
    acts = Counter(stage.counts()["acts"])
    acts.update(f"booked/{label}" for label in stage.scene.door.behind()["booked"])
    expected = expected_acts(labels) | {f"booked/{label}-t" for label in labels}
    return {
        "lost": sorted(expected - acts.keys()),
        "doubled": sorted(name for name, times in acts.items() if times > 1),
        "strange": sorted(acts.keys() - expected),
    }


async def _open(_runtime: Runtime) -> None:
    """Make the schema before anything happens."""


async def _start(runtime: Runtime, labels: list[str], spread_s: float) -> None:
    for label in labels:
        run = await runtime.start(storm, {"label": label}, key=label)
        await run.signal("thunder", 1, by="starter")
        await asyncio.sleep(spread_s / len(labels))


async def _finish(runtime: Runtime, runs: int) -> dict[str, Any]:
    """Be the person until all runs have ended: decide, and retry what too many kills parked."""
    counts: Counter[str] = Counter()
    while True:
        rows = await runtime.runs(limit=1000)
        if len(rows) == 2 * runs and all(row.status.is_final for row in rows):
            break
        counts["decided"] += await actors.decide(runtime)
        for row in rows:
            is_parked = row.status == "needs_decision" and row.failure is not None
            if is_parked and row.failure.type == "AttemptsExhausted":
                with contextlib.suppress(UsageError):  # an earlier retry took a while to arrive
                    await runtime.retry(row.run_id, by="person")
                    counts["retried"] += 1
        await asyncio.sleep(0.05)
    return await _look(runtime, rows) | {name: counts[name] for name in ("decided", "retried")}


async def _look(runtime: Runtime, rows: list[Any]) -> dict[str, Any]:
    wrong: list[str] = []
    for row in rows:
        wrong += await actors.broken_rules(runtime, row)
        if row.parent is None and row.status == "succeeded":
            total = (await runtime.state(row.thread)).total
            wrong += [f"{row.run_id}: total is {total}"] if total != TOTAL else []
        elif row.status != "succeeded":
            wrong.append(f"{row.graph} {row.run_id} is {row.status.value}: {row.failure}")
    unconfirmed = [state for state in EffectState if state is not EffectState.CONFIRMED]
    ledger = [effect for state in unconfirmed for effect in await runtime.effects(state)]
    return {
        "runs": len([row for row in rows if row.parent is None]),
        "finished": len([row for row in rows if row.parent is None and row.status == "succeeded"]),
        "takeovers": sum(row.token - 1 for row in rows),
        "open_effects": [effect.id for effect in ledger],
        "wrong": wrong,
    }


def is_fine(seen: dict[str, Any]) -> bool:
    """Return whether nothing was lost, doubled or left."""
    is_whole = seen["finished"] == seen["runs"] and set(seen["stops"]) == {0}
    return is_whole and not any(seen[name] for name in WRONG)


def summary(seen: dict[str, Any]) -> str:
    """Return the figures in one line."""
    faults = ", ".join(f"{count} {kind}" for kind, count in seen["faults"].items())
    counts = ", ".join(f"{len(seen[name])} {name}" for name in WRONG)
    return (
        f"outage: {seen['runs']} runs, {seen['finished']} finished, {counts}; faults: {faults}; "
        f"{seen['takeovers']} claims after the first, {seen['decided']} decisions, "
        f"{seen['retried']} parked and retried, {seen['late_starts']} workers that found no "
        f"server, drained in {seen['drain_s']} s; seed {seen['seed']}, {seen['seconds']} s"
    )


def main() -> int:
    """Run it and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--spread-s", type=float, default=30.0, help="how long runs are started")
    parser.add_argument("--deadline-s", type=float, default=300.0)
    parser.add_argument("--faults", default=",".join(ALL), help="of: lose, " + ", ".join(KINDS))
    parser.add_argument("--liveness", choices=("on", "off"), default="on")
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(4), "big"))
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--keep", action="store_true", help="keep the folder")
    options = parser.parse_args()
    command = (
        f"python -m tests.fault.outage --runs {options.runs} --kills {options.kills} --workers "
        f"{options.workers} --spread-s {options.spread_s} --faults {options.faults} "
        f"--liveness {options.liveness} --seed {options.seed}"
    )
    sys.stdout.write(f"{command}\n")
    sys.stdout.flush()
    place = Path(tempfile.mkdtemp(prefix="perdure-outage-"))
    seen = outage(
        place,
        runs=options.runs,
        faults=tuple(options.faults.split(",")),
        kills=options.kills,
        workers=options.workers,
        seed=options.seed,
        spread_s=options.spread_s,
        deadline_s=options.deadline_s,
        liveness=options.liveness,
    )
    if options.json:
        options.json.write_text(json.dumps(seen), encoding="utf-8")
    for name in WRONG:
        for each in seen[name]:
            sys.stdout.write(f"{name}: {each}\n")
    sys.stdout.write(summary(seen) + "\n")
    if not is_fine(seen):
        sys.stdout.write(f"it failed; again: {command}\n")
    if options.keep or not is_fine(seen):
        sys.stdout.write(f"kept in {place}\n")
    else:
        shutil.rmtree(place, ignore_errors=True)
    return 0 if is_fine(seen) else 1


if __name__ == "__main__":
    sys.exit(main())
