"""Arrays and scalars of NumPy: bytes with their type and shape beside them, both ways.

NumPy is imported only where a value or stored data has one of them, and never reads a format of
its own (`numpy.load` may run code). An array is `[type, shape, order, bytes]`; a type is the text
that NumPy has for it (`<f8`, `>i4`, `<M8[us]`, `<U5`), or, for a structured one, `["struct",
fields, bytes of one item, is aligned]` with fields of `[name, type, offset, title]`, or `["sub",
type, shape]`.

Invariants: what comes back has the same type (byte order included), shape, order in memory and
bytes; what would not is refused (`NoExactForm`). Before anything is allocated the size that type
and shape ask for is compared with the bytes that are there.
"""

import re
import struct
import sys
from base64 import b64encode
from collections.abc import Callable, Iterable
from hashlib import sha256
from typing import Any, NoReturn

from perdure.codec._scalars import NoExactForm
from perdure.codec.limits import (
    ARRAY_DIMENSIONS_MAX,
    ELEMENTS_COMPARED_MAX,
    TYPE_DEPTH_MAX,
    VALUE_BYTES_MAX,
)
from perdure.errors import DecodeFailed

_SIMPLE = re.compile(r"[<>|][biufcSUV][1-9][0-9]{0,9}|[<>][mM]8(\[[0-9]{0,9}[A-Za-zμ]{1,7}\])?")
"""Texts of types that are taken from data: no objects, no commas, no parentheses."""

_LONG = {"f": 8, "c": 16}
"""Widest floats and complexes that are the same everywhere, in bytes."""


# -- to [tag, payload] -----------------------------------------------------------------------------


def array_wire(kind: type) -> Callable[[Any, bool], tuple[str, Any]] | None:
    """Return ((value, is_canonical) -> tag and payload) of a class of NumPy, or None."""
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return None
    if kind is numpy.ndarray:
        return _array
    is_scalar = issubclass(kind, numpy.generic) and kind.__module__ == "numpy"
    return _scalar if is_scalar else None


def _array(value: Any, is_canonical: bool) -> tuple[str, Any]:  # noqa: FBT001  # of one signature with _scalar
    described = _type_wire(value.dtype)
    if value.nbytes > VALUE_BYTES_MAX:
        reason = f"it takes {value.nbytes} bytes; the limit is {VALUE_BYTES_MAX}"
        raise NoExactForm(reason)
    is_fortran = value.flags.f_contiguous and not value.flags.c_contiguous and not is_canonical
    order = "F" if is_fortran else "C"
    if value.dtype.names is not None:
        value = _without_padding(value)
    return "ndarray", [described, list(value.shape), order, value.tobytes(order=order)]


def _scalar(value: Any, _is_canonical: bool) -> tuple[str, Any]:  # noqa: FBT001  # of one signature with _array
    numpy = sys.modules["numpy"]
    if isinstance(value, numpy.str_):  # its type would drop zeros at the end
        return "npscalar", ["str", "".join(value).encode("utf-8", "surrogatepass")]
    if isinstance(value, numpy.bytes_):
        return "npscalar", ["bytes", bytes(value)]
    described = _type_wire(value.dtype)
    if value.dtype.names is not None:
        value = _without_padding(numpy.asarray(value))
    return "npscalar", [described, value.tobytes()]


def _type_wire(dtype: Any, depth: int = 0) -> Any:
    """Return a type as stored.

    Raises:
        NoExactForm: it holds objects, or is not the same on every machine.
    """
    if dtype.hasobject:
        reason = "an array of objects would need code to be run on load; use a list"
        raise NoExactForm(reason)
    if dtype.metadata or depth > TYPE_DEPTH_MAX or dtype.itemsize == 0:
        reason = f"its type {dtype!r} has metadata, no bytes, or too many levels"
        raise NoExactForm(reason)
    if dtype.subdtype is not None:
        inner, shape = dtype.subdtype
        return ["sub", _type_wire(inner, depth + 1), list(shape)]
    if dtype.names is None:
        return _simple_wire(dtype)
    fields = []
    for name in dtype.names:
        inner, offset, *title = dtype.fields[name]
        fields.append([name, _type_wire(inner, depth + 1), offset, *title])
    return ["struct", fields, dtype.itemsize, bool(dtype.isalignedstruct)]


def _simple_wire(dtype: Any) -> str:
    text: str = dtype.str
    if not _SIMPLE.fullmatch(text) or dtype.itemsize > _LONG.get(dtype.kind, dtype.itemsize):
        reason = f"its type {dtype!r} is not the same on every machine, or not known here"
        raise NoExactForm(reason)
    return text


def _without_padding(value: Any) -> Any:
    """Return a copy in which the bytes between fields are zero: equal values give equal bytes."""
    numpy = sys.modules["numpy"]
    order = "F" if value.flags.f_contiguous and not value.flags.c_contiguous else "C"
    copy = numpy.zeros(value.shape, value.dtype, order=order)
    for name in value.dtype.names:
        inner = value[name]
        copy[name] = _without_padding(inner) if inner.dtype.names is not None else inner
    return copy


# -- and back --------------------------------------------------------------------------------------


def _numpy() -> Any:
    try:
        import numpy  # noqa: ICN001, PLC0415  # only where data has an array
    except ImportError as error:
        msg = "a stored value is an array of NumPy, which is not installed here: pip install numpy"
        raise DecodeFailed(msg) from error
    return numpy


def _refuse(what: str) -> NoReturn:
    msg = f"stored array can't be decoded: {what}"
    raise DecodeFailed(msg)


def _shape_back(shape: Any) -> tuple[int, ...]:
    is_shape = isinstance(shape, list) and all(type(size) is int and size >= 0 for size in shape)
    if not is_shape or len(shape) > ARRAY_DIMENSIONS_MAX:
        _refuse("its shape is no list of sizes")
    return tuple(shape)


def _product(shape: tuple[int, ...], item: int) -> int:
    total = item
    for size in shape:
        total *= size
    return total


def _array_back(payload: list[Any]) -> Any:
    numpy = _numpy()
    described, shape, order, data = payload
    dtype = _type_back(numpy, described)
    sizes = _shape_back(shape)
    if order not in {"C", "F"} or type(data) is not bytes:
        _refuse("no order, or no bytes")
    if _product(sizes, dtype.itemsize) != len(data):
        _refuse(f"type and shape {sizes} do not fit {len(data)} bytes")
    return numpy.ndarray(sizes, dtype, bytearray(data), order=order).copy(order=order)


def _scalar_back(payload: list[Any]) -> Any:
    numpy = _numpy()
    described, data = payload
    if type(data) is not bytes:
        _refuse("no bytes")
    if described == "str":
        return numpy.str_(data.decode("utf-8", "surrogatepass"))
    if described == "bytes":
        return numpy.bytes_(data)
    dtype = _type_back(numpy, described)
    if dtype.itemsize != len(data):
        _refuse(f"its type does not fit {len(data)} bytes")
    return numpy.ndarray((), dtype, bytearray(data)).copy()[()]


def _type_back(numpy: Any, described: Any, depth: int = 0) -> Any:
    """Return a stored type; a text is looked at before NumPy sees it."""
    if depth > TYPE_DEPTH_MAX:
        _refuse("its type has too many levels")
    if isinstance(described, str):
        return _simple_back(numpy, described)
    if not isinstance(described, list) or not described:
        _refuse("it has no type")
    if described[0] == "sub":
        _tag, inner, shape = described
        sizes = _shape_back(shape)
        found = _type_back(numpy, inner, depth + 1)
        if _product(sizes, found.itemsize) > VALUE_BYTES_MAX:
            _refuse("its type is larger than any value")
        return numpy.dtype((found, sizes))
    return _struct_back(numpy, described, depth)


def _simple_back(numpy: Any, text: str) -> Any:
    if not _SIMPLE.fullmatch(text):
        _refuse(f"type {text!r} is not known")
    dtype = numpy.dtype(text)
    if dtype.str != text or dtype.itemsize == 0:
        _refuse(f"type {text!r} is another one here")
    return dtype


def _struct_back(numpy: Any, described: list[Any], depth: int) -> Any:
    tag, fields, size, is_aligned = described
    if tag != "struct" or type(size) is not int or not 0 < size <= VALUE_BYTES_MAX:
        _refuse("it has no type")
    parts: dict[str, list[Any]] = {"names": [], "formats": [], "offsets": [], "titles": []}
    for name, inner, offset, *title in fields:
        parts["names"].append(name)
        parts["formats"].append(_type_back(numpy, inner, depth + 1))
        parts["offsets"].append(offset)
        parts["titles"].append(title[0] if title else None)
    dtype = numpy.dtype({**parts, "itemsize": size}, align=is_aligned is True)
    if dtype.itemsize != size:
        _refuse("its type has another size here")
    return dtype


ARRAY_BACK: dict[str, tuple[type, Callable[[Any], Any]]] = {
    "ndarray": (list, _array_back),
    "npscalar": (list, _scalar_back),
}
"""Tag -> (type that the payload must have, payload -> value)."""


# -- for people ------------------------------------------------------------------------------------

_CODES = {
    "b1": "?", "i1": "b", "i2": "h", "i4": "i", "i8": "q", "u1": "B", "u2": "H", "u4": "I",
    "u8": "Q", "f2": "e", "f4": "f", "f8": "d",
}  # fmt: skip
"""Type of NumPy without byte order -> type of `struct`."""


class ShownArray(dict[str, Any]):
    """An array as people see it: type, shape, order and digest; with its bytes, to be compared."""

    __slots__ = ("data",)

    def __init__(self, payload: list[Any]) -> None:
        """Describe a stored array."""
        described, shape, order, data = payload
        self.data: bytes = data if isinstance(data, bytes) else b""
        digest = sha256(self.data).hexdigest()
        super().__init__({"$array": described, "shape": shape, "order": order, "sha256": digest})

    @property
    def count(self) -> int:
        """How many elements it has."""
        return _product(_shape_back(self["shape"]), 1)

    def differing(self, other: "ShownArray") -> int | None:
        """Return in how many elements two arrays differ, bit by bit; None: they can't be compared.

        Only arrays of one type, shape and order are, and of at most `ELEMENTS_COMPARED_MAX`.
        """
        if any(self[key] != other[key] for key in ("$array", "shape", "order")):
            return None
        try:
            count = self.count
        except DecodeFailed:
            return None
        if not 0 < count <= ELEMENTS_COMPARED_MAX or len(self.data) != len(other.data):
            return None
        size = len(self.data) // count
        pairs = zip(_elements(self.data, size), _elements(other.data, size), strict=True)
        return sum(one != another for one, another in pairs)


def _elements(data: bytes, size: int) -> Iterable[object]:
    view = memoryview(data)
    if size == 8:  # noqa: PLR2004  # bytes; whole numbers are compared at once
        return view.cast("Q")
    if size == 4:  # noqa: PLR2004
        return view.cast("I")
    return (data[at : at + size] for at in range(0, len(data), max(size, 1)))


def _shown_scalar(payload: list[Any]) -> Any:
    described, data = payload
    if described == "str":
        return data.decode("utf-8", "backslashreplace")
    code = _CODES.get(described[1:]) if isinstance(described, str) else None
    if code is None or struct.calcsize(code) != len(data):
        return {"$scalar": described, "$bytes": b64encode(data).decode()}
    return struct.unpack(("<" if described[0] == "|" else described[0]) + code, data)[0]


ARRAY_SHOW: dict[str, Callable[[Any], Any]] = {"ndarray": ShownArray, "npscalar": _shown_scalar}
"""Tag -> (payload -> JSON-like)."""
