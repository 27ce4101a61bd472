"""`perdure check --fix`: shows what would be edited, asks, and edits."""

import sys
from collections import defaultdict
from pathlib import Path

from perdure.cli._output import note, say
from perdure.contracts.check import Judged, Settings, opened
from perdure.contracts.fix import Plan, Refused, apply, difference, plan
from perdure.contracts.report import WORDS, one_line


def mend(folder: Path, settings: Settings, *, is_told: bool) -> int:
    """Show the edits that mend violations; make them if told to, or if somebody says so.

    Returns:
        1 if violations are left, or if the answer was no; else 0.

    Raises:
        FixRefused: a file could not be replaced safely.
    """
    project = opened(folder)
    planned = plan(project, settings)
    if planned.changes:
        say(difference(planned.changes).rstrip("\n"))
    _tell(planned)
    if not planned.changes:
        return 1 if planned.refused else 0
    if not (is_told or _is_confirmed()):
        note("nothing was changed; --yes makes these edits")
        return 1
    for name in apply(project.folder, planned.changes):
        note(f"changed {one_line(name)}")
    return 1 if planned.refused else 0


def _is_confirmed() -> bool:
    """Ask, where somebody is there to answer."""
    if not sys.stdin.isatty():
        return False
    print("Make these edits? [y/N]: ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in {"y", "yes"}


def _tell(planned: Plan) -> None:
    """Say what becomes of each violation; what is the same in several deployments is said once."""
    mended: dict[tuple[str, str, str], list[Judged]] = defaultdict(list)
    for done in planned.mended:
        judged = done.judged
        key = (judged.finding.contract.value, judged.service.name, WORDS[done.verdict])
        mended[key].append(judged)
    for (contract, _service, became), same in mended.items():
        note(f"{contract} {_where(same)}: violated -> {became}")
    refused: dict[tuple[str, str], list[Refused]] = defaultdict(list)
    for each in planned.refused:
        repair = each.judged.finding.repair or ""
        refused[each.judged.service.name, repair].append(each)
    for (_service, repair), refusals in refused.items():
        contracts = dict.fromkeys(each.judged.finding.contract.value for each in refusals)
        whys = dict.fromkeys(each.why for each in refusals)
        where = _where([each.judged for each in refusals])
        note(f"{' '.join(contracts)} {where}: by hand, as {'; or '.join(whys)}")
        if repair:
            note(f"    {one_line(repair)}")
    if not planned.mended and not planned.refused:
        note("nothing is violated")


def _where(same: list[Judged]) -> str:
    """Return the service of findings, and where it is deployed."""
    roots = list(dict.fromkeys(each.root.root for each in same))
    more = f", and in {len(roots) - 1} more deployments" if len(roots) > 1 else ""
    return one_line(f"{same[0].service.name} in {roots[0]}{more}")
