"""A graph that audits the licences of the Python distributions of an environment.

    discover -> inspect (one for each distribution, in parallel) -> report

`inspect` reads a distribution's real metadata and licence files, asks a person where they leave the
licence unclear, and files its finding in every tracker. Killed at any instant and taken over, the
audit inspects nothing twice that was finished, and files every finding once: with a tracker that
drops a repeated key by sending the same key again, with a plain one by looking before resending.
"""

import asyncio
import re
import sysconfig
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from importlib.metadata import Distribution as Installed
from importlib.metadata import distributions
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

from examples.licences import http_json
from examples.licences.classify import (
    CATEGORIES,
    UNCLEAR,
    Category,
    Evidence,
    LicenceText,
    classify,
    read_licence_text,
)
from perdure import (
    END,
    START,
    Absent,
    Context,
    Found,
    Graph,
    Limit,
    Retry,
    Send,
    Unknown,
    append,
    effect,
)

DISTRIBUTIONS_MAX = 2000
"""Distributions of one audit: each becomes a node execution of one step."""

TEXT_BYTES_MAX = 64 * 1024
"""Of a licence file, this much is read: the GPL, the longest common one, has 35 kB."""

TEXTS_MAX = 40
"""Licence files read of one distribution; those that bundle others have some twenty."""

EXCERPT_CHARS = 300
"""Of an unknown licence text, this much is shown to the person who is asked."""

FILED_AT_ONCE = 4
"""Findings that one worker files at once, for all trackers together."""

_LICENCE_FILE = re.compile(r"(licen[cs]e|copying|unlicense)[^/]*", re.IGNORECASE)


# -- state ---------------------------------------------------------------------------------------


@dataclass
class Tracker:
    """Where findings are filed; `drops_repeated_keys`: whether it honours an Idempotency-Key."""

    url: str
    drops_repeated_keys: bool


@dataclass
class Distribution:
    name: str
    version: str


@dataclass
class Inspection:
    """What one execution of `inspect` gets."""

    path: str
    distribution: Distribution
    trackers: list[Tracker]


@dataclass
class Verdict:
    """What a person answers; another category is refused, and the question stays open."""

    category: Category
    note: str = ""


@dataclass
class Finding:
    name: str
    version: str
    category: str
    licence: str
    reason: str
    decided_by: str = ""
    filed_as: list[str] = field(default_factory=list)


@dataclass
class Audit:
    """The state. An empty path means the environment that the worker itself runs in."""

    path: str = ""
    report_path: str = "licences.md"
    trackers: list[Tracker] = field(default_factory=list)
    distributions: list[Distribution] = field(default_factory=list)
    findings: Annotated[list[Finding], append] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)


# -- effects: reading ----------------------------------------------------------------------------


@effect(kind="pure")
def list_distributions(path: str) -> list[Distribution]:
    """Return the distributions under a site-packages path by name; the first of a name counts."""
    found: dict[str, Distribution] = {}
    for installed in distributions(path=[path]):
        name = _header(installed, "Name")
        if name:  # a half-removed distribution leaves a folder without metadata
            version = _header(installed, "Version")
            found.setdefault(_normal(name), Distribution(name, version))
    return [found[key] for key in sorted(found)][:DISTRIBUTIONS_MAX]


@effect(kind="pure")
def read_evidence(path: str, name: str) -> Evidence:
    """Return what a distribution's metadata and licence files say."""
    installed = next(iter(distributions(path=[path], name=name)), None)
    if installed is None:
        return Evidence()
    classifiers = installed.metadata.get_all("Classifier") or []
    return Evidence(
        expression=_header(installed, "License-Expression"),
        licence_field=_header(installed, "License")[:TEXT_BYTES_MAX],
        classifiers=[each for each in classifiers if each.startswith("License ::")],
        texts=list(_licence_texts(installed, Path(path).resolve())),
    )


def _header(installed: Installed, name: str) -> str:
    return str((installed.metadata.get_all(name) or [""])[0])


def _licence_texts(installed: Installed, root: Path) -> Iterator[LicenceText]:
    listed = [file for file in installed.files or [] if _is_licence_file(file)]
    for file in sorted(listed, key=str)[:TEXTS_MAX]:
        place = Path(str(file.locate())).resolve()
        if place.is_relative_to(root) and place.is_file():  # a RECORD can name any path
            with place.open("rb") as opened:
                text = opened.read(TEXT_BYTES_MAX).decode(errors="replace")
            excerpt = " ".join(text.split())[:EXCERPT_CHARS]
            yield LicenceText(str(file), read_licence_text(text), excerpt)


def _is_licence_file(file: Any) -> bool:
    at = next((i for i, part in enumerate(file.parts) if part.endswith(".dist-info")), None)
    is_metadata = at is not None or file.parts[0].endswith(".egg-info")
    return is_metadata and _LICENCE_FILE.fullmatch(file.name) is not None


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


# -- effects: acting -----------------------------------------------------------------------------

ONE_TRACKER_HOST = Limit(FILED_AT_ONCE, group="trackers")
PATIENT = Retry(max_attempts=8, base_s=0.05, cap_s=2.0)


@effect(kind="keyed", retry=PATIENT, limit=ONE_TRACKER_HOST)
def file_finding(url: str, run_id: str, finding: Finding, *, idempotency_key: str) -> str:
    """File a finding with a tracker that answers a repeated key with the first finding."""
    return _post(url, run_id, finding, idempotency_key)


async def look_up(request: Any, key: str) -> Found | Absent | Unknown:
    """Ask a plain tracker what became of a finding.

    The tracker answers after every request that reached it before this one. Without that, `Absent`
    could be wrong: the first request might still be on its way.
    """
    url = f"{request.args[0]}/findings?key={quote(key)}"
    try:
        answer = await asyncio.to_thread(http_json.call, "GET", url)
    except OSError as error:
        return Unknown(f"the tracker does not answer: {error}")
    findings = answer["findings"]
    return Found(findings[0]["id"]) if findings else Absent()


@effect(kind="lookup", reconcile=look_up, retry=PATIENT, limit=ONE_TRACKER_HOST)
def file_finding_plainly(url: str, run_id: str, finding: Finding, *, idempotency_key: str) -> str:
    """File a finding with a tracker that makes a new row of every request."""
    return _post(url, run_id, finding, idempotency_key)


def _post(url: str, run_id: str, finding: Finding, key: str) -> str:
    body = {"run": run_id, **asdict(finding)}
    answer = http_json.call("POST", f"{url}/findings", body, headers={"Idempotency-Key": key})
    return str(answer["id"])


@effect(kind="keyed")
def write_report(path: str, text: str, *, idempotency_key: str) -> int:
    """Write a file as a whole or not at all; writing it again changes nothing. Return its bytes."""
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = target.with_name(f".{target.name}.{idempotency_key[-12:]}")
    draft.write_text(text, encoding="utf-8")
    draft.replace(target)
    return len(text.encode())


# -- graph ---------------------------------------------------------------------------------------

graph = Graph(Audit, name="licences", version=1)


@graph.node
async def discover(state: Audit, ctx: Context) -> dict[str, Any]:
    path = state.path or sysconfig.get_path("purelib")
    return {"path": path, "distributions": await ctx.call(list_distributions, path)}


@graph.node
async def inspect(task: Inspection, ctx: Context) -> dict[str, Any]:
    of = task.distribution
    evidence = await ctx.call(read_evidence, task.path, of.name)
    judged = classify(evidence)
    finding = Finding(of.name, of.version, judged.category, judged.licence, judged.reason)
    if judged.category == UNCLEAR:
        answer = await ctx.ask(_question(of, judged.reason, evidence), schema=Verdict)
        finding.category = answer.value.category
        finding.reason = f"{judged.reason}. {answer.value.note}".strip()
        finding.decided_by = answer.by
    for tracker in task.trackers:
        file = file_finding if tracker.drops_repeated_keys else file_finding_plainly
        finding.filed_as.append(await ctx.call(file, tracker.url, ctx.run_id, finding))
    return {"findings": [finding]}


@graph.node
async def report(state: Audit, ctx: Context) -> dict[str, Any]:
    await ctx.call(write_report, state.report_path, render(state))
    counted = Counter(finding.category for finding in state.findings)
    return {"counts": {category: counted[category] for category in CATEGORIES}}


def each_distribution(state: Audit) -> Any:
    if not state.distributions:
        return report
    return [Send(inspect, Inspection(state.path, of, state.trackers)) for of in state.distributions]


graph.edge(START, discover)
graph.branch(discover, each_distribution, targets=[inspect, report])
graph.edge(inspect, report)
graph.edge(report, END)


# -- words for people ----------------------------------------------------------------------------


def _question(of: Distribution, reason: str, evidence: Evidence) -> str:
    lines = [f"Which category has the licence of {of.name} {of.version}?", f"Unclear: {reason}."]
    lines += [
        f"{text.file} reads as {text.spdx or 'nothing known'}: {text.excerpt}"
        for text in evidence.texts[:3]
    ]
    return "\n".join([*lines, f"Categories: {', '.join(CATEGORIES)}."])


def render(state: Audit) -> str:
    """Return the report in Markdown: the strictest categories first."""
    lines = [f"# Licences of {len(state.findings)} distributions", "", f"In `{state.path}`.", ""]
    for category in reversed(CATEGORIES):
        of_category = sorted(
            (finding for finding in state.findings if finding.category == category),
            key=lambda finding: finding.name.lower(),
        )
        if of_category:
            lines += [f"## {category.capitalize()} ({len(of_category)})", "", *_HEAD]
            lines += [_row(finding) for finding in of_category] + [""]
    return "\n".join(lines)


_HEAD = (
    "| Distribution | Version | Licence | Why | Decided by |",
    "|---|---|---|---|---|",
)


def _row(finding: Finding) -> str:
    cells = (
        finding.name,
        finding.version,
        finding.licence or "-",
        finding.reason,
        finding.decided_by or "rule",
    )
    return f"| {' | '.join(' '.join(cell.replace('|', '/').split()) for cell in cells)} |"
