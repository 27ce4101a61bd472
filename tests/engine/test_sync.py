"""The synchronous door: the same names, results and errors."""

import threading
from functools import partial

import pytest

import perdure
from perdure import Context, RunFailed, sync
from perdure.errors import NotFound, UsageError
from tests.engine.one_node import one_node as one_node_of

one_node = partial(one_node_of, name="waits")


def test_runs_start_wait_and_end(tmp_path):
    graph = one_node(lambda ctx: ctx.receive("go"))
    with sync.Runtime.open(f"sqlite:///{tmp_path}/s.db", graphs=[graph]) as runtime:
        run = runtime.start(graph, {}, key="k")
        run.signal("go", 7)
        assert run.result(timeout=10).results == ["7"]
        assert [event.kind for event in run.events()][-1] == "run_ended"
        assert runtime.get(run.id).status() == "succeeded"
        assert runtime.state(run.thread).results == ["7"]
        with pytest.raises(NotFound):
            runtime.get("r_none")
    with pytest.raises(UsageError, match="not open"):
        runtime.runs()


def test_errors_of_a_run_are_raised(tmp_path):
    async def broken(number: int, ctx: Context) -> int:
        raise ValueError(number)

    with sync.Runtime.open("memory://", graphs=[broken]) as runtime:
        run = runtime.start(broken, 5)
        with pytest.raises(RunFailed, match="ValueError"):
            run.result(timeout=10)


def test_several_os_threads_may_share_it(tmp_path):
    async def double(number: int) -> int:
        return number * 2

    results = []
    with sync.Runtime.open(f"sqlite:///{tmp_path}/s.db", graphs=[double]) as runtime:

        def one(number):
            results.append(runtime.start(double, number).result(timeout=10))

        os_threads = [threading.Thread(target=one, args=(n,)) for n in range(8)]
        for os_thread in os_threads:
            os_thread.start()
        for os_thread in os_threads:
            os_thread.join()
    assert sorted(results) == [n * 2 for n in range(8)]


def test_limits_and_schedules():
    async def tick(_given):
        return "tock"

    with sync.Runtime.open("memory://", graphs=[tick]) as runtime:
        runtime.set_limit(graph="tick", concurrency=1)
        assert [limit.graph for limit in runtime.limits()] == ["tick"]
        runtime.schedule("s", tick, 1, cron="0 0 29 2 *")
        assert [each.name for each in runtime.schedules()] == ["s"]
        runtime.unschedule("s")
        assert runtime.start(tick, 1).result(timeout=10) == "tock"


@pytest.mark.parametrize("cls", ["Runtime", "Run"])
def test_nothing_is_missing(cls):
    public = {n for n in dir(getattr(perdure, cls)) if not n.startswith("_")}  # the inherited, too
    internal = {"close", "read_row", "wait_for_result", "engine", "worker", "id", "thread"}
    assert public - internal <= set(dir(getattr(sync, cls)))
