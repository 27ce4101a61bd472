"""Values of the standard library that msgpack has no exact form for: [tag, payload], both ways.

Invariants: what comes back is equal and of the same type, or the value is refused (`NoExactForm`);
a payload of another type than the tag's is refused before anything is made of it.
"""

import datetime as dt
import os
import sys
from base64 import b64encode
from collections.abc import Callable
from typing import Any

from perdure.codec.limits import SHOWN_INT_BITS_MAX


class NoExactForm(Exception):
    """A value that would not come back as it was; says why."""


# -- to [tag, payload] -----------------------------------------------------------------------------


def int_wire(value: int) -> tuple[str, bytes]:
    """Return an integer beyond 64 bits."""
    return "int", value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True)


def text_wire(value: str) -> tuple[str, bytes]:
    """Return a text with lone surrogates, which UTF-8 has no form for."""
    return "str", value.encode("utf-8", "surrogatepass")


def _zone(value: dt.datetime | dt.time) -> str | list[int] | None:
    """Return the IANA key of a zone, None for a naive value, "offset" for what the text says.

    A fixed offset with microseconds is given itself: `fromisoformat` reads some of them as UTC.
    """
    zone: Any = value.tzinfo
    if zone is None:
        return None
    if type(zone) is dt.timezone:
        offset = zone.utcoffset(None)
        return (
            [offset.days, offset.seconds, offset.microseconds] if offset.microseconds else "offset"
        )
    zoneinfo = sys.modules.get("zoneinfo")
    key = zone.key if zoneinfo is not None and type(zone) is zoneinfo.ZoneInfo else None
    if key is None:
        name = f"{type(zone).__module__}.{type(zone).__qualname__}"
        reason = f"its time zone is a {name}; use zoneinfo.ZoneInfo(key) or datetime.timezone"
        raise NoExactForm(reason)
    return str(key)


def _datetime_wire(value: dt.datetime) -> tuple[str, list[Any]]:
    return "datetime", [value.isoformat(), _zone(value), value.fold]


def _time_wire(value: dt.time) -> tuple[str, list[Any]]:
    return "time", [value.isoformat(), _zone(value), value.fold]


def _path_wire(value: Any) -> tuple[str, str | bytes]:
    text = str(value)
    # A file name that is no UTF-8 has surrogates in its text.
    return "path", text if text.isascii() or _is_text(text) else os.fsencode(value)


def _is_text(text: str) -> bool:
    return not any("\ud800" <= char <= "\udfff" for char in text)


def _pure_wire(value: Any) -> tuple[str, list[Any]]:
    flavour = "posix" if type(value).__name__ == "PurePosixPath" else "windows"
    return "pure_path", [flavour, str(value).encode("utf-8", "surrogatepass")]


_WIRE: dict[type, Callable[[Any], tuple[str, Any]]] = {
    dt.datetime: _datetime_wire,
    dt.date: lambda v: ("date", v.isoformat()),
    dt.time: _time_wire,
    dt.timedelta: lambda v: ("timedelta", [v.days, v.seconds, v.microseconds]),
    bytearray: lambda v: ("bytearray", bytes(v)),
    complex: lambda v: ("complex", [v.real, v.imag]),
}
"""Class -> (value -> tag and payload). Exact classes only: a subclass would lose what it adds."""

_LATER: dict[str, tuple[str, Callable[[Any], tuple[str, Any]]]] = {
    "Decimal": ("decimal", lambda v: ("decimal", str(v))),
    "UUID": ("uuid", lambda v: ("uuid", v.bytes)),
    "PosixPath" if os.name == "posix" else "WindowsPath": ("pathlib", _path_wire),
    "PurePosixPath": ("pathlib", _pure_wire),
    "PureWindowsPath": ("pathlib", _pure_wire),
}
"""Class name -> module and form, of modules that take time to import.

Whoever holds such a value has imported its module, so looking among the imported ones is enough.
"""


def wire_for(kind: type) -> Callable[[Any], tuple[str, Any]] | None:
    """Return (value -> tag and payload) of exactly this class, or None."""
    found = _WIRE.get(kind)
    if found is None and kind.__name__ in _LATER:
        module, form = _LATER[kind.__name__]
        if getattr(sys.modules.get(module), kind.__name__, None) is kind:
            found = _WIRE[kind] = form
    return found


# -- and back --------------------------------------------------------------------------------------


def _zoned(value: Any, zone: str | list[int] | None, fold: int) -> Any:
    if isinstance(zone, list):
        value = value.replace(tzinfo=dt.timezone(_timedelta_back(zone)))
    elif zone is not None and zone != "offset":
        from zoneinfo import ZoneInfo  # noqa: PLC0415  # costs start-up time; needed by few values

        value = value.replace(tzinfo=ZoneInfo(zone))
    return value.replace(fold=fold)


def _datetime_back(payload: list[Any]) -> dt.datetime:
    text, zone, fold = payload
    value: dt.datetime = _zoned(dt.datetime.fromisoformat(text), zone, fold)
    return value


def _time_back(payload: list[Any]) -> dt.time:
    text, zone, fold = payload
    value: dt.time = _zoned(dt.time.fromisoformat(text), zone, fold)
    return value


def _timedelta_back(payload: list[Any]) -> dt.timedelta:
    days, seconds, microseconds = payload
    return dt.timedelta(days=days, seconds=seconds, microseconds=microseconds)


def _complex_back(payload: list[Any]) -> complex:
    real, imaginary = payload
    if not type(real) is type(imaginary) is float:
        msg = "a complex number needs two floats"
        raise TypeError(msg)
    return complex(real, imaginary)


def _int_back(payload: bytes) -> int:
    return int.from_bytes(payload, "big", signed=True)


def _text_back(payload: bytes) -> str:
    return payload.decode("utf-8", "surrogatepass")


def _decimal_back(payload: str) -> Any:
    from decimal import Decimal  # noqa: PLC0415  # as _path_back

    return Decimal(payload)


def _uuid_back(payload: bytes) -> Any:
    from uuid import UUID  # noqa: PLC0415  # as _path_back

    return UUID(bytes=payload)


def _path_back(payload: str | bytes) -> Any:
    from pathlib import Path  # noqa: PLC0415  # costs start-up time; needed by few values

    return Path(payload if isinstance(payload, str) else os.fsdecode(payload))


def _pure_back(payload: list[Any]) -> Any:
    from pathlib import PurePosixPath, PureWindowsPath  # noqa: PLC0415  # as _path_back

    flavour, text = payload
    kinds = {"posix": PurePosixPath, "windows": PureWindowsPath}
    return kinds[flavour](_text_back(text))


BACK: dict[str, tuple[type | tuple[type, ...], Callable[[Any], Any]]] = {
    "int": (bytes, _int_back),
    "str": (bytes, _text_back),
    "tuple": (list, tuple),
    "set": (list, set),
    "frozenset": (list, frozenset),
    "map": (list, lambda pairs: {key: item for key, item in pairs}),  # noqa: C416  # pairs are lists, dict() is slower here
    "decimal": (str, _decimal_back),
    "datetime": (list, _datetime_back),
    "date": (str, dt.date.fromisoformat),
    "time": (list, _time_back),
    "timedelta": (list, _timedelta_back),
    "uuid": (bytes, _uuid_back),
    "bytearray": (bytes, bytearray),
    "complex": (list, _complex_back),
    "path": ((str, bytes), _path_back),
    "pure_path": (list, _pure_back),
}
"""Tag -> (type that the payload must have, payload -> value)."""


# -- for people ------------------------------------------------------------------------------------


def _shown_int(payload: bytes) -> int | str:
    value = _int_back(payload)
    return value if value.bit_length() <= SHOWN_INT_BITS_MAX else hex(value)


def _shown_text(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()


def _shown_map(pairs: list[Any]) -> Any:
    shown = {str(key): item for key, item in pairs}
    return shown if len(shown) == len(pairs) else pairs


def shown_bytes(payload: bytes) -> dict[str, str]:
    """Return bytes as JSON-like data."""
    return {"$bytes": b64encode(payload).decode()}


SHOW: dict[str, Callable[[Any], Any]] = {
    "int": _shown_int,
    "str": lambda v: _shown_text(_text_back(v)),
    "map": _shown_map,
    "datetime": lambda v: v[0],
    "time": lambda v: v[0],
    "timedelta": lambda v: str(_timedelta_back(v)),
    "uuid": lambda v: str(_uuid_back(v)),
    "complex": lambda v: str(_complex_back(v)),
    "path": lambda v: v if isinstance(v, str) else _shown_text(os.fsdecode(v)),
    "pure_path": lambda v: _shown_text(_text_back(v[1])),
}
"""Tag -> (payload -> JSON-like); without an entry the payload is shown as it is."""
