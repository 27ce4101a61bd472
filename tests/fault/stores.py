"""The stores that scenes play on: their URLs, and the back door to what only the database shows.

A URL may hold `{place}` (the scene's folder) and `{schema}` (a schema of its own, from the folder's
name), so that each case has a fresh store.
"""

import argparse
import contextlib
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import apsw

from perdure.testing.postgres import GivenServer, PostgresServer, running_server
from tests.beside import beside

SQLITE = "sqlite:///{place}/store.db"
STORES = ("sqlite", "postgres")


def resolved(url: str, place: Path) -> str:
    """Return the URL of the store of one scene."""
    schema = "f_" + hashlib.sha256(str(place).encode()).hexdigest()[:16]
    return url.format(place=place, schema=schema)


def postgres_url(server: PostgresServer | GivenServer, **more: str) -> str:
    """Return the URL of a schema of its own for each scene, beside it one for users' tables."""
    search_path = "-csearch_path%3D{schema}_user"
    return server.url("{schema}", options=search_path, application_name="{schema}", **more)


def add_argument(parser: argparse.ArgumentParser) -> None:
    """Let the store be named on the command line."""
    parser.add_argument("--store", choices=STORES, default="sqlite")
    parser.add_argument("--url", help="another store; may hold {place} and {schema}")


@contextlib.contextmanager
def chosen(options: argparse.Namespace) -> Iterator[str]:
    """Give the URL of the store that the command line names; a server runs meanwhile."""
    if options.url or options.store == "sqlite":
        yield options.url or SQLITE
        return
    with running_server() as server:
        yield postgres_url(server)


class Door(Protocol):
    """The back door of one store."""

    mark: str
    """What stands for a parameter in the SQL of transaction effects."""

    def prepare(self) -> None:
        """Make what the store does not make itself."""

    def drop(self) -> None:
        """Remove the store."""

    def journal(self) -> list[tuple[int, int]]:
        """Return (seq, token) of every frame."""
        ...

    def behind(self) -> dict[str, Any]:
        """Return the user's own table, and how many messages are unread and runs held."""
        ...

    def is_writable(self) -> bool:
        """Return whether nobody holds a lock that others would wait for."""
        ...


class SqliteDoor:
    """The back door of a SQLite file."""

    mark = "?"

    def __init__(self, url: str) -> None:
        self._path = url.removeprefix("sqlite:///")

    def prepare(self) -> None:
        """Need nothing."""

    def drop(self) -> None:
        """Leave it to whoever removes the folder."""

    def _rows(self, sql: str) -> list[Any]:
        db = beside(self._path)
        try:
            return db.execute(sql).fetchall()
        finally:
            db.close()

    def journal(self) -> list[tuple[int, int]]:
        """Return (seq, token) of every frame, oldest first."""
        return self._rows("SELECT first_seq, token FROM perdure_frames ORDER BY frame_no")

    def behind(self) -> dict[str, Any]:
        """Return what only the database shows."""
        has_table = self._rows("SELECT count(*) FROM sqlite_master WHERE name = 'booked'")[0][0]
        booked = self._rows("SELECT label FROM booked") if has_table else []
        held = "SELECT count(*) FROM perdure_runs WHERE holder IS NOT NULL"
        return {
            "booked": [row[0] for row in booked],
            "unread": self._rows("SELECT count(*) FROM perdure_mail")[0][0],
            "held": self._rows(held)[0][0],
        }

    def is_writable(self) -> bool:
        """Return whether nobody holds the write lock."""
        db = apsw.Connection(self._path)
        try:
            db.set_busy_timeout(200)
            db.execute("BEGIN IMMEDIATE; ROLLBACK")
        except apsw.BusyError:
            return False
        finally:
            db.close()
        return True


class PostgresDoor:
    """The back door of a schema."""

    mark = "%s"

    def __init__(self, url: str) -> None:
        from perdure.store.postgres._url import parse_url  # noqa: PLC0415  # of an extra

        options = parse_url(url)
        self._conninfo = options.conninfo
        self.schema = options.schema

    def rows(self, sql: str) -> list[Any]:
        """Run a statement on the schema `@` and return its rows."""
        import psycopg  # noqa: PLC0415  # of an extra

        with psycopg.connect(self._conninfo, autocommit=True) as connection:
            cursor = connection.execute(sql.replace("@.", f"{self.schema}.").encode())
            return cursor.fetchall() if cursor.description else []

    def prepare(self) -> None:
        """Make the schema for the user's tables, and the one that many effects at once write to."""
        self.rows(f"CREATE SCHEMA {self.schema}_user")
        self.rows("CREATE TABLE booked (label TEXT)")

    def drop(self) -> None:
        """Drop both schemas."""
        self.rows(f"DROP SCHEMA IF EXISTS {self.schema}, {self.schema}_user CASCADE")

    def journal(self) -> list[tuple[int, int]]:
        """Return (seq, token) of every frame, oldest first."""
        return self.rows("SELECT first_seq, token FROM @.frames ORDER BY at_us, first_seq")

    def behind(self) -> dict[str, Any]:
        """Return what only the database shows."""
        return {
            "booked": [row[0] for row in self.rows("SELECT label FROM booked ORDER BY label")],
            "unread": self.rows("SELECT count(*) FROM @.mail")[0][0],
            "held": self.rows("SELECT count(*) FROM @.runs WHERE holder IS NOT NULL")[0][0],
        }

    def is_writable(self) -> bool:
        """Return whether nobody holds the row of a run."""
        import psycopg  # noqa: PLC0415  # of an extra

        try:
            self.rows("SELECT FROM @.runs FOR UPDATE NOWAIT")
        except psycopg.errors.LockNotAvailable:
            return False
        return True


def door_of(url: str) -> Door:
    """Return the back door of the store that a resolved URL names."""
    return SqliteDoor(url) if url.startswith("sqlite") else PostgresDoor(url)
