"""Finding the classes that values of an annotation may be of, for the codec to register."""

import enum
import typing
from collections.abc import Iterable, Mapping
from typing import Any

from perdure.codec import TypeRegistry


def collect_types(
    annotations: Iterable[Any], namespace: Mapping[str, Any] | None = None
) -> tuple[type, ...]:
    """Return every class named that the codec can hold, through generics and fields.

    Args:
        annotations: resolved annotations or classes.
        namespace: names that are not in a class's module, for annotations still to be resolved.

    Returns:
        The classes in the order found, none twice. A field whose annotation can't be resolved is
        passed over: the codec names the class when it meets a value of it.
    """
    found: dict[type, None] = {}
    seen: set[int] = set()
    waiting = list(annotations)
    # Annotations made on the way must live as long as `seen` remembers their id.
    alive: list[Any] = []
    while waiting:
        annotation = waiting.pop(0)
        if id(annotation) in seen:
            continue
        seen.add(id(annotation))
        alive.append(annotation)
        if isinstance(annotation, type) and TypeRegistry.can_hold(annotation):
            found[annotation] = None
        waiting.extend(_parts(annotation, namespace))
    return tuple(found)


def _parts(annotation: Any, namespace: Mapping[str, Any] | None) -> list[Any]:
    """Return what an annotation is made of: its origin, its arguments, its fields."""
    alias = getattr(annotation, "__value__", None)
    if alias is not None and not isinstance(annotation, type | enum.Enum):
        return [alias]
    parts = [typing.get_origin(annotation)] if typing.get_origin(annotation) else []
    if typing.get_origin(annotation) is typing.Literal:
        parts.extend(type(each) for each in typing.get_args(annotation))
    else:
        parts.extend(typing.get_args(annotation))
    if isinstance(annotation, type) and (
        typing.is_typeddict(annotation) or TypeRegistry.can_hold(annotation)
    ):
        parts.extend(_field_annotations(annotation, namespace))
    return parts


def _field_annotations(cls: type, namespace: Mapping[str, Any] | None) -> list[Any]:
    if issubclass(cls, enum.Enum):
        return []
    try:
        local = dict(namespace) if namespace else None
        return list(typing.get_type_hints(cls, localns=local, include_extras=True).values())
    except (NameError, TypeError, AttributeError):
        return []
