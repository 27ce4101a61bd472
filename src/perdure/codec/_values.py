"""Values to bytes and back, exactly.

The encoding is msgpack. Whatever msgpack has no exact form for is an extension of type 1 whose
payload is `[tag, data]`; an object is `["obj", [registered name, {field: value}]]`. The encoding
describes itself: it can be read without the user's types (`describe`), and only registered types
are ever constructed on load.

Invariant: `decode(encode(v)) == v` and has the same types throughout, or `encode` refuses.
"""

import datetime as dt
import pathlib
import sys
from collections.abc import Callable
from decimal import Decimal
from enum import Enum
from typing import Any

import msgspec

from perdure.codec._registry import TypeRegistry
from perdure.codec.limits import DEPTH_MAX, VALUE_BYTES_MAX
from perdure.errors import DecodeFailed, TypeUnknown, ValueUnserializable

_EXT = 1
_PLAIN = frozenset({str, int, float, bool, type(None), bytes})
_INT64 = range(-(2**63), 2**64)

_encoder = msgspec.msgpack.Encoder()
_sorting_encoder = msgspec.msgpack.Encoder(order="sorted")


def _ext(tag: str, payload: Any) -> msgspec.msgpack.Ext:
    return msgspec.msgpack.Ext(_EXT, _encoder.encode([tag, payload]))


class _Path:
    """Where in a value we are, kept as a linked list so that the good case pays nothing."""

    __slots__ = ("above", "name")

    def __init__(self, above: "_Path | None", name: object) -> None:
        self.above = above
        self.name = name

    def __str__(self) -> str:
        parts: list[str] = []
        at: _Path | None = self
        while at is not None:
            parts.append(f"[{at.name!r}]" if at.above is not None else str(at.name))
            at = at.above
        return "".join(reversed(parts))


class ValueCodec:
    """Encodes and decodes values with one registry of types."""

    def __init__(self, registry: TypeRegistry) -> None:
        """Use the registry's types; types registered later are known at once."""
        self._registry = registry
        self._decoder = msgspec.msgpack.Decoder(ext_hook=self._unwrap)

    def encode(self, value: Any, place: str = "value", prefix: str = "") -> bytes:
        """Return the encoded value.

        Args:
            value: what to store; not changed, not kept.
            place: name of the field or argument, for the error.
            prefix: what goes before the place in the error; apart, so that the good case joins no
                text.

        Raises:
            ValueUnserializable: names the place inside the value, and the type.
        """
        if type(value) not in _PLAIN or (type(value) is int and value not in _INT64):
            value = self._wire(value, _Path(None, f"{prefix}{place}"), 0)
        encoded = _encoder.encode(value)
        if len(encoded) > VALUE_BYTES_MAX:
            msg = (
                f"{place} takes {len(encoded)} bytes; the limit is {VALUE_BYTES_MAX}. Store it "
                "elsewhere and keep a reference."
            )
            raise ValueUnserializable(msg, place=place, bytes=len(encoded))
        return encoded

    def canonical(self, value: Any, place: str = "value") -> bytes:
        """Return the encoding with sorted map keys: equal values give equal bytes.

        For digests only.
        """
        return _sorting_encoder.encode(self._wire(value, _Path(None, place), 0))

    def decode(self, encoded: bytes | msgspec.Raw) -> Any:
        """Return the value.

        Raises:
            TypeUnknown: it holds an object of a type that is not registered here; names it.
            DecodeFailed: the bytes are not what `encode` writes.
        """
        try:
            return self._decoder.decode(encoded)
        except (msgspec.MsgspecError, RecursionError) as error:
            msg = f"stored value can't be decoded: {error}"
            raise DecodeFailed(msg) from error

    def _wire(self, value: Any, path: _Path, depth: int) -> Any:
        kind = type(value)
        if kind in _PLAIN:
            return value if kind is not int or value in _INT64 else _ext("int", str(value))
        if depth > DEPTH_MAX:
            msg = (
                f"{path} is nested deeper than {DEPTH_MAX} levels (or contains itself); it can't "
                "be stored"
            )
            raise ValueUnserializable(msg, place=str(path))
        if kind is list:
            return self._wire_items(value, path, depth)
        if kind is dict:
            return self._wire_map(value, path, depth)
        simple = _SIMPLE.get(kind)
        if simple is not None:
            return _ext(*simple(value))
        return self._wire_other(value, path, depth)

    def _wire_items(self, value: Any, path: _Path, depth: int) -> list[Any]:
        return [
            item
            if type(item) in _PLAIN and type(item) is not int
            else self._wire(item, _Path(path, index), depth + 1)
            for index, item in enumerate(value)
        ]

    def _wire_map(self, value: dict[Any, Any], path: _Path, depth: int) -> Any:
        if all(type(key) is str for key in value):
            return {
                key: item
                if type(item) in _PLAIN and type(item) is not int
                else self._wire(item, _Path(path, key), depth + 1)
                for key, item in value.items()
            }
        pairs = [
            [
                self._wire(key, _Path(path, "key"), depth + 1),
                self._wire(item, _Path(path, key), depth + 1),
            ]
            for key, item in value.items()
        ]
        return _ext("map", pairs)

    def _wire_other(self, value: Any, path: _Path, depth: int) -> Any:
        kind = type(value)
        if kind is tuple:
            return _ext("tuple", self._wire_items(value, path, depth))
        if kind is set or kind is frozenset:
            items = self._wire_items(value, path, depth)
            return _ext(kind.__name__, sorted(items, key=_encoder.encode))
        if isinstance(value, pathlib.PurePath):
            return _ext("path", str(value))
        if _is_uuid(kind):
            return _ext("uuid", value.bytes)
        name = self._registry.name_of(kind)
        if name is None:
            raise _refusal(value, path)
        if isinstance(value, Enum):
            return _ext("enum", [name, value.name])
        fields = self._registry.fields_of(value)
        wired = {key: self._wire(item, _Path(path, key), depth + 1) for key, item in fields.items()}
        return _ext("obj", [name, wired])

    def _unwrap(self, code: int, data: memoryview) -> Any:
        if code != _EXT:
            msg = f"extension type {code} is unknown here; was it written by a newer Perdure?"
            raise DecodeFailed(msg)
        tag, payload = self._decoder.decode(data)
        if tag == "obj":
            return self._registry.build(payload[0], payload[1])
        if tag == "enum":
            return self._registry.member(payload[0], payload[1])
        rebuild = _REBUILD.get(tag)
        if rebuild is None:
            msg = f"value tag {tag!r} is unknown here; was it written by a newer Perdure?"
            raise DecodeFailed(msg)
        return rebuild(payload)


def _refusal(value: Any, path: _Path) -> ValueUnserializable:
    kind = type(value)
    name = f"{kind.__module__}.{kind.__qualname__}"
    known = "annotate the field or the return type with it, or call perdure.register_type(...)"
    if not TypeRegistry.can_hold(kind):
        known = "use builtin types, a dataclass, a pydantic model, a msgspec.Struct or an Enum"
    msg = f"{path} is a {name}, which can't be stored; {known}. Nothing was written."
    return ValueUnserializable(msg, place=str(path), type=name)


def _zone(value: dt.datetime | dt.time) -> str | None:
    """Return the IANA key of a zone, or an offset, or None for a naive value."""
    if value.tzinfo is None:
        return None
    key = getattr(value.tzinfo, "key", None)
    return str(key) if key is not None else "offset"


def _datetime_wire(value: dt.datetime) -> tuple[str, list[Any]]:
    return "datetime", [value.isoformat(), _zone(value), value.fold]


def _datetime_back(payload: list[Any]) -> dt.datetime:
    text, zone, fold = payload
    value = dt.datetime.fromisoformat(text)
    if zone not in {None, "offset"}:
        from zoneinfo import ZoneInfo  # noqa: PLC0415  # costs start-up time; needed by few values

        value = value.replace(tzinfo=ZoneInfo(zone))
    return value.replace(fold=fold)


def _is_uuid(kind: type) -> bool:
    """Whether it is uuid.UUID; whoever has one has imported uuid, so we need not at start-up."""
    return kind is getattr(sys.modules.get("uuid"), "UUID", None)


def _uuid_back(payload: bytes) -> Any:
    from uuid import UUID  # noqa: PLC0415  # costs start-up time; needed by few values

    return UUID(bytes=payload)


_SIMPLE: dict[type, Callable[[Any], tuple[str, Any]]] = {
    Decimal: lambda v: ("decimal", str(v)),
    dt.datetime: _datetime_wire,
    dt.date: lambda v: ("date", v.isoformat()),
    dt.time: lambda v: ("time", v.isoformat()),
    dt.timedelta: lambda v: ("timedelta", [v.days, v.seconds, v.microseconds]),
    bytearray: lambda v: ("bytearray", bytes(v)),
    complex: lambda v: ("complex", [v.real, v.imag]),
}

_REBUILD: dict[str, Callable[[Any], Any]] = {
    "int": int,
    "tuple": tuple,
    "set": set,
    "frozenset": frozenset,
    "map": lambda pairs: {key: item for key, item in pairs},  # noqa: C416  # pairs are lists, dict() is slower here
    "decimal": Decimal,
    "datetime": _datetime_back,
    "date": dt.date.fromisoformat,
    "time": dt.time.fromisoformat,
    "timedelta": lambda v: dt.timedelta(days=v[0], seconds=v[1], microseconds=v[2]),
    "uuid": _uuid_back,
    "bytearray": bytearray,
    "complex": lambda v: complex(v[0], v[1]),
    "path": pathlib.Path,
}


def _describe_ext(code: int, data: memoryview) -> Any:
    if code != _EXT:
        return f"<extension {code}>"
    tag, payload = _describer.decode(data)
    if tag == "obj":
        return {"$type": payload[0], **payload[1]}
    if tag == "enum":
        return f"{payload[0]}.{payload[1]}"
    if tag in {"tuple", "set", "frozenset"}:
        return payload
    if tag == "map":
        return {str(key): item for key, item in payload}
    if tag == "datetime":
        return payload[0]
    if tag == "timedelta":
        return str(_REBUILD[tag](payload))
    if tag == "uuid":
        return str(_uuid_back(payload))
    return payload


_describer = msgspec.msgpack.Decoder(ext_hook=_describe_ext)


def describe(encoded: bytes | msgspec.Raw) -> Any:
    """Return an encoded value as JSON-like data, without the user's types.

    Raises:
        DecodeFailed: the bytes are not what `encode` writes.
    """
    try:
        return _describer.decode(encoded)
    except msgspec.MsgspecError as error:
        msg = f"stored value can't be decoded: {error}"
        raise DecodeFailed(msg) from error


__all__ = ["TypeUnknown", "ValueCodec", "describe"]
