"""A branch for a package that is missing, where the project's lists require the package."""

import pytest

from perdure.contracts.code.facts import Medium

APP = """
from langgraph.graph import StateGraph
def make():
    try:
        from langgraph.checkpoint.sqlite import SqliteSaver
    except ImportError:
        from langgraph.checkpoint.memory import InMemorySaver
        return InMemorySaver()
    return SqliteSaver("data/threads.db")
app = StateGraph(dict).compile(checkpointer=make())
"""
PROJECT = '[project]\nname = "x"\ndependencies = [\n  "fastapi",\n  "DEP",\n]\n'
OPTIONAL = (
    '[project]\nname = "x"\ndependencies = ["fastapi"]\n'
    '[project.optional-dependencies]\nsqlite = ["langgraph-checkpoint-sqlite"]\n'
)
LISTS = {
    "project": (
        {"pyproject.toml": PROJECT.replace("DEP", "langgraph-checkpoint-sqlite>=2")},
        False,
    ),
    "poetry": (
        {"pyproject.toml": '[tool.poetry.dependencies]\nlanggraph-checkpoint-sqlite = "^2.0"\n'},
        False,
    ),
    "requirements": ({"requirements.txt": "fastapi\nlanggraph_checkpoint_sqlite==2.0.1\n"}, False),
    "optional": ({"pyproject.toml": OPTIONAL}, True),
    "with a condition": (
        {"requirements.txt": "langgraph-checkpoint-sqlite; python_version < '3.9'\n"},
        True,
    ),
    "of tests": ({"requirements-dev.txt": "langgraph-checkpoint-sqlite\n"}, True),
    "another one": ({"requirements.txt": "langgraph-checkpoint-sqlite-extra\n"}, True),
    "not a list": ({"pyproject.toml": "[project\n"}, True),
    "none": ({}, True),
}


IMAGE = """FROM python:3.12-slim
RUN pip install . && uv sync
RUN pip install --no-cache-dir \\
    -r requirements.txt
"""


def degrade_of(read, files, image=IMAGE):
    (found,) = read({"Dockerfile": image, **files}, dockerfile="Dockerfile").degrades
    return found


@pytest.mark.parametrize(
    "image",
    [
        "FROM python:3.12\nRUN pip install -r requirements.prod.txt\n",
        "FROM python:3.12\nRUN pip install fastapi\n# RUN pip install -r requirements.txt\n",
        "FROM python:3.12 AS b\nRUN pip install -r requirements.txt\nFROM python:3.12\nCOPY . .\n",
    ],
    ids=["another list", "no list", "another stage"],
)
def test_an_image_that_is_not_seen_to_install_the_list_is_a_question(read, image):
    lists, _missing = LISTS["requirements"]
    when = degrade_of(read, {"app.py": APP, **lists}, image).when
    assert (when.value, when.question is not None) == (None, True)


@pytest.mark.parametrize(
    ("listed", "image", "expected"),
    [
        ("psycopg\n", IMAGE, None),
        ("psycopg[binary]\n", IMAGE, False),
        ("psycopg\n", IMAGE + "RUN apt-get install -y libpq5\n", False),
    ],
)
def test_psycopg_needs_libpq(read, listed, image, expected):
    app = APP.replace("sqlite import SqliteSaver", "postgres import PostgresSaver")
    app = app.replace("SqliteSaver(", "PostgresSaver(")
    lists = {"requirements.txt": "langgraph-checkpoint-postgres\n" + listed}
    assert degrade_of(read, {"app.py": app, **lists}, image).when.value is expected


def test_many_imports_are_a_question(read):
    names = "".join(f"        import package_{at}\n" for at in range(1_500))
    app = APP.replace("    try:\n", "    try:\n" + names)
    lists = {"requirements.txt": "".join(f"package-{at}\n" for at in range(1_500))}
    assert degrade_of(read, {"app.py": app, **lists}).when.value is None


@pytest.mark.parametrize("way", LISTS)
def test_what_is_required_is_not_missing(read, way):
    lists, may_be_missing = LISTS[way]
    degrade = degrade_of(read, {"app.py": APP, **lists})
    assert (degrade.becomes, degrade.when.value) == (Medium.MEMORY, may_be_missing)


def test_the_line_that_requires_it_is_told(read):
    lists, _missing = LISTS["project"]
    degrade = degrade_of(read, {"app.py": APP, **lists})
    assert [(one.file, one.line) for one in degrade.when.evidence] == [("pyproject.toml", 5)]


def test_other_errors_than_a_missing_package_count(read):
    lists, _missing = LISTS["project"]
    degrade = degrade_of(read, {"app.py": APP.replace("ImportError", "Exception"), **lists})
    assert degrade.when.value is True
