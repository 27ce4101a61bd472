"""Durations, sizes and lists as Compose and Kubernetes write them."""

import re
import shlex

from perdure.contracts._patterns import regex

_DURATION = regex(r"(\d{1,15}(?:\.\d{1,9})?)(ns|us|µs|ms|s|m|h|d|w)")
_SECONDS = {
    "ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0,
    "d": 86400.0, "w": 604800.0,
}  # fmt: skip
_SIZE = regex(r"^(\d{1,15}(?:\.\d{1,9})?)\s*([a-zA-Z]{0,3})$")
_KUBERNETES = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}


def seconds(text: str) -> float | None:
    """Return the seconds of a duration such as `1m30s`; `None`: it is none."""
    text = text.strip()
    if re.fullmatch(r"\d{1,15}(\.\d{1,9})?", text):
        return float(text)
    found = _DURATION.findall(text)
    if not found or "".join(number + unit for number, unit in found) != text:
        return None
    return sum(float(number) * _SECONDS[unit] for number, unit in found)


def size(text: str, *, is_kubernetes: bool = False) -> int | None:
    """Return the bytes of a size; `512M` is binary to Compose and decimal to Kubernetes."""
    found = _SIZE.match(text.strip())
    if found is None:
        return None
    unit = found.group(2)
    letter = unit[:1].lower()
    if not unit or unit in {"b", "B"}:
        factor = 1
    elif letter in _KUBERNETES and unit.lower() in {
        letter,
        letter + "b",
        letter + "i",
        letter + "ib",
    }:
        power = {"k": 1, "m": 2, "g": 3, "t": 4}[letter]
        is_decimal = is_kubernetes and "i" not in unit.lower()
        factor = _KUBERNETES[letter] if is_decimal else 1024**power
    else:
        return None
    return int(float(found.group(1)) * factor)


def split(text: str) -> tuple[str, ...]:
    """Split a string command into words: no shell reads it."""
    try:
        return tuple(shlex.split(text, comments=False))
    except ValueError:
        return tuple(text.split())
