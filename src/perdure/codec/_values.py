"""Values to bytes and back, exactly.

The encoding is msgpack. Whatever msgpack has no exact form for is an extension of type 1 whose
payload is `[tag, payload]`; an object is `["obj", [registered name, {field: value}]]`. The encoding
describes itself: it can be read without the user's types (`describe`), and only registered types
are ever constructed on load.

Invariant: `decode(encode(v)) == v` and has the same types throughout, or `encode` refuses. Bytes
that `encode` did not write are a `DecodeFailed`, whatever is wrong with them.
"""

import math
from collections.abc import Callable
from enum import Enum, Flag
from typing import Any

import msgspec

from perdure.codec._arrays import ARRAY_BACK, ARRAY_SHOW, ShownArray, array_wire
from perdure.codec._pages import PAGED_EXT
from perdure.codec._registry import TypeRegistry
from perdure.codec._scalars import (
    BACK,
    SHOW,
    NoExactForm,
    int_wire,
    shown_bytes,
    text_wire,
    wire_for,
)
from perdure.codec.limits import DEPTH_MAX, PATH_PART_CHARS_MAX, PATH_PARTS_MAX, VALUE_BYTES_MAX
from perdure.errors import DecodeFailed, PerdureError, ValueUnserializable

_EXT = 1
_PLAIN = frozenset({str, int, float, bool, type(None), bytes})
_INT64 = range(-(2**63), 2**64)

_BACK = {**BACK, **ARRAY_BACK}
_SHOW = {**SHOW, **ARRAY_SHOW}

_encoder = msgspec.msgpack.Encoder()
_sorting_encoder = msgspec.msgpack.Encoder(order="sorted")


class _Path:
    """Where in a value we are, kept as a linked list so that the good case pays nothing."""

    __slots__ = ("above", "name")

    def __init__(self, above: "_Path | None", name: object) -> None:
        self.above = above
        self.name = name

    def __str__(self) -> str:
        parts: list[object] = []
        at = self
        while at.above is not None:
            parts.append(at.name)
            at = at.above
        parts.reverse()
        if len(parts) <= PATH_PARTS_MAX:
            return f"{at.name}{_steps(parts)}"
        half = PATH_PARTS_MAX // 2
        left_out = len(parts) - 2 * half
        return f"{at.name}{_steps(parts[:half])} ({left_out} levels) {_steps(parts[-half:])}"


def _steps(parts: list[object]) -> str:
    return "".join(f"[{_step(part)}]" for part in parts)


def _step(part: object) -> str:
    """Return a key or index for people; code of users is not asked, it may raise."""
    if part is _KEY:
        return "a key"
    if type(part) not in _PLAIN or (type(part) is int and part not in _INT64):
        return f"<{type(part).__qualname__}>"
    text = repr(part)
    if len(text) <= PATH_PART_CHARS_MAX:
        return text
    half = PATH_PART_CHARS_MAX // 2
    return f"{text[:half]}...{text[-half:]}"


class _Key:
    """Stands for a key itself, where a path leads into it."""


_KEY = _Key()


class _Wirer:
    """Turns a value into what msgpack can encode.

    The careful one also looks at every text for lone surrogates, the canonical one sorts whatever
    has no order of its own.
    """

    __slots__ = ("_encode", "_is_canonical", "_is_careful", "_plain", "_registry")

    def __init__(self, registry: TypeRegistry, *, is_canonical: bool, is_careful: bool) -> None:
        self._registry = registry
        self._is_canonical = is_canonical
        self._is_careful = is_careful
        self._plain = _PLAIN - {str} if is_careful else _PLAIN
        self._encode = (_sorting_encoder if is_canonical else _encoder).encode

    def encoded(self, value: Any, path: _Path) -> bytes:
        """Return the encoded value."""
        return self._encode(self.wire(value, path, 0))

    def _ext(self, tag: str, payload: Any) -> msgspec.msgpack.Ext:
        return msgspec.msgpack.Ext(_EXT, self._encode([tag, payload]))

    def wire(self, value: Any, path: _Path, depth: int) -> Any:
        """Return the value as msgpack's types and extensions."""
        kind = type(value)
        if kind in self._plain:
            return value if kind is not int or value in _INT64 else self._ext(*int_wire(value))
        if depth > DEPTH_MAX:
            msg = (
                f"{path} is nested deeper than {DEPTH_MAX} levels (or contains itself); it can't "
                "be stored. Nothing was written."
            )
            raise ValueUnserializable(msg, place=str(path))
        if kind is list:
            return self._items(value, path, depth)
        if kind is dict:
            return self._map(value, path, depth)
        scalar = wire_for(kind)
        if scalar is None:
            return self._other(value, path, depth)
        try:
            return self._ext(*scalar(value))
        except NoExactForm as error:
            raise _inexact(path, error) from None

    def _items(self, value: Any, path: _Path, depth: int) -> list[Any]:
        plain = self._plain
        return [
            item
            if type(item) in plain and type(item) is not int
            else self.wire(item, _Path(path, index), depth + 1)
            for index, item in enumerate(value)
        ]

    def _map(self, value: dict[Any, Any], path: _Path, depth: int) -> Any:
        plain = self._plain
        if all(type(key) is str for key in value) and not (self._is_careful and _is_odd(value)):
            return {
                key: item
                if type(item) in plain and type(item) is not int
                else self.wire(item, _Path(path, key), depth + 1)
                for key, item in value.items()
            }
        pairs = [
            [
                self.wire(key, _Path(path, _KEY), depth + 1),
                self.wire(item, _Path(path, key), depth + 1),
            ]
            for key, item in value.items()
        ]
        return self._ext("map", sorted(pairs, key=self._encode) if self._is_canonical else pairs)

    def _other(self, value: Any, path: _Path, depth: int) -> Any:
        kind = type(value)
        if kind is str:
            return self._ext(*text_wire(value)) if _is_odd((value,)) else value
        if kind is tuple:
            return self._ext("tuple", self._items(value, path, depth))
        if kind is set or kind is frozenset:
            items = self._items(value, path, depth)
            return self._ext(kind.__name__, sorted(items, key=self._encode))
        array = array_wire(kind)
        if array is not None:
            return self._array(array, value, path)
        name = self._registry.name_of(kind)
        if name is None:
            raise _refusal(value, path)
        if isinstance(value, Flag):
            return self._ext("flag", [name, self.wire(value.value, path, depth + 1)])
        if isinstance(value, Enum):
            return self._ext("enum", [name, value.name])
        return self._object(name, value, path, depth)

    def _array(self, array: Callable[[Any, bool], Any], value: Any, path: _Path) -> Any:
        try:
            return self._ext(*array(value, self._is_canonical))
        except NoExactForm as error:
            raise _inexact(path, error) from None

    def _object(self, name: str, value: Any, path: _Path, depth: int) -> Any:
        form = self._registry.form_of(type(value))
        wired = {
            key: self.wire(item, _Path(path, key), depth + 1)
            for key, item in form.fields(value).items()
        }
        beside = None if self._is_canonical else form.beside(value)
        return self._ext("obj", [name, wired] if beside is None else [name, wired, beside])


def _is_odd(texts: Any) -> bool:
    """Return whether a text has lone surrogates."""
    return any("\ud800" <= char <= "\udfff" for text in texts for char in text)


def _inexact(path: _Path, error: NoExactForm) -> ValueUnserializable:
    msg = f"{path} can't be stored: {error}. Nothing was written."
    return ValueUnserializable(msg, place=str(path))


def _refusal(value: Any, path: _Path) -> ValueUnserializable:
    kind = type(value)
    name = f"{kind.__module__}.{kind.__qualname__}"
    base = next((base for base in kind.__mro__ if base in _CONVERTIBLE), None)
    if TypeRegistry.can_hold(kind):
        known = "annotate the field or the return type with it, or call perdure.register_type(...)"
    elif base is not None:
        known = f"convert it with {base.__name__}(...)"
    else:
        known = "use builtin types, a dataclass, a pydantic model, a msgspec.Struct or an Enum"
    msg = f"{path} is a {name}, which can't be stored; {known}. Nothing was written."
    return ValueUnserializable(msg, place=str(path), type=name)


_CONVERTIBLE = _PLAIN.union({list, dict, tuple, set, frozenset, bytearray})


class ValueCodec:
    """Encodes and decodes values with one registry of types."""

    def __init__(self, registry: TypeRegistry) -> None:
        """Use the registry's types; types registered later are known at once."""
        self._registry = registry
        self._decoder = msgspec.msgpack.Decoder(ext_hook=self._unwrap)
        self._wirers, self._canonical_wirers = (
            tuple(
                _Wirer(registry, is_canonical=is_canonical, is_careful=is_careful)
                for is_careful in (False, True)
            )
            for is_canonical in (False, True)
        )

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
        encoded = _encode_plain(value)
        if encoded is None:
            encoded = _encoded(self._wirers, value, f"{prefix}{place}")
        if len(encoded) > VALUE_BYTES_MAX:
            msg = (
                f"{prefix}{place} takes {len(encoded)} bytes; the limit is {VALUE_BYTES_MAX}. "
                "Store it elsewhere and keep a reference."
            )
            raise ValueUnserializable(msg, place=place, bytes=len(encoded))
        return encoded

    def canonical(self, value: Any, place: str = "value") -> bytes:
        """Return an encoding of which equal values of equal types give equal bytes.

        The order of maps and sets does not count. For digests only.

        Raises:
            ValueUnserializable: as `encode`.
        """
        return _encoded(self._canonical_wirers, value, place)

    def decode(self, encoded: bytes | msgspec.Raw) -> Any:
        """Return the value.

        Raises:
            TypeUnknown: it holds an object of a type that is not registered here; names it.
            DecodeFailed: the bytes are not what `encode` writes, or a class has changed too much.
        """
        return _decoded(self._decoder.decode, encoded)

    def _unwrap(self, code: int, data: memoryview) -> Any:
        tag, payload = _parts(self._decoder, code, data)
        if tag == "obj":
            name, fields, *beside = _checked(tag, payload, list)
            return self._registry.build(name, _checked(tag, fields, dict), *beside)
        if tag == "enum":
            name, member = _checked(tag, payload, list)
            return self._registry.member(name, member)
        if tag == "flag":
            name, bits = _checked(tag, payload, list)
            return self._registry.flags(name, bits)
        if tag not in _BACK:
            msg = f"value tag {tag!r} is unknown here; was it written by a newer Perdure?"
            raise DecodeFailed(msg)
        kind, back = _BACK[tag]
        return back(_checked(tag, payload, kind))


def _encode_plain(value: Any) -> bytes | None:
    """Return the encoding of a value that needs no look inside, else None."""
    kind = type(value)
    if kind not in _PLAIN or (kind is int and value not in _INT64):
        return None
    try:
        return _encoder.encode(value)
    except (ValueError, OverflowError):
        return None  # the long way finds another form, or says what is wrong


def _encoded(wirers: tuple[_Wirer, ...], value: Any, place: str) -> bytes:
    """Return the encoded value; texts are looked at one by one only if one of them is odd."""
    fast, careful = wirers
    try:
        try:
            return fast.encoded(value, _Path(None, place))
        except UnicodeEncodeError:
            return careful.encoded(value, _Path(None, place))
    except RecursionError as error:
        msg = f"{place} is nested too deeply to be stored from here. Nothing was written."
        raise ValueUnserializable(msg, place=place) from error
    except (ValueError, OverflowError) as error:
        msg = f"{place} can't be stored: {error}. Nothing was written."
        raise ValueUnserializable(msg, place=place) from error


def _parts(decoder: Any, code: int, data: memoryview) -> tuple[str, Any]:
    if code != _EXT:
        msg = f"extension type {code} is unknown here; was it written by a newer Perdure?"
        raise DecodeFailed(msg)
    tag, payload = decoder.decode(data)
    return _checked("extension", tag, str), payload


def _checked(tag: str, payload: Any, kind: type | tuple[type, ...]) -> Any:
    if not isinstance(payload, kind):
        msg = f"stored value can't be decoded: {tag!r} with a {type(payload).__name__}"
        raise DecodeFailed(msg, tag=tag)
    return payload


def _decoded(decode: Callable[[Any], Any], encoded: bytes | msgspec.Raw) -> Any:
    try:
        return decode(encoded)
    except PerdureError:
        raise
    except Exception as error:  # what hostile bytes, or a user's class that changed, may raise
        msg = f"stored value can't be decoded: {type(error).__name__}: {error}"
        raise DecodeFailed(msg) from error


def _describe_ext(code: int, data: memoryview) -> Any:
    if code == PAGED_EXT:
        return f"<{len(data)} bytes of references to pages>"
    if code != _EXT:
        return f"<extension {code}>"
    tag, payload = _parts(_describer, code, data)
    if tag == "obj":
        name, fields, *_beside = _checked(tag, payload, list)
        return {"$type": name, **_checked(tag, fields, dict)}
    if tag == "enum":
        name, member = _checked(tag, payload, list)
        return f"{name}.{member}"
    if tag == "flag":
        name, bits = _checked(tag, payload, list)
        return f"{name}({bits})"
    show: Callable[[Any], Any] | None = _SHOW.get(tag)
    if show is None:
        return payload
    return show(_checked(tag, payload, _BACK[tag][0]))


_describer = msgspec.msgpack.Decoder(ext_hook=_describe_ext)


def describe(encoded: bytes | msgspec.Raw) -> Any:
    """Return an encoded value as JSON-like data, without the user's types.

    Raises:
        DecodeFailed: the bytes are not what `encode` writes.
    """
    return _decoded(lambda given: _json_like(_describer.decode(given)), encoded)


def _json_like(value: Any) -> Any:
    """Return decoded data without what JSON has no form for: bytes, nan, infinities."""
    if type(value) is ShownArray:
        return value
    if isinstance(value, dict):
        return {str(key): _json_like(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_json_like(item) for item in value]
    if isinstance(value, bytes):
        return shown_bytes(value)
    is_json = value is None or isinstance(value, str | int | float)
    return (
        value if is_json and not (type(value) is float and not math.isfinite(value)) else str(value)
    )


__all__ = ["ValueCodec", "describe"]
