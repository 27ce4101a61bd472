"""Which edits mend which violation, tried on a copy in memory before anybody sees them."""

from collections.abc import Callable, Iterable

from msgspec import Struct

from perdure.contracts.check import Judged, Settings, examined
from perdure.contracts.code import share_code
from perdure.contracts.files import Project
from perdure.contracts.findings import Contract, Verdict
from perdure.contracts.fix import _compose, _kubernetes, _start
from perdure.contracts.fix._applying import Change, edited
from perdure.contracts.report import Edit

Maker = Callable[[Project, Judged], tuple[Edit, ...]]

MAKERS: dict[Contract, tuple[Maker, ...]] = {
    Contract.R1: (_compose.grace, _kubernetes.grace),
    Contract.R2: (_start.reaching,),
    Contract.R4: (_compose.restart,),
    Contract.R5: (_kubernetes.readiness,),
    Contract.S2: (_compose.volume,),
    Contract.S4: (_compose.healthy_dependency,),
}
"""What may mend a contract; those that can't say so by returning nothing."""


ROUNDS_MAX = 3
"""An edit may uncover a violation that another one had masked (R2 masks R1): so often again."""


class Mended(Struct, frozen=True, kw_only=True):
    """A violation as it was, with the verdict and the edits that replaced it."""

    judged: Judged
    verdict: Verdict
    edits: tuple[Edit, ...]


class Refused(Struct, frozen=True, kw_only=True):
    """A violation that has to be mended by hand, and why."""

    judged: Judged
    why: str


class Plan(Struct, frozen=True, kw_only=True):
    """All edits together, and what becomes of the violations."""

    changes: tuple[Change, ...]
    mended: tuple[Mended, ...]
    refused: tuple[Refused, ...]


class _Copy(Project):
    """The project with other texts in some of its files."""

    def __init__(self, project: Project, texts: dict[str, str]) -> None:
        super().__init__(project.folder)
        self._texts.update(texts)
        # Edits are of what deploys, never of Python, so that it need not be read again.
        share_code(project, self)


def plan(project: Project, settings: Settings) -> Plan:
    """Return the edits after which violations are held.

    Each edit is tried by itself: the check is made again with it, and an edit after which its
    violation is still there, or another one has come, is refused.
    """
    texts: dict[str, str] = {}
    mended: list[Mended] = []
    refused: list[Refused] = []
    seen: set[tuple[str, str, Contract]] = set()
    for _ in range(ROUNDS_MAX):
        now = list(examined(_Copy(project, texts), settings))
        fresh = [each for each in now if _is_violated(each) and _key(each) not in seen]
        if not fresh:
            break
        for wanted in fresh:
            seen.add(_key(wanted))
            current = next((each for each in now if _key(each) == _key(wanted)), None)
            if current is None or not _is_violated(current):
                verdict = current.finding.verdict if current is not None else Verdict.HELD
                mended.append(Mended(judged=wanted, verdict=verdict, edits=()))
                continue
            found = _tried(project, settings, current, now, texts)
            if isinstance(found, str):
                refused.append(Refused(judged=wanted, why=found))
                continue
            texts.update(found.texts)
            now = found.judged
            mended.append(Mended(judged=wanted, verdict=found.verdict, edits=found.edits))
    changes = tuple(
        Change(file=file, before=project.read(file) or "", after=after)
        for file, after in sorted(texts.items())
    )
    return Plan(changes=changes, mended=tuple(mended), refused=tuple(refused))


def may_mend(project: Project, judged: Iterable[Judged]) -> bool:
    """Whether there is an edit for any violation; it was not tried whether it mends it."""
    return any(
        maker(project, each)
        for each in judged
        if _is_violated(each) and each.finding.ignored is None
        for maker in MAKERS.get(each.finding.contract, ())
    )


def _is_violated(judged: Judged) -> bool:
    return judged.finding.verdict is Verdict.VIOLATED


def _key(judged: Judged) -> tuple[str, str, Contract]:
    return judged.root.root, judged.service.name, judged.finding.contract


class _Tried(Struct, frozen=True, kw_only=True):
    edits: tuple[Edit, ...]
    texts: dict[str, str]
    judged: list[Judged]
    verdict: Verdict


def _tried(
    project: Project, settings: Settings, wanted: Judged, now: list[Judged], texts: dict[str, str]
) -> _Tried | str:
    """Return edits that mend a violation, with what they make of all; or why there are none."""
    makers = MAKERS.get(wanted.finding.contract)
    if makers is None:
        return "there is no edit for this contract"
    copy = _Copy(project, texts)
    before = {_key(each) for each in now if _is_violated(each)} | _unmasked(wanted)
    for maker in makers:
        edits = maker(copy, wanted)
        if not edits:
            continue
        after = {**texts, **_texts_with(copy, edits)}
        judged = list(examined(_Copy(project, after), settings))
        verdict = next((e.finding.verdict for e in judged if _key(e) == _key(wanted)), None)
        violated = {_key(each) for each in judged if _is_violated(each)}
        good = _GOOD.get(wanted.finding.contract, {Verdict.HELD})
        if verdict is not None and verdict in good and violated <= before:
            return _Tried(edits=edits, texts=after, judged=judged, verdict=verdict)
    return "no edit that is safe to make by itself was found"


_GOOD = {Contract.R2: {Verdict.HELD, Verdict.UNDECIDED}}
"""A program that gets the signal may be one of which nobody knows what it does with it."""


def _unmasked(wanted: Judged) -> set[tuple[str, str, Contract]]:
    """Return what may be violated once a signal arrives, and was open before."""
    if wanted.finding.contract is not Contract.R2:
        return set()
    return {(wanted.root.root, wanted.service.name, Contract.R1)}


def _texts_with(project: Project, edits: Iterable[Edit]) -> dict[str, str]:
    by_file: dict[str, list[Edit]] = {}
    for edit in edits:
        by_file.setdefault(edit.file, []).append(edit)
    return {file: edited(project.read(file) or "", of_file) for file, of_file in by_file.items()}
