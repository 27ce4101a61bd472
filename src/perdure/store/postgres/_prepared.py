"""The one hot statement of a store, sent straight through libpq.

A cursor costs about as much as the rest of an append in this process: it is made, its query and
parameters are looked at, its columns described. An append asks for the same statement with the same
types each time, and mostly gets no row. So it is prepared once for each connection, and its
parameters are handed over as they are. Everything else goes by cursors (`_lanes.run`).
"""

import asyncio
from collections.abc import Callable
from typing import Any

import psycopg
from msgspec import Struct
from psycopg import pq
from psycopg.adapt import Transformer
from psycopg.errors import error_from_result

_BINARY = 1
_TEXT = 0

Rows = list[tuple[Any, ...]]
Answer = Callable[[Rows | None, psycopg.Error | None], None]
"""Called with the rows, or with what went wrong."""


class Prepared(Struct, frozen=True):
    """A statement with numbered parameters.

    Attributes:
        name: unique on a connection.
        types: of the parameters: `bytea` is sent as it is, all others as text.
    """

    name: str
    types: tuple[str, ...]
    sql: str

    @property
    def formats(self) -> list[int]:
        """Return how each parameter is sent."""
        return [_BINARY if kind == "bytea" else _TEXT for kind in self.types]


class Sender:
    """Sends a prepared statement on one connection, one at a time; the answer comes by callback."""

    def __init__(self, connection: "psycopg.AsyncConnection[Any]", statement: Prepared) -> None:
        """Serve a connection on which nothing else runs while an answer is awaited."""
        self._connection = connection
        self._pgconn = connection.pgconn
        self._fileno = connection.pgconn.socket  # libpq forgets it when the connection breaks
        self._name = statement.name.encode()
        self._formats: list[pq.Format] = statement.formats  # type: ignore[assignment]  # plain numbers are quicker
        self._loop = asyncio.get_running_loop()
        self._done: Answer | None = None
        self._results: list[pq.abc.PGresult] = []

    @classmethod
    async def prepare(
        cls, connection: "psycopg.AsyncConnection[Any]", statement: Prepared
    ) -> "Sender":
        """Prepare the statement on the connection."""
        types = ", ".join(statement.types)
        text = f"PREPARE {statement.name} ({types}) AS {statement.sql}"
        await connection.execute(text.encode(), prepare=False)
        return cls(connection, statement)

    def send(self, params: list[bytes | None], done: Answer) -> None:
        """Send the parameters; `done` is called once, with the rows or the error."""
        self._done = done
        self._results = []
        try:
            self._pgconn.send_query_prepared(
                self._name, params, param_formats=self._formats, result_format=_BINARY
            )
            self._flush()
        except psycopg.Error as error:
            self._loop.call_soon(self._end, None, error)

    def _flush(self) -> None:
        """Hand over what the socket takes; wait for room, or for a server that speaks first."""
        if self._pgconn.flush():
            self._loop.add_writer(self._fileno, self._go_on)
            self._loop.add_reader(self._fileno, self._go_on)
        else:
            self._loop.add_reader(self._fileno, self._look)

    def _go_on(self) -> None:
        self._loop.remove_writer(self._fileno)
        try:
            self._pgconn.consume_input()
            self._flush()
        except psycopg.Error as error:
            self._end(None, error)

    def _look(self) -> None:
        """Take in what came; end once all is there."""
        try:
            self._pgconn.consume_input()
            # Asked for only when it is there: an answer may end later than its rows came, and
            # `get_result` would wait for it, and the event loop with it.
            while not self._pgconn.is_busy():
                result = self._pgconn.get_result()
                if result is None:
                    self._settle()
                    return
                self._results.append(result)
        except psycopg.Error as error:
            self._end(None, error)

    def _settle(self) -> None:
        """End with what the answer says.

        Raises:
            psycopg.Error: the server refused.
        """
        results, self._results = self._results, []
        self._end(self._rows(results), None)

    def _end(self, rows: Rows | None, error: psycopg.Error | None) -> None:
        self._loop.remove_reader(self._fileno)
        done, self._done = self._done, None
        if done is not None:
            done(rows, error)

    def _rows(self, results: list[pq.abc.PGresult]) -> Rows:
        """Return the rows of the answer.

        Raises:
            psycopg.Error: the server refused.
        """
        found: Rows = []
        failed: psycopg.Error | None = None
        for result in results:
            if result.status == pq.ExecStatus.TUPLES_OK:
                found = self._read(result) if result.ntuples else []
            else:
                failed = error_from_result(result)
        if failed is not None:
            raise failed
        return found

    def _read(self, result: pq.abc.PGresult) -> Rows:
        transformer = Transformer(self._connection)
        transformer.set_pgresult(result)
        return transformer.load_rows(0, result.ntuples, tuple)
