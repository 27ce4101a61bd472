"""The transactions of `transaction` effects: a connection for each, open while the body runs."""

import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import psycopg
from psycopg.errors import (
    DeadlockDetected,
    IdleInTransactionSessionTimeout,
    SerializationFailure,
)
from psycopg.pq import TransactionStatus

from perdure.errors import (
    CommitUncertain,
    PerdureError,
    StoreCorrupt,
    StoreError,
    StoreFull,
    StoreLocked,
    StoreUnavailable,
    UsageError,
)
from perdure.ids import RunId
from perdure.model import Append, Appended, AppendOutcome, Fenced, RunStatus
from perdure.store.api import Transaction
from perdure.store.postgres import _queries as queries
from perdure.store.postgres._errors import GUARD_STATE, guarded, map_error, told
from perdure.store.postgres._lanes import Connection, connect, is_lost
from perdure.store.postgres._url import PostgresOptions
from perdure.store.postgres._wire import AppendWire
from perdure.store.postgres.limits import TRANSACTION_IDLE_S

_LITERAL = re.compile(r"'(?:[^']|'')*'")
_CONTROL = re.compile(
    r"(?:begin|start|commit|end|abort|rollback|savepoint|release|prepare\s+transaction|"
    r"set\s+(?:session\s+|local\s+)?"
    r"(?:transaction|session\s+characteristics|session\s+authorization|perdure\.)|"
    r"reset|discard)\b",
    re.IGNORECASE,
)


_RACES = (DeadlockDetected, SerializationFailure)
"""What the server rolled back for another transaction: done again, it succeeds."""


def _bare(sql: str) -> str:
    """Return a statement without what may stand before its first word; comments nest."""
    at = 0
    while at < len(sql):
        if sql[at].isspace() or sql[at] in ";\ufeff":
            at += 1
        elif sql.startswith("--", at):
            at = (sql.find("\n", at) + 1) or len(sql)
        elif sql.startswith("/*", at):
            depth, at = 1, at + 2
            while depth and at < len(sql):
                step = {"/*": 1, "*/": -1}.get(sql[at : at + 2], 0)
                depth, at = depth + step, at + (2 if step else 1)
        else:
            break
    return sql[at:]


# A role that is called like the schema would find Perdure's tables by their plain names, and make
# its own there.
_OWN_SCHEMA_OUT = """
SELECT pg_catalog.set_config('search_path', coalesce((
    SELECT pg_catalog.string_agg(pg_catalog.quote_ident(s), ', ')
    FROM pg_catalog.unnest(pg_catalog.current_schemas(false)) AS s WHERE s <> %s), ''), true)
"""
# What a body may have set, for its own statements, does not hold for Perdure's.
_OUR_TURN = """
SELECT pg_catalog.set_config('perdure.guard', 'off', true),
    pg_catalog.set_config('role', 'none', true),
    pg_catalog.set_config('statement_timeout', '0', true),
    pg_catalog.set_config('lock_timeout', '0', true),
    pg_catalog.set_config('search_path', '', true),
    pg_catalog.set_config('synchronous_commit', 'on', true)
"""


class OpenTransaction:
    """What a body writes through; statements take `%s` for each parameter."""

    def __init__(self, connection: Connection, options: PostgresOptions) -> None:
        """Write on a connection with an open transaction."""
        self._connection = connection
        self._options = options
        self._own = re.compile(
            rf'\b"?{options.schema}"?\s*\.|\bschema\s+(?:if\s+exists\s+)?"?{options.schema}\b',
            re.IGNORECASE,
        )
        self.failure: BaseException | None = None
        self.is_over = False

    async def execute(self, sql: str, params: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Run one statement and return its rows; see `perdure.store.api.Transaction`."""
        if self.is_over:
            msg = f"the transaction on {self._options.place} is over; nothing was done"
            raise UsageError(msg)
        try:
            return await self._execute(sql, params)
        except BaseException as error:
            self.failure = error
            raise

    async def _execute(self, sql: str, params: Sequence[Any]) -> list[tuple[Any, ...]]:
        text = _LITERAL.sub("''", sql)  # what is only said about the schema does no harm
        if self._own.search(text) or "perdure.guard" in sql.lower() or _CONTROL.match(_bare(sql)):
            raise guarded(sql)
        try:
            async with self._connection.cursor() as cursor:
                # Prepared: the server takes one statement only, so that no COMMIT hides behind it.
                await cursor.execute(sql.encode(), params, prepare=True)
                found = [] if cursor.description is None else await cursor.fetchall()
        except psycopg.Error as error:
            if error.sqlstate == GUARD_STATE:
                raise guarded(sql) from error
            if isinstance(error, IdleInTransactionSessionTimeout):
                raise silent(self._options) from error
            if is_lost(self._connection, error) or isinstance(error, _RACES):
                raise map_error(error, self._options.place) from error  # no fault of the effect
            msg = (
                f"{self._options.place}: {sql!r} failed, and the whole transaction is rolled back "
                f"({told(error)})"
            )
            raise StoreError(msg, sql=sql, sqlstate=error.sqlstate) from error
        if self._connection.info.transaction_status != TransactionStatus.INTRANS:
            raise guarded(sql)  # invariant: no statement ends the transaction
        return found


def silent(options: PostgresOptions) -> UsageError:
    """Return the refusal of a body that ran no statement for too long."""
    msg = (
        f"a transaction on {options.place} was silent for more than {TRANSACTION_IDLE_S} s; it is "
        "rolled back. Do slow work before or after it"
    )
    return UsageError(msg)


async def transact(
    options: PostgresOptions,
    body: Callable[[Transaction], Awaitable[Append]],
    *,
    run_id: RunId,
    token: int,
    probe: Callable[[str], None],
) -> AppendOutcome:
    """Open a transaction, check the fence, run `body`, apply its append, commit.

    Raises:
        CommitUncertain: the connection broke at the commit, and the server can't be asked.
        StoreError: it was rolled back.
    """
    # crash-point: store.transact.before
    probe("store.transact.before")
    connection = await connect(options, plain=True, keeps_path=True)
    try:
        fenced = await _begin(connection, options, run_id, token)
        if fenced is not None:
            return fenced
        transaction = OpenTransaction(connection, options)
        try:
            item = await body(transaction)
        finally:
            transaction.is_over = True
        if item.run_id != run_id or item.token != token:
            msg = f"the transaction of run {run_id!r} returned an append of {item.run_id!r}"
            raise UsageError(msg, run_id=run_id)
        if transaction.failure is not None:
            raise transaction.failure  # a body that hides an error would commit half of its work
        outcome = await _commit(connection, options, item, probe)
    finally:
        await connection.close()  # rolls back what was not committed
    # crash-point: store.transact.after
    probe("store.transact.after")
    return outcome


async def _begin(
    connection: Connection, options: PostgresOptions, run_id: RunId, token: int
) -> Fenced | None:
    try:
        await connection.execute("BEGIN")
        await connection.execute(
            "SELECT pg_catalog.set_config('idle_in_transaction_session_timeout', %s, true)",
            (f"{TRANSACTION_IDLE_S}s",),
        )
        # Not locked: others post to the run and renew its lease meanwhile. What counts is the fence
        # of the append, in the same transaction: who lost the run by then is rolled back.
        fenced = await _fence(connection, options, run_id, token, queries.LOOK)
        await connection.execute(_OWN_SCHEMA_OUT, (options.schema,))
        if fenced is None:
            await connection.execute("SELECT pg_catalog.set_config('perdure.guard', 'on', true)")
    except psycopg.Error as error:
        raise map_error(error, options.place) from error
    return fenced


async def _fence(
    connection: Connection, options: PostgresOptions, run_id: RunId, token: int, sql: str
) -> Fenced | None:
    cursor = await connection.execute(queries.of(sql, options).encode(), (run_id,))
    rows = await cursor.fetchall()
    found, holder, last_seq, status = rows[0] if rows else (0, None, 0, "")
    if found == token and status == RunStatus.RUNNING.value:
        return None
    return Fenced(token=found, holder=holder, last_seq=last_seq)


async def _commit(
    connection: Connection, options: PostgresOptions, item: Append, probe: Callable[[str], None]
) -> AppendOutcome:
    try:
        await connection.execute(_OUR_TURN)
        async with connection.cursor(binary=True) as cursor:
            append = queries.of(queries.APPEND, options).encode()
            await cursor.execute(append, AppendWire([item]).params)
            refused = await cursor.fetchall()
        if refused:
            return queries.refusal(refused[0])
        # crash-point: store.transact.during
        probe("store.transact.during")
        await connection.execute("COMMIT")
    except IdleInTransactionSessionTimeout as error:
        raise silent(options) from error
    except psycopg.Error as error:
        if is_lost(connection, error) or (
            connection.pgconn.transaction_status == TransactionStatus.UNKNOWN
        ):
            return await _find_out(options, item, error)
        raise _not_committed(options, item, error) from error
    return Appended()


def _not_committed(options: PostgresOptions, item: Append, error: psycopg.Error) -> PerdureError:
    """Return what a failed commit is: a state of the server, or a fault of what the body did."""
    mapped = map_error(error, options.place)
    if isinstance(mapped, StoreFull | StoreLocked | StoreUnavailable | StoreCorrupt):
        return mapped
    msg = (
        f"run {item.run_id!r}: after the statements of its transaction Perdure could not write to "
        f"{options.place}; all of it is rolled back ({told(error)}). Leave role, settings and "
        "Perdure's schema as they are"
    )
    return UsageError(msg, run_id=item.run_id, sqlstate=error.sqlstate)


async def _find_out(options: PostgresOptions, item: Append, lost: psycopg.Error) -> AppendOutcome:
    """Ask what became of a commit whose answer was lost.

    The run's row was locked by its append until its end: whoever has the lock sees the truth.
    """
    try:
        connection = await connect(options)
    except StoreUnavailable as error:
        msg = (
            f"{options.place}: the connection broke at the commit of a transaction of run "
            f"{item.run_id!r} ({told(lost)}); it may or may not be written"
        )
        raise CommitUncertain(msg, run_id=item.run_id) from error
    try:
        async with connection.transaction():
            await _fence(connection, options, item.run_id, item.token, queries.LOCK)
            cursor = await connection.execute(
                queries.of(queries.HAS_FRAME, options).encode(),
                (item.tenant, item.run_id, item.first_seq, item.hash),
            )
            if await cursor.fetchall():
                return Appended()
    except psycopg.Error as error:
        raise map_error(error, options.place) from error
    finally:
        await connection.close()
    raise map_error(lost, options.place) from lost
