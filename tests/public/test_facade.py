"""What `import perdure` gives, what it costs, and what it leaves alone."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

import perdure
from tools import exports

ROOT = Path(__file__).resolve().parents[2]

DRIVERS = (
    "aiosqlite",
    "apsw",
    "boto3",
    "cryptography",
    "httpx",
    "httpx2",
    "numpy",
    "psycopg",
    "pydantic",
    "redis",
    "rich",
    "typer",
)

LOADED = f"""
import sys
import pytest

import perdure
print(*sorted(name for name in {DRIVERS!r} if name in sys.modules))
"""

TIMED = """
import time
started = time.perf_counter()
import pytest

import perdure
print(f"{(time.perf_counter() - started) * 1000:.1f}")
"""


def output_of(program):
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def test_exports_are_those_of_the_snapshot():
    assert exports.main(["--check"]) == 0, "see the header of tools/exports.py"


def test_exports_exist_and_are_listed_once():
    assert len(set(perdure.__all__)) == len(perdure.__all__)
    assert all(hasattr(perdure, name) for name in perdure.__all__)


def test_importing_perdure_pulls_in_no_driver():
    assert output_of(LOADED) == ""


def test_importing_agents_pulls_in_no_driver():
    assert output_of(LOADED.replace("import perdure\n", "import perdure.agent\n")) == ""


def test_import_time_is_shown(record_property):
    milliseconds = min(float(output_of(TIMED)) for _ in range(3))
    record_property("figure", f"import perdure: {milliseconds} ms, best of 3 (shown, not judged)")


def test_lazy_names_are_those_that_type_checkers_see():
    tree = ast.parse((ROOT / "src" / "perdure" / "__init__.py").read_text(encoding="utf-8"))
    [shown] = [node for node in tree.body if isinstance(node, ast.If)]
    imported = {name.name: node.module for node in shown.body for name in node.names}
    assert imported == perdure._PLACES
    assert {*imported, "__version__"} == set(perdure.__all__)


def test_a_name_that_does_not_exist_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        perdure.Nothing  # noqa: B018  # the access is what is tested
    assert not hasattr(perdure, "nothing")


def test_all_names_come_with_a_star_and_are_listed():
    names: dict = {}
    exec("from perdure import *", names)  # noqa: S102  # our own package
    assert set(perdure.__all__) <= set(names)
    assert set(perdure.__all__) <= set(dir(perdure))


def test_importing_perdure_imports_no_room():
    program = "import sys, perdure; print(*sorted(n for n in sys.modules if 'perdure.' in n))"
    assert output_of(program) == ""
