"""What a node may do durably: the `ctx` that it is given.

Every act has an identity (`core.identity`). The first execution of a node records what each act
gave; a later execution of the same node (after a wait, a crash, a takeover) gets the recorded
results and does nothing twice.
"""

import asyncio
import datetime as dt
from collections import Counter
from collections.abc import Awaitable, Callable, Generator, Iterable
from hashlib import sha256
from typing import Any

from msgspec import Raw

from perdure.core import fold
from perdure.core.identity import call_id, digest_of
from perdure.engine import effects, waits
from perdure.engine.acts import is_composed, takes_two
from perdure.engine.node_sandbox import NodeSandbox
from perdure.engine.os_threads import without_exit
from perdure.engine.ports import Answer, RunPort
from perdure.errors import UsageError
from perdure.graph import Effect, as_effect
from perdure.model import records as rec


class Emission:
    """What `ctx.emit` gives: await it to wait while the stream is far ahead of the store.

    Nothing is lost if nobody awaits it.
    """

    __slots__ = ("_run",)

    def __init__(self, run: RunPort) -> None:
        """Belong to a run."""
        self._run = run

    def __await__(self) -> Generator[Any, None, None]:
        """Wait while too much is uncommitted."""
        return self._run.keep_up().__await__()


class ChildRun:
    """A child run, as its parent holds it. It has begun; await `result()` for how it ends."""

    def __init__(self, context: "Context", call: fold.Call) -> None:
        """Belong to the node execution that spawned it."""
        self._context = context
        self._call = call
        self._gate = asyncio.Lock()  # its one message goes to one waiter; the others find it done
        self.id: str = call.started.child

    def __repr__(self) -> str:
        return f"ChildRun({self.id!r}; await .result() for its final state)"

    async def result(self) -> Any:
        """Wait durably until the child has ended and return its final state.

        Raises:
            ChildFailed: it failed or was cancelled; carries its id and reason.
        """
        async with self._gate:
            return await waits.child_result(self._context, self._call)


class Context:
    """The durable acts of one node execution.

    Belongs to that execution; not to be kept or shared.
    """

    __slots__ = ("_counts", "_run", "_task", "active", "held", "waiting")

    def __init__(self, run: RunPort, task: fold.Task) -> None:
        """Belong to one execution of one task."""
        self._run = run
        self._task = task
        self._counts: Counter[tuple[str, str, str]] | None = None
        self.active = 0
        self.waiting = 0
        self.held = 0

    # -- who am I ----------------------------------------------------------------------------------

    @property
    def run_id(self) -> str:
        """Id of the run."""
        return self._run.row.run_id

    @property
    def thread_id(self) -> str:
        """Id of the thread."""
        return self._run.row.thread

    @property
    def tenant(self) -> str:
        """Whose run it is."""
        return self._run.row.tenant

    @property
    def attempt(self) -> int:
        """Attempt of this node execution, from 1."""
        return self._task.attempt

    @property
    def run(self) -> RunPort:
        """The engine's side; not for users."""
        return self._run

    @property
    def task(self) -> fold.Task:
        """The engine's record of this execution; not for users."""
        return self._task

    @property
    def sandbox(self) -> NodeSandbox:
        """The thread's sandbox: what is done by it is an effect of kind contained, recorded.

        In a run whose runtime was opened without one, its methods park the run.
        """
        return NodeSandbox(self._run, self.call)

    # -- acts --------------------------------------------------------------------------------------

    async def call(
        self, function: Any, /, *args: Any, key: str | None = None, **kwargs: Any
    ) -> Any:
        """Do an effect once and return its result; on a later execution return the recorded result.

        Args:
            function: an `@effect`, or a plain async function, which counts as kind `once`.
            args: its arguments, without idempotency_key; they must be storable.
            key: business identity, unique per tenant over all runs: the same key with the same
                arguments gives the first result, wherever it was made.
            kwargs: more arguments.

        Raises:
            EffectFailed: it is known not to have happened.
            EffectKeyReused: the key came with other arguments.
            SettingInvalid: the key is not 1 to 200 printable characters; nothing was sent.

        Durability: an outside effect's intent before it is dispatched; its result before anything
            later can be seen.
        """
        effect = function if isinstance(function, Effect) else as_effect(function)
        return await effects.call(self, effect, args, kwargs, key)

    async def ask(
        self,
        question: str,
        *,
        schema: Any = None,
        expires_in: dt.timedelta | float | None = None,
        default: Any = waits.MISSING,
    ) -> Answer:
        """Ask a person and wait durably for the answer; the run holds no worker meanwhile.

        Args:
            question: text for people.
            schema: type of the answer (bool, str, dataclass, pydantic model, ...); None: anything.
            expires_in: timedelta or seconds; None: waits for ever.
            default: value that stands in when nobody answers in time.

        Raises:
            AskExpired: nobody answered in time and there is no default.
        """
        return await waits.ask(
            self, question, schema=schema, expires_in=expires_in, default=default
        )

    async def receive(self, topic: str, *, timeout: dt.timedelta | float | None = None) -> Any:  # noqa: ASYNC109  # a durable timeout, not asyncio's
        """Wait durably for the next signal of a topic; return its value. Early ones are kept.

        Raises:
            ReceiveTimedOut: none came within `timeout` (timedelta or seconds).
        """
        return await waits.receive(self, topic, timeout)

    async def sleep(self, duration: dt.timedelta | float) -> None:
        """Sleep durably for a timedelta or seconds, of any length."""
        await waits.sleep(self, duration)

    def emit(self, chunk: Any) -> Emission:
        """Add a chunk to the run's stream; readers see it when it is durable.

        May be awaited for back-pressure.
        """
        run = self._run
        encoded = Raw(run.engine.codec.encode(chunk, "emitted chunk"))
        run.record(rec.Emitted(run.now_us(), self._task.path, self._task.attempt, encoded))
        return Emission(run)

    async def spawn(self, graph: Any, input: Any = None, *, thread: str | None = None) -> ChildRun:  # noqa: A002  # the word of the public API
        """Start a child run and return it at once; await `child.result()` for its final state."""
        return ChildRun(self, await waits.spawn(self, graph, input, thread))

    async def map(
        self, function: Any, items: Iterable[Any], *, limit: int | None = None
    ) -> list[Any]:
        """Call an effect for all items, `limit` at a time; results in order.

        Args:
            function: an effect; or a plain async function, which counts as kind `once` as in
                `ctx.call`; or an async function (item, ctx), which is ordinary code that is
                executed again after a wait or a crash: only what it does by `ctx` is recorded.
            items: one argument each.
            limit: how many at a time; None: all.

        If some fail, the others are still brought to their end; then the first failure is raised.
        """
        if limit is not None and limit < 1:
            msg = f"ctx.map(limit={limit!r}): must be at least 1"
            raise UsageError(msg)
        gate = asyncio.Semaphore(limit) if limit else None
        one = self._per_item(function)

        async def bounded(item: Any) -> Any:
            """Do one item when there is room."""
            if gate is None:
                return await one(item)
            async with gate:
                return await one(item)

        # The others go on when one fails: cancelling them would leave their effects uncertain.
        results = await asyncio.gather(
            *(without_exit(bounded, item) for item in items), return_exceptions=True
        )
        for result in results:
            if isinstance(result, BaseException):
                raise result
        return results

    def _per_item(self, function: Any) -> Callable[[Any], Awaitable[Any]]:
        """Return what `map` does with one item: an act, or the user's own code around acts."""
        if isinstance(function, Effect) or not is_composed(function):
            return lambda item: self.call(function, item)
        takes_ctx = takes_two(function)

        async def composed(item: Any) -> Any:
            value = function(item, self) if takes_ctx else function(item)
            return await value if hasattr(value, "__await__") else value

        return composed

    def now(self) -> dt.datetime:
        """Return the time (UTC), the same on every execution of this node."""
        identity = self.identify("now", "now", "")
        call = self._task.calls.get(identity)
        run = self._run
        if call is None:
            at_us = run.now_us()
            encoded = Raw(run.engine.codec.encode(at_us))
            run.record(rec.Noted(at_us, self._task.path, identity, encoded))
        else:
            at_us = run.engine.codec.decode(call.result or rec.NIL)
        return waits.as_datetime(at_us)

    def random(self) -> float:
        """Return a float in [0, 1), the same on every execution of this node.

        It depends on the run and the place only.
        """
        identity = self.identify("random", "random", "")
        return int.from_bytes(sha256(identity.encode()).digest()[:7], "big") / 2**56

    # -- bookkeeping -------------------------------------------------------------------------------

    def identify(self, kind: str, name: str, digest: str) -> str:
        """Return the identity of the next act of this kind, name and digest.

        Raises:
            UsageError: the node has returned already.
        """
        if self._task.outcome is not None:
            msg = (
                f"node {self._task.path!r} has returned, and a task that it created still uses its "
                f"ctx ({kind} {name!r}); nothing was done. Await such tasks in the node"
            )
            raise UsageError(msg, run_id=self.run_id, node=self._task.path)
        if self._counts is None:
            self._counts = Counter()
        key = (kind, name, digest)
        nth = self._counts[key]
        self._counts[key] = nth + 1
        return call_id(
            self._run.row.run_id, self._task.path, kind=kind, name=name, digest=digest, nth=nth
        )

    def digest(self, value: Any, place: str) -> str:
        """Return the digest of a value's canonical encoding."""
        return digest_of(self._run.engine.codec.canonical(value, place))

    def find(self, identity: str) -> fold.Call | None:
        """Return the recorded act of this identity, and note that it was asked for."""
        call = self._task.calls.get(identity)
        if call is not None:
            call.is_asked = True
        return call
