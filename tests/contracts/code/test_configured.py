"""Settings in YAML, TOML and JSON files of the project."""

from textwrap import dedent

import pytest

from perdure.contracts.code.facts import Medium, Role
from perdure.contracts.evidence import Confidence

SAVERS = """
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import StateGraph
def make(backend, path):
    return InMemorySaver() if backend == "memory" else SqliteSaver.from_conn_string(path)
def build(backend, path):
    with make(backend, path) as saver:
        return StateGraph(dict).compile(checkpointer=saver)
"""
YAML = "storage:\n  backend: BACKEND\n  path: data/threads.db\n"
TOML = '[storage]\nbackend = "BACKEND"\npath = "data/threads.db"\n'
JSON = '{"storage": {"backend": "BACKEND", "path": "data/threads.db"}}\n'
READS = {
    "yaml": ("config.yaml", YAML, """
        import yaml
        with open("config.yaml") as file:
            config = yaml.safe_load(file)
        app = build(config["storage"]["backend"], config["storage"]["path"])
        """),
    "yaml of a function": ("config/app.yml", YAML, """
        import yaml
        from pathlib import Path
        ROOT = Path(__file__).parent
        def load():
            return yaml.safe_load((ROOT / "config" / "app.yml").read_text())
        storage = load().get("storage", {})
        app = build(storage.get("backend", "memory"), storage.get("path"))
        """),
    "toml": ("config.toml", TOML, """
        import tomllib
        with open("config.toml", "rb") as file:
            config = tomllib.load(file)
        app = build(config["storage"]["backend"], config["storage"]["path"])
        """),
    "json": ("config.json", JSON, """
        import json
        config = json.load(open("config.json"))
        app = build(config["storage"]["backend"], config["storage"]["path"])
        """),
    "model": ("config.yaml", YAML, """
        import yaml
        from pydantic import BaseModel
        class Storage(BaseModel):
            backend: str = "memory"
            path: str = "other.db"
        config = Storage(**yaml.safe_load(open("config.yaml"))["storage"])
        app = build(config.backend, config.path)
        """),
    "validated": ("config.yaml", YAML, """
        import yaml
        from pydantic import BaseModel
        class Storage(BaseModel):
            backend: str = "memory"
            path: str = "other.db"
        config = Storage.model_validate(yaml.safe_load(open("config.yaml"))["storage"])
        app = build(config.backend, config.path)
        """),
}  # fmt: skip


def taken(facts):
    return [
        one
        for one in facts.sites
        if one.role is Role.SAVER and one.is_served and one.chosen.value is not False
    ]


@pytest.mark.parametrize("way", READS)
@pytest.mark.parametrize(
    ("backend", "medium"), [("sqlite", Medium.FILE), ("memory", Medium.MEMORY)]
)
def test_a_file_of_settings_chooses_the_saver(read, way, backend, medium):
    path, text, code = READS[way]
    files = {path: text.replace("BACKEND", backend), "app.py": SAVERS + dedent(code)}
    (site,) = taken(read(files))
    assert (site.medium, site.chosen.value) == (medium, True)
    assert site.chosen.confidence is Confidence.DECLARED_DEFAULT
    assert path in {one.file for one in site.chosen.evidence}
    if medium is Medium.FILE:
        assert site.location.value == "data/threads.db"


def test_what_a_file_takes_from_the_environment_is_asked_there(read):
    path, text, code = READS["yaml"]
    files = {path: text.replace("BACKEND", "${KIND:-memory}"), "app.py": SAVERS + dedent(code)}
    assert [one.medium for one in taken(read(files))] == [Medium.MEMORY]
    (site,) = taken(read(files, environment={"KIND": "sqlite"}))
    assert site.medium is Medium.FILE
    open_ones = {path: text.replace("BACKEND", "${KIND}"), "app.py": SAVERS + dedent(code)}
    assert {one.chosen.value for one in taken(read(open_ones))} == {None}


@pytest.mark.parametrize("text", ["storage: [", "", "- a\n- b\n", "storage:\n  other: 1\n"])
def test_a_file_that_does_not_say_leaves_the_saver_open(read, text):
    _path, _text, code = READS["yaml"]
    found = taken(read({"config.yaml": text, "app.py": SAVERS + dedent(code)}))
    assert {one.chosen.value for one in found} == {None}


def test_values_that_nobody_knows_leave_defaults_of_a_model_open(read):
    _path, _text, code = READS["model"]
    unknown = dedent(code).replace('yaml.safe_load(open("config.yaml"))["storage"]', "fetch()")
    found = taken(read({"app.py": SAVERS + unknown}))
    assert {one.chosen.value for one in found} == {None}


LISTED = """
from pydantic_settings import BaseSettings, SettingsConfigDict
class Storage(BaseSettings):
    model_config = SettingsConfigDict(yaml_file="config.yaml")
    backend: str = "memory"
    path: str = "other.db"
config = Storage()
app = build(config.backend, config.path)
"""


@pytest.mark.parametrize(
    ("environment", "medium"), [({}, Medium.FILE), ({"BACKEND": "memory"}, Medium.MEMORY)]
)
def test_the_file_of_a_settings_class_comes_after_the_environment(read, environment, medium):
    files = {"config.yaml": "backend: sqlite\npath: a.db\n", "app.py": SAVERS + LISTED}
    assert [one.medium for one in taken(read(files, environment=environment))] == [medium]


DJANGO = """
import os
from django.conf import settings
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "site_settings")
app = build(settings.BACKEND, settings.THREADS)
"""


def test_settings_of_django_are_variables_of_their_module(read):
    settings = 'import os\nBACKEND = os.getenv("BACKEND", "sqlite")\nTHREADS = "t.db"\n'
    files = {"site_settings.py": settings, "app.py": SAVERS + DJANGO}
    assert [one.medium for one in taken(read(files))] == [Medium.FILE]
    found = taken(read(files, environment={"BACKEND": "memory"}))
    assert [one.medium for one in found] == [Medium.MEMORY]


@pytest.mark.parametrize(
    "line",
    ["x = " + "9" * 5_000, "x = 0x" + "F" * 6_000, ".".join("a" * 20_000) + " = 1"],
    ids=["many digits", "many of a hex", "many dots"],
)
def test_a_line_beyond_the_bounds_does_not_hide_the_code(read, line):
    name, _text, code = READS["toml"]
    facts = read({name: line + "\n" + TOML, "app.py": SAVERS + dedent(code)})
    assert {one.medium for one in facts.sites} >= {Medium.MEMORY}


@pytest.mark.parametrize(
    "changed",
    [
        'config["storage"]["backend"] = "sqlite"',
        'config.update({"storage": {}})',
        'for name in ("a", "b"):\n    config[name] = name',
        'storage = config["storage"]\nstorage["backend"] = "sqlite"',
    ],
)
def test_a_table_that_code_changes_does_not_say_what_the_file_had(read, changed):
    name, text, code = READS["yaml"]
    code = dedent(code).replace("app = build", f"{changed}\napp = build")
    facts = read({name: text.replace("BACKEND", "memory"), "app.py": SAVERS + code})
    memory = [one for one in facts.sites if one.medium is Medium.MEMORY]
    assert [one for one in memory if one.chosen.value is True] == []


@pytest.mark.parametrize(
    ("file", "said"),
    [
        (".dockerignore", "# no\n**/*.yaml\n"),
        ("Dockerfile", "FROM x\nRUN sed -i s/memory/sqlite/ config.yaml\n"),
        ("compose.yaml", "configs:\n  - source: c\n    target: /app/config.yaml\n"),
    ],
)
def test_a_file_that_the_image_may_not_have_leaves_the_saver_open(read, file, said):
    name, text, code = READS["yaml"]
    files = {name: text.replace("BACKEND", "memory"), "app.py": SAVERS + dedent(code), file: said}
    facts = read(files, dockerfile="Dockerfile")
    assert True not in {one.chosen.value for one in facts.sites}


@pytest.mark.parametrize(
    ("file", "more"),
    [
        (
            "site_settings.py",
            "try:\n    from local_settings import *\nexcept ImportError:\n    pass\n",
        ),
        ("site_settings.py", 'globals().update({"BACKEND": "sqlite"})\n'),
        ("app.py", 'import os\nos.environ["DJANGO_SETTINGS_MODULE"] = "other"\n'),
        ("app.py", 'settings.BACKEND = "sqlite"\n'),
        ("app.py", 'settings.configure(BACKEND="sqlite")\n'),
    ],
)
def test_a_setting_of_django_that_is_set_elsewhere_leaves_the_saver_open(read, file, more):
    files = {
        "site_settings.py": 'BACKEND = "memory"\nTHREADS = "t.db"\n',
        "app.py": SAVERS + DJANGO,
    }
    facts = read({**files, "local_settings.py": 'BACKEND = "sqlite"\n', file: files[file] + more})
    assert True not in {one.chosen.value for one in facts.sites if one.medium is Medium.MEMORY}


PROPERTY = """
import sqlite3
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import StateGraph
from pydantic_settings import BaseSettings

class Settings(BaseSettings):
    path: str = "data/threads.db"

    @property
    def DB(self):
        return self.path

    @DB.setter
    def DB(self, value):
        self.path = value

    @DB.deleter
    def DB(self):
        self.path = ""

settings = Settings()
app = StateGraph(dict).compile(checkpointer=SqliteSaver(sqlite3.connect(settings.DB)))
"""


def test_a_property_is_what_it_is_read_by(read):
    [site] = read({"app.py": PROPERTY}).sites
    assert site.location.value == "data/threads.db"
    [told] = read({"app.py": PROPERTY}, environment={"PATH_": "x", "path": "/data/t.db"}).sites
    assert told.location.value == "/data/t.db"


@pytest.mark.parametrize("value", ["company.path()", '"/elsewhere/t.db"'])
def test_a_property_that_is_set_may_be_something_else(read, value):
    app = PROPERTY.replace(
        "settings = Settings()\n", f"settings = Settings()\nsettings.DB = {value}\n"
    )
    [site] = read({"app.py": app}).sites
    assert site.location is None or site.location.value != "data/threads.db"
