"""The conformance suite that every store must pass, shipped for the authors of stores.

Subclass `StoreConformance` in a test file, declare the capabilities, and give a fixture
`make_store`:

    import pytest
    from perdure.clock import system_services
    from perdure.store.api import CROSS_PROCESS, DURABLE
    from perdure.testing.conformance import StoreConformance

    class TestMyStore(StoreConformance):
        capabilities = frozenset({DURABLE, CROSS_PROCESS})

        @pytest.fixture
        def make_store(self, tmp_path):
            return lambda: MyStore(f"mine:///{tmp_path}/store", system_services())

`make_store()` returns an unopened store object; each call within a test names the same store. A
rule that needs a capability that is not declared is skipped with a reason that begins with `gap:`,
never silently. A store that has a back door overrides `lose_frame` and `put_body`; one that other
processes can open overrides the fixture `crash_url`. Needs pytest and pytest-asyncio.
"""

import sys
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

# Before they are imported: so a rule that is broken shows the values in its assertion.
_PARTS = [
    f"perdure.testing.{part}"
    for part in (
        "_conformance_crash",
        "_conformance_kept",
        "_conformance_erasing",
        "_conformance_keys",
        "_conformance_messages",
        "_conformance_orders",
        "_conformance_pages",
        "_conformance_repeats",
        "_conformance_runs",
        "_conformance_shared",
        "_store_kit",
    )
]
pytest.register_assert_rewrite(*(part for part in _PARTS if part not in sys.modules))

from perdure.store.api import Store
from perdure.testing._conformance_crash import CrashRules, DamageRules
from perdure.testing._conformance_erasing import ErasingRules, ExportRules, SubjectRules
from perdure.testing._conformance_kept import (
    CollectionRules,
    CopyRules,
    ErasureRules,
    RoomRules,
    TagRules,
)
from perdure.testing._conformance_keys import KeyRules
from perdure.testing._conformance_messages import AskRules, EffectRules, MailRules
from perdure.testing._conformance_orders import (
    LimitRules,
    ScheduleRules,
    TakeRules,
    WorkerRowRules,
)
from perdure.testing._conformance_pages import PageRules
from perdure.testing._conformance_repeats import RepeatRules
from perdure.testing._conformance_runs import AppendRules, ClaimRules, StartRules
from perdure.testing._conformance_shared import (
    CapabilityRules,
    LivenessRules,
    MakeStore,
    ManyObjectRules,
    TransactionRules,
    WatchRules,
)


@pytest.mark.asyncio
class StoreConformance(
    CapabilityRules,
    StartRules,
    ClaimRules,
    AppendRules,
    MailRules,
    AskRules,
    EffectRules,
    PageRules,
    CopyRules,
    ErasureRules,
    TagRules,
    CollectionRules,
    RoomRules,
    KeyRules,
    ErasingRules,
    SubjectRules,
    ExportRules,
    RepeatRules,
    CrashRules,
    DamageRules,
    WatchRules,
    ManyObjectRules,
    TransactionRules,
    LivenessRules,
    LimitRules,
    TakeRules,
    ScheduleRules,
    WorkerRowRules,
):
    """Every rule of `perdure.store.api`, as tests."""

    @pytest_asyncio.fixture
    async def store(self, make_store: MakeStore) -> AsyncIterator[Store]:
        """Give the opened store, and close it afterwards."""
        store = make_store()
        await store.open()
        yield store
        await store.close()
