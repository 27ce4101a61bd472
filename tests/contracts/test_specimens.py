"""The specimens: what the check says of each, how a pair differs, and what breaking them shows."""

import re
import sys
from pathlib import Path

import pytest

from perdure.clock import system_services
from perdure.contracts.code import read_code
from perdure.contracts.deployment import read_roots
from perdure.contracts.files import Project
from perdure.contracts.findings import Contract, Verdict
from perdure.contracts.inject._outcome import NEEDS
from perdure.contracts.inject.engines import ProcessEngine
from tests.contracts.site_packages import NotInstalled, site
from tests.contracts.trying import (
    BY_INJECTION,
    EXPECTED,
    KINDS,
    PREDICTED,
    broken,
    findings,
    specimen,
)
from tools.specimens_doc import PAGE, outcomes, page

EACH = [
    pytest.param(contract, kind, id=f"{contract}-{kind}") for contract in Contract for kind in KINDS
]
IN_PROCESS = [
    contract
    for contract in Contract
    if not NEEDS[contract].features and contract is not Contract.C1  # which needs its Redis
]
QUICK = (Contract.S1, Contract.R2, Contract.R6)
ALSO = {Contract.S1: {Contract.S2, Contract.R3}, Contract.S3: {Contract.S2}}
"""What a breaking specimen breaks besides: what a restart loses a replacement loses, too, and so
does a crash where runs wait for a person."""


@pytest.mark.parametrize(("contract", "kind"), EACH)
def test_the_check_predicts_it(contract, kind):
    found = findings(contract, kind)
    violated = {each for each, finding in found.items() if finding.verdict is Verdict.VIOLATED}
    if contract in BY_INJECTION:
        assert violated == set()
        return
    finding = found[contract]
    assert finding.verdict is PREDICTED[kind], finding.question
    assert finding.evidence
    expected = {contract} | ALSO.get(contract, set()) if kind == "breaks" else set()
    assert violated == expected


def test_the_code_says_whether_interrupted_runs_are_taken_up():
    found = {}
    for kind in KINDS:
        project = Project(specimen(Contract.R7, kind))
        (root,) = read_roots(project, assume={})
        (service,) = root.services
        found[kind] = [
            (step.file, step.note) for step in read_code(project, service, root, assume={}).resumes
        ]
    note = "goes on with stored runs when the service starts"
    assert found == {"holds": [("app.py", note)], "breaks": []}


@pytest.mark.parametrize("contract", list(Contract))
def test_a_pair_differs_in_one_thing(contract):
    files = [
        {
            path.relative_to(specimen(contract, kind)): _without_comment(path)
            for path in specimen(contract, kind).rglob("*")
            if path.is_file() and "__pycache__" not in path.parts
        }
        for kind in KINDS
    ]
    assert files[0].keys() == files[1].keys()
    different = [str(path) for path in files[0] if files[0][path] != files[1][path]]
    assert len(different) == 1, different


def _without_comment(path: Path) -> str:
    """Return a file without the sentence that says what it is about."""
    text = path.read_text()
    return re.sub(r'\A((#(?!!).*\n)+|""".*"""\n)', "", text)


def test_the_page_says_what_the_check_says_and_trials_showed():
    assert PAGE.read_text() == page(), "PYTHONPATH=src python tools/specimens_doc.py"
    shown = {name: each["verdict"] for name, each in outcomes().items()}
    assert shown == {
        specimen(contract, kind).name: str(EXPECTED[kind])
        for contract in Contract
        for kind in KINDS
    }


@pytest.fixture(scope="session")
def packages():
    try:
        return site()
    except NotInstalled as failed:
        pytest.skip(f"THE PACKAGES OF SPECIMENS CAN'T BE INSTALLED: {failed}")


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("contract", "kind"),
    [
        pytest.param(
            contract,
            kind,
            id=f"{contract}-{kind}",
            marks=[] if contract in QUICK else [pytest.mark.slow],
        )
        for contract in IN_PROCESS
        for kind in KINDS
    ],
)
async def test_broken_as_a_process_it_does_as_predicted(
    contract, kind, packages, tmp_path, monkeypatch
):
    monkeypatch.setenv("PYTHONPATH", str(packages))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{packages}/bin", prepend=":")
    engine = ProcessEngine(system_services().clock, tmp_path)
    proof = await broken(contract, kind, engine, tmp_path / "trials")
    assert proof.verdict is EXPECTED[kind], proof.text


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(("contract", "kind"), EACH)
async def test_broken_in_containers_it_does_as_predicted(contract, kind, docker, tmp_path):
    proof = await broken(contract, kind, docker, tmp_path / "trials")
    assert proof.verdict is EXPECTED[kind], proof.text
