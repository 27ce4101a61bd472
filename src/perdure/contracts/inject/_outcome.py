"""What a trial came to, what contract needs what, and what can be done to a deployment."""

from dataclasses import dataclass
from enum import StrEnum

from perdure.contracts.findings import Contract
from perdure.contracts.inject.engines import Feature
from perdure.contracts.inject.probes import Ability
from perdure.errors import SettingInvalid


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The outcome of a valid trial; `text`: one sentence about what became of a user's work."""

    holds: bool
    text: str


class Event(StrEnum):
    """What is done to a deployment, by the names that a command knows."""

    RESTART = "restart"
    REPLACE = "replace"
    STOP = "stop"
    KILL = "kill"
    MEMORY = "memory"
    UPDATE = "update"
    ABSENT = "absent"
    LATE = "late"
    LOST = "lost"
    SCALE = "scale"


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """What a contract's trial breaks, and what it needs of engine and probe."""

    kind: Event
    event: str
    """What is done to the deployment, in words."""
    features: frozenset[Feature] = frozenset()
    abilities: frozenset[Ability] = frozenset()
    outside: bool = False
    """Whether it counts effects at the scripted outside."""


_RUN = frozenset({Ability.RUN})
_THREAD = frozenset({Ability.RUN, Ability.THREAD})
_MOUNTS = frozenset({Feature.MOUNTS})

NEEDS: dict[Contract, Need] = {
    Contract.S0: Need(
        kind=Event.ABSENT, event="its database is not there when it starts", features=_MOUNTS
    ),
    Contract.S1: Need(
        kind=Event.RESTART, event="it is stopped and started again", abilities=_THREAD
    ),
    Contract.S2: Need(
        kind=Event.REPLACE,
        event="its container is replaced by a new one",
        features=_MOUNTS,
        abilities=_THREAD,
    ),
    Contract.S3: Need(
        kind=Event.SCALE, event="it is scaled to two", features=_MOUNTS, abilities=_THREAD
    ),
    Contract.S4: Need(kind=Event.LATE, event="its database is late", features=_MOUNTS),
    Contract.R1: Need(
        kind=Event.STOP, event="it is stopped while a run is under way", abilities=_RUN
    ),
    Contract.R2: Need(kind=Event.STOP, event="it is stopped"),
    Contract.R3: Need(
        kind=Event.KILL, event="it is killed in the middle of a run", abilities=_THREAD
    ),
    Contract.R4: Need(kind=Event.KILL, event="its server is killed from outside"),
    Contract.R5: Need(kind=Event.UPDATE, event="it is updated while requests come"),
    Contract.R6: Need(
        kind=Event.KILL,
        event="it is killed between an effect and its checkpoint",
        abilities=_RUN,
        outside=True,
    ),
    Contract.R7: Need(
        kind=Event.KILL, event="it is killed in the middle of a run, and started", abilities=_RUN
    ),
    Contract.R8: Need(
        kind=Event.MEMORY,
        event="as many runs as it takes at once are started",
        features=frozenset({Feature.MEMORY}),
        abilities=_RUN,
    ),
    Contract.C1: Need(
        kind=Event.KILL,
        event="it is killed while it holds a resource",
        abilities=frozenset({Ability.RESOURCE}),
    ),
    Contract.C2: Need(
        kind=Event.REPLACE,
        event="it is replaced in the middle of a stream",
        features=_MOUNTS,
        abilities=frozenset({Ability.RUN, Ability.STREAM}),
    ),
}
"""By contract. What an engine or probe lacks makes the verdict inconclusive, with that reason."""

OTHERS: dict[tuple[Contract, Event], Need] = {
    (Contract.S4, Event.LOST): Need(
        kind=Event.LOST, event="its database is stopped and started again while it serves"
    ),
}
"""What else can be done about a contract, if it is asked for by name."""


def need_of(contract: Contract, event: Event | None) -> Need:
    """Return what a trial does and needs; `None`: what the contract is proved by.

    Raises:
        SettingInvalid: the contract is not about this event.
    """
    usual = NEEDS[contract]
    if event is None or event is usual.kind:
        return usual
    if (contract, event) in OTHERS:
        return OTHERS[contract, event]
    known = [usual.kind, *(other for of, other in OTHERS if of is contract)]
    msg = f"{contract} is not about the event {str(event)!r}; it knows {' and '.join(known)}"
    raise SettingInvalid(msg, contract=str(contract), event=str(event))
