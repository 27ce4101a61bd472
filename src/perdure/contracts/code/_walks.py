"""Walks from function to function, whichever way."""

from collections.abc import Callable, Iterable, Iterator

from perdure.contracts.code._scopes import Scope


def led_to(
    begin: Iterable[Scope],
    leads: Callable[[Scope], Iterable[Scope]],
    *,
    steps: int,
    most: int,
) -> Iterator[Scope]:
    """Yield functions, then those that they lead to, once each and the nearest first.

    `steps`: how far from the first ones. At most `most` functions; that many may not be all.
    """
    pending = [(one, 0) for one in begin]
    seen: set[int] = set()
    for scope, far in pending:  # which grows meanwhile
        if id(scope) in seen:
            continue
        if len(seen) >= most:
            return
        seen.add(id(scope))
        yield scope
        if far < steps:
            pending += [(one, far + 1) for one in leads(scope)]
