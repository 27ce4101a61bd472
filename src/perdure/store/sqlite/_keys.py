"""Data keys of encryption: functions over an open transaction."""

from collections.abc import Sequence

import apsw

from perdure.ids import TenantId
from perdure.model import KeyRow
from perdure.store._rows import KEY_COLUMNS, key_row

_PUT = f"""
INSERT INTO perdure_keys ({KEY_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (tenant, scope, number) DO NOTHING
"""
_GET = f"SELECT {KEY_COLUMNS} FROM perdure_keys WHERE tenant = ? AND scope = ? AND number = ?"
_OF_SCOPE = f"SELECT {KEY_COLUMNS} FROM perdure_keys WHERE tenant = ? AND scope = ? ORDER BY number"
_ALL = f"""
SELECT {KEY_COLUMNS} FROM perdure_keys
WHERE ? IS NULL OR (tenant, scope, number) > (?, ?, ?)
ORDER BY tenant, scope, number LIMIT ?
"""
_REWRAP = """
UPDATE perdure_keys SET wrapped = ?, wrapped_by = ?
WHERE tenant = ? AND scope = ? AND number = ? AND key_id = ? AND wrapped = ?
"""


def put_keys(db: apsw.Connection, keys: Sequence[KeyRow]) -> list[KeyRow]:
    """Store the keys where there is none; return those that stand."""
    found = []
    for key in keys:
        values = (key.tenant, key.scope, key.number)
        rest = (key.key_id, key.wrapped, key.wrapped_by, key.created_at_us)
        db.execute(_PUT, (*values, *rest))
        found += [key_row(row) for row in db.execute(_GET, values)]
    return found


def rewrap_key(db: apsw.Connection, key: KeyRow, expected: bytes) -> bool:
    """Wrap a key anew if it is wrapped as expected; return whether it is wrapped as given."""
    place = (key.tenant, key.scope, key.number)
    db.execute(_REWRAP, (key.wrapped, key.wrapped_by, *place, key.key_id, expected))
    return any(
        (found.key_id, found.wrapped) == (key.key_id, key.wrapped)
        for found in map(key_row, db.execute(_GET, place))
    )


def read_keys(
    db: apsw.Connection,
    scopes: Sequence[tuple[TenantId, str]] | None,
    after: tuple[TenantId, str, int] | None,
    limit: int,
) -> list[KeyRow]:
    """Return keys by (tenant, scope, number)."""
    if scopes is None:
        start = after or (None, None, None)
        return [key_row(row) for row in db.execute(_ALL, (start[0], *start, limit))]
    wanted = sorted(set(scopes))
    found = [key_row(row) for scope in wanted for row in db.execute(_OF_SCOPE, scope)]
    return [key for key in found if after is None or (key.tenant, key.scope, key.number) > after][
        :limit
    ]
