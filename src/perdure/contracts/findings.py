"""What a check says: a verdict for each contract of each service of each deployment."""

from enum import StrEnum

from msgspec import Struct

from perdure.contracts.evidence import Confidence, Evidence


class Contract(StrEnum):
    """The contracts, by the ids that reports use."""

    S0 = "S0"
    S1 = "S1"
    S2 = "S2"
    S3 = "S3"
    S4 = "S4"
    R1 = "R1"
    R2 = "R2"
    R3 = "R3"
    R4 = "R4"
    R5 = "R5"
    R6 = "R6"
    R7 = "R7"
    R8 = "R8"
    C1 = "C1"
    C2 = "C2"


class Verdict(StrEnum):
    """What is known of a contract."""

    VIOLATED = "violated"
    HELD = "held"
    UNDECIDED = "undecided"
    NOT_APPLICABLE = "not_applicable"


class RootKind(StrEnum):
    """What deploys it."""

    COMPOSE = "compose"
    KUBERNETES = "kubernetes"
    DOCKERFILE = "dockerfile"
    PLATFORM = "platform"


class Finding(Struct, frozen=True, kw_only=True):
    """One verdict, with the story that leads to it.

    `evidence` is in the order in which it is told. `question` is there exactly when undecided.
    `repair` is one sentence in the imperative, there when violated. `warnings` don't change the
    verdict. `assumptions` are the `KEY=VALUE`s it stands on.
    """

    contract: Contract
    service: str
    verdict: Verdict
    confidence: Confidence = Confidence.PROVED
    summary: str = ""
    """One sentence that says what happens to a user, or why it can't."""
    evidence: tuple[Evidence, ...] = ()
    question: str | None = None
    answer: str | None = None
    """How the question is answered: `--assume KEY=VALUE`, a declaration, an experiment."""
    is_beyond_files: bool = False
    """No file could answer the question: execution does, or somebody's word."""
    repair: str | None = None
    warnings: tuple[str, ...] = ()
    assumptions: tuple[str, ...] = ()
    ignored: str | None = None
    """The reason for which somebody decided to live with it; then it does not count."""


class RootReport(Struct, frozen=True, kw_only=True):
    """All findings of one deployment root.

    Attributes:
        root: its main file, in the checked folder.
        kind: what reads that file.
        findings: of each service that is judged, every contract.
        beside: services that are built here, run no Python, and are not judged beside others.
    """

    root: str
    kind: RootKind
    findings: tuple[Finding, ...]
    beside: tuple[str, ...] = ()


class Unread(Struct, frozen=True, kw_only=True):
    """A file that was looked at and could not be read, and why; the check went on."""

    file: str
    line: int | None
    reason: str


class Notice(Struct, frozen=True, kw_only=True):
    """Something about a comment or a setting of the check itself that is wrong."""

    file: str
    line: int
    text: str


class Report(Struct, frozen=True, kw_only=True):
    """What `check` found in a folder."""

    roots: tuple[RootReport, ...]
    unread: tuple[Unread, ...] = ()
    notices: tuple[Notice, ...] = ()
    unused: tuple[str, ...] = ()
    """What was assumed and changes nothing, with the reason."""
