"""The driver `plain`: commands without isolation, only where that was said; the same protocol."""

import asyncio
import os
import signal

import pytest

from perdure import START, Context, Graph, Runtime
from perdure.errors import NotFound, SettingInvalid, UsageError
from perdure.sandbox import IsolatedSandboxes, Limits, TrustedSandboxes
from tests.engine.one_node import State
from tests.sandbox.long import LONG, alive

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def box(tmp_path):
    return TrustedSandboxes(tmp_path / "plain", trusted=True).open("acme", "t")


@pytest.mark.parametrize("said", [{}, {"trusted": False}, {"trusted": "yes"}, {"trusted": 1}])
def test_it_is_refused_unless_it_is_said_to_be_trusted(tmp_path, said):
    with pytest.raises(SettingInvalid, match="isolate nothing"):
        TrustedSandboxes(tmp_path / "plain", **said)
    assert not (tmp_path / "plain").exists()


def test_no_isolated_backend_becomes_it(tmp_path):
    with pytest.raises(UsageError, match=r"TrustedSandboxes\(root, trusted=True\)"):
        IsolatedSandboxes(tmp_path, driver="plain")


async def test_commands_have_the_files_and_not_the_environment_of_the_worker(box, monkeypatch):
    monkeypatch.setenv("SECRET", "of the worker")
    ran = await box.run("echo 1 > n; env | cut -d= -f1 | sort; pwd", env={"MORE": "1"})
    assert ran.code == 0
    names = {*ran.output.split()}
    assert {"HOME", "LANG", "MORE", "PATH"} <= names
    assert "SECRET" not in names
    first = await box.take()
    await box.run("cat > deep/n", cwd="/workspace", given=b"x")  # there is no such folder
    await box.write("/workspace/deep/n", b"2", mode=0o600)
    assert await box.read("deep/n") == b"2"
    assert (await box.run(["/bin/cat", "n"], cwd="deep")).output == "2"
    await box.restore(first)
    assert (await box.run("ls; cat n")).output == "n\n1\n"


async def test_it_isolates_nothing(box, tmp_path):
    """So no attack is stopped by it: this is what the name of the class says."""
    (tmp_path / "of_the_host").write_text("seen")
    assert (await box.run(["/bin/cat", str(tmp_path / "of_the_host")])).output == "seen"


async def test_what_it_leaves_is_named_and_ended(box):
    ran = await box.run(f"sleep {LONG} & echo begun")
    assert ran.output == "begun\n"
    assert ran.left == (f"sleep {LONG}",)
    assert alive() == []


async def test_limits_are_kept(box):
    ran = await box.run(f"sleep {LONG}", limits=Limits(deadline_s=0.3))
    assert (ran.code, ran.killed_by) == (137, "deadline")
    assert alive() == []
    ran = await box.run("echo abcdef; false", limits=Limits(output_bytes=3))
    assert (ran.code, ran.output, ran.is_cut) == (1, "abc", True)
    ran = await box.run("head -c 2M /dev/zero > big", limits=Limits(file_bytes=1 << 20))
    assert ran.code != 0
    assert len(await box.read("big", bytes_max=2 << 20)) == 1 << 20
    assert (await box.run("kill -TERM $$")).code == 128 + signal.SIGTERM


async def test_cancelling_ends_the_command(box):
    os.mkfifo(box.path / "begun")
    doing = asyncio.ensure_future(box.run(f"echo > begun; sleep {LONG}"))
    await asyncio.to_thread((box.path / "begun").read_text)
    doing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await doing
    assert alive() == []
    assert (await box.run("ls")).output == "begun\n"


async def test_files_are_reached_through_no_link_and_only_below_the_tree(box, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "f").write_text("of the host")
    await box.run(f"ln -s {outside} out; ln -s {outside}/f link; mkfifo pipe")
    for path in ("out/f", "link", "pipe", "none", "."):
        with pytest.raises(NotFound):
            await box.read(path)
    for path in ("/etc/passwd", "../x", "a/../../x"):
        with pytest.raises(UsageError):
            await box.read(path)
        with pytest.raises(UsageError):
            await box.write(path, b"x")
    with pytest.raises(UsageError):
        await box.write("out/new", b"x")
    with pytest.raises(UsageError):
        await box.run("true", cwd="out")
    await box.write("link", b"replaced")
    assert (outside / "f").read_text() == "of the host"
    assert os.listdir(outside) == ["f"]  # noqa: PTH208  # names


async def test_runs_use_it(tmp_path):
    graph = Graph(State, name="plain")

    @graph.node
    async def act(state: State, ctx: Context) -> dict:
        ran = await ctx.sandbox.run("echo 1 >> n; cat n")
        return {"results": [ran.output]}

    graph.edge(START, act)
    backend = TrustedSandboxes(tmp_path / "plain", trusted=True)
    async with Runtime.open("memory://", graphs=[graph], sandbox=backend) as runtime:
        for expected in (["1\n"], ["1\n", "1\n1\n"]):
            run = await runtime.start(graph, {}, thread="t")
            assert (await run.result(timeout=60)).results == expected
