"""Perdure under its own trials, through its own probe: it keeps what it promises."""

import sys
from pathlib import Path

import pytest

from perdure.contracts.evidence import Known
from perdure.contracts.findings import Contract
from perdure.contracts.inject._probes import open_probe
from perdure.contracts.inject.prove import Proven
from perdure.contracts.inject.settings import Settings
from perdure.errors import TrialImpossible
from tests.contracts.inject.kit import proven, service

AGENT = Path(__file__).parent / "perdure_agent"
PERDURE = (sys.executable, "-m", "perdure")
QUICK = (Contract.R7,)
KEPT = (Contract.S1, Contract.R1, Contract.R2, Contract.R3, Contract.R4, Contract.R6, Contract.R7)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "contract",
    [pytest.param(each, marks=[] if each in QUICK else [pytest.mark.slow]) for each in KEPT],
)
async def test_a_worker_of_perdure_holds(contract, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[3] / "src"))
    restart = Known(value="always" if contract is Contract.R4 else "no")
    proof = await proven(
        contract,
        tmp_path,
        broken=service(restart=restart),
        folder=AGENT,
        probe="perdure",
        command=("agent.py:graph", *PERDURE),
        argv=(*PERDURE, "worker", "agent.py:graph", "--health", "{port}", "--lease-ttl", "3"),
        stubs=("effects",),
        environment={"EFFECTS_URL": "{effects}", "PERDURE_STORE": "sqlite:///agents.db"},
        lost_steps=0,
    )
    assert proof.verdict is Proven.HELD, proof.text


def test_a_graph_must_be_named(tmp_path):
    with pytest.raises(TrialImpossible, match=r"app\.py:graph"):
        open_probe(Settings(probe="perdure"), tmp_path)
