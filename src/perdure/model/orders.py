"""What is stored for all runs to come: limits over all workers, and schedules.

All are frozen. Times are microseconds since the epoch (UTC).
"""

from enum import StrEnum

import msgspec

from perdure.ids import RunId, TenantId
from perdure.model.states import OnBusy

EACH_TENANT = TenantId("*")
"""As the tenant of a limit: every tenant that has no limit of its own, each by itself."""

ALL_TENANTS = TenantId("")
"""As the tenant of a limit: all tenants together."""

ALL_GRAPHS = ""
"""As the graph of a limit: all graphs together."""


class LimitRow(msgspec.Struct, frozen=True, kw_only=True):
    """One limit that every worker of the store obeys; keyed by (tenant, graph).

    Attributes:
        tenant: whose runs; `ALL_TENANTS` together, or `EACH_TENANT` as a default.
        graph: of which graph, in any version; `ALL_GRAPHS` together.
        concurrency: runs that are `running` at once; None: any number.
        rate: runs that begin (are claimed for the first time) per `period_us`; None: any number.
        period_us: microseconds; counts with `rate` only.
        set_at_us: when it was set.
    """

    tenant: TenantId = ALL_TENANTS
    graph: str = ALL_GRAPHS
    concurrency: int | None = None
    rate: int | None = None
    period_us: int = 0
    set_at_us: int = 0

    @property
    def interval_us(self) -> int:
        """Time in which one token of the bucket comes back, in microseconds; at least 1."""
        return max(1, -(-self.period_us // (self.rate or 1)))


class BucketRow(msgspec.Struct, frozen=True, kw_only=True):
    """The token bucket of one rate limit; keyed by (tenant, graph). A bucket without a row is full.

    Attributes:
        tenant: the limit's tenant; for `EACH_TENANT` the tenant whose bucket this is.
        graph: the limit's graph.
        full_at_us: when it is full again if nothing more is taken: the whole state of a bucket.
    """

    tenant: TenantId
    graph: str
    full_at_us: int


class LimitState(msgspec.Struct, frozen=True, kw_only=True):
    """All limits, and what they count, as of one moment.

    Attributes:
        limits: by (tenant, graph).
        running: (tenant, graph, runs that are `running`), for those with any; left empty by a store
            that has no limits.
        buckets: those that are not known to be full.
    """

    limits: tuple[LimitRow, ...] = ()
    running: tuple[tuple[TenantId, str, int], ...] = ()
    buckets: tuple[BucketRow, ...] = ()


class Missed(StrEnum):
    """What a schedule does about due times that nobody was there to fire.

    ONE: one run for all of them, for the newest. SKIP: none. ALL: one run for each, bounded.
    """

    ONE = "one"
    SKIP = "skip"
    ALL = "all"


class ScheduleRow(msgspec.Struct, frozen=True, kw_only=True):
    """One schedule; keyed by (tenant, name).

    Attributes:
        revision: changes with every write of the row: `Store.put_schedule` compares it.
        graph: which graph a run is started of.
        version: its version where no live worker says otherwise.
        cron: five fields (or six: with seconds first), as in crontab(5).
        timezone: IANA name that the fields are read in.
        input_wire: MessagePack map of the fields that were given, field -> [op, value].
        input_digest: digest of the input, for the start key.
        thread: the line of state that every run goes on with; None: a new one each.
        missed: what happens to due times that were missed.
        next_at_us: the next due time; None: paused, or there is none.
        is_paused: whether it waits to be resumed.
        fired_at_us: due time of the newest run; None: none yet.
        fired_run: its id.
        problem: why it could not be fired the last time; empty: it could.
    """

    tenant: TenantId
    name: str
    revision: int
    graph: str
    version: int
    cron: str
    timezone: str = "UTC"
    input_wire: bytes = b"\x80"
    input_digest: str = ""
    thread: str | None = None
    priority: int = 0
    on_busy: OnBusy = OnBusy.QUEUE
    missed: Missed = Missed.ONE
    next_at_us: int | None = None
    is_paused: bool = False
    created_at_us: int = 0
    fired_at_us: int | None = None
    fired_run: RunId | None = None
    problem: str = ""
