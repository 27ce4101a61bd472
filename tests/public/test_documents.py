"""The programs in the documents run; their other Python at least compiles."""

import ast
import os
import re
import subprocess
import sys
from decimal import Decimal
from pathlib import Path

import pytest

from perdure import Runtime
from perdure.core.migration import chain_of, fitted, node_after, upgraded

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)


def blocks(name):
    return BLOCK.findall((ROOT / name).read_text(encoding="utf-8"))


def python(folder, *arguments):
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.timeout(120)
def test_the_program_of_the_readme_runs(tmp_path):
    [program] = blocks("README.md")
    (tmp_path / "refunds.py").write_text(program, encoding="utf-8")
    first = python(tmp_path, "refunds.py")
    assert first.returncode == 0, first.stderr
    assert first.stdout.count("POST /refunds o-7 4000 key=") == 1
    assert "refund_id='refund of o-7'" in first.stdout
    again = python(tmp_path, "refunds.py")
    assert again.returncode == 0, again.stderr
    assert "POST" not in again.stdout, "the same start key gives the first run"
    waiting = python(
        tmp_path, "-m", "perdure", "run", "refunds.py:graph", "--input", '{"order_id": "o-8"}'
    )
    assert waiting.returncode == 13, waiting.stderr


@pytest.mark.parametrize(
    "name",
    [
        "README.md",
        "docs/guide.md",
        "docs/agents.md",
        "docs/simulator.md",
        "docs/time-travel.md",
        "docs/audit.md",
        "docs/types.md",
        "docs/versions.md",
    ],
)
def test_python_in_documents_is_python(name):
    for block in blocks(name):
        compile(block, name, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


@pytest.mark.timeout(120)
def test_the_agent_of_the_agents_page_runs(tmp_path, monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    (tmp_path / "shop.py").write_text(blocks("docs/agents.md")[0], encoding="utf-8")
    done = python(tmp_path, "shop.py")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0].startswith("Agent 'shop' wants to call order with {")
    assert done.stdout.count("POST /orders 2 x tea key=") == 1
    assert done.stdout.splitlines()[-1] == "answered 3 turns: Two teas come."
    again = ("--thread", "c-13", "--store", "sqlite:///shop.db")
    prompt = '{"prompt": "Two teas, please."}'
    waiting = python(tmp_path, "-m", "perdure", "run", "shop.py:graph", "--input", prompt, *again)
    assert waiting.returncode == 13, waiting.stderr


def test_the_report_graph_of_the_guide_runs():
    program = blocks("docs/guide.md")[0]
    from_guide: dict = {"__name__": "guide"}
    exec(compile(program, "guide.md", "exec"), from_guide)  # noqa: S102  # our own document
    plan = from_guide["graph"].compile()
    assert set(plan.nodes) == {"research", "write"}


def test_the_program_of_the_time_travel_page_runs(tmp_path):
    [program] = blocks("docs/time-travel.md")
    (tmp_path / "billing.py").write_text(program, encoding="utf-8")
    done = python(tmp_path, "billing.py")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("POST /payments o-7 40") == 1
    assert done.stdout.count("POST /payments o-7 60") == 1
    lines = done.stdout.splitlines()
    assert "clean: True {'answers': 1, 'effects': 1}" in lines
    assert "again: [('pay', ['o-7', 40])]" in lines
    assert "replace /notes/1 payment of 40 -> payment of 60" in lines
    assert "['o-7', 40] against ['o-7', 60]" in lines
    assert lines[-2] == "not undone: ['pay']"
    assert lines[-1].endswith("notes=['ada: True'])")
    arguments = ["-m", "perdure", "history", "customer-12", "--store", "sqlite:///billing.db"]
    assert "rolled back to checkpoint 2 by ada: wrong amount" in python(tmp_path, *arguments).stdout


def test_the_migration_of_the_versions_page_works():
    [program] = blocks("docs/versions.md")
    from_page: dict = {"__name__": "versions"}
    exec(compile(program, "versions.md", "exec"), from_page)  # noqa: S102  # our own document
    plan = from_page["graph"].compile()
    chain = chain_of(plan, 1)
    state = fitted(plan, upgraded(chain, {"amount": 7, "notes": ["a"]}))
    assert plan.build_state(state) == from_page["Bill"](700, "EUR", ["a"])
    assert fitted(plan, upgraded(chain, {}))["cents"] == 0, "it takes an empty dict, as it says"
    assert node_after(chain, "pay_it") == "settle"


def test_the_scenario_of_the_simulator_page_runs(tmp_path):
    [program] = blocks("docs/simulator.md")
    (tmp_path / "payments.py").write_text(program, encoding="utf-8")
    done = python(tmp_path, "payments.py")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("did invoice 7") == 3


async def test_the_graph_of_the_page_of_types_runs():
    [program] = blocks("docs/types.md")
    from_page: dict = {"__name__": "types"}
    exec(compile(program, "types.md", "exec"), from_page)  # noqa: S102  # our own document
    async with Runtime.open("memory://", graphs=[from_page["graph"]]) as runtime:
        state = await (await runtime.start("quotes", {}, thread="t")).result(timeout=10)
        again = await runtime.state("t")
    assert again.price == state.price == from_page["Price"](Decimal("40.00"), "EUR")
    assert (again.until, str(again.until.tzinfo)) == (state.until, "Europe/Paris")
    assert [type(each) for each in again.seen] == [set, tuple, int, float, bytes]
