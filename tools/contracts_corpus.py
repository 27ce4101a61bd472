"""Compare verdicts of `perdure check` with labels that people gave public repositories.

    PYTHONPATH=src python tools/contracts_corpus.py LABELS.tsv FOLDER [--only S1,R2] [--repo NAME]

A line of the table has the columns repo, commit, depth, dockerfile, compose, k8s, checkpointer,
expected, note; FOLDER has each repository unpacked as `owner+name`. A label is `S1=V(file:12 why)`;
`V*` is by declared defaults; `V/H` is of two deployments; `03:S1=H` is of the deployment in the
folder that begins so, and `deploy/helm:S1=H` of the one with that path. Nothing of the table or
of the repositories is kept.
"""

import argparse
import re
import statistics
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from perdure.contracts.check import check
from perdure.contracts.findings import Contract, Finding, Report, RootReport, Verdict
from perdure.errors import PerdureError

LINES_OFF_MAX = 2
LABEL = re.compile(
    r"^(?:(?P<prefix>[\w./-]+):)?(?P<contract>[SRC]\d)=(?P<verdicts>[A-Z]+\*?(?:/[A-Z]+\*?)*)"
)
SECOND = re.compile(r"/(?P<verdict>[VHU]|NA)(?:\((?P<why>[^)]*)\))?$")
PLACE = re.compile(
    r"(?P<file>[\w./-]*[\w-]\.\w+|[\w./-]*Dockerfile[\w.]*|)?:(?P<first>\d+)(?:-(?P<last>\d+))?"
)
SHORT = {
    Verdict.VIOLATED: "V",
    Verdict.HELD: "H",
    Verdict.UNDECIDED: "U",
    Verdict.NOT_APPLICABLE: "NA",
}
ORDER = ("V", "U", "H", "NA")


@dataclass(frozen=True)
class Label:
    """What a person says of a contract of a repository."""

    contract: str
    verdicts: tuple[str, ...]
    prefix: str
    places: tuple[tuple[str, int, int], ...]
    text: str


@dataclass
class Score:
    """Counts of one contract."""

    right: int = 0
    wrong_violated: int = 0
    missed: int = 0
    cells: Counter = field(default_factory=Counter)
    cited: int = 0
    cited_right: int = 0


def labels_of(expected: str) -> list[Label]:
    """Return the labels of a line."""
    found = []
    for part in re.split(r";\s*(?=(?:[\w./-]+:)?[SRC]\d=)", expected):
        match = LABEL.match(part)
        if match is None:
            continue
        verdicts = [each.rstrip("*") for each in match["verdicts"].split("/")]
        second = SECOND.search(part[match.end() :])
        if second is not None:
            verdicts.append(second["verdict"])
        places = []
        file = ""
        for place in PLACE.finditer(part[match.end() :]):
            file = place["file"] or file
            first = int(place["first"])
            places.append((file, first, int(place["last"] or first)))
        found.append(
            Label(match["contract"], tuple(verdicts), match["prefix"] or "", tuple(places), part)
        )
    return found


def roots_of(report: Report, row: dict[str, str], prefix: str) -> list[RootReport]:
    """Return the deployments that a label is about: those that the line names, or else all."""
    named = {
        part.strip()
        for column in ("compose", "k8s", "dockerfile")
        for part in row[column].split(",")
        if part.strip() not in {"", "-"}
    }
    exact = [root for root in report.roots if prefix and _is_at(root.root, prefix)]
    if exact:
        return exact
    roots = [root for root in report.roots if root.root.startswith(prefix)]
    folders = {str(Path(each).parent) for each in named if each.endswith((".yaml", ".yml"))}
    deployed = [
        root
        for root in roots
        if root.root in named or (root.kind.value == "kubernetes" and _near(root.root, folders))
    ]
    containers = [root for root in deployed if root.kind.value != "dockerfile"]
    if containers:
        return containers
    return deployed or [root for root in roots if root.kind.value != "dockerfile"] or roots


def _is_at(root: str, path: str) -> bool:
    """Whether a deployment is this file, or lies in this folder."""
    return root == path or (("/" in path or "." not in path) and root.startswith(f"{path}/"))


def _near(root: str, folders: set[str]) -> bool:
    here = {root, str(Path(root).parent)}
    return any(folder != "." and folder in here for folder in folders)


def verdict_of(findings: list[Finding]) -> str:
    """Return the worst verdict, as labels have it."""
    return min((SHORT[each.verdict] for each in findings), key=ORDER.index, default="NA")


def is_cited(findings: list[Finding], label: Label) -> bool:
    """Whether any line that the label cites is in the evidence, within two lines."""
    return any(
        (not file or each.file == file or each.file.endswith(f"/{file}"))
        and first - LINES_OFF_MAX <= each.line <= last + LINES_OFF_MAX
        for finding in findings
        for each in finding.evidence
        for file, first, last in label.places
    )


def main(arguments: list[str]) -> int:
    """Print every difference, then the figures by contract."""
    parser = argparse.ArgumentParser()
    parser.add_argument("labels", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="")
    parser.add_argument("--repo", default="")
    given = parser.parse_args(arguments)
    only = set(filter(None, given.only.split(",")))
    lines = given.labels.read_text(encoding="utf-8").splitlines()
    header = lines[0].split("\t")
    scores: dict[str, Score] = defaultdict(Score)
    times: list[tuple[float, str]] = []
    for line in lines[1:]:
        row = dict(zip(header, line.split("\t"), strict=False))
        folder = given.folder / row["repo"].replace("/", "+")
        if not folder.is_dir() or given.repo not in row["repo"]:
            continue
        started_s = time.monotonic()
        try:
            report = check(folder)
        except PerdureError as error:
            print(f"{row['repo']}: {error}")
            report = Report(roots=())
        times.append((time.monotonic() - started_s, row["repo"]))
        for label in labels_of(row["expected"]):
            if not only or label.contract in only:
                compare(row, label, report, scores[label.contract])
    show(scores, times)
    return 0


def of_contract(roots: Iterable[RootReport], label: Label) -> list[tuple[RootReport, Finding]]:
    """Return the findings of the label's contract."""
    return [
        (root, finding)
        for root in roots
        for finding in root.findings
        if finding.contract is Contract(label.contract)
    ]


def compare(row: dict[str, str], label: Label, report: Report, score: Score) -> None:
    """Count one label, and print it if the verdict differs or cites other lines."""
    findings = of_contract(roots_of(report, row, label.prefix), label)
    cited_roots = {file for file, _first, _last in label.places}
    named = [(root, finding) for root, finding in findings if root.root in cited_roots]
    findings = named or findings
    everywhere = of_contract(report.roots, label)
    if "V" in label.verdicts and verdict_of([f for _r, f in findings]) != "V":
        # A violation in a file that the label cites counts, whichever deployment uses the file.
        findings = [
            (r, f) for r, f in everywhere if SHORT[f.verdict] == "V" and is_cited([f], label)
        ] or findings
    said = verdict_of([finding for _root, finding in findings])
    wanted = min(label.verdicts, key=ORDER.index)
    if said != "V" and any(SHORT[finding.verdict] == wanted for _root, finding in findings):
        said = wanted  # a label is about one service of a deployment; others may be open
    worst = [(r, f) for r, f in findings if SHORT[f.verdict] == said]
    score.cells[f"{wanted}>{said}"] += 1
    score.right += wanted == said == "V"
    score.wrong_violated += said == "V" and wanted != "V"
    score.missed += wanted == "V" and said != "V"
    cited = is_cited([finding for _root, finding in worst], label)
    if label.places and wanted == said and said in {"V", "H"}:
        score.cited += 1
        score.cited_right += cited
    if wanted != said or (label.places and not cited and said in {"V", "H"}):
        mark = "CITES" if wanted == said else f"{wanted}>{said}"
        print(f"{mark:6} {row['repo']}: {label.text}")
        for root, finding in worst[:3]:
            told = " | ".join(f"{e.file}:{e.line} {e.note}" for e in finding.evidence[:6])
            print(f"         {root.root} {finding.service}: {finding.summary}\n           {told}")


def show(scores: dict[str, Score], times: list[tuple[float, str]]) -> None:
    """Print the figures."""
    print(f"\n{'':4} {'V right':>8} {'V wrong':>8} {'V missed':>8} {'cited':>9}   labelled>said")
    for name in [*sorted(scores), "all"]:
        chosen = list(scores.values()) if name == "all" else [scores[name]]
        cells = sum((each.cells for each in chosen), Counter())
        right = sum(each.right for each in chosen)
        wrong = sum(each.wrong_violated for each in chosen)
        missed = sum(each.missed for each in chosen)
        cited = sum(each.cited_right for each in chosen)
        of = sum(each.cited for each in chosen)
        print(
            f"{name:4} {right:8} {wrong:8} {missed:8} {cited:4}/{of:<4}   "
            + " ".join(f"{cell}:{count}" for cell, count in sorted(cells.items()))
        )
        if name == "all" and right:
            print(
                f"precision of violated {right / (right + wrong):.3f}, recall "
                f"{right / (right + missed):.3f}, evidence {cited / max(of, 1):.3f}"
            )
    if times:
        worst_s, repo = max(times)
        median_s = statistics.median(each for each, _repo in times)
        print(f"time: median {median_s:.2f} s, worst {worst_s:.2f} s ({repo})")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
