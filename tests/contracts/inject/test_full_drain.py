"""R1 at its full length: a drain of 180 seconds, which is given them or not."""

import json
import sys

import pytest

from tests.contracts.inject.kit import proven
from tests.contracts.inject.test_langgraph_probe import AGENT, PACKAGES
from tests.contracts.inject.test_process_trials import story
from tests.contracts.site_packages import NotInstalled, site

SERVER = ("-m", "langgraph_cli", "dev", "--port", "{port}", "--no-browser", "--no-reload")
DRAIN_S = 180.0

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]


@pytest.mark.parametrize(
    ("grace_s", "verdict", "said"),
    [
        (DRAIN_S + 60.0, "held", "finished what was under way"),
        (10.0, "violated", "killed after 10 s of grace, before it had drained"),
    ],
)
async def test_a_drain_of_three_minutes_needs_three_minutes_of_grace(
    grace_s, verdict, said, tmp_path
):
    proof = await proven(
        "R1", tmp_path, environment={"DRAINS": "1"}, drain_s=DRAIN_S, grace_s=grace_s
    )
    assert (proof.verdict, said in proof.text) == (verdict, True), story(proof)


async def test_the_development_server_of_langgraph_says_that_it_is_done_and_is_not(tmp_path):
    """Its limit is 5 s, whatever is set; the image's, which is 180 s, can't be had here."""
    try:
        packages = site(PACKAGES)
    except NotInstalled as failed:
        pytest.skip(f"LangGraph's server can't be installed: {failed}")
    project = tmp_path / "project"
    project.mkdir()
    (project / "agent.py").write_text(AGENT.read_text() + "\ngraph = builder.compile()\n")
    graphs = {"dependencies": ["."], "graphs": {"agent": "./agent.py:graph"}}
    (project / "langgraph.json").write_text(json.dumps(graphs))
    proof = await proven(
        "R1", tmp_path, folder=project, probe="langgraph", argv=(sys.executable, *SERVER),
        stubs=("effects",), drain_s=60.0, grace_s=120.0, ready_s=300.0, run_s=300.0,
        environment={"OUTSIDE_URL": "{effects}", "PYTHONPATH": str(packages)},
    )  # fmt: skip
    told = story(proof)
    assert "it ended sooner than the run could have" in told
    assert "finished what was under way" not in proof.text
