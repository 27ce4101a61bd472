"""Python of newer releases written as the oldest one that a check runs on has it.

`ast` reads the syntax of its own interpreter. A project may be written for a later one, and is
deployed with that. What later releases added is rewritten here, so that each line stays where it
is: type parameters go, `type X = ...` is an assignment, strings within f-strings get room by longer
quotes, template strings are f-strings, `except A, B:` gets parentheses, and `lazy import` is an
import. Nothing is rewritten unless the parser refused the text as it is.
"""

import re

from perdure.contracts._patterns import regex
from perdure.contracts.code import limits

_WORD = regex(r"[^\W\d]\w*")
_PARAMETERS = regex(r"(?:def|class)\s+[^\W\d]\w*\s*(?=\[)")
_TYPE = regex(r"type[ \t]+([^\W\d]\w*)[ \t]*(?=[\[=])(?!==)")
_EXCEPT = regex(r"except[ \t]*\*?[ \t]+")
_SPACE = regex(r"[ \t\f]*")
_ASYNC = regex(r"async[ \t]+")
_LAZY = regex(r"lazy[ \t]+(?=import\b|from\b)")
_LONG = ("'''", '"""')
_UNKNOWN = "_newer_python"
"""Stands for what can't be written: a name that nothing binds."""
_OPEN, _CLOSE = "([{", ")]}"


class _Unreadable(Exception):
    """A text that is no Python of any release, or too much."""


def lowered(text: str) -> str | None:
    """Return a text as Python 3.11 reads it, line by line; `None` if it can't be told apart."""
    try:
        return _Lowering(text).whole()
    except (_Unreadable, RecursionError):
        return None


_HEAD = regex(r"(?:async[ \t]+)?(def|class)[ \t]+([^\W\d]\w*)")


def without_block(text: str, line: int) -> tuple[str, str] | None:
    """Leave out the function or class around a line, and return it, too; `None` if there is none.

    Its name stays, as that of something that nobody knows.
    """
    lines = text.split("\n")
    first = min(line, len(lines)) - 1
    least: int | None = None  # how far what lies between is indented: all of it is in the block
    for at in range(first, -1, -1):
        space = len(lines[at]) - len(lines[at].lstrip())
        head = _HEAD.match(lines[at], space)
        if head and (least is None or least > space):
            end = _end_of_block(lines, at, space)
            kept = f"{' ' * space}{head.group(2)} = {_UNKNOWN}"
            rest = "\n".join([*lines[:at], kept, *[""] * (end - at - 1), *lines[end:]])
            return rest, "\n".join(lines[at:end])
        if _counts(lines[at]):
            least = space if least is None else min(least, space)
    return None


def _end_of_block(lines: list[str], at: int, space: int) -> int:
    """Return the line behind a block: the first one that is indented no more than its head."""
    for end in range(at + 1, len(lines)):
        is_more = len(lines[end]) - len(lines[end].lstrip()) > space
        if _counts(lines[end]) and not is_more:
            return end
    return len(lines)


def _counts(line: str) -> bool:
    """Whether the indentation of a line says which block it is in."""
    text = line.strip()
    return bool(text) and not text.startswith(("#", ")", "]", "}"))


class _Lowering:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0

    # ------------------------------------------------------------------------------ statements

    def whole(self) -> str:
        found: list[str] = []
        depth = 0
        is_start = True
        while self.at < len(self.text):
            if is_start and not depth:
                found.append(self._statement())
                is_start = False
                continue
            piece = self._piece(())
            found.append(piece)
            depth = max(0, depth + (piece in _OPEN) - (piece in _CLOSE))
            is_start = not depth and (piece in {"\n", ";"} or (is_start and piece.isspace()))
            if not depth and piece == ":":
                is_start = True  # `if x: type A = int`, and harmless in annotations
        return "".join(found)

    def _statement(self) -> str:
        """Rewrite the begin of a statement; what follows is read piece by piece."""
        found = self._taken(_SPACE)
        self._taken(_LAZY)
        named = _TYPE.match(self.text, self.at)
        if named:
            self.at = named.end()
            return found + named.group(1) + self._blanked()
        caught = self._taken(_EXCEPT)
        if caught:
            return found + caught + self._caught()
        found += self._taken(_ASYNC)
        defined = self._taken(_PARAMETERS)
        return found + defined + (self._blanked() if defined else "")

    def _taken(self, pattern: re.Pattern[str]) -> str:
        found = pattern.match(self.text, self.at)
        if found is None:
            return ""
        self.at = found.end()
        return found.group()

    def _blanked(self) -> str:
        """Leave out a list in brackets, with its lines kept by continuations."""
        if not self.text.startswith("[", self.at):
            return ""
        begin, depth = self.at, 0
        while self.at < len(self.text):
            piece = self._piece(())
            depth += (piece in _OPEN) - (piece in _CLOSE)
            if not depth:
                lines = self.text.count("\n", begin, self.at)
                return "\\\n" * lines or " "
        raise _Unreadable

    def _caught(self) -> str:
        """Put what is caught into parentheses, if it is several without any."""
        found: list[str] = []
        depth, commas = 0, 0
        while self.at < len(self.text):
            if not depth and self.text[self.at] in ":\n":
                whole = "".join(found)
                if commas and not re.search(r"\bas\b", whole):
                    return f"({whole.rstrip()})"
                return whole
            piece = self._piece(())
            found.append(piece)
            depth += (piece in _OPEN) - (piece in _CLOSE)
            commas += piece == "," and not depth
        raise _Unreadable

    # ---------------------------------------------------------------------------------- pieces

    def _piece(self, outer: tuple[str, ...]) -> str:
        """Take the next word, string, comment or sign, strings as they can be read."""
        here = self.text[self.at]
        if here == "#":
            end = self.text.find("\n", self.at)
            end = len(self.text) if end < 0 else end
            found, self.at = self.text[self.at : end], end
            return "" if outer else found
        if here in "'\"":
            return self._string("", outer)
        word = _WORD.match(self.text, self.at)
        if word:
            self.at = word.end()
            name = word.group()
            is_prefix = self.text[self.at : self.at + 1] in {"'", '"'} and len(name) <= len("rb")
            if is_prefix and set(name.lower()) <= set("rbuft"):
                return self._string(name, outer)
            return name
        if here == "\\" and self.at + 1 < len(self.text):
            self.at += 2
            return self.text[self.at - 2 : self.at]
        self.at += 1
        return here

    def _string(self, prefix: str, outer: tuple[str, ...]) -> str:
        mark = self.text[self.at]
        quote = mark * 3 if self.text.startswith(mark * 3, self.at) else mark
        self.at += len(quote)
        if set("ft") & set(prefix.lower()):
            return self._formatted(prefix, quote, outer)
        begin = self.at
        while not self.text.startswith(quote, self.at):
            if self.at >= len(self.text) or (len(quote) == 1 and self.text[self.at] == "\n"):
                raise _Unreadable
            self.at += 2 if self.text[self.at] == "\\" else 1
        inside = self.text[begin : self.at]
        self.at += len(quote)
        if not outer:
            return f"{prefix}{quote}{inside}{quote}"
        return self._nested(prefix, quote, inside, outer)

    def _nested(self, prefix: str, quote: str, inside: str, outer: tuple[str, ...]) -> str:
        """Write a string within a field: without backslashes and the quotes around it."""
        inside = re.sub(r"\\(.|\n)", lambda found: "\n" if found[1] == "\n" else " ", inside)
        for other in (quote, "'", '"', "'''", '"""'):
            if (
                other not in outer
                and other not in inside
                and not ("\n" in inside and len(other) == 1)
            ):
                return f"{prefix}{other}{inside}{other}"
        return _UNKNOWN

    def _formatted(self, prefix: str, quote: str, outer: tuple[str, ...]) -> str:
        """Write an f-string with quotes that none of its fields uses."""
        if len(outer) >= limits.FIELDS_DEEP_MAX:
            raise _Unreadable
        own = next((one for one in (quote[0] * 3, *_LONG) if one not in outer), quote)
        found: list[str] = []
        is_raw = "r" in prefix.lower()
        while not self.text.startswith(quote, self.at):
            if self.at >= len(self.text) or (len(quote) == 1 and self.text[self.at] == "\n"):
                raise _Unreadable
            here = self.text[self.at]
            if self.text.startswith(("{{", "}}"), self.at):
                found.append(here * 2)
                self.at += 2
            elif here == "{":
                found.append(self._field((*outer, own), quote))
            elif here == "\\" and not (is_raw and self.text[self.at + 1 : self.at + 2] in "{}"):
                piece = self.text[self.at : self.at + 2]
                found.append(piece if not outer else " " * (piece != "\\\n") or "\n")
                self.at += 2
            else:
                found.append(here)
                self.at += 1
        self.at += len(quote)
        body = "".join(found)
        if own in outer:
            return _UNKNOWN + "\n" * body.count("\n")  # there is no quote left for it
        if outer and body.endswith(own[0]):
            body = f"{body[:-1]} "
        kind = re.sub("[tT]", "f", prefix)
        return f"{kind}{own}{body}{own}"

    def _field(self, outer: tuple[str, ...], quote: str) -> str:
        """Rewrite `{expression!r:format}`, whose strings may use any quotes."""
        found = [self.text[self.at]]
        self.at += 1
        depth = 0
        while self.at < len(self.text):
            here = self.text[self.at]
            if here == "}" and not depth:
                self.at += 1
                return "".join([*found, here])
            if here == ":" and not depth and not self.text.startswith(":=", self.at):
                found.append(self._format(outer, quote))
                continue
            piece = self._piece(outer)
            depth += (piece in _OPEN) - (piece in _CLOSE) if piece else 0
            found.append(piece.replace("\\\n", "\n"))
        raise _Unreadable

    def _format(self, outer: tuple[str, ...], quote: str) -> str:
        """Take `:format`, which ends with the field or has fields of its own."""
        begin = self.at
        found: list[str] = []
        while self.at < len(self.text) and self.at - begin < limits.SHOWN_MAX * 10:
            here = self.text[self.at]
            if here == "}":
                return "".join(found)
            if here == "{":
                found.append(self._field(outer, quote))
            elif self.text.startswith(quote, self.at):
                break
            else:
                found.append(here)
                self.at += 1
        raise _Unreadable
