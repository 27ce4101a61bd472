"""The same small work on another system: `python peer_work.py SYSTEM FOLDER DSN`.

Reads a line "KIND COUNT" from standard input, does that work once, and answers with a line of JSON:
seconds by the clock and by the CPUs of this process, each per step. Kinds: "sequence" (one run of
COUNT steps) and "at_once" (COUNT runs of 10 steps). Imports nothing of Perdure, nor of the rest of
this package.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib import metadata
from itertools import count
from pathlib import Path
from typing import Any, TypedDict

NOTE = "x" * 100
RUN_STEPS = 10

Work = Callable[[int], None]


class Counter(TypedDict):
    """The small state: a number and 100 characters."""

    left: int
    note: str


def _langgraph(saver: Any) -> tuple[Work, Work]:
    from langgraph.graph import END, START, StateGraph

    def step(state: Counter) -> dict[str, Any]:
        return {"left": state["left"] - 1, "note": NOTE}

    def more(state: Counter) -> str:
        return "step" if state["left"] > 0 else END

    builder = StateGraph(Counter)
    builder.add_node("step", step)
    builder.add_edge(START, "step")
    builder.add_conditional_edges("step", more, ["step", END])
    graph = builder.compile(checkpointer=saver)
    unique = count()
    durability = {} if saver is None else {"durability": "sync"}

    def sequence(steps: int) -> None:
        config = {"configurable": {"thread_id": str(next(unique))}, "recursion_limit": steps + 10}
        ended = graph.invoke({"left": steps, "note": ""}, config, **durability)
        assert ended["left"] == 0

    def at_once(runs: int) -> None:
        with ThreadPoolExecutor(16) as pool:
            list(pool.map(sequence, [RUN_STEPS] * runs))

    return sequence, at_once


def langgraph_none(folder: Path) -> tuple[Work, Work]:
    """LangGraph without a saver: nothing is kept."""
    del folder
    return _langgraph(None)


def langgraph_sqlite(folder: Path) -> tuple[Work, Work]:
    """LangGraph with SqliteSaver and durability "sync"."""
    import sqlite3

    from langgraph.checkpoint.sqlite import SqliteSaver

    connection = sqlite3.connect(folder / "langgraph.db", check_same_thread=False)
    return _langgraph(SqliteSaver(connection))


def dbos_sqlite(folder: Path) -> tuple[Work, Work]:
    """DBOS on SQLite, as shipped."""
    return _dbos(f"sqlite:///{folder}/dbos.db")


def dbos_postgres(folder: Path) -> tuple[Work, Work]:
    """DBOS on PostgreSQL, as shipped, in a database of its own."""
    del folder
    return _dbos(_own_database("dbos"))


def _own_database(name: str) -> str:
    import psycopg

    dsn = sys.argv[3]
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
    return dsn.rpartition("/")[0] + f"/{name}"


def _dbos(url: str) -> tuple[Work, Work]:
    from dbos import DBOS

    DBOS(config={"name": "bench", "system_database_url": url, "log_level": "ERROR",
                 "run_admin_server": False})  # fmt: skip

    @DBOS.step()
    def step(left: int) -> dict[str, Any]:
        return {"left": left - 1, "note": NOTE}

    @DBOS.workflow()
    def steps(left: int) -> int:
        while left > 0:
            left = step(left)["left"]
        return left

    DBOS.launch()

    def at_once(runs: int) -> None:
        handles = [DBOS.start_workflow(steps, RUN_STEPS) for _ in range(runs)]
        assert sum(handle.get_result() for handle in handles) == 0

    def sequence(count: int) -> None:
        assert steps(count) == 0

    return sequence, at_once


def _counted(left: int) -> dict[str, Any]:
    return {"left": left - 1, "note": NOTE}


def _absurd_steps(params: Any, context: Any) -> Any:
    left = params["left"]
    while left > 0:
        left = context.step("step", partial(_counted, left))["left"]
    return {"left": left}


def absurd(folder: Path) -> tuple[Work, Work]:
    """Absurd with its own schema; 16 threads, each a worker with a connection of its own.

    Each claims its share of the runs, one after the other, instead of polling each quarter of a
    second: neither a start nor an end waits for a poll.
    """
    del folder
    import psycopg
    from absurd_sdk import Absurd
    from absurdctl import BUNDLED_SCHEMA_SQL

    url = _own_database("absurd")
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(BUNDLED_SCHEMA_SQL.encode())
    workers = [Absurd(url) for _ in range(16)]
    for worker in workers:
        worker.register_task("steps")(_absurd_steps)
    workers[0].create_queue("default")

    def run(steps: int, each: Sequence[int]) -> None:
        ids = [workers[0].spawn("steps", {"left": steps})["task_id"] for _ in range(sum(each))]
        with ThreadPoolExecutor(len(each)) as pool:
            list(pool.map(_absurd_share, workers, each))
        states = {workers[0].fetch_task_result(task_id).state for task_id in ids}
        assert states == {"completed"}, states

    share = len(workers)
    return lambda steps: run(steps, [1]), lambda runs: run(RUN_STEPS, [runs // share] * share)


def _absurd_share(worker: Any, runs: int) -> None:
    for _ in range(runs):
        worker.work_batch()


SYSTEMS = {
    "langgraph": (langgraph_none, ("langgraph",)),
    "langgraph-sqlite": (langgraph_sqlite, ("langgraph", "langgraph-checkpoint-sqlite")),
    "dbos-sqlite": (dbos_sqlite, ("dbos",)),
    "dbos-postgres": (dbos_postgres, ("dbos",)),
    "absurd": (absurd, ("absurd-sdk", "absurdctl")),
}


def measure(work: Work, size: int, steps: int) -> dict[str, float]:
    """Return seconds per step."""
    wall_s, cpu_s = time.perf_counter(), time.process_time()
    work(size)
    return {
        "wall_s": (time.perf_counter() - wall_s) / steps,
        "cpu_s": (time.process_time() - cpu_s) / steps,
    }


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the system prints is no answer
    make, packages = SYSTEMS[sys.argv[1]]
    sequence, at_once = make(Path(sys.argv[2]))
    versions = {package: metadata.version(package) for package in packages}
    print(json.dumps({"versions": versions}), file=answers, flush=True)
    for line in sys.stdin:
        kind, size = line.split()
        if kind == "sequence":
            answer = measure(sequence, int(size), int(size))
        else:
            answer = measure(at_once, int(size), int(size) * RUN_STEPS)
        print(json.dumps(answer), file=answers, flush=True)
    os._exit(0)  # without waiting for the threads of others


if __name__ == "__main__":
    main()
