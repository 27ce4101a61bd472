"""The driver's errors as Perdure's, at the edge of the store."""

import psycopg
from psycopg import errors as pg

from perdure.errors import (
    StoreCorrupt,
    StoreError,
    StoreForeign,
    StoreFull,
    StoreLocked,
    StoreReadOnly,
    StoreSealed,
    StoreUnavailable,
    UsageError,
)

GUARD_STATE = "PD001"
"""SQLSTATE of the guard around transaction effects (see `sql/0002_guards.sql`)."""

SEALED_STATE = "PD002"
"""SQLSTATE of the guard of a store that was encrypted in place (see `sql/sealed.sql`)."""

REPEATABLE = (pg.DeadlockDetected, pg.SerializationFailure, pg.UniqueViolation)
"""What the server rolled back for a race: called again, it goes another way."""

_MAPPING: tuple[tuple[tuple[type[psycopg.Error], ...], type[StoreError], str], ...] = (
    (
        (pg.DiskFull, pg.OutOfMemory, pg.ConfigurationLimitExceeded),
        StoreFull,
        "{place}: the server has no room left; nothing of this write was kept. Free space there",
    ),
    (
        (pg.ReadOnlySqlTransaction,),
        StoreReadOnly,
        (
            "{place} takes no writes: a replica, or default_transaction_read_only; nothing was "
            "written. Connect to the primary (target_session_attrs=read-write in the URL)"
        ),
    ),
    (
        (pg.InsufficientPrivilege,),
        StoreReadOnly,
        (
            "{place}: the role may not do this; nothing was written. Connect as the role that owns "
            "the schema; a tenant's role may need: GRANT ... ON ALL TABLES IN SCHEMA"
        ),
    ),
    (
        (pg.DataCorrupted, pg.IndexCorrupted),
        StoreCorrupt,
        "{place} is damaged; nothing was written. Restore the database from a backup",
    ),
    (
        (
            pg.LockNotAvailable,
            pg.QueryCanceled,
            pg.DeadlockDetected,
            pg.SerializationFailure,
        ),
        StoreLocked,
        "{place}: others were in the way of the statement; nothing was written. Try again",
    ),
    (
        (pg.InvalidPassword, pg.InvalidAuthorizationSpecification),
        StoreUnavailable,
        "{place} refuses this user or password; nothing was written. Check the store URL",
    ),
    (
        (pg.InvalidCatalogName,),
        StoreUnavailable,
        "{place}: there is no such database; create it first: createdb NAME",
    ),
    (
        (pg.UndefinedTable, pg.UndefinedFunction, pg.UndefinedColumn, pg.InvalidSchemaName),
        StoreForeign,
        (
            "{place}: the schema lacks a table or function of Perdure; nothing was written. "
            "Restore it from a backup, or name another with ?schema="
        ),
    ),
)


_OUTAGES = frozenset({"08", "53", "57", "58"})
"""Classes of SQLSTATE that pass; what else the driver calls operational is a fault of the data."""

_LOOK = "Look whether the server runs and is reached from here: pg_isready -h HOST -p PORT"
_CONNECTION_HINTS = (
    (
        "password",
        "Check user and password: in the URL (percent-encoded), in PGPASSWORD, or in ~/.pgpass",
    ),
    ("no pg_hba.conf entry", "The server's pg_hba.conf does not let this user in from here"),
    ("role ", "Create the role (createuser NAME), or name another user in the URL"),
    ("database ", "Create the database (createdb NAME), or name another one in the URL"),
    ("translate host name", "Check the host's name in the URL"),
    ("too many clients", "Raise the server's max_connections, or run fewer workers (7 for each)"),
    ("remaining connection slots", "Raise the server's max_connections, or run fewer workers"),
    ("invalid port", "Check the port in the URL"),
    ("SSL", "Check sslmode and the certificates in the URL"),
)
"""What a connection's error text says, and what to do; the first that fits."""


def map_error(error: psycopg.Error, place: str) -> StoreError:
    """Return the Perdure error for an error that the server reported: nothing was written."""
    if error.sqlstate == SEALED_STATE:
        msg = f"{place} was encrypted meanwhile; nothing was written. Open it again, with its keys"
        return StoreSealed(msg, place=place)
    for classes, target, text in _MAPPING:
        if isinstance(error, classes):
            return target(f"{text.format(place=place)} ({told(error)})", place=place)
    if isinstance(error, psycopg.OperationalError) and (error.sqlstate or "08")[:2] in _OUTAGES:
        text = told(error)
        hint = next((hint for part, hint in _CONNECTION_HINTS if part in text), _LOOK)
        msg = f"{place} cannot be reached or refused the connection; nothing was written"
        return StoreUnavailable(f"{msg}. {hint} ({text})", place=place)
    msg = f"{place}: the statement failed; nothing was written ({told(error)})"
    return StoreError(msg, place=place, sqlstate=error.sqlstate)


def told(error: BaseException) -> str:
    """Return the server's first line: details and contexts may hold data of users."""
    primary = getattr(getattr(error, "diag", None), "message_primary", None)
    lines = str(primary or error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else ''}"


def guarded(sql: str) -> UsageError:
    """Return the refusal of a statement of a transaction effect."""
    msg = (
        f"{sql!r} touches Perdure's own tables or the transaction itself; it is rolled back. "
        "Use other tables, and leave BEGIN, COMMIT, SAVEPOINT and SET TRANSACTION to the store"
    )
    return UsageError(msg, sql=sql)
