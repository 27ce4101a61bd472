"""The report for people: first what is violated and what to do, then questions, then counts."""

import textwrap
from collections import defaultdict
from collections.abc import Iterable

from perdure.contracts._elsewhere import is_other_code
from perdure.contracts._patterns import regex
from perdure.contracts.evidence import Confidence, Evidence
from perdure.contracts.findings import Contract, Finding, Report, RootKind, RootReport, Verdict
from perdure.contracts.limits import STORY_LINES_MAX
from perdure.contracts.report._decisive import is_way
from perdure.contracts.report._grouping import (
    Told,
    key_of,
    renamed,
    shown,
    told,
    where,
    worst_first,
)
from perdure.contracts.report._plain import plain, quiet
from perdure.contracts.report._titles import LOST, TITLES

WIDTH = 100

_IGNORED = regex(r"(?<=ignore)\[\w+\]")
"""What an answer that is a comment ignores: of a question of several contracts, all of them."""

PLACE_WIDTH_MAX = 36
"""The longest name of a place with its note beside it; below longer ones the note has a line."""

SERVICES_SHOWN_MAX = 4
"""Services that the overview names of one violation."""

QUESTIONS_MAX = 6
"""Questions that are asked at once; people answer the first ones."""

STORIES_MAX = 2
"""Violations that need no overview before them."""

WORDS = {
    Verdict.VIOLATED: "violated",
    Verdict.UNDECIDED: "open",
    Verdict.HELD: "held",
    Verdict.NOT_APPLICABLE: "not applicable",
}

KINDS = {
    RootKind.COMPOSE: "Compose",
    RootKind.KUBERNETES: "Kubernetes",
    RootKind.DOCKERFILE: "Dockerfile",
    RootKind.PLATFORM: "platform",
}

_SURE = {
    Confidence.PROVED: "",
    Confidence.DECLARED_DEFAULT: "by the project's declared defaults",
    Confidence.INFERRED: "follows from what is usual",
}


def as_text(report: Report, *, everything: bool = False, is_fixable: bool = True) -> str:
    """Return the report as lines for people.

    Args:
        report: what a check found.
        everything: tell what holds, what does not apply and what is ignored, too, and all places.
        is_fixable: whether `--fix` has an edit for any of it.
    """
    report = plain(report)
    violated = worst_first(told(report, Verdict.VIOLATED))
    questions = told(report, Verdict.UNDECIDED)
    lines = _overview(report, violated)
    for each in violated:
        lines += [*_story(each, everything=everything), ""]
    lines += _questions(questions, everything=everything)
    if everything:
        for verdict in (Verdict.HELD, Verdict.NOT_APPLICABLE):
            for each in told(report, verdict):
                lines += [*_story(each, everything=True), ""]
        lines += _ignored(report)
    lines += _beside(report, everything=everything)
    lines += _counts(report, everything=everything)
    lines += _next(violated, questions, everything=everything, is_fixable=is_fixable)
    return quiet("\n".join(lines)) + "\n"


def _overview(report: Report, violated: list[Told]) -> list[str]:
    """Return what is violated, a line each, where it is more than a screen shows at once."""
    if len(violated) <= STORIES_MAX:
        return []
    contracts = {contract for story in violated for contract in story.contracts}
    noun = "contract is" if len(contracts) == 1 else "contracts are"
    lines = [f"{len(contracts)} {noun} violated, the worst first:"]
    width = max(len(" ".join(story.contracts)) for story in violated)
    for story in violated:
        begin = f"  {' '.join(story.contracts):{width}}  "
        text = f"{_title(story.finding)}: {_briefly(report, story)}"
        lines += textwrap.wrap(
            text, WIDTH, initial_indent=begin, subsequent_indent=" " * len(begin)
        )
    return [*lines, ""]


def _briefly(report: Report, story: Told) -> str:
    """Return which services it is found in, and in how many of the deployments."""
    services = list(dict.fromkeys(service for _root, service in story.places))
    named = ", ".join(services[:SERVICES_SHOWN_MAX])
    if len(services) > SERVICES_SHOWN_MAX:
        named += f" and {len(services) - SERVICES_SHOWN_MAX} more"
    roots = {shown(root) for root, _service in story.places}
    if len(report.roots) == 1:
        return named
    if len(roots) == 1:
        return f"{named} in {next(iter(roots))}"
    return f"{named}, in {len(roots)} of {len(report.roots)} deployments"


def _story(story: Told, *, everything: bool) -> list[str]:
    finding = story.finding
    contracts = " ".join(story.contracts)
    lines = [f"{contracts} {WORDS[finding.verdict].upper()}: {_title(finding)}"]
    lines += _wrapped(where(story.places, everything=everything), "  ")
    lines += _wrapped(_sentence(finding.summary or _title(finding)), "  ")
    for other in story.findings[1:]:
        if other.contract is not finding.contract and other.service == finding.service:
            lines += _wrapped(_too(other), "  ")
            break
    lines += _steps(story.evidence)
    sure = _SURE[finding.confidence]
    if sure and finding.verdict is not Verdict.NOT_APPLICABLE:
        lines += _wrapped(f"({sure})", "    ")
    if finding.assumptions:
        lines += _wrapped(f"assumed: {', '.join(finding.assumptions)}", "    ")
    if finding.repair:
        services = ", ".join(dict.fromkeys(service for _root, service in story.places))
        repair = renamed(finding.repair, finding.service, services)
        lines += _wrapped(f"do: {repair}", "  ")
    for warning in dict.fromkeys(w for each in story.findings for w in each.warnings):
        lines += _wrapped(f"note: {warning}", "  ")
    return lines


def _title(finding: Finding) -> str:
    titles = LOST if finding.verdict is Verdict.VIOLATED else TITLES
    title = titles[finding.contract]
    begin = title.partition(" ")[0]
    return title if begin.isupper() and len(begin) > 1 else f"{title[:1].lower()}{title[1:]}"


def _too(other: Finding) -> str:
    """Return what the same story means for another contract, in the words of its verdict."""
    if other.verdict is Verdict.VIOLATED:
        return f"{other.contract.value}, too: {LOST[other.contract]}."
    if other.verdict is Verdict.HELD:
        return f"{other.contract.value}, too: {_title(other)}."
    return f"{other.contract.value}, too: {WORDS[other.verdict]}."


def _steps(evidence: tuple[Evidence, ...]) -> list[str]:
    steps = _shortened(evidence)
    width = max((len(_place(each)) for each in steps), default=0)
    lines = []
    for each in steps:
        if width > PLACE_WIDTH_MAX:
            lines += [f"    {_place(each)}", *_wrapped(each.note or "here", "      ")]
            continue
        begin = f"    {_place(each):{width}}  "
        lines += textwrap.wrap(
            each.note or "here",
            WIDTH,
            initial_indent=begin,
            subsequent_indent=" " * (width + 6),
            break_long_words=False,
        )
    if len(evidence) > len(steps):
        lines.append(f"    ... and {len(evidence) - len(steps)} more lines (--json has all)")
    return lines


def _shortened(evidence: tuple[Evidence, ...]) -> list[Evidence]:
    """Return as many steps as are shown: those that only lead from file to file go first.

    Of what is still too long the end stays: it is where the deployment comes in.
    """
    steps = list(evidence)
    for place in range(len(steps) - 2, 0, -1):
        if len(steps) > STORY_LINES_MAX and is_way(steps[place]):
            del steps[place]
    if len(steps) > STORY_LINES_MAX:
        head = STORY_LINES_MAX // 4
        steps = [*steps[:head], *steps[len(steps) - (STORY_LINES_MAX - head) :]]
    return steps


def _place(evidence: Evidence) -> str:
    return f"{evidence.file}:{evidence.line}"


def _sentence(text: str) -> str:
    text = text.strip()
    text = text[:1].upper() + text[1:]
    return text if text.endswith((".", "?", "!")) else f"{text}."


def _wrapped(text: str, indent: str) -> list[str]:
    return textwrap.wrap(
        text,
        WIDTH,
        initial_indent=indent,
        subsequent_indent=indent + ("  " if text.startswith(("do: ", "note: ")) else ""),
        break_long_words=False,
    )


def _questions(questions: list[Told], *, everything: bool) -> list[str]:
    """Return what is open: each question with its answer; what no file can say, in one line."""
    open_ones = [story for story in questions if everything or not story.finding.is_beyond_files]
    folded = [story for story in questions if story not in open_ones]
    lines = ["Open: one fact is missing, and its answer settles it."] if open_ones else []
    grouped: dict[str, list[Told]] = defaultdict(list)
    for story in worst_first(open_ones):
        grouped[story.finding.question or story.finding.summary].append(story)
    asked = list(grouped.items())
    left = 0 if everything else max(0, len(asked) - QUESTIONS_MAX)
    for question, group in asked[: len(asked) - left]:
        contracts = " ".join(dict.fromkeys(c for story in group for c in story.contracts))
        places = dict.fromkeys(place for story in group for place in story.places)
        lines += _wrapped(f"{contracts}  {where(places, everything=everything)}", "  ")
        lines += _wrapped(_sentence(question), "      ")
        answers = dict.fromkeys(story.finding.answer for story in group if story.finding.answer)
        for answer in list(answers)[:1]:
            whole = _IGNORED.sub(f"[{contracts.replace(' ', ',')}]", answer)
            lines += _wrapped(f"answer: {whole}", "      ")
        lines += [f"      ({_place(each)})" for each in group[0].finding.evidence[:1]]
    if left:
        lines.append(f"  and {left} more questions (--all asks them)")
    lines += [""] if lines else []
    return [*lines, *_folded(folded)]


def _folded(questions: list[Told]) -> list[str]:
    """Return what no file of the project decides, in few lines."""
    elsewhere = [story for story in questions if is_other_code(story.finding)]
    lines: list[str] = []
    for summary in dict.fromkeys(story.finding.summary for story in elsewhere):
        same = [story for story in elsewhere if story.finding.summary == summary]
        places = dict.fromkeys(place for story in same for place in story.places)
        said = f"{_named(same)} of {where(places, everything=False)}: open, as {summary}"
        lines += _wrapped(said, "")
    others = [story for story in questions if story not in elsewhere]
    if others:
        said = (
            f"{_named(others)} can't be told from files: a trial decides (perdure inject), or what "
            "you know (perdure check --all asks)"
        )
        lines += _wrapped(said, "")
    return [*lines, ""] if lines else []


def _named(stories: list[Told]) -> str:
    """Return the contracts of stories, in their order."""
    asked = {each for story in stories for each in story.contracts}
    return ", ".join(each.value for each in Contract if each.value in asked)


def _ignored(report: Report) -> list[str]:
    """Return what somebody decided to live with, and the reason."""
    return _once(
        f"ignored: {finding.contract.value} {WORDS[finding.verdict]}, {finding.service} in "
        f"{root.root}: {finding.ignored}"
        for root in report.roots
        for finding in root.findings
        if finding.ignored is not None
    )


def _beside(report: Report, *, everything: bool) -> list[str]:
    """Return what is no verdict: warnings of what holds, ignores, files that were not read."""
    places: dict[tuple[str, str], list[tuple[RootReport, str]]] = defaultdict(list)
    for root in report.roots:
        for finding in root.findings:
            for warning in finding.warnings if finding.verdict is Verdict.HELD else ():
                places[finding.contract.value, warning].append((root, finding.service))
    said = [
        f"note: {contract} holds ({where(found, everything=everything)}), but {warning}"
        for (contract, warning), found in places.items()
    ]
    said += [f"note: --assume {each}" for each in report.unused]
    said += [f"note: {each.file}:{each.line}: {each.text}" for each in report.notices]
    for unread in report.unread:
        place = unread.file if unread.line is None else f"{unread.file}:{unread.line}"
        said.append(f"not read: {place}: {unread.reason}")
    return _once(said)


def _once(said: Iterable[str]) -> list[str]:
    """Return texts as lines, each text once: their last lines may be alike, and are all told."""
    lines = [line for text in dict.fromkeys(said) for line in _wrapped(text, "")]
    return [*lines, ""] if lines else []


def _counts(report: Report, *, everything: bool) -> list[str]:
    """Return how much there is of each verdict; what several deployments tell alike counts once."""
    found: dict[str, set[tuple[object, ...]]] = defaultdict(set)
    for root in report.roots:
        for finding in root.findings:
            word = "ignored" if finding.ignored else WORDS[finding.verdict]
            found[word].add((*key_of(finding), finding.service))
    order = [*WORDS.values(), "ignored"]
    said = ", ".join(
        f"{len(found[word])} {word}" for word in order if found[word] or word == "violated"
    )
    if found["ignored"] and not everything:
        said += " (--all names them)"
    services = len({f.service for root in report.roots for f in root.findings})
    deployments = ", ".join(f"{shown(root)} ({KINDS[root.kind]})" for root in report.roots[:3])
    more = f" and {len(report.roots) - 3} more" if len(report.roots) > 3 else ""  # noqa: PLR2004  # shown above
    noun = "service" if services == 1 else "services"
    beside = list(dict.fromkeys(name for root in report.roots for name in root.beside))
    whole = f"{said}; {services} {noun} of {deployments}{more}."
    if beside:
        whole += f" Not judged, as no Python of the project runs there: {_some(beside)}."
    return _wrapped(whole, "")


def _some(names: list[str]) -> str:
    more = f" and {len(names) - _NAMES_MAX} more" if len(names) > _NAMES_MAX else ""
    return ", ".join(names[:_NAMES_MAX]) + more


_NAMES_MAX = 6
"""Services that are named in one line."""


def _next(
    violated: list[Told], questions: list[Told], *, everything: bool, is_fixable: bool
) -> list[str]:
    """Return commands that lead on, each only where it has something to say."""
    lines: list[str] = []
    if violated:
        contracts = [each for story in violated for each in story.contracts]
        lines.append(
            f"next: perdure check --explain {contracts[0]}   what it means, with the rules"
        )
    if is_fixable and any(story.finding.repair for story in violated):
        lines.append(
            "next: perdure check --fix   shows edits that mend what can be mended by itself"
        )
    if any(
        (story.finding.answer or "").startswith("--assume") and not story.finding.is_beyond_files
        for story in questions
    ):
        lines.append("next: perdure check --assume KEY=VALUE   answers a question, as it says")
    if not everything:
        lines.append("next: perdure check --all   tells what holds, and why")
    return lines
