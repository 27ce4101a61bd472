"""What of a thread its forks need: whoever removes history has to keep it.

Theory: a fork that inherits has no state of its own at its beginning, so the journal of its origin
up to the checkpoint that it was forked at, from the newest whole copy before it on, belongs to the
fork too. It is needed for as long as the fork's own start record can be read: its oldest
checkpoints are loaded by it, also when newer ones are not any more.
"""

from perdure.engine.loading import read_records
from perdure.errors import RecordErased
from perdure.model import RunRow
from perdure.model import records as rec
from perdure.store.api import Store


async def inheriting_start(store: Store, row: RunRow) -> rec.RunStarted | None:
    """Return the start record of a fork that inherits; None: it does not, or it was erased."""
    try:
        [(_seq, _frame, record), *_rest] = await read_records(store, row.run_id, limit=1)
    except RecordErased:
        return None
    return record if isinstance(record, rec.RunStarted) and record.inherits else None
