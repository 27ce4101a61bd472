"""What happened in a run, from its events: progress while it runs, the timeline after it."""

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

BURST_S = 1.0
"""Equal lines that come within this time are shown as one."""

FILINGS = ("file_finding", "file_finding_plainly")


@dataclass
class Story:
    """Follows the events of one run, in order.

    `finished`: node path -> how often it finished; more than once would be repeated work.
    `resent`: uncertain effects that were sent again; `found`: those that the tracker had already.
    """

    trackers: int
    name_of: Callable[[str], str]
    seq: int = 0
    leases: int = 0
    takeovers: int = 0
    holder: str = "nobody"
    distributions: int | None = None
    filed: int = 0
    uncertain: int = 0
    resent: int = 0
    found: int = 0
    asked: int = 0
    finished: Counter[str] = field(default_factory=Counter)
    lines: list[tuple[datetime, str]] = field(default_factory=list)
    _news: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def filings(self) -> int | None:
        """How many filings there will be, once that is known."""
        return None if self.distributions is None else self.distributions * self.trackers

    @property
    def repeated(self) -> list[str]:
        """Nodes that finished more than once."""
        return [path for path, times in self.finished.items() if times > 1]

    def add(self, event: Any) -> None:
        """Take the next event in."""
        self.seq = event.seq
        hear = _HEARD.get(event.kind)
        line = None if hear is None else hear(self, event, event.body)
        if line:
            self.lines.append((event.at, line))
        self._news.set()

    async def until(self, is_so: Callable[[], bool]) -> None:
        """Wait until the events make something so."""
        while not is_so():
            self._news.clear()
            await self._news.wait()

    def tell(self, at: datetime, line: str) -> None:
        """Add a line that is not in the run's journal: what the demo did."""
        self.lines.append((at, line))

    def timeline(self) -> list[tuple[float, str]]:
        """Return (seconds since the first line, line) in order of time.

        Equal lines of one holder within BURST_S become one, with their number.
        """
        ordered = sorted(self.lines, key=lambda line: line[0])
        told: list[tuple[float, str]] = []
        times: Counter[int] = Counter()
        first: dict[str, int] = {}  # line -> its place in `told`, since the last change of holder
        for at, line in ordered:
            at_s = (at - ordered[0][0]).total_seconds()
            if "holds the run" in line:
                first.clear()
            place = first.get(line)
            if place is None or at_s - told[place][0] > BURST_S:
                place = first[line] = len(told)
                told.append((at_s, line))
            times[place] += 1
        return [
            (at_s, line if times[place] == 1 else f"{line} (x{times[place]})")
            for place, (at_s, line) in enumerate(told)
        ]


# -- by kind of event ----------------------------------------------------------------------------


def _started(_story: Story, _event: Any, body: Mapping[str, Any]) -> str:
    return f"run started: graph {body['graph']!r} version {body['version']}"


def _lease(story: Story, _event: Any, body: Mapping[str, Any]) -> str:
    story.leases += 1
    story.takeovers += story.holder != "nobody"  # else it was free: started, or after a wait
    story.holder = f"worker {story.name_of(body['holder'])}"
    return f"{story.holder} holds the run (fencing token {body['token']})"


def _node(story: Story, event: Any, body: Mapping[str, Any]) -> str | None:
    story.finished[event.node] += 1
    written = body["writes"].get("distributions")
    if written is None:
        return None
    story.distributions = len(written[1])
    return f"{story.distributions} distributions found; one inspection each"


def _uncertain(story: Story, _event: Any, body: Mapping[str, Any]) -> str:
    story.uncertain += 1
    return f"{body['name']}: nobody knows whether it happened"


def _intended(story: Story, _event: Any, body: Mapping[str, Any]) -> str | None:
    if body["attempt"] == 1:
        return None
    story.resent += 1
    return f"{body['name']}: sent again under the same key"


def _confirmed(story: Story, _event: Any, body: Mapping[str, Any]) -> str | None:
    story.filed += body["name"] in FILINGS
    if body["via"] != "reconcile":
        return None
    story.found += 1
    return f"{body['name']}: looked up, and it had happened"


def _asked(story: Story, _event: Any, body: Mapping[str, Any]) -> str:
    story.asked += 1
    return f"asked: {body['question'].splitlines()[0]}"


def _answered(_story: Story, _event: Any, body: Mapping[str, Any]) -> str:
    return f"answered by {body['by']}: {body['value']['category']}"


def _released(story: Story, _event: Any, body: Mapping[str, Any]) -> str:
    story.holder = "nobody"
    return f"run released, {body['reason']}: no worker holds it"


def _ended(_story: Story, _event: Any, body: Mapping[str, Any]) -> str:
    return f"run {body['status']}"


_HEARD: dict[str, Callable[[Story, Any, Mapping[str, Any]], str | None]] = {
    "run_started": _started,
    "lease_taken": _lease,
    "node_finished": _node,
    "effect_uncertain": _uncertain,
    "effect_intended": _intended,
    "effect_confirmed": _confirmed,
    "asked": _asked,
    "answered": _answered,
    "released": _released,
    "run_ended": _ended,
}
