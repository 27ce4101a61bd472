"""A run's state is the fold of its journal, wherever one begins to read.

`Writer` writes random legal journals: effects of every kind and outcome, waits, retries, fan-out,
subgraphs, sandbox snapshots and whole copies of the state, cut off at any place.
"""

import copy
import operator
from types import SimpleNamespace

from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from perdure.codec import TypeRegistry, ValueCodec, decode_record, encode_record
from perdure.core import fold
from perdure.core.merge import merge
from perdure.core.plan import Channel
from perdure.model import EffectKind, Failure, WriteOp
from perdure.model import records as rec

codec = ValueCodec(TypeRegistry())
PLAN = SimpleNamespace(
    name="g",
    channels={
        "last": Channel(name="last", op=WriteOp.REPLACE),
        "notes": Channel(name="notes", op=WriteOp.APPEND),
        "total": Channel(name="total", op=WriteOp.FOLD, reduce=operator.add),
    },
)
FAILURE = Failure(type="E", message="no")


def raw(value):
    return Raw(codec.encode(value))


def new_state(started=None, last_seq=0):
    state = fold.RunState("r_1")
    state.started, state.last_seq = started, last_seq
    return state


class Writer:
    """Writes a journal by random choices, each legal after what was written."""

    def __init__(self, chance):
        self.chance = chance
        self.at_us = 0
        self.names = 0
        self.state = new_state()
        self.records = []
        self.snapshots = []
        self.live = {}
        self.live_by_seq = {}

    def write(self, kind, *fields):
        self.at_us += 1
        record = kind(self.at_us, *fields)
        fold.apply(self.state, record)
        self.records.append(record)

    def new_name(self, prefix):
        self.names += 1
        return f"{prefix}{self.names}"

    def run(self, steps):
        start = {"notes": ("a", [0]), "total": ("f", 1)}
        encoded = {name: (op, raw(value)) for name, (op, value) in start.items()}
        self.write(rec.RunStarted, "r_1", "default", "t", "g", 1, encoded)
        self.commit("", 0, [("input", start)])
        for step in range(1, steps + 1):
            self.write(rec.LeaseTaken, "w", step, 1)
            self.work_on("")
            self.commit("", step, [])
            if self.chance.random() < 0.5:
                self.copy_state(step)

    def specs(self, most):
        nodes = [rec.TaskSpec(f"n{n}") for n in range(self.chance.randint(0, most))]
        sent = self.chance.randint(0, most)
        return nodes + [rec.TaskSpec("sent", n + 1, raw(n)) for n in range(sent)]

    def commit(self, scope, step, updates):
        tasks = self.state.scopes[scope].tasks if scope in self.state.scopes else {}
        for path, task in tasks.items():
            items = task.outcome.writes.items()
            updates.append((path, {name: (op, codec.decode(r)) for name, (op, r) in items}))
        folded = {}
        if scope == "":
            self.live, names = merge(PLAN, self.live, updates)
            folded = {name: raw(self.live[name]) for name in names}
        checkpoint = self.state.checkpoint + (scope == "")
        snapshot = self.state.snapshot
        self.write(rec.StepCommitted, scope, step, checkpoint, folded, self.specs(2), snapshot)

    def copy_state(self, step):
        whole = {name: ("r", raw(value)) for name, value in self.live.items()}
        following = [task.spec for task in self.state.root.tasks.values()]
        self.snapshots.append(len(self.records))
        self.write(
            rec.StateSnapshot, step, self.state.checkpoint, whole, following, self.state.snapshot
        )

    def work_on(self, scope):
        """Bring every task of a scope to its end, mixed with each other."""
        waiting = list(self.state.scopes[scope].tasks)
        while waiting:
            path = self.chance.choice(waiting)
            if self.chance.random() < 0.3:
                waiting.remove(path)
                self.finish(path, is_first=not waiting)
            else:
                self.chance.choice(self.ACTS)(self, path)

    def finish(self, path, *, is_first):
        writes = {"notes": ("a", raw([path])), "total": ("f", raw(2))}
        if is_first:
            writes["last"] = ("r", raw(path))
        self.write(rec.NodeFinished, path, self.at_us, writes, self.state.task(path).attempt)

    # -- acts ---------------------------------------------------------------------------------

    def inner_graph(self, path):
        if path in self.state.scopes or path.count("/") > 1:
            return
        self.write(rec.StepCommitted, path, 0, 0, {}, self.specs(2))
        for step in range(1, self.chance.randint(1, 3)):
            self.work_on(path)
            self.commit(path, step, [])
        self.work_on(path)

    def node_fails(self, path):
        attempt = self.state.task(path).attempt
        self.write(rec.NodeFailed, path, attempt, FAILURE, self.at_us + 9)
        self.write(rec.NodeStarted, path, attempt + 1)

    def effect(self, path):
        kind = self.chance.choice(list(EffectKind))
        identity = self.new_name("e_")
        if kind.is_outside:
            self.outside(path, identity, kind.value)
            return
        for attempt in range(1, self.chance.randint(1, 3)):
            self.write(
                rec.EffectFailed, path, identity, "f", kind.value, FAILURE, attempt, self.at_us
            )
        if self.chance.random() < 0.8:
            self.write(rec.EffectConfirmed, path, identity, "f", kind.value, raw(1))
        if self.chance.random() < 0.3:
            self.write(rec.SandboxTaken, path, self.new_name("s"))

    def outside(self, path, identity, kind):
        for attempt in range(1, 5):
            self.write(
                rec.EffectIntended, path, identity, "f", kind, "k", "d", raw([[], {}]), attempt
            )
            end = self.chance.randrange(5)
            if end == 4:
                return
            if end in {2, 3}:
                self.write(rec.EffectUncertain, path, identity, "f", attempt, FAILURE, self.at_us)
            if end in {0, 2}:
                self.write(rec.EffectConfirmed, path, identity, "f", kind, raw(attempt), attempt)
                return
            if end == 1:
                self.write(
                    rec.EffectFailed, path, identity, "f", kind, FAILURE, attempt, self.at_us
                )

    def compensation(self, path):
        self.write(rec.CompensationStarted, "e_0", "f", "c_0")
        self.write(rec.CompensationEnded, "e_0", "f", None)

    def timer(self, path):
        call = self.new_name("c")
        self.write(rec.TimerSet, path, call, self.at_us + 5)
        if self.chance.random() < 0.7:
            self.write(rec.TimerFired, path, call)

    def ask(self, path):
        ask = self.new_name("a_")
        self.write(rec.Asked, path, ask, "really?", self.chance.choice([None, self.at_us + 7]))
        if (end := self.chance.randrange(3)) == 0:
            self.write(rec.AskAnswered, path, ask, raw({"granted": True}), "ann", self.at_us)
        elif end == 1:
            self.write(rec.AskLapsed, path, ask)

    def receive(self, path):
        call = self.new_name("c")
        self.write(rec.ReceiveStarted, path, call, "topic", None)
        if (end := self.chance.randrange(3)) == 0:
            self.write(rec.SignalConsumed, path, call, "topic", raw(1), "ann", self.at_us)
        elif end == 1:
            self.write(rec.ReceiveLapsed, path, call)

    def child(self, path):
        call = self.new_name("c")
        self.write(rec.Spawned, path, call, "r_2", "g")
        if self.chance.random() < 0.7:
            self.write(rec.ChildEnded, path, call, "r_2", "succeeded", raw({"a": 1}))

    def small_facts(self, path):
        self.write(rec.Noted, path, self.new_name("c"), raw(self.at_us))
        self.write(rec.Emitted, path, 1, raw("chunk"))
        self.write(rec.Released, "waiting")
        self.write(rec.RetryRequested, "ann")

    ACTS = (
        inner_graph,
        node_fails,
        effect,
        effect,
        compensation,
        timer,
        ask,
        receive,
        child,
        small_facts,
    )


@st.composite
def journals(draw):
    """A journal that was cut off anywhere; what it would have become is not part of it."""
    writer = Writer(draw(st.randoms(use_true_random=False)))
    writer.run(draw(st.integers(0, 4)))
    end = draw(st.integers(2, len(writer.records)))
    return [decode_record(encode_record(record)) for record in writer.records][:end]


def folded(records, state=None):
    state = state or new_state()
    fold.apply_all(state, records)
    return state


def view(state):
    """All that a holder knows, with values instead of the pieces that they are kept in."""
    seen = copy.copy(state)
    seen.scopes = {
        path: (
            scope.step,
            scope.tasks,
            fold_values(scope),
            [(name, op, bytes(r)) for name, op, r in scope.writes],
            scope.is_started,
        )
        for path, scope in state.scopes.items()
    }
    return {name: getattr(seen, name) for name in fold.RunState.__slots__}


def fold_values(scope):
    return {name: fold.decode_cell(cell, codec.decode) for name, cell in scope.cells.items()}


@given(journals(), st.data())
def test_the_fold_of_the_parts_is_the_fold_of_the_whole(records, data):
    cut = data.draw(st.integers(0, len(records)))
    assert view(folded(records[cut:], folded(records[:cut]))) == view(folded(records))


@given(journals())
def test_a_whole_copy_of_the_state_changes_nothing(records):
    without = [record for record in records if not isinstance(record, rec.StateSnapshot)]
    left, right = view(folded(records)), view(folded(without))
    assert left.pop("last_seq") - right.pop("last_seq") == len(records) - len(without)
    assert left == right


@given(journals())
def test_loading_may_begin_at_any_whole_copy(records):
    for place, record in enumerate(records):
        if isinstance(record, rec.StateSnapshot):
            state = new_state(records[0], last_seq=place)
            assert view(folded(records[place:], state)) == view(folded(records))


@given(st.randoms(use_true_random=False), st.integers(0, 5))
def test_the_cells_of_the_journal_hold_what_the_holder_had(chance, steps):
    writer = Writer(chance)
    writer.run(steps)
    assert fold_values(writer.state.root) == writer.live


@given(journals())
def test_results_of_contained_effects_need_a_snapshot(records):
    state = folded(records)
    tentative = {
        (scope.path, path, call.call_id)
        for scope in state.scopes.values()
        for path, task in scope.tasks.items()
        for call in task.calls.values()
        if call.kind == EffectKind.CONTAINED and call.result is not None and call.is_tentative
    }
    before = {
        (scope.path, path, call_id)
        for scope in state.scopes.values()
        for path, task in scope.tasks.items()
        for call_id in task.calls
    }
    fold.settle_sandbox(state)
    after = {
        (scope.path, path, call_id)
        for scope in state.scopes.values()
        for path, task in scope.tasks.items()
        for call_id in task.calls
    }
    assert after == before - tentative
    last = max((n for n, r in enumerate(records) if isinstance(r, rec.SandboxTaken)), default=-1)
    later = {
        record.effect_id
        for record in records[last + 1 :]
        if isinstance(record, rec.EffectConfirmed) and record.kind == EffectKind.CONTAINED
    }
    assert {call_id for _scope, _path, call_id in tentative} <= later
