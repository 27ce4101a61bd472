"""Why a container ends by itself: migrations, seeds, tests, set-up. Only positive evidence counts.

What ends by itself needs no restart, no drain and no update that keeps it listening. A worker that
nobody restarts is a fault, so that "no restart policy" alone says nothing: the program that is
started ends, another service waits until it has ended, or names say it of something that serves
nobody.
"""

import re
from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from perdure.contracts._patterns import regex
from perdure.contracts.deployment import _programs as programs
from perdure.contracts.deployment._room import Room, find_file
from perdure.contracts.deployment._yaml import Node
from perdure.contracts.deployment.facts import Process, Start
from perdure.contracts.evidence import Evidence

_ENDING = frozenset(
    {
        "alembic", "prisma", "pytest", "pip", "aerich", "flyway", "liquibase", "mc", "psql",
        "createbuckets", "bandit", "ruff", "black", "mypy", "flake8", "tox", "nox", "coverage",
        "pre-commit", "pylint", "yoyo", "dbmate", "goose", "curl", "wget", "echo", "newman", "k6",
        "py.test", "unittest", "behave", "robot", "deepeval", "hf", "huggingface-cli", "pg_dump",
        "pg_restore", "createdb", "true",
    }
)  # fmt: skip
"""Programs that do one thing and end."""

_ENDING_WORDS: dict[str, frozenset[str]] = {
    "ollama": frozenset({"pull", "create", "list"}),
    "flask": frozenset({"db", "init-db", "seed"}),
    "npm": frozenset({"test", "ci", "install"}),
    "locust": frozenset({"--headless"}),
    "uv": frozenset({"sync", "pip", "lock"}),
    "poetry": frozenset({"install", "lock"}),
}
"""Programs that end with one of these words."""

_MANAGE = frozenset(
    {"migrate", "collectstatic", "loaddata", "test", "makemigrations", "createsuperuser", "check"}
)
"""What `manage.py` does and ends."""

NAMED = regex(
    r"(^|[-_.])(migrat\w*|db[-_]?(init|upgrade|setup|seed)|init([-_]?(db|data|container))?"
    r"|seed(s|er|ing)?|setup|bootstrap|create[-_]\w+|load[-_]?data|fixtures?|model[-_]?pull(er)?)"
    r"($|[-_.])"
    r"|(^|[-_.])(tests?|tester|smoke|e2e|pytest|unittests?|loadtest)([-_.]?(runner|job|client))?$",
    re.IGNORECASE,
)
"""Names of services that do something once."""

_SCRIPT = regex(
    r"(^|/)(tests?|smoke|e2e)/|(^|[/._-])(migrat\w*|seed\w*|init_?db|setup_?(db|database|checkpointer)"
    r"|create_?(tables|db|admin|superuser|buckets?)|smoke\w*|load_?data|conftest|test_\w+|run_tests?"
    r"|wait_for_\w+|pre_?start)($|[._-])",
    re.IGNORECASE,
)
"""Scripts and modules that do something once."""

_PROFILES = frozenset(
    {
        "test", "tests", "testing", "e2e", "smoke", "ci", "lint", "migrate", "migration",
        "migrations", "seed", "seeds", "init", "setup", "bootstrap", "tools", "tool", "eval",
        "evals", "evaluation", "load-test", "loadtest", "bench", "benchmark", "job", "jobs",
        "batch", "batches", "on-demand", "ondemand", "manual", "oneshot", "one-shot", "once",
        "oneoff", "one-off", "backfill",
    }
)  # fmt: skip
"""Profiles of what is started by hand, does its work, and ends."""


def of_program(start: Start | None, room: Room) -> tuple[Evidence, ...]:
    """Return why what a container starts ends by itself; empty: it may go on for ever."""
    if start is None:
        return ()
    server = start.server
    if server is None:
        is_read = start.shape == "nothing_served" and bool(start.migrations)
        note = "its last command changes the database and ends"
        return (replace(start.migrations[-1], note=note),) if is_read else ()
    here = server.evidence[-1] if server.evidence else None
    if here is None or _has_server(start):
        return ()
    if server.program in _ENDING or _ending_word(server):
        shown = " ".join(server.argv[:3])[:60]
        return (replace(here, note=f"{shown} does its work and ends"),)
    if server.program == "python" and server.target is not None:
        return _of_script(server, here, room)
    return ()


def _has_server(start: Start) -> bool:
    return any(
        each.program in programs.SERVING and not _ending_word(each) for each in start.processes
    )


def _ending_word(server: Process) -> bool:
    words = _ENDING_WORDS.get(server.program, frozenset())
    return any(word in words for word in server.argv[1:3])


def _of_script(server: Process, here: Evidence, room: Room) -> tuple[Evidence, ...]:
    target = server.target or ""
    words = server.argv[-1:] if target.endswith("manage.py") else ()
    if any(word in _MANAGE for word in words):
        return (replace(here, note=f"manage.py {words[0]} does its work and ends"),)
    path = target.replace(".", "/") + ".py" if server.is_module else target
    if not _SCRIPT.search(path):
        return ()
    found = find_file(path, room)
    text = room.project.read(found) if found is not None else None
    if text is not None and programs.GOES_ON.search(text):
        return ()
    told = replace(here, note=f"{target} is a script for one time, and serves nobody")
    if found is None:
        return (told,)
    return told, Evidence(file=found, line=1, note="nothing in it serves, loops or waits for ever")


def of_names(
    name: str, profiles: Sequence[str], start: Start | None, place: Evidence
) -> tuple[Evidence, ...]:
    """Return why a service that publishes nothing and is not restarted ends by its names."""
    server = start.server if start is not None else None
    if start is not None and (
        _has_server(start) or (server and server.program in programs.SERVING)
    ):
        return ()
    chosen = [each for each in profiles if each.lower() in _PROFILES]
    if chosen:
        note = f"profile {chosen[0]!r}: it is started by hand, is not restarted and serves nobody"
        return (replace(place, note=note),)
    if NAMED.search(name):
        note = f"{name!r} by its name does something once: it is not restarted and serves nobody"
        return (replace(place, note=note),)
    return ()


def of_waiting(name: str, services: Mapping[str, Node]) -> tuple[Evidence, ...]:
    """Return where another service of a Compose file waits until this one has ended."""
    for other in services.values():
        waited = other.get("depends_on")
        value = waited.get(name) if waited is not None else None
        if value is not None and value.text_at("condition") == "service_completed_successfully":
            return (value.place_of("condition", "another service waits until it has ended"),)
    return ()


def of_choice(name: str, services: Mapping[str, Node]) -> tuple[Evidence, ...]:
    """Return where a service alone of its file is written not to be restarted.

    Nobody writes the default for one service and a policy for others without meaning it; whether
    it is meant as a job is only asked, as what goes on in a library is not seen.
    """
    own = services[name]
    is_written = (own.text_at("restart") or "").lower() in _OFF
    others = [each.text_at("restart") for each in services.values() if each is not own]
    is_alone = any(text is not None and text.lower() not in _OFF for text in others)
    if not is_written or not is_alone:
        return ()
    return (own.place_of("restart", "it is written not to be restarted, as others are"),)


_OFF = frozenset({"no", "false"})


def is_asked(name: str, services: Mapping[str, Node]) -> bool:
    """Whether a service of a Compose file takes connections, or another one waits for it."""
    own = services[name]
    if any(own.get(key) is not None for key in ("ports", "expose", "healthcheck")):
        return True
    waited = [node for each in services.values() if (node := each.get("depends_on")) is not None]
    return any(
        name in node.entries or any(item.text == name for item in node.items) for node in waited
    )


def may_end(
    start: Start | None, profiles: Sequence[str], room: Room, place: Evidence, *, is_known: bool
) -> tuple[Evidence, ...]:
    """Return why a service that publishes nothing may be a job: nothing in it is seen to go on.

    Args:
        start: what it starts; `None`: what the image does.
        profiles: its profiles.
        room: what the container holds.
        place: where it is declared.
        is_known: the image is one of the catalogue, and a server.
    """
    if start is None:
        is_server = is_known
    else:
        server = start.server
        is_server = (
            _has_server(start)
            or (server is not None and server.program in programs.SERVING)
            or (server is not None and server.program == "python" and _goes_on(server, room))
        )
    if is_server:
        return ()
    note = "it publishes nothing, and nothing in it was seen to go on"
    if profiles:
        note = f"profile {profiles[0]!r} starts it on demand; {note}"
    return (replace(place, note=note),)


_MANAGED = regex(
    r"^(run(server|worker)\w*|\w*_?worker|qcluster|process_tasks|consume\w*|listen\w*)$"
)
"""Commands of `manage.py` and others that go on."""


def _goes_on(server: Process, room: Room) -> bool:
    """Whether a Python program has something in it that goes on."""
    if any(_MANAGED.search(word) for word in server.argv if server.target != word):
        return True
    path = (server.target or "").partition(":")[0]
    if server.is_module:
        path = path.replace(".", "/")
        paths = [f"{path}.py", f"{path}/__main__.py"]
    else:
        paths = [path]
    texts = [room.project.read(file) for each in paths if (file := find_file(each, room))]
    return any(text is not None and programs.GOES_ON.search(text) for text in texts)
