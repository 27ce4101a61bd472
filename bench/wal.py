"""How many bytes a store writes to its write-ahead log: counted, not estimated.

SQLite keeps the number of the log's last committed frame in the header of the `-shm` file. The
difference over the work, times the size of a frame, is what was written - as long as the log is not
begun anew in between, which an open reader prevents and the salt in the same header proves.
"""

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import apsw

FRAME_HEADER_BYTES = 24


@dataclass(frozen=True)
class Log:
    """The state of a write-ahead log: frames, bytes of a page, and the salt of its beginning."""

    frames: int
    page_bytes: int
    salt: bytes


def look(database: Path) -> Log:
    """Return the state of the log of a database that is open somewhere."""
    header = database.with_name(f"{database.name}-shm").read_bytes()[:48]
    page_bytes, frames = struct.unpack_from("=HI", header, 14)
    return Log(frames, 65536 if page_bytes == 1 else page_bytes, header[32:40])


@contextmanager
def held(database: Path) -> Iterator[None]:
    """Keep the log from being begun anew. Something must have been written since it last was."""
    db = apsw.Connection(str(database))
    try:
        db.execute("begin")
        db.execute("select count(*) from sqlite_schema").fetchall()
        yield
    finally:
        db.close()


def written(before: Log, after: Log) -> int:
    """Return the bytes written between two looks."""
    if before.salt != after.salt:
        msg = "the log was begun anew while it was measured"
        raise RuntimeError(msg)
    return (after.frames - before.frames) * (after.page_bytes + FRAME_HEADER_BYTES)
