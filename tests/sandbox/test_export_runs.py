"""Runs whose host is lost: their files come from the exports, on a host that never saw them."""

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import textwrap

import pytest

from perdure import NeedsDecision, RunStatus, Runtime
from perdure.sandbox import IsolatedSandboxes
from tests import warm
from tests.sandbox.test_runs import graph_of
from tests.sandbox.trees import KEY

pytestmark = pytest.mark.timeout(200)

COMMANDS = [
    f"echo {n} >> log; mkdir d{n}; head -c 100000 /dev/urandom > d{n}/r; rm -rf d{n - 1}; cat log"
    for n in range(6)
]

WORKER = textwrap.dedent("""
    import asyncio, sys
    from dataclasses import replace
    from perdure import Runtime
    from perdure.clock import system_services
    from perdure.sandbox import IsolatedSandboxes
    from perdure.sandbox.export import _base
    from tests.fault.dying import dying
    from tests.sandbox.test_export_runs import COMMANDS, graph_of

    told = _base._told
    _base._told = lambda at, *, with_content: told(at, with_content=True) if with_content else []

    folder, host, point, nth, run_id = sys.argv[1:]

    async def main():
        services = replace(system_services(), probe=dying(point, nth))
        backend = IsolatedSandboxes(
            f"{folder}/{host}", export=f"file://{folder}/objects", keys="env:EXPORT_KEY",
            durable=True, services=services,
        )
        async with Runtime.open(
            f"sqlite:///{folder}/p.db", graphs=[graph_of(*COMMANDS)], sandbox=backend,
            services=services,
        ) as runtime:
            run = await runtime.get(run_id)
            print((await run.result(timeout=100)).results[-1], end="", flush=True)

    asyncio.run(main())
""")


def worker(folder, host, point, nth, run_id):
    return warm.run(
        [sys.executable, "-c", WORKER, str(folder), host, point, str(nth), run_id],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "EXPORT_KEY": KEY},
        capture_output=True,
    )


async def started(folder):
    url = f"sqlite:///{folder / 'p.db'}"
    graph = graph_of(*COMMANDS)
    async with Runtime.open(url, graphs=[graph], worker=False) as runtime:
        return (await runtime.start(graph, {}, thread="t")).id


@pytest.mark.parametrize(
    ("point", "nth"),
    [
        ("sandbox.take.after", 4),
        ("sandbox.export.pieces", 3),
        ("sandbox.export.manifest", 5),
        ("sandbox.take.before", 6),
    ],
)
async def test_a_run_goes_on_where_its_host_is_lost(is_able, tmp_path, point, nth):
    run_id = await started(tmp_path)
    done = await asyncio.to_thread(worker, tmp_path, "a", point, nth, run_id)
    assert done.returncode == -signal.SIGKILL, done.stderr
    # Without root an overlay leaves a folder behind that is closed to its own user.
    words = ["/bin/chmod", "-R", "u+rwx", str(tmp_path / "a")]
    await asyncio.to_thread(subprocess.run, words, check=True)
    shutil.rmtree(tmp_path / "a")
    done = await asyncio.to_thread(worker, tmp_path, "b", "", 0, run_id)
    assert done.returncode == 0, done.stderr
    assert done.stdout.decode() == "".join(f"{n}\n" for n in range(6))
    # And the files are what they were, for a run of another graph.
    url = f"sqlite:///{tmp_path / 'p.db'}"
    graph = graph_of("cat log; ls -d d*; wc -c < d5/r", name="after")
    backend = IsolatedSandboxes(tmp_path / "b")
    try:
        async with Runtime.open(url, graphs=[graph], sandbox=backend) as runtime:
            state = await (await runtime.start(graph, {}, thread="t")).result(timeout=60)
        assert state.results[-1] == "".join(f"{n}\n" for n in range(6)) + "d5\n100000\n"
    finally:
        backend.close()


async def test_a_fork_begins_on_another_host(hosts, tmp_path):
    graph = graph_of("echo a >> log; cat log", "echo b >> log; cat log")
    url = f"sqlite:///{tmp_path / 'p.db'}"
    async with Runtime.open(url, graphs=[graph], sandbox=hosts("a", durable=True)) as runtime:
        await (await runtime.start(graph, {}, thread="t")).result(timeout=60)
    async with Runtime.open(url, graphs=[graph], sandbox=hosts("b")) as runtime:
        forked = await runtime.fork("t", at=2)
        assert (await forked.result(timeout=60)).results == ["a\n", "a\nb\n"]


async def test_what_was_taken_is_exported_before_a_runtime_is_closed(hosts, tmp_path):
    graph = graph_of("head -c 3000000 /dev/urandom > big; echo x")
    url = f"sqlite:///{tmp_path / 'p.db'}"
    backend = hosts("a")
    async with Runtime.open(url, graphs=[graph], sandbox=backend) as runtime:
        await (await runtime.start(graph, {}, thread="t")).result(timeout=60)
    snapshot = backend.open("default", "t").head()
    assert backend.open("default", "t").is_durable(snapshot)


async def test_a_run_whose_export_was_changed_is_parked_and_goes_on_when_it_is_right(
    hosts, tmp_path
):
    graph = graph_of("echo a >> log; cat log")
    url = f"sqlite:///{tmp_path / 'p.db'}"
    async with Runtime.open(url, graphs=[graph], sandbox=hosts("a", durable=True)) as runtime:
        await (await runtime.start(graph, {}, thread="t")).result(timeout=60)
    [manifest] = (tmp_path / "objects").glob("*/snapshots/*/*")
    whole = manifest.read_bytes()
    manifest.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    async with Runtime.open(url, graphs=[graph], sandbox=hosts("b")) as runtime:
        run = await runtime.start(graph, {}, thread="t")
        with pytest.raises(NeedsDecision, match="not what was sealed"):
            await run.result(timeout=60)
        manifest.write_bytes(whole)
        await runtime.retry(run.id, by="ada")
        assert (await run.result(timeout=60)).results[-1] == "a\na\n"


async def test_a_place_that_is_away_stops_the_run_and_loses_nothing(hosts, tmp_path):
    """Nothing is recorded of files that only this host has; the run goes on when it is back."""
    graph = graph_of("echo a >> log; cat log")
    (tmp_path / "objects").write_text("no folder")
    url = f"sqlite:///{tmp_path / 'p.db'}"
    async with Runtime.open(url, graphs=[graph], sandbox=hosts("a", durable=True)) as runtime:
        run = await runtime.start(graph, {}, thread="t")
        backend = hosts("a")
        for _ in range(1_000):
            if list(backend.root.glob("tenants/default.*/layers/l_*")):
                break
            await asyncio.sleep(0.02)
        assert (await run.status()) is not RunStatus.SUCCEEDED
    assert (tmp_path / "objects").is_file()
    (tmp_path / "objects").unlink()
    async with Runtime.open(url, graphs=[graph], sandbox=hosts("b", durable=True)) as runtime:
        run = await runtime.get(run.id)
        assert (await run.result(timeout=60)).results == ["a\n"]
