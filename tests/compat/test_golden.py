"""What released versions stored is read, shown and gone on with by this one."""

import json
import shutil
from decimal import Decimal
from pathlib import Path

import msgspec
import pytest

from perdure import Runtime
from perdure.codec import FRAME_FORMAT, decode_record, describe, encode_record, split_frame
from perdure.codec._scalars import BACK
from perdure.engine.events import EVENT_KINDS
from perdure.governance import verify
from tools import golden, golden_journal

FOLDERS = sorted(path for path in golden.GOLDEN.iterdir() if path.is_dir())


@pytest.fixture(params=FOLDERS, ids=lambda folder: folder.name)
def folder(request) -> Path:
    return request.param


@pytest.fixture
def types(folder):
    return golden.load(folder)


@pytest.fixture
def url(folder, tmp_path) -> str:
    shutil.copy(folder / "store.db", tmp_path)
    return f"sqlite:///{tmp_path / 'store.db'}"


def test_the_present_format_has_its_folder():
    assert golden.GOLDEN / f"v{FRAME_FORMAT}" in FOLDERS
    assert sum(path.stat().st_size for path in golden.GOLDEN.rglob("store.db")) < 200_000


def test_what_was_written_is_never_written_again(capsys):
    before = contents()
    assert golden.main() == 1
    assert "stays as it is" in capsys.readouterr().out
    assert before == contents()


def contents():
    """Return what is kept, without what an interpreter puts beside modules that it imports."""
    paths = golden.GOLDEN.rglob("*.*")
    return {path: path.read_bytes() for path in paths if path.suffix != ".pyc" and path.is_file()}


def entries(name):
    """Return what is in the files of this name, by folder and by name there."""
    return {
        (folder.name, key): value
        for folder in FOLDERS
        if (folder / name).exists()
        for key, value in json.loads((folder / name).read_text()).items()
    }


def test_every_kind_of_record_has_an_example_as_it_is_now():
    """Fails for a new kind, and for a new field, until tools/golden.py was run."""
    there = {name for _folder, name in entries("kinds.json")}
    missing = {golden.kind_entry(kind) for kind in golden.KINDS} - there
    assert missing == set(), "run: PYTHONPATH=src python tools/golden.py"


@pytest.mark.parametrize("name", sorted(entries("kinds.json")), ids="-".join)
def test_an_example_of_a_kind_is_read(name):
    kind, _, count = name[1].partition("/")
    for make, stored in entries("kinds.json")[name].items():
        encoded = bytes.fromhex(stored)
        record = decode_record(encoded)
        assert type(record).__name__ == kind
        before, now = map(msgspec.msgpack.decode, (encoded, encode_record(record)))
        assert (len(before) - 1, now[: len(before)]) == (int(count), before)
        if make == "full" and len(now) == len(before):
            assert record == golden.full(type(record))


def test_the_journal_has_every_kind(folder):
    journal = entries("journals.json")[folder.name, "every kind"]
    records = [
        decode_record(each)
        for frame in journal["frames"]
        for each in split_frame(bytes.fromhex(frame))
    ]
    found = {type(record) for record in records}
    assert found == set(golden.KINDS) or folder != FOLDERS[-1]
    assert len(found) >= 31, "as many as there were when format 1 was written"


@pytest.mark.parametrize("name", sorted(entries("journals.json")), ids="-".join)
def test_a_journal_is_folded_to_the_same_state(name):
    journal = entries("journals.json")[name]
    states = golden_journal.folded(journal["run"], journal["frames"])
    expected = journal["states"]
    assert states[len(states) - len(expected) :] == expected
    assert expected[-1]["$"] == "RunState"


class Listed(msgspec.Struct):
    of: list[int] = []


FACTORY = type(Listed.__struct_defaults__[0])
"""How msgspec keeps a default that is made anew each time."""


def test_records_of_every_kind_are_read(folder):
    stored = json.loads((folder / "records.json").read_text())
    records = [decode_record(each) for each in split_frame(bytes.fromhex(stored["frame"]))]
    assert [type(record).__name__ for record in records[::2]] == stored["kinds"]
    for record, encoded in zip(records, split_frame(bytes.fromhex(stored["frame"])), strict=True):
        # Fields that were added since then stand at the end and have their defaults.
        before, now = map(msgspec.msgpack.decode, (encoded, encode_record(record)))
        assert now[: len(before)] == before
        added = record.__struct_fields__[len(before) - 1 :]
        defaults = record.__struct_defaults__[len(record.__struct_defaults__) - len(added) :]
        made = [each.factory() if isinstance(each, FACTORY) else each for each in defaults]
        assert [getattr(record, name) for name in added] == made


def test_values_of_every_tag_are_read(folder, types):
    stored = json.loads((folder / "values.json").read_text())
    codec, values = golden.codec_of(types), golden.values(types)
    assert stored.keys() == values.keys()
    assert stored.keys() >= BACK.keys()
    for name, encoded in stored.items():
        back = codec.decode(bytes.fromhex(encoded))
        assert back == values[name]
        assert repr(back) == repr(values[name])
        json.dumps(describe(bytes.fromhex(encoded)))


async def test_a_store_is_read(url, types):
    async with Runtime.open(url, graphs=types.GRAPHS, worker=False) as runtime:
        history = await runtime.history("done")
        assert [c.next for c in history] == [
            (),
            ("approve",),
            ("describe",),
            ("look", "look", "look"),
            ("assess",),
        ]
        assert [c.id for c in history] == [5, 4, 3, 2, 1]
        state = await runtime.state("done")
        assert state.receipt == "receipt for o-done: 40.00"
        assert state.approval == types.Approval(granted=True, limit=Decimal("40.00"))
        assert [line.item for line in state.lines] == ["pen", "paper", "ink"]
        assert (state.total, state.child) == (11, "6 letters")
        assert state.parcel == types.Parcel(types.Size(6), 1.5)
        assert (await runtime.state("done", at=2)).lines == []
        [run] = await runtime.runs(thread="done")
        kinds = [event.kind for event in await runtime.events(run.run_id)]
        assert set(kinds) <= set(EVENT_KINDS)
        assert {"effect_intended", "effect_confirmed", "answered", "child_ended"} <= set(kinds)
        assert len(await runtime.effects(None, run_id=run.run_id)) == 2
        assert await runtime.engine.store.check() == []


async def test_a_store_verifies(url):
    """Its frames were hashed without their time, and its runs pin nothing: said, not found."""
    async with Runtime.open(url, worker=False) as runtime:
        report = await verify(runtime)
    assert report.findings == []
    assert report.untimed == report.frames > 0
    assert report.effects > 0


async def test_a_store_is_shown_without_the_types(url):
    async with Runtime.open(url, worker=False) as runtime:
        for run in await runtime.runs():
            for event in await runtime.events(run.run_id):
                json.dumps(event.to_json())
        assert (await runtime.history("waits"))[0].next == ("approve",)


async def test_runs_that_were_stored_replay_clean(url, types):
    async with Runtime.open(url, graphs=types.GRAPHS, worker=False) as runtime:
        for run in await runtime.runs():
            replay = await runtime.replay(run.run_id)
            assert [each.message for each in replay.divergences] == []
            assert (replay.standing != ()) == (run.status == "waiting")


async def test_a_run_that_waits_goes_on_to_its_end(url, types):
    async with Runtime.open(url, graphs=types.GRAPHS) as runtime:
        [row] = await runtime.runs(thread="waits")
        run = await runtime.get(row.run_id)
        assert await run.status() == "waiting"
        [ask] = await runtime.asks()
        await runtime.answer(ask.id, {"granted": False, "limit": "1.50"}, by="bob")
        state = await run.result(timeout=15)
        assert state.receipt == "receipt for o-waits: 1.50"
        before = [entry.name for entry in await runtime.effects(None, run_id=run.id)]
        assert sorted(before) == ["charge", "reserve"]  # nothing was repeated
        again = await runtime.start(types.orders, {"order_id": "o-more"}, thread="done")
        while not (asks := await runtime.asks(run_id=again.id)):
            assert await again.status() != "failed"
        await runtime.answer(asks[0].id, {"granted": True, "limit": "2"}, by="bob")
        assert (await again.result(timeout=15)).total == 22
