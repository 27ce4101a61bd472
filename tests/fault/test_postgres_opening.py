"""What can be wrong with a server when a store is opened, or later: a clear error, nothing lost."""

import asyncio
import contextlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from perdure import RunFailed, Runtime
from perdure.clock import system_services
from perdure.engine.patient_store import PatientStore
from perdure.errors import (
    PerdureError,
    StoreFull,
    StoreReadOnly,
    StoreSchemaNewer,
    StoreUnavailable,
)
from perdure.ids import WorkerId
from perdure.model import AskPut, EffectPut, MailPosted
from perdure.store.api import EffectQuery
from perdure.store.postgres import PostgresStore
from perdure.store.postgres._schema import MIGRATIONS
from perdure.testing import _store_kit as kit
from perdure.testing.postgres import PostgresServer
from tests.fault.conftest import run_program
from tests.fault.proxy import Proxy, Rule
from tests.fault.test_bad_input import GRAPHS, Work, graph, plain

pytestmark = [pytest.mark.fault, pytest.mark.timeout(120)]

SECRET = "hunter2-not-to-be-seen"  # noqa: S105  # of a role of the test


async def opened(url: str) -> PostgresStore:
    store = PostgresStore(url, system_services())
    await store.open()
    return store


# -- opening ---------------------------------------------------------------------------------------

OPEN = """
import asyncio, sys
from perdure.clock import system_services
from perdure.store.postgres import PostgresStore

async def main():
    store = PostgresStore(sys.argv[1], system_services())
    await store.open()
    print(await store.check())
    await store.close()

asyncio.run(main())
"""


def test_ten_processes_open_a_new_schema_at_once(postgres, schema):
    environment = {**os.environ, "PYTHONPATH": "src"}
    children = [
        subprocess.Popen(
            [sys.executable, "-c", OPEN, postgres.url(schema)],
            env=environment,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        for _ in range(10)
    ]
    outputs = [child.communicate(timeout=60)[0] for child in children]
    assert [child.returncode for child in children] == [0] * 10, outputs
    assert outputs == ["[]\n"] * 10
    assert postgres.query(f"SELECT count(*) FROM {schema}.schema_version") == [(len(MIGRATIONS),)]


def dump(postgres, schema):
    """Return everything that the catalogue and the tables say of a schema."""
    names = postgres.query(
        "SELECT relname, relkind::text, c.xmin::text FROM pg_class AS c JOIN pg_namespace AS n "
        "ON n.oid = relnamespace WHERE nspname = %s ORDER BY 1",
        schema,
    )
    tables = [name for name, kind, _xmin in names if kind == "r"]
    return names, [postgres.query(f"SELECT * FROM {schema}.{name}") for name in tables]


async def test_newer_schema_is_left_untouched(postgres, schema):
    await (await opened(postgres.url(schema))).close()
    postgres.query(f"INSERT INTO {schema}.schema_version VALUES (999)")
    before = dump(postgres, schema)
    with pytest.raises(StoreSchemaNewer, match="999"):
        await opened(postgres.url(schema))
    done = run_program("-m", "perdure", "ps", "--store", postgres.url(schema), timeout_s=30.0)
    assert done.returncode != 0
    assert "999" in done.stdout
    assert "Traceback" not in done.stdout
    assert dump(postgres, schema) == before


CUTS = ("pg_advisory_xact_lock", "CREATE SCHEMA", "CREATE TABLE", "LISTEN", "COMMIT", "clock_time")


@pytest.mark.parametrize("action", ["lose", "before", "half"])
@pytest.mark.parametrize("text", CUTS)
async def test_server_that_goes_away_while_opening(postgres, schema, text, action):
    async with Proxy(postgres.port) as proxy:
        url = postgres.url(
            schema, over_tcp=True, port=str(proxy.port), sslmode="disable", gssencmode="disable"
        )
        rule = Rule(text, action)
        proxy.rules.append(rule)
        store = PostgresStore(url, system_services())
        with pytest.raises(StoreUnavailable) as caught:
            await store.open()
        assert rule.times == 0
        assert str(proxy.port) in str(caught.value)
        await store.open()  # the same object, once the server is there again
        await kit.started(store, "a")
        await store.close()
    assert postgres.query(f"SELECT count(*) FROM {schema}.schema_version") == [(len(MIGRATIONS),)]


async def test_server_that_is_not_there(tmp_path):
    url = f"postgresql://me:{SECRET}@127.0.0.1:1/shop"
    with pytest.raises(StoreUnavailable) as caught:
        await opened(url)
    assert SECRET not in shown(caught.value)


# -- secrets ---------------------------------------------------------------------------------------


def shown(error: BaseException | None) -> str:
    """Return all that can be seen of an error and of what caused it."""
    texts = []
    while error is not None:
        texts += [str(error), repr(error), repr(getattr(error, "fields", ""))]
        error = error.__cause__ or error.__context__
    return "\n".join(texts)


@pytest.fixture
def guarded_server():
    """A server that asks for a password."""
    with PostgresServer() as server:
        server.query(f"CREATE ROLE me LOGIN PASSWORD '{SECRET}-right' SUPERUSER")
        conf = server.data / "pg_hba.conf"
        conf.write_text("host all me all scram-sha-256\nhost all all all trust\n", encoding="utf-8")
        server.query("SELECT pg_reload_conf()")
        yield server


async def test_wrong_password_is_said_and_not_shown(guarded_server, caplog, capfd, monkeypatch):
    caplog.set_level(0)
    server = guarded_server
    wrong = f"postgresql://me:{SECRET}@127.0.0.1:{server.port}/postgres"
    with pytest.raises(StoreUnavailable, match="password") as caught:
        await opened(wrong)
    seen = shown(caught.value)
    for arguments in (("ps",), ("show", "r_x"), ("doctor",)):
        done = run_program("-m", "perdure", *arguments, "--store", wrong, timeout_s=30.0)
        assert done.returncode != 0
        assert "Traceback" not in done.stdout
        seen += done.stdout
    # A password that changes while the store is open: every reconnection is refused.
    right = f"postgresql://me:{SECRET}-right@127.0.0.1:{server.port}/postgres"
    store = await opened(right)
    server.query(f"ALTER ROLE me PASSWORD '{SECRET}-other'")
    server.query("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'me'")
    await asyncio.sleep(0.3)
    with pytest.raises(StoreUnavailable) as caught:
        await store.read_limits()
    seen += shown(caught.value) + repr(store.__dict__)
    await store.close()
    out, err = capfd.readouterr()
    log = (server.folder / "server.log").read_text(encoding="utf-8", errors="replace")
    assert SECRET not in seen + caplog.text + out + err + log


# -- servers that can't be written -----------------------------------------------------------------


@pytest.fixture
def own_server():
    with PostgresServer() as server:
        yield server


async def test_server_that_is_read_only_for_a_while(own_server):
    url = own_server.url("agents")
    store = await opened(url)
    row = await kit.taken(store, "a")
    for sql in ("ALTER SYSTEM SET default_transaction_read_only = on", "SELECT pg_reload_conf()"):
        own_server.query(sql)
    await asyncio.sleep(0.2)
    with pytest.raises(StoreReadOnly) as caught:
        await store.append([kit.appended_to(row)])
    assert "nothing was written" in str(caught.value)
    with pytest.raises(StoreReadOnly):
        await kit.started(store, "b")
    with pytest.raises(StoreReadOnly):
        await opened(own_server.url("others"))
    reading = await opened(url)  # there is something to be read
    assert (await kit.the_run(reading, row.run_id)).last_seq == 1
    await reading.close()
    with psycopg.connect(own_server.dsn(), autocommit=True) as session:
        session.execute("SET default_transaction_read_only = off")
        session.execute("ALTER SYSTEM RESET default_transaction_read_only")
        session.execute("SELECT pg_reload_conf()")
    await asyncio.sleep(0.2)
    await kit.written(store, row)
    await store.close()


def mounted(folder: Path, megabytes: int) -> bool:
    """Mount a small disk; return whether that is possible here."""
    program = shutil.which("mount")
    if program is None or os.geteuid() != 0:
        return False
    size = f"size={megabytes}m"
    done = subprocess.run(
        [program, "-t", "tmpfs", "-o", size, "tmpfs", str(folder)], capture_output=True, check=False
    )
    return done.returncode == 0


@pytest.fixture
def small_disk(tmp_path):
    """A folder on a disk of 48 MB."""
    if not mounted(tmp_path, 48):
        pytest.skip("gap: no small disk can be mounted here")
    yield tmp_path
    subprocess.run([str(shutil.which("umount")), "-l", str(tmp_path)], check=False)


async def start_many(runtime: Runtime) -> None:
    for _ in range(50):
        await runtime.start(plain, Work(done=["x" * 300_000]))


async def test_full_disk_of_the_server(own_server, small_disk):
    """The tables are on a disk that gets full; the log of the server is on another."""
    server = own_server
    owner = server.data.stat()
    os.chown(small_disk, owner.st_uid, owner.st_gid)
    for folder in (small_disk, *small_disk.parents):
        if not folder.stat().st_mode & 0o001:
            folder.chmod(folder.stat().st_mode | 0o001)
    server.query(f"CREATE TABLESPACE small LOCATION '{small_disk}'")
    server.query("CREATE DATABASE small TABLESPACE small")
    url = f"postgresql://postgres@127.0.0.1:{server.port}/small"
    async with Runtime.open(url, graphs=GRAPHS) as runtime:
        run = await runtime.start(graph, {"size": 300_000}, thread="t")
        async with asyncio.timeout(20):
            while await run.status() != "waiting":  # noqa: ASYNC110  # the store tells
                await asyncio.sleep(0.02)
        filler = small_disk / "filler"
        free = shutil.disk_usage(small_disk).free
        filler.write_bytes(bytes(free - 8192))
        with pytest.raises(StoreFull) as caught:
            await start_many(runtime)
        assert "no room left" in str(caught.value)
        told = False
        with contextlib.suppress(StoreFull):
            await run.signal("go", "on")
            told = True
        await asyncio.sleep(1.0)  # it tries, and can't
        filler.unlink()
        if not told:  # nothing was written
            await run.signal("go", "on")
        async with asyncio.timeout(60):
            while not (await run.status()).is_final:
                if await run.status() == "needs_decision":
                    await runtime.retry(run.id, by="test")
                await asyncio.sleep(0.05)
        done = (await run.result(timeout=10)).done
        assert [len(each) for each in done] == [2, 300_000, 3]
        await runtime.events(run.id)
        with pytest.raises(RunFailed):
            await (await runtime.start(plain, {"size": 1})).result(timeout=20)


# -- statements that are cancelled -----------------------------------------------------------------


async def test_append_that_an_operator_cancels(postgres, schema):
    """`pg_cancel_backend` in the middle of a batch: none of it, then all of it."""
    services = system_services()
    store = PostgresStore(postgres.url(schema, application_name=schema), services)
    await store.open()
    patient = PatientStore(store, services)
    rows = [await kit.taken(store, name) for name in "abc"]
    other = await kit.taken(store, "other")
    items = [
        kit.appended_to(
            row,
            EffectPut(row=kit.effect_of(row, row.run_id)),
            AskPut(row=kit.ask_of(row, row.run_id)),
            MailPosted(mail=kit.signal_to(other.run_id)),
        )
        for row in rows
    ]
    cancelled = 0
    lock = f"SELECT FROM {schema}.runs WHERE run_id = %s FOR UPDATE"
    async with await psycopg.AsyncConnection.connect(postgres.dsn()) as session:
        await session.execute(lock.encode(), (rows[-1].run_id,))  # the last of the batch
        appending = asyncio.ensure_future(patient.append(items))
        for _time in range(3):
            sql = (
                "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE application_name = %s "
                "AND wait_event_type = 'Lock' AND query LIKE '%%append%%'"
            )
            async with asyncio.timeout(10):
                while not postgres.query(sql, schema):  # noqa: ASYNC110  # the server tells
                    await asyncio.sleep(0.02)
            cancelled += 1
            for row in rows[:-1]:
                assert len(await store.read_frames(row.run_id)) == 1
            assert await store.find_effects(EffectQuery()) == []
    assert [type(outcome).__name__ for outcome in await appending] == ["Appended"] * 3
    assert cancelled == 3
    for row in rows:
        assert len(await store.read_frames(row.run_id)) == 2
    assert len(await store.read_mail(other.run_id)) == 3
    assert len(await store.find_effects(EffectQuery())) == 3
    await store.close()


async def test_every_error_of_a_closed_server_is_ours(own_server):
    store = await opened(own_server.url("agents"))
    row = await kit.taken(store, "a")
    own_server.stop("immediate")
    calls = [
        lambda: store.append([kit.appended_to(row)]),
        lambda: kit.started(store, "b"),
        lambda: kit.claimed(store),
        lambda: store.renew(WorkerId("w_1"), [], now_us=1, lease_until_us=2),
        lambda: store.read_run(row.run_id),
        lambda: store.read_frames(row.run_id),
        store.find_workers,
        store.release_dead,
        store.read_limits,
        lambda: store.register_worker(kit.worker()),
        lambda: store.transact(lambda _t: None, run_id=row.run_id, token=1),
    ]
    for call in calls:
        with pytest.raises(PerdureError):
            await call()
    own_server.start()
    await kit.written(store, row)
    await store.close()
