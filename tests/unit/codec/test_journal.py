"""Records, frames and the hash chain over them."""

import contextlib
import random

import msgspec
import pytest

from perdure.codec import (
    NO_HASH,
    PACKED_FORMAT,
    chain_hash,
    decode_record,
    describe,
    encode_frame,
    encode_record,
    split_frame,
)
from perdure.codec._compress import compressed
from perdure.engine.loading import check_frame, load_run
from perdure.errors import DecodeFailed, StoreCorrupt
from perdure.ids import RunId, TenantId, ThreadId
from perdure.model import FrameRow, RunRow, RunStatus
from perdure.model import records as rec
from tools import golden


@pytest.mark.parametrize("make", [golden.full, golden.bare])
@pytest.mark.parametrize("kind", golden.KINDS, ids=lambda kind: kind.__name__)
def test_every_kind_comes_back(kind, make):
    record = make(kind)
    encoded = encode_record(record)
    back = decode_record(encoded)
    assert back == record
    assert type(back) is kind
    assert encode_record(back) == encoded
    for name in kind.__struct_fields__:
        if isinstance(value := getattr(back, name), msgspec.Raw):
            describe(value)


def test_numbers_of_kinds_are_used_once():
    numbers = [kind.__struct_config__.tag for kind in golden.KINDS]
    assert sorted(numbers) == list(range(1, len(numbers) + 1))
    assert len({kind.__name__ for kind in golden.KINDS}) == len(numbers)


def test_a_record_with_more_fields_at_its_end_is_read():
    encoded = msgspec.msgpack.encode([14, 5, "1:n", "c", "what a later version added"])
    assert decode_record(encoded) == rec.TimerFired(5, "1:n", "c")


@pytest.mark.parametrize("number", [0, len(golden.KINDS) + 1, 999, -1, "1", None])
def test_an_unknown_kind_is_refused(number):
    with pytest.raises(DecodeFailed, match="newer Perdure"):
        decode_record(msgspec.msgpack.encode([number, 5, "1:n", "c"]))


def test_damaged_records_fail_as_decode_failed_only():
    chance = random.Random(5)  # noqa: S311  # repeatable, not secret
    whole = [encode_record(record) for record in golden.samples()]
    for _ in range(4000):
        damaged = bytearray(chance.choice(whole))
        damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        with contextlib.suppress(DecodeFailed):
            decode_record(bytes(damaged[: chance.randrange(1, len(damaged) + 1)]))
    for deep in (b"\x91" * 100_000, b"\x94\x17\x05\xa1n\xa1c" + b"\x91" * 100_000):
        with pytest.raises(DecodeFailed):
            decode_record(deep)


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"", "format nothing"),
        (bytes([PACKED_FORMAT + 1]) + b"\x90", rf"format {PACKED_FORMAT + 1}.*install a newer"),
        (b"\x02\x90", "compressed bytes"),
        (b"\x02" + (compressed(bytes(500)) or b"")[:-1], "cut short"),
        (b"\x02" + (compressed(bytes(500)) or b"") + b"more", "followed by others"),
        (b"\x00\x90", "format 0"),
        (b"\xff", "format 255"),
        (b"\x01", "can't be decoded"),
        (b"\x01\xc0", "can't be decoded"),
        (b"\x01\x91\x01", "can't be decoded"),
        (b"\x01\x90\x00", "can't be decoded"),
        (b"\x01\xdd\xff\xff\xff\xff", "can't be decoded"),
        (b"\x01" + b"\x91" * 100_000, "can't be decoded"),
    ],
    ids=lambda value: ascii(value)[:20],
)
def test_a_frame_that_is_none_is_refused(body, why):
    with pytest.raises(DecodeFailed, match=why):
        split_frame(body)


def test_frames_come_back():
    records = [encode_record(record) for record in golden.samples()]
    for count in (0, 1, 2, len(records)):
        assert split_frame(encode_frame(records[:count])) == records[:count]


RUN = RunId("r_1")


def frames(*sizes, run_id=RUN, token=1):
    """A chain of frames with so many records each."""
    made, previous, seq = [], NO_HASH, 1
    for size in sizes:
        records = [encode_record(rec.NodeStarted(seq + n, "1:n", 1)) for n in range(size)]
        if seq == 1:
            records[0] = encode_record(golden.bare(rec.RunStarted))
        following = chain_hash(previous, run_id, seq, token, records)
        made.append(
            FrameRow(
                run_id=run_id,
                first_seq=seq,
                count=size,
                token=token,
                at_us=5,
                body=encode_frame(records),
                prev_hash=previous,
                hash=following,
            )
        )
        previous, seq = following, seq + size
    return made


def verify(chain):
    previous = None
    for frame in chain:
        check_frame(frame, previous)
        previous = frame


def edited(frame, **fields):
    return msgspec.structs.replace(frame, **fields)


def swap_record(frame):
    first, *others = split_frame(frame.body)
    return edited(frame, body=encode_frame([*others, first]))


def test_a_whole_chain_holds():
    verify(frames(1, 3, 2))
    verify(frames(1, 3, 2)[1:])  # from a snapshot on


@pytest.mark.parametrize(
    "damage",
    [
        lambda f: [f[0], edited(f[1], body=f[1].body[:-1] + b"\x02"), f[2]],
        lambda f: [f[0], swap_record(f[1]), f[2]],
        lambda f: [f[0], f[2]],
        lambda f: [f[0], f[2], f[1]],
        lambda f: [f[0], f[1], f[1], f[2]],
        lambda f: [f[0], edited(f[1], token=2), f[2]],
        lambda f: [f[0], edited(f[1], first_seq=3), f[2]],
        lambda f: [f[0], edited(f[1], run_id=RunId("r_2")), f[2]],
        lambda f: [f[0], edited(f[1], count=2), f[2]],
        lambda f: [f[0], edited(f[1], hash=f[2].hash), f[2]],
        lambda f: [edited(f[0], prev_hash=f[1].hash), f[1], f[2]],
        lambda f: [*frames(1, run_id=RunId("r_2")), *f[1:]],
        lambda f: [f[0], *frames(1, 3, token=9)[1:], f[2]],
        lambda f: [
            edited(
                f[0],
                prev_hash=b"x" * 32,
                hash=chain_hash(b"x" * 32, RUN, 1, 1, split_frame(f[0].body)),
            )
        ],
        lambda f: [f[0], edited(f[1], body=encode_frame(split_frame(f[1].body)[:2])), f[2]],
    ],
)
def test_a_chain_that_was_touched_breaks(damage):
    with pytest.raises(StoreCorrupt, match=r"journal at seq \d+ is not what was written"):
        verify(damage(frames(1, 3, 2)))


class Shelf:
    """A store with one run."""

    def __init__(self, chain, row):
        self.chain = chain
        self.row = row

    async def read_run(self, _run_id):
        return self.row

    async def read_thread(self, *_names):
        return None

    async def read_thread_runs(self, *_names, **_more):
        return []

    async def read_frames(self, _run_id, *, from_seq=1, limit=None):
        found = [f for f in self.chain if f.first_seq + f.count > from_seq]
        return found[:limit]


@pytest.mark.parametrize("cut", [1, 2])
async def test_a_chain_that_lost_its_end_is_noticed(cut):
    chain = [frames(1)[0], *frames(1, 3, 2)[1:]]
    row = RunRow(
        run_id=RUN,
        tenant=TenantId("default"),
        thread=ThreadId("t"),
        ordinal=1,
        graph="g",
        version=1,
        status=RunStatus.RUNNING,
        last_seq=1,
    )
    assert (await load_run(Shelf(chain[:1], row), row)).state.last_seq == 1
    longer = msgspec.structs.replace(row, last_seq=1 + cut)
    with pytest.raises(StoreCorrupt, match=r"ends at seq 1, its row says"):
        await load_run(Shelf(chain[:1], longer), longer)
