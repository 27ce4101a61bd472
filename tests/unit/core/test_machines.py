"""The tables: every state is reached, nothing leaves a final one, what is not there is refused."""

import pytest

from perdure.core.machines import (
    ASK_TABLE,
    EFFECT_TABLE,
    RUN_TABLE,
    AskEvent,
    EffectEvent,
    RunEvent,
    advance,
)
from perdure.errors import InvariantBroken
from perdure.model import FINAL_STATUSES, AskState, EffectKind, EffectState, RunStatus

MACHINES = {
    "run": (RUN_TABLE, RunStatus, RunEvent, RunStatus.PENDING, FINAL_STATUSES),
    "effect": (
        EFFECT_TABLE,
        EffectState,
        EffectEvent,
        EffectState.INTENDED,
        {EffectState.COMPENSATED},
    ),
    "ask": (
        ASK_TABLE,
        AskState,
        AskEvent,
        AskState.OPEN,
        {AskState.ANSWERED, AskState.EXPIRED, AskState.WITHDRAWN},
    ),
}

machines = pytest.mark.parametrize(
    ("table", "states", "events", "first", "final"), MACHINES.values(), ids=MACHINES
)


@machines
def test_every_state_is_reached(table, states, events, first, final):
    reached, waiting = {first}, [first]
    while waiting:
        state = waiting.pop()
        for (source, _event), target in table.items():
            if source is state and target not in reached:
                reached.add(target)
                waiting.append(target)
    assert reached == set(states)


@machines
def test_exactly_the_final_states_have_no_way_out(table, states, events, first, final):
    assert {state for state in states if state not in {source for source, _ in table}} == set(final)


@machines
def test_every_event_is_used(table, states, events, first, final):
    assert {event for _source, event in table} == set(events)


@machines
def test_what_the_table_lacks_is_an_error(table, states, events, first, final):
    for state in states:
        for event in events:
            if (state, event) in table:
                assert advance(table, state, event, "it") is table[state, event]
                continue
            with pytest.raises(InvariantBroken, match=r"it: .* nothing was written") as caught:
                advance(table, state, event, "it")
            assert caught.value.fields["state"] == state.value
            assert caught.value.fields["event"] == event.value


def test_only_final_statuses_say_so():
    assert {status for status in RunStatus if status.is_final} == set(FINAL_STATUSES)


def test_outside_are_the_kinds_whose_act_others_can_see():
    outside = {kind for kind in EffectKind if kind.is_outside}
    assert outside == {EffectKind.KEYED, EffectKind.LOOKUP, EffectKind.ONCE}
