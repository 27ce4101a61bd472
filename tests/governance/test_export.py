"""An export proves elsewhere what the store proves; whatever is changed in it is found."""

import asyncio
import contextlib
import io
import random
import tracemalloc

import msgspec
import pytest

from perdure import Runtime
from perdure.cli._auditing import unproven
from perdure.codec import chain_hash, erase_frame, split_frame
from perdure.errors import ExportInvalid, NotFound, UsageError
from perdure.governance import _file as file_format
from perdure.governance import (
    check,
    export,
    fingerprint,
    load_private_key,
    load_public_key,
    make_key,
)
from perdure.governance._check import Checked, Contents, check_seal
from perdure.governance._file import FORMAT, MAGIC, Writer, reader_of
from tests.governance.conftest import ended, graph
from tests.governance.test_verify import codes, edit_record, wheres


async def exported(store, to, **options):
    async with Runtime.open(f"sqlite:///{store.path}", worker=False) as runtime:
        return await export(runtime, to, **options)


@pytest.fixture
def public_key(key, tmp_path):
    return load_public_key(tmp_path / "key.pub")


async def test_all_of_a_store(store, ids, key, public_key, tmp_path):
    done = await exported(store, tmp_path / "all.audit", key=key)
    assert (done.threads, done.runs) == (3, 6)
    assert done.signed_by == fingerprint(public_key)
    assert done.bytes == (tmp_path / "all.audit").stat().st_size
    found = check(tmp_path / "all.audit", public_key=public_key)
    assert found.report.findings == []
    assert (found.is_signer_known, found.signed_by) == (True, done.signed_by)
    assert (found.report.runs, found.report.anchored, found.report.asks) == (6, 3, 2)
    assert found.report.records == store.run("SELECT sum(count) FROM perdure_frames")[0][0]
    assert not list(tmp_path.glob("*.part"))


async def test_one_thread_or_one_run(store, ids, tmp_path):
    await exported(store, tmp_path / "thread", thread="t")
    found = check(tmp_path / "thread")
    assert (found.report.findings, found.report.runs, found.report.anchored) == ([], 4, 3)
    await exported(store, tmp_path / "run", run_id=ids["t"][2])
    found = check(tmp_path / "run")
    assert (found.report.findings, found.report.runs) == ([], 1)
    assert (found.signed_by, found.is_signer_known) == ("", False)
    assert found.head.run_id == ids["t"][2]


async def test_what_does_not_exist_leaves_no_file(store, tmp_path):
    with pytest.raises(NotFound):
        await exported(store, tmp_path / "x", thread="nowhere")
    with pytest.raises(NotFound):
        await exported(store, tmp_path / "x", run_id="r_x")
    assert not list(tmp_path.glob("x*"))


async def test_an_export_is_never_overwritten(store, tmp_path):
    await exported(store, tmp_path / "x", thread="t")
    before = (tmp_path / "x").read_bytes()
    with pytest.raises(UsageError, match="exists"):
        await exported(store, tmp_path / "x", thread="t")
    with pytest.raises(UsageError, match="can't be written"):
        await exported(store, tmp_path / "no" / "x", thread="t")
    assert (tmp_path / "x").read_bytes() == before


async def test_damage_of_the_store_is_found_in_the_export_too(store, ids, key, tmp_path):
    run_id = ids["t"][1]
    seq = store.frames(run_id)[2][0]
    store.set_frame(run_id, seq, body=edit_record(store.frames(run_id)[2][4]))
    store.drop_frames(ids["t"][0], store.frames(ids["t"][0])[-1][0])
    await exported(store, tmp_path / "x", key=key)
    found = check(tmp_path / "x")
    assert found.signed_by, "the seal is right: it was so when it was exported"
    assert wheres(found.report, run_id)[0][:2] == ("frame_changed", seq)
    assert {"anchor_wrong", "journal_truncated"} <= set(codes(found.report))


async def test_erased_records_are_exported_and_verify(store, ids, tmp_path):
    run_id = ids["t"][1]
    for seq, _count, _token, _at_us, body, *_rest in store.frames(run_id)[1:-1]:
        store.set_frame(run_id, seq, body=erase_frame(body))
    await exported(store, tmp_path / "x")
    found = check(tmp_path / "x").report
    assert found.findings == []
    assert found.erased > 2


# -- keys ------------------------------------------------------------------------------------------


async def test_another_key_is_refused(store, key, tmp_path):
    await exported(store, tmp_path / "x", thread="t", key=key)
    found = check(tmp_path / "x", public_key=bytes(32))
    assert codes(found.report) == ["signature_wrong"]
    assert not found.is_signer_known


async def test_unsigned_is_no_signature(store, public_key, tmp_path):
    await exported(store, tmp_path / "x", thread="t")
    found = check(tmp_path / "x", public_key=public_key)
    assert codes(found.report) == ["signature_wrong"]


async def test_a_signature_can_not_be_cut_off(store, key, public_key, tmp_path):
    """Taken off, with an honest unsigned end in its place: who knows the key notices."""
    await exported(store, tmp_path / "x", thread="t", key=key)
    data = (tmp_path / "x").read_bytes()
    reader = reader_of(data)
    while file_format.kind_of(reader.encoded()) != file_format.IS_END:
        pass
    cut = data[: reader.offset] + b"\x00\x00\x00\x02\x91\x0b"
    (tmp_path / "cut").write_bytes(cut)
    assert check(tmp_path / "cut").signed_by == ""
    assert codes(check(tmp_path / "cut", public_key=public_key).report) == ["signature_wrong"]


# -- since -----------------------------------------------------------------------------------------


async def grown(store):
    async with Runtime.open(f"sqlite:///{store.path}", graphs=[graph]) as runtime:
        [ask] = [a for a in await runtime.asks() if a.thread == "v"]
        await runtime.answer(ask.id, "go", by="ada")
        await (await runtime.get(ask.run_id)).result(timeout=15)
        await ended(runtime, thread="t", order_id="later")


async def test_what_only_grew_goes_on_from_the_earlier_export(store, key, public_key, tmp_path):
    await exported(store, tmp_path / "old", key=key)
    await grown(store)
    await exported(store, tmp_path / "new", key=key)
    found = check(tmp_path / "new", public_key=public_key, since=tmp_path / "old")
    assert (found.report.findings, found.grown, found.uncovered) == ([], 6, 0)
    assert found.report.runs == 7
    back = check(tmp_path / "old", since=tmp_path / "new")
    assert codes(back.report) == ["history_changed", "history_missing"]


async def test_the_newest_run_cut_with_all_its_rows(store, ids, tmp_path):
    """Nothing inside the store tells of it; the earlier export does."""
    await exported(store, tmp_path / "old")
    run_id = ids["v"][0]
    last = store.frames(run_id)[-1]
    store.drop_frames(run_id, last[0])
    store.set_run(run_id, last_seq=last[0] - 1)
    store.drop_rows("asks", run_id)
    await exported(store, tmp_path / "new")
    without = check(tmp_path / "new").report
    found = check(tmp_path / "new", since=tmp_path / "old").report
    assert "history_changed" not in codes(without)
    assert wheres(found, run_id)[-1] == ("history_changed", 1, last[0] + last[1] - 1)


async def test_a_run_made_anew_or_gone(store, ids, tmp_path):
    await exported(store, tmp_path / "old")
    run_id = ids["v"][0]
    prev = bytes(32)
    for seq, _count, token, at_us, body, *_rest in store.frames(run_id):
        made = chain_hash(prev, run_id, seq, token, split_frame(body), at_us=at_us + 1)
        store.set_frame(run_id, seq, at_us=at_us + 1, prev_hash=prev, hash=made)
        prev = made
    gone = ids["u"][0]
    store.drop_frames(gone, 0)
    store.drop_rows("effects", gone)
    store.run("DELETE FROM perdure_runs WHERE run_id = ?", gone)
    store.run("DELETE FROM perdure_threads WHERE thread = 'u'")
    await exported(store, tmp_path / "new")
    assert check(tmp_path / "new").report.findings == []
    found = check(tmp_path / "new", since=tmp_path / "old").report
    assert [(f.code, f.run_id) for f in found.findings] == [
        ("history_changed", run_id),
        ("history_missing", gone),
    ]


async def test_a_narrower_export_is_not_blamed_for_what_it_leaves_out(store, tmp_path):
    await exported(store, tmp_path / "old")
    await exported(store, tmp_path / "new", thread="t")
    found = check(tmp_path / "new", since=tmp_path / "old")
    assert (found.report.findings, found.grown, found.uncovered) == ([], 4, 2)


async def test_what_a_narrower_earlier_export_left_out_is_not_said_to_have_grown(store, tmp_path):
    await exported(store, tmp_path / "old", thread="t")
    await exported(store, tmp_path / "new")
    found = check(tmp_path / "new", since=tmp_path / "old")
    assert (found.report.findings, found.grown, found.uncovered, found.unseen) == ([], 4, 0, 2)
    assert any("that 2 runs of it only grew" in line for line in unproven(found, has_since=True))
    assert check(tmp_path / "new", since=tmp_path / "new").unseen == 0


async def test_a_damaged_earlier_export_is_refused(store, tmp_path):
    await exported(store, tmp_path / "old")
    data = bytearray((tmp_path / "old").read_bytes())
    data[len(data) // 2] ^= 1
    (tmp_path / "bad").write_bytes(bytes(data))
    with pytest.raises(ExportInvalid):
        check(tmp_path / "old", since=tmp_path / "bad")


# -- hostile files ---------------------------------------------------------------------------------


def refused(path, data):
    path.write_bytes(data)
    with pytest.raises(ExportInvalid) as caught:
        check(path)
    assert "offset" in caught.value.fields
    return str(caught.value)


def block(payload, length=None):
    return (len(payload) if length is None else length).to_bytes(4, "big") + payload


HEAD = MAGIC + bytes([FORMAT])
FIRST = block(msgspec.msgpack.encode([1, 5, "0.1", "", "", ""]))


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "does not begin"),
        (b"PK\x03\x04", "does not begin"),
        (MAGIC, "format  is unknown"),
        (MAGIC + b"\x03", "format 03 is unknown"),
        (HEAD, "cut off"),
        (HEAD + b"\x00\x00", "cut off"),
        (HEAD + block(b"", 0xFFFFFFFF), "bytes are left"),
        (HEAD + block(b"abc", 4), "bytes are left"),
        (HEAD + block(b""), "can't be decoded"),
        (HEAD + block(b"\xc0"), "can't be decoded"),
        (HEAD + block(b"\x91" * 100_000), "can't be decoded"),
        (HEAD + block(b"\x91\x01\xdd\xff\xff\xff\xff"), "can't be decoded"),
        (HEAD + block(b"\xdd\xff\xff\xff\xff\x01"), "can't be decoded"),
        (HEAD + block(msgspec.msgpack.encode([99, 1])), "can't be decoded"),
        (HEAD + block(msgspec.msgpack.encode([11])), "does not say what was exported"),
        (HEAD + FIRST, "cut off"),
        (HEAD + FIRST + block(msgspec.msgpack.encode([9, 1, 2, b"x"])), "cut off"),
    ],
)
def test_a_malformed_file_is_refused(tmp_path, data, why):
    assert why in refused(tmp_path / "x", data)


def sealed(*blocks):
    """A file with an honest end around any blocks."""
    to = io.BytesIO()
    writer = Writer(to)
    for each in blocks:
        writer.block(each)
    writer.end()
    writer.block(file_format.Unsigned())
    return to.getvalue()


A_HEAD = file_format.Head(5, "0.1")
A_THREAD = file_format.ThreadOf("default", "t", True)
A_RUN = file_format.RunBegins("r_1", 1)
A_FRAME = file_format.FrameOf(1, 1, 0, 5, bytes(32), bytes(32), b"\x01\x90")


@pytest.mark.parametrize(
    "blocks",
    [
        [A_HEAD, A_HEAD],
        [A_HEAD, A_RUN],
        [A_HEAD, A_FRAME],
        [A_HEAD, A_THREAD, A_FRAME],
        [A_HEAD, A_THREAD, A_RUN],
        [A_HEAD, A_THREAD, A_RUN, A_RUN],
        [A_HEAD, A_THREAD, A_RUN, A_THREAD],
        [A_HEAD, A_THREAD, A_RUN, A_FRAME, file_format.RunEnds("r_1", 1, b"")],
        [A_HEAD, file_format.Unsigned()],
    ],
)
def test_blocks_in_another_order_are_refused(tmp_path, blocks):
    assert "may not stand there" in refused(tmp_path / "x", sealed(*blocks)) or len(blocks) == 3


def test_a_file_that_says_nothing_is_sound(tmp_path):
    (tmp_path / "x").write_bytes(sealed(A_HEAD))
    assert check(tmp_path / "x").report.findings == []


def test_no_file(tmp_path):
    for path in (tmp_path / "nothing", tmp_path):
        with pytest.raises(UsageError, match="is no file"):
            check(path)


async def test_every_cut_is_found(store, key, tmp_path):
    await exported(store, tmp_path / "x", thread="u", key=key)
    data = (tmp_path / "x").read_bytes()
    for length in range(len(data)):
        with pytest.raises(ExportInvalid):
            check_seal(reader_of(data[:length]), Checked(), None)
    with pytest.raises(ExportInvalid, match="follows the end"):
        check_seal(reader_of(data + b"x"), Checked(), None)


async def test_noise_never_does_more_than_be_refused(store, key, tmp_path):
    """Damage of many kinds, with the seal put right or not: a report or ExportInvalid."""
    await exported(store, tmp_path / "x", thread="t", key=key)
    data = (tmp_path / "x").read_bytes()
    chance = random.Random(11)  # noqa: S311  # repeatable, not secret
    found = same = 0
    for _ in range(600):
        damaged = bytearray(data)
        for _each in range(chance.randint(1, 4)):
            at = chance.randrange(len(damaged))
            damaged[at] = chance.randrange(256)
        if chance.random() < 0.3:
            at = chance.randrange(len(damaged))
            del damaged[at : at + chance.randint(1, 40)]
        if bytes(damaged) == data:
            same += 1
            continue
        (tmp_path / "noise").write_bytes(bytes(damaged))
        try:
            found += not check(tmp_path / "noise").report.is_sound
        except ExportInvalid:
            found += 1
        contents = Contents(Checked(), {}, lambda _report: None)
        with contextlib.suppress(ExportInvalid):
            contents.read(reader_of(bytes(damaged)))
    assert found == 600 - same
    assert same < 10


async def test_memory_is_bounded_by_the_largest_block(store, tmp_path):
    """A file of 200 MB of frames is checked in far less memory than that."""
    path = tmp_path / "large"
    body = b"\x01" + msgspec.msgpack.encode(
        [msgspec.msgpack.encode([14, 5, "1:n", "c", "x" * 10**6])]
    )
    with path.open("wb") as to:
        writer = Writer(to)
        writer.block(A_HEAD)
        writer.block(A_THREAD)
        writer.block(A_RUN)
        prev = bytes(32)
        for seq in range(1, 201):
            made = chain_hash(prev, "r_1", seq, 1, split_frame(body), at_us=5)
            writer.block(file_format.FrameOf(seq, 1, 1, 5, prev, made, body))
            prev = made
        writer.end()
        writer.block(file_format.Unsigned())
    tracemalloc.start()
    with pytest.raises(ExportInvalid, match="middle of a run"):
        check(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert path.stat().st_size > 200 * 10**6
    assert peak < 12 * 10**6


# -- every byte ------------------------------------------------------------------------------------

PARTS = 8


async def fill_thousand(folder):
    make_key(folder / "key")
    async with Runtime.open(f"sqlite:///{folder / 'store.db'}", graphs=[graph]) as runtime:
        records = number = 0
        while records < 1000:
            number += 1
            run_id = await ended(runtime, thread=f"t{number % 3}", order_id=f"o{number}")
            records += (await runtime.read_row(run_id)).last_seq
        await export(runtime, folder / "x", key=load_private_key(folder / "key"))
    return (folder / "x").read_bytes(), records


@pytest.fixture(scope="session")
def thousand(tmp_path_factory):
    """A signed export of 1,000 records or a few more, and how many they are."""
    return asyncio.run(fill_thousand(tmp_path_factory.mktemp("thousand")))


def unnoticed(data, positions):
    """Return the positions of which a flipped bit is not found by the seal."""
    damaged = bytearray(data)
    missed = []
    for at in positions:
        damaged[at] ^= 1 << (at % 8)
        checked = Checked()
        try:
            check_seal(reader_of(bytes(damaged)), checked, None)
            if checked.report.is_sound:
                missed.append(at)
        except ExportInvalid:
            pass
        damaged[at] = data[at]
    return missed


@pytest.mark.timeout(60)
def test_a_flip_of_one_byte_in_a_hundred_is_found(thousand):
    """And of every byte of the beginning and of the end, where the seal itself is."""
    data, records = thousand
    assert records >= 1000
    untouched = Checked()
    check_seal(reader_of(data), untouched, None)
    assert untouched.report.is_sound
    ends = [*range(60), *range(len(data) - 250, len(data))]
    assert unnoticed(data, [*ends, *range(60, len(data), 101)]) == []


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("part", range(PARTS))
def test_a_flip_of_any_byte_is_found(thousand, part, record_property):
    data, records = thousand
    size = -(-len(data) // PARTS)
    assert unnoticed(data, range(part * size, min((part + 1) * size, len(data)))) == []
    if part == 0:
        figure = f"a bit of each of {len(data)} bytes was flipped (1 in {PARTS} parts), "
        record_property("figure", f"{figure}{records} records: all found")


async def test_flips_are_found_by_the_chain_alone(thousand):
    """Without digest and signature: of bytes in frames, by the contents of the file."""
    data, _records = thousand
    reader = reader_of(data)
    spans = []
    while True:
        encoded = reader.encoded()
        kind = file_format.kind_of(encoded)
        if kind == file_format.IS_END:
            break
        if kind == 4:
            spans.append((reader.offset - len(encoded), reader.offset))
    chance = random.Random(3)  # noqa: S311  # repeatable, not secret
    missed = []
    for start, stop in chance.sample(spans, 120):
        at = chance.randrange(start, stop)
        damaged = bytearray(data)
        damaged[at] ^= 1 << chance.randrange(8)
        checked = Checked()
        try:
            Contents(checked, {}, lambda _report: None).read(reader_of(bytes(damaged)))
            if checked.report.is_sound:
                missed.append((at, damaged[at]))
        except ExportInvalid:
            pass
    assert missed == []
