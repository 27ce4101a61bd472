"""`# perdure: ignore[R1] reason`: findings that a person has decided to live with.

The comment stands in a line of the finding's evidence, or in the line above it. It needs a reason,
and may have an end: `until=2027-01-01`, from which day on the finding counts again.
"""

import datetime as dt
import re
from collections.abc import Callable, Collection, Iterable

from msgspec import Struct
from msgspec.structs import replace

from perdure.contracts._patterns import regex
from perdure.contracts._secrets import without_secrets
from perdure.contracts.files import Project
from perdure.contracts.findings import Contract, Finding, Notice, Verdict

_COMMENT = regex(r"(?:#|//|--)\s*perdure:\s*ignore(?:\[([^\]]*)\])?\s*(.*)$")
_UNTIL = regex(r"\buntil=(\S+)")

_COUNTED = frozenset({Verdict.VIOLATED, Verdict.UNDECIDED})


class _Ignore(Struct, frozen=True, kw_only=True):
    contracts: frozenset[str]
    reason: str
    is_over: bool


class Ignores:
    """Applies the comments of a project to findings, and remembers those that are no good."""

    def __init__(self, project: Project, *, today: Callable[[], dt.date]) -> None:
        """Look nothing up yet; `today`: asked when an ignore has an end."""
        self._project = project
        self._today = today
        self._read: dict[tuple[str, int], _Ignore | None] = {}
        self._lines: dict[str, list[str]] = {}
        self._notices: dict[tuple[str, int], Notice] = {}
        self._met: set[tuple[str, int]] = set()

    @property
    def notices(self) -> tuple[Notice, ...]:
        """What is wrong with comments that were met."""
        return tuple(self._notices[place] for place in sorted(self._notices))

    def applied(self, finding: Finding) -> Finding:
        """Return the finding, with the reason for which it is ignored if it is."""
        if finding.verdict not in _COUNTED:
            return finding
        for each in finding.evidence:
            for line in (each.line, each.line - 1):
                found = self._at(each.file, line)
                if found is not None and finding.contract.value in found.contracts:
                    self._met.add((each.file, line))
                    if not found.is_over:
                        return replace(finding, ignored=without_secrets(found.reason))
                    note = f"the ignore of {finding.contract.value} is over, so that it counts"
                    self._tell(each.file, line, note)
        return finding

    def tell_unmet(self, files: Iterable[str], judged: Collection[Contract]) -> None:
        """Notice comments that no finding meets, where all that they name was judged."""
        names = {each.value for each in judged}
        for file in sorted(set(files)):
            text = self._project.read(file) or ""
            if "perdure:" not in text:
                continue
            for line in range(1, len(text.splitlines()) + 1):
                found = self._at(file, line)
                if found is None or (file, line) in self._met or not found.contracts <= names:
                    continue
                named = ", ".join(sorted(found.contracts))
                note = f"no finding of {named} is at this ignore or below it: it changes nothing"
                self._tell(file, line, note)

    def _at(self, file: str, line: int) -> _Ignore | None:
        place = (file, line)
        if place not in self._read:
            self._read[place] = self._parsed(file, line)
        return self._read[place]

    def _parsed(self, file: str, line: int) -> _Ignore | None:
        if file not in self._lines:
            self._lines[file] = (self._project.read(file) or "").splitlines()
        lines = self._lines[file]
        found = _COMMENT.search(lines[line - 1]) if 0 < line <= len(lines) else None
        if found is None:
            return None
        names = frozenset(
            each.strip() for each in (found.group(1) or "").split(",") if each.strip()
        )
        unknown = sorted(names - {each.value for each in Contract})
        text = found.group(2).strip()
        until = _UNTIL.search(text)
        reason = _UNTIL.sub("", text).strip(" ,;:-")
        if not names or unknown:
            self._tell(
                file, line, "an ignore names contracts that exist: # perdure: ignore[R1] why"
            )
            return None
        if not reason:
            self._tell(file, line, "an ignore needs a reason: # perdure: ignore[R1] why")
            return None
        return _Ignore(contracts=names, reason=reason, is_over=self._is_over(file, line, until))

    def _is_over(self, file: str, line: int, until: re.Match[str] | None) -> bool:
        if until is None:
            return False
        try:
            return dt.date.fromisoformat(until.group(1)) <= self._today()
        except ValueError:
            self._tell(file, line, f"{until.group(1)!r} is no date as in until=2027-01-31")
            return True

    def _tell(self, file: str, line: int, text: str) -> None:
        self._notices.setdefault((file, line), Notice(file=file, line=line, text=text))
