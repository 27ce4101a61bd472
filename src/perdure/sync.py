"""The runtime for callers that are not asynchronous: a thin door to the one engine.

    from perdure import sync

    with sync.Runtime.open("sqlite:///agents.db", graphs=[graph]) as runtime:
        run = runtime.start(graph, {"order_id": "o-7"})
        print(run.result())

Theory: an event loop runs in an OS thread of its own; every method hands the coroutine of the same
    name of `perdure.Runtime` or `perdure.Run` to it and waits for the result. There is no second
    implementation, so names, arguments, results and errors are those of the asynchronous methods.
    May be used from several OS threads at once.
"""

import asyncio
import functools
import threading
from collections.abc import Callable, Coroutine, Iterator
from types import TracebackType
from typing import Any, Self, TypeVar

from perdure import engine
from perdure.errors import UsageError

T = TypeVar("T")


class _Portal:
    """An event loop in an OS thread, and a way to run coroutines on it."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._os_thread = threading.Thread(
            target=self._loop.run_forever, name="perdure-loop", daemon=True
        )
        self._os_thread.start()

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop and return its result; an interrupt cancels it."""
        if threading.current_thread() is self._os_thread:
            coroutine.close()
            msg = (
                "perdure.sync was called from its own event loop (in a node?); use ctx or await "
                "there"
            )
            raise UsageError(msg)
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def close(self) -> None:
        """Stop the loop."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._os_thread.join()
        self._loop.close()


def _door(method: Callable[..., Coroutine[Any, Any, Any]]) -> Callable[..., Any]:
    """Return the synchronous form of an asynchronous method: same arguments, same documentation."""

    @functools.wraps(method)
    def call(self: "Runtime | Run", *args: Any, **kwargs: Any) -> Any:
        return self._call(method, *args, **kwargs)

    return call


class Run:
    """A run, from outside; see `perdure.Run`."""

    def __init__(self, portal: _Portal, run: engine.Run) -> None:
        """Use `Runtime.start` or `Runtime.get`."""
        self._portal = portal
        self._run = run
        self.id = run.id
        self.thread = run.thread

    def __repr__(self) -> str:
        return f"Run({self.id!r}, thread={self.thread!r})"

    def _call(
        self, method: Callable[..., Coroutine[Any, Any, Any]], *args: Any, **kwargs: Any
    ) -> Any:
        return self._portal.call(method(self._run, *args, **kwargs))

    status = _door(engine.Run.status)
    row = _door(engine.Run.row)
    result = _door(engine.Run.result)
    signal = _door(engine.Run.signal)
    cancel = _door(engine.Run.cancel)

    def events(self, after: int = 0) -> Iterator[engine.Event]:
        """Yield its events above seq `after`, as they become durable, until it has ended."""
        events = self._run.events(after)
        while True:
            try:
                yield self._portal.call(_next(events))
            except StopAsyncIteration:
                return


async def _next(events: Any) -> engine.Event:
    found: engine.Event = await anext(events)
    return found


class Runtime:
    """An open store with its graphs and worker; see `perdure.Runtime`."""

    def __init__(self, runtime: engine.Runtime) -> None:
        """Use `Runtime.open`."""
        self._runtime = runtime
        self._portal: _Portal | None = None

    @classmethod
    def open(cls, *args: Any, **kwargs: Any) -> Self:
        """Return a runtime to be entered with `with`; arguments as of `perdure.Runtime.open`."""
        return cls(engine.Runtime.open(*args, **kwargs))

    def __enter__(self) -> Self:
        """Open the store and start the worker."""
        self._portal = _Portal()
        try:
            self._portal.call(self._runtime.__aenter__())
        except BaseException:
            self._portal.close()
            self._portal = None
            raise
        return self

    def __exit__(
        self,
        _type: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        """Drain the worker and close the store."""
        portal, self._portal = self._portal, None
        if portal is not None:
            try:
                portal.call(self._runtime.close())
            finally:
                portal.close()

    def _call(
        self, method: Callable[..., Coroutine[Any, Any, Any]], *args: Any, **kwargs: Any
    ) -> Any:
        if self._portal is None:
            msg = "the runtime is not open: use it inside `with sync.Runtime.open(...) as runtime`"
            raise UsageError(msg)
        found = self._portal.call(method(self._runtime, *args, **kwargs))
        return Run(self._portal, found) if isinstance(found, engine.Run) else found

    start = _door(engine.Runtime.start)
    get = _door(engine.Runtime.get)
    runs = _door(engine.Runtime.runs)
    events = _door(engine.Runtime.events)
    state = _door(engine.Runtime.state)
    history = _door(engine.Runtime.history)
    diff = _door(engine.Runtime.diff)
    compare = _door(engine.Runtime.compare)
    moment = _door(engine.Runtime.moment)
    costs = _door(engine.Runtime.costs)
    tree = _door(engine.Runtime.tree)
    replay = _door(engine.Runtime.replay)
    preview_fork = _door(engine.Runtime.preview_fork)
    fork = _door(engine.Runtime.fork)
    preview_rollback = _door(engine.Runtime.preview_rollback)
    rollback = _door(engine.Runtime.rollback)
    workers = _door(engine.Runtime.workers)
    asks = _door(engine.Runtime.asks)
    answer = _door(engine.Runtime.answer)
    signal = _door(engine.Runtime.signal)
    cancel = _door(engine.Runtime.cancel)
    retry = _door(engine.Runtime.retry)
    effects = _door(engine.Runtime.effects)
    resolve = _door(engine.Runtime.resolve)
    resolve_version = _door(engine.Runtime.resolve_version)
    set_limit = _door(engine.Runtime.set_limit)
    remove_limit = _door(engine.Runtime.remove_limit)
    limits = _door(engine.Runtime.limits)
    set_quota = _door(engine.Runtime.set_quota)
    remove_quota = _door(engine.Runtime.remove_quota)
    quotas = _door(engine.Runtime.quotas)
    tag = _door(engine.Runtime.tag)
    untag = _door(engine.Runtime.untag)
    tags = _door(engine.Runtime.tags)
    schedule = _door(engine.Runtime.schedule)
    schedules = _door(engine.Runtime.schedules)
    unschedule = _door(engine.Runtime.unschedule)
    pause_schedule = _door(engine.Runtime.pause_schedule)
    resume_schedule = _door(engine.Runtime.resume_schedule)


__all__ = ["Run", "Runtime"]
