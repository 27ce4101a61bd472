"""Dockerfiles as instructions with their lines and columns, read as BuildKit reads them.

Parser directives, line joins with the declared escape, comments and empty lines inside joins,
here-documents, flags, and JSON or shell form. Whether BuildKit's own parser agrees is tested.
"""

import json
import re
from collections.abc import Iterator

from msgspec import Struct

from perdure.contracts import limits
from perdure.contracts._patterns import regex
from perdure.contracts.evidence import Evidence
from perdure.contracts.files import Project

KNOWN = frozenset(
    [
        "ADD",
        "ARG",
        "CMD",
        "COPY",
        "ENTRYPOINT",
        "ENV",
        "EXPOSE",
        "FROM",
        "HEALTHCHECK",
        "LABEL",
        "MAINTAINER",
        "ONBUILD",
        "RUN",
        "SHELL",
        "STOPSIGNAL",
        "USER",
        "VOLUME",
        "WORKDIR",
    ]
)
_DIRECTIVE = regex(r"^#\s*([a-zA-Z][a-zA-Z0-9]*)\s*=\s*(\S.*)$")
_HEREDOC = regex(r"^(\d*)<<(-?)([^<]*)$")
_FLAG = regex(r"--[^\s]*")
_WITH_JSON = frozenset({"ADD", "CMD", "COPY", "ENTRYPOINT", "RUN", "SHELL", "VOLUME"})
_WITH_HEREDOC = frozenset({"ADD", "COPY", "RUN"})


class Heredoc(Struct, frozen=True, kw_only=True):
    """A here-document of an instruction."""

    name: str
    body: str


class Instruction(Struct, frozen=True, kw_only=True):
    """One instruction: `text` is what follows its name and flags, joined to one line."""

    file: str
    line: int
    end_line: int
    column: int
    """Of the instruction's name, from 1."""
    name: str
    """In capitals."""
    text: str
    words: tuple[str, ...] | None
    """Of the JSON form; `None`: shell form."""
    flags: tuple[str, ...] = ()
    heredocs: tuple[Heredoc, ...] = ()

    def evidence(self, note: str) -> Evidence:
        """Return the instruction's first line with a note."""
        return Evidence(file=self.file, line=self.line, note=note)

    def flag(self, name: str) -> str | None:
        """Return the value of a flag (`from` for `--from=builder`), `None` if it isn't there."""
        for flag in self.flags:
            key, _, value = flag.removeprefix("--").partition("=")
            if key == name:
                return value
        return None


class Dockerfile(Struct, frozen=True, kw_only=True):
    """A Dockerfile's instructions and its escape character."""

    path: str
    instructions: tuple[Instruction, ...]
    escape: str = "\\"


def read_dockerfile(project: Project, path: str) -> Dockerfile | None:
    """Return a Dockerfile; `None` if it can't be read or is none, which `project` remembers."""
    text = project.read(path)
    if text is None:
        return None
    if len(text) > limits.DOCKERFILE_BYTES_MAX:
        project.not_read(path, f"it has more than {limits.DOCKERFILE_BYTES_MAX:,} characters")
        return None
    read = parse(text, path)
    strange = next((i for i in read.instructions if i.name not in KNOWN), None)
    if not any(i.name == "FROM" for i in read.instructions):
        project.not_read(path, "it is no Dockerfile: it has no FROM")
        return None
    if strange is not None:
        project.not_read(
            path, f"it is no Dockerfile: {strange.name[:40]!r} is no instruction", strange.line
        )
        return None
    return read


def parse(text: str, path: str) -> Dockerfile:
    """Return the instructions of a text, unknown ones too."""
    lines = [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")]
    escape = _escape_of(lines)
    found: list[Instruction] = []
    for instruction in _instructions(lines, escape, path):
        found.append(instruction)
        if len(found) >= limits.INSTRUCTIONS_MAX:
            break
    return Dockerfile(path=path, instructions=tuple(found), escape=escape)


def _escape_of(lines: list[str]) -> str:
    for line in lines:
        directive = _DIRECTIVE.match(line.strip())
        if directive is None:
            return "\\"
        if directive.group(1).lower() == "escape":
            return "`" if directive.group(2) == "`" else "\\"
    return "\\"


def _instructions(  # noqa: C901  # one loop over lines, as BuildKit has it
    lines: list[str], escape: str, path: str
) -> Iterator[Instruction]:
    mark = re.escape(escape)
    joins = re.compile(rf"([^{mark}]){mark}[ \t]*$|^{mark}[ \t]*$")
    at = 0
    while at < len(lines):
        first = lines[at].strip(" \t\v\f")
        start = at
        at += 1
        if not first or first.startswith("#"):
            continue
        column = len(lines[start]) - len(lines[start].lstrip(" \t\v\f")) + 1
        parts: list[str] = []
        line = lines[start].lstrip(" \t\v\f")
        while True:
            goes_on = joins.search(line)
            parts.append(joins.sub(r"\1", line) if goes_on else line)
            if not goes_on:
                break
            while at < len(lines) and _is_left_out(lines[at]):
                at += 1
            if at >= len(lines):
                break
            line = lines[at]
            at += 1
        joined = "".join(parts).strip(" \t\v\f")
        if not joined:
            continue
        name, rest, flags, words = _split(joined)
        heredocs: list[Heredoc] = []
        if words is None and _may_have_heredoc(name, rest):
            for word in _words(rest, escape, strict=True):
                opened = _heredoc(word)
                if opened is not None:
                    at, heredoc = _body(lines, at, opened[0], is_cut=opened[1])
                    heredocs.append(heredoc)
        yield Instruction(
            file=path,
            line=start + 1,
            end_line=at,
            column=column,
            name=name,
            text=rest,
            words=words,
            flags=flags,
            heredocs=tuple(heredocs),
        )


def _is_left_out(line: str) -> bool:
    stripped = line.strip(" \t\v\f")
    return not stripped or stripped.startswith("#")


def _split(joined: str) -> tuple[str, str, tuple[str, ...], tuple[str, ...] | None]:
    found = re.match(r"\S+", joined)
    name = found.group().upper() if found else ""
    rest = joined[len(name) :].strip(" \t\v\f")
    flags: list[str] = []
    while rest.startswith("--"):
        flag = _FLAG.match(rest)
        if flag is None or flag.group() == "--":
            break
        flags.append(flag.group())
        rest = rest[flag.end() :].lstrip(" \t\v\f")
    return name, rest, tuple(flags), _words_of(name, rest)


def _words_of(name: str, rest: str) -> tuple[str, ...] | None:
    if name == "ONBUILD" and not rest.upper().startswith("ONBUILD"):
        return _split(rest)[3]  # it has the form of what it holds
    return _json_words(rest) if name in _WITH_JSON else None


def _json_words(rest: str) -> tuple[str, ...] | None:
    if not rest.startswith("["):
        return None
    try:
        value, _ = json.JSONDecoder().raw_decode(rest)  # what follows it is ignored
    except (ValueError, RecursionError):
        return None
    if isinstance(value, list) and all(isinstance(word, str) for word in value):
        return tuple(value)
    return None


def _may_have_heredoc(name: str, rest: str) -> bool:
    if "<<" not in rest:
        return False
    if name == "ONBUILD":
        name = rest.split(maxsplit=1)[0].upper()
    return name in _WITH_HEREDOC


def _words(text: str, escape: str, *, strict: bool = False) -> list[str]:
    """Split at spaces that no quote or escape protects; the words keep their quotes.

    `strict`: a text with an open quote has no words.
    """
    words: list[str] = []
    word = ""
    quote = ""
    at = 0
    while at < len(text):
        sign = text[at]
        if sign == escape and quote != "'" and at + 1 < len(text):
            word += text[at : at + 2]
            at += 2
            continue
        if quote:
            quote = "" if sign == quote else quote
            word += sign
        elif sign in "\"'":
            quote = sign
            word += sign
        elif sign.isspace():
            if word:
                words.append(word)
            word = ""
        else:
            word += sign
        at += 1
    if quote:
        return [] if strict else [*words, word]
    return [*words, word] if word else words


def _heredoc(word: str) -> tuple[str, bool] | None:
    """Return the terminator of a here-document that a word opens, and whether tabs are cut."""
    found = _HEREDOC.match(word)
    if found is None or not found.group(3):
        return None
    name = found.group(3)
    bare = name.strip("\"'")
    if not bare or re.search(r"[\s\"']", bare):
        return None
    return bare, found.group(2) == "-"


def _body(lines: list[str], at: int, name: str, *, is_cut: bool) -> tuple[int, Heredoc]:
    body: list[str] = []
    while at < len(lines):
        line = lines[at].lstrip("\t") if is_cut else lines[at]
        at += 1
        if line == name:
            break
        body.append(line)
    return at, Heredoc(name=name, body="\n".join(body))


def env_pairs(text: str, escape: str) -> list[tuple[str, str]]:
    """Return the variables of an ENV or ARG, values still quoted: `a=b c=d`, or `a b c`."""
    words = _words(text, escape)
    if words and "=" not in words[0]:
        name, _, value = text.partition(" ")
        return [(name.strip(), value.strip())]
    pairs = [word.partition("=") for word in words]
    return [(name, value) for name, equals, value in pairs if equals]


def unquoted(word: str, escape: str) -> list[tuple[str, bool]]:
    """Return the pieces of a word without their quotes, and whether variables count in each."""
    pieces: list[tuple[str, bool]] = []
    plain = ""
    quote = ""
    at = 0
    while at < len(word):
        sign = word[at]
        if sign == escape and quote != "'" and at + 1 < len(word):
            if word[at + 1] == "$":
                pieces += [(plain, True), ("$", False)]
                plain = ""
            else:
                plain += word[at + 1]
            at += 2
            continue
        if sign in "\"'" and (not quote or quote == sign):
            pieces.append((plain, quote != "'"))
            plain = ""
            quote = "" if quote else sign
        else:
            plain += sign
        at += 1
    return [piece for piece in [*pieces, (plain, quote != "'")] if piece[0]]


def split_words(text: str, escape: str = "\\") -> list[str]:
    """Split at spaces as a Dockerfile does; the words keep their quotes."""
    return _words(text, escape)
