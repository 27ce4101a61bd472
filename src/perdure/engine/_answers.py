"""Answers of people: the JSON Schema that they must fit, and the way back to the asked type."""

import sys
from typing import Any

import msgspec

from perdure.errors import SettingInvalid, UsageError


def _is_pydantic(schema: Any) -> bool:
    pydantic = sys.modules.get("pydantic")
    return (
        pydantic is not None and isinstance(schema, type) and issubclass(schema, pydantic.BaseModel)
    )


def schema_of(schema: Any) -> dict[str, Any] | None:
    """Return the JSON Schema of an answer type (None: anything goes). A dict is a JSON Schema.

    Raises:
        SettingInvalid: the type has no JSON Schema.
    """
    if schema is None or isinstance(schema, dict):
        return schema
    if _is_pydantic(schema):
        described: dict[str, Any] = schema.model_json_schema()
        return described
    try:
        return msgspec.json.schema(schema)
    except TypeError as error:
        msg = f"ctx.ask(schema={schema!r}): no JSON Schema can be made of it: {error}"
        raise SettingInvalid(msg) from error


def to_plain(value: Any) -> Any:
    """Return an answer as JSON-like data.

    Raises:
        UsageError: it can't be written as JSON.
    """
    dump = getattr(value, "model_dump", None)
    if callable(dump):
        return dump(mode="json")
    try:
        return msgspec.to_builtins(value, str_keys=True)
    except TypeError as error:
        msg = f"the answer {value!r} can't be written as JSON: {error}; nothing was answered"
        raise UsageError(msg) from error


def check(plain: Any, schema: dict[str, Any] | None, ask_id: str) -> None:
    """Check an answer against the ask's schema.

    Raises:
        UsageError: it does not fit; says where and what was expected. The ask stays open.
    """
    if schema is None:
        return
    import jsonschema  # noqa: PLC0415  # slow to import, needed when somebody answers

    validator = jsonschema.Draft202012Validator(schema)
    errors = sorted(validator.iter_errors(plain), key=lambda error: list(map(str, error.path)))
    if errors:
        where = "/".join(str(part) for part in errors[0].path) or "the answer"
        msg = (
            f"ask {ask_id!r}: {where}: {errors[0].message}; nothing was answered, the ask stays "
            "open"
        )
        raise UsageError(msg, ask_id=ask_id, schema=schema)


def convert(plain: Any, schema: Any, ask_id: str) -> Any:
    """Return the checked answer as the type that was asked for.

    Raises:
        UsageError: the type refuses what its own schema allowed.
    """
    if schema is None or isinstance(schema, dict):
        return plain
    try:
        if _is_pydantic(schema):
            return schema.model_validate(plain)
        return msgspec.convert(plain, schema)
    except ValueError as error:
        msg = f"ask {ask_id!r}: the answer {plain!r} does not fit {schema!r}: {error}"
        raise UsageError(msg, ask_id=ask_id) from error
