"""S0 to S3 and R3 where a project keeps conversations itself, beside graphs or without any."""

import pytest
from msgspec.structs import replace

from perdure.contracts.code.facts import Degrade, Medium, Role
from perdure.contracts.evidence import Known
from perdure.contracts.findings import Contract, Verdict
from perdure.contracts.rules import RULES
from tests.contracts.making import at, code, mount, root, service, site

V, H, U, NA = (
    Verdict.VIOLATED,
    Verdict.HELD,
    Verdict.UNDECIDED,
    Verdict.NOT_APPLICABLE,
)


def judged(contract, own, facts):
    return RULES[contract](own, facts, root(own))


def own(medium, location=None, **changes):
    name = "the dict sessions" if medium is Medium.MEMORY else "its own messages"
    survives = medium is not Medium.MEMORY
    changed = {"role": Role.HISTORY, "class_name": name, "survives_process": survives, **changes}
    return site(medium, location=location, **changed)


BARE = site(Medium.NONE, class_name="omitted", survives_process=False)


@pytest.mark.parametrize(
    ("mounts", "expected"), [((), [H, V]), ((mount("/app/data"),), [H, H])], ids=["layer", "volume"]
)
def test_tables_of_a_project_are_where_their_file_is(mounts, expected):
    facts = code(own(Medium.FILE, "sqlite:///data/chat.db"), BARE)
    assert [
        judged(one, service(mounts=mounts), facts).verdict for one in (Contract.S1, Contract.S2)
    ] == expected


def test_a_graph_that_pauses_needs_a_saver_beside_tables():
    facts = code(own(Medium.FILE, "sqlite:///data/chat.db"), BARE)
    pausing = replace(facts, uses_threads=(at(note="a run pauses for a person"),))
    assert judged(Contract.S1, service(), pausing).verdict is V


@pytest.mark.parametrize(("is_served", "verdict"), [(True, V), (None, U)])
def test_a_dict_is_lost_also_beside_tables_unless_it_may_be_a_copy(is_served, verdict):
    kept = own(Medium.FILE, "sqlite:////data/chat.db")
    facts = code(kept, own(Medium.MEMORY, is_served=is_served))
    assert judged(Contract.S1, service(mounts=(mount("/data"),)), facts).verdict is verdict


def test_tables_of_a_project_are_no_durable_saver():
    facts = code(own(Medium.POSTGRES, "postgresql://db/x"))
    assert judged(Contract.S0, service(), facts).verdict is NA
    swallowed = Degrade(evidence=(at(line=4),), becomes=Medium.MEMORY, cause="failed")
    facts = replace(facts, degrades=(swallowed,))
    assert judged(Contract.S0, service(), facts).verdict is V
    elsewhere = replace(swallowed, when=Known(value=False))
    facts = replace(facts, degrades=(elsewhere,))
    assert judged(Contract.S0, service(), facts).verdict is NA


def test_a_saver_that_nobody_enters_is_open():
    facts = code(site(Medium.POSTGRES, is_entered=False))
    assert [judged(one, service(), facts).verdict for one in (Contract.S1, Contract.S2)] == [U, U]


@pytest.mark.parametrize(("steps", "verdict"), [((), V), ((at(note="resume_step"),), U)])
def test_a_bare_graph_that_nobody_waits_for_is_judged_beside_a_saver(steps, verdict):
    facts = replace(
        code(site(Medium.POSTGRES)),
        has_steps=(at(note="a step is added to a graph"),),
        bare_run=(at("work.py", 7), at(line=3), at("work.py", 10)),
        own_steps=steps,
    )
    found = judged(Contract.R3, service(), facts)
    assert found.verdict is verdict
    assert ("work.py", 7) in {(one.file, one.line) for one in found.evidence}


@pytest.mark.parametrize(("pauses", "verdict"), [(True, V), (False, U)])
def test_a_graph_that_pauses_in_memory_is_lost_also_beside_one_that_is_kept(pauses, verdict):
    paused = site(Medium.MEMORY, class_name="MemorySaver", survives_process=False, pauses=pauses)
    paused = replace(paused, evidence=(at("other.py", 9, "compile gets it"),))
    facts = code(site(Medium.POSTGRES), paused)
    assert judged(Contract.S1, service(), facts).verdict is verdict


def test_a_fallback_that_is_not_what_runs_is_no_degrade():
    unset = Degrade(evidence=(at(line=62, note="goes on"),), becomes=Medium.MEMORY, cause="unset")
    volatile = site(Medium.MEMORY, class_name="MemorySaver", survives_process=False)
    here = replace(volatile, evidence=(at(line=62, note="makes a MemorySaver"),))
    elsewhere = replace(volatile, evidence=(at("other.py", 3, "makes a MemorySaver"),))
    kept = site(Medium.FILE, location="data/x.db")
    for saver, verdict in ((here, V), (elsewhere, H)):
        facts = replace(code(kept, saver), degrades=(unset,))
        assert judged(Contract.S0, service(), facts).verdict is verdict


@pytest.mark.parametrize(("is_served", "verdict"), [(True, V), (None, U)])
def test_runs_that_wait_in_the_process_are_lost_also_beside_a_saver(is_served, verdict):
    waiting = own(Medium.MEMORY, role=Role.PAUSED, is_served=is_served)
    facts = code(site(Medium.POSTGRES), waiting)
    for contract in (Contract.S1, Contract.S2):
        found = judged(contract, service(), facts)
        assert found.verdict is verdict
        assert "threads and paused runs" not in found.summary
    workers = service(workers=Known(value=2))
    assert judged(Contract.S3, workers, facts).verdict is verdict
