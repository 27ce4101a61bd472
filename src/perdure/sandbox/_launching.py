"""The worker's end of the launcher: starts it, asks it for trees and for commands in them.

Output is read as it comes, see `_reading`. Deadlines are kept here, outside of what could ignore
them. What is asked for is bounded by packets, so what may be long travels as a file in memory.
"""

import asyncio
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from msgspec import Struct

from perdure.errors import StoreUnavailable
from perdure.model.sandbox import Contact
from perdure.sandbox._cgroups import Group
from perdure.sandbox._lock import Lock
from perdure.sandbox._network import WayOut
from perdure.sandbox._packets import encoded, in_memory, is_sent, writable
from perdure.sandbox._reading import Reading
from perdure.sandbox._trees import Answer, Tree, packet_of
from perdure.sandbox.limits import CRIU_S, KILL_AGAIN_S, LAUNCHER_STOP_S, STOP_ROUNDS

_BOOT = "import sys; sys.path.append(sys.argv[1]); from inside.launcher import main; main()"


class Ended(Struct, frozen=True, kw_only=True):
    """How a turn ended.

    Attributes:
        code: exit code; negative: the signal that ended the command; None: it was killed.
        output, errors: what it printed, up to the limit.
        output_bytes, errors_bytes: what it printed in all.
        services: (name, why it is not up; empty: it is).
        contacts: what it reached outside, or tried to.
        left: (pid in the sandbox, command line) of what was alive at its end, and was killed.
        cause: why it was killed: deadline, flood, disk; empty: it was not.
    """

    code: int | None
    output: bytes
    errors: bytes
    output_bytes: int
    errors_bytes: int
    left: tuple[tuple[int, str], ...] = ()
    contacts: tuple[Contact, ...] = ()
    services: tuple[tuple[str, str], ...] = ()
    cause: str = ""


class Order(Struct, frozen=True, kw_only=True):
    """A command that a tree is to execute.

    Attributes:
        spec: `act` (run, read, write), `argv`, `env`, `cwd`.
        given: standard input.
        keep_bytes: how much of the output is kept, and as much of the errors.
        deadline_s: seconds after which it is killed.
        is_last: whether the tree ends with it.
        groups: descriptors to be handed over, that the command's process, and those of services,
            write to to be in their groups.
        stop: kills it and all that it started; None: the tree is killed.
        full: it is killed when this is done: it takes too much room.
    """

    spec: dict[str, Any]
    given: bytes
    keep_bytes: int
    deadline_s: float
    is_last: bool = True
    groups: tuple[int, ...] = ()
    stop: Callable[[], None] | None = None
    full: asyncio.Future[None] | None = None


class SetUpFailed(Exception):
    """The sandbox could not be built; nothing was executed. For the callers in this room."""


class NotBegun(Exception):
    """The tree had no room for the command; nothing was executed. For the callers in this room."""


class NoFolder(Exception):
    """The folder to begin in is none; nothing was executed. For the callers in this room."""


class Launcher:
    """A launcher process, started at the first turn; for one event loop."""

    def __init__(self) -> None:
        """Start nothing yet."""
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: socket.socket | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._trees: dict[int, Tree] = {}
        self._dumping: dict[int, Tree] = {}
        self._count = 0
        self._spare: tuple[object, Tree] | None = None

    def close(self) -> None:
        """Kill every tree and the launcher. Idempotent; a later request starts a new one."""
        channel, process, loop = self._channel, self._process, self._loop
        self._channel = self._process = self._loop = None
        if channel is not None and loop is not None:
            if not loop.is_closed():
                loop.remove_reader(channel)
            channel.close()
        if process is not None:
            try:
                process.wait(LAUNCHER_STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._spare = None
        trees, self._trees = self._trees, {}
        for tree in trees.values():
            tree.end("the launcher of sandboxes ended")
        for tree in self._dumping.values():
            if not tree.dumped.done():
                tree.dumped.cancel()

    def _open(self) -> socket.socket:
        loop = asyncio.get_running_loop()
        if self._channel is not None and self._loop is not loop:
            self.close()  # an event loop of before, which is gone
        if self._channel is None:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            folder = str(Path(__file__).parent)
            command = [sys.executable, "-I", "-S", "-c", _BOOT, folder, str(theirs.fileno())]
            try:
                self._process = subprocess.Popen(  # noqa: S603  # our own code, our own interpreter
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    pass_fds=[theirs.fileno()],
                    env={},
                    cwd="/",
                )
            finally:
                theirs.close()
            ours.setblocking(False)  # noqa: FBT003  # the standard library's signature
            self._channel, self._loop = ours, loop
            loop.add_reader(ours, self._answered)
        return self._channel

    def _answered(self) -> None:
        channel = self._channel
        if channel is None:
            return
        received = packet_of(channel)
        if received is None:
            return
        packet, handed = received
        if not packet:
            self.close()
            return
        message = json.loads(packet)
        kept = self._dumping if "dumped" in message else self._trees
        tree = kept.get(message["tree"])
        if tree is None:
            for fd in handed:
                os.close(fd)
            return
        tree.told(message, handed)
        if tree.over.done():
            self._trees.pop(tree.number, None)

    # -- trees -------------------------------------------------------------------------------------

    async def build(
        self, spec: dict[str, Any], group: Group, lock: Lock, *, way_out: WayOut | None = None
    ) -> Tree:
        """Ask for a tree; return when that was sent.

        Args:
            spec: see `inside.launcher`.
            group: that it is in; removed at its end, or if this raises.
            lock: of the sandbox, of which it holds a copy while its root is built.
            way_out: answers at the socket that a tree with a `port` opens.

        Raises:
            StoreUnavailable: the launcher can't be started, or hears nothing.
        """
        try:
            channel = self._opened()
            self._count += 1
            tree = Tree(self._count, spec, group, way_out)
            self._trees[tree.number] = tree
            told = in_memory(encoded(spec))
            try:
                request = {"id": tree.number, "tree": True}
                await self._send(channel, request, [told, lock.descriptor])
            finally:
                os.close(told)
        except BaseException:
            group.remove()
            raise
        return tree

    def spare(self, kind: object) -> Tree | None:
        """Return the spare, for the caller; None: there is none of this kind.

        One of another kind is ended.
        """
        found, self._spare = self._spare, None
        if found is None or not found[1].is_alive or self._loop is not asyncio.get_running_loop():
            return None
        if found[0] != kind:
            self.kill(found[1])
            return None
        return found[1]

    async def claim(
        self, tree: Tree, spec: dict[str, Any], lock: Lock, *, way_out: WayOut | None = None
    ) -> Tree:
        """Ask for a tree, of which a spare is the first process; as `build`."""
        tree.spec, tree.way_out, tree.is_spare = spec, way_out, True
        try:
            channel = self._opened()
            told = in_memory(encoded(spec))
            try:
                await self._send(
                    channel, {"id": tree.number, "claim": True}, [told, lock.descriptor]
                )
            finally:
                os.close(told)
        except BaseException:
            self.kill(tree)
            raise
        return tree

    def begin_spare(self, kind: object, make: Callable[[], Group], *, is_rootless: bool) -> None:
        """Have a spare: a first process that waits to be told what it is of, with its groups.

        Entering a group takes several times what all else of a tree does, see decision 0039. It is
        not waited for, and where there can be none there is none.

        Args:
            kind: of its limits: it is for trees with the same ones.
            make: makes the groups.
            is_rootless: whether it makes a user namespace of its own.
        """
        channel = self._channel
        if channel is None or self._spare is not None:
            return
        with suppress(OSError):
            group = make()
            self._count += 1
            tree = Tree(self._count, {}, group, None)
            if _ask_for_a_spare(channel, tree, is_rootless=is_rootless):
                self._trees[tree.number] = tree
                self._spare = kind, tree

    def kill(self, tree: Tree) -> None:
        """Have a tree killed; `tree.over` is done when it is."""
        tree.is_killed = True
        if not tree.over.done():
            self._ask_for_the_end(tree.number)

    async def end(self, tree: Tree) -> None:
        """Kill a tree; return when no process of it is alive, and its groups are gone."""
        self.kill(tree)
        await _first([tree.over], LAUNCHER_STOP_S)
        if not tree.over.done():
            self.close()  # it was stopped, or hangs: all its trees end with it

    async def lend(self, tree: Tree) -> Lock | None:
        """Return a copy of the lock that a tree has which stays; None: it is over."""
        await _first([tree.ready, tree.over], LAUNCHER_STOP_S)
        tree.lent = asyncio.get_running_loop().create_future()
        if not (tree.is_alive and tree.has_lock and tree.order({"do": "lend"}, [])):
            return None
        await _first([tree.lent, tree.over], LAUNCHER_STOP_S)
        return tree.lent.result() if tree.lent.done() and not tree.lent.cancelled() else None

    async def remember(self, tree: Tree) -> bytes:
        """Return which services are up in a tree that images are to be taken of."""
        told = in_memory(b"")
        try:
            if tree.order({"do": "remember"}, [told]):
                await _first([tree.remembered], LAUNCHER_STOP_S)
            return os.pread(told, os.fstat(told).st_size, 0)
        finally:
            os.close(told)

    async def dump(self, tree: Tree, folder: str) -> bool:
        """Take images of a tree's processes, which ends them; return whether that went well.

        Where it did not they go on, if they can, and the folder has a log.
        """
        self._dumping[tree.number] = tree
        try:
            await self._send(self._opened(), {"id": tree.number, "dump": folder}, [])
            await _first([tree.dumped], CRIU_S)
            return tree.dumped.done() and not tree.dumped.cancelled() and tree.dumped.result()
        finally:
            del self._dumping[tree.number]

    async def execute(self, tree: Tree, order: Order, lock: Lock | None) -> Ended:
        """Execute a command in a tree, to its end.

        Args:
            tree: where; it may still be being built.
            order: what.
            lock: of the sandbox; handed over. None: the tree has it.

        Raises:
            SetUpFailed: the sandbox could not be built; nothing was executed.
            NotBegun: there is no room for a process in the tree; nothing was executed.
            NoFolder: it can't begin in the folder that it is to begin in; nothing was executed.
            StoreUnavailable: the launcher died: says whether the command may have been executed.

        Cancel-safe: yes; the command is killed.
        """
        self._count += 1
        number = self._count
        answer = tree.answers[number] = Answer()
        until_s = asyncio.get_running_loop().time() + order.deadline_s
        done = tree.over if order.is_last else answer.given
        output, errors = Reading(order.keep_bytes), Reading(order.keep_bytes)
        cause = ""
        try:
            if not tree.ready.done():
                await _first([tree.ready], order.deadline_s)
            if tree.ready.done():
                tree.serve()
                if not _hand_over(tree, number, order, [output, errors], lock):
                    # Its end was not known when the command came to it.
                    await self.end(tree)
                    tree.was_deaf()
                    answer.close()
            cause = await self._until_ended(tree, order, done, [output, errors], until_s)
            if order.is_last and tree.way_out is not None:
                await tree.way_out.close()
        finally:
            if not done.done():
                self._stop(tree, order)
            del tree.answers[number]
            for each in (output, errors):
                each.catch_up()
                if order.is_last or not answer.given.done():
                    each.close()
                elif not each.ended.done():
                    each.forget()
                    tree.keep_open(each)
        return _ended(tree, answer.said, cause, output, errors)

    async def _until_ended(
        self,
        tree: Tree,
        order: Order,
        done: "asyncio.Future[None]",
        readings: list[Reading],
        until_s: float,
    ) -> str:
        """Return when a command ended and all it printed was read; say why it was killed."""
        cause = ""
        floods = [each.flooded for each in readings]
        left_s = until_s - asyncio.get_running_loop().time()
        fulls = [] if order.full is None else [order.full]
        await _first([done, *floods, *fulls], max(left_s, 0.0))
        if not done.done():
            cause = "flood" if any(each.done() for each in floods) else "deadline"
            cause = "disk" if any(each.done() for each in fulls) else cause
            for _ in range(STOP_ROUNDS):  # what was just beginning has not been in its group
                self._stop(tree, order)
                await _first([done], LAUNCHER_STOP_S / STOP_ROUNDS)
                if done.done():
                    break
        if not done.done():
            await self.end(tree)
        await done
        if order.is_last:
            for each in readings:
                await each.wait()
        return cause

    def _stop(self, tree: Tree, order: Order) -> None:
        if order.stop is None:
            self.kill(tree)
        else:
            order.stop()
            tree.order({"do": "stop"}, [])  # where it waits for services still

    def _opened(self) -> socket.socket:
        try:
            return self._open()
        except OSError as error:
            msg = f"the launcher of sandboxes can't be started: {error}; nothing was executed"
            raise StoreUnavailable(msg) from error

    async def _send(
        self, channel: socket.socket, request: dict[str, Any], descriptors: Sequence[int]
    ) -> None:
        packet = json.dumps(request).encode()
        try:
            while not is_sent(channel, packet, descriptors):
                await writable(channel)
        except OSError as error:
            self.close()
            msg = f"the launcher of sandboxes doesn't answer: {error}; nothing was executed"
            raise StoreUnavailable(msg) from error

    def _ask_for_the_end(self, number: int) -> None:
        """Ask for the end of a tree, as soon as there is room for it."""
        channel = self._channel
        packet = json.dumps({"id": number, "kill": True}).encode()
        try:
            if channel is not None and not is_sent(channel, packet, []):
                loop = asyncio.get_running_loop()
                loop.call_later(KILL_AGAIN_S, self._ask_for_the_end, number)
        except OSError:
            return  # it has ended, and its trees with it


def _ask_for_a_spare(channel: socket.socket, tree: Tree, *, is_rootless: bool) -> bool:
    """Ask for a first process; return whether there was room for that."""
    packet = json.dumps({"id": tree.number, "spare": True}).encode()
    spec = {"cgroups": tree.group.entrances, "is_rootless": is_rootless}
    is_asked = False
    try:
        told = in_memory(encoded(spec))
        try:
            is_asked = is_sent(channel, packet, [told])
        finally:
            os.close(told)
    finally:
        if not is_asked:
            tree.group.remove()
    return is_asked


def _hand_over(
    tree: Tree, number: int, order: Order, readings: list[Reading], lock: Lock | None
) -> bool:
    """Give a command to a tree; return False if nobody hears it."""
    handed: list[int] = []
    try:
        handed.append(in_memory(order.given))
        handed += [each.open() for each in readings]
        handed.append(in_memory(encoded(order.spec)))
        locks = [] if lock is None else [lock.descriptor]
        request = {"do": number, "is_locked": bool(locks)}
        is_heard = tree.order(request, [*handed, *order.groups, *locks])
        tree.has_lock |= is_heard and bool(locks)
        return is_heard
    finally:
        if lock is not None:
            lock.close()
        for fd in handed:
            os.close(fd)


def _ended(tree: Tree, said: dict[str, Any], cause: str, output: Reading, errors: Reading) -> Ended:
    if "code" not in said and tree.died:
        msg = f"{tree.died}; the command may have been executed, in part or to its end"
        raise StoreUnavailable(msg)
    if "no_folder" in said:
        raise NoFolder(said["no_folder"])
    if "refused" in said:
        raise NotBegun(said["refused"])
    if tree.failed:
        raise SetUpFailed(tree.failed)
    return Ended(
        code=None if cause else said.get("code"),
        output=bytes(output.kept),
        errors=bytes(errors.kept),
        output_bytes=output.count,
        errors_bytes=errors.count,
        left=tuple((pid, line) for pid, line in said.get("left", ())),
        contacts=() if tree.way_out is None else tree.way_out.taken(),
        services=tuple((name, why) for name, why in said.get("services", ())),
        cause=cause,
    )


async def _first(futures: list[asyncio.Future[Any]], deadline_s: float) -> None:
    await asyncio.wait(futures, timeout=deadline_s, return_when=asyncio.FIRST_COMPLETED)
