"""What a `postgresql://` URL says."""

import re
from typing import Any
from urllib.parse import parse_qsl, urlencode

import msgspec
from psycopg import ProgrammingError
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from perdure.errors import SettingInvalid
from perdure.store.postgres.limits import (
    CONNECT_TIMEOUT_S,
    KEEPALIVES_COUNT,
    KEEPALIVES_IDLE_S,
    KEEPALIVES_INTERVAL_S,
    UNANSWERED_MS,
)

_SCHEMA = re.compile(r"(?!pg_)[a-z_][a-z0-9_]{0,39}")
_UNKNOWN = re.compile(r'invalid URI query parameter: "([^"]*)"')
_OWN = frozenset({"schema", "flush_delay_ms", "liveness"})
_DEFAULTS = {
    "connect_timeout": CONNECT_TIMEOUT_S,
    "keepalives_idle": KEEPALIVES_IDLE_S,
    "keepalives_interval": KEEPALIVES_INTERVAL_S,
    "keepalives_count": KEEPALIVES_COUNT,
    "tcp_user_timeout": UNANSWERED_MS,
    "application_name": "perdure",
}


class PostgresOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of one PostgreSQL store.

    Attributes:
        conninfo: what the driver connects with; may hold a password, so it is never shown.
        place: the same for people: host, port, database and schema, no user, no password.
        schema: the schema that holds Perdure's tables and nothing else.
        flush_delay_ms: the server waits so long before each flush (its `commit_delay`; needs a
            superuser), to stand for a slow disk in benchmarks.
        has_liveness: whether session locks prove workers alive. Off behind a pooler that gives a
            connection to others between transactions: the end of a lease decides then.
    """

    conninfo: str
    place: str
    schema: str = "perdure"
    flush_delay_ms: float = 0.0
    has_liveness: bool = True

    def __repr__(self) -> str:
        return f"PostgresOptions({self.place!r})"


def parse_url(url: str) -> PostgresOptions:
    """Return the options of a `postgresql://` URL.

    Own options in the query: `schema`, `flush_delay_ms`, `liveness` (on or off); all others are the
    driver's (`sslmode`, `host`, ...).

    Raises:
        SettingInvalid: it can't be read, or an option is out of range; no password is shown.
    """
    try:
        base, _, asked = url.partition("?")
        pairs = parse_qsl(asked, keep_blank_values=True, strict_parsing=bool(asked))
        query = urlencode([pair for pair in pairs if pair[0] not in _OWN])
        known = conninfo_to_dict(f"{base}?{query}" if query else base)
    except (ProgrammingError, ValueError) as error:
        unknown = _UNKNOWN.search(str(error))
        if unknown is not None:
            msg = (
                f"the PostgreSQL URL has an unknown option {unknown[1]!r}; Perdure's are "
                f"{', '.join(sorted(_OWN))}, all others are libpq's (sslmode, host, ...)"
            )
            raise SettingInvalid(msg, option=unknown[1]) from None
        msg = (
            "the PostgreSQL URL can't be read; write postgresql://user:password@host:port/database "
            "and percent-encode special characters of user and password"
        )
        raise SettingInvalid(msg, reason=type(error).__name__) from None
    given = (known.get("host"), known.get("dbname"), known.get("port"), known.get("user"))
    ports = str(known.get("port") or "")
    has_wrong_port = not all(part.isdigit() for part in ports.split(",") if part)
    if has_wrong_port or any("@" in str(part) for part in given if part):
        # No part is shown: with an unencoded character in it, a password is read as one of them.
        msg = (
            "the PostgreSQL URL can't be read: its host, port or database is none. Percent-encode "
            "special characters of user and password (@ is %40, / is %2F); a port is a number"
        )
        raise SettingInvalid(msg)
    own = {name: value for name, value in pairs if name in _OWN}
    place = f"postgresql://{known.get('host', '')}:{known.get('port', '5432')}/"
    place += f"{known.get('dbname', '')}"
    schema = own.get("schema", "perdure")
    if not _SCHEMA.fullmatch(schema):
        msg = f"{place}: schema={schema!r} must be a name of 1 to 40 of a-z, 0-9 and _, not pg_..."
        raise SettingInvalid(msg, schema=schema)
    liveness = own.get("liveness", "on")
    if liveness not in {"on", "off"}:
        msg = f"{place}: liveness={liveness!r} must be 'on' or 'off'"
        raise SettingInvalid(msg, liveness=liveness)
    settings: dict[str, Any] = {**_DEFAULTS, **known, "client_encoding": "utf8"}
    return PostgresOptions(
        conninfo=make_conninfo(**settings),
        place=place if schema == "perdure" else f"{place}?schema={schema}",
        schema=schema,
        flush_delay_ms=_delay(place, own.get("flush_delay_ms", "0")),
        has_liveness=liveness == "on",
    )


def _delay(place: str, text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0.0 <= number <= 100.0:  # noqa: PLR2004  # what the server's setting takes
        msg = f"{place}: flush_delay_ms={text!r} must be a number from 0 to 100"
        raise SettingInvalid(msg, value=text)
    return number
