"""Pages of large values: functions over an open transaction."""

from collections.abc import Sequence

import apsw

from perdure.ids import TenantId
from perdure.model import Page

_PUT = """
INSERT INTO perdure_pages (tenant, hash, body, at_us) VALUES (?, ?, ?, ?)
ON CONFLICT (tenant, hash) DO NOTHING
"""
# What somebody wrote there as text is damage, which the reader finds by the hash.
_READ = "SELECT hash, CAST(body AS BLOB) FROM perdure_pages WHERE tenant = ? AND hash = ?"


def put_pages(db: apsw.Connection, tenant: TenantId, pages: Sequence[Page], at_us: int) -> None:
    """Store the pages that are not there."""
    if pages:
        db.executemany(_PUT, [(tenant, page.hash, page.body, at_us) for page in pages])


def read_pages(
    db: apsw.Connection, tenant: TenantId, hashes: Sequence[bytes]
) -> dict[bytes, bytes]:
    """Return the bodies of pages by hash."""
    return dict(row for name in set(hashes) for row in db.execute(_READ, (tenant, name)))
