"""The check as a whole: roots, what their services start, the rules, and who decided otherwise."""

import datetime as dt
import gc
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from msgspec import Struct, field
from msgspec.structs import replace

from perdure.contracts._answers import answerable
from perdure.contracts._defended import defended
from perdure.contracts._elsewhere import OF_SERVERS, about_elsewhere
from perdure.contracts._ignoring import Ignores
from perdure.contracts._patterns import regex
from perdure.contracts._secrets import without_secrets
from perdure.contracts._subjects import beside, deployed, judged_roots
from perdure.contracts._words import Words, is_fact, settings_of, wrong_values
from perdure.contracts.code import read_code
from perdure.contracts.code.facts import CodeFacts
from perdure.contracts.deployment import read_roots
from perdure.contracts.deployment.facts import Root, Service
from perdure.contracts.evidence import Confidence, Evidence
from perdure.contracts.files import Project
from perdure.contracts.findings import Contract, Finding, Report, RootReport, Verdict
from perdure.contracts.rules import RULES, as_it_runs
from perdure.errors import CheckImpossible, NothingToCheck


class Settings(Struct, frozen=True, kw_only=True):
    """What a check is told beside the folder.

    Attributes:
        assume: values of variables that no file says; verdicts that need them name them.
        strict: also call violated what is so with the usual way to deploy only (R5 in Compose).
        only: the contracts to judge; `None`: all.
        today: the day that ends of ignores are compared with; `None`: by the clock, in UTC.
    """

    assume: Mapping[str, str] = field(default_factory=dict)
    strict: bool = False
    only: Collection[Contract] | None = None
    today: dt.date | None = None


class Judged(Struct, frozen=True, kw_only=True):
    """A finding with what it was judged by."""

    root: Root
    service: Service
    finding: Finding


def check(folder: Path, settings: Settings | None = None) -> Report:
    """Return what is known of the contracts of all deployments in a folder.

    Nothing is executed, nothing is written, and nothing outside the folder is read.

    Raises:
        CheckImpossible: the folder can't be read.
        NothingToCheck: nothing in it deploys anything.
    """
    return report_of(opened(folder), settings or Settings())


def report_of(project: Project, settings: Settings) -> Report:
    """Return the report on a project that was opened.

    Raises:
        NothingToCheck: nothing in it deploys anything.
    """
    return judged_report(project, settings)[0]


def judged_report(project: Project, settings: Settings) -> tuple[Report, tuple[Judged, ...]]:
    """Return the report on a project, and each finding with what it was judged by.

    Raises:
        NothingToCheck: nothing in it deploys anything.
    """
    ignores = Ignores(project, today=lambda: settings.today or _today())
    by_root: dict[str, tuple[Root, list[Finding]]] = {}
    words = Words(settings.assume)
    judged: list[Judged] = []
    with _without_collections():
        for each in examined(project, settings, words):
            found = by_root.setdefault(each.root.root, (each.root, []))
            finding = ignores.applied(_clean(each.finding))
            judged.append(replace(each, finding=finding))
            found[1].append(finding)
    cited = {step.file for each in judged for step in each.finding.evidence}
    read = {file for root, _ in by_root.values() for file in root.files}
    ignores.tell_unmet(cited | read, settings.only or tuple(Contract))
    report = Report(
        roots=tuple(
            RootReport(
                root=root.root, kind=root.kind, findings=tuple(findings), beside=beside(root)
            )
            for root, findings in by_root.values()
        ),
        unread=tuple(replace(each, reason=without_secrets(each.reason)) for each in project.unread),
        notices=ignores.notices,
        unused=_unused(project, settings.assume, words, judged),
    )
    return report, tuple(judged)


def _unused(
    project: Project, assume: Mapping[str, str], words: Words, judged: list[Judged]
) -> tuple[str, ...]:
    """Return what was assumed in vain, with the reason."""
    needed = {text for each in judged for text in each.finding.assumptions}
    found = list(wrong_values(assume))
    wrong = {text.partition(": ")[0] for text in found}
    for key, value in sorted(assume.items()):
        said = f"{key}={value}"
        if said in needed or said in wrong or key in words.used:
            continue
        if is_fact(key):
            found.append(f"{said}: no open question needs it, as the files say it")
        elif not project.mentions(key):
            found.append(f"{said}: nothing that was read has a setting of that name")
    return tuple(without_secrets(each) for each in found)


@contextmanager
def _without_collections() -> Iterator[None]:
    """Let no garbage be looked for meanwhile: trees are kept, and it takes half of the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def examined(project: Project, settings: Settings, words: Words | None = None) -> Iterator[Judged]:
    """Yield every finding with the service that it is about.

    Args:
        project: what is checked.
        settings: what the check is told.
        words: remembers which facts of the platform that were said are needed.

    Raises:
        NothingToCheck: nothing in the project deploys anything.
    """
    words = words or Words(settings.assume)
    assume = settings_of(settings.assume)
    roots = read_roots(project, assume=assume)
    if not roots:
        folder = str(project.folder)
        msg = (
            f"nothing in {folder!r} deploys anything: no Compose file, Kubernetes manifest, "
            "Dockerfile, file of Render, Fly or Railway, Procfile or langgraph.json was found; "
            "name the folder of the project"
        )
        raise NothingToCheck(msg, folder=folder, unread=[each.file for each in project.unread])
    _refuse_unknown(project, settings.assume, roots)
    roots = deployed(roots)
    wanted = [each for each in RULES if settings.only is None or each in settings.only]
    judged = judged_roots(roots)
    if not any(services for _root, services in judged):
        raise _nothing_of_ours(project, roots)
    _name_unbuilt(project, judged)
    for root, services in judged:
        for service in services:
            code = read_code(project, service, root, assume=assume)
            said, told = words.told(service, code)
            told = as_it_runs(told, root)
            with_words = _with(root, service, said)
            for contract in wanted:
                finding = _judged(project, said, told, with_words, contract, strict=settings.strict)
                finding = words.on_word(finding, said)
                finding = _taken(finding, service, root)
                if not (service.is_one_shot and contract in OF_SERVERS):
                    finding = _read_in_part(finding, code)
                finding = about_elsewhere(finding, service, code)
                finding = words.on_verdict(finding, said)
                finding = answerable(finding, said, root)
                yield Judged(root=root, service=service, finding=finding)


def _refuse_unknown(project: Project, assume: Mapping[str, str], roots: tuple[Root, ...]) -> None:
    """Refuse what is said of a service that no deployment has: it was meant for another one."""
    names = list(dict.fromkeys(service.name for root in roots for service in root.services))
    for key in sorted(assume):
        name, dot, fact = key.rpartition(".")
        if dot and is_fact(key) and name not in names:
            shown = ", ".join(names[:SERVICES_SHOWN_MAX])
            more = ", ..." if len(names) > SERVICES_SHOWN_MAX else ""
            msg = f"--assume {key}=: there is no service {name!r} here; there are {shown}{more}"
            msg += f" ({fact}= says it of all of them)"
            raise CheckImpossible(msg, folder=str(project.folder))


def _name_unbuilt(project: Project, judged: list[tuple[Root, tuple[Service, ...]]]) -> None:
    """Remember deployments of which nothing is judged, although not all is databases and tools.

    And services whose images only variables name: one who says these has them judged.
    """
    for root, services in judged:
        for each in root.services:
            told = _unsaid_image(each) if each not in services else None
            if told is not None:
                project.not_read(root.root, *told)
        unknown = [
            each.image.reference
            for each in root.services
            if each.image.catalog is None and each.image.dockerfile is None and each.start is None
        ]
        named = [each for each in dict.fromkeys(unknown) if each is not None]
        if named and not services:
            shown = ", ".join(each[:80] for each in named[:NAMED_MAX])
            reason = f"nothing here builds its images ({shown}), so that it is not judged"
            project.not_read(root.root, reason)


def _unsaid_image(service: Service) -> tuple[str, int] | None:
    """Return why a service is not judged whose image has variables in its name, and where."""
    image = service.image
    if image.reference or image.dockerfile or image.catalog or service.start or not image.evidence:
        return None
    here = image.evidence[0]
    reference = here.note.partition("image: ")[2]
    name = _TAG.sub("", reference)
    unsaid = list(dict.fromkeys(_VARIABLE.findall(name)))
    if not unsaid:
        return None
    shown = ", ".join(unsaid[:NAMED_MAX])
    reason = (
        f"service {service.name!r} is not judged, as no file says {shown} of its image "
        f"{reference[:80]}: --assume {unsaid[0]}=VALUE says it"
    )
    return reason, here.line


_VARIABLE = regex(r"\$\{?(\w{1,80})")
_TAG = regex(r":[^/]{0,200}$")


def _nothing_of_ours(project: Project, roots: tuple[Root, ...]) -> NothingToCheck:
    """Return the error that says what was found instead of a service of the project."""
    folder = str(project.folder)
    names = [f"{s.name!r} of {root.root}" for root in roots for s in root.services]
    shown = ", ".join(names[:NAMED_MAX]) + (", ..." if len(names) > NAMED_MAX else "")
    msg = (
        f"nothing in {folder!r} starts code of this project: {shown} are images of others; a "
        "service counts if it has build:, an image that a Dockerfile here makes, or a command that "
        "starts a server; name the folder where those are"
    )
    return NothingToCheck(msg, folder=folder, unread=[each.file for each in project.unread])


SERVICES_SHOWN_MAX = 20
"""Services that an error names."""

NAMED_MAX = 4
"""Services that are named where none of them is judged."""


def _with(root: Root, service: Service, said: Service) -> Root:
    """Return a root with what was said of one of its services."""
    if said is service:
        return root
    return replace(root, services=tuple(said if s is service else s for s in root.services))


_OF_DEPLOYMENT = frozenset({Contract.R4, Contract.R5, Contract.R8})
"""What a deployment's files say without the code."""


def _read_in_part(finding: Finding, code: CodeFacts) -> Finding:
    """Say of a verdict that code which could matter to it could not be read by this Python.

    What is not seen may be in that file, so that it is open. What is seen is there all the same,
    and may be undone in that file, so that it is inferred.
    """
    if not code.unread or finding.contract in _OF_DEPLOYMENT:
        return finding
    if code.unread_matters is not None and finding.contract.value not in code.unread_matters:
        return finding
    if finding.verdict is Verdict.NOT_APPLICABLE:
        return replace(
            finding,
            verdict=Verdict.UNDECIDED,
            confidence=Confidence.INFERRED,
            summary="code that this service starts could not be read",
            evidence=code.unread,
            question=f"What does {code.unread[0].file} do? {_sentence(code.unread[0].note)}",
        )
    if not any(each.file.endswith(".py") for each in finding.evidence):
        return finding
    return replace(
        finding,
        confidence=Confidence.INFERRED,
        warnings=(*finding.warnings, f"{code.unread[0].file} was not read"),
    )


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def _taken(finding: Finding, service: Service, root: Root) -> Finding:
    """Say of a verdict that it stands on a Dockerfile that is only taken for the image.

    What the deployment's own files say is so whichever image it is.
    """
    why = service.image.taken
    if why is None or (
        finding.evidence and all(each.file in root.files for each in finding.evidence)
    ):
        return finding
    return replace(
        finding,
        confidence=Confidence.INFERRED,
        evidence=(*finding.evidence, why) if finding.evidence else (),
    )


def _judged(
    project: Project,
    service: Service,
    code: CodeFacts,
    root: Root,
    contract: Contract,
    *,
    strict: bool,
) -> Finding:
    with defended(project, service.place.file, f"{contract} of service {service.name!r}"):
        return RULES[contract](service, code, root, strict=strict)
    return Finding(
        contract=contract,
        service=service.name,
        verdict=Verdict.UNDECIDED,
        summary="the check failed at this contract, and went on with the others",
        evidence=(service.place,),
        question=f"Is {contract} held by service {service.name!r}? The check could not judge it.",
    )


def opened(folder: Path) -> Project:
    """Return the project in a folder.

    Raises:
        CheckImpossible: there is no such folder.
    """
    try:
        is_there = folder.is_dir()
    except OSError as error:
        msg = f"the folder {str(folder)!r} can't be looked at: {error.strerror}"
        raise CheckImpossible(msg, folder=str(folder)) from error
    if not is_there:
        msg = f"there is no folder {str(folder)!r}; nothing was checked"
        if folder.exists():
            above = str(folder.parent)
            msg = f"{str(folder)!r} is a file; name the folder it is in: perdure check {above}"
        raise CheckImpossible(msg, folder=str(folder))
    return Project(folder)


def _today() -> dt.date:
    from perdure.clock import SystemClock  # noqa: PLC0415  # asked when an ignore has an end

    return dt.datetime.fromtimestamp(SystemClock().now_us() / 1_000_000, tz=dt.UTC).date()


def _clean(finding: Finding) -> Finding:
    """Return the finding without what must not be printed: secrets that a file has."""
    return replace(
        finding,
        summary=without_secrets(finding.summary),
        evidence=tuple(
            Evidence(file=each.file, line=each.line, note=without_secrets(each.note))
            for each in finding.evidence
        ),
        question=None if finding.question is None else without_secrets(finding.question),
        answer=None if finding.answer is None else without_secrets(finding.answer),
        repair=None if finding.repair is None else without_secrets(finding.repair),
        warnings=tuple(without_secrets(each) for each in finding.warnings),
        assumptions=tuple(without_secrets(each) for each in finding.assumptions),
    )
