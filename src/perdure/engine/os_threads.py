"""Call the user's plain functions in OS threads, and the user's async ones without harm.

Theory: a thread can't be cancelled. So whoever stops waiting for a call must be able to find out
later how it ended (`Environment.in_flight`), and a call that never returns must not keep the
process alive: the threads are daemons. What can't cross a future (StopIteration), or would end the
process (SystemExit), becomes an ordinary error of the call.
"""

import asyncio
import contextvars
import threading
from collections.abc import Awaitable, Callable
from typing import Any

from perdure.engine.limits import OS_THREADS_MAX

_slots = threading.BoundedSemaphore(OS_THREADS_MAX)


async def call_in_os_thread(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a plain function in an OS thread and return its result; await that if it is awaitable.

    Raises:
        RuntimeError: it raised StopIteration or called sys.exit().
    """
    value = await asyncio.shield(start_in_os_thread(function, *args, **kwargs))
    return await value if hasattr(value, "__await__") else value


def start_in_os_thread(
    function: Callable[..., Any], *args: Any, **kwargs: Any
) -> "asyncio.Future[Any]":
    """Begin a call in an OS thread; the future is resolved when it ends, whoever waits or not."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Any] = loop.create_future()
    context = contextvars.copy_context()

    def work() -> None:
        with _slots:
            result, error = _outcome(lambda: context.run(function, *args, **kwargs))
        try:
            loop.call_soon_threadsafe(_settle, future, result, error)
        except RuntimeError:  # the loop is closed: nobody can hear of it any more
            return

    threading.Thread(target=work, name="perdure-call", daemon=True).start()
    return future


def _outcome(call: Callable[[], Any]) -> tuple[Any, BaseException | None]:
    try:
        return call(), None
    except (StopIteration, SystemExit) as error:
        return None, _ordinary(error)
    except BaseException as error:  # noqa: BLE001  # handed to whoever waits
        return None, error


def _settle(future: "asyncio.Future[Any]", result: Any, error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)
        future.exception()  # nobody may be waiting any more; whoever is raises it


def _ordinary(error: SystemExit | StopIteration) -> RuntimeError:
    what = "raised StopIteration"
    if isinstance(error, SystemExit):
        what = f"called sys.exit({error.code!r})"
    ordinary = RuntimeError(f"the function {what}")
    ordinary.__cause__ = error
    return ordinary


async def without_exit(function: Callable[..., Awaitable[Any]], *args: Any, **kwargs: Any) -> Any:
    """Call the user's code; sys.exit() in it is an error of that code, not the end of the worker.

    Nothing is called, and left unawaited, if the task of this is cancelled before it runs.

    Raises:
        RuntimeError: it called sys.exit().
    """
    try:
        return await function(*args, **kwargs)
    except SystemExit as error:
        raise _ordinary(error) from error
