"""The thread's sandbox as a node has it: whatever is done by it is an effect of kind contained.

So a call that is recorded is not done again on files that have it, and one that no snapshot holds
is done again on files that don't.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from perdure.core.retry import Retry
from perdure.engine.ports import RunPort
from perdure.errors import StoreLocked, UsageError
from perdure.graph import Effect
from perdure.model import EffectKind
from perdure.model.sandbox import Changes, Ran, ServiceState

RETRY = Retry(max_attempts=4, base_s=1.0, cap_s=10.0, on=(StoreLocked,))
"""A holder that was replaced may take a moment until it has let go of the files."""


def _able(sandbox: Any, name: str) -> Any:
    method = getattr(sandbox, name, None)
    if method is None:
        msg = (
            f"{type(sandbox).__name__} has no {name!r}; nothing was done. Open the runtime with "
            "sandbox=IsolatedSandboxes(path), or use its files in an effect of kind contained "
            "with a parameter `sandbox`"
        )
        raise UsageError(msg)
    return method


async def _run(command: Any, *, sandbox: Any, **options: Any) -> Ran:
    ran: Ran = await _able(sandbox, "run")(command, **options)
    return ran


async def _python(code: str, *, sandbox: Any, **options: Any) -> Ran:
    ran: Ran = await _able(sandbox, "python")(code, **options)
    return ran


async def _read(path: str, *, sandbox: Any, **options: Any) -> bytes:
    content: bytes = await _able(sandbox, "read")(path, **options)
    return content


async def _write(path: str, content: bytes, *, sandbox: Any, **options: Any) -> None:
    await _able(sandbox, "write")(path, content, **options)


async def _changes(since: str | None, *, sandbox: Any) -> Changes:
    found: Changes = await _able(sandbox, "changes")(since)
    return found


async def _start_service(name: str, command: Any, *, sandbox: Any, **options: Any) -> ServiceState:
    state: ServiceState = await _able(sandbox, "start_service")(name, command, **options)
    return state


async def _stop_service(name: str, *, sandbox: Any) -> bool:
    was_there: bool = await _able(sandbox, "stop_service")(name)
    return was_there


async def _services(*, sandbox: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = await _able(sandbox, "services")()
    return found


_EFFECTS: dict[Callable[..., Any], Effect[Any, Any]] = {
    function: Effect(
        function,
        kind=EffectKind.CONTAINED,
        name=f"ctx.sandbox.{function.__name__.lstrip('_')}",
        retry=RETRY,
    )
    for function in (
        _run,
        _python,
        _read,
        _write,
        _changes,
        _start_service,
        _stop_service,
        _services,
    )
}


class NodeSandbox:
    """The thread's sandbox: each call of a method is recorded, as an effect of kind contained.

    A backend that runs no commands (`DirectorySandboxes`) has none of the methods.

    Each may raise:
        EffectFailed: it could not be done, or was refused: its reason says why. A command that
            fails is none: `Ran.code` tells.
    """

    __slots__ = ("_call", "_port")

    def __init__(self, port: RunPort, call: Callable[..., Awaitable[Any]]) -> None:
        """Belong to a node execution; `call` does an effect in it."""
        self._port = port
        self._call = call

    async def run(self, command: str | Sequence[str], **options: Any) -> Ran:
        """Run a command to its end.

        Args:
            command: a line for the shell, or a program and its arguments.
            options: env, cwd, given (standard input, bytes), limits; see `IsolatedSandbox.run`.
        """
        ran: Ran = await self._do(_run, command, **options)
        return ran

    async def python(self, code: str, **options: Any) -> Ran:
        """Run a program by the sandbox's `python3`; options: env, cwd, limits.

        See `IsolatedSandbox.python`.
        """
        ran: Ran = await self._do(_python, code, **options)
        return ran

    async def read(self, path: str, **options: Any) -> bytes:
        """Return a file's content; `bytes_max=`: refuse what is longer."""
        content: bytes = await self._do(_read, path, **options)
        return content

    async def write(self, path: str, content: bytes, **options: Any) -> None:
        """Make a file have this content, and its missing folders; `mode=`: of the file."""
        await self._do(_write, path, content, **options)

    async def changes(self, since: str | None = None) -> Changes:
        """Return what changed since a snapshot; None: since the newest."""
        found: Changes = await self._do(_changes, since)
        return found

    async def start_service(
        self, name: str, command: str | Sequence[str], **options: Any
    ) -> ServiceState:
        """Have something up during every later command; see `IsolatedSandbox.start_service`."""
        state: ServiceState = await self._do(_start_service, name, command, **options)
        return state

    async def stop_service(self, name: str) -> bool:
        """Have a service up no more; return whether there was one."""
        was_there: bool = await self._do(_stop_service, name)
        return was_there

    async def services(self) -> list[dict[str, Any]]:
        """Return the services as they are kept: name, argv, env, cwd, port, ready_s."""
        found: list[dict[str, Any]] = await self._do(_services)
        return found

    async def _do(self, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
        if options.get("limits") is not None:
            # Settings of a backend's own type are part of what identifies the call.
            self._port.engine.registry.add(type(options["limits"]))
        return await self._call(_EFFECTS[function], *args, **options)
