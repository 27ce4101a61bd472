"""Run in a child process by the tests: holds a run until it is killed, or dies at a crash point."""

import asyncio
import os
import signal
import sys

from perdure.clock import Services, SystemClock, SystemIds, SystemRng
from perdure.ids import RunId, WorkerId
from perdure.model import MailKind
from perdure.store.sqlite import SqliteStore
from perdure.testing import _store_kit as kit


def services(die_at: str) -> Services:
    def probe(name: str) -> None:
        if name == die_at:
            os.kill(os.getpid(), signal.SIGKILL)

    return Services(clock=SystemClock(), rng=SystemRng(), ids=SystemIds(), probe=probe)


async def hold(url: str, worker_id: str) -> None:
    store = SqliteStore(url, services(""))
    await store.open()
    await store.register_worker(kit.worker(WorkerId(worker_id)))
    await kit.taken(store, worker_id, take_for=worker_id, lease_until_us=2 * kit.FAR)
    sys.stdout.write("held\n")
    sys.stdout.flush()
    await asyncio.Event().wait()


async def die(url: str, point: str) -> None:
    store = SqliteStore(url, services(point))
    await store.open()
    await WRITES[point.split(".")[1]](store)
    sys.exit("survived")


async def append(store: SqliteStore) -> None:
    row = await kit.the_run(store, "r_a")
    await store.append([kit.appended_to(row, kit.waiting())])


async def decide(store: SqliteStore) -> None:
    effect_id = kit.EffectId("e_x")
    await store.decide(effect_id, happened=True, result_wire=None, by="ann", at_us=kit.T0)


async def renew(store: SqliteStore) -> None:
    row = await kit.the_run(store, "r_a")
    held = [(row.run_id, row.token)]
    worker_id = WorkerId(row.holder or "")
    await store.renew(worker_id, held, now_us=kit.T0, lease_until_us=2 * kit.FAR)


async def come_and_go(store: SqliteStore) -> None:
    await store.register_worker(kit.worker(WorkerId("w_new")))
    await store.forget_worker(WorkerId("w_new"))


async def transact(store: SqliteStore) -> None:
    row = await kit.the_run(store, "r_a")

    async def body(transaction):
        await transaction.execute("CREATE TABLE orders (name)")
        return kit.appended_to(row)

    await store.transact(body, run_id=row.run_id, token=row.token)


ASK = kit.AskId("a_x")
WRITES = {
    "start": lambda store: kit.started(store, "new"),
    "append": append,
    "claim": lambda store: kit.claimed(store, now_us=kit.FAR),
    "post": lambda store: store.post(kit.signal_to(RunId("r_a"), kind=MailKind.SIGNAL)),
    "answer": lambda store: store.answer(ASK, value_wire=b"\xc3", by="ann", at_us=kit.T0),
    "decide": decide,
    "expire": lambda store: store.expire(ASK, at_us=kit.T0),
    "renew": renew,
    "register": come_and_go,
    "forget": come_and_go,
    "transact": transact,
}


async def open_and_start(url: str, name: str) -> None:
    store = SqliteStore(url, services(""))
    await store.open()
    for number in range(10):
        await kit.started(store, f"{name}_{number}")
    await store.close()


async def create(folder: str, number: str) -> None:
    for each in range(int(number)):
        store = SqliteStore(f"sqlite:///{folder}/{each}.db", services(""))
        await store.open()
        await store.close()


if __name__ == "__main__":
    action = {"hold": hold, "die": die, "start": open_and_start, "create": create}[sys.argv[1]]
    asyncio.run(action(*sys.argv[2:]))
