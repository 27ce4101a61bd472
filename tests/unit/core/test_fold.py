"""The fold, case by case: what each record means, and journals that can't be."""

import typing

import pytest
from msgspec import Raw

from perdure.codec import TypeRegistry, ValueCodec
from perdure.core import fold
from perdure.errors import InvariantBroken
from perdure.model import EffectState, Failure
from perdure.model import records as rec

codec = ValueCodec(TypeRegistry())
FAILURE = Failure(type="E", message="no")


def raw(value):
    return Raw(codec.encode(value))


def started(**fields):
    return rec.RunStarted(1, "r_1", "default", "t", "g", 1, fields)


def at_work(*more):
    """A run whose nodes a and b (twice, by fan-out) are under way in step 1."""
    state = fold.RunState("r_1")
    specs = [rec.TaskSpec("a"), rec.TaskSpec("b", 1, raw(5)), rec.TaskSpec("b", 2, raw(6))]
    records = [started(notes=("a", raw([1])), x=("r", raw(0)))]
    fold.apply_all(state, [*records, rec.StepCommitted(2, "", 0, 1, {}, specs), *more])
    return state


def finished(task, **writes):
    return rec.NodeFinished(3, task, 2, writes)


def values(state):
    return {k: fold.decode_cell(c, codec.decode) for k, c in state.root.cells.items()}


def test_a_step_commits_what_its_nodes_wrote():
    state = at_work()
    assert list(state.root.tasks) == ["1:a", "1:b#1", "1:b#2"]
    assert state.root.tasks["1:b#2"].spec.is_sent
    assert (state.checkpoint, state.last_seq, state.root.step) == (1, 2, 1)
    fold.apply(state, finished("1:a", notes=("a", raw([2])), total=("f", raw(3))))
    fold.apply(state, finished("1:b#1", x=("r", raw(9)), new=("a", raw([7]))))
    assert values(state) == {"notes": [1], "x": 0}  # not before the step is committed
    fold.apply(state, rec.StepCommitted(4, "", 1, 2, {"total": raw(3)}, [], "s1"))
    assert values(state) == {"notes": [1, 2], "x": 9, "new": [7], "total": 3}
    assert state.root.tasks == {}
    assert state.snapshot == "s1"


def test_an_inner_graph_lives_until_its_outer_step_ends():
    state = at_work(
        rec.StepCommitted(3, "1:a", 0, 0, {}, [rec.TaskSpec("m")]),
        rec.StepCommitted(3, "1:b#1", 0, 0, {}, [rec.TaskSpec("m")]),
        rec.StepCommitted(3, "1:a/1:m", 0, 0, {}, [rec.TaskSpec("deep")]),
        finished("1:a/1:m/1:deep", x=("r", raw(1))),
    )
    assert set(state.scopes) == {"", "1:a", "1:b#1", "1:a/1:m"}
    fold.apply(state, rec.StepCommitted(4, "1:a/1:m", 1, 0, {}, []))
    assert [name for name, _op, _raw in state.scopes["1:a/1:m"].writes] == ["x"]
    fold.apply(state, finished("1:a/1:m"))
    fold.apply(state, rec.StepCommitted(4, "1:a", 1, 0, {}, []))
    assert set(state.scopes) == {"", "1:a", "1:b#1"}
    fold.apply(state, rec.StepCommitted(5, "", 1, 2, {}, []))
    assert set(state.scopes) == {""}


def test_a_live_scope_keeps_its_values():
    state = at_work(finished("1:a", x=("r", raw(9))))
    state.root.values = {"x": "live"}
    fold.apply(state, rec.StepCommitted(4, "", 1, 2, {}, [rec.TaskSpec("c")]))
    fold.apply(state, rec.StateSnapshot(5, 1, 2, {"x": ("r", raw(9))}, [rec.TaskSpec("c")]))
    assert state.root.values == {"x": "live"}
    assert values(state) == {"notes": [1], "x": 0}
    assert list(state.root.tasks) == ["2:c"]


def test_a_whole_copy_sets_the_snapshot_it_names():
    state = fold.RunState("r_1", started=started())
    fold.apply(state, rec.StateSnapshot(5, 3, 7, {"x": ("r", raw(9))}, [rec.TaskSpec("c")], "s9"))
    assert (values(state), state.checkpoint, state.root.step) == ({"x": 9}, 7, 4)
    assert (state.snapshot, list(state.root.tasks)) == ("s9", ["4:c"])


def test_a_fork_goes_on_with_the_files_of_its_origin():
    state = fold.RunState("r_1")
    fold.apply(state, rec.RunStarted(1, "r_1", "default", "t", "g", 1, {}, snapshot="s1"))
    assert state.snapshot == "s1"


def test_a_rollback_forgets_the_state_once_its_input_is_in():
    state = fold.RunState("r_1", snapshot="s9", step_snapshot="s9")
    before = state.root.cells = {"x": fold.Cell("r", [raw(1)]), "y": fold.Cell("r", [raw(2)])}
    back = rec.Rollback(3, "ada")
    given = {"x": ("r", raw(7))}
    fold.apply(state, rec.RunStarted(1, "r_1", "default", "t", "g", 1, given, rollback=back))
    assert values(state) == {"x": 1, "y": 2}, "it may still be cancelled"
    assert (state.snapshot, state.step_snapshot) == (None, "s9")
    fold.apply(state, rec.StepCommitted(2, "", 0, 5, {}, []))
    assert values(state) == {"x": 7}
    assert (state.snapshot, state.step_snapshot, state.checkpoint) == (None, None, 5)
    assert set(before) == {"x", "y"}, "the thread's own cells are left alone"


def test_attempts_of_a_node():
    state = at_work(rec.NodeFailed(3, "1:a", 1, FAILURE, 99))
    task = state.task("1:a")
    assert (task.attempt, task.retry_at_us, task.failure) == (2, 99, FAILURE)
    fold.apply(state, rec.NodeStarted(4, "1:a", 2))
    assert (task.attempt, task.retry_at_us, task.failure) == (2, None, None)
    fold.apply(state, rec.NodeFailed(5, "1:a", 2, FAILURE))
    assert (task.attempt, task.retry_at_us, task.failure) == (2, None, FAILURE)


def intended(attempt=1, kind="keyed"):
    return rec.EffectIntended(3, "1:a", "e_1", "pay", kind, "k", "d", raw([[], {}]), attempt)


def confirmed(kind="keyed", attempt=1):
    return rec.EffectConfirmed(4, "1:a", "e_1", "pay", kind, raw("ok"), attempt)


def failed(retry_at_us=None, kind="keyed", attempt=1):
    return rec.EffectFailed(4, "1:a", "e_1", "pay", kind, FAILURE, attempt, retry_at_us)


def uncertain(retry_at_us=None):
    return rec.EffectUncertain(4, "1:a", "e_1", "pay", 1, FAILURE, retry_at_us)


@pytest.mark.parametrize(
    ("records", "state", "due_us", "attempt"),
    [
        ([intended()], "intended", None, 1),
        ([intended(), confirmed()], "confirmed", None, 1),
        ([intended(), failed()], "failed", None, 1),
        ([intended(), failed(9)], "failed", 9, 1),
        ([intended(), failed(9), intended(2)], "intended", None, 2),
        ([intended(), uncertain(9)], "uncertain", 9, 1),
        ([intended(), uncertain(9), uncertain()], "uncertain", None, 1),
        ([intended(), uncertain(9), intended(2), confirmed(attempt=2)], "confirmed", None, 2),
        ([intended(), uncertain(), confirmed()], "confirmed", None, 1),
        ([intended(), uncertain(), failed()], "failed", None, 1),
        ([confirmed("pure")], "confirmed", None, 1),
        ([failed(9, "pure"), failed(None, "pure", 2)], "failed", None, 2),
        ([failed(9, "pure"), confirmed("pure", 2)], "confirmed", 9, 2),
    ],
)
def test_an_effect(records, state, due_us, attempt):
    call = at_work(*records).task("1:a").calls["e_1"]
    assert (call.state, call.due_us, call.attempt) == (state, due_us, attempt)
    assert (call.result is not None) == (state == "confirmed")


@pytest.mark.parametrize(
    "records",
    [
        [intended(), intended(2)],
        [intended(), confirmed(), confirmed()],
        [intended(), confirmed(), failed()],
        [intended(), confirmed(), uncertain()],
        [intended(), failed(), uncertain()],
        [uncertain()],
        [rec.TimerFired(3, "1:a", "c")],
        [rec.AskLapsed(3, "1:a", "c")],
        [rec.AskAnswered(3, "1:a", "c", raw(1), "ann", 3)],
        [rec.NodeStarted(3, "9:z", 1)],
        [rec.NodeStarted(3, "9:z/1:m", 1)],
        [finished("2:a")],
    ],
)
def test_a_journal_that_cant_be_is_a_broken_invariant(records):
    with pytest.raises(InvariantBroken):
        at_work(*records)


def test_a_step_without_a_start_is_a_broken_invariant():
    with pytest.raises(InvariantBroken, match="before the start record"):
        fold.apply(fold.RunState("r_1"), rec.StepCommitted(2, "", 0, 1, {}, []))


def test_contained_results_need_a_snapshot():
    state = at_work(confirmed("contained"))
    assert state.task("1:a").calls["e_1"].is_tentative
    fold.settle_sandbox(state)
    assert state.task("1:a").calls == {}
    state = at_work(confirmed("contained"), rec.SandboxTaken(5, "1:a", "s1"))
    fold.settle_sandbox(state)
    assert state.task("1:a").calls["e_1"].state == EffectState.CONFIRMED
    assert state.snapshot == "s1"


@pytest.mark.parametrize(
    ("opening", "closing", "state"),
    [
        (rec.TimerSet(3, "1:a", "c", 9), rec.TimerFired(4, "1:a", "c"), "done"),
        (rec.Asked(3, "1:a", "c", "?", 9), rec.AskLapsed(4, "1:a", "c"), "lapsed"),
        (
            rec.Asked(3, "1:a", "c", "?", 9),
            rec.AskAnswered(4, "1:a", "c", raw(5), "ann", 4),
            "done",
        ),
        (
            rec.ReceiveStarted(3, "1:a", "c", "t", 9),
            rec.SignalConsumed(4, "1:a", "c", "t", raw(5), "ann", 3),
            "done",
        ),
        (rec.ReceiveStarted(3, "1:a", "c", "t", 9), rec.ReceiveLapsed(4, "1:a", "c"), "lapsed"),
        (
            rec.Spawned(3, "1:a", "c", "r_2", "g"),
            rec.ChildEnded(4, "1:a", "c", "r_2", "failed", raw(5)),
            "done",
        ),
    ],
)
def test_a_wait_opens_and_closes(opening, closing, state):
    call = at_work(opening).task("1:a").calls["c"]
    assert (call.state, call.due_us) == ("open", None if call.kind == "child" else 9)
    call = at_work(opening, closing).task("1:a").calls["c"]
    assert (call.state, call.started, call.ended) == (state, opening, closing)
    has_value = any(hasattr(closing, name) for name in ("value", "result"))
    assert call.result == (raw(5) if has_value else None)


def test_facts_of_the_run():
    state = at_work(
        rec.LeaseTaken(3, "w", 1, 1),
        rec.Noted(3, "1:a", "c", raw(4)),
        rec.Emitted(3, "1:a", 1, raw("x")),
        rec.CompensationStarted(3, "e_1", "pay", "k"),
        rec.CompensationEnded(3, "e_1", "pay"),
        rec.Released(3, "waiting"),
        rec.RetryRequested(3, "ann"),
        rec.CancelRequested(3, "ann", True),
        rec.RunEnded(4, "cancelled", 1),
    )
    assert state.task("1:a").calls["c"].result == raw(4)
    assert state.cancel.by == "ann"
    assert (state.status, state.ended.checkpoint, state.last_seq) == ("cancelled", 1, 11)


def test_every_kind_has_a_meaning():
    assert set(fold._APPLY) == set(typing.get_args(rec.Record))
