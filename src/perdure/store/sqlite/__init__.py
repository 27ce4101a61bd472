"""Runs in one SQLite file: several processes of one host, no server."""

from perdure.store.sqlite._store import SqliteStore

__all__ = ["SqliteStore"]
