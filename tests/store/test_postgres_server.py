"""What only PostgreSQL has: row-level security, news between sessions, lost sessions, its clock.

Size: one short test for each thing that was once wrong.
"""

import asyncio
import dataclasses
import os
import sys
from contextlib import asynccontextmanager

import msgspec
import psycopg
import pytest

from perdure.clock import system_services
from perdure.errors import (
    CommitUncertain,
    SettingInvalid,
    StoreError,
    StoreForeign,
    StoreReadOnly,
    StoreUnavailable,
    UsageError,
)
from perdure.ids import AskId, TenantId
from perdure.model import (
    Appended,
    AskPut,
    EffectPut,
    EffectState,
    Failure,
    MailKind,
    RunReleased,
    RunStatus,
    Wait,
    WaitKind,
)
from perdure.store.api import LIVENESS, AskQuery, RunQuery
from perdure.store.postgres import PostgresStore, _schema, parse_url
from perdure.store.postgres import limits as store_limits
from perdure.store.postgres._wire import text_in, text_out
from perdure.testing import _store_kit as kit

SOON_S = 5.0


@asynccontextmanager
async def opened(url: str, services=None):
    store = PostgresStore(url, services or system_services())
    await store.open()
    try:
        yield store
    finally:
        await store.close()


# -- text, urls ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text", ["", "plain", "a\0b", "\0\0", "\ue000", "\ue000\0\ue001\ue000\ue000"]
)
def test_any_text_comes_back(text):
    assert "\0" not in text_in(text)
    assert text_out(text_in(text)) == text


async def test_nul_in_questions_topics_and_names_of_people(postgres, schema):
    async with opened(postgres.url(schema)) as store:
        row = await kit.taken(store, "a")
        ask = kit.ask_of(row, "x", question="really\0?")
        await kit.written(store, row, AskPut(row=ask))
        await store.post(kit.signal_to(row.run_id, subject="to\0pic", sender="a\0n"))
        answered = await store.answer(AskId(ask.ask_id), value_wire=b"\0", by="b\0b", at_us=kit.T0)
        assert (answered.accepted, answered.row.answered_by) == (True, "b\0b")
        assert (await store.find_asks(AskQuery()))[0].question == "really\0?"
        signal, answer = await store.read_mail(row.run_id)
        assert (signal.subject, signal.sender, answer.sender) == ("to\0pic", "a\0n", "b\0b")


async def test_waits_and_failures_may_hold_any_text(postgres, schema):
    async with opened(postgres.url(schema)) as store:
        row = await kit.taken(store, "a")
        wait = Wait(kind=WaitKind.SIGNAL, subject="s\0", note="n\0")
        failure = Failure(type="X", message="m\0\ud800".encode("utf-8", "replace").decode())
        release = RunReleased(status=RunStatus.WAITING, waits=(wait,), failure=failure)
        row = await kit.written(store, row, release)
        assert (row.waits, row.failure) == ((wait,), failure)


def test_the_password_is_never_shown():
    options = parse_url("postgresql://me:s3cret@db.internal:5433/shop?schema=agents&sslmode=prefer")
    assert "s3cret" not in repr(options) + options.place
    assert options.place == "postgresql://db.internal:5433/shop?schema=agents"
    assert "s3cret" in options.conninfo
    store = PostgresStore("postgresql://me:s3cret@db.internal/shop", system_services())
    assert "s3cret" not in store.place


@pytest.mark.parametrize(
    "query", ["schema=Bad-Name", "schema=a.b", "flush_delay_ms=-1", "liveness=maybe", "nonsense=1"]
)
def test_wrong_settings_are_refused_without_the_password(query):
    with pytest.raises(SettingInvalid) as caught:
        parse_url(f"postgresql://me:s3cret@localhost/shop?{query}")
    assert "s3cret" not in str(caught.value) + repr(caught.value.fields)


async def test_a_server_that_is_not_there(tmp_path):
    with pytest.raises(StoreUnavailable, match="cannot be reached"):
        await PostgresStore(f"postgresql:///x?host={tmp_path}", system_services()).open()


# -- schema ----------------------------------------------------------------------------------------


async def test_many_openers_at_once_make_one_schema(postgres, schema):
    stores = [PostgresStore(postgres.url(schema), system_services()) for _ in range(10)]
    await asyncio.gather(*(store.open() for store in stores))
    row = await kit.started(stores[0], "a")
    assert await stores[9].read_run(row.run_id) == row
    await asyncio.gather(*(store.close() for store in stores))


async def test_a_schema_with_other_tables_is_left_alone(postgres, schema):
    postgres.query(f"CREATE SCHEMA {schema}")
    postgres.query(f"CREATE TABLE {schema}.theirs (a int)")
    with pytest.raises(StoreForeign, match="other tables"):
        await PostgresStore(postgres.url(schema), system_services()).open()
    found = postgres.query("SELECT tablename FROM pg_tables WHERE schemaname = %s", schema)
    assert found == [("theirs",)]


# -- row-level security ----------------------------------------------------------------------------


@pytest.fixture
def tenant_role(postgres, schema):
    """A role that may use the schema's tables, and see the rows of the tenant `mine`."""
    name = f"role_{schema}"
    yield name
    postgres.query(f"DROP OWNED BY {name}")
    postgres.query(f"DROP ROLE {name}")


async def test_a_role_sees_its_tenants_rows_only(postgres, schema, tenant_role):
    mine, theirs = TenantId("mine"), TenantId("theirs")
    async with opened(postgres.url(schema)) as store:
        for tenant in (mine, theirs):
            row = await kit.taken(store, tenant, tenant=tenant)
            row = await kit.written(store, row, AskPut(row=kit.ask_of(row, tenant, tenant=tenant)))
            await store.post(kit.signal_to(row.run_id))
        postgres.query(f"CREATE ROLE {tenant_role} LOGIN")
        postgres.query(f"GRANT USAGE ON SCHEMA {schema} TO {tenant_role}")
        postgres.query(f"GRANT ALL ON ALL TABLES IN SCHEMA {schema} TO {tenant_role}")
        postgres.query(f"GRANT ALL ON ALL SEQUENCES IN SCHEMA {schema} TO {tenant_role}")
        postgres.query(f"INSERT INTO {schema}.tenant_roles VALUES (%s, %s)", tenant_role, "mine")
        url = postgres.url(schema).replace("postgres@", f"{tenant_role}@")
        async with opened(url) as theirs_view:
            assert [row.tenant for row in await theirs_view.find_runs(RunQuery())] == [mine]
            assert [ask.tenant for ask in await theirs_view.find_asks(AskQuery())] == [mine]
            assert await theirs_view.read_frames("r_theirs") == []
            assert await theirs_view.read_mail("r_theirs") == []
            assert len(await theirs_view.read_frames("r_mine")) == 2
            # Its own tenant's runs may be started and signalled, nobody else's.
            assert (await kit.started(theirs_view, "new", tenant=mine)).tenant == mine
            with pytest.raises(StoreReadOnly):
                await kit.started(theirs_view, "stolen", tenant=theirs)
            claimed = await kit.claimed(theirs_view, now_us=kit.T0 + 5000)
            assert {row.tenant for row in claimed} == {mine}
        names = {row.run_id for row in await store.find_runs(RunQuery())}
        assert names == {"r_mine", "r_theirs", "r_new"}


# -- news, sessions, liveness ----------------------------------------------------------------------


async def test_others_hear_of_a_write_and_of_steps(postgres, schema):
    async with opened(postgres.url(schema)) as store, opened(postgres.url(schema)) as other:
        await other.wait_for_change(0.2)
        mark = other.change_mark()
        row = await kit.taken(store, "a")
        assert await other.wait_for_change(SOON_S, since=mark)
        mark = other.change_mark()
        await kit.written(store, row)
        assert await other.wait_for_change(SOON_S, since=mark)
        assert not await other.wait_for_change(0.3, since=other.change_mark())


def _kill_sessions(postgres, like: str) -> int:
    found = postgres.query(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE application_name = 'perdure' AND query LIKE %s AND pid <> pg_backend_pid()",
        like,
    )
    return len(found)


async def test_a_worker_that_lost_its_session_is_not_dead(postgres, schema):
    async with opened(postgres.url(schema)) as store, opened(postgres.url(schema)) as other:
        await store.register_worker(kit.worker())
        await kit.taken(store, "a", lease_until_us=kit.FAR)
        for _ in range(3):
            assert _kill_sessions(postgres, "%") > 0
            assert await other.release_dead() == []
            await asyncio.sleep(0.3)
        assert [row.worker_id for row in await other.find_workers()] == [kit.WORKER]
        assert await store.release_dead() == []


async def test_news_come_again_after_the_session_was_lost(postgres, schema):
    async with opened(postgres.url(schema)) as store, opened(postgres.url(schema)) as other:
        _kill_sessions(postgres, "%")
        await asyncio.sleep(0.5)
        await other.wait_for_change(0.3)
        mark = other.change_mark()
        row = (await store.start([kit.new_run("a")]))[0].row
        assert await other.wait_for_change(SOON_S, since=mark)
        assert await other.read_run(row.run_id) == row


async def test_without_liveness_the_lease_decides(postgres, schema):
    async with opened(postgres.url(schema, liveness="off")) as store:
        assert LIVENESS not in store.capabilities
        await store.register_worker(kit.worker())
        [row] = await store.find_workers()
        assert row.liveness == ""
        assert await store.release_dead() == []


async def test_a_death_is_proven_by_the_process_where_it_can_be_looked_at(postgres, schema):
    """No second look is needed, and no effect waits for the end of the lease."""
    child = await asyncio.create_subprocess_exec(sys.executable, "-c", "pass")
    await child.wait()
    async with opened(postgres.url(schema)) as store, opened(postgres.url(schema)) as other:
        await store.register_worker(msgspec.structs.replace(kit.worker(), pid=child.pid))
        row = await kit.taken(store, "a", lease_until_us=kit.FAR)
        await store.close()
        assert await other.release_dead() == [kit.WORKER]
        [again] = await kit.claimed(other, kit.OTHER, now_us=kit.FAR - 1, lease_until_us=kit.FAR)
        assert (again.run_id, again.doubted_until_us) == (row.run_id, 0)


async def test_a_death_that_is_only_believed_leaves_a_doubt(postgres, schema):
    async with opened(postgres.url(schema)) as store, opened(postgres.url(schema)) as other:
        await store.register_worker(msgspec.structs.replace(kit.worker(), pid=os.getpid()))
        await kit.taken(store, "a", lease_until_us=kit.FAR)
        await store.close()
        assert await other.release_dead() == [kit.WORKER]
        [again] = await kit.claimed(other, kit.OTHER, now_us=kit.FAR - 1, lease_until_us=kit.FAR)
        assert again.doubted_until_us == kit.FAR


# -- time ------------------------------------------------------------------------------------------


async def test_a_wrong_wall_clock_changes_nothing(postgres, schema):
    class Wrong:
        """A clock that is an hour ahead, and later jumps back a day."""

        def __init__(self, clock):
            self._clock = clock
            self.ahead_us = 3600 * 1_000_000

        def now_us(self):
            return self._clock.now_us() + self.ahead_us

        def __getattr__(self, name):
            return getattr(self._clock, name)

    services = system_services()
    wrong = Wrong(services.clock)
    async with opened(postgres.url(schema), dataclasses.replace(services, clock=wrong)) as store:
        assert abs(store.now_us() - services.clock.now_us()) < 1_000_000
        wrong.ahead_us = -86400 * 1_000_000
        await store.renew(kit.WORKER, [], now_us=store.now_us(), lease_until_us=store.now_us())
        assert abs(store.now_us() - services.clock.now_us()) < 1_000_000


# -- claims ----------------------------------------------------------------------------------------


async def test_a_backlog_is_claimed_like_a_short_line(postgres, schema, monkeypatch):
    async with opened(postgres.url(schema)) as store:
        tenants = [TenantId(f"t{n}") for n in range(5)]
        runs = [
            kit.new_run(
                f"{n:03}",
                tenant=tenants[n % 7 % 5],
                priority=n % 2,
                ready_at_us=kit.T0 + n % 3,
                created_at_us=kit.T0,
            )
            for n in range(120)
        ]
        await store.start(runs)
        orders = {}
        for window in (2048, 10):
            monkeypatch.setattr("perdure.store.postgres._store.CLAIM_WINDOW", window)
            sql = "SELECT run_id FROM @.due(%s::jsonb, %s::bigint, 40, %s::int, true, true, NULL)"
            found = await store._call("due", sql, ('[["g", 1]]', kit.T0 + 100, window))
            orders[window] = [row[0] for row in found]
        assert len(orders[10]) == 40
        assert orders[10] == orders[2048]


async def test_renewed_leases_are_looked_at_when_they_end(postgres, schema):
    """The indexed time of a running run is a lower bound; claims move it on."""
    async with opened(postgres.url(schema)) as store:
        row = await kit.taken(store, "a")
        until = {"now_us": kit.T0 + 500, "lease_until_us": kit.T0 + 9000}
        assert await store.renew(kit.WORKER, [(row.run_id, 1)], **until) == set()
        assert (await kit.the_run(store, row.run_id)).ready_at_us == kit.T0 + 9000
        assert await kit.claimed(store, kit.OTHER, now_us=kit.T0 + 8999) == []
        assert await store.next_ready_at(kit.GRAPHS) == kit.T0 + 9000
        [taken] = await kit.claimed(
            store, kit.OTHER, now_us=kit.T0 + 9000, lease_until_us=kit.T0 + 19_000
        )
        assert taken.token == 2


async def test_a_heartbeat_does_not_wait_for_a_transaction(postgres, schema):
    async with opened(postgres.url(schema)) as store:
        rows = [await kit.taken(store, name, lease_until_us=kit.FAR) for name in "ab"]
        entered, leave = asyncio.Event(), asyncio.Event()

        async def body(transaction):
            entered.set()
            await leave.wait()
            return kit.appended_to(rows[0])

        working = asyncio.create_task(store.transact(body, run_id=rows[0].run_id, token=1))
        await entered.wait()
        held = [(row.run_id, 1) for row in rows]
        until = {"now_us": kit.T0 + 500, "lease_until_us": kit.FAR + 1}
        lost = await asyncio.wait_for(store.renew(kit.WORKER, held, **until), SOON_S)
        assert lost == set()
        leave.set()
        await working
        assert (await kit.the_run(store, "r_b")).ready_at_us == kit.FAR + 1


async def test_a_silent_transaction_is_rolled_back(postgres, schema, monkeypatch):
    monkeypatch.setattr("perdure.store.postgres._transaction.TRANSACTION_IDLE_S", 1)
    assert store_limits.TRANSACTION_IDLE_S > 1
    async with opened(postgres.url(schema)) as store:
        row = await kit.taken(store, "a")

        async def body(transaction):
            await asyncio.sleep(1.5)
            return kit.appended_to(row)

        with pytest.raises(UsageError, match="silent"):
            await store.transact(body, run_id=row.run_id, token=1)
        assert await kit.the_run(store, row.run_id) == row
        await kit.written(store, row)


async def test_a_cancel_hurries_whoever_waits(postgres, schema):
    async with opened(postgres.url(schema)) as store:
        row = await kit.written(
            store, await kit.taken(store, "a"), kit.waiting(ready_at_us=kit.FAR)
        )
        posted = await store.post(kit.signal_to(row.run_id, kind=MailKind.CANCEL))
        assert posted.ready_at_us == kit.T0 + 20


# -- damage ----------------------------------------------------------------------------------------


async def test_a_damaged_row_does_not_hold_up_the_others(postgres, schema, caplog):
    async with opened(postgres.url(schema)) as store:
        await store.start([kit.new_run(name) for name in "abc"])
        postgres.query(f"UPDATE {schema}.runs SET failure = '\\xc1' WHERE run_id = 'r_b'")
        found = {row.run_id for row in await kit.claimed(store)}
        assert found == {"r_a", "r_c"}
        assert "passed over" in caplog.text


# -- transactions of users -------------------------------------------------------------------------


async def _transacts(store, row, *statements):
    async def body(transaction):
        for statement in statements:
            await transaction.execute(statement)
        return kit.appended_to(row)

    return await store.transact(body, run_id=row.run_id, token=row.token)


async def test_what_a_body_sets_holds_for_its_own_statements_only(postgres, schema):
    role = f"app_{schema}"
    postgres.query(f"CREATE ROLE {role}")
    postgres.query(f"CREATE TABLE public.mine_{schema} (a int)")
    postgres.query(f"GRANT ALL ON public.mine_{schema} TO {role}")
    try:
        async with opened(postgres.url(schema)) as store:
            for statement in (
                f"SET LOCAL ROLE {role}",
                "SET LOCAL statement_timeout = 100",
                "SET LOCAL search_path = nowhere",
                "SELECT set_config('lock_timeout', '1', true)",
            ):
                row = await kit.taken(store, f"a{statement[10:14]}")
                insert = f"INSERT INTO public.mine_{schema} VALUES (1)"
                assert await _transacts(store, row, statement, insert) == Appended()
        assert postgres.query(f"SELECT count(*) FROM public.mine_{schema}") == [(4,)]
    finally:
        postgres.query(f"DROP TABLE public.mine_{schema}")
        postgres.query(f"DROP ROLE {role}")


@pytest.mark.parametrize(
    "statement",
    [
        "DROP SCHEMA {} CASCADE",
        "drop schema if exists {}",
        "SET SESSION AUTHORIZATION x",
        "/* /* */ */ COMMIT",
        "-- a\n;; /**/ /*/* * */*/ rollback",
    ],
)
async def test_a_body_cannot_drop_the_schema(postgres, schema, statement):
    async with opened(postgres.url(schema)) as store:
        row = await kit.taken(store, "a")
        with pytest.raises(UsageError):
            await _transacts(store, row, statement.format(schema))
        await kit.written(store, row)


async def test_a_body_that_leaves_the_transaction_unusable_fails_its_effect(postgres, schema):
    async with opened(postgres.url(schema)) as store:
        row = await kit.taken(store, "a")
        with pytest.raises(UsageError, match="rolled back"):
            await _transacts(store, row, "SELECT set_config('transaction_read_only', 'on', true)")
        await kit.written(store, row)


async def test_a_role_called_like_the_schema_keeps_its_tables_apart(postgres, schema):
    postgres.query(f"CREATE ROLE {schema} SUPERUSER LOGIN")
    try:
        async with opened(postgres.url(schema).replace("postgres@", f"{schema}@")) as store:
            row = await kit.taken(store, "a")
            await _transacts(store, row, "CREATE TABLE made_here (a int)")
        where = "SELECT schemaname FROM pg_tables WHERE tablename = 'made_here'"
        assert postgres.query(where) == [("public",)]
    finally:
        postgres.query("DROP TABLE IF EXISTS public.made_here")
        postgres.query(f"DROP OWNED BY {schema} CASCADE")
        postgres.query(f"DROP ROLE {schema}")


async def test_a_role_that_may_not_make_the_schema_is_told_how(postgres, schema):
    role = f"poor_{schema}"
    postgres.query(f"CREATE ROLE {role} LOGIN")
    try:
        url = postgres.url(schema).replace("postgres@", f"{role}@")
        with pytest.raises(StoreReadOnly, match=f'GRANT CREATE ON DATABASE "postgres" TO "{role}"'):
            await PostgresStore(url, system_services()).open()
        with pytest.raises(SettingInvalid, match="flush_delay_ms=2 needs a superuser"):
            await PostgresStore(f"{url}&flush_delay_ms=2", system_services()).open()
    finally:
        postgres.query(f"DROP ROLE {role}")


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("postgresql:///x?scheme=foo", "unknown option 'scheme'"),
        ("postgresql://h:44x/x", "percent-encode|port"),
        ("postgresql:///x?port=44x", "a port is a number"),
        ("postgresql://agent:pa/Secr3tTail@db/x", "Percent-encode"),
        ("postgresql://agent:p@Secr3t@db/x", "Percent-encode"),
        ("postgresql:///x?schema=pg_foo", "not pg_"),
    ],
)
def test_mistakes_in_a_url_are_named(url, told):
    with pytest.raises(SettingInvalid, match=told) as caught:
        parse_url(url)
    assert "Secr3t" not in str(caught.value) + repr(caught.value.fields)


async def test_a_database_that_is_not_there(postgres, schema):
    with pytest.raises(StoreUnavailable, match="createdb NAME"):
        await PostgresStore(
            postgres.url(schema).replace("/postgres?", "/nowhere?"), system_services()
        ).open()


async def test_what_is_said_about_the_schema_is_not_refused(postgres, schema):
    async with opened(postgres.url(schema)) as store:
        row = await kit.taken(store, "a")
        said = f"SELECT 'mail to support@{schema}.example', 'it''s {schema}.runs'"
        assert await _transacts(store, row, said) == Appended()


async def test_nobody_waits_for_a_transaction_of_another_run(postgres, schema):
    """Posts, ends of children and heartbeats go on while the body of a transaction runs."""
    async with opened(postgres.url(schema)) as store:
        parent = await kit.taken(store, "parent")
        child = await kit.taken(store, "child", parent=parent.run_id)
        entered, leave = asyncio.Event(), asyncio.Event()

        async def body(transaction):
            await transaction.execute("SELECT 1")
            entered.set()
            await leave.wait()
            return kit.appended_to(parent)

        working = asyncio.create_task(store.transact(body, run_id=parent.run_id, token=1))
        await entered.wait()
        async with asyncio.timeout(SOON_S):
            await asyncio.gather(*(store.post(kit.signal_to(parent.run_id)) for _ in range(8)))
            news = kit.signal_to(parent.run_id, kind=MailKind.CHILD)
            await kit.written(store, child, kit.ended(mail_to_parent=news))
            assert len(await store.read_mail(parent.run_id)) == 9
        leave.set()
        assert await working == Appended()


async def test_a_tenant_role_can_not_reach_further(postgres, schema, tenant_role):
    mine, theirs = TenantId("mine"), TenantId("theirs")
    async with opened(postgres.url(schema)) as store:
        victim = await kit.taken(store, "victim", tenant=theirs)
        postgres.query(f"CREATE ROLE {tenant_role} LOGIN")
        postgres.query(f"GRANT USAGE ON SCHEMA {schema} TO {tenant_role}")
        postgres.query(f"GRANT ALL ON ALL TABLES IN SCHEMA {schema} TO {tenant_role}")
        postgres.query(f"GRANT ALL ON ALL SEQUENCES IN SCHEMA {schema} TO {tenant_role}")
        postgres.query(f"INSERT INTO {schema}.tenant_roles VALUES (%s, %s)", tenant_role, "mine")
        await store.register_worker(kit.worker())
        url = postgres.url(schema).replace("postgres@", f"{tenant_role}@")
        async with await psycopg.AsyncConnection.connect(
            parse_url(url).conninfo, autocommit=True
        ) as role:
            for statement in (
                f"INSERT INTO {schema}.tenant_roles VALUES ('{tenant_role}', 'theirs')",
                f"INSERT INTO {schema}.limits VALUES ('', '', 1, NULL, 0, 0)",
            ):
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    await role.execute(statement)
            assert (await role.execute(f"DELETE FROM {schema}.workers")).rowcount == 0
        async with opened(url) as view:
            with pytest.raises(StoreError):  # the id of another tenant's run is taken
                await view.start([kit.new_run("victim", tenant=mine)])
            own = await kit.taken(view, "own", tenant=mine, parent=victim.run_id)
        news = kit.signal_to(victim.run_id, kind=MailKind.CHILD)
        await kit.written(store, own, kit.ended(mail_to_parent=news))
        assert await store.read_mail(victim.run_id) == []


async def test_functions_of_others_are_not_called(postgres, schema):
    raises = "LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'hijacked'; END $$"
    made = (
        f"CREATE FUNCTION public.hashtextextended(a text, b int) RETURNS bigint {raises}",
        f"CREATE FUNCTION public.nextval(a text) RETURNS bigint {raises}",
    )
    for statement in made:
        postgres.query(statement)
    try:
        async with opened(postgres.url(schema)) as store:
            await store.register_worker(kit.worker())
            row = await kit.taken(store, "a", start_key="k", input_digest="d")
            await store.post(kit.signal_to(row.run_id))
            assert await _transacts(store, row, "SELECT 1") == Appended()
            assert await store.release_dead() == []
    finally:
        postgres.query("DROP FUNCTION public.hashtextextended(text, int), public.nextval(text)")


# -- from one schema version to the next -----------------------------------------------------------


async def append_as_version_1(postgres, schema, row, *, state, result=None):
    """Append one record and an effect as the workers of the first schema version do."""
    blob = b"1" * 32 + b"2" * 32 + b"body" + b"request" + (result or b"")
    items = [[row.tenant, row.run_id, row.token, row.last_seq + 1, 1, kit.T0, None, [0, 68]]]
    effect = {
        "type": "effect", "effect_id": f"e_{row.run_id}", "node": "1:node", "name": "pay",
        "kind": "keyed", "state": state, "key": "k", "business_key": None, "args_digest": "d",
        "request_wire": [68, 7], "result_wire": [75, len(result)] if result else None, "attempt": 1,
        "failure": None, "intended_at_us": kit.T0, "changed_at_us": kit.T0, "decision": None,
        "decided_by": None, "reopens": False,
    }  # fmt: skip  # what is stored by name
    refused = postgres.query(
        f'SELECT * FROM "{schema}".append(%s::jsonb, %s::bytea, NULL, NULL, %s::jsonb)',
        msgspec.json.encode(items).decode(),
        blob,
        msgspec.json.encode([[0, effect]]).decode(),
    )
    assert refused == []


async def test_workers_of_the_version_before_go_on_after_a_migration(postgres, schema, monkeypatch):
    with monkeypatch.context() as before:
        before.setattr(_schema, "MIGRATIONS", _schema.MIGRATIONS[:1])
        before.setattr(_schema, "SCHEMA_VERSION", 1)
        async with opened(postgres.url(schema)) as store:
            row = await kit.taken(store, "a")
            await append_as_version_1(postgres, schema, row, state="intended")
    version = f'SELECT max(version) FROM "{schema}".schema_version'
    assert postgres.query(version) == [(1,)]
    async with opened(postgres.url(schema)) as store:
        assert postgres.query(version) == [(_schema.SCHEMA_VERSION,)]
        row = await store.read_run(row.run_id)
        await append_as_version_1(postgres, schema, row, state="confirmed", result=b"done")
        effect = await store.read_effect(f"e_{row.run_id}")
        assert (effect.state, effect.result_wire) == (EffectState.CONFIRMED, b"done")
        row = await store.read_run(row.run_id)
        other = kit.effect_of(row, "other")
        await kit.written(store, row, EffectPut(row=other), EffectPut(row=effect))
        assert await store.read_effect(other.effect_id) == other


async def test_of_several_changes_to_an_effect_the_last_counts(postgres, schema):
    async with opened(postgres.url(schema)) as store:
        row = await kit.taken(store, "a")
        effect = kit.effect_of(row, "one", state=EffectState.UNCERTAIN, decision="happened")
        row = await kit.written(store, row, EffectPut(row=effect))
        assert (await store.read_effect(effect.effect_id)).decision == "happened"
        resent = msgspec.structs.replace(effect, state=EffectState.INTENDED, attempt=2)
        done = msgspec.structs.replace(effect, state=EffectState.CONFIRMED, attempt=2)
        await kit.written(store, row, EffectPut(row=resent), EffectPut(row=done))
        found = await store.read_effect(effect.effect_id)
        assert (found.state, found.attempt) == (EffectState.CONFIRMED, 2)
        assert found.decision is None  # it was resent in between


# -- everything is cancelled at once ---------------------------------------------------------------


def test_closing_ends_though_all_tasks_were_cancelled_at_once(postgres, schema):
    """`asyncio.run` does so where an exception ends it, and waits for all of them."""

    async def main():
        store = PostgresStore(postgres.url(schema), system_services())
        await store.open()
        try:
            row = await kit.taken(store, "a")
            asyncio.get_running_loop().call_soon(stop)
            await asyncio.Event().wait()
        finally:
            written.append((await store.read_run(row.run_id)).run_id == row.run_id)
            await kit.written(store, row, AskPut(row=kit.ask_of(row, "x")))
            await store.close()
            written.append("closed")

    def stop():
        raise SystemExit(3)

    written = []
    with pytest.raises(SystemExit):
        asyncio.run(main())
    assert written == [True, "closed"]


async def test_calls_under_way_are_told_when_their_lane_is_cancelled(postgres, schema):
    async with opened(postgres.url(schema)) as store:
        row = await kit.taken(store, "a")
        calls = [asyncio.ensure_future(store.read_run(row.run_id)) for _ in range(20)]
        write = asyncio.ensure_future(store.post(kit.signal_to(row.run_id)))
        await asyncio.sleep(0)
        for task in asyncio.all_tasks() - {asyncio.current_task(), write, *calls}:
            task.cancel()
        done = await asyncio.gather(*calls, write, return_exceptions=True)
        kinds = {type(each) for each in done if isinstance(each, Exception)}
        assert kinds <= {StoreUnavailable, CommitUncertain}
        assert (await store.read_run(row.run_id)).run_id == row.run_id
