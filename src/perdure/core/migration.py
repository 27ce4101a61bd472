"""What migrations make of a stored state, of names, of updates and of input. Pure.

Theory: migrations lead from version to version; a chain of them is applied in order. Names of
nodes and fields are mapped one by one. The fields go through the functions all at once, so what
is not a whole state (an update of a node that has ended, the input of a run that has not begun) is
carried over by what it makes of the state: by the difference between the migrated state with it and
without it. Where that does not say it for certain, it is refused.

Invariant: nothing is guessed. What can't be carried over exactly is a `MigrationFailed`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from perdure.core.plan import GraphPlan, Migration
from perdure.errors import MigrationFailed, UpdateInvalid
from perdure.model import WriteOp

Chain = tuple[Migration, ...]
"""Migrations that follow each other, in order."""

Values = dict[str, Any]
Writes = Mapping[str, tuple[str, Any]]
"""An update: field -> (op, live value)."""

_ABSENT: Any = object()


def chain_of(plan: GraphPlan, version: int, to_version: int | None = None) -> Chain | None:
    """Return the migrations from a version to the plan's own, or to one on the way.

    Empty: it is that version; None: none lead there.
    """
    target = plan.version if to_version is None else to_version
    chain: list[Migration] = []
    at = version
    while at != target:
        hop = plan.migrations.get(at)
        if hop is None or hop.to_version > target:
            return None
        chain.append(hop)
        at = hop.to_version
    return tuple(chain)


def shown(chain: Chain) -> str:
    """Return a chain for people: `1->2->3`."""
    return "->".join(map(str, versions_of(chain)))


def versions_of(chain: Chain) -> tuple[int, ...]:
    """Return the versions that a chain passes, both ends too."""
    return (*(hop.from_version for hop in chain[:1]), *(hop.to_version for hop in chain))


def node_after(chain: Chain, name: str) -> str | None:
    """Return what a node is called after the chain; None: it is gone."""
    for hop in chain:
        renamed = hop.nodes.get(name, name)
        if renamed is None:
            return None
        name = renamed
    return name


def field_after(chain: Chain, name: str) -> str | None:
    """Return what a field is called after the renames of the chain; None: it is dropped."""
    for hop in chain:
        renamed = hop.fields.get(name, name)
        if renamed is None:
            return None
        name = renamed
    return name


def has_function(chain: Chain) -> bool:
    """Return whether more is done than renaming."""
    return any(hop.upgrade is not None for hop in chain)


# -- a whole state ---------------------------------------------------------------------------------


def upgraded(chain: Chain, values: Values) -> Values:
    """Return what the chain makes of a state.

    Args:
        chain: the migrations.
        values: the stored fields; may be changed by the functions.

    Raises:
        MigrationFailed: a function raised, or returned no dict of fields; says which.
    """
    for hop in chain:
        values = _renamed(hop, values)
        if hop.upgrade is not None:
            values = _called(hop, hop.upgrade, values)
    return values


def _renamed(hop: Migration, values: Values) -> Values:
    if not hop.fields:
        return values
    found: Values = {}
    for name, value in values.items():
        after = hop.fields.get(name, name)
        if after is None:
            continue
        if after in found or (after != name and after in values and after not in hop.fields):
            msg = f"{_place(hop)}: field {name!r} becomes {after!r}, which is stored already"
            raise MigrationFailed(msg, field=name)
        found[after] = value
    return found


def _called(hop: Migration, upgrade: Callable[[Values], Any], values: Values) -> Values:
    known = ", ".join(map(repr, values)) or "none"
    try:
        found = upgrade(values)
    except KeyError as error:
        msg = (
            f"{_place(hop)} raised KeyError: {error}; the stored fields are {known}. A field may "
            "be absent: use state.get(...), state.pop(name, None)"
        )
        raise MigrationFailed(msg) from error
    except (Exception, SystemExit) as error:  # a user's function: whatever it raises is a refusal
        msg = f"{_place(hop)} raised {type(error).__name__}: {_text_of(error)}"
        raise MigrationFailed(msg) from error
    if not isinstance(found, Mapping) or not all(type(name) is str for name in found):
        got = "None" if found is None else type(found).__name__
        msg = f"{_place(hop)} returned {got}; return the dict of fields"
        raise MigrationFailed(msg)
    return dict(found)


def _text_of(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as broken:  # noqa: BLE001  # a user's __str__; the reason must be told
        return f"(its text can't be read: {type(broken).__name__})"


def _place(hop: Migration) -> str:
    return f"migration {hop.from_version} -> {hop.to_version}"


def fitted(plan: GraphPlan, values: Values) -> Values:
    """Return a state as the graph's state type takes it, with the defaults of absent fields.

    Raises:
        MigrationFailed: with all that does not fit.
    """
    unknown = [name for name in values if name not in plan.channels]
    problems = [f"the state has no field {name!r}" for name in unknown]
    found: Values = {}
    for name, channel in plan.channels.items():
        if name not in values:
            if channel.default is not None:
                found[name] = channel.default()
            elif not channel.is_optional:
                problems.append(f"field {name!r} is missing and has no default")
            continue
        try:
            found[name] = values[name] if channel.check is None else channel.check(values[name])
        except UpdateInvalid as error:
            problems.append(str(error))
    if problems:
        msg = f"what came of it does not fit {plan.name} v{plan.version}: {'; '.join(problems)}"
        raise MigrationFailed(msg, problems=problems)
    return found


# -- what is no whole state ------------------------------------------------------------------------


def with_writes(plan: GraphPlan, values: Values, writes: Writes) -> Values:
    """Return a state with an update, merged as far as that needs no reducer of an older version.

    A field that a function merges is merged by the present one of the same name.

    Raises:
        MigrationFailed: there is none, or it raised.
    """
    merged = dict(values)
    for name, (op, value) in writes.items():
        if op == WriteOp.REPLACE or name not in merged:
            merged[name] = value
        elif op == WriteOp.APPEND:
            merged[name] = [*merged[name], *value]
        else:
            merged[name] = _folded(plan, name, merged[name], value, op)
    return merged


def _folded(plan: GraphPlan, name: str, old: Any, value: Any, op: str) -> Any:
    channel = plan.channels.get(name)
    if channel is None or channel.reduce is None:
        msg = (
            f"field {name!r} was merged by a function of the older version, and the newer one has "
            "none of that name"
        )
        raise MigrationFailed(msg, field=name)
    try:
        for item in value if op == WriteOp.FOLD_MANY else [value]:
            old = channel.reduce(old, item)
    except Exception as error:
        msg = f"field {name!r}: merging by its reducer raised {type(error).__name__}: {error}"
        raise MigrationFailed(msg, field=name) from error
    return old


def carried(
    plan: GraphPlan, chain: Chain, fresh: Callable[[], Values], writes: Writes, place: str
) -> dict[str, tuple[str, Any]]:
    """Return an update of the older version as one of the newer.

    Args:
        plan: the newer version.
        chain: the migrations.
        fresh: gives the state that the update is for, anew at each call.
        writes: the update.
        place: whose update it is, for the message.

    Raises:
        MigrationFailed: what it would be can't be said for certain.
    """
    if not writes:
        return {}
    before, after = fresh(), with_writes(plan, fresh(), writes)
    base = upgraded(chain, fresh())
    full = upgraded(chain, with_writes(plan, fresh(), writes))
    found: dict[str, tuple[str, Any]] = {}
    for name in {**base, **full}:
        old, new = base.get(name, _ABSENT), full.get(name, _ABSENT)
        source = _source(chain, writes, name)
        if source is not None and _is_passed(source, name, (before, after), (base, full)):
            found[name] = writes[source]
        elif not is_alike(old, new):
            found[name] = _difference(plan, name, old, new, place)
    return {name: _with_op(plan, name, write, place) for name, write in found.items()}


def _source(chain: Chain, writes: Writes, name: str) -> str | None:
    """Return the written field that a field was called before, if one was."""
    return next((each for each in writes if field_after(chain, each) == name), None)


def _is_passed(
    source: str, name: str, before: tuple[Values, Values], after: tuple[Values, Values]
) -> bool:
    """Return whether a field went through the migrations as it was, without the update and with."""
    return all(
        is_alike(old.get(source, _ABSENT), new.get(name, _ABSENT))
        for old, new in zip(before, after, strict=True)
    )


def _difference(plan: GraphPlan, name: str, old: Any, new: Any, place: str) -> tuple[str, Any]:
    channel = plan.channels.get(name)
    op = channel.op if channel is not None else WriteOp.FOLD
    if op is WriteOp.REPLACE and new is not _ABSENT:
        return WriteOp.REPLACE.value, new
    is_list = isinstance(new, list) and (old is _ABSENT or isinstance(old, list))
    if op is WriteOp.APPEND and is_list:
        begin = [] if old is _ABSENT else old
        if is_alike(new[: len(begin)], begin):
            return WriteOp.APPEND.value, new[len(begin) :]
    msg = (
        f"{place}: its update, which the step under way still keeps, would change field {name!r} "
        "in a way that can't be told from the migrated state. Let a worker of the older version "
        "finish the step"
    )
    raise MigrationFailed(msg, field=name)


def _with_op(plan: GraphPlan, name: str, write: tuple[str, Any], place: str) -> tuple[str, Any]:
    """Return a write as the channel takes it: the newer version may merge the field otherwise."""
    op, value = write
    channel = plan.channels.get(name)
    folds = (WriteOp.FOLD, WriteOp.FOLD_MANY)
    is_same = channel is not None and (op == channel.op or (op in folds and channel.op in folds))
    if channel is None or not is_same:
        has = "is not there" if channel is None else "is merged otherwise"
        msg = (
            f"{place}: it wrote field {name!r}, which {has} in v{plan.version}. Let a worker of "
            "the older version finish the step"
        )
        raise MigrationFailed(msg, field=name)
    if channel.check is None or op == WriteOp.FOLD_MANY:
        return op, value
    try:
        return op, channel.check(value)
    except UpdateInvalid as error:
        msg = f"{place}: {error}"
        raise MigrationFailed(msg, field=name) from error


def contributed(
    plan: GraphPlan, chain: Chain, fresh: Callable[[], Values]
) -> dict[str, tuple[str, Any]]:
    """Return input for the older version as input for the newer, for a state that is newer too.

    What a function adds to an empty state it adds to every one: that is no part of the input.

    Raises:
        MigrationFailed: a function raised, or the input can't be told from what it adds.
    """
    full = upgraded(chain, fresh())
    empty: Values = {}
    if has_function(chain):
        try:
            empty = upgraded(chain, {})
        except MigrationFailed as error:
            msg = (
                f"{error}: that was with an empty dict, which tells what it adds by itself. The "
                "state of the thread is newer than the run's input, so the two are brought "
                "together field by field"
            )
            raise MigrationFailed(msg) from error
    found = {name: value for name, value in full.items() if not is_alike(value, _of(empty, name))}
    for name in fresh() if has_function(chain) else ():
        # A value that equals what a function adds by itself was given all the same.
        found.update({each: full[each] for each in _made_of(chain, fresh, name, full)})
    unknown = [name for name in found if name not in plan.channels]
    if unknown:
        msg = f"the input becomes field {unknown[0]!r}, which v{plan.version} does not have"
        raise MigrationFailed(msg, field=unknown[0])
    return {name: (plan.channels[name].op.value, value) for name, value in found.items()}


def _made_of(chain: Chain, fresh: Callable[[], Values], name: str, full: Values) -> Iterator[str]:
    """Yield the migrated fields that a given field is found in: found out by leaving it out.

    Where that makes no difference, by giving another value.
    """
    after = field_after(chain, name)
    if after is None:
        return
    if is_alike(_of(full, after), fresh()[name]):
        yield after
        return
    for other in (_without(fresh(), name), _changed(fresh(), name)):
        differing = differences(full, upgraded(chain, other))
        if differing:
            yield from (each for each in differing if each in full)
            return


def differences(one: Values, other: Values) -> list[str]:
    """Return the names of the fields in which two states differ."""
    return [name for name in {**one, **other} if not is_equal(one, other, name)]


def _without(values: Values, name: str) -> Values:
    del values[name]
    return values


def _changed(values: Values, name: str) -> Values:
    value = values[name]
    if isinstance(value, bool):
        values[name] = not value
    elif isinstance(value, int | float):
        values[name] = value + 1
    elif isinstance(value, str):
        values[name] = f"{value}?"
    elif isinstance(value, list) and not value:
        return values  # nothing to append is nothing
    else:
        msg = (
            f"it can't be told what the migrations make of field {name!r} of the input, which the "
            "run was started with while its thread was of the older version; start it again"
        )
        raise MigrationFailed(msg, field=name)
    return values


def _of(values: Values, name: str) -> Any:
    return values.get(name, _ABSENT)


def is_equal(before: Mapping[str, Any], after: Mapping[str, Any], name: str) -> bool:
    """Return whether a field is the same in two states; absent in both is the same, too."""
    return is_alike(before.get(name, _ABSENT), after.get(name, _ABSENT))


def is_alike(one: Any, other: Any) -> bool:
    """Return whether two values are equal and alike; what can't say counts as different."""
    if one is other:
        return True
    if one is _ABSENT or other is _ABSENT or type(one) is not type(other):
        return False
    try:
        return bool(one == other)
    except Exception:  # noqa: BLE001  # a user's __eq__, or an array that does not say
        return False


def both_became(names: Sequence[tuple[str, str]]) -> list[str]:
    """Return for (before, after) pairs of nodes under way which ones became one node."""
    by_after: dict[str, set[str]] = {}
    for before, after in names:
        by_after.setdefault(after, set()).add(before)
    return [
        f"nodes {', '.join(map(repr, sorted(before)))} are under way and all became {after!r}"
        for after, before in by_after.items()
        if len(before) > 1
    ]
