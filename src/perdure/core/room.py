"""What limits leave: which runs may begin, and when one that may not can be looked at again.

Theory: a limit counts the runs of a *scope*, a (tenant, graph) pair in which either may stand for
all. A run is in up to four scopes, and each of them that has a limit must have room. The limit for
`EACH_TENANT` is a default: a tenant's own limit with the same graph replaces it as a whole.

Concurrency is counted from the rows that are running. Rate is a token bucket of `rate` tokens, of
which one comes back every `interval_us`; its whole state is the time at which it is full again, so
that it needs no clock of its own: `tokens = floor((rate * interval - time until full) / interval)`.
A run takes a token when it begins, that is, when it is claimed for the first time.

Invariant: room only shrinks while runs are taken from it, so what was refused once in a claim stays
refused until the claim's end.
"""

from collections import Counter
from collections.abc import Iterator

from msgspec import Struct

from perdure.ids import TenantId
from perdure.model import (
    ALL_GRAPHS,
    ALL_TENANTS,
    EACH_TENANT,
    BucketRow,
    LimitRow,
    LimitState,
)

Scope = tuple[TenantId, str]


class Kept(Struct, frozen=True, kw_only=True):
    """Why a run is kept back.

    Attributes:
        limit: the limit that has no room.
        tenant: whose runs it counts here; `ALL_TENANTS`: of all together.
        running: runs that are running in its scope.
        next_at_us: when its bucket has a token again; None: a run has to end first.
    """

    limit: LimitRow
    tenant: TenantId
    running: int
    next_at_us: int | None = None


class Closed(Struct, frozen=True, kw_only=True):
    """Runs that no claim may take now.

    Attributes:
        tenant: whose; `ALL_TENANTS`: everybody's.
        graph: of which graph; `ALL_GRAPHS`: of any.
        only_first: only those that were never claimed.
    """

    tenant: TenantId
    graph: str
    only_first: bool


class Room:
    """What the limits leave at one moment; `take` says that a run was taken."""

    def __init__(self, state: LimitState, now_us: int) -> None:
        """Count what the store has."""
        self._now_us = now_us
        self._limits = {(limit.tenant, limit.graph): limit for limit in state.limits}
        self._full_at = {(each.tenant, each.graph): each.full_at_us for each in state.buckets}
        self._running: Counter[Scope] = Counter()
        self._tenants = {tenant for tenant, _graph, _count in state.running}
        self._tenants |= {bucket.tenant for bucket in state.buckets}
        for tenant, graph, count in state.running:
            self._add(tenant, graph, count)
        self._touched: set[Scope] = set()

    def running(self, limit: LimitRow) -> int:
        """Return how many runs that a limit counts are running, of all its tenants together."""
        return sum(self._running[scope] for scope in self._scopes_of(limit))

    def applies(self, tenant: TenantId, graph: str) -> bool:
        """Return whether any limit counts this tenant's runs of this graph."""
        return next(self._scopes(tenant, graph), None) is not None

    def keeps(self, tenant: TenantId, graph: str, *, is_first: bool) -> Kept | None:
        """Return why such a run may not be taken now; None: it may.

        `is_first`: it was never claimed, so that a rate counts it.
        """
        for scope, limit in self._scopes(tenant, graph):
            running = self._running[scope]
            if limit.concurrency is not None and running >= limit.concurrency:
                return Kept(limit=limit, tenant=scope[0], running=running)
            if is_first and limit.rate is not None and self._tokens(scope, limit) < 1:
                next_at_us = self._token_at(scope, limit)
                return Kept(limit=limit, tenant=scope[0], running=running, next_at_us=next_at_us)
        return None

    def take(self, tenant: TenantId, graph: str, *, is_first: bool) -> None:
        """Count a run that was taken."""
        self._tenants.add(tenant)
        self._add(tenant, graph, 1)
        for scope, limit in self._scopes(tenant, graph):
            if is_first and limit.rate is not None:
                full_at = max(self._full_at_of(scope, limit), self._now_us)
                self._full_at[scope] = full_at + limit.interval_us
                self._touched.add(scope)

    def closed(self) -> list[Closed]:
        """Return the runs that may not be taken now, as patterns."""
        found = []
        for limit in self._limits.values():
            for scope in self._scopes_of(limit):
                if limit.concurrency is not None and self._running[scope] >= limit.concurrency:
                    found.append(Closed(tenant=scope[0], graph=limit.graph, only_first=False))
                elif limit.rate is not None and self._tokens(scope, limit) < 1:
                    found.append(Closed(tenant=scope[0], graph=limit.graph, only_first=True))
        return found

    def moved_buckets(self) -> list[BucketRow]:
        """Return the buckets from which `take` took, as they are now."""
        return [
            BucketRow(tenant=tenant, graph=graph, full_at_us=self._full_at[tenant, graph])
            for tenant, graph in sorted(self._touched)
        ]

    def next_token_at(self, after_us: int) -> int | None:
        """Return when the first of the empty buckets gets a token, above `after_us`; None: none."""
        times = [
            self._token_at(scope, limit)
            for limit in self._limits.values()
            if limit.rate is not None
            for scope in self._scopes_of(limit)
            if scope in self._full_at
        ]
        return min((at for at in times if at > after_us), default=None)

    def _add(self, tenant: TenantId, graph: str, count: int) -> None:
        for scope in ((ALL_TENANTS, ALL_GRAPHS), (tenant, ALL_GRAPHS), (ALL_TENANTS, graph)):
            self._running[scope] += count
        self._running[tenant, graph] += count

    def _scopes(self, tenant: TenantId, graph: str) -> Iterator[tuple[Scope, LimitRow]]:
        """Yield the scopes that a run is in and that have a limit."""
        for part in (ALL_GRAPHS, graph):
            limit = self._limits.get((ALL_TENANTS, part))
            if limit is not None:
                yield (ALL_TENANTS, part), limit
            own = self._limits.get((tenant, part)) or self._limits.get((EACH_TENANT, part))
            if own is not None:
                yield (tenant, part), own

    def _scopes_of(self, limit: LimitRow) -> list[Scope]:
        if limit.tenant != EACH_TENANT:
            return [(limit.tenant, limit.graph)]
        return [
            (tenant, limit.graph)
            for tenant in sorted(self._tenants - {ALL_TENANTS})
            if (tenant, limit.graph) not in self._limits
        ]

    def _full_at_of(self, scope: Scope, limit: LimitRow) -> int:
        # Never later than if it were empty now: a wall clock that jumped back must not close it.
        latest = self._now_us + (limit.rate or 0) * limit.interval_us
        return min(self._full_at.get(scope, 0), latest)

    def _tokens(self, scope: Scope, limit: LimitRow) -> int:
        missing_us = max(self._full_at_of(scope, limit) - self._now_us, 0)
        return ((limit.rate or 0) * limit.interval_us - missing_us) // limit.interval_us

    def _token_at(self, scope: Scope, limit: LimitRow) -> int:
        return self._full_at_of(scope, limit) - ((limit.rate or 0) - 1) * limit.interval_us
