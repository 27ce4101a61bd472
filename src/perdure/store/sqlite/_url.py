"""What a `sqlite://` URL says."""

from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlsplit

import msgspec

from perdure.errors import SettingInvalid
from perdure.store.sqlite.limits import BUSY_TIMEOUT_S, RESERVE_MB


class SqliteOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of one SQLite store.

    Attributes:
        path: the database file, absolute.
        busy_timeout_s: how long a write waits for another process before `StoreLocked`.
        max_pages: quota in database pages of 4 KiB; writes beyond it are `StoreFull`. None: none.
        flush_delay_ms: sleep after each commit, to stand for a slow disk in benchmarks.
        reserve_mb: room on the disk, in MiB, that starts of runs leave to runs under way.
    """

    path: Path
    busy_timeout_s: float = BUSY_TIMEOUT_S
    max_pages: int | None = None
    flush_delay_ms: float = 0.0
    reserve_mb: float = RESERVE_MB


def parse_url(url: str) -> SqliteOptions:
    """Return the options of `sqlite:///relative.db` or `sqlite:////absolute.db`, query included.

    Raises:
        SettingInvalid: no file is named, or an option is unknown or out of range.
    """
    parts = urlsplit(url)
    name = unquote(parts.path)[1:]
    if parts.netloc or not name or name == ":memory:":
        msg = (
            f"{url!r} names no database file; write 'sqlite:///relative.db' or "
            "'sqlite:////absolute.db'"
        )
        raise SettingInvalid(msg, url=url)
    given = dict(parse_qsl(parts.query, keep_blank_values=True))
    options = SqliteOptions(
        path=Path(name).absolute(),  # the process may change its directory
        busy_timeout_s=_number(url, given.pop("busy_timeout_s", None), BUSY_TIMEOUT_S),
        max_pages=_pages(url, given.pop("max_pages", None)),
        flush_delay_ms=_number(url, given.pop("flush_delay_ms", None), 0.0),
        reserve_mb=_number(url, given.pop("reserve_mb", None), RESERVE_MB),
    )
    if given:
        msg = (
            f"{url!r} has unknown options {sorted(given)}; "
            "known: busy_timeout_s, max_pages, flush_delay_ms, reserve_mb"
        )
        raise SettingInvalid(msg, url=url, unknown=sorted(given))
    return options


def _number(url: str, text: str | None, default: float) -> float:
    if text is None:
        return default
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0.0 <= number < float("inf"):
        msg = f"{url!r}: {text!r} must be a number from 0 on"
        raise SettingInvalid(msg, url=url, value=text)
    return number


def _pages(url: str, text: str | None) -> int | None:
    return None if text is None else int(_number(url, text, 0.0))
