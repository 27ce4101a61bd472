"""Opening connections: nothing is touched before the file is known to be ours."""

import os
from collections.abc import Callable
from pathlib import Path
from threading import Event
from urllib.parse import quote

import apsw

from perdure.errors import StoreReadOnly
from perdure.store.sqlite._schema import check_owner, migrate, switch_to_wal
from perdure.store.sqlite._url import SqliteOptions
from perdure.store.sqlite.limits import BUSY_STEP_S, BUSY_STEP_S_MAX, STATEMENT_CACHE


def busy_handler(timeout_s: float) -> Callable[[int], bool]:
    """Return a busy handler that tries again in short, growing steps until the timeout.

    SQLite's own handler sleeps up to 100 ms between two tries, which is what writers of several
    processes would then wait for a commit of half a millisecond.
    """
    never = Event()
    waited_s = 0.0

    def wait(tries: int) -> bool:
        nonlocal waited_s
        if tries == 0:
            waited_s = 0.0
        if waited_s >= timeout_s:
            return False
        step_s = min(BUSY_STEP_S * (tries + 1), BUSY_STEP_S_MAX)
        never.wait(step_s)
        waited_s += step_s
        return True

    return wait


def inspect_file(path: Path) -> None:
    """Refuse a file at rest that is not ours or not writable, and leave no trace beside it.

    A connection to a WAL database makes files next to it; an immutable one does not. It is right
    only for a file that nobody uses: one with a journal beside it is checked by the real connection
    alone.

    Raises:
        StoreForeign, StoreSchemaNewer, StoreReadOnly: the file was left untouched.
        apsw.Error: it is no database at all.
    """
    if not path.exists() or path.stat().st_size == 0:
        return
    # After the size: a file with content and no journal has been committed by whoever created it.
    if not any(path.with_name(path.name + end).exists() for end in ("-wal", "-journal")):
        name = f"file:{quote(str(path.absolute()))}?immutable=1"
        db = apsw.Connection(name, flags=apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI)
        try:
            check_owner(db, path)
        finally:
            db.close()
    if not os.access(path, os.W_OK):
        raise _read_only(path)


def _read_only(path: Path) -> StoreReadOnly:
    msg = f"{path} cannot be written; it was left untouched. Look at: ls -l {path}; lsattr {path}"
    return StoreReadOnly(msg, path=str(path))


def when_free(operation: Callable[[], None], timeout_s: float) -> None:
    """Run what SQLite refuses without asking the busy handler while others use the file.

    Raises:
        apsw.BusyError: the others stayed for longer than the timeout.
    """
    wait = busy_handler(timeout_s)
    tries = 0
    while True:
        try:
            operation()
        except apsw.BusyError:
            if not wait(tries):
                raise
            tries += 1
        else:
            return


def connect_writer(options: SqliteOptions) -> apsw.Connection:
    """Open or create the file, migrate it, and return the connection that writes.

    Raises:
        StoreForeign, StoreSchemaNewer, StoreReadOnly, StoreUnavailable: the file was left
        untouched. apsw.Error: the driver's error, to be mapped.
    """
    inspect_file(options.path)
    flags = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE
    db = apsw.Connection(str(options.path), flags=flags, statementcachesize=STATEMENT_CACHE)
    try:
        # A foreign WAL database would be checkpointed when we close it: it stays as it is.
        db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        db.set_busy_handler(busy_handler(options.busy_timeout_s))
        check_owner(db, options.path)
        if db.readonly("main"):
            raise _read_only(options.path)  # noqa: TRY301  # the connection is closed below
        migrate(db, options.path)
        when_free(lambda: switch_to_wal(db, options.path), options.busy_timeout_s)
        if options.max_pages is not None:
            db.execute(f"PRAGMA max_page_count = {options.max_pages:d}")
        db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 0)
    except BaseException:
        db.close()
        raise
    return db


def connect_scrubber(options: SqliteOptions) -> apsw.Connection:
    """Return a connection that writes the whole file anew."""
    db = apsw.Connection(str(options.path), flags=apsw.SQLITE_OPEN_READWRITE)
    db.set_busy_handler(busy_handler(options.busy_timeout_s))
    db.pragma("synchronous", "FULL")
    return db


def connect_reader(options: SqliteOptions) -> apsw.Connection:
    """Return a connection that only reads, so that reads do not wait behind a commit."""
    db = apsw.Connection(
        str(options.path),
        flags=apsw.SQLITE_OPEN_READWRITE,
        statementcachesize=STATEMENT_CACHE,
    )
    db.set_busy_handler(busy_handler(options.busy_timeout_s))
    db.pragma("query_only", 1)
    return db
