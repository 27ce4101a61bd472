"""What the SQLite store does with files that are not as they should be."""

import asyncio
import dataclasses
import hashlib
import shutil
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest

from perdure.clock import system_services
from perdure.errors import (
    NotFound,
    SettingInvalid,
    StoreCorrupt,
    StoreForeign,
    StoreFull,
    StoreLocked,
    StoreReadOnly,
    StoreSchemaNewer,
    StoreUnavailable,
    UsageError,
)
from perdure.ids import RunId
from perdure.model import RunStatus
from perdure.store.sqlite import SqliteStore, _os_thread, _runs
from perdure.store.sqlite._due import find_due
from perdure.store.sqlite._schema import _VERSION_1, APPLICATION_ID, SCHEMA_VERSION
from perdure.store.sqlite.limits import UNREADABLE_PAUSE_US
from perdure.testing import _store_kit as kit
from tests.beside import beside


@asynccontextmanager
async def opened(path: Path, query: str = "", **services) -> AsyncIterator[SqliteStore]:
    given = dataclasses.replace(system_services(), **services)
    store = SqliteStore(f"sqlite:///{path}{query}", given)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


async def refused(path: Path, error: type[Exception]) -> str:
    before = fingerprint(path.parent)
    with pytest.raises(error) as caught:
        async with opened(path):
            pass
    assert fingerprint(path.parent) == before
    assert str(path) in str(caught.value)
    return str(caught.value)


def fingerprint(folder: Path) -> dict[str, str]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def write(path: Path, content: bytes) -> None:
    path.write_bytes(content)


def damage(path: Path) -> None:
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(size // 4)
        file.write(b"\xff" * (size // 2))


async def read_all(store: SqliteStore, run_ids: list[RunId]) -> None:
    for run_id in run_ids:
        await store.read_frames(run_id)


def change_flag(flag: str, path: Path) -> bool:
    chattr = shutil.which("chattr")
    if chattr is None:
        return False
    return not subprocess.run(
        [chattr, flag, str(path)], capture_output=True, check=False
    ).returncode


def freeze(path: Path) -> bool:
    """Permissions do not stop root; the immutable flag does."""
    if change_flag("+i", path):
        return True
    path.chmod(0o400)
    return path.stat().st_uid != 0


def make_database(path: Path, *statements: str) -> None:
    db = beside(path)
    for statement in statements:
        db.execute(statement)
    db.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


async def test_file_says_whose_it_is_and_is_durable(path: Path):
    async with opened(path) as store:
        await kit.started(store, "a")
        modes = await store._writer.peek(
            lambda db: (db.pragma("journal_mode"), db.pragma("synchronous"))
        )
        assert modes == ("wal", 2)
    db = beside(path)
    assert db.pragma("application_id") == APPLICATION_ID
    assert db.pragma("user_version") == SCHEMA_VERSION
    names = [row[0] for row in db.execute("SELECT name FROM sqlite_master").fetchall()]
    assert all(name.startswith(("perdure_", "sqlite_")) for name in names)
    db.close()


@pytest.mark.parametrize("mode", ["delete", "wal"])
@pytest.mark.parametrize(
    "mark", ["PRAGMA application_id = 7", "PRAGMA user_version = 3", "SELECT 1"]
)
async def test_foreign_database_is_left_untouched(path: Path, mode: str, mark: str):
    make_database(path, f"PRAGMA journal_mode = {mode}", "CREATE TABLE t (a)", mark)
    await refused(path, StoreForeign)


async def test_foreign_database_in_use_is_not_checkpointed(path: Path):
    make_database(path, "PRAGMA journal_mode = wal", "CREATE TABLE t (a)")
    db = beside(path)
    db.execute("INSERT INTO t VALUES (1)")
    before = fingerprint(path.parent)[str(path)]
    with pytest.raises(StoreForeign):
        async with opened(path):
            pass
    assert fingerprint(path.parent)[str(path)] == before
    db.close()


@pytest.mark.parametrize("content", [b"hello", b"x" * 10_000])
async def test_other_file_is_left_untouched(path: Path, content: bytes):
    write(path, content)
    await refused(path, StoreForeign)


async def test_empty_file_becomes_a_store(path: Path):
    write(path, b"")
    async with opened(path) as store:
        await kit.started(store, "a")


async def test_newer_schema_is_left_untouched(path: Path):
    async with opened(path):
        pass
    make_database(path, f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    message = await refused(path, StoreSchemaNewer)
    assert str(SCHEMA_VERSION + 1) in message


async def test_missing_folder_is_unavailable(tmp_path: Path):
    await refused(tmp_path / "nowhere" / "store.db", StoreUnavailable)


async def test_damaged_pages_are_found(path: Path):
    async with opened(path) as store:
        await store.start([kit.new_run(f"{i:04}", first_body=b"x" * 500) for i in range(2000)])
        assert await store.check() == []
    damage(path)
    async with opened(path) as store:
        assert await store.check()
        with pytest.raises(StoreCorrupt):
            await read_all(store, [RunId(f"r_{i:04}") for i in range(2000)])


async def test_file_that_cannot_be_written(path: Path):
    async with opened(path):
        pass
    if not freeze(path):
        pytest.skip("gap: neither chattr nor permissions make a file read-only here")
    try:
        await refused(path, StoreReadOnly)
    finally:
        change_flag("-i", path)


async def test_full_store_refuses_and_goes_on(path: Path):
    async with opened(path, "?max_pages=60") as store:
        row = await kit.taken(store, "a")
        with pytest.raises(StoreFull) as caught:
            await store.append([kit.appended_to(row, body=b"x" * 500_000)])
        assert "df -h" in str(caught.value)
        assert await kit.the_run(store, row.run_id) == row
        row = await kit.written(store, row)
        assert await store.check() == []


async def test_locked_store_is_an_error_after_the_timeout(path: Path):
    async with opened(path, "?busy_timeout_s=0.05") as store:
        db = beside(path)
        db.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreLocked):
            await kit.started(store, "a")
        db.execute("ROLLBACK")
        db.close()
        await kit.started(store, "a")


async def test_calls_share_commits_and_fail_apart(path: Path):
    commits: list[str] = []
    async with opened(path, "?flush_delay_ms=5", probe=commits.append) as store:
        row = await kit.taken(store, "a")
        commits.clear()
        calls = [store.post(kit.signal_to(RunId(name))) for name in ("r_a", "r_none") * 20]
        results = await asyncio.gather(
            store.append([kit.appended_to(row)]), *calls, return_exceptions=True
        )
        kinds = [type(result) for result in results]
        assert kinds.count(NotFound) == 20
        assert len(await store.read_mail(row.run_id)) == 20
        assert (await kit.the_run(store, row.run_id)).last_seq == 2
        assert commits.count("store.post.after") < 10


async def test_failing_probe_fails_the_write_and_nothing_else(path: Path):
    broken = {"store.append.during"}

    def probe(name: str) -> None:
        if name in broken:
            raise RuntimeError(name)

    async with opened(path, probe=probe) as store:
        row = await kit.taken(store, "a")
        with pytest.raises(RuntimeError):
            await store.append([kit.appended_to(row)])
        assert await kit.the_run(store, row.run_id) == row
        broken.clear()
        await kit.written(store, row)


async def test_backlog_keeps_the_order_of_claims(path: Path):
    tenants = ["a", "b", "c"]
    async with opened(path) as store:
        await store.start(
            [
                kit.new_run(
                    f"{i:03}",
                    tenant=tenants[i * i % 7 % 3],
                    priority=i % 3,
                    created_at_us=kit.T0 + (i * 37) % 100,
                    graph="g" if i % 5 else "h",
                )
                for i in range(200)
            ]
        )
        graphs = _runs.graphs_json(kit.GRAPHS)
        for limit in (1, 5, 64, 500):
            both = [
                await store._read(
                    "due",
                    partial(find_due, graphs=graphs, now_us=kit.T0 + 60, limit=limit, window=w),
                )
                for w in (2, 4096)
            ]
            assert both[0] == both[1]
            assert len(both[0]) == min(limit, len(both[0])) > 0


async def test_claim_passes_over_a_run_whose_row_is_damaged(path: Path):
    async with opened(path) as store:
        await store.start([kit.new_run(name) for name in ("a", "b", "c")])
    make_database(path, "UPDATE perdure_runs SET failure = x'c1' WHERE run_id = 'r_b'")
    async with opened(path) as store:
        claimed = await kit.claimed(store)
        assert [row.run_id for row in claimed] == ["r_a", "r_c"]
        with pytest.raises(StoreCorrupt, match="run row of 'r_b' can't be read"):
            await kit.the_run(store, "r_b")
    make_database(path, "UPDATE perdure_runs SET failure = NULL WHERE run_id = 'r_b'")  # restored
    async with opened(path) as store:
        assert "r_b" not in [row.run_id for row in await kit.claimed(store)]
        kept = await kit.the_run(store, "r_b")
        assert (kept.token, kept.status, kept.holder) == (0, RunStatus.PENDING, None)
        later = await kit.claimed(store, now_us=kit.T0 + 100 + UNREADABLE_PAUSE_US)
        assert "r_b" in [row.run_id for row in later]


async def test_silent_transaction_is_rolled_back(path: Path, monkeypatch):
    monkeypatch.setattr("perdure.store.sqlite._session.TRANSACTION_IDLE_S", 0.05)
    async with opened(path) as store:
        row = await kit.taken(store, "a")

        async def body(transaction):
            await transaction.execute("CREATE TABLE orders (name)")
            await kit.started(store, "b")  # waits until the transaction has given up
            return kit.appended_to(row)

        with pytest.raises(UsageError):
            await store.transact(body, run_id=row.run_id, token=row.token)
        assert await kit.the_run(store, row.run_id) == row


async def test_closing_finishes_what_was_handed_in(path: Path):
    async with opened(path) as store:
        starts = [asyncio.ensure_future(kit.started(store, f"{i}")) for i in range(20)]
        await asyncio.sleep(0)
        await store.close()
        assert len(await asyncio.gather(*starts)) == 20
    async with opened(path) as store:
        assert len(await kit.claimed(store, limit=50)) == 20


@pytest.mark.parametrize(
    "url",
    ["sqlite://", "sqlite:///", "sqlite://host/x.db", "sqlite:///:memory:", "sqlite:///a.db?x=1",
     "sqlite:///a.db?busy_timeout_s=-1", "sqlite:///a.db?max_pages=many"],
)  # fmt: skip
def test_bad_url_is_refused(url: str):
    with pytest.raises(SettingInvalid):
        SqliteStore(url, system_services())


def test_every_crash_point_is_marked():
    source = Path(_os_thread.__file__).read_text(encoding="utf-8")
    for points in _os_thread.CRASH_POINTS.values():
        for point in points:
            assert f"# crash-point: {point}\n" in source


async def test_transaction_cancelled_before_it_opened_leaves_nothing_open(path: Path):
    async with opened(path, "?flush_delay_ms=100") as store:
        row = await kit.taken(store, "a")
        busy = asyncio.ensure_future(kit.started(store, "b"))
        await asyncio.sleep(0.02)

        async def body(_transaction):
            return kit.appended_to(row)

        waiting = asyncio.ensure_future(store.transact(body, run_id=row.run_id, token=row.token))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await busy
        await kit.started(store, "c")
        assert await kit.the_run(store, row.run_id) == row


async def test_own_commits_do_not_move_the_data_version_of_the_writer(path: Path):
    async with opened(path) as store, opened(path) as other:
        await store.wait_for_change(0.01)
        first = await store._peek_data_version()
        await kit.started(store, "a")
        assert await store._peek_data_version() == first
        await kit.started(other, "b")
        assert await store._peek_data_version() != first


async def test_relative_url_is_of_the_directory_it_was_opened_in(tmp_path: Path, monkeypatch):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(tmp_path)
    store = SqliteStore("sqlite:///near.db", system_services())
    await store.open()
    try:
        monkeypatch.chdir(elsewhere)
        row = await kit.taken(store, "a")
        assert await kit.the_run(store, row.run_id) == row
        await store.register_worker(kit.worker())
    finally:
        await store.close()
    assert (tmp_path / "near.db").exists()
    assert list(elsewhere.iterdir()) == []


async def test_file_of_schema_version_1_is_upgraded_with_its_data(path: Path):
    make_database(path, _VERSION_1, "PRAGMA user_version = 1", OF_VERSION_1)
    make_database(path, f"PRAGMA application_id = {APPLICATION_ID}")
    async with opened(path) as store:
        [mail] = await store.read_mail(RunId("r_a"))
        assert (mail.subject, mail.sender, mail.post_id) == ("topic", "ann", "")
        repeated = kit.signal_to(RunId("r_a"), post_id="p_1")
        for _ in range(2):
            await store.post(repeated)
        assert len(await store.read_mail(RunId("r_a"))) == 2
    db = beside(path)
    assert db.pragma("user_version") == SCHEMA_VERSION


OF_VERSION_1 = (
    "INSERT INTO perdure_runs (run_no, run_id, tenant, thread, ordinal, graph, version, status, "
    "token, priority, claims, last_seq, base_checkpoint, checkpoint, input_digest, created_at_us) "
    "VALUES (1, 'r_a', 'default', 'x', 1, 'g', 1, 'waiting', 1, 0, 0, 1, 0, 0, '', 0);"
    "INSERT INTO perdure_mail VALUES (1, 1, 'signal', 'topic', x'c0', 'ann', 7)"
)
