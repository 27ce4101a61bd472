"""The part of the protocol of a store that makes data go away, and the rules that come with it.

Rules, beside those of `perdure.store.api`:

- **An erasure is an intent first.** `begin_erasure` says in one transaction what is erased, and up
  to which run of each thread (`ThreadRow.erased`). From then on nothing of it can come back: all of
  these runs have ended, so that no append, answer, decision or message reaches them; whoever starts
  a run with state that was read before is refused (`NewRun.origin_erased`), and so is who sealed
  with a data key that is not the newest (`NewRun.sealed_by`).
- **Only what is in an erasure is erased.** `erase_run` checks that in its transaction.
- **Logically first, then in fact.** Rows that are gone may still be readable in free space of
  files, in logs, and in dead rows; `scrub` makes them go from the store's own files.
"""

from collections.abc import Sequence
from typing import Protocol

from perdure.ids import RunId, TenantId, ThreadId
from perdure.model import ErasureBegun, ErasureRow, ExportRow, ThreadRow


class ErasingStore(Protocol):
    """What a store does to erase."""

    async def begin_erasure(self, erasure: ErasureRow) -> ErasureBegun:
        """Write down that threads are erased, and up to which run; nothing may be running on them.

        Refused, with nothing written, where a run of the threads has not ended (`unfinished`), or
        another erasure of one of them is under way (`other`). A thread that is not there is left
        out of account. Their state is gone from then on: the thread begins empty
        (`ThreadRow.graph`, `base_ordinal`, `base_seq`), without subject, tags and copies; ordinals
        and checkpoint ids go on.
        Idempotent: by `erasure_id`.
        Durability: when it returns. Atomicity: all threads with the intent.
        """
        ...

    async def erase_run(
        self, run_id: RunId, bodies: Sequence[tuple[int, bytes]], *, is_last: bool
    ) -> None:
        """Replace bodies of a run's frames (first seq, body of digests); the last call: the rest.

        The rest: its messages, asks and effects are removed, its row keeps neither start key nor
        digest, waits and failure. A business key and a start key can be used anew then.
        Idempotent: yes.
        Durability: when it returns. Atomicity: the whole call.
        Raises: NotFound; Conflict (the run is in no erasure); nothing was written.
        """
        ...

    async def drop_keys(self, tenant: TenantId, threads: Sequence[ThreadId]) -> int:
        """Remove all data keys of threads but the newest of each; return how many there were.

        What only they sealed can be read by nobody any more. Idempotent: yes.
        Durability: when it returns.
        """
        ...

    async def end_erasure(self, erasure_id: str, *, at_us: int) -> None:
        """Write down that an erasure was done. Idempotent: the first time stays. Raises: NotFound.

        Durability: when it returns.
        """
        ...

    async def find_erasures(
        self, tenant: TenantId | None = None, *, open_only: bool = False
    ) -> list[ErasureRow]:
        """Return erasures, oldest first; `open_only`: those that are under way."""
        ...

    async def find_threads(
        self, tenant: TenantId, subject: str, *, after: str = "", limit: int = 1000
    ) -> list[ThreadRow]:
        """Return the threads that are about a subject, by name; `after`: those above (a page)."""
        ...

    async def note_export(self, export: ExportRow) -> None:
        """Write down that an export was made. Idempotent: by `export_id`.

        Durability: when it returns.
        """
        ...

    async def find_exports(self, tenant: TenantId, thread: ThreadId) -> list[ExportRow]:
        """Return exports that hold the thread, or all of its tenant, or all; oldest first."""
        ...

    async def scrub(self) -> list[str]:
        """Make what was removed unreadable in the store's own files; return what may still hold it.

        SQLite: the file is written anew, its log cut. PostgreSQL: the tables are written anew; the
        server's log and backups hold what they held. Takes as long as the store is large; others
        wait meanwhile. Idempotent: yes.
        Durability: when it returns.
        """
        ...

    async def count_bytes(self, needles: Sequence[bytes]) -> list[int]:
        """Return how often byte strings stand in what the store keeps, for each.

        SQLite: in all its files, free space too. PostgreSQL, memory: in the rows.
        """
        ...
