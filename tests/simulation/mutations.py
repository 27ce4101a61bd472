"""Rules that are broken on purpose, to see that the simulator notices; and how soon.

Each mutation patches one rule of a store or of the engine from here: nothing in `src` can be told
to be wrong. `python -m tests.simulation.mutations` says for each how many seeds it took.
"""

import contextlib
import logging
import sys
from unittest import mock

from msgspec.structs import replace

from perdure.engine import environment, execution, patient_store, queue, worker
from perdure.store import _memory_writes as writes
from perdure.store import _rules as rules
from perdure.testing.simulator import SimulationFailed
from perdure.testing.simulator._seeds import play_seed, undisturbed

MUTATIONS = {}
BOUND = {}


def mutation(bound):
    """Register what breaks a rule for a while; it must show within `bound` seeds."""

    def register(make):
        MUTATIONS[make.__name__] = contextlib.contextmanager(make)
        BOUND[make.__name__] = bound
        return make

    return register


@mutation(bound=10)
def fence():
    """The store takes an append under any token, if only the run is running at that seq."""

    def holds(row, item):
        return row.status == "running" and item.first_seq == row.last_seq + 1

    with mock.patch.object(writes, "_fence_holds", holds):
        yield


@mutation(bound=10)
def barrier():
    """A barrier returns before anything is durable."""

    async def at_once(journal):
        if journal.error is not None:
            raise journal.error

    with mock.patch.object(queue.RunJournal, "barrier", at_once):
        yield


@mutation(bound=10)
def intent_before_dispatch():
    """The intent of an effect is written with its result, not before."""

    async def at_once(_execution):
        return

    with mock.patch.object(execution.Execution, "barrier", at_once):
        yield


@mutation(bound=10)
def answer_once():
    """A second answer to an ask is accepted, and posted."""

    def answerable(ask, at_us):
        return ask.state in {"open", "answered"}

    def answered(ask, *, value_wire, by, at_us):
        return replace(
            ask, state="answered", value_wire=value_wire, answered_by=by, answered_at_us=at_us
        )

    with (
        mock.patch.object(rules, "is_answerable", answerable),
        mock.patch.object(rules, "answered", answered),
    ):
        yield


@mutation(bound=10)
def append_come_again():
    """An append that is written already is refused when it comes again."""
    with mock.patch.object(writes, "_is_written", return_value=False):
        yield


@mutation(bound=10)
def post_come_again():
    """A message whose answer was lost is stored a second time."""
    with mock.patch.object(writes, "is_posted", return_value=False):
        yield


@mutation(bound=120)
def answer_come_again():
    """The answer that stands is refused when it comes again, as if another had given it."""
    with mock.patch.object(rules, "is_own_answer", return_value=False):
        yield


@mutation(bound=60)
def start_come_again():
    """A start that comes again is told that its run exists, not that it holds it."""
    with mock.patch.object(rules, "_is_taken", return_value=False):
        yield


@mutation(bound=10)
def claim_of_live_lease():
    """A claim takes runs up to five seconds before their lease has ended."""
    real = writes.claim

    def claim(tables, worker_id, graphs, *, now_us, lease_until_us, limit):
        return real(
            tables,
            worker_id,
            graphs,
            now_us=now_us + 5_000_000,
            lease_until_us=lease_until_us,
            limit=limit,
        )

    with mock.patch.object(writes, "claim", claim):
        yield


@mutation(bound=40)
def watchdog_from_the_answer():
    """The age of a lease is counted from the answer of its renewal, not from its sending."""
    real = worker.Worker._beat_loop

    async def beat(self):
        before = {run_id: entry[1].leased_s for run_id, entry in self._held.items()}
        await real(self)
        now_s = self._engine.services.clock.monotonic_s()
        for run_id, (_row, held, _task) in self._held.items():
            if held.leased_s != before.get(run_id):
                held.leased_s = now_s

    with mock.patch.object(worker.Worker, "_beat_loop", beat):
        yield


@mutation(bound=40)
def no_watchdog():
    """A lease is taken for safe for ever."""
    with mock.patch.object(environment.Environment, "is_lease_safe", return_value=True):
        yield


@mutation(bound=60)
def wake_up_on_release():
    """A run that is released with unread mail is not woken."""
    with mock.patch.object(rules, "unread_wakes", return_value=False):
        yield


@mutation(bound=10)
def commit_order():
    """Of two appends of a run the later one may be written first."""

    def holds(row, item):
        return row.status == "running" and row.token == item.token

    real = queue.RunJournal.take

    def take(journal):
        item = real(journal)
        return replace(item, first_seq=item.first_seq + (item.first_seq % 7 == 0))

    with (
        mock.patch.object(writes, "_fence_holds", holds),
        mock.patch.object(queue.RunJournal, "take", take),
    ):
        yield


@mutation(bound=40)
def resend_blindly():
    """An uncertain effect of kind once is sent again as if it had failed."""
    real = writes.decide

    def decide(tables, effect_id, *, happened, result_wire, by, at_us):
        return real(tables, effect_id, happened=False, result_wire=None, by=by, at_us=at_us)

    with mock.patch.object(writes, "decide", decide):
        yield


@mutation(bound=10)
def release_without_due_time():
    """A run that waits for a time is released without it."""
    real = writes._released

    def released(tables, row, item, change):
        real(tables, row, item, replace(change, ready_at_us=None))

    with mock.patch.dict(writes._APPLY, {writes.RunReleased: released}):
        yield


@mutation(bound=60)
def claim_whose_answer_is_lost():
    """A claim whose answer was lost takes in whatever the worker holds, at any lease."""

    async def claim(self, *args, **kwargs):
        try:
            return await self._store.claim(*args, **kwargs)
        except patient_store.CommitUncertain:
            return await self._store.claim(*args, **kwargs)

    with mock.patch.object(patient_store.PatientStore, "claim", claim):
        yield


def seeds_until_found(name, bound, first=0):
    """Return how many seeds it took, and what was violated; None: it was not found."""
    undisturbed()
    with MUTATIONS[name]():
        for seed in range(first, first + bound):
            try:
                play_seed(seed)
            except SimulationFailed as failure:
                return seed - first + 1, failure.what
            except Exception as error:  # noqa: BLE001  # code that meets a broken rule may break too
                return seed - first + 1, repr(error)
    return None


def say(line):
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main():
    """Say for each mutation how many seeds it took."""
    logging.getLogger("perdure").setLevel(logging.CRITICAL)
    missed = 0
    names = sys.argv[1:] or list(MUTATIONS)
    for name in names:
        found = seeds_until_found(name, BOUND[name])
        missed += found is None
        if found is None:
            say(f"{name}: NOT FOUND within {BOUND[name]} seeds")
        else:
            say(f"{name}: {found[0]} seed(s) of at most {BOUND[name]}: {found[1][:150]}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
