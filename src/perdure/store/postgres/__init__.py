"""Runs in a PostgreSQL database: many workers, on many hosts."""

from perdure.store.postgres._store import PostgresStore
from perdure.store.postgres._url import PostgresOptions, parse_url

__all__ = ["PostgresOptions", "PostgresStore", "parse_url"]
