"""Runs in one SQLite file: several processes of one host, no server."""

from perdure.store.sqlite._store import SqliteStore
from perdure.store.sqlite._url import SqliteOptions, parse_url

__all__ = ["SqliteOptions", "SqliteStore", "parse_url"]
