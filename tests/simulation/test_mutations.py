"""The simulator is strong enough: rules that are broken on purpose are noticed soon."""

import importlib.util
from pathlib import Path

import pytest

_path = Path(__file__).with_name("mutations.py")
_spec = importlib.util.spec_from_file_location("simulation_mutations", _path)
mutations = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(mutations)

QUICK = (
    "fence",
    "barrier",
    "intent_before_dispatch",
    "answer_once",
    "append_come_again",
    "post_come_again",
    "claim_of_live_lease",
    "commit_order",
)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", QUICK)
def test_broken_rule_is_found(name):
    assert mutations.seeds_until_found(name, mutations.BOUND[name]) is not None


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", sorted(set(mutations.MUTATIONS) - set(QUICK)))
def test_broken_rule_is_found_in_the_end(name):
    assert mutations.seeds_until_found(name, mutations.BOUND[name]) is not None
