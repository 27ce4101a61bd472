"""What must hold after every event at the store, at every dispatch, and at the end."""

from collections import Counter
from typing import Any

from perdure.codec import decode_record, is_hash_right, record_digests, split_frame
from perdure.ids import RunId
from perdure.model import (
    Append,
    Appended,
    AskState,
    EffectState,
    FrameRow,
    MailKind,
    NewRun,
    RunReleased,
    RunRow,
    RunStatus,
    Started,
    Wait,
    WaitKind,
)
from perdure.testing.simulator._hosts import Host
from perdure.testing.simulator._network import Call
from perdure.testing.simulator._outside import World
from perdure.testing.simulator._truth import TruthStore
from perdure.testing.simulator.limits import BEAT_S_MIN, FORGOTTEN_BEATS

DECIDING = {MailKind.DECISION, MailKind.RETRY, MailKind.CANCEL}
"""Messages that wake a parked run."""


class Violation(Exception):
    """A rule that always holds did not."""


def require(holds: object, what: str) -> None:
    """Raise Violation with `what` unless it holds."""
    if not holds:
        raise Violation(what)


class Checker:
    """Compares every state of the store with the one before."""

    def __init__(self, truth: TruthStore, world: World, lease_ttl_s: float) -> None:
        """Watch a store."""
        self._truth = truth
        self._world = world
        self._ttl_s = lease_ttl_s
        self._runs: dict[RunId, RunRow] = {}
        self._frames: dict[RunId, tuple[FrameRow, ...]] = {}
        self._mail_seen: dict[RunId, int] = {}
        self._noted: set[bytes] = set()
        self._mail_ids: set[int] = set()
        self._given: dict[tuple[str, int], Call] = {}
        self._missing: Counter[tuple[str, int, int]] = Counter()
        self._beats: dict[str, tuple[int, float]] = {}
        self._posted: Counter[tuple[str, ...]] = Counter()
        self.states = 0

    # -- events at the store -----------------------------------------------------------------------

    def after(self, call: Call, result: Any) -> None:
        """Check everything that a call may have changed."""
        if call.name == "append":
            for item, outcome in zip(call.args[0], result, strict=True):
                if isinstance(outcome, Appended):
                    self._note_append(item)
        elif call.name == "renew":
            self._check_held(call)
        elif call.name == "start":
            for new, started in zip(call.args[0], result, strict=True):
                if isinstance(started, Started):
                    self._check_started(new, started)
        self.states += 1
        tables = self._truth.tables
        for run_id, row in tables.runs.items():
            known = self._runs.get(run_id)
            if known is not row:
                self._check_row(known, row, call)
                self._check_frames(run_id, tables.frames[run_id], row)
            self._check_not_stuck(row)
        require(len(self._runs) <= len(tables.runs), "a run has vanished from the store")
        self._runs = dict(tables.runs)
        self._check_mail()

    @staticmethod
    def _check_started(new: NewRun, started: Started) -> None:
        """Check that a start which holds its run is told so, also when it comes again."""
        row = started.row
        is_held = row.status is RunStatus.RUNNING and (row.holder, row.token) == (new.take_for, 1)
        is_told = started.taken or row.run_id != new.run_id or not is_held
        require(
            is_told, f"run {row.run_id}: its start came again and was not told that it holds it"
        )

    def _note_append(self, item: Append) -> None:
        frames = self._truth.tables.frames[item.run_id]
        own = [frame for frame in frames if frame.hash == item.hash]
        require(own, f"run {item.run_id}: an append was acknowledged and is not in the journal")
        if item.hash in self._noted:
            return  # it has come again
        self._noted.add(item.hash)
        for change in item.changes:
            if isinstance(change, RunReleased):
                self._mail_seen[item.run_id] = change.mail_seen

    def _check_row(self, known: RunRow | None, row: RunRow, call: Call) -> None:
        run_id = row.run_id
        if known is None:
            if row.status is RunStatus.RUNNING and not call.answer.done():
                self._given[run_id, row.token] = call
            return
        require(row.token >= known.token, f"run {run_id}: the token fell to {row.token}")
        require(
            not known.status.is_final or row.status is known.status, f"run {run_id} ended twice"
        )
        if row.token == known.token:
            if row.holder is not None:
                same = row.holder == known.holder
                require(same, f"run {run_id}: two holders under the token {row.token}")
            return
        require(row.token == known.token + 1, f"run {run_id}: a token was left out")
        is_taking = call.name in {"claim", "take"}
        require(is_taking, f"run {run_id}: {call.name} took the run")
        if known.status is not RunStatus.RUNNING and call.name == "take":
            return
        ready, now_us = known.ready_at_us, call.kwargs["now_us"]
        is_free = ready is not None and ready <= now_us
        require(is_free, f"run {run_id} was claimed from {known.holder} under a live lease")
        if not call.answer.done():  # else its caller has given up, and can't know
            self._given[run_id, row.token] = call

    def _check_frames(self, run_id: RunId, frames: tuple[FrameRow, ...], row: RunRow) -> None:
        known = self._frames.get(run_id, ())
        require(frames[: len(known)] == known, f"run {run_id}: the journal was changed")
        before = known[-1] if known else None
        for frame in frames[len(known) :]:
            self._check_frame(before, frame)
            is_own = frame.token in {row.token, 0}
            require(is_own, f"run {run_id}: a frame of token {frame.token} under {row.token}")
            before = frame
        require(before is not None, f"run {run_id} has no journal")
        if before is not None:
            is_whole = row.last_seq == before.first_seq + before.count - 1
            require(is_whole, f"run {run_id}: the journal does not reach last_seq {row.last_seq}")
        self._frames[run_id] = frames

    @staticmethod
    def _check_frame(before: FrameRow | None, frame: FrameRow) -> None:
        where = f"run {frame.run_id}, frame {frame.first_seq}"
        next_seq = 1 if before is None else before.first_seq + before.count
        prev_hash = bytes(32) if before is None else before.hash
        records = split_frame(frame.body)
        require(frame.first_seq == next_seq, f"{where}: the journal has a gap")
        require(len(records) == frame.count, f"{where}: {len(records)} records, not {frame.count}")
        require(frame.prev_hash == prev_hash, f"{where}: the hash chain is broken")
        is_right = is_hash_right(frame, record_digests(records))
        require(is_right, f"{where}: its hash is wrong")
        token = 0 if before is None else before.token
        require(frame.token >= token, f"{where}: its token is {frame.token} after {token}")

    def _check_held(self, call: Call) -> None:
        """Check that a worker which renews its leases knows of the runs that it was given.

        A run that the store says is its own and that it does not execute stays where it is until
        the lease ends. That must be no rule: it is found again in a few heartbeats.
        """
        worker_id, held = call.args[0], set(call.args[1])
        number, at_s = self._beats.get(worker_id, (0, -BEAT_S_MIN))
        now_s = self._world.network.clock.monotonic_s()
        is_late = call.answer.done() or number >= call.number or now_s - at_s < BEAT_S_MIN
        is_asking = call.host.asking["find_runs"] or call.host.asking["start"]
        if is_late or is_asking or call.host.runtime.worker.is_draining:
            return  # what it says is old, or it is finding out, or it takes in nothing more
        self._beats[worker_id] = (call.number, now_s)
        for run_id, row in self._truth.tables.runs.items():
            given = self._given.get((run_id, row.token))
            is_own = row.status is RunStatus.RUNNING and row.holder == worker_id
            if (
                not is_own
                or given is None
                or not given.answer.done()
                or (run_id, row.token) in held
            ):
                continue
            # Each claim or start that fails begins the count anew: the host looks for its runs.
            lease = (run_id, row.token, call.host.failures)
            self._missing[lease] += 1
            known = self._missing[lease] < FORGOTTEN_BEATS
            require(known, f"run {run_id} belongs to {call.host.name}, which has forgotten it")

    # -- a run is never stuck ----------------------------------------------------------------------

    def _check_not_stuck(self, row: RunRow) -> None:
        if row.status.is_final or row.ready_at_us is not None:
            return
        where = f"run {row.run_id} ({row.status.value}) is stuck"
        unread = [
            mail.kind
            for mail in self._truth.tables.mail.get(row.run_id, ())
            if mail.mail_id > self._mail_seen.get(row.run_id, 0)
        ]
        if row.status is RunStatus.PENDING:
            is_queued = any(wait.kind is WaitKind.THREAD for wait in row.waits)
            require(is_queued, f"{where}: nobody may claim it")
            require(self._has_run_before(row), f"{where}: its turn has come")
            return
        require(row.status is not RunStatus.RUNNING, f"{where}: it has no lease end")
        waking = set(MailKind) if row.status is RunStatus.WAITING else DECIDING
        require(not waking & set(unread), f"{where}: it was not woken for its mail {unread}")
        if row.status is RunStatus.WAITING:
            can_end = any(self._can_end(wait) for wait in row.waits)
            require(can_end, f"{where}: nothing that it waits for can come")

    def _has_run_before(self, row: RunRow) -> bool:
        return any(
            other.thread == row.thread
            and other.tenant == row.tenant
            and other.ordinal < row.ordinal
            and not other.status.is_final
            for other in self._truth.tables.runs.values()
        )

    def _can_end(self, wait: Wait) -> bool:
        tables: Any = self._truth.tables
        if wait.kind is WaitKind.ASK:
            return bool(tables.asks[wait.subject].state is AskState.OPEN)
        if wait.kind is WaitKind.CHILD:
            return not tables.runs[wait.subject].status.is_final
        return wait.kind is WaitKind.SIGNAL or wait.kind is WaitKind.DECISION

    # -- messages ----------------------------------------------------------------------------------

    def _check_mail(self) -> None:
        for messages in self._truth.tables.mail.values():
            for mail in messages:
                if mail.mail_id in self._mail_ids:
                    continue
                self._mail_ids.add(mail.mail_id)
                identity: tuple[str, ...] = ()
                if mail.post_id:
                    identity = (mail.run_id, mail.post_id)
                elif mail.kind in {MailKind.ANSWER, MailKind.CHILD}:
                    identity = (mail.run_id, mail.kind.value, mail.subject)
                if identity:
                    self._posted[identity] += 1
                    is_new = self._posted[identity] == 1
                    require(is_new, f"run {mail.run_id} got a {mail.kind.value} message twice")

    # -- dispatch ----------------------------------------------------------------------------------

    def dispatching(self, host: Host, label: str, key: str) -> None:
        """Check that an effect may be sent now: its intent is durable, the lease the host's own."""
        tables = self._truth.tables
        known = tables.effects.values()  # a compensation's key is made of its effect's id
        found = [row for row in known if key in {row.key, f"c_{row.effect_id}"}]
        where = f"{host.name} sends {label}"
        require(found, f"{where}, and its intent is not durable")
        row = found[0]
        is_meant = row.state in {EffectState.INTENDED, EffectState.COMPENSATING}
        require(is_meant, f"{where}, which is {row.state.value} in the ledger, not intended")
        run = tables.runs[row.run_id]
        held = host.runtime.worker.held_row(row.run_id)
        require(held is not None, f"{where} of run {row.run_id}, which it does not hold")
        age_s = host.clock.monotonic_s() - host.leases.get((row.run_id, held.token), 0.0)
        require(
            age_s < self._ttl_s,
            f"{where} of run {row.run_id} {age_s - self._ttl_s:.2f} s after its lease ended (token "
            f"{held.token}); now {run.holder} has it (token {run.token})",
        )

    # -- the end -----------------------------------------------------------------------------------

    def at_end(self) -> None:
        """Check what must be true when all has come to rest."""
        tables = self._truth.tables
        for row in tables.runs.values():
            require(row.status.is_final, f"run {row.run_id} ends as {row.status.value}")
            for frame in tables.frames[row.run_id]:
                for encoded in split_frame(frame.body):
                    decode_record(encoded)
        for effect in tables.effects.values():
            what = f"effect {effect.name} of run {effect.run_id} ends as {effect.state.value}"
            is_open = effect.state is EffectState.UNCERTAIN and effect.decision is None
            require(not is_open, what)
            require(effect.state is not EffectState.INTENDED, what)
        for thing in self._world.done.values():
            require(thing.count <= 1, f"{thing.label} was done {thing.count} times")
            keys = len(thing.keys)
            require(keys == 1, f"{thing.label} was asked for under {keys} keys")
