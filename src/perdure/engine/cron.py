"""When a schedule is due: cron expressions in a time zone.

The fields are read as Debian's cron reads them, also on the two days of a year on which clocks are
changed: a time that the change skips is due right after the change, a time that comes twice is due
the first time; expressions that name every hour (`30 * * * *`) are due once in each hour that
passes. `cronsim` is imported with the first schedule only: it costs as much as a third of Perdure.
"""

import datetime as dt
from collections import deque
from collections.abc import Iterator
from itertools import islice
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from perdure.errors import SettingInvalid

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_MICROSECOND = dt.timedelta(microseconds=1)


def check_cron(cron: str, timezone: str, now_us: int) -> int:
    """Return when an expression is due next.

    Raises:
        SettingInvalid: it is no expression, never due, or there is no such time zone.
    """
    try:
        ZoneInfo(timezone)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        msg = (
            f"timezone={timezone!r} is unknown here; give an IANA name like 'Europe/Paris' (where "
            "the system has no time zones: pip install tzdata)"
        )
        raise SettingInvalid(msg, timezone=timezone) from error
    found = next_due(cron, timezone, now_us)
    if found is None:
        msg = f"cron={cron!r} is never due"
        raise SettingInvalid(msg, cron=cron)
    return found


def next_due(cron: str, timezone: str, after_us: int) -> int | None:
    """Return the first due time above `after_us`; None: never.

    Raises:
        SettingInvalid: it is no cron expression.
    """
    return next(_due_from(cron, timezone, after_us), None)


def last_due(cron: str, timezone: str, *, first_us: int, now_us: int, count: int) -> list[int]:
    """Return the newest due times from `first_us` to `now_us`, `count` at most, oldest first.

    The cost follows `count`, however long ago `first_us` is.
    """
    # Backwards only to find where to begin: forwards decides, as it decided when they were due.
    late = islice(_due_from(cron, timezone, now_us + 1_000_000, reverse=True), count + 2)
    begin_us = max(first_us, min(late, default=first_us))
    found: deque[int] = deque(maxlen=count)
    for at_us in _due_from(cron, timezone, begin_us - 1):
        if at_us > now_us:
            break
        found.append(at_us)
    return list(found)


def _due_from(cron: str, timezone: str, at_us: int, *, reverse: bool = False) -> Iterator[int]:
    import cronsim  # noqa: PLC0415  # only where there are schedules

    at = (_EPOCH + at_us * _MICROSECOND).astimezone(ZoneInfo(timezone))
    try:
        times: Any = cronsim.CronSim(cron, at, reverse=reverse)
    except cronsim.CronSimError as error:
        msg = (
            f"cron={cron!r}: {str(error).lower()}; five fields are wanted (minute hour day month "
            "weekday), e.g. '0 9 * * MON-FRI'"
        )
        raise SettingInvalid(msg, cron=cron) from error
    for each in times:
        yield (each - _EPOCH) // _MICROSECOND
