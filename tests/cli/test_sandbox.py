"""`--sandbox`: contained effects of a command's runs are isolated."""

import os
import textwrap

import pytest

from tests.sandbox.kept import criu

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


@pytest.fixture
def boxes(cli, target, tmp_path):
    """Make two threads with files, one with two snapshots."""
    host = cli("doctor", "--host", "--json")
    if not host.json["host"]["can_isolate"]:
        pytest.skip(f"NOT TESTED: {host.json['host']['reason']}")
    folder = str(tmp_path / "boxes")
    for thread in ("t", "t", "u"):
        assert cli("run", target, "--thread", thread, "--sandbox", folder).code == 0
    return folder


def test_files_are_listed_shown_and_collected(cli, boxes, monkeypatch):
    listed = cli("sandbox", "list", boxes, "--json").json["threads"]
    assert [each["thread"][:2] for each in listed if each["snapshot"]] == ["t.", "u."]
    assert cli("sandbox", "list", PERDURE_SANDBOX=boxes).out == cli("sandbox", "list", boxes).out
    shown = cli("sandbox", "show", boxes, "t", "--json").json
    newest, oldest = shown["snapshots"]
    assert (newest["parent"], oldest["parent"]) == (oldest["snapshot"], None)
    assert newest["snapshot"] == shown["files"]["snapshot"]
    assert newest["kernel"] in cli("sandbox", "show", boxes, "t").out
    assert cli("sandbox", "show", boxes, "nobody").code == 4
    assert cli("sandbox", "list", boxes + "none").code == 4
    done = cli("sandbox", "collect", boxes, "--dry-run")
    assert "0 layers of files that nothing needs" in done.out
    assert f"next: perdure sandbox collect {boxes}" in done.err
    assert cli("sandbox", "collect", boxes, "--json").json["collected"]["kept"] == 3


def test_without_the_folder_prune_says_that_files_were_not_touched(cli, boxes):
    done = cli("prune", "--keep", "1", "--dry-run")
    assert "named 3 snapshots; their files were not touched" in done.out
    done = cli("prune", "--keep", "1", "--sandbox", boxes)
    assert "0 layers of files that nothing needs any more" in done.out
    assert "not touched" not in done.out


def test_erase_says_what_became_of_files(cli, boxes):
    said = cli("erase", "--thread", "t", "--sandbox", boxes, "--dry-run").out
    assert "files of sandboxes: 2 layers and live files" in said
    done = cli("erase", "--thread", "t", "--by", "ada", "--yes", "--sandbox", boxes)
    assert done.code == 0
    assert "files of sandboxes: 2 layers, live files of 1 thread" in done.out
    assert cli("sandbox", "show", boxes, "u", "--json").json["files"]["layers"] == 1


@pytest.mark.parametrize(
    "command",
    [
        ["erase", "--thread", "t", "--by", "ada", "--yes", "--sandbox", "NOPE"],
        ["prune", "--keep", "1", "--sandbox", "NOPE"],
        ["sandbox", "collect", "NOPE"],
    ],
)
def test_a_folder_without_sandboxes_is_no_proof(cli, target, command):
    assert cli("run", target, "--input", "{}", "--thread", "t", "--sandbox", "boxes").code == 0
    result = cli(*command)
    assert result.code == 4
    assert "NOPE has no sandboxes; nothing was made there" in result.err


def test_an_erasure_with_the_wrong_folder_says_so(cli, target):
    for folder, thread in (("boxes", "t"), ("others", "u")):
        done = cli("run", target, "--input", "{}", "--thread", thread, "--sandbox", folder)
        assert done.code == 0
    result = cli("erase", "--thread", "t", "--by", "ada", "--yes", "--sandbox", "others")
    assert result.code == 0
    assert "stays: sandbox" in result.out
    assert "or are in another folder" in " ".join(result.out.split())


def test_with_another_folder_the_next_command_does_not_name_it_again(cli, boxes, target, tmp_path):
    done = cli("run", target, "--thread", "t", "--sandbox", str(tmp_path / "other"), "--json")
    assert done.code == 12
    [worker] = [each for each in done.json["next"] if each.startswith("perdure worker")]
    assert worker.endswith("--sandbox FOLDER")
    assert any(each.startswith("perdure resolve") for each in done.json["next"])
    assert "sandbox import FOLDER" in done.json["error"]["message"]


def test_a_worker_leaves_no_task_behind(cli, boxes, target):
    worker = cli.start("worker", target, "--sandbox", boxes)
    try:
        while "ready: " not in (line := worker.stdout.readline()):
            assert line, "it ended"
    finally:
        worker.terminate()
        _out, errors = worker.communicate(timeout=60)
    assert "drained; every lease is released" in errors
    assert "did not end" not in errors


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["NOPE"], "NOPE has no sandboxes; nothing was made there"),
        (["boxes", "--thread", "nosuch"], "has no sandbox of thread 'nosuch'"),
        (["boxes", "--thread", "t", "--tenant", "other"], "of tenant 'other'"),
    ],
)
def test_an_export_of_what_is_not_there_says_so(cli, boxes, tmp_path, words, said):
    words = [boxes if word == "boxes" else word for word in words]
    done = cli("sandbox", "export", *words, "--plain", "--to", (tmp_path / "to").as_uri())
    assert done.code == 4
    assert said in done.err


@pytest.mark.timeout(300)
def test_images_of_processes_are_in_the_list(cli, target, tmp_path):
    program = criu()
    if os.geteuid() != 0:
        pytest.skip("NOT TESTED: images of processes are root's")
    agent = tmp_path / "agent.py"
    agent.write_text(agent.read_text().replace("hostname;", "sleep 600 &"))
    folder = str(tmp_path / "boxes")
    words = ["run", target, "--thread", "t", "--sandbox", folder]
    assert cli(*words, PERDURE_CRIU=program).code == 0
    listed = cli("sandbox", "list", folder, "--json").json["threads"]
    [found] = [each for each in listed if each["thread"].startswith("t.")]
    assert found["image_bytes"] > 100_000
    assert found["bytes"] < found["image_bytes"]
