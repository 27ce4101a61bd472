"""A worker that does not reach the server any more, while others do."""

import re
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from perdure import Runtime, WorkerSettings
from tests.fault import actors
from tests.fault.proxy import ProxyProcess
from tests.fault.stage import Stage, finish_all
from tests.fault.storm import expected_acts, storm

SETTINGS = WorkerSettings(lease_ttl_s=2.0, heartbeat_s=0.5, drain_window_s=5.0)


def partition(
    place: Path, *, url: str, server_port: int, stall_s: float, runs: int = 20
) -> dict[str, Any]:
    """Cut a worker with many runs off for a while; another one has nothing to do till then."""
    stage = Stage(place, "storm", deadline_s=60.0, settings=SETTINGS, url=url)
    with stage.family:
        labels = [f"p{number}" for number in range(runs)]

        async def start(runtime: Runtime) -> None:
            for label in labels:
                run = await runtime.start(storm, {"label": label}, key=label)
                await run.signal("thunder", 1, by="starter")

        stage.do("start", start)
        proxy = ProxyProcess(stage, server_port)
        far = replace(stage.scene, url=re.sub(r"port=\d+", f"port={proxy.port}", url))
        holder = stage.worker("holder", scene=far)
        stage.until("work", lambda: len(stage.counts()["acts"]) > runs // 2)
        stalled_s = time.monotonic()
        stalled_us = time.time_ns() // 1000
        proxy.stall()
        other = stage.worker("other")
        person, answer = stage.begin("person", finish_all)
        while time.monotonic() < stalled_s + stall_s:
            time.sleep(0.01)
        resumed_s = time.monotonic()
        resumed_us = time.time_ns() // 1000
        proxy.resume()
        stage.end(person, answer)
        time.sleep(0.5)
        late_s = stalled_s + SETTINGS.lease_ttl_s
        times = stage.times()
        taken = stage.scene.door.rows(
            "SELECT min(at_us) FROM @.frames AS f WHERE f.token > 1 AND NOT EXISTS ("
            "SELECT FROM @.frames AS o WHERE o.run_id = f.run_id AND o.token = f.token "
            f"AND o.at_us < {stalled_us}) AND f.at_us BETWEEN {stalled_us} AND {resumed_us}"
        )[0][0]
        acts = stage.counts()["acts"]
        seen = stage.do("look", _look)
        return {
            **seen,
            "asked_when_cut_off": len(
                [pid for pid, at_s in times if pid == holder.pid and late_s < at_s < resumed_s]
            ),
            "asked_by_other": len([pid for pid, _at_s in times if pid == other.pid]),
            "taken_after_s": None if taken is None else round((taken - stalled_us) / 1e6, 3),
            "lost": sorted(expected_acts(labels) - acts.keys()),
            "doubled": sorted(name for name, count in acts.items() if count > 1),
            "booked": sorted(stage.scene.door.behind()["booked"]),
            "lived": holder.poll() is None,
            "stops": [holder.stop(), other.stop()],
        }


async def _look(runtime: Runtime) -> dict[str, Any]:
    rows = await runtime.runs(limit=1000)
    wrong: list[str] = []
    for row in rows:
        wrong += await actors.broken_rules(runtime, row)
    return {"statuses": sorted({row.status.value for row in rows}), "wrong": wrong}
