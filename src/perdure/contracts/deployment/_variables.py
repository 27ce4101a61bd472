"""Variables in text: `${A:-b}` of Compose, `$A` of Dockerfiles, and where values come from."""

import re
from collections.abc import Mapping
from weakref import WeakKeyDictionary

from msgspec import Struct, field

from perdure.contracts import limits
from perdure.contracts._patterns import regex
from perdure.contracts.evidence import Confidence, Evidence, Known, weakest
from perdure.contracts.files import Project

_NAME = regex(r"[A-Za-z_][A-Za-z0-9_]*")
_SAMPLE = regex(
    r"^(\.env[.\-_](example|sample|template|dist|defaults?|tmpl)|\.?env[.\-_](example|sample|template)"
    r"|(example|sample|template)\.env|\.example\.env)$",
    re.IGNORECASE,
)
_SECRET = regex(r"(PASSWORD|PASSWD|SECRET|TOKEN|API_?KEY|PRIVATE)", re.IGNORECASE)


class _Outcome(Struct, kw_only=True):
    """What replacing came to, so far."""

    parts: list[str] = field(default_factory=list)
    evidence: list[Evidence] = field(default_factory=list)
    confidences: list[Confidence] = field(default_factory=list)
    assumed: list[str] = field(default_factory=list)
    question: str | None = None


class Variables(Struct, frozen=True, kw_only=True):
    """Where the values of variables come from, first match first.

    `assume` is what the caller says, `declared` the project's sample files, `given` what the file
    itself fixes (ARG, ENV).
    """

    assume: Mapping[str, str]
    declared: Mapping[str, Known[str]] = field(default_factory=dict)
    given: Mapping[str, Known[str]] = field(default_factory=dict)

    def value(self, name: str) -> Known[str] | None:
        """Return the value of a variable; `None`: nothing says one."""
        if name in self.assume:
            return Known(value=self.assume[name], assumed=(f"{name}={self.assume[name]}",))
        return self.given.get(name) or self.declared.get(name)

    def replace(self, text: str, here: Evidence, *, is_compose: bool = True) -> Known[str]:
        """Return `text` with its variables replaced.

        With a variable of unknown value the value is `None`, and the question names it. In Compose
        `$$` is a dollar; in Dockerfiles a backslash protects one, and an unset variable is empty
        when the file says so (`given`).
        """
        if "$" not in text:
            return Known(value=text, evidence=(here,))
        outcome = _Outcome()
        _replace(text[: limits.TEXT_MAX], self, outcome, 0, is_compose=is_compose)
        return Known(
            value=None if outcome.question else "".join(outcome.parts)[: limits.TEXT_MAX],
            evidence=(here, *outcome.evidence),
            confidence=weakest(outcome.confidences),
            question=outcome.question,
            assumed=tuple(dict.fromkeys(outcome.assumed)),
        )


def _replace(
    text: str, variables: Variables, outcome: _Outcome, depth: int, *, is_compose: bool
) -> None:
    at = 0
    while at < len(text):
        sign = text[at]
        if sign == "\\" and not is_compose and text[at + 1 : at + 2] == "$":
            outcome.parts.append("$")
            at += 2
        elif sign != "$":
            outcome.parts.append(sign)
            at += 1
        elif is_compose and text[at + 1 : at + 2] == "$":
            outcome.parts.append("$")
            at += 2
        elif text[at + 1 : at + 2] == "{":
            end = _closing(text, at + 2)
            _braced(text[at + 2 : end], variables, outcome, depth, is_compose=is_compose)
            at = end + 1
        elif found := _NAME.match(text, at + 1):
            _put(found.group(), variables, outcome, "-" if is_compose else "", "")
            at = found.end()
        else:
            outcome.parts.append(sign)
            at += 1


def _closing(text: str, start: int) -> int:
    """Return where the brace that was opened before `start` is closed; the end if it never is."""
    depth = 1
    for at in range(start, len(text)):
        if text[at] == "{" and text[at - 1] == "$":
            depth += 1
        elif text[at] == "}":
            depth -= 1
            if depth == 0:
                return at
    return len(text)


def _braced(
    inner: str, variables: Variables, outcome: _Outcome, depth: int, *, is_compose: bool
) -> None:
    found = _NAME.match(inner)
    if found is None or depth > limits.NESTED_VARIABLES_MAX:
        outcome.question = outcome.question or "what a nested variable stands for"
        return
    name, rest = found.group(), inner[found.end() :]
    operator = next((o for o in (":-", ":+", ":?", "-", "+", "?") if rest.startswith(o)), "")
    word = rest[len(operator) :]
    known = variables.value(name)
    value = known.value if known is not None else None
    is_set = value is not None and (value != "" or not operator.startswith(":"))
    if operator.endswith("+"):
        if is_set:
            _replace(word, variables, outcome, depth + 1, is_compose=is_compose)
        return
    if operator.endswith("-") and not is_set:
        outcome.confidences.append(Confidence.DECLARED_DEFAULT)
        _replace(word, variables, outcome, depth + 1, is_compose=is_compose)
        return
    _put(name, variables, outcome, operator, word)


def _put(name: str, variables: Variables, outcome: _Outcome, operator: str, word: str) -> None:
    del word
    known = variables.value(name)
    if known is None or known.value is None:
        asked = known.question if known is not None else None
        outcome.question = outcome.question or asked or f"What is the value of {name}?"
        return
    if operator.endswith("?") and known.value == "" and operator.startswith(":"):
        outcome.question = outcome.question or f"What is the value of {name}?"
        return
    outcome.parts.append(known.value)
    outcome.evidence += known.evidence
    outcome.confidences.append(known.confidence)
    outcome.assumed += known.assumed


def is_secret(name: str) -> bool:
    """Whether a variable's value must not be shown."""
    return _SECRET.search(name) is not None


def is_sample(path: str) -> bool:
    """Whether a file declares defaults for an environment (`.env.example`); `.env` itself never."""
    return _SAMPLE.match(path.rpartition("/")[2]) is not None


def read_sample(project: Project, path: str) -> dict[str, Known[str]]:
    """Return the values that a sample of an environment file declares; empty ones are left out."""
    found: dict[str, Known[str]] = {}
    for number, line in enumerate((project.read(path) or "").splitlines(), 1):
        name, equals, value = line.strip().removeprefix("export ").partition("=")
        if not equals or not _NAME.fullmatch(name.strip()):
            continue
        text = _unquoted(value.strip())
        if not text:
            continue
        here = Evidence(
            file=path,
            line=number,
            note=f"{name.strip()} is declared with a default"
            + ("" if is_secret(name) else f", {text[:80]!r}"),
        )
        found[name.strip()] = Known(
            value=text[: limits.TEXT_MAX],
            evidence=(here,),
            confidence=Confidence.DECLARED_DEFAULT,
        )
    return found


def _unquoted(value: str) -> str:
    if value[:1] in {'"', "'"}:
        end = value.find(value[0], 1)
        return value[1:end] if end > 0 else value[1:]
    if value.startswith("#"):
        return ""
    at = value.find("#", 1)
    while at > 0 and not value[at - 1].isspace():
        at = value.find("#", at + 1)
    return (value[:at] if at > 0 else value).strip()


_SAMPLES: WeakKeyDictionary[Project, list[str]] = WeakKeyDictionary()
"""The sample files of each project: looked for once, asked for by every service."""


def samples_near(project: Project, folder: str) -> list[str]:
    """Return sample files for a folder: its own, else those of the checked folder."""
    found = _SAMPLES.get(project)
    if found is None:
        found = _SAMPLES[project] = [path for path in project.paths if is_sample(path)]
    own = [path for path in found if path.rpartition("/")[0] == folder]
    return own or [path for path in found if "/" not in path]
