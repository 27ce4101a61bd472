"""Rows that were moved, cut, flipped or written in plain behind the store are refused by name."""

import asyncio
import sqlite3

import pytest

from perdure import Runtime
from perdure.errors import PerdureError, SealBroken, StoreCorrupt
from perdure.ids import RunId, WorkerId
from tests.beside import beside
from tests.governance.canaries import graphs, release
from tests.sealing.conftest import local_keys

COLUMNS = {
    "perdure_frames": ("body",),
    "perdure_effects": ("request_wire", "result_wire", "failure", "business_key", "decided_by"),
    "perdure_asks": ("question", "schema", "value_wire", "answered_by"),
    "perdure_mail": ("body_wire", "sender"),
    "perdure_runs": ("start_key", "input_digest", "failure"),
    "perdure_pages": ("body", "hash"),
    "perdure_schedules": ("input_wire", "input_digest"),
    "perdure_tags": ("name",),
    "perdure_keys": ("wrapped", "key_id", "wrapped_by"),
}
"""Every column of a SQLite file that holds something sealed, or a name in place of one."""


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    """A store with something sealed in every such column."""
    path = tmp_path_factory.mktemp("original") / "store.db"

    async def fill():
        async with Runtime.open(f"sqlite:///{path}", graphs(), keys=local_keys(1)) as runtime:
            await release(runtime)

    asyncio.run(fill())
    return path.read_bytes()


@pytest.fixture
def path(original, tmp_path):
    found = tmp_path / "store.db"
    found.write_bytes(original)
    return found


def changed(path, sql, *params):
    db = sqlite3.connect(path)
    count = db.execute(sql, params).rowcount
    db.commit()
    db.close()
    return count


async def read_everything(path, keys=None):
    """Read each row of a store by every way that there is."""
    url = f"sqlite:///{path}"
    async with Runtime.open(url, graphs(), worker=False, keys=keys or local_keys(1)) as runtime:
        store = runtime.engine.store
        runs = await runtime.runs()
        assert len(runs) == 9
        for run in runs:
            await runtime.events(run.run_id)
            await store.read_mail(RunId(run.run_id))
            if run.checkpoint:
                await runtime.state(run.thread)
        await runtime.asks(open=False)
        await runtime.effects(None)
        await runtime.schedules()
        await runtime.tags("t-1")


async def test_an_untouched_store_is_read(path):
    await read_everything(path)


def cells(path, table, column):
    db = sqlite3.connect(path)
    found = db.execute(
        f"SELECT rowid, {column} FROM {table} WHERE {column} IS NOT NULL AND {column} != ''"
        if table not in {"perdure_schedules", "perdure_keys", "perdure_tags"}
        else f"SELECT tenant, {column} FROM {table}"
    ).fetchall()
    db.close()
    return found


@pytest.mark.parametrize(
    ("table", "column"), [(table, column) for table, found in COLUMNS.items() for column in found]
)
@pytest.mark.parametrize("harm", ["flipped", "cut", "plain"])
async def test_a_column_that_was_written_behind_the_store_is_refused(path, table, column, harm):
    found = cells(path, table, column)
    assert found, "the fixture has nothing there"
    value = found[len(found) // 2][1]
    is_text = isinstance(value, str)
    if harm == "flipped":
        at = len(value) // 2
        other = (
            value[:at] + ("A" if value[at] != "A" else "B") + value[at + 1 :]
            if is_text
            else value[:at] + bytes([value[at] ^ 4]) + value[at + 1 :]
        )
    elif harm == "cut":
        other = value[:-5]
    else:
        other = "in plain" if is_text else b"\x81\xa1x\x01"
    assert changed(path, f"UPDATE {table} SET {column} = ? WHERE {column} = ?", other, value)
    with pytest.raises(PerdureError) as caught:
        await read_everything(path)
    assert len(str(caught.value)) > 40
    assert "kQ7zW" not in str(caught.value)


@pytest.mark.parametrize(
    ("table", "column", "name"),
    [
        ("perdure_frames", "body", "journal frame of r_"),
        ("perdure_effects", "request_wire", "effect request of e_"),
        ("perdure_asks", "question", "question of a_"),
        ("perdure_pages", "body", "page of "),
        ("perdure_runs", "failure", "failure of r_|note of a wait of r_|run row"),
    ],
)
async def test_swapped_rows_are_refused_by_name(path, table, column, name):
    found = cells(path, table, column)
    if len(found) < 2:
        found.append((changed(path, f"SELECT 1 FROM {table}"), found[0][1]))
        others = cells(path, table, "run_id")
        target = next(row for row in others if row[0] != found[0][0])
        changed(path, f"UPDATE {table} SET {column} = ? WHERE rowid = ?", found[0][1], target[0])
    else:
        (one, first), (other, second) = found[0], found[-1]
        changed(path, f"UPDATE {table} SET {column} = ? WHERE rowid = ?", second, one)
        changed(path, f"UPDATE {table} SET {column} = ? WHERE rowid = ?", first, other)
    with pytest.raises(SealBroken, match=name):
        await read_everything(path)


async def test_swapped_columns_are_refused_by_name(path):
    sql = (
        "UPDATE perdure_effects SET request_wire = result_wire, result_wire = request_wire "
        "WHERE result_wire IS NOT NULL"
    )
    assert changed(path, sql)
    with pytest.raises(SealBroken, match="effect request of e_"):
        await read_everything(path)


async def test_a_run_that_was_moved_to_another_thread_is_refused(path):
    sql = "UPDATE perdure_runs SET thread = 't-9' WHERE thread = 't-2'"
    assert changed(path, sql)
    with pytest.raises(StoreCorrupt):
        await read_everything(path)


async def test_a_thread_whose_key_is_gone_is_refused_by_name(path):
    assert changed(path, "DELETE FROM perdure_keys WHERE scope = 'thread:t-2'")
    with pytest.raises(SealBroken, match="no data key for thread 't-2'"):
        await read_everything(path)


async def test_a_run_with_a_broken_row_holds_up_no_other(path, caplog):
    """It is claimed, found to be damaged, named in the log, and handed back; the others go on."""
    sql = (
        "UPDATE perdure_frames SET body = x'00' WHERE first_seq > 1 AND run_no = "
        "(SELECT run_no FROM perdure_runs WHERE thread = 't-2')"
    )
    assert changed(path, sql)
    assert changed(path, "UPDATE perdure_runs SET ready_at_us = 1 WHERE thread = 't-2'")
    async with Runtime.open(f"sqlite:///{path}", graphs(), keys=local_keys(1)) as runtime:
        run = await runtime.start("failing", {})
        with pytest.raises(PerdureError, match="failure"):
            await run.result(timeout=10)
        while "journal frame of r_" not in caplog.text:
            await runtime.engine.store.wait_for_change(0.1)
        [row] = await runtime.runs(thread="t-2")
    assert row.status != "failed"


async def test_broken_mail_and_schedules_hold_up_no_others(path, caplog):
    """Mail of other runs is read, and other schedules are found due."""
    url = f"sqlite:///{path}"
    async with Runtime.open(url, graphs(), worker=False, keys=local_keys(1)) as runtime:
        await runtime.schedule("other", "asking", {}, cron="0 4 * * *")
        runs = [await runtime.start("failing", {}) for _ in range(2)]
        store = runtime.engine.store
        worker = WorkerId("w_test")
        await store.claim(
            worker, [("failing", 1)], now_us=1 << 60, lease_until_us=1 << 61, limit=10
        )
        for run in runs:
            await run.signal("topic", "value")
        broken, whole = runs
        sql = (
            "UPDATE perdure_mail SET body_wire = x'c0' WHERE run_no = "
            "(SELECT run_no FROM perdure_runs WHERE run_id = ?)"
        )
        # Through the library that the store uses: another one would drop its locks on closing.
        db = beside(path)
        db.execute(sql, (broken.id,))
        db.execute("UPDATE perdure_schedules SET input_wire = x'80' WHERE name = 'of-person'")
        db.close()
        for _ in range(3):
            found = await store.read_held_mail(worker, seen={RunId(run.id): 0 for run in runs})
            assert [mail.run_id for mail in found] == [whole.id]
            due = await store.find_schedules(due_us=1 << 60)
            assert [row.name for row in due] == ["other"]
        with pytest.raises(SealBroken, match="message of r_"):
            await store.read_mail(RunId(broken.id))
        with pytest.raises(SealBroken, match="input of schedule of of-person"):
            await runtime.schedules()
    assert caplog.text.count("message of r_") == 1
    assert caplog.text.count("input of schedule of of-person") == 1


async def test_a_claim_with_a_broken_row_takes_the_others(path):
    assert changed(path, "UPDATE perdure_runs SET start_key = 'plain' WHERE start_key IS NOT NULL")
    sql = "UPDATE perdure_runs SET status = 'pending', ready_at_us = 1 WHERE graph = 'asking'"
    assert changed(path, sql) == 4
    url = f"sqlite:///{path}"
    async with Runtime.open(url, graphs(), worker=False, keys=local_keys(1)) as runtime:
        found = await runtime.engine.store.claim(
            WorkerId("w"), [("asking", 1)], now_us=1 << 60, lease_until_us=1 << 61, limit=10
        )
    assert sorted(row.failure.type if row.failure else "" for row in found) == [
        "",
        "",
        "",
        "SealBroken",
    ]
