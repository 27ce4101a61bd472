"""The network between the hosts and the one store.

Every call is a request on its way, a turn at the store, and an answer on its way back; the caller
waits for the answer until it gives up. What was sent arrives whether or not the caller still waits,
so a write may come after its caller has called again.
"""

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any

from msgspec import Struct

from perdure.engine import patient_store
from perdure.errors import CommitUncertain, StoreUnavailable
from perdure.model import Append, Appended, RunRow
from perdure.store.api import REMOTE
from perdure.testing.clock import VirtualClock
from perdure.testing.simulator._faults import Faults
from perdure.testing.simulator._hosts import Host
from perdure.testing.simulator._trace import Trace
from perdure.testing.simulator._truth import TruthStore
from perdure.testing.simulator.limits import NOTICE_S_MAX

WRITES = frozenset(
    {
        "start",
        "append",
        "put_pages",
        "erase",
        "put_tag",
        "begin_collection",
        "drop_pages",
        "end_collection",
        "set_quota",
        "begin_erasure",
        "erase_run",
        "drop_keys",
        "end_erasure",
        "note_export",
        "claim",
        "renew",
        "post",
        "answer",
        "decide",
        "expire",
        "take",
        "register_worker",
        "forget_worker",
    }
)
CALLS = sorted({*patient_store.REPEATED, "claim", "take", "renew", "transact"})


class Call(Struct, eq=False):
    """One call on its way."""

    host: Host
    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    answer: "asyncio.Future[Any]"
    number: int

    def succeed(self, result: Any) -> None:
        """Answer, if somebody still waits."""
        if not self.answer.done():
            self.answer.set_result(result)

    def fail(self, error: BaseException) -> None:
        """Fail, if somebody still waits."""
        if not self.answer.done():
            self.answer.set_exception(error)
            self.answer.exception()  # a caller that is gone does not ask for it

    def lose(self, *, is_known: bool) -> None:
        """Fail as a call does whose answer will never come."""
        if self.name in WRITES and not is_known:
            self.fail(CommitUncertain(f"the answer of {self.name!r} was lost"))
        else:
            self.fail(StoreUnavailable(f"{self.name!r} did not get through; nothing was written"))


class Network:
    """All links to the store, and what goes wrong on them."""

    def __init__(
        self, truth: TruthStore, clock: VirtualClock, trace: Trace, faults: Faults, seed: str
    ) -> None:
        """Connect nobody yet. `after`: called after each call that reached the store."""
        self.truth = truth
        self.clock = clock
        self.trace = trace
        self.faults = faults
        self.is_calm = not faults.chaos_s
        self.after: Callable[[Call, Any], None] = lambda _call, _result: None
        self.epoch = 0
        self.is_down = False
        self.cut: set[str] = set()
        self._random = random.Random(seed)
        self._timeout_s = self._random.uniform(*faults.call_timeout_s)
        self.has_clock = self._random.random() < faults.server_clock
        self._sent = 0
        self._stall: asyncio.Event | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Let something happen that belongs to no host."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _hits(self, rate: float) -> bool:
        return not self.is_calm and self._random.random() < rate

    def _way_s(self) -> float:
        way_s = self._random.uniform(*self.faults.delay_s)
        if self._hits(self.faults.slow):
            way_s += self._random.uniform(*self.faults.slow_s)
        return way_s

    # -- states of the store and of links ----------------------------------------------------------

    def stall(self) -> None:
        """Let the store answer nobody until `go_on`."""
        self._stall = self._stall or asyncio.Event()
        self.trace.fault("store", "stall")

    def go_on(self) -> None:
        """Let it answer again."""
        if self._stall is not None:
            self._stall.set()
            self._stall = None
            self.trace.add("store", "answers again")

    def crash(self) -> None:
        """Take the store down: what is committed stays, calls in flight fail."""
        self.is_down = True
        self.epoch += 1
        self.trace.fault("store", "store crash")

    def restart(self) -> None:
        """Bring it up again."""
        self.is_down = False
        self.trace.add("store", "is up again")

    # -- one call ----------------------------------------------------------------------------------

    async def call(
        self, host: Host, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Make a call from a host, and return or raise what comes back."""
        if name in WRITES:
            host.reach(f"before {name}")
        await host.gate()
        if host.is_torn_down:
            raise asyncio.CancelledError
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._sent += 1
        call = Call(host, name, args, kwargs, answer, self._sent)
        sent_s = host.clock.monotonic_s()
        if name == "claim":
            host.claims[kwargs["lease_until_us"]] = sent_s
        self.spawn(self._travel(call))
        giving_up = asyncio.create_task(self._give_up(call))
        answer.add_done_callback(lambda _answer: giving_up.cancel())
        host.asking[name] += 1
        try:
            result = await host.receive(answer)
        except (CommitUncertain, StoreUnavailable) as error:
            host.failures += name in {"claim", "start", "find_runs"}
            self.trace.add(host.name, f"{name} failed: {type(error).__name__}")
            raise
        finally:
            host.asking[name] -= 1
        _acknowledge(call, sent_s, result)
        return result

    async def _give_up(self, call: Call) -> None:
        await self.clock.sleep(self._timeout_s)
        call.lose(is_known=False)

    async def _travel(self, call: Call) -> None:
        """Carry a request to the store, and its answer back."""
        epoch = self.epoch
        if self._hits(self.faults.request_lost):
            self.trace.fault(call.host.name, "request lost", call.name)
            if self._random.random() < 0.5:  # noqa: PLR2004  # half and half
                call.lose(is_known=True)
            return
        again_s = (
            self._random.uniform(*self.faults.slow_s) if self._hits(self.faults.repeated) else 0
        )
        await self.clock.sleep(self._way_s())
        if not self._arrives(call, epoch):
            return
        while self._stall is not None:
            await self._stall.wait()
        if self.epoch != epoch:
            call.lose(is_known=False)
            return
        answer = await self._execute(call)
        await self.clock.sleep(self._way_s())
        if self.epoch != epoch or call.host.name in self.cut:
            call.lose(is_known=False)
        elif self._hits(self.faults.answer_lost):
            self.trace.fault(call.host.name, "answer lost", call.name)
        else:
            answer()
        if again_s and call.name in WRITES:
            await self.clock.sleep(again_s)
            if not self.is_down:
                self.trace.fault(call.host.name, "request repeated", call.name)
                await self._execute(call)

    def _arrives(self, call: Call, epoch: int) -> bool:
        """Return whether the request reaches the store; else its caller is told, or times out."""
        if call.host.name in self.cut:
            return False
        if self.is_down or self.epoch != epoch:
            call.lose(is_known=self.epoch == epoch)
            return False
        return True

    async def _execute(self, call: Call) -> Callable[[], None]:
        """Let the store do it; return what gives the answer to the caller."""
        try:
            result = await getattr(self.truth, call.name)(*call.args, **call.kwargs)
        except Exception as error:  # noqa: BLE001  # handed to the caller, whatever it is
            failure = error
            self.trace.add(call.host.name, f"{call.name}: {type(error).__name__}")
            return lambda: call.fail(failure)
        if call.name in WRITES:
            self.trace.add(call.host.name, f"{call.name} {_brief(call)}-> {_brief_result(result)}")
            call.host.reach(f"after {call.name}")
        self.after(call, result)
        return lambda: call.succeed(result)


def _taken_rows(call: Call, result: Any) -> list[RunRow]:
    """Return the runs that a call's answer says the caller holds from now on."""
    if call.name == "start":
        return [started.row for started in result if getattr(started, "taken", False)]
    return list(result) if call.name == "claim" else []


def _acknowledge(call: Call, sent_s: float, result: Any) -> None:
    """Take in what a host now knows: its leases count from the sending."""
    leases, claims = call.host.leases, call.host.claims
    for row in _taken_rows(call, result):
        leases[row.run_id, row.token] = sent_s
    if call.name == "renew":
        for run_id, token in call.args[1]:
            if run_id not in result:
                leases[run_id, token] = sent_s
    if call.name == "find_runs" and call.args[0].holder is not None:
        for row in result:  # a claim whose answer was lost
            if row.ready_at_us in claims:
                leases.setdefault((row.run_id, row.token), claims[row.ready_at_us])


def _brief(call: Call) -> str:
    if call.name == "append":
        return " ".join(_brief_append(item) for item in call.args[0]) + " "
    if call.name == "start":
        return " ".join(str(new.run_id) for new in call.args[0]) + " "
    if call.name == "post":
        mail = call.args[0]
        return f"{mail.run_id} {mail.kind.value} {mail.subject} "
    if call.name in {"answer", "decide", "expire"}:
        return f"{call.args[0]} "
    return ""


def _brief_append(item: Append) -> str:
    changes = ",".join(type(change).__name__ for change in item.changes)
    return f"{item.run_id}#{item.token}@{item.first_seq}+{item.count}[{changes}]"


def _brief_result(result: Any) -> str:
    if isinstance(result, (list, tuple)):
        return "[" + ", ".join(_brief_result(each) for each in result) + "]"
    if isinstance(result, (set, frozenset)):
        return "{" + ", ".join(sorted(str(each) for each in result)) + "}"
    if isinstance(result, Appended):
        return "ok"
    accepted = getattr(result, "accepted", None)
    if accepted is not None:
        return f"accepted={accepted}"
    row = getattr(result, "row", result)
    run_id = getattr(row, "run_id", None)
    if run_id is not None:
        return f"{run_id}#{getattr(row, 'token', '')} {getattr(row, 'status', '')}"
    return type(result).__name__


class Link:
    """A host's store: the calls go over the network."""

    capabilities = frozenset({REMOTE})
    url = "simulated://"

    def __init__(self, network: Network, host: Host) -> None:
        """Connect a host."""
        self._network = network
        self._host = host
        for name in CALLS:
            setattr(self, name, self._calling(name))

    def _calling(self, name: str) -> Callable[..., Coroutine[Any, Any, Any]]:
        async def call(*args: Any, **kwargs: Any) -> Any:
            """Make the call over the network."""
            return await self._network.call(self._host, name, args, kwargs)

        return call

    async def open(self) -> None:
        """Connect: nothing can go wrong yet."""

    async def close(self) -> None:
        """Disconnect: nothing to do."""

    def now_us(self) -> int:
        """Return the server's time as this host estimates it, or the host's own."""
        if self._network.has_clock:
            return self._network.clock.now_us() + self._host.estimate_us
        return self._host.clock.now_us()

    def change_mark(self) -> int:
        """Return how many writes are known of."""
        return self._network.truth.change_mark()

    async def wait_for_change(self, timeout_s: float, *, since: int | None = None) -> bool:
        """Wait for news of a write; where they get lost, notice it by a look some seconds later."""
        network, host = self._network, self._host
        await host.gate()
        mark = network.truth.change_mark() if since is None else since
        changed = await network.truth.wait_for_change(timeout_s, since=mark)
        if host.name in network.cut or network.is_down:
            await network.clock.sleep(min(timeout_s, NOTICE_S_MAX))
        await host.gate()
        return changed
