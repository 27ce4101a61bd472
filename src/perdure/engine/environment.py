"""What all runs of one runtime share: the store, the codec, the plans, the limits."""

import asyncio
import copy
import hashlib
from collections.abc import Callable, Iterable
from typing import Any
from weakref import WeakValueDictionary

from perdure.clock import Services
from perdure.codec import TypeRegistry, ValueCodec
from perdure.core import fold
from perdure.core.migration import chain_of
from perdure.core.plan import GraphPlan
from perdure.engine.capacity import Capacity
from perdure.engine.limits import (
    CLOSE_S,
    LEASE_MARGIN_S,
    LEASE_TTL_S,
    LOOK_S_MAX,
    OUTAGE_S_MAX,
)
from perdure.engine.loading import decode_cells, load_checkpoint
from perdure.engine.lookout import Lookout
from perdure.engine.patient_store import PatientStore, patient
from perdure.engine.queue import CommitQueue, StartQueue
from perdure.errors import (
    DecodeFailed,
    GraphInvalid,
    NotFound,
    PerdureError,
    StoreSealed,
    UsageError,
)
from perdure.graph import Effect, Graph, function_graph, graph_defined, graphs_defined
from perdure.ids import RunId
from perdure.model import Failure, RunRow, RunStatus
from perdure.sealing import KeyProvider, is_sealed_store, sealed
from perdure.store.api import Store


def _ignore(*_facts: object) -> None:
    """Hear of something that nobody is interested in."""


class Environment:
    """Store, services, codec, plans and limits of one runtime."""

    def __init__(
        self,
        store: Store,
        services: Services,
        *,
        sandbox: Any = None,
        keys: KeyProvider | None = None,
    ) -> None:
        """Bundle them.

        Args:
            store: not open yet.
            services: clock, chance and ids.
            sandbox: a backend of `perdure.sandbox`, or None.
            keys: what the store is encrypted with; None: it is not.
        """
        self._patient = patient(store, services)
        # Sealed once, however often a call is repeated below.
        store = self._patient if keys is None else sealed(self._patient, keys, services)
        self.store = store
        self._is_sealed = keys is not None
        self.services = services
        self.now_us = store.now_us  # the time that all workers of the store agree on
        self.registry = TypeRegistry()
        self.codec = ValueCodec(self.registry)
        self.queue = CommitQueue(store, services.clock)
        self.starts = StartQueue(store)
        self.capacity = Capacity(store, services)
        self.sandbox_backend = sandbox
        self.worker_id = ""
        self.lease_ttl_s = LEASE_TTL_S
        self._renewal: asyncio.Future[None] | None = None
        self.poke: Callable[[], None] = lambda: None
        self.replan: Callable[[], None] = lambda: None
        self.on_lost: Callable[[RunRow, PerdureError], None] = lambda _row, _error: None
        self.on_released: Callable[[RunRow, RunStatus, Failure | None], None] = _ignore
        self.on_ended: Callable[[RunRow, RunStatus, Failure | None, Any], None] = _ignore
        self.lookout = Lookout(store, services.clock)
        self._plans: dict[tuple[str, int], GraphPlan] = {}
        self._functions: dict[Any, GraphPlan] = {}
        self.movable: tuple[tuple[str, int], ...] = ()
        self.in_flight: dict[str, asyncio.Future[Any]] = {}
        self._key_gates: WeakValueDictionary[tuple[str, str], asyncio.Lock] = WeakValueDictionary()
        self._gates: dict[str, tuple[int, asyncio.Semaphore]] = {}

    def apart(self, store: Store, services: Services) -> "Environment":
        """Return a copy with another store and services, whose news and plans stay its own."""
        other = copy.copy(self)
        other.store, other.services = store, services
        other._plans, other.in_flight = dict(self._plans), {}  # noqa: SLF001  # its own kind
        other.poke = other.replan = lambda: None
        other.on_lost = other.on_released = other.on_ended = _ignore
        return other

    # -- news --------------------------------------------------------------------------------------

    async def wait_for_news(self, run_id: str, mark: int, after: int) -> None:
        """Return when the run has records above seq `after`, or the store changed since `mark`."""
        waiter = self.lookout.add(run_id)
        commits = self.queue.listen(run_id)
        changed = asyncio.ensure_future(self.store.wait_for_change(LOOK_S_MAX, since=mark))
        try:
            # Looked at again, as a commit of this process may have come before somebody listened.
            row = await self.store.read_run(RunId(run_id))
            if row is None or row.last_seq <= after:
                await asyncio.wait({waiter, commits, changed}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self.lookout.drop(run_id, waiter)
            self.queue.drop_listener(run_id, commits)
            changed.cancel()

    # -- time --------------------------------------------------------------------------------------

    def lease_until_us(self) -> int:
        """Return the end of a lease that is taken or renewed now."""
        return self.now_us() + round(self.lease_ttl_s * 1_000_000)

    def is_lease_safe(self, leased_s: float) -> bool:
        """Return whether enough is left of a lease whose last renewal was sent at `leased_s`."""
        age_s = self.services.clock.monotonic_s() - leased_s
        return age_s < self.lease_ttl_s - min(LEASE_MARGIN_S, self.lease_ttl_s / 4)

    def renewed(self) -> None:
        """Tell those who wait for it that leases were renewed."""
        if self._renewal is not None:
            self._renewal.set_result(None)
            self._renewal = None

    async def wait_for_renewal(self) -> bool:
        """Return True when the next renewal was accepted, False: the store was away for too long.

        Until then nobody knows whose the runs are; whoever has them still goes on with them.
        """
        if self._renewal is None:
            self._renewal = asyncio.get_running_loop().create_future()
        ringing = asyncio.ensure_future(self.services.clock.sleep(OUTAGE_S_MAX))
        renewal = self._renewal
        try:
            await asyncio.wait({renewal, ringing}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            ringing.cancel()
        return renewal.done()

    def hurry(self) -> None:
        """Be done soon: an outage is no reason to wait any longer."""
        if isinstance(self._patient, PatientStore):
            self._patient.patience_s = CLOSE_S

    async def open_store(self) -> None:
        """Open the store.

        Raises:
            StoreSealed: it is encrypted, and no keys were given.
            StorePlain, KeyMissing, SealBroken: keys were given, and it is not encrypted with them.
        """
        await self.store.open()
        if self._is_sealed or not await is_sealed_store(self.store):
            return
        await self.store.close()
        msg = (
            f"the store {self.store.place!r} is encrypted, and no keys were given; nothing was "
            "written. Name them: --keys env:NAME or --keys file:PATH (Runtime.open(keys=...))"
        )
        raise StoreSealed(msg, place=self.store.place)

    # -- graphs ------------------------------------------------------------------------------------

    def register(self, graphs: Iterable[Any]) -> None:
        """Make graphs (or plain async functions) known; runs of them can be executed here."""
        for graph in graphs:
            self.plan_of(graph)

    def plan_of(self, graph: Any) -> GraphPlan:
        """Return the plan of a graph, a plain async function, or a known graph's name.

        Raises:
            GraphInvalid: it is neither, or another graph has the same name and version.
        """
        if isinstance(graph, str):
            return self.plan_named(graph)
        plan = graph.compile() if isinstance(graph, Graph) else self._plan_of_function(graph)
        key = (plan.name, plan.version)
        known = self._plans.get(key)
        if known is plan:
            return plan
        if known is not None:
            msg = (
                f"two different graphs are called {plan.name!r} version {plan.version}; rename one "
                f"or raise its version (Graph(..., version={plan.version + 1}))"
            )
            raise GraphInvalid(msg, graph=plan.name)
        self._plans[key] = plan
        for cls in plan.types:
            self.registry.add(cls)
        return plan

    def _plan_of_function(self, function: Any) -> GraphPlan:
        if not callable(function):
            msg = (
                f"{function!r} is no graph: give a perdure.Graph, an async function, or the name "
                "of a known graph"
            )
            raise GraphInvalid(msg)
        plan = self._functions.get(function)
        if plan is None:
            plan = self._functions[function] = function_graph(function)
        return plan

    def plan_named(self, name: str, version: int | None = None) -> GraphPlan:
        """Return a known plan by name (the newest version unless given).

        Raises:
            NotFound: names the known graphs.
        """
        found = [plan for (n, v), plan in self._plans.items() if n == name and version in {None, v}]
        if not found:
            known = ", ".join(f"{n} v{v}" for n, v in sorted(self._plans)) or "none"
            wanted = name if version is None else f"{name} v{version}"
            msg = (
                f"no graph {wanted!r} is known here (known: {known}); pass it in graphs=[...] or "
                "to 'perdure worker'"
            )
            raise NotFound(msg, graph=name, version=version)
        return max(found, key=lambda plan: plan.version)

    def migrating_plan(self, name: str, version: int) -> GraphPlan | None:
        """Return the newest known plan of a graph that migrations lead to from an older version."""
        plans = [plan for (n, _v), plan in self._plans.items() if n == name]
        newer = [plan for plan in plans if plan.version > version and chain_of(plan, version)]
        return max(newer, key=lambda plan: plan.version, default=None)

    def migratable(self) -> set[tuple[str, int]]:
        """Return (name, version) of what migrations lead from, and is not itself known here."""
        found = {(plan.name, old) for plan in self._plans.values() for old in plan.migrations}
        return found - self._plans.keys()

    def graphs_to_learn(self) -> list[tuple[str, int]]:
        """Return (name, version) of graphs that this process has defined and that are not known."""
        return sorted(graphs_defined() - self._plans.keys())

    def learn_child(self, name: str, version: int) -> bool:
        """Make the graph of a child run known, if this process has defined it."""
        graph = graph_defined(name, version)
        if graph is None or (name, version) in self._plans:
            return False
        self.plan_of(graph)
        return True

    def graphs(self) -> list[tuple[str, int]]:
        """Return (name, version) of every known graph."""
        return list(self._plans)

    # -- effects -----------------------------------------------------------------------------------

    def know_effect(self, effect: Effect[Any, Any]) -> None:
        """Register the types of an effect's result, so that it can be stored and loaded."""
        for cls in effect.types:
            self.registry.add(cls)

    def gate(self, effect: Effect[Any, Any]) -> asyncio.Semaphore | None:
        """Return the semaphore that bounds this effect's calls in this process, or None.

        Raises:
            UsageError: two effects of one group declare different limits.
        """
        limit = effect.limit
        if limit is None:
            return None
        group, count = limit.group or effect.name, limit.concurrency
        known = self._gates.get(group)
        if known is None:
            known = self._gates[group] = (count, asyncio.Semaphore(count))
        if known[0] != count:
            msg = (
                f"effects of the limit group {group!r} declare {known[0]} and {count} at once; "
                "give one number"
            )
            raise UsageError(msg, group=group)
        return known[1]

    def watch(self, effect_id: str, working: "asyncio.Future[Any]") -> None:
        """Remember a call in an OS thread, which goes on when nobody waits for it any more."""
        self.in_flight[effect_id] = working
        working.add_done_callback(lambda _done: self.in_flight.pop(effect_id, None))

    def key_gate(self, tenant: str, key: str) -> asyncio.Lock:
        """Return the lock of a business key: two calls with it must not intend at once."""
        return self._key_gates.setdefault((tenant, key), asyncio.Lock())

    # -- reading -----------------------------------------------------------------------------------

    def decode_cells(
        self, cells: dict[str, fold.Cell], row: RunRow, checkpoint: int
    ) -> dict[str, Any]:
        """Return the live values of cells; see `loading.decode_cells`."""
        return decode_cells(cells, self.codec.decode, row, checkpoint)

    def decode_in(self, encoded: Any, row: RunRow, place: str, **where: object) -> Any:
        """Return a value of a run that is no field of its state.

        Args:
            encoded: the value.
            row: whose it is, for the error.
            place: what it is, for the error.
            where: ids, for the fields of the error.

        Raises:
            DecodeFailed, TypeUnknown: names run, thread and place.
        """
        try:
            return self.codec.decode(encoded)
        except DecodeFailed as error:
            text = f"run {row.run_id!r} of thread {row.thread!r}, {place}"
            ids = {"run_id": row.run_id, "thread": row.thread, "tenant": row.tenant}
            raise error.located(text, **ids, **where) from error

    async def values_of(self, run_id: str) -> tuple[dict[str, Any], RunRow]:
        """Return the state that a run ended (or stands) with, and its row; {}: nothing committed.

        Raises:
            NotFound: no such run.
        """
        row = await self.store.read_run(RunId(run_id))
        if row is None:
            msg = f"no run {run_id!r}; 'perdure ps --all' lists the runs"
            raise NotFound(msg, run_id=run_id)
        if row.checkpoint <= row.base_checkpoint:
            return {}, row
        at = await load_checkpoint(self.store, row.tenant, row.thread, row.checkpoint)
        return self.decode_cells(at.cells, at.run, at.checkpoint), row


def input_digest(graph: str, version: int, canonical: bytes) -> str:
    """Return the digest that a start key is compared by."""
    return hashlib.sha256(b"%b:%d:%b" % (graph.encode(), version, canonical)).hexdigest()[:32]
