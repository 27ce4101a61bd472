"""What applications say of themselves in their logs: their own evidence of a signal and a drain.

A stop that is quick proves nothing: a shell that dies of the signal ends the container just as
fast, and the application beside it is killed. So only lines that the application itself wrote
count.
"""

import json
import re

from perdure.contracts.inject import limits
from perdure.contracts.inject.probes import Said

STARTED = re.compile(
    r"Started server process \[\d+\]"  # uvicorn
    r"|Starting gunicorn [\d.]+"
    r"|Running on http\S* \(CTRL \+ C to quit\)"  # hypercorn
    r"|Application started up in [\d.]+s"  # langgraph-api
    r"|^ready: worker "  # perdure worker
)
STOPPING = re.compile(
    r"\bINFO:?\s+(?:\[[^\]]*\]\s*)?Shutting down$"  # uvicorn
    r"|Handling signal: (?:term|quit|int)$"  # gunicorn's master
    r"|Warm shutdown \(MainProcess\)"  # celery
    r"|Shutting down background workers"  # langgraph-api
    r"|\bdraining \d+ runs? \("  # perdure worker
)
DRAINED = re.compile(
    r"Finished server process \[\d+\]"  # uvicorn
    r"|Shutting down: Master$"  # gunicorn
    r"|Shutting down remote graphs"  # langgraph-api, behind its workers
    r"|\bdrained; every lease is released$"  # perdure worker
)
OWN = {"started": "started", "stop_signal": "stopping", "drained": "drained"}
"""Events of the line protocol for applications that are written to be tested."""


def read_log(log: str) -> Said:
    """Return what a log says of starts, stop signals and drains.

    Known are uvicorn, gunicorn, hypercorn, celery, Perdure, and lines `{"event": "started"}`,
    `{"event": "stop_signal"}` and `{"event": "drained"}`. A drain counts only after a signal.
    """
    found: list[tuple[str, str]] = []
    for line in log[-limits.LOG_BYTES_MAX :].splitlines():
        kind = _kind(line.strip())
        if kind:
            found.append((kind, line.strip()[: limits.LINE_CHARACTERS_MAX]))
    kinds = [kind for kind, _ in found]
    return Said(
        started=kinds.count("started"),
        stop_signals=kinds.count("stopping"),
        drained="stopping" in kinds and "drained" in kinds[kinds.index("stopping") :],
        lines=tuple(line for _, line in found[-limits.SAID_LINES_MAX :]),
    )


def _kind(line: str) -> str | None:
    if line.startswith("{"):
        try:
            event = json.loads(line[: limits.LINE_CHARACTERS_MAX]).get("event")
        except (ValueError, AttributeError, RecursionError):
            return None
        return OWN.get(event) if isinstance(event, str) else None
    patterns = {"started": STARTED, "stopping": STOPPING, "drained": DRAINED}
    return next((kind for kind, known in patterns.items() if known.search(line)), None)
