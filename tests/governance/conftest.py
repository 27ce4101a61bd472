"""A store with something of everything, and back doors to damage it."""

import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import pytest

from perdure import END, START, Context, Graph, Rejected, Runtime, append, effect
from perdure.governance import load_private_key, make_key
from tests.beside import beside


@dataclass
class Order:
    order_id: str = ""
    amount: int = 0
    notes: Annotated[list[str], append] = field(default_factory=list)


@effect(kind="keyed")
async def charge(order_id: str, amount: int, *, idempotency_key: str) -> str:
    return f"receipt {order_id} {amount}"


@effect(kind="once")
async def ship(order_id: str) -> str:
    if order_id.startswith("lost"):
        raise ConnectionError("no answer")
    if order_id.startswith("refused"):
        raise Rejected("no such address")
    return "shipped"


@effect(kind="pure")
async def weigh(order_id: str) -> int:
    return len(order_id)


graph = Graph(Order, name="orders")


@graph.node
async def pay(state: Order, ctx: Context) -> dict:
    weight = await ctx.call(weigh, state.order_id)
    receipt = await ctx.call(charge, state.order_id, state.amount)
    return {"notes": [receipt, str(weight)]}


@graph.node
async def approve(state: Order, ctx: Context) -> dict:
    if state.amount < 100:
        return {}
    answer = await ctx.ask(f"Send {state.order_id}?")
    return {"notes": [f"{answer.by}: {answer.value}"]}


@graph.node
async def send(state: Order, ctx: Context) -> dict:
    return {"notes": [await ctx.call(ship, state.order_id)]}


graph.edge(START, pay)
graph.edge(pay, approve)
graph.edge(approve, send)
graph.edge(send, END)


class Tampered:
    """The file of a store, written to behind its back."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def run(self, sql: str, *params: object) -> list[tuple]:
        db = beside(self.path)
        try:
            return db.execute(sql, params).fetchall()
        finally:
            db.close()

    def frames(self, run_id: str) -> list[tuple]:
        return self.run(
            "SELECT first_seq, count, token, at_us, body, prev_hash, hash FROM perdure_frames "
            "WHERE run_no = (SELECT run_no FROM perdure_runs WHERE run_id = ?) ORDER BY first_seq",
            run_id,
        )

    def set_frame(self, run_id: str, first_seq: int, /, **columns: object) -> None:
        names = ", ".join(f"{name} = ?" for name in columns)
        self.run(
            f"UPDATE perdure_frames SET {names} WHERE first_seq = ? AND run_no = "
            "(SELECT run_no FROM perdure_runs WHERE run_id = ?)",
            *columns.values(),
            first_seq,
            run_id,
        )

    def drop_frames(self, run_id: str, from_seq: int, to_seq: int = 2**62) -> None:
        self.run(
            "DELETE FROM perdure_frames WHERE first_seq BETWEEN ? AND ? AND run_no = "
            "(SELECT run_no FROM perdure_runs WHERE run_id = ?)",
            from_seq,
            to_seq,
            run_id,
        )

    def drop_rows(self, table: str, run_id: str) -> None:
        self.run(
            f"DELETE FROM perdure_{table} WHERE run_no = "
            "(SELECT run_no FROM perdure_runs WHERE run_id = ?)",
            run_id,
        )

    def set_run(self, run_id: str, **columns: object) -> None:
        names = ", ".join(f"{name} = ?" for name in columns)
        self.run(f"UPDATE perdure_runs SET {names} WHERE run_id = ?", *columns.values(), run_id)


async def _still(run) -> None:
    while True:
        status = await run.status()
        if status.is_final or status == "needs_decision":
            return
        await asyncio.sleep(0.01)


async def ended(runtime: Runtime, *, thread: str, order_id: str, amount: int = 5):
    run = await runtime.start(
        graph, {"order_id": order_id, "amount": amount}, thread=thread, key=f"{thread}-{order_id}"
    )
    if amount >= 100:
        while not (asks := await runtime.asks(run_id=run.id)):  # noqa: ASYNC110  # the store tells
            await asyncio.sleep(0.01)
        await runtime.answer(asks[0].id, "yes", by="ada")
    async with asyncio.timeout(15):
        await _still(run)
    return run.id


async def fill(path: Path) -> dict[str, list[str]]:
    """Write two threads with all kinds of ends; return run ids by thread."""
    async with Runtime.open(f"sqlite:///{path}", graphs=[graph]) as runtime:
        first = [
            await ended(runtime, thread="t", order_id="a"),
            await ended(runtime, thread="t", order_id="b", amount=150),
            await ended(runtime, thread="t", order_id="refused"),
            await ended(runtime, thread="t", order_id="c"),
        ]
        other = [await ended(runtime, thread="u", order_id="lost")]
        asking = await runtime.start(graph, {"order_id": "w", "amount": 200}, thread="v")
        while not await runtime.asks(run_id=asking.id):  # noqa: ASYNC110  # as above
            await asyncio.sleep(0.01)
        return {"t": first, "u": other, "v": [asking.id]}


@pytest.fixture(scope="session")
def filled(tmp_path_factory):
    """A store that was filled once: copied for every test."""
    path = tmp_path_factory.mktemp("audit") / "store.db"
    ids = asyncio.run(fill(path))
    db = beside(path)
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    db.close()
    return path, ids


@pytest.fixture
def store(filled, tmp_path):
    path, _ids = filled
    copy = tmp_path / "store.db"
    copy.write_bytes(path.read_bytes())
    return Tampered(copy)


@pytest.fixture
def ids(filled):
    return filled[1]


@pytest.fixture
def key(tmp_path):
    make_key(tmp_path / "key")
    return load_private_key(tmp_path / "key")
