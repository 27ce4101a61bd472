"""Every kind of damage to a store is found, at its place, and nothing else is."""

import asyncio

import msgspec
import pytest

from perdure import Runtime
from perdure.codec import chain_hash, decode_record, encode_frame, erase_frame, split_frame
from perdure.errors import NotFound
from perdure.governance import FINDING_CODES, verify
from perdure.model import RunRow
from perdure.model import records as rec
from tests.governance.conftest import graph


async def audited(store, **scope):
    async with Runtime.open(f"sqlite:///{store.path}", worker=False) as runtime:
        return await verify(runtime, **scope)


def codes(report):
    return sorted({finding.code for finding in report.findings})


def wheres(report, run_id):
    return [(f.code, f.first_seq, f.last_seq) for f in report.findings if f.run_id == run_id]


async def test_a_store_that_nobody_touched_is_sound(store, ids):
    report = await audited(store)
    assert report.findings == []
    runs = sum(map(len, ids.values()))
    assert (report.threads, report.runs) == (3, runs)
    assert report.records == store.run("SELECT sum(count) FROM perdure_frames")[0][0]
    assert (report.anchored, report.unanchored) == (3, 0)
    assert (report.untimed, report.erased, report.unsettled) == (0, 0, 0)
    assert report.effects == store.run("SELECT count(*) FROM perdure_effects")[0][0]
    assert report.asks == 2


async def test_one_thread_one_run_one_tenant(store, ids):
    assert (await audited(store, thread="t")).runs == 4
    report = await audited(store, run_id=ids["t"][2])
    assert (report.is_sound, report.runs, report.anchored) == (True, 2, 1)
    assert (await audited(store, tenant="default")).runs == 6
    assert (await audited(store, tenant="other")).runs == 0
    with pytest.raises(NotFound):
        await audited(store, thread="nowhere")
    with pytest.raises(NotFound):
        await audited(store, run_id="r_nowhere")


async def test_a_fork_whose_origin_is_gone(store):
    async with Runtime.open(f"sqlite:///{store.path}", graphs=[graph]) as runtime:
        origin = (await runtime.runs(thread="t"))[-1]
        fork = await runtime.fork("t", at=2, to="f")
        await fork.result(timeout=15)
    report = await audited(store)
    assert report.findings == []
    store.run("DELETE FROM perdure_runs WHERE run_id = ?", origin.run_id)
    [found] = (await audited(store, thread="f")).findings
    assert (found.code, found.run_id, found.first_seq) == ("origin_missing", fork.id, 1)
    assert "of run 1 of thread 't', checkpoint 2" in found.what


def frame_at(store, run_id, number):
    return store.frames(run_id)[number]


def edit_record(body):
    """Return the body with one changed record, well formed."""
    first, *others = split_frame(body)
    record = decode_record(first)
    changed = type(record)(
        record.at_us + 1, *(getattr(record, n) for n in record.__struct_fields__[1:])
    )
    return encode_frame([msgspec.msgpack.encode(changed), *others])


async def test_an_edited_record(store, ids):
    run_id = ids["t"][1]
    seq, count, *_rest = frame_at(store, run_id, 2)
    body = edit_record(frame_at(store, run_id, 2)[4])
    store.set_frame(run_id, seq, body=body)
    report = await audited(store)
    assert wheres(report, run_id)[0] == ("frame_changed", seq, seq + count - 1)
    assert report.findings[0].trusted_seq == seq - 1
    assert report.findings[0].thread == "t"


async def test_records_swapped_inside_a_frame(store, ids):
    run_id = ids["t"][1]
    seq, count, body = next((f[0], f[1], f[4]) for f in store.frames(run_id) if f[1] > 1)
    store.set_frame(run_id, seq, body=encode_frame(split_frame(body)[::-1]))
    report = await audited(store)
    assert ("frame_changed", seq, seq + count - 1) in wheres(report, run_id)


async def test_a_record_dropped_from_a_frame(store, ids):
    run_id = ids["t"][1]
    seq, count, body = next((f[0], f[1], f[4]) for f in store.frames(run_id) if f[1] > 1)
    store.set_frame(run_id, seq, body=encode_frame(split_frame(body)[:-1]))
    found = wheres(await audited(store), run_id)
    assert ("frame_changed", seq, seq + count - 1) in found
    assert ("frame_count", seq, seq + count - 1) in found


async def test_a_dropped_frame(store, ids):
    run_id = ids["t"][1]
    frames = store.frames(run_id)
    store.drop_frames(run_id, frames[2][0], frames[2][0])
    found = wheres(await audited(store), run_id)
    assert found[0] == ("records_missing", frames[2][0], frames[3][0] - 1)


async def test_frames_in_another_order(store, ids):
    run_id = ids["t"][1]
    one, other = store.frames(run_id)[2:4]
    names = ("count", "token", "at_us", "body", "prev_hash", "hash")
    store.set_frame(run_id, one[0], **dict(zip(names, other[1:], strict=True)))
    store.set_frame(run_id, other[0], **dict(zip(names, one[1:], strict=True)))
    found = wheres(await audited(store), run_id)
    assert {code for code, _first, _last in found} >= {"frame_changed", "chain_broken"}


async def test_a_frame_twice(store, ids):
    run_id = ids["t"][1]
    last = store.frames(run_id)[-1]
    store.run(
        "INSERT INTO perdure_frames (run_no, first_seq, count, token, at_us, body, prev_hash, hash)"
        " SELECT run_no, first_seq + count, count, token, at_us, body, hash, hash "
        "FROM perdure_frames WHERE first_seq = ? AND run_no = "
        "(SELECT run_no FROM perdure_runs WHERE run_id = ?)",
        last[0],
        run_id,
    )
    found = wheres(await audited(store), run_id)
    assert found[0] == ("frame_changed", last[0] + last[1], last[0] + 2 * last[1] - 1)


@pytest.mark.parametrize("with_row", [False, True])
async def test_a_truncated_run_in_the_middle_of_a_thread(store, ids, with_row):
    run_id = ids["t"][1]
    frames = store.frames(run_id)
    store.drop_frames(run_id, frames[-1][0])
    last_seq = frames[-1][0] - 1
    if with_row:  # nothing of the run itself gives it away any more but its status
        store.set_run(run_id, last_seq=last_seq)
    report = await audited(store, thread="t")
    found = wheres(report, run_id)
    assert ("anchor_wrong", last_seq, last_seq) in found
    wanted = "run_differs" if with_row else "journal_truncated"
    assert wanted in codes(report)
    [pinned] = [f for f in report.findings if f.code == "anchor_wrong"]
    assert f"ended at seq {frames[-1][0] + frames[-1][1] - 1}" in pinned.what
    assert pinned.trusted_seq == last_seq


@pytest.mark.parametrize(
    ("column", "value"),
    [("token", 7), ("at_us", 5), ("count", 9), ("hash", bytes(32)), ("prev_hash", bytes(32))],
)
async def test_an_edited_column_of_a_frame(store, ids, column, value):
    run_id = ids["t"][0]
    seq = frame_at(store, run_id, 1)[0]
    store.set_frame(run_id, seq, **{column: value})
    report = await audited(store, thread="t")
    assert wheres(report, run_id)[0][1] == seq
    assert codes(report)[0] in {"chain_broken", "frame_changed", "frame_count"}


async def test_an_edited_count_says_nothing_of_the_frames_after_it(store, ids):
    run_id = ids["t"][0]
    seq, count, *_rest = frame_at(store, run_id, 1)
    store.set_frame(run_id, seq, count=count + 7)
    report = await audited(store, thread="t")
    assert [(f.code, f.first_seq) for f in report.findings] == [("frame_count", seq)]


@pytest.mark.parametrize("shift_us", [-1, 1, 10**9])
async def test_an_edited_time_of_a_frame(store, ids, shift_us):
    run_id = ids["t"][0]
    for seq, _count, _token, at_us, *_rest in store.frames(run_id):
        store.set_frame(run_id, seq, at_us=at_us + shift_us)
        assert codes(await audited(store, thread="t")) == ["frame_changed"]
        store.set_frame(run_id, seq, at_us=at_us)
    assert codes(await audited(store, thread="t")) == []


async def test_an_edited_seq_of_a_frame_says_so(store, ids):
    run_id = ids["t"][0]
    last = store.frames(run_id)[-1]
    store.set_frame(run_id, last[0], first_seq=last[0] + 100)
    report = await audited(store, thread="t")
    assert codes(report)[:2] == ["anchor_wrong", "frame_changed"]
    assert any("its first seq was changed" in f.what for f in report.findings)


@pytest.mark.parametrize("value", ["text", None, -1, b"blob"])
async def test_columns_of_wrong_types(store, ids, value):
    run_id = ids["t"][0]
    last = store.frames(run_id)[-1]
    column = "body" if value == "text" else "count"
    if value is None:
        store.set_frame(run_id, last[0], at_us=-5)
        assert codes(await audited(store, thread="t")) == ["frame_changed"]
        return
    store.set_frame(run_id, last[0], **{column: value})
    assert "frame_unreadable" in codes(await audited(store, thread="t"))


async def test_tokens_that_go_backwards(store, ids):
    """Even with all hashes of the run made anew."""
    run_id = ids["v"][0]
    prev = bytes(32)
    frames = store.frames(run_id)
    for index, (seq, _count, was, at_us, body, *_rest) in enumerate(frames):
        token = 0 if index == len(frames) - 1 else was
        made = chain_hash(prev, run_id, seq, token, split_frame(body), at_us=at_us)
        store.set_frame(run_id, seq, token=token, prev_hash=prev, hash=made)
        prev = made
    report = await audited(store, thread="v")
    assert codes(report) == ["token_backwards"]


async def test_a_journal_made_anew_does_not_fit_its_anchor(store, ids):
    run_id = ids["t"][2]
    prev = bytes(32)
    for seq, _count, token, at_us, body, *_rest in store.frames(run_id):
        records = split_frame(body)
        made = chain_hash(prev, run_id, seq, token, records, at_us=at_us + 1)
        store.set_frame(run_id, seq, at_us=at_us + 1, prev_hash=prev, hash=made)
        prev = made
    assert codes(await audited(store, thread="t")) == ["anchor_wrong"]
    assert codes(await audited(store, run_id=ids["t"][3])) == ["anchor_wrong"]


@pytest.mark.parametrize("number", [0, 1, 3])
async def test_a_missing_run(store, ids, number):
    run_id = ids["t"][number]
    store.drop_frames(run_id, 0)
    for table in ("effects", "asks"):
        store.drop_rows(table, run_id)
    store.run("DELETE FROM perdure_runs WHERE run_id = ?", run_id)
    report = await audited(store)
    assert "run_missing" in codes(report)
    assert f"run {number + 1} is missing" in report.findings[0].what or number == 0
    assert any(f.thread == "t" for f in report.findings)


async def test_a_missing_run_whose_place_was_closed(store, ids):
    """The runs after it were given its ordinals; their leases still say which they were."""
    gone = ids["t"][1]
    store.drop_frames(gone, 0)
    for table in ("effects", "asks"):
        store.drop_rows(table, gone)
    store.run("DELETE FROM perdure_runs WHERE run_id = ?", gone)
    for number, run_id in enumerate(ids["t"][2:], 2):
        store.set_run(run_id, ordinal=number)
    store.run("UPDATE perdure_threads SET last_ordinal = 3 WHERE thread = 't'")
    report = await audited(store, thread="t")
    assert codes(report) == ["anchor_wrong", "run_differs"]
    assert wheres(report, ids["t"][2])


@pytest.mark.parametrize(
    ("columns", "name"),
    [
        ({"status": "succeeded"}, "status"),
        ({"checkpoint": 3}, "checkpoint"),
        ({"graph": "other"}, "graph"),
        ({"version": 9}, "version"),
        ({"created_at_us": 9}, "created_at_us"),
        ({"ended_at_us": 9}, "ended_at_us"),
        ({"start_key": "other"}, "start_key"),
        ({"parent": "r_other"}, "parent"),
        ({"token": 0}, "token"),
        ({"last_seq": 99}, "journal_truncated"),
        ({"last_seq": 3}, "last_seq"),
    ],
)
async def test_an_edited_row_of_a_run(store, ids, columns, name):
    run_id = ids["t"][2]
    store.set_run(run_id, **columns)
    report = await audited(store)
    assert codes(report) in (["run_differs"], ["journal_truncated"])
    assert name in report.findings[0].what or name == report.findings[0].code


@pytest.mark.parametrize(
    ("sql", "code"),
    [
        ("UPDATE perdure_effects SET state = 'failed' WHERE name = 'charge'", "effect_differs"),
        ("UPDATE perdure_effects SET result_wire = x'c0' WHERE name = 'charge'", "effect_differs"),
        ("UPDATE perdure_effects SET request_wire = x'c0' WHERE name = 'ship'", "effect_differs"),
        ("UPDATE perdure_effects SET attempt = 2 WHERE name = 'charge'", "effect_differs"),
        ("UPDATE perdure_effects SET key = 'k' WHERE name = 'charge'", "effect_differs"),
        ("UPDATE perdure_effects SET failure = NULL WHERE name = 'ship'", "effect_differs"),
        ("UPDATE perdure_effects SET kind = 'once' WHERE name = 'charge'", "effect_differs"),
        ("UPDATE perdure_effects SET name = 'other' WHERE name = 'charge'", "effect_differs"),
        ("UPDATE perdure_effects SET node = '9:x' WHERE name = 'charge'", "effect_differs"),
        ("UPDATE perdure_effects SET args_digest = 'x' WHERE name = 'ship'", "effect_differs"),
        (
            "UPDATE perdure_effects SET business_key = effect_id WHERE name = 'ship'",
            "effect_differs",
        ),
        ("DELETE FROM perdure_effects WHERE name = 'charge'", "effect_missing"),
        (
            "UPDATE perdure_effects SET effect_id = 'e_x' || run_no WHERE name = 'charge'",
            "effect_missing",
        ),
        ("UPDATE perdure_asks SET value_wire = x'c0'", "ask_differs"),
        ("UPDATE perdure_asks SET answered_by = 'eve'", "ask_differs"),
        ("UPDATE perdure_asks SET answered_at_us = 7", "ask_differs"),
        ("UPDATE perdure_asks SET state = 'expired', value_wire = NULL", "ask_differs"),
        ("UPDATE perdure_asks SET question = 'Other?'", "ask_differs"),
        ("UPDATE perdure_asks SET asked_at_us = 7", "ask_differs"),
        ("UPDATE perdure_asks SET expires_at_us = 7", "ask_differs"),
        ("UPDATE perdure_asks SET node = '9:x'", "ask_differs"),
        ("DELETE FROM perdure_asks", "ask_missing"),
        ("UPDATE perdure_asks SET ask_id = 'a_x'", "ask_missing"),
    ],
)
async def test_an_edited_row_of_the_ledger(store, ids, sql, code):
    of_run = " AND " if "WHERE" in sql else " WHERE "
    numbers = "(SELECT run_no FROM perdure_runs WHERE run_id IN (?, ?))"
    which = ids["t"][1], ids["t"][2]
    store.run(f"{sql}{of_run}run_no IN {numbers}", *which)
    report = await audited(store)
    assert code in codes(report)
    unknown = code.replace("missing", "unknown")
    assert set(codes(report)) <= {code, unknown}
    assert {f.run_id for f in report.findings} <= set(which)


async def test_a_decision_that_nobody_made(store, ids):
    """An uncertain effect that a row calls confirmed."""
    store.run("UPDATE perdure_effects SET state = 'confirmed' WHERE state = 'uncertain'")
    report = await audited(store)
    assert [f.run_id for f in report.findings] == ids["u"]
    assert report.findings[0].code == "effect_differs"


async def test_an_effect_row_without_a_record(store, ids):
    store.run(
        "UPDATE perdure_effects SET run_no = (SELECT run_no FROM perdure_runs WHERE run_id = ?) "
        "WHERE run_no = (SELECT run_no FROM perdure_runs WHERE run_id = ?)",
        ids["v"][0],
        ids["t"][0],
    )
    report = await audited(store)
    assert codes(report) == ["effect_missing", "effect_unknown"]


async def test_a_base_that_is_none(store):
    store.run("UPDATE perdure_threads SET base_ordinal = 2, base_seq = 4 WHERE thread = 't'")
    assert codes(await audited(store)) == ["thread_differs"]


async def test_a_row_that_can_not_be_read_does_not_stop_it(store, ids):
    store.run("UPDATE perdure_effects SET state = 'odd' WHERE state = 'uncertain'")
    store.set_run(ids["t"][0], checkpoint=77)
    report = await audited(store)
    assert codes(report) == ["row_unreadable", "run_differs"]


RUN_COLUMNS = [name for name in RunRow.__struct_fields__ if name not in {"run_id", "thread"}]
"""Those that the other rows do not refer to."""


@pytest.mark.parametrize("value", ["text", 1.5])
@pytest.mark.parametrize("column", RUN_COLUMNS)
async def test_a_column_of_another_type_stops_nothing(store, ids, column, value):
    """In the newest row, where everything begins; the damage behind it is found all the same."""
    run_id, behind = ids["t"][3], ids["t"][0]
    store.set_run(run_id, **{column: value})
    seq = frame_at(store, behind, 1)[0]
    store.set_frame(behind, seq, at_us=1)
    report = await audited(store)
    assert "frame_changed" in {f.code for f in report.findings if f.run_id == behind}
    others = {f.run_id for f in report.findings} - {run_id, behind, ""}
    assert others == set() or column in {"ordinal", "tenant"}  # by which runs stand in a thread
    await audited(store, run_id=run_id)


@pytest.mark.parametrize("column", ["failure", "waits"])
async def test_the_journal_of_a_run_without_a_readable_row_is_verified(store, ids, column):
    for run_id in (ids["t"][2], ids["u"][0]):
        store.set_run(run_id, **{column: "no message pack"})
    sound = await audited(store)
    assert [(f.code, f.run_id, f.thread) for f in sound.findings] == [
        ("row_unreadable", ids["t"][2], "t"),
        ("row_unreadable", ids["u"][0], "u"),
    ]
    assert (sound.runs, sound.anchored) == (6, 3)
    seq = frame_at(store, ids["u"][0], 1)[0]
    store.set_frame(ids["u"][0], seq, at_us=1)
    assert wheres(await audited(store), ids["u"][0])[0][0] == "frame_changed"


@pytest.mark.parametrize("table", ["effects", "asks"])
async def test_columns_of_another_type_in_the_ledger(store, ids, table):
    for column in ("node", "name" if table == "effects" else "question"):
        store.run(f"UPDATE perdure_{table} SET {column} = x'00'")
    assert codes(await audited(store)) == ["row_unreadable"]


@pytest.mark.parametrize(("checkpoint", "says"), [(1, "came to"), (99, "committed none after")])
async def test_the_checkpoint_of_a_threads_row_is_compared(store, checkpoint, says):
    store.run("UPDATE perdure_threads SET checkpoint = ? WHERE thread = 't'", checkpoint)
    [found] = (await audited(store)).findings
    assert (found.code, found.thread) == ("thread_differs", "t")
    assert says in found.what


@pytest.mark.parametrize("column", ["checkpoint", "last_ordinal", "base_seq"])
async def test_a_threads_row_with_a_column_of_another_type(store, ids, column):
    store.run(f"UPDATE perdure_threads SET {column} = 'text' WHERE thread = 't'")
    report = await audited(store)
    assert codes(report) == ["row_unreadable"]
    assert report.runs == sum(map(len, ids.values()))


async def test_it_goes_on_after_the_first_finding(store, ids):
    for number in range(4):
        run_id = ids["t"][number]
        seq = frame_at(store, run_id, 1)[0]
        store.set_frame(run_id, seq, at_us=1)
    report = await audited(store)
    assert {f.run_id for f in report.findings if f.code == "frame_changed"} == set(ids["t"])


async def test_erased_records_are_reported_and_still_verify(store, ids):
    run_id = ids["t"][1]
    count = 0
    for seq, number, _token, _at_us, body, *_rest in store.frames(run_id)[1:-1]:
        store.set_frame(run_id, seq, body=erase_frame(body))
        count += number
    report = await audited(store)
    assert report.findings == []
    assert report.erased == count
    seq, number, _token, _at_us, body, *_rest = store.frames(run_id)[2]
    store.set_frame(run_id, seq, body=body[:-1] + bytes([body[-1] ^ 1]))
    assert "frame_changed" in codes(await audited(store))


async def test_runs_begun_before_there_were_anchors_are_counted(store, ids):
    """As an older version wrote them: without anchor, and without time in the hash."""
    for run_id in ids["t"]:
        prev = bytes(32)
        for seq, _count, token, _at_us, body, *_rest in store.frames(run_id):
            records = []
            for encoded in split_frame(body):
                fields = msgspec.msgpack.decode(encoded)
                is_lease = fields[0] == rec.LeaseTaken.__struct_config__.tag
                records.append(msgspec.msgpack.encode(fields[:5]) if is_lease else encoded)
            made = chain_hash(prev, run_id, seq, token, records)
            store.set_frame(run_id, seq, body=encode_frame(records), prev_hash=prev, hash=made)
            prev = made
    report = await audited(store, thread="t")
    assert report.findings == []
    assert (report.anchored, report.unanchored) == (0, 3)
    assert report.untimed == report.frames


async def test_what_is_written_meanwhile_is_no_damage(tmp_path):
    """Audits of a store that a worker writes to, again and again."""
    url = f"sqlite:///{tmp_path}/busy.db"
    async with Runtime.open(url, graphs=[graph]) as runtime:
        runs = [
            await runtime.start(graph, {"order_id": f"o{n}"}, thread=f"t{n % 3}") for n in range(60)
        ]
        reports = []
        while not all([(await run.status()).is_final for run in runs]):
            reports.append(await verify(runtime))
            await asyncio.sleep(0)
        reports.append(await verify(runtime))
    assert [f for report in reports for f in report.findings] == []
    assert len(reports) > 1
    assert reports[-1].runs == 60
    assert reports[-1].anchored == 57


async def test_progress_is_told(store):
    seen = []
    async with Runtime.open(f"sqlite:///{store.path}", worker=False) as runtime:
        await verify(runtime, on_progress=lambda report: seen.append(report.runs))
    assert seen == [1, 2, 3, 4, 5, 6]


def test_every_code_says_something():
    assert all(code.isidentifier() and said for code, said in FINDING_CODES.items())
