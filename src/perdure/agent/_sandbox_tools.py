"""Tools that work in the thread's sandbox: commands, programs, files, services.

They are of kind `contained`: after a crash the sandbox is what it was at the last snapshot, and
they run again. Their results are worded for a model: how it ended, what came out, what was left
out.
"""

import posixpath
from typing import Annotated, Any

import msgspec

from perdure.agent._text import cut, numbered
from perdure.agent._tools import Tool
from perdure.agent.limits import (
    CONTACTS_SHOWN_MAX,
    LEFT_SHOWN_MAX,
    LINE_BYTES_MAX,
    READ_BYTES_MAX,
    READ_LINES_MAX,
    RESULT_CHARS_MAX,
    SEARCH_BYTES_MAX,
    SEARCH_MATCHES_MAX,
    SERVICE_CHARS_MAX,
    SERVICES_MAX,
)
from perdure.engine.node_sandbox import RETRY
from perdure.errors import NotFound, Rejected, UsageError
from perdure.graph import Effect
from perdure.model import EffectKind

FOLDER = "/workspace"
"""Where commands run and relative paths begin, unless told: the home of a sandbox."""


def sandbox_tools(
    *, folder: str = FOLDER, result_chars_max: int = RESULT_CHARS_MAX
) -> tuple[Tool, ...]:
    """Return the tools shell, python, read, write, edit, search, start_service and stop_service.

    Args:
        folder: of the sandbox, where commands run and relative paths begin.
        result_chars_max: characters of a result; of a longer one the middle is left out.

    The runtime needs a sandbox that runs commands: `Runtime.open(...,
    sandbox=IsolatedSandboxes(path))`.
    """
    box = _Box(folder, result_chars_max)
    files = (box.read, box.write, box.edit, box.search)
    functions = (box.shell, box.python, *files, box.start_service, box.stop_service)
    return tuple(_tool(each) for each in functions)


def _tool(function: Any) -> Tool:
    name = function.__name__
    effect: Effect[Any, Any] = Effect(
        function, kind=EffectKind.CONTAINED, name=f"sandbox.{name}", retry=RETRY
    )
    return Tool(effect, name=name)


class _Box:
    """The tools. What their docstrings say is what a model knows."""

    def __init__(self, folder: str, chars_max: int) -> None:
        self._folder = folder
        self._chars_max = chars_max

    async def shell(self, command: str, *, sandbox: Any) -> str:
        """Run a command line with /bin/sh and return its exit code, output and errors.

        Every command starts in the same folder, and a fresh shell: `cd` and variables do not last.
        Files do. What it leaves running is stopped. It has no input and no network.

        Args:
            command: The command line.
            sandbox: Filled in.
        """
        return self._told(await _able(sandbox).run(_line(command), cwd=self._folder))

    async def python(self, code: str, *, sandbox: Any) -> str:
        """Run a Python program with python3 and return its exit code, output and errors.

        Nothing but files lasts from one program to the next. Print what you want to know.

        Args:
            code: The program.
            sandbox: Filled in.
        """
        return self._told(await _able(sandbox).python(code, cwd=self._folder))

    async def read(
        self, path: str, from_line: int = 1, lines: int = READ_LINES_MAX, *, sandbox: Any
    ) -> str:
        """Return lines of a text file, each with its number.

        Args:
            path: The file.
            from_line: The first line, from 1.
            lines: How many lines.
            sandbox: Filled in.
        """
        text = await self._text(sandbox, path)
        everything = text.splitlines()
        first = max(from_line, 1)
        chosen = everything[first - 1 : first - 1 + max(lines, 1)]
        shown = cut(numbered(chosen, first), self._chars_max)
        left = len(everything) - (first - 1) - len(chosen)
        if not chosen:
            return f"[{path} has {len(everything)} lines; none from line {first} on]"
        return shown if left <= 0 else f"{shown}\n[{left} more lines; go on with from_line]"

    async def write(self, path: str, content: str, *, sandbox: Any) -> str:
        """Make a file have this content, whatever it had before; missing folders are made.

        Args:
            path: The file.
            content: All of its new content.
            sandbox: Filled in.
        """
        await self._put(sandbox, path, content)
        return f"{path} written: {len(content.encode())} bytes"

    async def edit(self, path: str, old: str, new: str, *, sandbox: Any) -> str:
        """Replace a text in a file; it must be there exactly once.

        Args:
            path: The file.
            old: The text as it is, with its spaces and line ends; some lines around make it unique.
            new: What stands there afterwards.
            sandbox: Filled in.
        """
        text = await self._text(sandbox, path)
        count = text.count(old) if old else 0
        if count != 1:
            msg = f"{path} was not changed: the old text is there {count} times, not once"
            raise Rejected(msg)
        before = text[: text.index(old)].count("\n") + 1
        await self._put(sandbox, path, text.replace(old, new))
        return f"{path} changed at line {before}"

    async def search(self, pattern: str, path: str = ".", *, sandbox: Any) -> str:
        """Find lines that match an extended regular expression, in a file or all files of a folder.

        Args:
            pattern: As for grep -E.
            path: The file or folder.
            sandbox: Filled in.
        """
        options = f"-rnIE -m {SEARCH_MATCHES_MAX} --exclude-dir=.git"
        line = f'grep {options} -e "$1" -- "$2" | head -c {SEARCH_BYTES_MAX}'
        command = ["/bin/sh", "-c", line, "-", _line(pattern), _line(path)]
        ran = await _able(sandbox).run(command, cwd=self._folder)
        found = cut(ran.output, self._chars_max)
        return "\n".join(filter(None, (found or "[no line matches]", ran.errors.strip())))

    async def start_service(
        self,
        name: str,
        command: str,
        port: Annotated[int, msgspec.Meta(ge=0, le=65535)] = 0,
        *,
        sandbox: Any,
    ) -> str:
        """Have a program, such as a server, run in the background of every later command.

        It is started anew for each command and stopped after it; what it wrote to files is kept.
        Its log is /var/log/services/NAME.log.

        Args:
            name: A word of letters, digits and _.
            command: The command line; it must stay in the foreground.
            port: Where it answers when it is ready; 0: nowhere.
            sandbox: Filled in.
        """
        if not (name.isascii() and name.isidentifier() and len(name) <= SERVICE_CHARS_MAX):
            msg = f"{name!r} is no name: use letters, digits and _"
            raise Rejected(msg)
        known = {str(each["name"]) for each in await _able(sandbox).services()} - {name}
        if len(known) >= SERVICES_MAX:
            msg = f"there are {len(known)} services: {', '.join(sorted(known))}; stop one first"
            raise Rejected(msg)
        state = await sandbox.start_service(name, _line(command), port=port, cwd=self._folder)
        if not state.is_up:
            msg = f"{name} did not come up, and is not kept: {state.reason}"
            raise Rejected(msg)
        return f"{name} is up, and will be during every command"

    async def stop_service(self, name: str, *, sandbox: Any) -> str:
        """Have a service run no more.

        Args:
            name: Of the service.
            sandbox: Filled in.
        """
        was_there = await _able(sandbox).stop_service(name)
        return f"{name} is stopped" if was_there else f"there is no service {name!r}"

    def _path(self, path: str) -> str:
        return posixpath.join(self._folder, _line(path))

    async def _text(self, sandbox: Any, path: str) -> str:
        content: bytes
        try:
            content = await _able(sandbox).read(self._path(path), bytes_max=READ_BYTES_MAX)
            return content.decode("utf-8")
        except UnicodeDecodeError as error:
            msg = f"{path} is no UTF-8 text; look at it with shell"
            raise Rejected(msg) from error
        except (NotFound, UsageError) as error:
            raise _told_why(error) from error

    async def _put(self, sandbox: Any, path: str, content: str) -> None:
        """Write a file, with the mode that it has."""
        target = self._path(path)
        known = await _able(sandbox).run(["stat", "-L", "-c", "%a", "--", target])
        mode = int(known.output, 8) if known.code == 0 else 0o644
        try:
            await sandbox.write(target, content.encode(), mode=mode)
        except UsageError as error:
            raise _told_why(error) from error

    def _told(self, ran: Any) -> str:
        """Return how a command ended, as a model reads it."""
        parts = [f"exit code {ran.code}"]
        if ran.killed_by:
            parts.append(f"[it was killed: {_CAUSES.get(ran.killed_by, ran.killed_by)}]")
        half = self._chars_max // 2
        parts.extend(
            f"--- {name}\n{cut(text.rstrip(), half)}"
            for name, text in (("output", ran.output), ("errors", ran.errors))
            if text.strip()
        )
        if ran.is_cut:
            parts.append("[it printed more than was kept: the end is missing]")
        parts.extend(
            f"[service {each.name} was not up: {each.reason}]"
            for each in ran.services
            if not each.is_up
        )
        parts.extend(
            f"[the network refused {each.host}:{each.port}: {each.reason}]"
            for each in ran.contacts[:CONTACTS_SHOWN_MAX]
            if each.reason
        )
        if ran.left:
            shown = "; ".join(ran.left[:LEFT_SHOWN_MAX])
            parts.append(f"[left running, and stopped ({len(ran.left)}): {shown}]")
        return "\n".join(parts)


_CAUSES = {
    "deadline": "it took longer than a command may",
    "flood": "it printed without end",
    "memory": "it took more memory than it may",
}


def _line(text: str) -> str:
    """Return what a program can be given as an argument; other texts are the model's to mend."""
    if "\0" in text or len(text.encode()) > LINE_BYTES_MAX:
        msg = f"a zero byte, or more than {LINE_BYTES_MAX} bytes: put it in a file with write"
        raise Rejected(msg)
    return text


def _able(sandbox: Any) -> Any:
    """Return the sandbox if it runs commands."""
    if not hasattr(sandbox, "run"):
        msg = (
            f"{type(sandbox).__name__} runs no commands; nothing was done. Open the runtime with "
            "sandbox=IsolatedSandboxes(path)"
        )
        raise UsageError(msg)
    return sandbox


def _told_why(error: NotFound | UsageError) -> Rejected:
    """Return what the model is told; an error of the set-up stays what it is."""
    if not hasattr(error, "fields") or "path" not in error.fields:
        raise error
    return Rejected(str(error))
