"""What `perdure worker` tells about its runs: one line for each that is taken, ends or waits."""

import logging
from collections.abc import Sequence
from typing import Any, cast

from perdure.cli._text import clean
from perdure.clock import system_services
from perdure.engine import Runtime
from perdure.model import Failure, RunRow, RunStatus
from perdure.store import make_store
from perdure.store.api import Store

log = logging.getLogger("perdure.worker")


class ToldStore:
    """A store that tells of every claim; all else is the store's own."""

    def __init__(self, store: Store) -> None:
        """Stand for an unopened store."""
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def claim(self, *args: Any, **kwargs: Any) -> Sequence[RunRow]:
        """Claim runs, and tell of each."""
        rows = await self._store.claim(*args, **kwargs)
        for row in rows:
            again = f", claim {row.claims} without progress" if row.claims > 1 else ""
            log.info("%s taken (token %d%s)", _name(row), row.token, again)
        return rows


def told_store(url: str) -> Store:
    """Return the unopened store of a URL that tells of every claim."""
    return cast("Store", ToldStore(make_store(url, system_services())))


def tell_of_ends(runtime: Runtime) -> None:
    """Tell of every run that ends, or is let go, in an opened runtime."""
    engine = runtime.engine
    on_ended, on_released = engine.on_ended, engine.on_released

    def ended(row: RunRow, status: RunStatus, failure: Failure | None, values: Any) -> None:
        log.info("%s %s%s", _name(row), status.value, _reason(failure))
        on_ended(row, status, failure, values)

    def released(row: RunRow, status: RunStatus, failure: Failure | None) -> None:
        if status is RunStatus.NEEDS_DECISION:
            log.warning("%s parked, needs a decision%s", _name(row), _reason(failure))
        else:
            what = "waits" if status is RunStatus.WAITING else "let go"
            log.info("%s %s", _name(row), what)
        on_released(row, status, failure)

    engine.on_ended, engine.on_released = ended, released


def _name(row: RunRow) -> str:
    return clean(f"run {row.run_id} ({row.graph} v{row.version}, thread {row.thread})")


def _reason(failure: Failure | None) -> str:
    return "" if failure is None else clean(f": {failure.type}: {failure.message}")
