"""A worker: claims runs, executes them, renews their leases, notices the dead, drains.

Loops, each a task: *claim* (whenever something changed, something is due, or a slot is free),
*heartbeat* (renews all leases in one statement, watches for lost ones, and now and then for runs
whose version nobody executes), *liveness* (notices workers of this host that died), *mail* (hands
messages to runs that are held) and *schedule* (starts what is due). A fault of the store
stops none of them: it is reported, and tried again.

Size: the loops share what is held and when it was renewed; apart, they would hand that about.
"""

import asyncio
import logging
import os
import socket
from collections.abc import Awaitable, Callable
from typing import Any

from msgspec import Struct

from perdure.core.plan import GraphPlan
from perdure.engine.acts import failure_of
from perdure.engine.environment import Environment
from perdure.engine.execution import Execution
from perdure.engine.hand_back import hand_back
from perdure.engine.health import Vitals
from perdure.engine.limits import (
    CLAIM_BATCH,
    CLOSE_S,
    CONCURRENCY,
    DRAIN_MARGIN_S,
    DRAIN_WINDOW_S,
    HEARTBEAT_S,
    LEARNED_FROM_MAX,
    LIVENESS_POLL_S,
    MAIL_RETRY_S,
    SETTING_S_MAX,
    UNSERVED_BEATS,
)
from perdure.engine.loading import Loaded, load_run
from perdure.engine.moving import move_claimed
from perdure.engine.outlook import natively_served
from perdure.engine.schedules import fire_due
from perdure.engine.shapes import shapes_of
from perdure.engine.versions import VersionWatch
from perdure.errors import (
    DecodeFailed,
    InvariantBroken,
    LeaseLost,
    NotFound,
    PerdureError,
    SettingInvalid,
    StoreCorrupt,
    StoreError,
)
from perdure.ids import RunId, WorkerId
from perdure.model import RunRow, WorkerRow
from perdure.store.api import LIVENESS, RunQuery

log = logging.getLogger("perdure")


_BEGINNING = frozenset({"perdure-claim", "perdure-schedule"})
"""Tasks of the loops that begin something: a drain ends them at once."""


class WorkerSettings(Struct, frozen=True, kw_only=True):
    """How a worker works.

    Attributes:
        concurrency: runs that it executes at once.
        lease_ttl_s: how long its leases last without renewal.
        heartbeat_s: how often they are renewed; at most a third of the TTL. Also the longest time
            between two looks for work when nothing wakes the worker.
        drain_window_s: how long a drain lets nodes reach a boundary.
    """

    concurrency: int = CONCURRENCY
    lease_ttl_s: float = 15.0
    heartbeat_s: float = HEARTBEAT_S
    drain_window_s: float = DRAIN_WINDOW_S

    def __post_init__(self) -> None:
        """Refuse values with which nothing would ever run, or leases would end by themselves."""
        durations = (self.lease_ttl_s, self.heartbeat_s, self.drain_window_s)
        if self.concurrency < 1 or not all(0 <= each <= SETTING_S_MAX for each in durations):
            msg = f"{self!r}: concurrency from 1, durations from 0 to {SETTING_S_MAX:.0f} s"
            raise SettingInvalid(msg)
        if not 0 < self.heartbeat_s <= self.lease_ttl_s / 2:
            msg = (
                f"heartbeat_s={self.heartbeat_s!r} must be above 0 and at most half of "
                f"lease_ttl_s={self.lease_ttl_s!r}, better a third; else it loses runs"
            )
            raise SettingInvalid(msg)


class Worker:
    """Executes the runs of one environment in this process."""

    def __init__(self, engine: Environment, settings: WorkerSettings) -> None:
        """Prepare; `start` begins to claim."""
        self._engine = engine
        self._settings = settings
        now_us = engine.now_us()
        self.worker_id = WorkerId(engine.services.ids.new("w", now_us))
        self._held: dict[RunId, tuple[RunRow, Execution, asyncio.Task[None]]] = {}
        self._wake = asyncio.Event()
        self._loops: list[asyncio.Task[None]] = []
        self._beats = 0
        self._renewed_s = self._next_beat_s = self._sent_s = 0.0
        self._versions = VersionWatch(engine)
        self._started_at_us = 0
        self._registered: tuple[tuple[str, int], ...] = ()
        self._replan = asyncio.Event()
        self._lost: dict[tuple[str, int], PerdureError] = {}
        self.is_draining = False

    # -- life --------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Register the worker and begin to claim."""
        engine = self._engine
        engine.worker_id = self.worker_id
        engine.lease_ttl_s = self._settings.lease_ttl_s
        engine.poke = self._wake.set
        engine.replan = self._replan.set
        self._renewed_s = self._sent_s = engine.services.clock.monotonic_s()
        self._next_beat_s = self._renewed_s + self._settings.heartbeat_s
        engine.queue.on_dead = self._on_dead
        engine.on_lost = self._on_lost
        await self._learn_children()
        self._started_at_us = engine.now_us()
        await self._register()
        await self._look_for_movable()
        await engine.store.release_dead()
        loops = {
            "claim": self._claim_loop,
            "heartbeat": self._beat_loop,
            "mail": self._mail_loop,
            "schedule": self._schedule_loop,
        }
        if LIVENESS in engine.store.capabilities:
            loops["liveness"] = self._liveness_loop
        self._loops = [
            asyncio.create_task(self._for_ever(name, loop), name=f"perdure-{name}")
            for name, loop in loops.items()
        ]

    async def _register(self) -> None:
        """Say who this worker is, and what it can do; again whenever that changes."""
        engine = self._engine
        graphs = tuple(engine.graphs())
        await engine.store.register_worker(
            WorkerRow(
                worker_id=self.worker_id,
                host=socket.gethostname(),
                pid=os.getpid(),
                graphs=graphs,
                started_at_us=self._started_at_us,
                seen_at_us=engine.now_us(),
                is_draining=self.is_draining,
                concurrency=self._settings.concurrency,
                shapes=shapes_of(engine),
            )
        )
        self._registered = graphs

    async def _say_draining(self) -> None:
        try:
            await self._register()
        except StoreError as error:  # only others' idea of it depends on that
            log.warning("worker %s could not say that it drains: %s", self.worker_id, error)

    async def drain(self, window_s: float | None = None) -> None:
        """Stop claiming, let nodes reach a boundary within the window, release every lease, stop.

        Idempotent.
        """
        if self.is_draining:
            return
        self.is_draining = True
        begins = [task for task in self._loops if task.get_name() in _BEGINNING]
        for loop in begins:
            loop.cancel()
        await asyncio.gather(*begins, return_exceptions=True)
        for _row, execution, _task in self._held.values():
            execution.is_draining = True
        # Beside the drain, not before it: an outage must not use up its window.
        self._loops.append(asyncio.create_task(self._say_draining(), name="perdure-say"))
        await self._wait_for_held(self._settings.drain_window_s if window_s is None else window_s)
        for _row, execution, _task in list(self._held.values()):
            execution.stop_now()
        await self._wait_for_held(DRAIN_MARGIN_S)
        await self._close()

    def stop_now(self) -> None:
        """Cut a drain's window short: every node stops where it stands, and its run is released."""
        for _row, execution, _task in list(self._held.values()):
            execution.stop_now()

    async def _wait_for_held(self, window_s: float) -> None:
        tasks = [task for _row, _execution, task in self._held.values()]
        if not tasks:
            return
        ringing = asyncio.ensure_future(self._engine.services.clock.sleep(window_s))
        everything = asyncio.ensure_future(asyncio.wait(tasks))
        try:
            await asyncio.wait({ringing, everything}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            ringing.cancel()
            everything.cancel()

    async def _close(self) -> None:
        self._engine.hurry()
        for loop in self._loops:
            loop.cancel()
        await asyncio.gather(*self._loops, return_exceptions=True)
        tasks = [task for _row, _execution, task in self._held.values()]
        for task in tasks:
            task.cancel()
        if tasks:
            _done, stubborn = await asyncio.wait(tasks, timeout=CLOSE_S)
            for task in stubborn:
                log.warning("run %s swallows its cancellation; it is left behind", task.get_name())
        try:
            await self._engine.store.forget_worker(self.worker_id)
        except StoreError as error:
            log.warning("worker %s could not sign off: %s", self.worker_id, error)

    # -- loops -------------------------------------------------------------------------------------

    async def _for_ever(self, name: str, once: Callable[[], Awaitable[None]]) -> None:
        """Repeat a loop's body; a fault of the store is reported once in a while, tried again."""
        failures = 0
        while True:
            try:
                await once()
                failures = 0
            except PerdureError as error:
                failures += 1
                if failures in {1, 10, 100}:
                    log.warning("worker %s, %s loop: %s", self.worker_id, name, error)
                await self._engine.services.clock.sleep(min(0.05 * 2 ** min(failures, 6), 2.0))
            except Exception:  # a supervisor: one bad row must not stop the loop for all others
                log.exception("worker %s, %s loop: a fault of the runtime", self.worker_id, name)
                await self._engine.services.clock.sleep(1.0)

    async def _claim_loop(self) -> None:
        store, engine = self._engine.store, self._engine
        if self._held and not engine.is_lease_safe(self._renewed_s):
            await engine.wait_for_renewal()  # else it would take over its own runs from itself
        mark = store.change_mark()
        self._wake.clear()
        free = self._settings.concurrency - len(self._held)
        sent_s = engine.services.clock.monotonic_s()
        now_us = engine.now_us()
        claimed: list[RunRow] = []
        if free > 0:
            claimed = await store.claim(
                self.worker_id,
                self._claimable(),
                now_us=now_us,
                lease_until_us=engine.lease_until_us(),
                limit=min(free, CLAIM_BATCH),
            )
        for row in claimed:
            self._execute(row, sent_s)
        if claimed and free > len(claimed):
            return  # there may be more
        # What was due then and was not taken is kept back by a limit: looked at again when another
        # run ends, which is a change, or when a token comes back.
        await self._wait_for_work(mark, after_us=now_us if free > len(claimed) else 0)

    def _claimable(self) -> list[tuple[str, int]]:
        """Return the graph versions that this worker executes, or moves to one that it executes."""
        return [*self._engine.graphs(), *self._engine.movable]

    async def _look_for_movable(self) -> None:
        """Find out which versions migrations lead from that no other live worker executes."""
        engine = self._engine
        found = engine.migratable()
        if found:
            found -= await natively_served(engine, by_others_than=self.worker_id)
        before, engine.movable = engine.movable, tuple(sorted(found))
        if engine.movable != before:
            self._wake.set()

    async def _wait_for_work(self, mark: int, *, after_us: int) -> None:
        """Return when something changed, something is due, or somebody poked."""
        engine = self._engine
        timeout_s = self._settings.heartbeat_s
        if len(self._held) < self._settings.concurrency:
            due_us = await engine.store.next_ready_at(self._claimable(), after_us=after_us)
            if due_us is not None:
                timeout_s = min(
                    max((due_us - engine.now_us()) / 1_000_000, 0.001), self._settings.heartbeat_s
                )
            changed = asyncio.ensure_future(engine.store.wait_for_change(timeout_s, since=mark))
        else:
            changed = asyncio.ensure_future(_sleep_bool(engine, self._settings.heartbeat_s))
        poked = asyncio.ensure_future(self._wake.wait())
        try:
            await asyncio.wait({changed, poked}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            changed.cancel()
            poked.cancel()
            await asyncio.gather(changed, poked, return_exceptions=True)

    async def _beat_loop(self) -> None:
        engine, clock = self._engine, self._engine.services.clock
        # Counted from the last sending: after one that failed or was slow the next comes at once.
        await clock.sleep(self._next_beat_s - clock.monotonic_s())
        sent_s = self._sent_s = clock.monotonic_s()
        held = [(row, execution) for row, execution, _task in self._held.values()]
        lost = await engine.store.renew(
            self.worker_id,
            [(row.run_id, row.token) for row, _execution in held],
            now_us=engine.now_us(),
            lease_until_us=engine.lease_until_us(),
        )
        self._renewed_s = sent_s
        self._next_beat_s = sent_s + self._settings.heartbeat_s
        for row, execution in held:
            if row.run_id in lost:
                execution.lost()
            else:
                execution.leased_s = max(execution.leased_s, sent_s)
        engine.renewed()
        await self._learn_children()
        if tuple(engine.graphs()) != self._registered:
            await self._register()
        await self._look_for_movable()
        self._beats += 1
        if self._versions.is_waiting or self._beats % UNSERVED_BEATS == 1:
            await self._look_at_versions()

    async def _look_at_versions(self) -> None:
        """Deal with due runs of versions that nobody executes, unless this worker drains."""
        if self.is_draining:
            return
        sent_s = self._engine.services.clock.monotonic_s()
        for row, plan in await self._versions.look():
            self._execute(row, sent_s, plan=plan)

    async def _schedule_loop(self) -> None:
        """Fire what is due, then sleep until the next due time; others' changes are seen in time.

        A schedule that another process adds is found within a heartbeat.
        """
        engine = self._engine
        self._replan.clear()
        next_us = await fire_due(engine, poke=self._wake.set)
        timeout_s = self._settings.heartbeat_s
        if next_us is not None and next_us > engine.now_us():
            timeout_s = min((next_us - engine.now_us()) / 1_000_000, timeout_s)
        sleeping = asyncio.ensure_future(engine.services.clock.sleep(timeout_s))
        replanned = asyncio.ensure_future(self._replan.wait())
        try:
            await asyncio.wait({sleeping, replanned}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            sleeping.cancel()
            replanned.cancel()

    async def _learn_children(self) -> None:
        """Make the graphs of due children known that this process has defined.

        A child's graph is given to `ctx.spawn`, not to the worker: after a restart nothing else
        would tell that its runs can be executed here.
        """
        engine = self._engine
        for name, version in engine.graphs_to_learn():
            query = RunQuery(graph=name, due_us=engine.now_us(), limit=LEARNED_FROM_MAX)
            rows = await engine.store.find_runs(query)
            is_child = any(row.parent is not None and row.version == version for row in rows)
            if is_child and engine.learn_child(name, version):
                self._wake.set()

    async def _liveness_loop(self) -> None:
        dead = await self._engine.store.release_dead()
        for worker_id in dead:
            log.info("worker %s died; its runs are free", worker_id)
        if dead:
            self._wake.set()
        await self._engine.services.clock.sleep(LIVENESS_POLL_S)

    async def _mail_loop(self) -> None:
        store = self._engine.store
        mark = store.change_mark()
        if self._held:
            seen = {
                run_id: execution.mail_seen
                for run_id, (_row, execution, _task) in self._held.items()
            }
            for mail in await store.read_held_mail(self.worker_id, seen=seen):
                entry = self._held.get(mail.run_id)
                if entry is not None and not entry[1].accepts_mail:
                    # It is being loaded and reads its mail itself: look again right after.
                    await self._engine.services.clock.sleep(MAIL_RETRY_S)
                    return
                if entry is not None:
                    entry[1].deliver(mail)
        await store.wait_for_change(self._settings.heartbeat_s, since=mark)

    # -- runs --------------------------------------------------------------------------------------

    def vitals(self) -> Vitals:
        """Return what a health server tells of this worker; may be called from any OS thread."""
        now_s = self._engine.services.clock.monotonic_s()
        beat_age_s = now_s - self._sent_s
        return Vitals(
            worker_id=self.worker_id,
            held=len(self._held),
            concurrency=self._settings.concurrency,
            graphs=self._registered,
            heartbeat_age_s=now_s - self._renewed_s,
            beat_age_s=beat_age_s,
            is_store_reachable=self._engine.is_lease_safe(self._renewed_s),
            is_overdue=beat_age_s > self._settings.lease_ttl_s + self._settings.heartbeat_s,
            is_draining=self.is_draining,
        )

    @property
    def held(self) -> int:
        """How many runs it holds."""
        return len(self._held)

    def held_row(self, run_id: str) -> RunRow | None:
        """Return the row of a run that it executes, as it was claimed; None: it does not."""
        entry = self._held.get(RunId(run_id))
        return entry[0] if entry is not None else None

    def is_ending(self, run_id: str) -> bool:
        """Return whether it holds a run whose end, or release, the store may know already."""
        entry = self._held.get(RunId(run_id))
        return entry is not None and entry[1].is_concluding

    @property
    def has_room(self) -> bool:
        """Whether a new run may be taken at once."""
        return not self.is_draining and len(self._held) < self._settings.concurrency

    def execute_fresh(self, row: RunRow, loaded: Loaded | None, *, leased_s: float) -> None:
        """Execute a run that was started and taken in one transaction.

        Args:
            row: the run.
            loaded: its state, where it needs no reading.
            leased_s: when the lease's time was told (monotonic seconds).
        """
        self._execute(row, leased_s, loaded)

    def _execute(
        self,
        row: RunRow,
        leased_s: float,
        loaded: Loaded | None = None,
        plan: GraphPlan | None = None,
    ) -> None:
        before = self._held.get(row.run_id)
        if before is not None and before[0].token >= row.token:
            return  # a claim and a start may both find it again; a late answer tells of the past
        moves = plan is None and (row.graph, row.version) in self._engine.movable
        if moves:
            plan = self._engine.migrating_plan(row.graph, row.version)
        try:
            plan = plan or self._engine.plan_named(row.graph, row.version)
        except NotFound as error:  # claimed by version, so this can't be
            raise InvariantBroken(str(error)) from error
        execution = Execution(self._engine, row, plan, leased_s=leased_s)
        work = self._supervised(execution, row, loaded, moves=moves)
        task = asyncio.create_task(work, name=row.run_id)
        if before is not None:
            before[1].lost()  # this worker let its own lease end, by blocking its event loop
        self._held[row.run_id] = (row, execution, task)

    async def _supervised(
        self, execution: Execution, row: RunRow, loaded: Loaded | None, *, moves: bool
    ) -> None:
        """Execute one run (or move it first); whatever goes wrong with it stays with it."""
        try:
            if moves and await move_claimed(self._engine, row, execution.plan):
                return  # it is claimed anew, as a run of the version that it has now
            if loaded is not None:
                await execution.run(loaded, is_fresh=True)
            else:
                await execution.run(await load_run(self._engine.store, row))
        except (StoreCorrupt, DecodeFailed) as error:
            log.error("run %s (thread %s) can't be read: %s", row.run_id, row.thread, error)  # noqa: TRY400  # a state of the data, no fault of the code
            self._lost[row.run_id, row.token] = error
        except (StoreError, LeaseLost) as error:
            self._lost[row.run_id, row.token] = error
        except Exception:  # the worker's supervisor: a bug must not take the other runs along
            log.exception(
                "run %s: stopped by a fault of the runtime; it is taken up again", row.run_id
            )
        finally:
            await self._hand_back(row)
            if self._holds(row):
                del self._held[row.run_id]
            self._wake.set()

    def _holds(self, row: RunRow) -> bool:
        """Whether the run is held under this token: a worker may take over from itself."""
        entry = self._held.get(row.run_id)
        return entry is not None and entry[0].token == row.token

    async def _hand_back(self, row: RunRow) -> None:
        """Give a run that this worker can't go on with back at once, not when its lease ends."""
        error = self._lost.pop((row.run_id, row.token), None)
        if error is None or isinstance(error, LeaseLost):
            return
        is_unreadable = isinstance(error, StoreCorrupt | DecodeFailed)
        if not is_unreadable:
            log.warning("run %s is let go, and taken up again: %s", row.run_id, error)
        try:
            await hand_back(
                self._engine,
                row,
                failure_of(error),
                is_parked=is_unreadable,
                is_counted=type(error) is StoreError,  # all others pass, or concern all runs
            )
        except PerdureError as again:
            log.warning("run %s: %s; it is taken up again when its lease ends", row.run_id, again)

    def _on_lost(self, row: RunRow, error: PerdureError) -> None:
        self._lost.setdefault((row.run_id, row.token), error)

    def _on_dead(self, journal: Any) -> None:
        self._on_lost(journal.row, journal.error)
        if self._holds(journal.row):
            self._held[journal.row.run_id][1].lost()


async def _sleep_bool(engine: Environment, delay_s: float) -> bool:
    await engine.services.clock.sleep(delay_s)
    return False
