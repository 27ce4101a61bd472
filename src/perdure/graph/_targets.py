"""From what people write as a target (a name, a function, a graph, a Send, a list) to names."""

import types
from collections.abc import Callable, Iterable
from typing import Any

from perdure.core.plan import END, START, Send
from perdure.errors import GraphInvalid
from perdure.graph._checks import got_text
from perdure.graph._text import did_you_mean, names_text


class TargetProblem(Exception):
    """Something that is no target; the text says what and what to do."""


def _identity(thing: Any) -> Any:
    # Each access to a method makes a new object; the pair stays the same.
    if isinstance(thing, types.MethodType):
        return id(thing.__self__), id(thing.__func__)
    return id(thing)


class Names:
    """The nodes of one graph by name, and the names of the functions and graphs that they run."""

    def __init__(self) -> None:
        """Know no node."""
        self.known: set[str] = set()
        self._names: dict[Any, list[str]] = {}
        # An identity means something only as long as its object lives.
        self._alive: list[Any] = []

    def add(self, name: str, thing: Any) -> None:
        """Add a node."""
        self.known.add(name)
        names = self._names.setdefault(_identity(thing), [])
        if name not in names:
            names.append(name)
        self._alive.append(thing)

    def name_of(self, target: Any) -> str:
        """Return the name of one node, START or END.

        Raises:
            TargetProblem: it is neither, or its function is more than one node.
        """
        if isinstance(target, str):
            if target in self.known or target in (START, END):
                return target
            msg = (
                f"no node {target!r}; the nodes are {names_text(self.known)}."
                f"{did_you_mean(target, self.known)}"
            )
            raise TargetProblem(msg)
        names = self._names.get(_identity(target), [])
        if len(names) == 1:
            return names[0]
        if names:
            msg = f"the same function is the nodes {names_text(names)}; use the name"
            raise TargetProblem(msg)
        text = getattr(target, "__name__", None) or got_text(target)
        msg = (
            f"{text} is not a node of this graph; add it with @graph.node, or use one of "
            f"{names_text(self.known)}"
        )
        raise TargetProblem(msg)

    def names_of(self, targets: Iterable[Any]) -> frozenset[str]:
        """Return the names of several; raises TargetProblem for the first that is none."""
        return frozenset(self.name_of(target) for target in targets)

    def normalise(self, target: Any) -> tuple[str | Send, ...]:
        """Return names, END and Sends, in the order given; a repeated name counts once."""
        if type(target) is str and (target in self.known or target == END):
            return (target,)
        found: list[str | Send] = []
        for each in target if isinstance(target, list | tuple) else (target,):
            if isinstance(each, Send):
                found.append(Send(self._node_name(each.node), each.argument))
                continue
            name = self._place_name(each)
            if name not in found:
                found.append(name)
        return tuple(found)

    def _node_name(self, target: Any) -> str:
        name = self.name_of(target)
        if name in (START, END):
            msg = f"a Send goes to a node, not to {'END' if name == END else 'START'}"
            raise TargetProblem(msg)
        return name

    def _place_name(self, target: Any) -> str:
        if target is None:
            msg = "got None; return END to end this path"
            raise TargetProblem(msg)
        name = self.name_of(target)
        if name == START:
            msg = "START is no target; name the first node instead"
            raise TargetProblem(msg)
        return name


def make_normalise(
    graph: str, names: Names, source: str, declared: frozenset[str] | None, how: str
) -> Callable[[Any], tuple[str | Send, ...]]:
    """Return a function from what was returned at `source` to names.

    Args:
        graph: its name, for messages.
        names: the nodes.
        source: name of the node, START, or "" where it is not known.
        declared: the only targets allowed, None: all.
        how: how the targets were declared, for the message.
    """
    place = f"graph {graph!r}, " + (f"{how} of {source!r}" if source else how)

    def normalise(target: Any) -> tuple[str | Send, ...]:
        try:
            found = names.normalise(target)
        except TargetProblem as problem:
            msg = f"{place}: {problem}"
            raise GraphInvalid(msg, graph=graph, source=source) from None
        if declared is not None:
            for each in found:
                name = each.node if isinstance(each, Send) else each
                if name not in declared:
                    msg = (
                        f"{place}: {name!r} is not among the declared targets "
                        f"{names_text(declared)}; add it there"
                    )
                    raise GraphInvalid(msg, graph=graph, source=source, target=name)
        return found

    return normalise
