"""Findings that tell the same: once each, with all services and deployments that they are about."""

import re
from collections import defaultdict
from collections.abc import Iterable

from msgspec import Struct

from perdure.contracts._patterns import regex
from perdure.contracts.evidence import Evidence
from perdure.contracts.findings import Contract, Finding, Report, RootKind, RootReport, Verdict
from perdure.contracts.limits import STORY_LINES_MAX

PLACES_MAX = 2
"""Deployments that are named of one finding; of more, the first one."""

_COUNTS = regex(r"\b\d+ (replicas|workers)\b")
"""What differs between overlays that have the same fault."""

WORST_FIRST = (
    Contract.S1, Contract.S2, Contract.S0, Contract.S3, Contract.R3, Contract.R2, Contract.R1,
    Contract.S4, Contract.C1, Contract.R4, Contract.R5,
)  # fmt: skip
"""What loses most when it is broken comes first: state, then work under way, then being there."""


class Told(Struct, frozen=True):
    """The same finding in one or several places, and of one or several contracts."""

    groups: tuple[tuple[tuple[RootReport, Finding], ...], ...]
    """For each contract, where it is found."""

    @property
    def finding(self) -> Finding:
        """The first one, which is told."""
        return self.groups[0][0][1]

    @property
    def findings(self) -> tuple[Finding, ...]:
        """All of them, contract by contract."""
        return tuple(finding for group in self.groups for _root, finding in group)

    @property
    def contracts(self) -> tuple[str, ...]:
        """The contracts that have the same story."""
        return tuple(dict.fromkeys(each.contract.value for each in self.findings))

    @property
    def places(self) -> tuple[tuple[RootReport, str], ...]:
        """Deployments and services that it is found in."""
        return tuple((root, finding.service) for root, finding in self.groups[0])

    @property
    def evidence(self) -> tuple[Evidence, ...]:
        """The lines that are told: those of the first deployment, as others tell the same.

        Of several services there as well, if all of them have room.
        """
        first = self.groups[0][0]
        here = [f for group in self.groups for root, f in group if root is first[0]]
        steps = tuple(dict.fromkeys(step for each in here for step in each.evidence))
        if len(steps) <= STORY_LINES_MAX:
            return steps
        own = [each for each in here if each.service == first[1].service]
        return tuple(dict.fromkeys(step for each in own for step in each.evidence))


def told(report: Report, verdict: Verdict) -> list[Told]:
    """Return findings with one verdict; what is the same in several places is told once.

    So is a story that breaks several contracts of one service: a saver in memory, S1 and S2.
    """
    found: dict[tuple[object, ...], list[tuple[RootReport, Finding]]] = defaultdict(list)
    for root in report.roots:
        for finding in root.findings:
            if finding.verdict is verdict and finding.ignored is None:
                found[key_of(finding)].append((root, finding))
    same: dict[tuple[object, ...], list[tuple[tuple[RootReport, Finding], ...]]] = defaultdict(list)
    for each in found.values():
        places = tuple((root.root, finding.service) for root, finding in each)
        first = each[0][1]
        # Without evidence two stories have nothing in common but their emptiness.
        story = (first.evidence, first.repair) if first.evidence else (id(first),)
        same[(places, story, first.question)].append(tuple(each))
    return [Told(tuple(groups)) for groups in same.values()]


def worst_first(stories: Iterable[Told]) -> list[Told]:
    """Return stories in the order of what they lose; of the same loss, the most frequent first."""
    order = {contract: number for number, contract in enumerate(WORST_FIRST)}

    def rank(story: Told) -> tuple[int, int]:
        worst = min(order.get(each.contract, len(order)) for each in story.findings)
        return worst, -len(story.places)

    return sorted(stories, key=rank)


def key_of(finding: Finding) -> tuple[object, ...]:
    """Return what is the same for two services that have the same fault."""
    repair = renamed(finding.repair or "", finding.service, "\0")
    return finding.contract, _COUNTS.sub("", finding.summary), finding.question, repair


def where(places: Iterable[tuple[RootReport, str]], *, everything: bool) -> str:
    """Return services with their deployments; of many deployments only how many there are."""
    by_root: dict[str, list[str]] = defaultdict(list)
    for root, service in places:
        by_root[shown(root)].append(service)
    named = [
        f"{', '.join(dict.fromkeys(services))} in {root}" for root, services in by_root.items()
    ]
    if everything or len(named) <= PLACES_MAX:
        return "; ".join(named)
    return f"{named[0]}, and in {len(named) - 1} more deployments (--all names them)"


def renamed(text: str, service: str, to: str) -> str:
    """Return a text with a service's name replaced, where it stands as a word of its own."""
    return re.sub(rf"(?<![\w-]){re.escape(service)}(?![\w-])", lambda _found: to, text)


def shown(root: RootReport) -> str:
    """Return how a deployment is named to people: manifests of a folder by the folder."""
    folder, _, file = root.root.rpartition("/")
    if root.kind is not RootKind.KUBERNETES or not folder or file in _NAMED_BY_FILE:
        return root.root
    return f"{folder}/"


_NAMED_BY_FILE = frozenset(
    {"Chart.yaml", "kustomization.yaml", "kustomization.yml", "Kustomization"}
)
