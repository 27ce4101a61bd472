"""Functions as tools: how a model sees them, and what it sends checked against that.

Theory: a tool is an effect of the kernel, and its kind says what a crash in the middle means. What
the model sends is decoded by the types of the function's parameters; nothing that does not fit
reaches the function.
"""

import datetime as dt
import functools
import inspect
import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any, overload

import msgspec
from msgspec import Struct

from perdure.agent._docstrings import described
from perdure.agent._messages import ToolCall, ToolSpec
from perdure.agent._text import cut
from perdure.agent.limits import (
    ARGUMENTS_CHARS_MAX,
    ARGUMENTS_DEPTH_MAX,
    ERROR_CHARS_MAX,
    TOOL_BYTES_MAX,
)
from perdure.errors import GraphInvalid
from perdure.graph import Effect
from perdure.model import EffectKind

FILLED_IN = frozenset({"idempotency_key", "transaction", "sandbox"})
"""Parameters that the runtime fills in; a model never sees them."""

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
"""What endpoints take as the name of a tool."""


class ArgumentsInvalid(Exception):
    """What a model sent as arguments does not fit; the text is for the model. Private."""


class Tool:
    """A function that a model may call.

    Attributes:
        effect: what is called, with its kind.
        spec: how a model sees it.
        approve: whether a person is asked before each call.
        approve_within: how long a person may take; None: for ever.
    """

    def __init__(
        self,
        effect: Effect[Any, Any],
        *,
        name: str | None = None,
        description: str | None = None,
        approve: bool = False,
        approve_within: dt.timedelta | float | None = None,
    ) -> None:
        """Look at the function once.

        Raises:
            GraphInvalid: no schema can be made of it, or it has no description.
        """
        self.effect = effect
        self.approve = approve
        self.approve_within = approve_within
        chosen = name or _bare_name(effect.function)
        if not _NAME.fullmatch(chosen):
            msg = f"tool {chosen!r}: use letters, digits, '_' and '-', at most 64; see tool(name=)"
            raise GraphInvalid(msg, tool=chosen)
        self._type = _arguments_type(chosen, effect.function)
        text, _ = described(_inner(effect.function))
        self.spec = _checked(
            ToolSpec(
                name=chosen, description=description or text, parameters=_schema(chosen, self._type)
            )
        )

    @property
    def name(self) -> str:
        """What a model calls it by."""
        return self.spec.name

    @property
    def is_free(self) -> bool:
        """Whether several calls of one reply may run at once, in any order."""
        return self.effect.kind in {EffectKind.PURE, EffectKind.KEYED}

    def __repr__(self) -> str:
        asks = ", approve=True" if self.approve else ""
        return f"Tool({self.name!r}, kind={self.effect.kind.value!r}{asks})"

    def arguments(self, call: ToolCall) -> dict[str, Any]:
        """Return the arguments that a model gave; defaults are not filled in.

        Raises:
            ArgumentsInvalid: they do not fit; says where, and what would.
        """
        if len(call.arguments) > ARGUMENTS_CHARS_MAX:
            msg = f"the arguments are longer than {ARGUMENTS_CHARS_MAX} characters"
            raise ArgumentsInvalid(msg)
        try:
            given = msgspec.json.decode(call.arguments or "{}")
            typed = msgspec.convert(given, self._type, str_keys=True)
        except (msgspec.DecodeError, RecursionError) as error:
            expected = msgspec.json.encode(self.spec.parameters).decode()
            msg = cut(f"{error}. Expected: {expected}", ERROR_CHARS_MAX)
            raise ArgumentsInvalid(msg) from error
        if depth_of(given) > ARGUMENTS_DEPTH_MAX:
            msg = f"the arguments are nested deeper than {ARGUMENTS_DEPTH_MAX} levels"
            raise ArgumentsInvalid(msg)
        return {name: getattr(typed, name) for name in given}


def depth_of(value: Any) -> int:
    """Return how deep lists and objects are in each other; level by level, so of any depth."""
    depth, level = 0, [value]
    while level:
        depth += 1
        lists = [each for each in level if isinstance(each, list)]
        objects = [list(each.values()) for each in level if isinstance(each, dict)]
        level = [inner for held in (*lists, *objects) for inner in held]
    return depth


@overload
def tool(function: Callable[..., Any] | Effect[Any, Any], /) -> Tool: ...


@overload
def tool(
    *,
    kind: EffectKind | str = EffectKind.ONCE,
    name: str | None = None,
    description: str | None = None,
    approve: bool = False,
    approve_within: dt.timedelta | float | None = None,
    **options: Any,
) -> Callable[[Callable[..., Any]], Tool]: ...


def tool(function: Any = None, /, **options: Any) -> Any:
    """Declare a tool, as `@tool` (kind once) or `@tool(kind=..., approve=True, ...)`.

    Args:
        function: async or plain, with type hints, and a docstring that tells a model what it does;
            or an effect. Parameters called `idempotency_key`, `transaction` and `sandbox` are
            filled in by the runtime.
        options: `name` (default: the function's), `description` (default: its docstring up to the
            first section), `approve` (a person is asked before each call), `approve_within`
            (timedelta or seconds; default: for ever); and those of `@effect`: `kind`, `retry`,
            `timeout_s`, `reconcile`, `compensate`, `limit`, `rejects`.

    Returns:
        A `Tool`, or a decorator that makes one.

    Raises:
        GraphInvalid: it can't be described to a model, or an option does not fit its kind.
    """
    if function is None:
        return functools.partial(_declare, options)
    return _declare(options, function)


_OWN = ("name", "description", "approve", "approve_within")


def _declare(options: Mapping[str, Any], function: Any) -> Tool:
    own = {key: value for key, value in options.items() if key in _OWN}
    rest = {key: value for key, value in options.items() if key not in _OWN}
    if isinstance(function, Effect):
        if rest:
            msg = f"tool of effect {function.name!r}: {', '.join(rest)} are said by the effect"
            raise GraphInvalid(msg, effect=function.name)
        return Tool(function, **own)
    # Functions made in a loop have one name; what tells the tools apart tells their calls apart.
    return Tool(Effect(function, name=own.get("name"), **rest), **own)


def as_tool(thing: Any) -> Tool:
    """Return a tool as it is, and a function or effect as one."""
    return thing if isinstance(thing, Tool) else tool(thing)


def _inner(function: Any) -> Any:
    """Return the function under decorators and partials: it has the name, text and types."""
    inner = inspect.unwrap(function)
    while isinstance(inner, functools.partial):
        inner = inspect.unwrap(inner.func)
    return inner


def _bare_name(function: Any) -> str:
    inner = _inner(function)
    return str(getattr(inner, "__name__", type(inner).__name__))


def _hints(name: str, function: Any) -> dict[str, Any]:
    try:
        return inspect.get_annotations(_inner(function), eval_str=True)
    except (NameError, TypeError, SyntaxError) as error:
        msg = f"tool {name!r}: its types can't be found: {error}; define them in its module"
        raise GraphInvalid(msg, tool=name) from error


def _arguments_type(name: str, function: Any) -> type[Struct]:
    """Return a class whose fields are the parameters that a model gives."""
    _, texts = described(_inner(function))
    hints = _hints(name, function)
    fields: list[Any] = []
    for each in inspect.signature(function).parameters.values():
        if each.name in FILLED_IN:
            continue
        if each.kind in {each.VAR_POSITIONAL, each.VAR_KEYWORD, each.POSITIONAL_ONLY}:
            msg = f"tool {name!r}: the parameter {each} can't be given by name; name each one"
            raise GraphInvalid(msg, tool=name)
        if each.name not in hints:
            msg = f"tool {name!r}: the parameter {each.name!r} has no type; write {each.name}: str"
            raise GraphInvalid(msg, tool=name)
        hint = hints[each.name]
        if each.name in texts:
            hint = Annotated[hint, msgspec.Meta(description=texts[each.name])]
        has_default = each.default is not each.empty
        fields.append((each.name, hint, each.default) if has_default else (each.name, hint))
    return msgspec.defstruct(name, fields, kw_only=True, forbid_unknown_fields=True)


def _schema(name: str, cls: type[Struct]) -> dict[str, Any]:
    try:
        _, parts = msgspec.json.schema_components([cls], ref_template="#/$defs/{name}")
    except TypeError as error:
        msg = f"tool {name!r}: no JSON Schema can be made of its parameters: {error}"
        raise GraphInvalid(msg, tool=name) from error
    schema: dict[str, Any] = parts.pop(cls.__name__)
    del schema["title"]
    return {**schema, "$defs": parts} if parts else schema


def _checked(spec: ToolSpec) -> ToolSpec:
    if not spec.description:
        msg = f"tool {spec.name!r}: a model knows of it what its docstring says; it has none"
        raise GraphInvalid(msg, tool=spec.name)
    if len(msgspec.json.encode(spec)) > TOOL_BYTES_MAX:
        msg = f"tool {spec.name!r}: description and schema take over {TOOL_BYTES_MAX} bytes"
        raise GraphInvalid(msg, tool=spec.name)
    return spec
