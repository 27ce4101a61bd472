"""What a person tells a check with `--assume`: settings, and facts of the platform.

A key in capitals is a setting, as the environment has it. The keys of `FACTS` say what the
platform does where no file says it; a contract's own (`R3=held`) answers what is open of it.
`SERVICE.key` says it of one service. What files say is never replaced.
"""

from collections.abc import Callable, Mapping
from typing import Any

from msgspec.structs import replace

from perdure.contracts.code.facts import CodeFacts, Drain
from perdure.contracts.deployment._values import seconds
from perdure.contracts.deployment.facts import Lifetime, Mount, Service, Signal
from perdure.contracts.evidence import Confidence, Known
from perdure.contracts.findings import Contract, Finding, Verdict
from perdure.contracts.numbers import whole
from perdure.contracts.rules import is_handled

BY_WORD = ", by --assume"
"""Ends the note of a step that is only somebody's word."""

_SIGNALS = {"reaches": Signal.REACHES, "lost": Signal.LOST}
_RESTARTS = frozenset({"no", "always", "unless-stopped", "on-failure"})

FACTS: Mapping[str, str] = {
    "drain": "a time as in 20s: what a service needs at most to finish what is under way (R1)",
    "pre_stop": "a time as in 5s: what a preStop hook takes (R1)",
    "replicas": "a number: containers at once (S3, R5)",
    "restart": "no, always, unless-stopped or on-failure (R4)",
    "sigterm": "reaches or lost: what becomes of SIGTERM (R2)",
    "stop_grace_period": "a time as in 30s: between SIGTERM and SIGKILL (R1)",
    "volumes": "folders that outlive containers, as in /app/data,/srv (S2, S3)",
    "workers": "a number: server processes in a container (S3)",
}
"""Keys that say what the platform does, and what they take."""


VERDICTS = (Verdict.HELD, Verdict.VIOLATED, Verdict.NOT_APPLICABLE)
"""What may be said of a contract that is open."""


def settings_of(assume: Mapping[str, str]) -> dict[str, str]:
    """Return what is said of the environment: all but facts of the platform."""
    return {key: value for key, value in assume.items() if not is_fact(key)}


def is_fact(key: str) -> bool:
    """Whether a key is one of the platform's, of all services or of one."""
    return key.rpartition(".")[2] in _TAKES


def wrong_values(assume: Mapping[str, str]) -> tuple[str, ...]:
    """Return what is said of a key that takes other values, with what it takes."""
    return tuple(
        f"{key}={value}: {key.rpartition('.')[2]} takes {_TAKES[key.rpartition('.')[2]]}"
        for key, value in sorted(assume.items())
        if is_fact(key) and _READ[key.rpartition(".")[2]](value) is None
    )


class Words:
    """The facts that were said, and which of them anything needed."""

    def __init__(self, assume: Mapping[str, str]) -> None:
        """Know what was said; nothing has been asked for."""
        self._assume = assume
        self.used: set[str] = set()

    def told(self, service: Service, code: CodeFacts) -> tuple[Service, CodeFacts]:
        """Return a service and its code with what was said of them where no file says it.

        Where nothing was said, they are the same objects.
        """
        if not any(is_fact(key) for key in self._assume):
            return service, code
        grace = self._known(service, "stop_grace_period", service.grace_s)
        pause = self._known(service, "pre_stop", service.pre_stop_s)
        replicas = self._known(service, "replicas", service.replicas)
        workers = self._known(service, "workers", service.workers)
        restart = self._known(service, "restart", service.restart)
        changed = replace(
            service,
            grace_s=grace,
            pre_stop_s=pause,
            replicas=replicas,
            workers=workers,
            restart=restart,
            mounts=(*service.mounts, *self._mounts(service)),
        )
        start = service.start
        if (
            start is not None
            and start.signal.value is Signal.UNKNOWN
            and not is_handled(start, code)
        ):
            said = self._said(service, "sigterm")
            if said is not None:
                given = Known(value=said[1], evidence=start.signal.evidence, assumed=(said[0],))
                changed = replace(changed, start=replace(start, signal=given, shape="by_word"))
        drain = self._said(service, "drain")
        if drain is not None:
            known = Known(value=drain[1], evidence=(service.place,), assumed=(drain[0],))
            code = replace(code, drains=(*code.drains, Drain(seconds=known, what=_UNDER_WAY)))
        return changed, code

    def _said(self, service: Service, key: str) -> tuple[str, Any] | None:
        """Return `KEY=VALUE` and the value that was said of a service; `None`: nothing was."""
        for name in (f"{service.name}.{key}", key):
            value = _READ[key](self._assume[name]) if name in self._assume else None
            if value is not None:
                self.used.add(name)
                return f"{name}={self._assume[name]}", value
        return None

    def _known(self, service: Service, key: str, known: Known[Any]) -> Known[Any]:
        if known.value is not None:
            return known
        said = self._said(service, key)
        if said is None:
            return known
        return Known(value=said[1], evidence=known.evidence, assumed=(said[0],))

    def _mounts(self, service: Service) -> list[Mount]:
        said = self._said(service, "volumes")
        folders = said[1] if said is not None and isinstance(said[1], tuple) else ()
        taken = {mount.path for mount in service.mounts}
        return [
            Mount(
                path=folder,
                lifetime=Lifetime.NAMED,
                kind="volume",
                evidence=(replace(service.place, note=f"a volume on {folder}{BY_WORD}"),),
                source=folder,
            )
            for folder in folders
            if folder not in taken
        ]

    def on_word(self, finding: Finding, service: Service) -> Finding:
        """Return a finding that names the words about the platform that it stands on."""
        words: list[str] = []
        if any(each.note.endswith(BY_WORD) for each in finding.evidence):
            said = self._said(service, "volumes")
            words += [said[0]] if said is not None else []
        if finding.contract in {Contract.S3, Contract.R5}:
            words += [*service.replicas.assumed, *service.workers.assumed]
        return replace(finding, assumptions=tuple(dict.fromkeys((*finding.assumptions, *words))))

    def on_verdict(self, finding: Finding, service: Service) -> Finding:
        """Return an open finding as what was said of its contract; others as they are."""
        if finding.verdict is not Verdict.UNDECIDED:
            return finding
        said = self._said(service, finding.contract.value)
        if said is None:
            return finding
        return replace(
            finding,
            verdict=said[1],
            confidence=Confidence.INFERRED,
            summary=f"{finding.summary}{BY_WORD}",
            question=None,
            is_beyond_files=False,
            assumptions=(*finding.assumptions, said[0]),
        )


_UNDER_WAY = "what is under way"


def _folders(text: str) -> tuple[str, ...] | None:
    found = tuple(each.strip().rstrip("/") for each in text.split(",") if each.strip())
    return found if found and all(each.startswith("/") for each in found) else None


_READ: Mapping[str, Callable[[str], Any]] = {
    "drain": seconds,
    "pre_stop": seconds,
    "replicas": whole,
    "restart": lambda text: text if text.partition(":")[0] in _RESTARTS else None,
    "sigterm": _SIGNALS.get,
    "stop_grace_period": seconds,
    "volumes": _folders,
    "workers": whole,
    **{each.value: {one.value: one for one in VERDICTS}.get for each in Contract},
}
"""What reads the value of each key; `None`: it is none."""

ANSWERS = f"{', '.join(VERDICTS[:-1])} or {VERDICTS[-1]}"

_TAKES: Mapping[str, str] = {**FACTS, **{each.value: ANSWERS for each in Contract}}
