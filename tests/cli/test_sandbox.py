"""`--sandbox`: contained effects of a command's runs are isolated."""

import textwrap

import pytest

pytestmark = pytest.mark.timeout(120)

AGENT = textwrap.dedent("""
    from dataclasses import dataclass
    from perdure import START, Context, Graph, effect

    @dataclass
    class State:
        told: str = ""

    @effect(kind="contained")
    async def shell(command: str, *, sandbox) -> str:
        return (await sandbox.run(command)).output

    graph = Graph(State, name="agent")

    @graph.node
    async def act(state: State, ctx: Context) -> dict:
        return {"told": await ctx.call(shell, "hostname; echo $HOME; echo 1 >> n; cat n")}

    graph.edge(START, act)
""")


@pytest.fixture
def target(tmp_path):
    (tmp_path / "agent.py").write_text(AGENT)
    return f"{tmp_path / 'agent.py'}:graph"


def test_run_keeps_the_files_of_a_thread(cli, target, tmp_path):
    host = cli("doctor", "--host", "--json")
    if not host.json["host"]["can_isolate"]:
        pytest.skip(f"NOT TESTED: {host.json['host']['reason']}")
    words = ["run", target, "--thread", "t", "--sandbox", str(tmp_path / "boxes"), "--json"]
    for told in ("1\n", "1\n1\n"):
        done = cli(*words)
        assert done.json["result"]["told"] == f"sandbox\n/workspace\n{told}"
    assert (tmp_path / "boxes" / "tenants").is_dir()


def test_doctor_says_what_isolates_here(cli):
    done = cli("doctor", "--host")
    assert "isolated sandboxes: " in done.out
    assert done.code == (0 if "isolated sandboxes: yes" in done.out else 1)


def test_without_its_sandbox_a_run_is_parked_and_goes_on_with_it(cli, target, tmp_path):
    done = cli("run", target, "--thread", "t", "--json")
    assert done.code == 12
    assert "--sandbox FOLDER" in done.out + done.err
    run_id = done.json["run"]["id"]
    host = cli("doctor", "--host", "--json")
    if not host.json["host"]["can_isolate"]:
        pytest.skip(f"NOT TESTED: {host.json['host']['reason']}")
    assert cli("resolve", run_id, "--retry", "--by", "ada").code == 0
    worker = cli.start("worker", target, "--sandbox", str(tmp_path / "boxes"))
    try:
        shown = cli.until(run_id, "succeeded")
    finally:
        worker.terminate()
        worker.communicate(timeout=30)
    assert shown["run"]["status"] == "succeeded"


def test_a_folder_that_can_not_be_made_is_said_before_anything_is_executed(cli, target):
    done = cli("run", target, "--sandbox", "/usr/boxes", "--json")
    assert done.code != 0
    assert "can't be kept below /usr" in done.out + done.err
    assert cli("ps", "--all", "--json").code != 0 or cli("ps", "--all", "--json").json["runs"] == []
