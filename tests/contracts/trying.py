"""What a specimen is predicted to do, and what it does when it is broken."""

from pathlib import Path

from perdure.clock import system_services
from perdure.contracts.check import check
from perdure.contracts.deployment import read_roots
from perdure.contracts.files import Project
from perdure.contracts.findings import Contract, Finding, Verdict
from perdure.contracts.inject.engines import ContainerEngine
from perdure.contracts.inject.prove import Asked, Proof, Proven, chosen, prove
from perdure.contracts.inject.settings import read_settings

SPECIMENS = Path(__file__).parent / "specimens"
KINDS = ("holds", "breaks")
SERVICE = "api"
PREDICTED = {"holds": Verdict.HELD, "breaks": Verdict.VIOLATED}
EXPECTED = {"holds": Proven.HELD, "breaks": Proven.VIOLATED}
BY_INJECTION = (Contract.R6, Contract.R7, Contract.R8, Contract.C2)
"""What only execution can judge: the check gives hints and no verdict."""


def specimen(contract: Contract, kind: str) -> Path:
    """Return the folder of a specimen."""
    return SPECIMENS / f"{contract.lower()}-{kind}"


def findings(contract: Contract, kind: str) -> dict[Contract, Finding]:
    """Return what the check says of the agent's service, by contract."""
    report = check(specimen(contract, kind))
    return {
        each.contract: each
        for root in report.roots
        for each in root.findings
        if each.service == SERVICE
    }


async def broken(
    contract: Contract, kind: str, engine: ContainerEngine, output: Path, repetitions: int = 1
) -> Proof:
    """Break a specimen as its contract says, and return what that shows."""
    folder = specimen(contract, kind)
    settings = read_settings((folder / "perdure.inject.toml").read_text())
    roots = read_roots(Project(folder), assume={})
    root, service = chosen(roots, settings, root=None, service=SERVICE)
    asked = Asked(
        folder=folder,
        root=root,
        service=service,
        contract=contract,
        settings=settings,
        output=output,
        repetitions=repetitions,
    )
    return await prove(asked, engine, system_services())
