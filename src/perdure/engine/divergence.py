"""What a replay finds: where the code does something else than the journal says, in words."""

from collections import Counter
from enum import StrEnum
from typing import Any

from msgspec import Raw, Struct, field

from perdure.codec import ValueCodec, describe
from perdure.core import fold
from perdure.engine.limits import DIVERGENCES_MAX
from perdure.errors import TypeUnknown
from perdure.model import EffectKind, Failure
from perdure.model import records as rec

SHOWN_CHARS_MAX = 200
"""Longest value in a message; whole ones are in `expected` and `got`."""


class DivergenceKind(StrEnum):
    """In what the code differs from the record."""

    NODE = "node"
    """The graph has no such node any more."""
    OUTCOME = "outcome"
    """It ended in another way: with an error instead of an update, with another error, or not."""
    UPDATE = "update"
    """It wrote another value to a field."""
    NEXT = "next"
    """Another node comes next."""
    ASKED = "asked"
    """It asked for something that is not recorded."""
    NOT_ASKED = "not_asked"
    """It did not ask for something that is recorded."""
    STATE = "state"
    """The stored state does not fit the graph, or a step merged to another value."""


class Divergence(Struct, frozen=True, kw_only=True):
    """One place where the code does something else than the journal says.

    Attributes:
        node: path of the node execution; of a step the scope and number.
        attempt: of the execution; 0 for a step.
        subject: the field, effect, question, topic or graph that it is about; or empty.
        expected: what is recorded, JSON-like.
        got: what the code does now, JSON-like.
        message: the same in words.
    """

    kind: DivergenceKind
    node: str
    attempt: int
    subject: str
    expected: Any
    got: Any
    message: str


class Replay(Struct, frozen=True, kw_only=True):
    """What a replay found.

    Attributes:
        version: of the graph that it was replayed with.
        recorded_version: of the graph that the run is pinned to.
        status: of the run.
        steps: committed steps that were recomputed, those of subgraphs, too.
        nodes: executions that were recomputed, each attempt counted.
        served: how many recorded results were given to nodes, by kind.
        standing: what the executions wait for where the run stands; empty: it has ended.
        divergences: in the order in which they were found, at most `DIVERGENCES_MAX`.
        part: of a run that was moved to another version: which part of it was recomputed, that of
            the version of the graph; empty: all of it.
    """

    run_id: str
    thread: str
    graph: str
    version: int
    recorded_version: int
    status: str
    steps: int
    nodes: int
    served: dict[str, int]
    standing: tuple[str, ...]
    divergences: tuple[Divergence, ...]
    part: str = ""

    @property
    def is_clean(self) -> bool:
        """Whether the code does what the journal says."""
        return not self.divergences


class Report(Struct):
    """What a replay gathers."""

    steps: int = 0
    nodes: int = 0
    served: Counter[str] = field(default_factory=Counter)
    standing: list[str] = field(default_factory=list)
    divergences: list[Divergence] = field(default_factory=list)

    def add(
        self,
        kind: DivergenceKind,
        node: str,
        attempt: int,
        *,
        subject: str = "",
        expected: Any = None,
        got: Any = None,
        message: str,
    ) -> None:
        """Add a divergence, while there are not too many."""
        if len(self.divergences) < DIVERGENCES_MAX:
            self.divergences.append(
                Divergence(
                    kind=kind,
                    node=node,
                    attempt=attempt,
                    subject=subject,
                    expected=plain(expected),
                    got=plain(got),
                    message=message,
                )
            )


# -- words -----------------------------------------------------------------------------------------

EFFECT_KINDS = {kind.value for kind in EffectKind}

SERVED_AS = {
    "ask": "answers",
    "receive": "signals",
    "timer": "timers",
    "child": "children",
    "note": "times",
}
"""What a recorded act counts as, by its kind; the others are effects."""


def kind_of(call: fold.Call) -> str:
    """Return what kind of act a recorded one is: effect, ask, receive, timer, child or note."""
    return "effect" if call.kind in EFFECT_KINDS else call.kind


def subject_of(call: fold.Call) -> str:
    """Return what a recorded act is called by people."""
    started = call.started
    if call.kind == "ask":
        return str(started.question)
    if call.kind == "receive":
        return str(started.topic)
    if call.kind == "child":
        return str(started.graph)
    return "" if call.kind in {"timer", "note"} else call.name


def asked_with(call: fold.Call) -> Any:
    """Return what a recorded act was asked with, where the journal keeps it."""
    if isinstance(call.started, rec.EffectIntended):
        args, kwargs = describe(call.started.request)
        return request_of(args, kwargs)
    return subject_of(call) or None


def request_of(args: list[Any], kwargs: dict[str, Any]) -> Any:
    """Return the arguments of an effect, JSON-like: `[args, kwargs]` only where there are both."""
    return [args, kwargs] if kwargs else args


def call_words(call: fold.Call) -> str:
    """Return a recorded act in words."""
    request = asked_with(call) if isinstance(call.started, rec.EffectIntended) else None
    return act_words(kind_of(call), subject_of(call), request)


def act_words(kind: str, subject: str, request: Any) -> str:
    """Return an act in words; `request`: of an effect, None where it is not known."""
    if kind == "effect":
        return f"effect {subject}" + ("" if request is None else shortened(f" with {request!r}"))
    words = {
        "ask": "the question",
        "receive": "signal",
        "child": "a child run of",
        "timer": "a sleep",
        "note": "ctx.now()",
    }
    return f"{words[kind]} {subject}".rstrip()


def update_of(record: rec.NodeFinished) -> dict[str, Any]:
    """Return an update, JSON-like."""
    return {name: describe(raw) for name, (_op, raw) in record.writes.items()}


def specs_of(specs: list[rec.TaskSpec] | None) -> list[Any] | None:
    """Return what comes next, JSON-like: names, for a fan-out with arguments."""
    if specs is None:
        return None
    return [[s.node, describe(s.argument)] if s.is_sent else s.node for s in specs]


def is_same(codec: ValueCodec, a: Raw | None, b: Raw | None) -> bool:
    """Return whether two encoded values are equal and of equal types; the order of maps is none."""
    if a is None or b is None:
        return a is b
    if bytes(a) == bytes(b):
        return True
    try:
        return _canonical(codec, a) == _canonical(codec, b)
    except TypeUnknown:  # the class is gone: what it holds can be compared without it
        return bool(describe(a) == describe(b))


def _canonical(codec: ValueCodec, raw: Raw) -> bytes:
    return codec.canonical(codec.decode(raw))


def is_same_write(codec: ValueCodec, a: tuple[str, Raw] | None, b: tuple[str, Raw] | None) -> bool:
    """Return whether two writes do the same to a field."""
    if a is None or b is None:
        return a is b
    return a[0] == b[0] and is_same(codec, a[1], b[1])


def is_same_way(
    codec: ValueCodec, a: list[rec.TaskSpec] | None, b: list[rec.TaskSpec] | None
) -> bool:
    """Return whether the same executions come next, with the same arguments."""
    if a is None or b is None:
        return a is b
    pairs = zip(a, b, strict=False)
    return len(a) == len(b) and all(
        (one.node, one.index) == (other.node, other.index)
        and is_same(codec, one.argument, other.argument)
        for one, other in pairs
    )


def plain(value: Any) -> Any:
    """Return a value as JSON-like data."""
    if isinstance(value, Raw):
        return describe(value)
    if isinstance(value, Failure):
        return {"type": value.type, "message": value.message}
    if isinstance(value, dict):
        return {str(name): plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value if value is None or isinstance(value, str | int | float) else repr(value)


def shown(raw: Raw | None) -> str:
    """Return an encoded value as one short text."""
    return "nothing" if raw is None else shortened(repr(describe(raw)))


def names(specs: list[Any] | None, none: str) -> str:
    """Return what comes next as one short text; `none`: what an empty list means."""
    return shortened(", ".join(map(str, specs))) if specs else none


def shortened(text: str) -> str:
    """Return a text that is not too long for a message."""
    return text if len(text) <= SHOWN_CHARS_MAX else text[: SHOWN_CHARS_MAX - 1] + "…"
