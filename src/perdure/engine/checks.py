"""What a driver refuses: a state that does not fit its graph, and nodes that lose something."""

from collections.abc import Callable, Mapping
from typing import Any

from perdure.core.plan import GraphPlan
from perdure.engine.ports import NodePort
from perdure.errors import ReplayDiverged, StateMutated, UpdateInvalid, UsageError
from perdure.model import WriteOp


def check_fits(plan: GraphPlan, values: Mapping[str, Any], *, is_started: bool) -> None:
    """Refuse a stored state that the graph's state type can't take (any more).

    Raises:
        ReplayDiverged: names what does not fit; the run is parked, nothing is changed.
    """
    problems = [f"it has no field {name!r}" for name in values if name not in plan.channels]
    for name, channel in plan.channels.items():
        if name not in values:
            is_needed = channel.default is None and not channel.is_optional and is_started
            problems += [f"field {name!r} has no stored value and no default"] if is_needed else []
        elif channel.op is WriteOp.APPEND and not isinstance(values[name], list):
            problems.append(f"field {name!r} is a list, what is stored is not")
        elif channel.op is WriteOp.REPLACE and channel.check is not None:
            try:
                channel.check(values[name])
            except UpdateInvalid as error:
                # Older versions stored objects without looking into them: those go on.
                problems += [] if error.fields.get("is_inside") else [str(error)]
    if problems:
        msg = (
            f"the stored state does not fit graph {plan.name!r} v{plan.version}: "
            f"{'; '.join(problems)}. Run it with the state type that it was stored by (a changed "
            "one needs a new version=), then: perdure resolve RUN_ID --retry"
        )
        raise ReplayDiverged(msg, graph=plan.name)


def check_awaited(path: str, context: NodePort) -> None:
    """Refuse a node that returns while something that it began by ctx is under way."""
    under_way = context.active + context.waiting + context.held
    if under_way:
        msg = (
            f"node {path!r} returned while {under_way} of its ctx calls were under way; await them "
            "all before it returns (asyncio.gather, or ctx.map)"
        )
        raise UsageError(msg, node=path)


def check_assigned(path: str, argument: Any, values: Mapping[str, Any]) -> None:
    """Refuse a state whose fields were assigned: what is not returned would be lost."""
    read: Callable[[Any, str], Any] = _item if type(argument) is dict else getattr
    for name, value in values.items():
        if read(argument, name) is not value:
            raise mutated(path, name, "it was assigned")


def _item(state: dict[str, Any], name: str) -> Any:
    return state.get(name)


def mutated(path: str, name: str, how: str) -> StateMutated:
    """Return the error of a node that changed a field in place."""
    msg = (
        f"node {path!r} changed state field {name!r} in place ({how}); return it as an update "
        f"instead, e.g. return {{{name!r}: ...}}. Nothing of the node was recorded."
    )
    return StateMutated(msg, node=path, field=name)
