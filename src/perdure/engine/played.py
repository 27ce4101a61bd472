"""A run that is only played: what its driver and its nodes see of it during a replay.

Theory: `Played` has what the driver needs of a held run, over a store that refuses every call.
`ReplayContext` is the `ctx` of a node: every act is looked up on the tape. What has a recorded
outcome is served; what has none makes the node stand, as it would have waited, for ever.
"""

import asyncio
import datetime as dt
from types import SimpleNamespace
from typing import Any, NoReturn

from msgspec import Raw
from msgspec.structs import replace

from perdure.clock import Services, no_probe
from perdure.core import fold
from perdure.core.plan import GraphPlan
from perdure.engine.acts import failure_of
from perdure.engine.context import ChildRun, Context
from perdure.engine.divergence import (
    EFFECT_KINDS,
    SERVED_AS,
    DivergenceKind,
    Report,
    act_words,
    asked_with,
    call_words,
    is_same,
    is_same_way,
    kind_of,
    names,
    plain,
    request_of,
    shown,
    specs_of,
    subject_of,
)
from perdure.engine.environment import Environment
from perdure.engine.limits import STILL_TURNS
from perdure.engine.ports import Answer, NodePort
from perdure.engine.tape import Tape, TapedAttempt
from perdure.engine.waits import MISSING, as_datetime
from perdure.errors import InvariantBroken, UsageError
from perdure.graph import Effect, as_effect
from perdure.model import EffectState, Failure, Mail, MailKind, RunRow, Wait
from perdure.model import records as rec

OPEN = "open"
"""State of a wait that has no outcome."""


class Stands(BaseException):
    """The record ends here. Not an Exception: no node may catch it."""


class NotServed(BaseException):
    """A node asked for what the tape can't give: not recorded, or without an outcome."""

    def __init__(self, call: fold.Call | None) -> None:
        """Carry the recorded act, or None."""
        super().__init__()
        self.call = call


class _SealedStore:
    """A store that a replay can't reach: whatever is asked of it is a bug."""

    def __getattr__(self, name: str) -> NoReturn:
        msg = f"a replay asked its store for {name!r}; nothing was read or written"
        raise InvariantBroken(msg)


class _NoFiles:
    """The sandbox of a played run: files are not touched."""

    is_spoilt = False

    async def leave(self, _context: NodePort, *, defers: bool = False) -> None:
        """Take no snapshot."""

    async def settle(self) -> bool:
        """Take no snapshot."""
        return True

    def abandon(self, _context: NodePort) -> None:
        """Have nothing to give back."""

    async def leave_waiting(self) -> None:
        """Take no snapshot."""


class Played:
    """A run that is only played: what the driver and the acts see of it (`ports.HeldRun`)."""

    def __init__(
        self,
        engine: Environment,
        row: RunRow,
        plan: GraphPlan,
        state: fold.RunState,
        tape: Tape,
    ) -> None:
        """Belong to a run that was read."""
        clock, rng, ids = engine.services.clock, engine.services.rng, engine.services.ids
        services = Services(clock=clock, rng=rng, ids=ids, probe=no_probe)
        self.engine = engine.apart(_SealedStore(), services)  # type: ignore[arg-type]  # refuses everything
        self.row = row
        self.plan = plan
        self.state = state
        self.tape = tape
        self.report = Report()
        self.at_us = tape.last_us
        self.outcome: rec.NodeFinished | rec.NodeFailed | None = None
        self.journal: Any = SimpleNamespace(durable_seq=0, total_bytes=0, is_behind=False)
        self.waits: Any = SimpleNamespace(contexts=set(), open=[], mail_counted=0)
        self.sandbox_use = _NoFiles()
        self.is_draining = self.is_failing = self.is_concluding = False
        self.stop_reason: str | None = None
        self.stop_failure: Failure | None = None
        self._is_error_missed = False

    def now_us(self) -> int:
        """Return the recorded time of what is played."""
        return self.at_us

    def record(self, record: rec.Record, *_changes: Any) -> None:
        """Compare what would be recorded with the tape; only steps are taken in."""
        if isinstance(record, rec.NodeFinished | rec.NodeFailed):
            self.outcome = record
        elif isinstance(record, rec.StepCommitted):
            self._step(record)
        elif not isinstance(record, rec.Emitted):
            msg = f"a replay of run {self.row.run_id!r} would write {type(record).__name__}"
            raise InvariantBroken(msg, run_id=self.row.run_id)

    def taken_outcome(self, path: str) -> rec.NodeFinished | rec.NodeFailed | None:
        """Return how an execution ended; None: it stands."""
        outcome = self.outcome
        return outcome if outcome is not None and outcome.task == path else None

    def _step(self, got: rec.StepCommitted) -> None:
        recorded = self.tape.steps.get((got.scope, got.step))
        if recorded is None and self._went_by(got):
            self.report.steps += 1
            fold.apply_unrecorded(self.state, replace(got, checkpoint=self.state.checkpoint))
            return
        if recorded is None:
            raise Stands
        place = f"{got.scope}/{got.step}" if got.scope else str(got.step)
        if not is_same_way(self.engine.codec, recorded.next, got.next):
            expected, now = specs_of(recorded.next), specs_of(got.next)
            message = (
                f"code changed: after step {place} comes {names(now, 'the end')}, recorded "
                f"{names(expected, 'the end')}"
            )
            self.report.add(
                DivergenceKind.NEXT, place, 0, expected=expected, got=now, message=message
            )
        compared = set() if recorded.passed else {*got.folded, *recorded.folded}
        for name in sorted(self._written(got) & compared):
            self._compare_merged(place, name, recorded.folded.get(name), got.folded.get(name))
        self.report.steps += 1
        fold.apply(self.state, recorded)

    def _went_by(self, got: rec.StepCommitted) -> bool:
        """Return whether a step has no record of its own, and a later checkpoint tells of it."""
        return not got.scope and any(map(self.tape.went_by, self.state.root.tasks))

    def _written(self, got: rec.StepCommitted) -> set[str]:
        """Return the fields that were written in a step; others only begin with a default."""
        if got.step == fold.INPUT_STEP:
            started = self.tape.started
            return set(started.input) if started is not None and not got.scope else set()
        tasks = self.state.scopes[got.scope].tasks.values()
        return {name for t in tasks if t.outcome is not None for name in t.outcome.writes}

    def _compare_merged(self, place: str, name: str, expected: Raw | None, got: Raw | None) -> None:
        if not is_same(self.engine.codec, expected, got):
            self.report_merged(place, name, expected, got)

    def report_merged(self, place: str, name: str, expected: Raw | None, got: Raw | None) -> None:
        """Say that the writes of a step come to another value than is recorded."""
        message = (
            f"code changed: step {place} merges {name} to {shown(got)}, recorded {shown(expected)}"
        )
        self.report.add(
            DivergenceKind.STATE,
            place,
            0,
            subject=name,
            expected=expected,
            got=got,
            message=message,
        )

    def compare_step_error(self, place: str, error: Exception, *, was_committed: bool) -> None:
        """Compare an error between nodes with how the run ended, or with the step it committed."""
        expected = self.tape.step_failure
        if not was_committed and (expected is None or expected == type(error).__name__):
            return
        was = "it was committed" if was_committed else f"it failed with {expected}"
        self.report.add(
            DivergenceKind.OUTCOME,
            place,
            0,
            expected=None if was_committed else expected,
            got=failure_of(error),
            message=f"code changed: step {place} fails with {type(error).__name__}: {error}; "
            f"recorded: {was}",
        )

    def compare_no_error(self, place: str) -> None:
        """Say that a step can be committed where the record has an error."""
        expected = self.tape.step_failure
        if expected is None or self._is_error_missed:
            return
        self._is_error_missed = True
        message = (
            f"code changed: step {place} can be gone on with, recorded: the run failed there with "
            f"{expected}"
        )
        self.report.add(DivergenceKind.OUTCOME, place, 0, expected=expected, message=message)

    # -- what is served ----------------------------------------------------------------------------

    async def wait(self, context: Any, wait: Wait) -> None:
        """Stand: what has an outcome is never waited for."""
        await context.stand(f"{wait.kind.value} {wait.subject}".strip())

    async def wait_for_mail(self, context: Any, wait: Wait, _kind: MailKind) -> Mail | None:
        """Stand: what has come is never waited for."""
        await context.stand(f"{wait.kind.value} {wait.note or wait.subject}".strip())
        return None

    async def barrier(self) -> None:
        """Return: nothing is written."""

    async def keep_up(self) -> None:
        """Return: nothing is written."""

    def touch(self) -> None:
        """Hear that something moved."""

    def sandbox(self) -> Any:
        """Refuse: files are not touched."""
        msg = "a replay touches no files: use ctx.sandbox in effects of kind 'contained' only"
        raise UsageError(msg, run_id=self.row.run_id)

    @property
    def is_running(self) -> bool:
        """Whether nothing stops the run."""
        return self.stop_reason is None

    def park(self, error: Exception) -> None:
        """Refuse: a replay asks nobody."""
        raise InvariantBroken(str(error), run_id=self.row.run_id)

    async def check_lease(self) -> None:
        """Refuse: there is no lease."""
        self._refuse()

    async def check_dispatch(self) -> None:
        """Refuse: nothing is dispatched."""
        self._refuse()

    async def enter_sandbox(self, _context: NodePort) -> None:
        """Refuse: files are not touched."""
        self._refuse()

    async def settle_sandbox(self) -> None:
        """Return: there are no files."""

    async def find_mail(self, _kind: MailKind, _subject: str) -> Mail | None:
        """Refuse: there is no mail."""
        self._refuse()

    async def transact(self, _body: Any) -> None:
        """Refuse: nothing is written."""
        self._refuse()

    def _refuse(self) -> NoReturn:
        msg = f"a replay of run {self.row.run_id!r} was about to act; nothing was done"
        raise InvariantBroken(msg, run_id=self.row.run_id)

    def stop(self, reason: str) -> None:
        """Note why it is stopped."""
        self.stop_reason = reason


class ReplayContext(Context):
    """What a replayed node gets: every act is served from the tape, or the node stands."""

    def __init__(self, run: Played, task: fold.Task) -> None:
        """Belong to one attempt of one task, whose calls are those of the tape."""
        super().__init__(run, task)
        self._played = run
        self._moves = 0
        self._stood: asyncio.Future[None] | None = None
        self._wanted: list[tuple[str, str, Any]] = []
        self.stands_on: list[str] = []
        self.wanted_outside: list[tuple[str, Any, str | None]] = []

    @property
    def has_wanted(self) -> bool:
        """Whether it asked for something that is not recorded."""
        return bool(self._wanted)

    # -- acts --------------------------------------------------------------------------------------

    async def call(
        self, function: Any, /, *args: Any, key: str | None = None, **kwargs: Any
    ) -> Any:
        """Return the recorded result of an effect."""
        try:
            return await super().call(function, *args, key=key, **kwargs)
        except NotServed as missing:
            effect = function if isinstance(function, Effect) else as_effect(function)
            request = plain(request_of(list(args), kwargs))
            if missing.call is None and effect.kind.is_outside:
                self.wanted_outside.append((effect.name, request, key))
            return await self._not_served(missing, "effect", effect.name, request)

    async def ask(
        self,
        question: str,
        *,
        schema: Any = None,
        expires_in: dt.timedelta | float | None = None,
        default: Any = MISSING,
    ) -> Answer:
        """Return the recorded answer."""
        try:
            return await super().ask(
                question, schema=schema, expires_in=expires_in, default=default
            )
        except NotServed as missing:
            return await self._not_served(missing, "ask", question, None)

    async def receive(self, topic: str, *, timeout: dt.timedelta | float | None = None) -> Any:  # noqa: ASYNC109  # as of Context
        """Return the recorded signal."""
        try:
            return await super().receive(topic, timeout=timeout)
        except NotServed as missing:
            return await self._not_served(missing, "receive", topic, None)

    async def sleep(self, duration: dt.timedelta | float) -> None:
        """Return at once if the recorded sleep is over."""
        try:
            await super().sleep(duration)
        except NotServed as missing:
            await self._not_served(missing, "timer", f"of {duration}", None)

    async def spawn(self, graph: Any, input: Any = None, *, thread: str | None = None) -> ChildRun:  # noqa: A002  # as of Context
        """Return the recorded child."""
        try:
            return await super().spawn(graph, input, thread=thread)
        except NotServed as missing:
            name = self._played.engine.plan_of(graph).name
            return await self._not_served(missing, "child", name, None)

    def now(self) -> dt.datetime:
        """Return the recorded time; where there is none, that of the execution, and say so."""
        identity = self.identify("now", "now", "")
        call = self._task.calls.get(identity)
        if call is not None:
            self._serve(call)
            return as_datetime(self._played.engine.codec.decode(call.result or rec.NIL))
        self._wanted.append(("note", "", None))
        return as_datetime(self._played.now_us())

    def find(self, identity: str) -> fold.Call | None:
        """Return the recorded act, where it can be served.

        Raises:
            NotServed: it is not recorded, or is an effect without an outcome.
        """
        call = super().find(identity)
        if call is None or not self._is_settled(call):
            raise NotServed(call)
        self._serve(call)
        return call

    def _is_settled(self, call: fold.Call) -> bool:
        if call.kind not in EFFECT_KINDS:
            return True  # an open wait is served as one: the node stands there
        if call.state == EffectState.FAILED:
            return call.due_us is None and call.node_attempt >= self._task.attempt
        return call.state == EffectState.CONFIRMED

    def _serve(self, call: fold.Call) -> None:
        call.is_asked = True
        self._moves += 1
        if call.state != OPEN:  # what is open is not answered: the node stands there
            self._played.report.served[SERVED_AS.get(call.kind, "effects")] += 1

    # -- standing ----------------------------------------------------------------------------------

    async def _not_served(
        self, missing: NotServed, kind: str, subject: str, request: Any
    ) -> NoReturn:
        if missing.call is not None:
            await self.stand(f"effect {missing.call.name} ({missing.call.state})")
        self._wanted.append((kind, subject, request))
        await self.stand(f"{act_words(kind, subject, request)}, which is not recorded")
        raise InvariantBroken(subject)

    async def stand(self, on: str) -> None:
        """Never return: the node waits for something that the record does not have."""
        self.stands_on.append(on)
        self.waiting += 1
        self._moves += 1
        if self._stood is not None and not self._stood.done():
            self._stood.set_result(None)
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            self.waiting -= 1

    async def until_still(self, working: "asyncio.Task[None]") -> bool:
        """Return True when the execution has ended, False when all of it stands."""
        clock = self._played.engine.services.clock
        while not working.done():
            if self.waiting == 0:
                self._stood = asyncio.get_running_loop().create_future()
                await asyncio.wait({working, self._stood}, return_when=asyncio.FIRST_COMPLETED)
                continue
            turns, moves = 0, self._moves
            while turns < STILL_TURNS and not working.done():
                await clock.sleep(0)
                is_quiet = moves == self._moves and self.active == 0
                turns, moves = (turns + 1 if is_quiet else 0), self._moves
            if not working.done():
                return False
        await working
        return True

    # -- divergences -------------------------------------------------------------------------------

    def missing(self, attempt: TapedAttempt) -> list[fold.Call]:
        """Return the recorded acts of the attempt that were not asked for."""
        calls = [attempt.calls[key] for key in attempt.touched if key in attempt.calls]
        return [call for call in calls if not call.is_asked]

    def report_wanted(self) -> None:
        """Report what it asked for that is not recorded, beside what may be recorded for it."""
        for kind, subject, request in self._wanted:
            recorded = self._counterpart(kind, subject)
            node = self._task.path
            was = f", recorded {call_words(recorded)}" if recorded is not None else ", not recorded"
            self._played.report.add(
                DivergenceKind.ASKED,
                node,
                self._task.attempt,
                subject=subject,
                expected=None if recorded is None else asked_with(recorded),
                got=request if request is not None else subject,
                message=(
                    f"code changed: node `{node}` asks for {act_words(kind, subject, request)}{was}"
                ),
            )

    def _counterpart(self, kind: str, subject: str) -> fold.Call | None:
        """Return the recorded act of this kind that was not asked for: of the same name first."""
        left = [c for c in self._task.calls.values() if not c.is_asked and kind_of(c) == kind]
        named = [call for call in left if subject_of(call) == subject]
        for call in named or left:
            call.is_asked = True  # it is spoken of
            return call
        return None
