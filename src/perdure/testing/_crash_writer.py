"""A process that writes to a store until it is killed: `python -m perdure.testing._crash_writer`.

Arguments: the store's URL and a name. Prints the number of each batch that was acknowledged. Every
batch appends to each of `RUNS` runs, with an effect beside the frame: whatever the moment of the
kill, all of a batch is there, or nothing.
"""

import asyncio
import sys
from itertools import count

from perdure.clock import system_services
from perdure.model import Append, Appended, EffectPut, RunProgressed
from perdure.store import make_store
from perdure.store.api import Store
from perdure.testing import _store_kit as kit

RUNS = 5


def run_names(name: str) -> list[str]:
    """Return the names of the runs that a writer of this name writes to."""
    return [f"{name}_{number}" for number in range(RUNS)]


async def write(store: Store, name: str) -> None:
    """Write for ever."""
    rows = [await kit.taken(store, each, lease_until_us=kit.FAR) for each in run_names(name)]
    for batch in count(1):
        items: list[Append] = []
        for row in rows:
            effect = EffectPut(
                row=kit.effect_of(row, f"{row.run_id}_{batch}", result_wire=b"x" * 500)
            )
            progress = RunProgressed(lease_until_us=kit.FAR)
            items.append(
                kit.appended_to(row, progress, effect, first_seq=batch + 1, body=b"y" * 900)
            )
        outcomes = await store.append(items)
        if not all(isinstance(outcome, Appended) for outcome in outcomes):
            raise SystemExit(str(outcomes))
        sys.stdout.write(f"{batch}\n")
        sys.stdout.flush()


async def main(url: str, name: str) -> None:
    """Open the store and write."""
    store = make_store(url, system_services())
    await store.open()
    await write(store, name)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
