"""From declared migrations to those of a plan, or to all that is wrong with them.

Invariant: of one version at most one migration leads away, each leads to a higher version, and
every chain of them ends at the graph's own version. So there is one way from each version, or none.
"""

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

from msgspec import Struct, field

from perdure.core.plan import Migration
from perdure.graph._signature import (
    SignatureProblem,
    adapt,
    is_async_callable,
    is_generator_callable,
)
from perdure.graph._text import NAME_RULE, did_you_mean, is_name, names_text

Problem = tuple[str, str]
"""Where in the graph, and what is wrong there."""


class MigrationDeclared(Struct, kw_only=True):
    """One migration as declared."""

    from_version: Any
    to_version: Any
    nodes: dict[Any, Any]
    fields: dict[Any, Any]
    functions: list[Any] = field(default_factory=list)

    @property
    def place(self) -> str:
        """What messages call it."""
        return f"migration {self.from_version} -> {self.to_version}"


def read_migrations(
    declared: Sequence[MigrationDeclared],
    version: int,
    *,
    nodes: AbstractSet[str],
    fields: AbstractSet[str] | None,
) -> tuple[dict[int, Migration], list[Problem]]:
    """Return the migrations by the version that each leads away from, and what is wrong.

    Args:
        declared: as they were declared, in order.
        version: the graph's own.
        nodes: names of its nodes.
        fields: names of its state's fields; None: they could not be read.
    """
    problems: list[Problem] = []
    found: dict[int, Migration] = {}
    for each in declared:
        own = [*_version_problems(each, version), *_function_problems(each), *_name_problems(each)]
        if not own and each.from_version in found:
            other = found[each.from_version].to_version
            what = f"v{each.from_version} leads to v{other} already; leave one of the two out"
            own.append((each.place, what))
        problems += own
        if not own:
            found[each.from_version] = Migration(
                from_version=each.from_version,
                to_version=each.to_version,
                upgrade=adapt(each.functions[0], "state")[0] if each.functions else None,
                nodes=each.nodes,
                fields=each.fields,
            )
    if not problems:
        problems += _gaps(found, version)
    if not problems:
        problems += [*_lost_nodes(found, nodes), *_lost_fields(found, version, fields)]
    return found, problems


def _version_problems(declared: MigrationDeclared, version: int) -> Iterator[Problem]:
    lower, upper, place = declared.from_version, declared.to_version, declared.place
    for each in (lower, upper):
        if isinstance(each, bool) or not isinstance(each, int) or each < 1:
            yield place, f"{each!r} is no version; give whole numbers from 1"
            return
    if lower == upper:
        yield place, "it leads back to where it begins (a cycle); lead to a newer version"
    elif lower > upper:
        yield place, "it leads to an older version; what is newer is never made older"
    elif upper > version:
        yield place, f"it leads beyond this graph's version={version}; raise that, or lead to it"


def _function_problems(declared: MigrationDeclared) -> Iterator[Problem]:
    place = declared.place
    if len(declared.functions) > 1:
        yield place, "it decorates two functions; leave one of them out"
    for function in declared.functions:
        if not callable(function):
            yield place, f"{function!r} is no function; decorate def upgrade(state)"
        elif is_async_callable(function) or is_generator_callable(function):
            yield place, "its function must be a plain def: it only turns one dict into another"
        else:
            yield from _signature_problems(place, function)


def _signature_problems(place: str, function: Any) -> Iterator[Problem]:
    try:
        _call, takes_context = adapt(function, "state")
    except SignatureProblem as problem:
        yield place, f"its function: {problem}"
        return
    if takes_context:
        yield place, "its function takes (state) alone: a migration does nothing outside"


def _name_problems(declared: MigrationDeclared) -> Iterator[Problem]:
    for what, names in (("nodes", declared.nodes), ("fields", declared.fields)):
        for before, after in names.items():
            wrong = [each for each in (before, after) if each is not None and not is_name(each)]
            if wrong or before is None:
                shown = wrong[0] if wrong else None
                yield declared.place, f"{what}: {shown!r} is no name; {NAME_RULE}"
    targets = [after for after in declared.fields.values() if after is not None]
    for name in sorted({each for each in targets if targets.count(each) > 1}, key=str):
        yield declared.place, f"fields: two become {name!r}; join them in a function"


def _gaps(found: Mapping[int, Migration], version: int) -> Iterator[Problem]:
    for hop in found.values():
        if hop.to_version != version and hop.to_version not in found:
            place = f"migration {hop.from_version} -> {hop.to_version}"
            yield place, f"no migration leads on from v{hop.to_version} to v{version}; add one"


def _lost_nodes(found: Mapping[int, Migration], nodes: AbstractSet[str]) -> Iterator[Problem]:
    """Name renamed nodes whose last name the graph does not have."""
    for hop in found.values():
        for before, renamed in hop.nodes.items():
            name, at = renamed, hop.to_version
            while name is not None and at in found:
                name, at = found[at].nodes.get(name, name), found[at].to_version
            if name is not None and name not in nodes:
                what = (
                    f"node {before!r} becomes {name!r}, which is no node of this graph; it has "
                    f"{names_text(nodes)}.{did_you_mean(name, nodes)}"
                )
                yield f"migration {hop.from_version} -> {hop.to_version}", what


def _lost_fields(
    found: Mapping[int, Migration], version: int, fields: AbstractSet[str] | None
) -> Iterator[Problem]:
    """Name renamed fields that the state does not have, where no function can use them."""
    for hop in found.values():
        if hop.to_version != version or hop.upgrade is not None or fields is None:
            continue
        for before, name in hop.fields.items():
            if name is not None and name not in fields:
                what = (
                    f"field {before!r} becomes {name!r}, which the state does not have; it has "
                    f"{names_text(fields)}.{did_you_mean(name, fields)}"
                )
                yield f"migration {hop.from_version} -> {hop.to_version}", what
