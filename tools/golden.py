"""Write the golden files of the stored format: what every later version must read.

    PYTHONPATH=src python tools/golden.py

writes what is missing of `tests/compat/golden/v<format>` and never touches what exists: what was
released can't be written again by newer code, or it would prove nothing. A new frame format gets a
new folder: copy `graph.py` of the newest one there, and run this.

- `records.json`: a frame with every record kind, with all fields set and with the defaults alone.
- `kinds.json`: the same for each kind by itself, under `Name/fields`; a kind, or a field, that is
  new in a format gets a new entry.
- `values.json`: a value for every tag of the codec.
- `store.db`: an SQLite store with a run that has ended and one that waits, by `graph.py` beside it.
- `journals.json`: whole journals as frames, with the state that the fold makes of them: the runs of
  `store.db`, and one with every kind of record (`tools/golden_journal.py`).
"""

import asyncio
import datetime as dt
import importlib.util
import json
import pathlib
import shutil
import sys
import tempfile
import typing
import uuid
from collections.abc import Callable
from decimal import Decimal
from types import ModuleType
from typing import Any
from zoneinfo import ZoneInfo

import msgspec

# The script is run by its path as well as imported by the tests.
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from perdure import Run, Runtime
from perdure.codec import FRAME_FORMAT, TypeRegistry, ValueCodec, encode_frame, encode_record
from perdure.model import Failure, RunStatus, Wait, WaitKind
from perdure.model import records as rec
from tools import golden_journal

GOLDEN = pathlib.Path(__file__).resolve().parent.parent / "tests" / "compat" / "golden"
KINDS: tuple[Any, ...] = typing.get_args(rec.Record)

_RAW = msgspec.Raw(ValueCodec(TypeRegistry()).encode({"a": (1, 2.5)}))
_TASK = rec.TaskSpec("node", 2, _RAW)
_BY_NAME: dict[str, Any] = {
    "next": [_TASK, rec.TaskSpec("other")],
    "goto": [_TASK],
    "writes": {"notes": ("a", _RAW), "total": ("r", _RAW)},
    "input": {"notes": ("a", _RAW)},
    "values": {"notes": ("r", _RAW)},
    "folded": {"total": _RAW},
    "merged": {"notes": ("a", _RAW)},
    "passed": [rec.Passed("3:node", 4, 5, 2)],
    "state_at": rec.StatePlace(2, 9, 1, 4),
    "rollback": rec.Rollback(3, "ada", "wrong amount"),
    "lengths": {"notes": 7},
    "failure": Failure(type="ValueError", message="no", node="1:n", trace="f:1"),
    "scopes": {
        "": rec.ScopeMoved({"old": "new"}),
        "1:n": rec.ScopeMoved({}, {"notes": ("r", _RAW)}, [("notes", "a", _RAW)], 2),
    },
    "outcomes": {"1:n": {"notes": ("a", _RAW)}},
    "waits": (Wait(kind=WaitKind.TIMER, subject="s", node="1:n", due_us=5, note="sleep"),),
}
_BY_TYPE: dict[Any, Any] = {str: "text", int: 7, bool: True, msgspec.Raw: _RAW}


def full(kind: Any) -> Any:
    """Return a record of a kind with every field set."""
    hints = typing.get_type_hints(kind)
    fields = {}
    for name in kind.__struct_fields__:
        wanted = typing.get_args(hints[name]) or (hints[name],)
        known = [_BY_TYPE[each] for each in wanted if each in _BY_TYPE]
        fields[name] = _BY_NAME[name] if name in _BY_NAME else known[0]
    return kind(**fields)


def bare(kind: Any) -> Any:
    """Return a record of a kind with the defaults wherever there are any."""
    needed = len(kind.__struct_fields__) - len(kind.__struct_defaults__)
    record = full(kind)
    return kind(*[getattr(record, name) for name in kind.__struct_fields__[:needed]])


def samples() -> list[Any]:
    """Return two records of every kind."""
    return [make(kind) for kind in KINDS for make in (full, bare)]


def values(types: ModuleType) -> dict[str, Any]:
    """Return a value for every tag, by name; `types`: the module with the classes."""
    berlin = ZoneInfo("Europe/Berlin")
    return {
        "plain": [None, True, 0, -1, 1.5, "text", b"\0", {"a": {}}],
        "int": [2**64, -(2**100)],
        "str": "\ud800",
        "tuple": (1, ()),
        "set": {3, 1, 2},
        "frozenset": frozenset({"a"}),
        "map": {1: "a", (2,): None},
        "decimal": Decimal("-1.10"),
        "datetime": [
            dt.datetime(2026, 10, 25, 2, 30, 1, 5, tzinfo=berlin, fold=1),
            dt.datetime(2026, 1, 2, tzinfo=dt.timezone(dt.timedelta(hours=-5))),
            dt.datetime(2026, 1, 2),  # noqa: DTZ001  # a naive one is a value too
        ],
        "date": dt.date(2026, 1, 2),
        "time": [dt.time(1, 2, tzinfo=berlin, fold=1), dt.time(3, 4, 5, 6)],
        "timedelta": dt.timedelta(days=-1, microseconds=1),
        "uuid": uuid.UUID(int=5),
        "bytearray": bytearray(b"\0\xff"),
        "complex": complex(1, -0.0),
        "path": [pathlib.Path("/a/b"), pathlib.Path("\udcff")],
        "pure_path": [pathlib.PurePosixPath("a"), pathlib.PureWindowsPath("C:/a")],
        **types.objects(),
    }


def load(folder: pathlib.Path) -> ModuleType:
    """Return the classes and graphs of a golden folder."""
    name = f"perdure_golden_{folder.name}"
    known = sys.modules.get(name)
    if known is not None:
        return known
    spec = importlib.util.spec_from_file_location(name, folder / "graph.py")
    if spec is None or spec.loader is None:
        message = f"no graph.py in {folder}"
        raise FileNotFoundError(message)
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def codec_of(types: ModuleType) -> ValueCodec:
    """Return a codec that knows the classes of a golden folder."""
    registry = TypeRegistry()
    for cls in types.CLASSES:
        registry.add(cls)
    return ValueCodec(registry)


async def write_store(path: pathlib.Path, types: ModuleType) -> None:
    """Run one graph to its end, and once more until it waits for a person."""
    async with Runtime.open(f"sqlite:///{path}", graphs=types.GRAPHS) as runtime:
        for thread in ("done", "waits"):
            order = types.Order(order_id=f"o-{thread}")
            run = await runtime.start(types.orders, order, thread=thread)
            ask_id = await asked(runtime, run)
            if thread == "done":
                await runtime.answer(ask_id, {"granted": True, "limit": "40.00"}, by="ada")
                await run.result(timeout=30)


async def asked(runtime: Runtime, run: Run) -> str:
    """Return the id of the run's question when it waits for nothing else.

    Raises:
        TimeoutError: it does not come to that; says what it does instead.
    """
    for _ in range(1000):
        asks = await runtime.asks(run_id=run.id)
        if asks and await run.status() is RunStatus.WAITING:
            return asks[0].id
        await asyncio.sleep(0.01)
    raise TimeoutError(str(await run.row()))


def kind_entry(kind: Any) -> str:
    """Return the name of a kind's entry in `kinds.json`: it has one for each number of fields."""
    return f"{kind.__name__}/{len(kind.__struct_fields__)}"


def _write_kinds(path: pathlib.Path) -> bool:
    """Add the entries that no folder has; return whether there were any."""
    known = {
        name
        for other in GOLDEN.glob("*/kinds.json")
        for name in json.loads(other.read_text(encoding="utf-8"))
    }
    stored = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    missing = [kind for kind in KINDS if kind_entry(kind) not in known]
    for kind in missing:
        both = {make.__name__: encode_record(make(kind)).hex() for make in (full, bare)}
        stored[kind_entry(kind)] = both
    if missing:
        path.write_text(json.dumps(stored, indent=1) + "\n", encoding="utf-8")
    return bool(missing)


def _write_journals(path: pathlib.Path, store: pathlib.Path) -> None:
    journals = golden_journal.of_store(store)
    journals["every kind"] = golden_journal.of_every_kind()
    lines = [f"{json.dumps(name)}: {json.dumps(each)}" for name, each in journals.items()]
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def main() -> int:
    """Write what is missing of the present format; return 1 if nothing is."""
    folder = GOLDEN / f"v{FRAME_FORMAT}"
    types = load(folder)
    written = [
        name for name, write in _parts(folder, types).items() if not (folder / name).exists()
    ]
    for name in written:
        _parts(folder, types)[name](folder / name)
    if _write_kinds(folder / "kinds.json"):
        written.append("kinds.json")
    print(
        f"{folder}: {', '.join(written) or 'what was written stays as it is; nothing is missing'}"
    )
    return 0 if written else 1


def _parts(folder: pathlib.Path, types: ModuleType) -> dict[str, Callable[[pathlib.Path], None]]:
    """Return what writes each file, in an order in which they can be written."""
    return {
        "records.json": _write_records,
        "values.json": lambda path: _write_values(path, types),
        "store.db": lambda path: _write_store(path, types),
        "journals.json": lambda path: _write_journals(path, folder / "store.db"),
    }


def _write_records(path: pathlib.Path) -> None:
    encoded = [encode_record(record) for record in samples()]
    records = {"frame": encode_frame(encoded).hex(), "kinds": [k.__name__ for k in KINDS]}
    path.write_text(json.dumps(records, indent=1) + "\n", encoding="utf-8")


def _write_values(path: pathlib.Path, types: ModuleType) -> None:
    codec = codec_of(types)
    hexes = {name: codec.encode(value).hex() for name, value in values(types).items()}
    path.write_text(json.dumps(hexes, indent=1) + "\n", encoding="utf-8")


def _write_store(path: pathlib.Path, types: ModuleType) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        store = pathlib.Path(temporary, "store.db")
        asyncio.run(write_store(store, types))
        shutil.copy(store, path)


if __name__ == "__main__":
    sys.exit(main())
