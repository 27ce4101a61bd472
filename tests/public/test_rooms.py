"""Each room says what it is; imports stay within the contracts, and the contracts bite."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "perdure"

README_LINES_MAX = 20
"""A room that needs more to be explained is two rooms."""

NAMES_OF_BACKENDS = ("perdure.store", "perdure.cli", "perdure.testing")
"""Who may name a concrete store backend; all others ask for one by its URL."""

CONTRACTS_MAY_IMPORT = {"contracts", "errors", "ids", "model", "clock"}
"""The contract checker ships alone, so it leans on nothing that runs."""


def is_begun(room):
    """Whether there is any code in the room yet."""
    return any(path.stat().st_size for path in room.rglob("*.py"))


ROOMS = sorted(path.parent for path in PACKAGE.glob("*/__init__.py") if is_begun(path.parent))


@pytest.fixture(scope="module")
def imports():
    return grimp.build_graph("perdure", cache_dir=None)


@pytest.mark.parametrize("room", ROOMS, ids=lambda room: room.name)
def test_room_has_a_short_readme(room):
    lines = (room / "README.md").read_text(encoding="utf-8").splitlines()
    assert lines[0].startswith("# ")
    assert len(lines) <= README_LINES_MAX


def test_only_store_cli_and_testing_name_a_concrete_backend(imports):
    shared = {"perdure.store.api", "perdure.store.rewriting", "perdure.store._registry"}
    backends = imports.find_children("perdure.store") - shared
    inside = {module for b in backends for module in {b} | imports.find_descendants(b)}
    strangers = {
        (importer, module)
        for module in inside
        for importer in imports.find_modules_that_directly_import(module)
        if not importer.startswith(NAMES_OF_BACKENDS)
    }
    assert strangers == set()


def test_the_contract_checker_stands_alone(imports):
    rooms = {
        imported.split(".")[1]
        for module in imports.modules
        if module.startswith("perdure.contracts")
        for imported in imports.find_modules_directly_imported_by(module)
        if imported.startswith("perdure.")
    }
    assert rooms <= CONTRACTS_MAY_IMPORT


def lint(package_parent):
    """Run the contracts over another copy of the sources; return the verdict and the text."""
    done = subprocess.run(
        [
            str(Path(sys.executable).parent / "lint-imports"),
            "--no-cache",
            str(ROOT / ".importlinter"),
        ],
        env={**os.environ, "PYTHONPATH": str(package_parent)},
        cwd=package_parent,
        check=False,
        capture_output=True,
        text=True,
    )
    return done.returncode, done.stdout


@pytest.fixture
def copy(tmp_path):
    shutil.copytree(PACKAGE, tmp_path / "perdure", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def test_contracts_are_kept(copy):
    assert lint(copy)[0] == 0


@pytest.mark.parametrize(
    ("module", "line", "broken"),
    [
        ("core/_fault.py", "import perdure.engine", "Rooms import only downward"),
        ("clock/_fault.py", "import perdure.errors", "Rooms import only downward"),
        ("newroom/__init__.py", "", "Rooms import only downward"),
        ("core/_fault.py", "import perdure", "Nobody inside imports the facade"),
        ("store/redis/__init__.py", "import perdure.store.dynamo", "Store backends know"),
        ("core/_fault.py", "import asyncio", "The core does no I/O"),
        ("engine/_fault.py", "import apsw", "A driver is imported only by its own backend"),
        ("engine/_fault.py", "import rich", "A driver is imported only by its own backend"),
    ],
)
def test_contract_bites(copy, module, line, broken):
    for name in ("store/redis/__init__.py", "store/dynamo/__init__.py", module):  # planned rooms
        path = copy / "perdure" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"{line}\n" if name == module else "", encoding="utf-8")
    verdict, text = lint(copy)
    assert verdict == 1
    assert any(row.startswith(broken) and "BROKEN" in row for row in text.splitlines())


def test_two_modules_of_a_room_may_not_import_each_other_in_a_circle(copy):
    core = copy / "perdure" / "core"
    (core / "_one.py").write_text("import perdure.core._two\n", encoding="utf-8")
    (core / "_two.py").write_text("import perdure.core._one\n", encoding="utf-8")
    verdict, text = lint(copy)
    assert verdict == 1
    assert "No cycles between siblings, at any depth BROKEN" in text
