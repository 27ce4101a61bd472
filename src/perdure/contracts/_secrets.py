"""What a report shows of a project's texts: without passwords, tokens and keys.

Masked is what follows the name of a secret: `KEY=value`, `KEY: value`, `"key": "value"`,
`--key value`, `Bearer value`, and the part of a URL before its `@`. Too much is masked rather
than too little. Every text is gone through once, whatever is in it.
"""

import re
from collections.abc import Iterator

from perdure.contracts._patterns import regex

MASK = "***"

_NAME = regex(
    r"(?i)(?<![a-z0-9])(?:password|passwd|passphrase|pass|pwd|secret|token|credentials?|bearer"
    r"|api-?key)(?![a-z0-9])|(?<=[_-])key(?![a-z0-9])"
    r"|(?:password|passwd|secret|token|(?:api|secret|access|private)key)(?![a-z0-9])"
)
"""The end of a name of a secret: `DB_PASS`, `--api-key`, `authToken`; not `tokenizer`."""

_BETWEEN = regex(r"[\"']?\s{0,8}(?:[=:,]\s{0,8})?")
_OPTION_MAX = 80
"""Characters of an option's name."""

_SCHEMES = frozenset({"bearer", "basic", "token"})
_ENDS = " \t\n,;'\""


def without_secrets(text: str) -> str:
    """Return text in which URLs, settings and options have lost their secrets."""
    return _values(_urls(text))


def _urls(text: str) -> str:
    """Mask what is before the last `@` of a URL's host, also where the text ends within it."""
    if "://" not in text:
        return text
    return "".join(_url(word) for word in re.split(r"([\s,;\"'<>]+)", text))


def _url(word: str) -> str:
    begin = word.find("://")
    if begin < 0:
        return word
    begin += 3
    at = word.rfind("@")
    if at > begin:
        user, colon, _ = word[begin:at].partition(":")
        if not colon and "/" in user:
            return word  # of the path, as in `https://host/package@1.2`
        shown = f"{user}:{MASK}" if colon and "@" not in user and "/" not in user else MASK
        return f"{word[:begin]}{shown}{word[at:]}"
    host, colon, rest = word[begin:].partition(":")
    port = rest.partition("/")[0]
    is_cut = colon and port and "/" not in host and not port[0].isdigit() and port[0] != "$"
    return f"{word[:begin]}{host}:{MASK}" if is_cut else word


def _values(text: str) -> str:
    parts: list[str] = []
    at = 0
    for begin, end in _secrets(text):
        parts += [text[at:begin], MASK]
        at = end
    return "".join([*parts, text[at:]])


def _secrets(text: str) -> Iterator[tuple[int, int]]:
    """Yield where the values of secrets begin and end."""
    at = 0
    for name in _NAME.finditer(text):
        if name.end() < at:
            continue
        between = _BETWEEN.match(text, name.end())
        begin = between.end() if between is not None else name.end()
        said = text[name.end() : begin]
        is_named = "=" in said or ":" in said
        is_option = said.strip() in {"", ",", '",', "',"} and said != "" and _is_option(text, name)
        is_scheme = name.group().lower() == "bearer" and said.isspace()
        if not (is_named or is_option or is_scheme):
            continue
        begin, end = _value(text, begin)
        if end > begin and not (is_option and text[begin] == "-"):
            yield begin, end
            at = end


def _is_option(text: str, name: re.Match[str]) -> bool:
    """Whether the name is that of an option: its word begins with a dash."""
    low = max(0, name.start() - _OPTION_MAX)
    before = max(text.rfind(sign, low, name.start()) for sign in " \t\n\"'[,=")
    return text.startswith("-", max(before + 1, low))


def _value(text: str, begin: int) -> tuple[int, int]:
    """Return where a value begins and ends; in quotes it goes on to the closing one."""
    if text[begin : begin + 1] in {'"', "'"}:
        end = text.find(text[begin], begin + 1)
        return begin + 1, end if end >= 0 else len(text)
    end = _word_end(text, begin)
    if text[begin:end].lower() in _SCHEMES and text[end : end + 1] == " ":
        end = _word_end(text, end + 1)
    return begin, end


def _word_end(text: str, begin: int) -> int:
    return next((at for at in range(begin, len(text)) if text[at] in _ENDS), len(text))
