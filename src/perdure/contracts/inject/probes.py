"""How a trial talks to an application: the protocol of probes.

A probe knows one kind of application. A trial never speaks to the application itself: it asks the
probe to start a run, to tell a thread's state, to answer a question. The probe keeps no state of
its own between calls that matters: each call names the instance it is for, because instances die,
move to other ports and are two at times.

A call that does not get an answer (refused, reset, timed out, an answer that is no answer) raises
`ProbeFailed`. That is an observation, not an end: a trial breaks applications on purpose.

What a probe can't do it leaves out of `abilities`; a contract that needs it is inconclusive with
it.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from perdure.contracts.inject._failed import ProbeFailed

__all__ = [
    "Ability",
    "Interrupt",
    "Probe",
    "ProbeFailed",
    "Run",
    "RunState",
    "Said",
    "Stream",
    "StreamEvent",
    "Target",
    "Thread",
    "Work",
]


class Ability(StrEnum):
    """What a probe can do; each is one or two methods of `Probe`."""

    RUN = "run"
    """`start` and `run`."""
    THREAD = "thread"
    """`thread`: the state of a thread as it is stored."""
    RESUME = "resume"
    """`resume`: answer an interrupt."""
    MEMORY = "memory"
    """`remember` and `recall`: what is kept across threads."""
    STREAM = "stream"
    """`stream`: events with ids."""
    RESOURCE = "resource"
    """`acquire`: something outside that only one instance may hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One running instance of the application.

    `url` is where it listens, as the trial's host sees it, without a slash at the end; `None`: it
    publishes nothing. `enter` is what to put before an argv so that it is executed inside the
    instance: with its files, environment and network.
    """

    name: str
    url: str | None = None
    enter: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """A run to start, as far as a trial decides over it.

    `thread` is the thread's id, new in each trial unless a trial goes on with one. `operation`
    names the logical operation; step number k (from 1) of the run acts on the outside as
    `OPERATION:k`, once per number however often it is executed. `steps`: how many steps. `step_s`:
    seconds that one step takes at least. `asks`: stop for a person before the last step.
    `payload_bytes`: memory that the run holds while it is executed.
    """

    thread: str
    operation: str
    steps: int = 3
    step_s: float = 0.0
    asks: bool = False
    payload_bytes: int = 0

    def fields(self) -> dict[str, object]:
        """Return what a run is given as its input: all but the thread, by name."""
        return {
            "operation": self.operation,
            "steps": self.steps,
            "step_s": self.step_s,
            "asks": self.asks,
            "payload_bytes": self.payload_bytes,
        }


class RunState(StrEnum):
    """What the application says of a run."""

    RUNNING = "running"
    """Accepted and not ended, executed now or not."""
    INTERRUPTED = "interrupted"
    """It waits for a person."""
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    UNKNOWN = "unknown"
    """The application knows no such run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A run; `steps_done`: how many steps the application says have ended, `None`: it says none."""

    id: str
    state: RunState
    steps_done: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Interrupt:
    """A question that waits for a person."""

    id: str
    value: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Thread:
    """A thread as it is stored.

    `checkpoint` is the id of its newest checkpoint. `steps` is how many steps are stored. `digest`
    is equal for equal contents (messages, values), whoever asks.
    """

    id: str
    checkpoint: str
    steps: int
    digest: str
    interrupts: tuple[Interrupt, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamEvent:
    """One event of a run's stream; `id` as the application sent it, `None`: it sent none."""

    id: str | None
    name: str
    text: str = ""
    is_last: bool = False
    """It says that the run has ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """What came over one connection. `is_cut`: the connection ended before the last event came."""

    events: tuple[StreamEvent, ...]
    is_cut: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """What the application says of itself in its log. Only its own words count.

    `stop_signals`: how often it says that it got SIGTERM (or the stop signal). `drained`: whether
    it says that it finished what was under way, after that. `started`: how often it says that it
    began.
    """

    stop_signals: int = 0
    drained: bool = False
    started: int = 0
    lines: tuple[str, ...] = field(default=())
    """The lines that say so, newest last, for the transcript."""


class Probe(Protocol):
    """How a trial talks to one kind of application.

    Every method may raise `ProbeFailed`. No method waits longer than `timeout_s` seconds, which the
    probe was made with, but for `stream`.
    """

    @property
    def abilities(self) -> frozenset[Ability]:
        """What it can do besides `ready` and `said`."""

    async def ready(self, target: Target) -> bool:
        """Return whether the application itself says that it takes work now."""

    def said(self, log: str) -> Said:
        """Read what the application logged; `log` is all of stdout and stderr, oldest first."""

    async def start(self, target: Target, work: Work) -> Run:
        """Start a run in the background, and return when the application has accepted it.

        Asked again with the same `work` after a failure, the application may start a second one.
        """

    async def run(self, target: Target, run_id: str, thread: str) -> Run:
        """Return what the application says of a run now."""

    async def thread(self, target: Target, thread: str) -> Thread | None:
        """Return a thread as it is stored, `None` if the application knows no such thread."""

    async def resume(self, target: Target, thread: str, interrupt: Interrupt) -> Run:
        """Answer `interrupt` with yes, so that its run goes on; return that run."""

    async def remember(self, target: Target, key: str, value: str) -> None:
        """Keep a value across threads."""

    async def recall(self, target: Target, key: str) -> str | None:
        """Return such a value, `None` if there is none."""

    async def stream(
        self, target: Target, run_id: str, thread: str, *, after: str | None, count: int
    ) -> Stream:
        """Read a run's events over one new connection, until `count` came, the last, or it is cut.

        `after` is the id of the newest event that the client has; sent as `Last-Event-ID`.
        """

    async def acquire(self, target: Target, resource: str) -> bool:
        """Let the instance take a resource for itself; return whether it has it now."""
