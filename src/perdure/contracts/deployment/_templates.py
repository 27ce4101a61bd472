"""Go templates as charts have them: parsed to blocks and expressions. Nothing is evaluated here."""

import json
import re

from msgspec import Struct, field

from perdure.contracts import limits
from perdure.contracts._patterns import regex
from perdure.contracts.files import TooMuchError

_WORDS = regex(r'"(?:[^"\\]|\\[\s\S])*+(?:"|\\?\Z)|`[^`]*+(?:`|\Z)|:=|[()|,=]|[^\s()|,"`=]+')
"""A string that nothing closes goes to the end: it is looked through once, not from each quote."""
_NUMBER = regex(r"-?\d{1,15}(\.\d{1,9})?$")
_FIELD = regex(r"(\$\w*|)((?:\.[\w\-]+)*)\.?$")
_CONSTANTS: dict[str, object] = {"true": True, "false": False, "nil": None}
_OPENING = frozenset({"if", "with", "range", "define", "block"})


class Expression(Struct, frozen=True, kw_only=True):
    """A part of a pipeline: `literal`, `field`, `call` or `open` (what is not understood)."""

    kind: str
    text: str
    """What it is called in words that stand for it."""
    literal: object = None
    root: str = ""
    """Of a field: empty for the dot, `$`, or a variable."""
    path: tuple[str, ...] = ()
    """Names that are looked up in it, one after the other."""
    arguments: "tuple[Expression, ...]" = ()


class Piece(Struct, kw_only=True):
    """One step of a template: `text`, `put`, `if`, `with` or `range`."""

    kind: str
    line: int
    text: str = ""
    expression: Expression | None = None
    names: tuple[str, ...] = ()
    """Variables that it sets."""
    arms: "list[Arm]" = field(default_factory=list)


class Arm(Struct, kw_only=True):
    """A way through an `if`, `with` or `range`; without an expression it is the `else`."""

    expression: Expression | None
    names: tuple[str, ...]
    pieces: list[Piece] = field(default_factory=list)


class Parsed(Struct, kw_only=True):
    """A file: what it puts out, and the templates that it names."""

    pieces: list[Piece]
    named: dict[str, list[Piece]]


class _Unclear(Exception):
    """An expression is not understood."""


class _Level(Struct, kw_only=True):
    pieces: list[Piece]
    piece: Piece | None = None


def parsed(text: str) -> Parsed:
    """Return the pieces of a template.

    Raises:
        TooMuchError: its blocks are nested too deep.
    """
    named: dict[str, list[Piece]] = {}
    levels = [_Level(pieces=[])]
    at, line, trims = 0, 1, False
    while True:
        start = text.find("{{", at)
        end = _end(text, start + 2) if start >= 0 else -1
        if end < 0:
            _add_text(levels[-1].pieces, text[at:], line, trims=trims)
            return Parsed(pieces=levels[0].pieces, named=named)
        before = text[at:start]
        body = text[start + 2 : end]
        if body.startswith("-"):
            before = before.rstrip()
        _add_text(levels[-1].pieces, before, line, trims=trims)
        line += text.count("\n", at, start)
        trims = body.endswith("-")
        _act(body.strip("-").strip(), line, levels, named)
        line += body.count("\n")
        at = end + 2


def _end(text: str, at: int) -> int:
    """Return where an action is closed, outside of its strings; -1: nowhere."""
    close = text.find("}}", at)
    if text.startswith(("/*", "-"), at):
        return close
    quotes, counted = 0, at
    while close >= 0:
        quotes += text.count('"', counted, close)
        if quotes % 2 == 0:
            return close
        counted, close = close, text.find("}}", close + 2)
        if close - at > limits.TEXT_MAX:
            return -1
    return close


def _add_text(pieces: list[Piece], text: str, line: int, *, trims: bool) -> None:
    if trims:
        left = text.lstrip()
        line += text.count("\n", 0, len(text) - len(left))
        text = left
    if text:
        pieces.append(Piece(kind="text", line=line, text=text))


def _act(body: str, line: int, levels: list[_Level], named: dict[str, list[Piece]]) -> None:
    if body.startswith("/*") or not body:
        return
    word, _, rest = body.partition(" ")
    word, rest = word.strip(), rest.strip()
    if word in _OPENING:
        if len(levels) > limits.YAML_DEPTH_MAX:
            msg = f"its blocks are nested deeper than {limits.YAML_DEPTH_MAX}"
            raise TooMuchError(msg)
        _open(word, rest, line, levels, named)
    elif word == "else" and levels[-1].piece is not None:
        piece = levels[-1].piece
        inner = re.sub(r"^(if|with)\b", "", rest).strip()
        names, expression = _statement(inner) if inner else ((), None)
        arm = Arm(expression=expression, names=names)
        piece.arms.append(arm)
        levels[-1].pieces = arm.pieces
    elif word == "end":
        if len(levels) > 1:
            levels.pop()
    else:
        names, expression = _statement(f"include {rest}" if word == "template" else body)
        put = Piece(kind="put", line=line, expression=expression, names=names)
        levels[-1].pieces.append(put)


def _open(
    word: str, rest: str, line: int, levels: list[_Level], named: dict[str, list[Piece]]
) -> None:
    if word in {"define", "block"}:
        name = rest.split('"')[1] if rest.count('"') > 1 else rest
        named[name] = []
        if word == "block":
            _, expression = _statement(f"include {rest}")
            levels[-1].pieces.append(Piece(kind="put", line=line, expression=expression))
        levels.append(_Level(pieces=named[name]))
        return
    names, expression = _statement(rest)
    arm = Arm(expression=expression, names=names)
    piece = Piece(kind=word, line=line, arms=[arm])
    levels[-1].pieces.append(piece)
    levels.append(_Level(pieces=arm.pieces, piece=piece))


def _statement(body: str) -> tuple[tuple[str, ...], Expression]:
    """Return the variables that a statement sets, and its pipeline."""
    words = _words(body)
    for sign in (":=", "="):
        if sign in words[:4] and words[0].startswith("$"):
            at = words.index(sign)
            names = tuple(word for word in words[:at] if word.startswith("$"))
            return names, _pipeline(words[at + 1 :], body)
    return (), _pipeline(words, body)


def _words(body: str) -> list[str]:
    """Return the words of an action; a field of what is in brackets is marked by its dot."""
    found: list[str] = []
    end = 0
    for match in _WORDS.finditer(body):
        word = match.group()
        if word.startswith(".") and found and found[-1] == ")" and match.start() == end:
            word = f"){word}"
        found.append(word)
        end = match.end()
    return found


def _pipeline(words: list[str], body: str) -> Expression:
    try:
        found, at = _joined(words, 0, 0)
    except _Unclear:
        return Expression(kind="open", text=body)
    return found if at == len(words) else Expression(kind="open", text=body)


def _joined(words: list[str], at: int, depth: int) -> tuple[Expression, int]:
    """Return commands that are joined by `|`: each is the last argument of the next."""
    found, at = _command(words, at, depth)
    while at < len(words) and words[at] == "|":
        following, at = _command(words, at + 1, depth)
        if following.kind != "call":
            raise _Unclear
        found = Expression(
            kind="call",
            text=found.text,
            root=following.root,
            arguments=(*following.arguments, found),
        )
    return found, at


def _command(words: list[str], at: int, depth: int) -> tuple[Expression, int]:
    operands: list[Expression] = []
    while at < len(words) and words[at] not in {"|", ")"}:
        operand, at = _operand(words, at, depth)
        operands.append(operand)
    if not operands:
        raise _Unclear
    first = operands[0]
    if first.kind == "call" and not first.arguments and not first.path:
        text = next((each.text for each in operands[1:] if each.kind == "field"), first.text)
        return Expression(
            kind="call", text=text, root=first.root, arguments=tuple(operands[1:])
        ), at
    if len(operands) > 1:
        raise _Unclear  # a method of an object: .Capabilities.APIVersions.Has "x"
    return first, at


def _operand(words: list[str], at: int, depth: int) -> tuple[Expression, int]:
    word = words[at]
    if word == "(":
        if depth > limits.SHELL_DEPTH_MAX:
            raise _Unclear
        inner, at = _joined(words, at + 1, depth + 1)
        if at >= len(words) or words[at] != ")":
            raise _Unclear
        at += 1
        # Brackets around a name alone are no call with what follows.
        inner = Expression(kind="call", text=inner.text, root="(", arguments=(inner,))
        if at < len(words) and words[at].startswith(")."):
            path = tuple(each for each in words[at][2:].split(".") if each)
            text = f"{inner.text}.{'.'.join(path)}"
            return Expression(
                kind="field", text=text, root="(", path=path, arguments=(inner,)
            ), at + 1
        return inner, at
    return _single(word), at + 1


def _single(word: str) -> Expression:
    if word[0] == '"':
        try:
            return Expression(kind="literal", text="text", literal=json.loads(word, strict=False))
        except ValueError:
            return Expression(kind="literal", text="text", literal=word.strip('"'))
    if word[0] == "`":
        return Expression(kind="literal", text="text", literal=word.strip("`"))
    if _NUMBER.match(word):
        number = float(word) if "." in word else int(word)
        return Expression(kind="literal", text="number", literal=number)
    if word in _CONSTANTS:
        return Expression(kind="literal", text=word, literal=_CONSTANTS[word])
    if word[0] in ".$":
        found = _FIELD.match(word)
        if found is None:
            raise _Unclear
        path = tuple(each for each in found.group(2).split(".") if each)
        return Expression(kind="field", text=word.strip("$."), root=found.group(1), path=path)
    if re.fullmatch(r"\w+", word) is None:
        raise _Unclear
    return Expression(kind="call", text=word, root=word)
