"""The SQLite store does what the memory store does, operation by operation."""

import asyncio
import random
import tempfile
from typing import Any

import pytest

from perdure.clock import system_services
from perdure.model import (
    AskClosed,
    AskPut,
    AskState,
    Change,
    EffectPut,
    EffectState,
    LimitRow,
    MailKind,
    MailPosted,
    MailTaken,
    OnBusy,
    RunEnded,
    RunProgressed,
    RunReleased,
    RunSpawned,
    RunStatus,
    ThreadBased,
)
from perdure.store.api import AskQuery, EffectQuery, RunQuery, Store
from perdure.store.memory import MemoryStore
from perdure.store.postgres import PostgresStore
from perdure.store.sqlite import SqliteStore
from perdure.testing import _store_kit as kit

STEPS = 150


class Script:
    """A random sequence of operations, the same for both stores."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)  # noqa: S311  # repeatable, not secret
        self.names: list[str] = []

    def pick(self, *choices: Any) -> Any:
        return self.random.choice(choices)

    def now(self) -> int:
        return kit.T0 + self.random.randrange(0, 400)

    def run_id(self) -> str:
        return f"r_{self.pick(*self.names)}" if self.names else "r_none"

    def new_run(self) -> Any:
        name = f"{len(self.names):03}" if self.random.random() < 0.9 else self.pick("000", "001")
        self.names.append(name)
        return kit.new_run(
            name,
            tenant=self.pick("t", "u"),
            thread=self.pick("x", "y", f"own_{name}"),
            priority=self.pick(0, 0, 1),
            start_key=self.pick(None, None, "k", "l"),
            input_digest=self.pick("d", "d", "e"),
            on_busy=self.pick(*OnBusy),
            created_at_us=self.now(),
            ready_at_us=self.pick(0, 0, self.now() + 100),
            take_for=self.pick(None, "w_1"),
            lease_until_us=self.now() + 100,
        )

    def limit(self) -> LimitRow:
        return LimitRow(
            tenant=self.pick("", "*", "t", "u"),
            graph=self.pick("", "g"),
            concurrency=self.pick(None, 1, 2, 4),
            rate=self.pick(None, 1, 3),
            period_us=self.pick(50, 100),
        )

    def mail(self) -> Any:
        return kit.signal_to(self.run_id(), kind=self.pick(*MailKind), at_us=self.now())

    def change(self, row: Any) -> Change:
        state = self.pick(*EffectState, EffectState.UNCERTAIN, EffectState.UNCERTAIN)
        name = self.pick("a", "b", "c")
        effect = kit.effect_of(row, f"{row.run_id}{name}", state=state, changed_at_us=self.now())
        held = kit.effect_of(row, f"{row.run_id}{name}", business_key=self.pick("p", "q"))
        ask = kit.ask_of(row, f"{row.run_id}{name}", expires_at_us=self.pick(None, self.now()))
        release = RunReleased(
            status=self.pick(RunStatus.WAITING, RunStatus.NEEDS_DECISION, RunStatus.PENDING),
            ready_at_us=self.pick(None, self.now()),
            checkpoint=self.pick(0, self.random.randrange(9)),
            mail_seen=self.random.randrange(0, 20),
            keep_claims=self.pick(True, False),
            version=self.pick(None, None, None, 1),
        )
        closed = AskClosed(ask_id=ask.ask_id, state=AskState.EXPIRED, at_us=self.now())
        return self.pick(
            release,
            release,
            RunProgressed(lease_until_us=self.now() + 50),
            kit.ended(self.pick(RunStatus.FAILED, RunStatus.SUCCEEDED), checkpoint=self.pick(0, 5)),
            kit.ended(mail_to_parent=self.mail()),
            EffectPut(row=effect),
            EffectPut(row=held),
            AskPut(row=ask),
            closed,
            MailTaken(mail_ids=tuple(self.random.sample(range(1, 20), 3))),
            MailPosted(mail=self.mail()),
            RunSpawned(run=self.new_run()),
            ThreadBased(seq=self.random.randrange(5)),
        )

    async def operation(self, model: Store) -> tuple[str, tuple[Any, ...], dict[str, Any]]:
        kind = self.pick("start", "append", "append", "append", "claim", "claim", *RARE)
        if kind == "start":
            return kind, ([self.new_run() for _ in range(self.pick(1, 3))],), {}
        if kind == "append":
            return kind, ([await self.append(model) for _ in range(self.pick(1, 4))],), {}
        if kind == "claim":
            until = {"now_us": self.now(), "lease_until_us": self.now() + 100}
            return kind, (self.pick("w_1", "w_2"), kit.GRAPHS), until | {"limit": self.pick(1, 5)}
        if kind == "post":
            return kind, (self.mail(),), {}
        if kind == "set_limit":
            return kind, (self.limit(),), {}
        if kind == "drop_limit":
            return kind, (self.pick("", "*", "t"), self.pick("", "g")), {}
        if kind == "take":
            lease = {"now_us": self.now(), "lease_until_us": self.now() + 100}
            return kind, (self.run_id(), "w_2"), lease | {"token": self.pick(0, 1, 2)}
        target = f"{self.run_id()}{self.pick('a', 'b', 'c')}"
        if kind == "answer":
            return kind, (f"a_{target}",), {"value_wire": b"v", "by": "ann", "at_us": self.now()}
        if kind == "decide":
            decision = {"happened": self.pick(True, False), "result_wire": None, "by": "ann"}
            return kind, (f"e_{target}",), decision | {"at_us": self.now()}
        held = [(self.run_id(), self.pick(1, 2)) for _ in range(3)]
        until = {"now_us": self.now(), "lease_until_us": self.now() + 100}
        return "renew", ("w_1", held), until

    async def append(self, model: Store) -> Any:
        running = await model.find_runs(RunQuery(statuses=(RunStatus.RUNNING,)))
        if not running:
            row = kit.RunRow(
                run_id=self.run_id(), tenant="t", thread="x", ordinal=1, graph="g", version=1,
                status=RunStatus.PENDING,
            )  # fmt: skip
        else:
            row = self.pick(*running)
        changes = [self.change(row) for _ in range(self.pick(0, 1, 2))]
        if any(isinstance(change, RunReleased | RunEnded) for change in changes[:-1]):
            changes = changes[:1]  # a run that was let go of, or has ended, changes no more
        wrong = {"token": row.token + 1} if self.random.random() < 0.1 else {}
        return kit.appended_to(row, *changes, at_us=self.now(), **wrong)


RARE = ("post", "post", "answer", "decide", "renew", "set_limit", "drop_limit", "take")


async def outcome_of(store: Store, operation: tuple[str, tuple[Any, ...], dict[str, Any]]) -> Any:
    name, arguments, named = operation
    try:
        outcome = await getattr(store, name)(*arguments, **named)
    except Exception as error:  # noqa: BLE001  # both stores must refuse alike, whatever it is
        return repr(error)
    return [repr(each) for each in outcome] if isinstance(outcome, list) else outcome


async def everything(store: Store, names: list[str]) -> dict[str, Any]:
    limits = await store.read_limits()
    found: dict[str, Any] = {
        "runs": await store.find_runs(RunQuery(limit=1000)),
        "asks": sorted(await store.find_asks(AskQuery(limit=1000)), key=lambda row: row.ask_id),
        "effects": sorted(
            await store.find_effects(EffectQuery(limit=1000)), key=lambda row: row.effect_id
        ),
        "next": await store.next_ready_at(kit.GRAPHS),
        "limits": limits.limits,
        "running": limits.running,
    }
    for row in found["runs"]:
        found[f"frames {row.run_id}"] = await store.read_frames(row.run_id)
        found[f"mail {row.run_id}"] = await store.read_mail(row.run_id)
        found[f"thread {row.thread}"] = await store.read_thread(row.tenant, row.thread)
    return found


async def does_what_memory_does(store: Store, seed: int) -> None:
    script = Script(seed)
    model = MemoryStore("memory://", system_services())
    await asyncio.gather(model.open(), store.open())
    try:
        for step in range(STEPS):
            operation = await script.operation(model)
            expected = await outcome_of(model, operation)
            found = await outcome_of(store, operation)
            assert found == expected, (seed, step, operation)
        expected = await everything(model, script.names)
        for name, rows in (await everything(store, script.names)).items():
            assert rows == expected[name], (seed, name)
    finally:
        await store.close()


@pytest.mark.parametrize("seed", range(30))
async def test_sqlite_does_what_memory_does(seed: int):
    with tempfile.TemporaryDirectory() as folder:
        store = SqliteStore(f"sqlite:///{folder}/store.db", system_services())
        await does_what_memory_does(store, seed)


@pytest.mark.parametrize("seed", range(100, 130))
async def test_postgres_does_what_memory_does(seed: int, postgres, schema):
    await does_what_memory_does(PostgresStore(postgres.url(schema), system_services()), seed)
