"""The open waits of a held run, the mail for them, and the moment when all of the run waits.

Invariant: a run is released as waiting only when every node execution waits and nothing has moved
for some turns of the loop; a message that comes after that moment is not counted as seen, so the
store wakes the run again.
"""

import asyncio
from typing import Any

from msgspec import Struct

from perdure.engine.limits import LINGER_S, SETTLE_TURNS
from perdure.engine.ports import CANCELLED, WAITING, HeldRun, NodePort
from perdure.model import Mail, MailKind, MailTaken, Wait
from perdure.model import records as rec

_DIRECTING = frozenset({MailKind.CANCEL, MailKind.RETRY})
"""Messages to the holder itself, which recording them uses up."""


class Waiting(Struct, eq=False):
    """One open wait that is kept in memory."""

    wait: Wait
    kind: MailKind | None
    future: "asyncio.Future[Mail | None]"


class HeldWaits:
    """What the node executions of one held run wait for."""

    def __init__(self, run: HeldRun) -> None:
        """Belong to a held run."""
        self._run = run
        self.contexts: set[Any] = set()
        self.open: list[Any] = []
        self.mail_seen = 0
        self.mail_counted = 0
        self._mail: list[Mail] = []
        self._generation = 0
        self._settling: asyncio.Task[None] | None = None

    def close(self) -> None:
        """Stop looking whether all of the run waits."""
        if self._settling is not None:
            self._settling.cancel()

    def touch(self) -> None:
        """Something moved; look whether the whole run waits now."""
        self._generation += 1
        if self.open and self._settling is None and self._is_still():
            self._settling = asyncio.create_task(self._settle())

    def _is_still(self) -> bool:
        if self._run.is_failing:
            return False  # it ends; what else waits in it will not keep it
        if any(waiting.future.done() for waiting in self.open):
            return False  # a wait is over, its node has not had its turn yet
        return bool(self.contexts) and all(
            context.active == 0 and context.held == 0 and self._is_waiting(context)
            for context in self.contexts
        )

    def _is_waiting(self, context: Any) -> bool:
        """Return whether a node waits; one that is a subgraph does where nodes inside it are."""
        if context.waiting > 0:
            return True
        inside = f"{context.task.path}/"
        return any(other.task.path.startswith(inside) for other in self.contexts)

    async def _settle(self) -> None:
        """Release the run when everything stays still for some turns of the loop."""
        try:
            turns = 0
            generation = self._generation
            while turns < SETTLE_TURNS:
                await self._run.engine.services.clock.sleep(0)
                turns += 1
                if not self._is_still():
                    return
                if generation != self._generation:
                    generation, turns = self._generation, 0
        finally:
            self._settling = None
        if self.open:
            self._run.stop(WAITING)

    async def wait(self, context: NodePort, wait: Wait) -> None:
        """Return when the wait is due."""
        if wait.due_us is None or wait.due_us > self._run.now_us():
            await self._hold(context, wait, None)

    async def wait_for_mail(self, context: NodePort, wait: Wait, kind: MailKind) -> Mail | None:
        """Return the message, or None when the wait is due first."""
        for mail in self._mail:
            if mail.kind is kind and mail.subject == wait.subject:
                self._mail.remove(mail)
                return mail
        if wait.due_us is not None and wait.due_us <= self._run.now_us():
            return None
        return await self._hold(context, wait, kind)

    async def _hold(self, context: NodePort, wait: Wait, kind: MailKind | None) -> Mail | None:
        if self._run.stop_reason is not None:
            raise asyncio.CancelledError
        waiting = Waiting(wait, kind, asyncio.get_running_loop().create_future())
        left_s = None if wait.due_us is None else (wait.due_us - self._run.now_us()) / 1_000_000
        lingers = left_s is not None and left_s <= LINGER_S
        context.active += lingers
        context.waiting += not lingers
        self.open.append(waiting)
        alarm = None if left_s is None else asyncio.create_task(self._ring(left_s, waiting))
        self.touch()
        try:
            found: Mail | None = await waiting.future
            return found
        finally:
            if self._run.stop_reason != WAITING:
                self.open.remove(waiting)
            context.active -= lingers
            context.waiting -= not lingers
            if alarm is not None:
                alarm.cancel()
            self._generation += 1

    async def _ring(self, left_s: float, waiting: Waiting) -> None:
        await self._run.engine.services.clock.sleep(max(left_s, 0.0))
        if not waiting.future.done():
            waiting.future.set_result(None)

    async def take_mail(self) -> None:
        """Read new messages and hand them to who waits for them."""
        for mail in await self._run.engine.store.read_mail(
            self._run.row.run_id, after=self.mail_seen
        ):
            self.deliver(mail)

    def deliver(self, mail: Mail) -> None:
        """Take one message in. Idempotent by its id."""
        if mail.mail_id <= self.mail_seen:
            return
        self.mail_seen = mail.mail_id
        taken = MailTaken(mail_ids=(mail.mail_id,))
        is_stopping = self._run.stop_reason is not None or self._run.is_concluding
        if is_stopping and mail.kind in _DIRECTING:
            return  # too late for this holder: it wakes the run after the release
        if mail.kind is MailKind.CANCEL:
            compensate = bool(self._run.engine.codec.decode(mail.body_wire))
            self._run.record(
                rec.CancelRequested(self._run.now_us(), mail.sender, compensate), taken
            )
            self._run.stop(CANCELLED)
        elif mail.kind is MailKind.RETRY:
            self._run.record(rec.RetryRequested(self._run.now_us(), mail.sender), taken)
        else:
            self._hand_over(mail)

    def _hand_over(self, mail: Mail) -> None:
        for waiting in self.open:
            fits = waiting.kind is mail.kind and waiting.wait.subject == mail.subject
            if fits and not waiting.future.done():
                waiting.future.set_result(mail)
                return
        self._mail.append(mail)

    async def find_mail(self, kind: MailKind, subject: str) -> Mail | None:
        """Read the mail again and return the first such message, or None."""
        await self.take_mail()
        for mail in self._mail:
            if mail.kind is kind and mail.subject == subject:
                self._mail.remove(mail)
                return mail
        return None
