"""Help has examples, docs/cli.md has everything, and asking for help is cheap."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from perdure.cli import main
from perdure.cli._app import build
from perdure.cli._table import COMMANDS, GROUPS
from perdure.engine.doctor import FINDING_CODES

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
GROUP = typer.main.get_command(build())
TOP = [*COMMANDS, *GROUPS]
INNER = [
    function.replace("_", " ", 1) for _summary, commands in GROUPS.values() for function in commands
]
NAMES = [*COMMANDS, *INNER]


def section(name):
    found = re.search(rf"^## perdure {name}\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert found, f"docs/cli.md has no section '## perdure {name}'"
    return found.group(1)


def options(name):
    """Return every option of a command, the shared ones left out."""
    command = GROUP
    for word in name.split():
        command = command.commands[word]
    parameters = command.params
    found = {each for parameter in parameters for each in parameter.opts if each.startswith("--")}
    return found - {"--help", "--store", "--keys", "--json"}


def test_commands_are_those_that_are_documented():
    assert re.findall(r"^## perdure ([\w ]+)$", PAGE, re.MULTILINE) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_every_option_is_documented(name):
    text = section(name)
    assert [option for option in sorted(options(name)) if f"`{option}" not in text] == []


@pytest.mark.parametrize("name", NAMES)
def test_no_option_is_documented_that_does_not_exist(name):
    documented = set(re.findall(r"^\| `(--[a-z-]+)", section(name), re.MULTILINE))
    assert documented == options(name)


@pytest.mark.parametrize("name", NAMES)
def test_help_has_examples_of_the_command_itself(inside, name):
    done = inside(*name.split(), "--help")
    assert done.code == 0
    examples = done.out.partition("Examples:\n")[2]
    assert f"\n    perdure {name}" in f"\n{examples}"


@pytest.mark.parametrize("name", NAMES)
def test_examples_use_options_that_exist(inside, name):
    examples = inside(*name.split(), "--help").out.partition("Examples:\n")[2].partition("\n\n")[0]
    used = set(re.findall(r"(?<= )--[a-z-]+", examples))
    assert used <= options(name) | {"--store", "--keys", "--json"}


@pytest.mark.parametrize("code", FINDING_CODES)
def test_every_finding_is_documented(code):
    assert f"| `{code}` |" in section("doctor")


def test_help_without_a_command_lists_the_commands(inside):
    done = inside()
    assert all(f"\n  {name} " in done.out for name in TOP)


@pytest.mark.parametrize("group", GROUPS)
def test_help_of_a_group_lists_its_commands(inside, group):
    done = inside(group, "--help")
    assert all(f"\n  {name.partition(' ')[2]} " in done.out for name in INNER if group in name)


def test_version(inside):
    assert re.fullmatch(r"perdure \d+\.\d+\.\d+\n", inside("--version").out)


def test_main_exits_with_the_code_of_the_command():
    with pytest.raises(SystemExit) as caught:
        main(["dance"])
    assert caught.value.code == 2


LOADED = """
import sys
import perdure.cli
print(*sorted(name for name in ("typer", "rich") if name in sys.modules))
from perdure.cli._app import run
run(["--help"])
print(*sorted(name for name in ("rich", "apsw", "jsonschema", "pydantic") if name in sys.modules))
"""


def test_help_imports_neither_rich_nor_a_driver():
    done = subprocess.run(
        [sys.executable, "-c", LOADED],
        env={"PYTHONPATH": str(ROOT / "src")},
        check=True,
        capture_output=True,
        text=True,
    )
    lines = done.stdout.splitlines()
    assert (lines[0], lines[-1]) == ("", "")
