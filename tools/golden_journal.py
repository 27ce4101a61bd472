"""Journals for the golden files: every kind of record in an order that can happen, and the fold."""

import asyncio
import pathlib
import shutil
import tempfile
from typing import Any

import msgspec
from msgspec import Raw

from perdure import Runtime
from perdure.codec import (
    TypeRegistry,
    ValueCodec,
    decode_record,
    describe,
    encode_frame,
    encode_record,
    split_frame,
)
from perdure.core import fold
from perdure.model import Failure, Wait, WaitKind
from perdure.model import records as rec

RUN = "r_golden"
_codec = ValueCodec(TypeRegistry())
_FAILURE = Failure(type="ValueError", message="no")


def _raw(value: Any) -> Raw:
    return Raw(_codec.encode(value))


def of_every_kind() -> dict[str, Any]:
    """Return a journal with every kind of record, a frame for each, and its fold."""
    frames = [encode_frame([encode_record(record)]).hex() for record in every_kind()]
    return {"run": RUN, "frames": frames, "states": folded(RUN, frames)}


def every_kind() -> list[Any]:
    """Return records of one run in an order in which they can happen."""
    return [*_until_moved(), *_after_move()]


def _until_moved() -> list[Any]:
    task, spec = "1:work", rec.TaskSpec("work")
    given = {"notes": ("a", _raw(["begun"])), "total": ("f", _raw(1)), "who": ("r", _raw("ann"))}
    return [
        rec.RunStarted(1, RUN, "default", "t", "golden", 1, given, "key"),
        rec.LeaseTaken(2, "w_1", 1, 1),
        rec.StepCommitted(3, "", 0, 1, {"total": _raw(1)}, [spec, rec.TaskSpec("sub")]),
        rec.Noted(4, task, "n1", _raw(4)),
        rec.EffectIntended(5, task, "e_1", "pay", "keyed", "k", "d", _raw([[], {}])),
        rec.EffectUncertain(6, task, "e_1", "pay", 1, _FAILURE, 7),
        rec.EffectIntended(7, task, "e_1", "pay", "keyed", "k", "d", _raw([[], {}]), 2),
        rec.EffectConfirmed(8, task, "e_1", "pay", "keyed", _raw("receipt"), 2),
        rec.EffectFailed(9, task, "e_2", "look", "pure", _FAILURE, 1, 10),
        rec.EffectConfirmed(10, task, "e_3", "build", "contained", _raw("built")),
        rec.SandboxTaken(11, task, "s_1"),
        rec.NodeFailed(12, task, 1, _FAILURE, 13),
        rec.NodeStarted(13, task, 2),
        rec.TimerSet(14, task, "c_1", 15),
        rec.TimerFired(15, task, "c_1"),
        rec.Asked(16, task, "a_1", "Fine?", 99),
        rec.Asked(17, task, "a_2", "Sure?"),
        rec.ReceiveStarted(18, task, "c_2", "go", 30),
        rec.ReceiveStarted(19, task, "c_3", "stop"),
        rec.Spawned(20, task, "c_4", "r_child", "other"),
        rec.Emitted(21, task, 2, _raw("chunk")),
        rec.Released(22, "waiting", (Wait(kind=WaitKind.ASK, subject="a_1", node=task),)),
        rec.LeaseTaken(23, "w_2", 2, 1),
        rec.AskAnswered(24, task, "a_1", _raw(value=True), "ada", 24),
        rec.AskLapsed(25, task, "a_2"),
        rec.SignalConsumed(26, task, "c_2", "go", _raw({"to": 1}), "bob", 25),
        rec.ReceiveLapsed(27, task, "c_3"),
        rec.ChildEnded(28, task, "c_4", "r_child", "succeeded", _raw({"x": 1}), None, 1),
        rec.StepCommitted(29, "1:sub", 0, 0, {}, [rec.TaskSpec("in")], version=1),
        rec.NodeFinished(30, "1:sub/1:in", 29, {"notes": ("a", _raw(["inside"]))}),
        rec.Released(31, "needs_decision", (), _FAILURE),
        rec.LeaseTaken(32, "w_3", 3, 1),
    ]


def _after_move() -> list[Any]:
    task = "1:work"
    return [
        rec.VersionMoved(
            33,
            "migration",
            1,
            2,
            "migration",
            {"": rec.ScopeMoved({"work": "act"}), "1:sub": rec.ScopeMoved({"in": "inner"})},
        ),
        rec.StateSnapshot(
            34,
            0,
            1,
            {"notes": ("r", _raw(["begun"])), "total": ("r", _raw(1)), "name": ("r", _raw("ann"))},
            [rec.TaskSpec("act"), rec.TaskSpec("sub")],
            "s_1",
        ),
        rec.RetryRequested(35, "ada"),
        rec.StepCommitted(36, "1:sub", 1, 1, {}, []),
        rec.NodeFinished(37, "1:sub", 3, {"notes": ("a", _raw(["inside"]))}),
        rec.NodeFinished(38, task, 13, {"total": ("f", _raw(2))}, 2, [rec.TaskSpec("end")]),
        rec.StepCommitted(39, "", 1, 2, {"total": _raw(3)}, [rec.TaskSpec("end")], "s_1"),
        rec.StateCopied(
            39,
            0,
            1,
            {"notes": ("r", _raw(["begun"])), "total": ("r", _raw(3)), "name": ("r", _raw("ann"))},
            [rec.TaskSpec("act"), rec.TaskSpec("sub")],
            "s_1",
            1,
            34,
            2,
            {"notes": 2},
        ),
        rec.CancelRequested(40, by="ada", compensate=True),
        rec.CompensationStarted(41, "e_1", "pay", "c_e_1"),
        rec.CompensationEnded(42, "e_1", "pay"),
        rec.RunEnded(43, "cancelled", 2, _FAILURE),
    ]


def of_store(path: pathlib.Path) -> dict[str, Any]:
    """Return the journals of an SQLite store, each with its fold; the file is not opened itself."""
    with tempfile.TemporaryDirectory() as temporary:
        return asyncio.run(_of_store(pathlib.Path(shutil.copy(path, temporary))))


async def _of_store(path: pathlib.Path) -> dict[str, Any]:
    found = {}
    async with Runtime.open(f"sqlite:///{path}", worker=False) as runtime:
        for run in await runtime.runs():
            rows = await runtime.engine.store.read_frames(run.run_id)
            frames = [row.body.hex() for row in rows]
            states = folded(run.run_id, frames)
            found[run.run_id] = {"run": run.run_id, "frames": frames, "states": states[-1:]}
    return found


def folded(run_id: str, frames: list[str]) -> list[Any]:
    """Return what a journal makes of a run's state, as plain data, after each of its frames."""
    state = fold.RunState(run_id)
    found = []
    for frame in frames:
        for encoded in split_frame(bytes.fromhex(frame)):
            fold.apply(state, decode_record(encoded))
        found.append(plain(state))
    return found


def plain(value: Any) -> Any:
    """Return a state as JSON-like data, by the names of its fields; what is empty is left out."""
    if isinstance(value, Raw):
        return {"$raw": describe(value)}
    if isinstance(value, msgspec.Struct):
        fields = {name: plain(getattr(value, name)) for name in value.__struct_fields__}
        shown = {name: item for name, item in fields.items() if item not in _EMPTY}
        return {"$": type(value).__name__, **shown}
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


_EMPTY: tuple[Any, ...] = (None, [], {}, "", 0, False)
"""Left out, so that a field that is added later with such a default changes no expectation."""
