"""Make and migrate the schema: versioned, in one transaction, under one lock.

Several openers may come at once: the first migrates, the others wait for its lock and find it done.
A schema of a newer version, and one that is not Perdure's, is left untouched.
"""

from importlib.resources import files
from typing import Any

import psycopg
from psycopg.errors import InsufficientPrivilege

from perdure.errors import StoreForeign, StoreReadOnly, StoreSchemaNewer
from perdure.store.postgres._url import PostgresOptions

MIGRATIONS: tuple[tuple[int, tuple[str, ...]], ...] = (
    (1, ("0001_tables", "0002_guards", "0003_writes", "0004_statistics")),
    (2, ("0005_effects",)),
    (3, ("0006_pages",)),
    (4, ("0007_keys",)),
    (5, ("0008_kept",)),
    (6, ("0009_erasure",)),
)
"""Schema version and the scripts that make it from the one before, oldest first."""

SCHEMA_VERSION = MIGRATIONS[-1][0]


def qualified(sql: str, schema: str) -> str:
    """Return SQL with `@.` replaced by the quoted schema (a checked name: `parse_url`)."""
    return sql.replace("@.", f'"{schema}".')


async def migrate(
    connection: psycopg.AsyncConnection[tuple[Any, ...]], options: PostgresOptions
) -> None:
    """Bring the schema to the newest version.

    Raises:
        StoreForeign: it has tables, and they are not Perdure's.
        StoreSchemaNewer: its version is above what is known here.
    """
    if await version_of(connection, options) == SCHEMA_VERSION:
        return
    schema = options.schema
    async with connection.transaction():
        lock = "SELECT pg_advisory_xact_lock(hashtextextended('perdure.migrate.' || %s, 0::bigint))"
        await connection.execute(lock, (schema,))
        version = await version_of(connection, options)  # again: another opener may have been first
        if version is None:
            await _create(connection, options)
            sql = (
                "CREATE TABLE @.schema_version (version int PRIMARY KEY, "
                "migrated_at timestamptz NOT NULL DEFAULT now())"
            )
            await connection.execute(qualified(sql, schema).encode())
        for target, scripts in MIGRATIONS:
            if target > (version or 0):
                for script in scripts:
                    await connection.execute(qualified(_script(script), schema).encode())
                insert = f'INSERT INTO "{schema}".schema_version (version) VALUES (%s)'
                await connection.execute(insert, (target,))


async def _create(
    connection: psycopg.AsyncConnection[tuple[Any, ...]], options: PostgresOptions
) -> None:
    schema, role, database = options.schema, connection.info.user, connection.info.dbname
    try:
        await connection.execute(f'CREATE SCHEMA IF NOT EXISTS "{schema}"')
    except InsufficientPrivilege as error:
        msg = (
            f"{options.place}: the role {role!r} may not make the schema {schema!r} in the "
            f"database {database!r}; nothing was written. As its owner run: "
            f'GRANT CREATE ON DATABASE "{database}" TO "{role}"; or make the schema for it: '
            f'CREATE SCHEMA "{schema}" AUTHORIZATION "{role}"'
        )
        raise StoreReadOnly(msg, role=role, database=database, schema=schema) from error


def _script(name: str) -> str:
    return files("perdure.store.postgres").joinpath("sql", f"{name}.sql").read_text("utf-8")


async def version_of(
    connection: psycopg.AsyncConnection[tuple[Any, ...]], options: PostgresOptions
) -> int | None:
    """Return the version of the schema; None: there is none yet. Changes nothing."""
    sql = (
        "SELECT count(*), count(*) FILTER (WHERE c.relname = 'schema_version') "
        "FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace WHERE n.nspname = %s"
    )
    cursor = await connection.execute(sql, (options.schema,))
    [(things, marks)] = await cursor.fetchall()
    if things and not marks:
        msg = (
            f"{options.place}: the schema {options.schema!r} holds other tables than Perdure's; it "
            "was left untouched. Name another one in the store URL: ?schema=NAME"
        )
        raise StoreForeign(msg, schema=options.schema)
    if not marks:
        return None
    cursor = await connection.execute(f'SELECT max(version) FROM "{options.schema}".schema_version')
    [(version,)] = await cursor.fetchall()
    if version is not None and version > SCHEMA_VERSION:
        msg = (
            f"{options.place} has schema version {version}, this Perdure knows up to "
            f"{SCHEMA_VERSION}; it was left untouched. Run: pip install --upgrade perdure"
        )
        raise StoreSchemaNewer(msg, version=version, known=SCHEMA_VERSION)
    return int(version) if version is not None else None
