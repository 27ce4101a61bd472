"""Compose files that the project's own commands lay over others."""

import pytest

from tests.contracts.deployment.reading import SLIM, roots

MAIN = """services:
  api:
    build: .
    restart: always
    environment: {MODE: plain}
"""
OVER = """services:
  api:
    image: acme/desk:1
    environment: {MODE: loud}
"""
BOTH = "docker compose -f docker-compose.yml -f docker-compose.loud.yml up -d"
FILES = {"Dockerfile": SLIM + "CMD uvicorn main:app\n", "docker-compose.yml": MAIN}


def loud(folder, files):
    """Return the restart policy of the overlay's service, and the files that it is made of."""
    root = roots(folder, {**FILES, "docker-compose.loud.yml": OVER, **files})[
        "docker-compose.loud.yml"
    ]
    [api] = root.services
    assert api.environment["MODE"].known.value == "loud"
    return api.restart.value, root.files


@pytest.mark.parametrize(
    "files",
    [
        {"docker-compose.loud.yml": f"# Louder:\n#   {BOTH}\n{OVER}"},
        {"README.md": f"Start it:\n\n    {BOTH}\n"},
        {"README.md": "docker compose -f docker-compose.yml \\\n  -f docker-compose.loud.yml up\n"},
        {"Makefile": f"up:\n\t{BOTH.replace('-f ', '--file ')}\n"},
        {"README.md": f"{BOTH.replace('-f ', '-f')}\n"},
        {"README.md": f"Plain: `docker compose up`. Loud: `{BOTH}`.\n"},
        {"docs/guides/loud.md": f"Start it:\n\n    {BOTH}\n"},
        {"scripts/loud.sh": f"#!/bin/sh\ncd ..\n{BOTH}\n"},
        {"README.md": f"{BOTH}\n", "ci.yml": "run: docker compose -f docker-compose.yml up\n"},
        {
            "README.md": f"{BOTH}\n",
            "up.sh": "docker compose -f other/docker-compose.loud.yml up",
            "other/docker-compose.loud.yml": OVER,
        },
    ],
)
def test_a_file_that_a_command_lays_over_another_is_read_over_it(tmp_path, files):
    found, merged = loud(tmp_path, files)
    assert found == "always"
    assert merged == ("docker-compose.yml", "docker-compose.loud.yml")


@pytest.mark.parametrize(
    "files",
    [
        {},
        {"README.md": f"{BOTH}\nor docker compose -f docker-compose.loud.yml up\n"},
        {"README.md": "docker compose -f other.yml -f docker-compose.loud.yml up\n"},
        {
            "README.md": "`docker compose -f docker-compose.yml up` or "
            "`docker compose -f docker-compose.loud.yml up`\n"
        },
        {"README.md": "docker compose -f docker-compose.yml up && -f docker-compose.loud.yml up\n"},
        {"README.md": "| docker compose -f docker-compose.yml | -f docker-compose.loud.yml |\n"},
        {"README.md": f"Do not use `{BOTH}`.\n"},
        {"README.md": f"{BOTH.replace('up -d', 'config')}\n"},
        {"README.md": BOTH.replace("-f ", "-f deep/")},
        {"README.md": f"cd deep && {BOTH}\n", "deep/docker-compose.yml": MAIN},
        {
            "README.md": f"{BOTH.replace('compose.yml', 'compose.test.yml')}\n",
            "docker-compose.test.yml": MAIN,
        },
        {
            "README.md": f"{BOTH}\n",
            ".github/workflows/d.yml": "- run: docker compose -f docker-compose.loud.yml up\n",
        },
        {"README.md": f"{BOTH}\n", "up.sh": "docker compose -f docker-compose.loud.yml up -d\n"},
        {"README.md": f"{BOTH}\n", "up.sh": "docker stack deploy -c docker-compose.loud.yml x\n"},
        {"README.md": f"{BOTH}\n", ".env": "COMPOSE_FILE=docker-compose.loud.yml\n"},
        {"README.md": f"{BOTH}\n", "up.py": "run(['compose', '-f', 'docker-compose.loud.yml'])\n"},
        {"README.md": "kubectl apply -f docker-compose.yml -f docker-compose.loud.yml\n"},
    ],
)
def test_a_file_that_is_started_alone_stands_for_itself(tmp_path, files):
    found, merged = loud(tmp_path, files)
    assert found in {"no", None}
    assert merged == ("docker-compose.loud.yml",)


OTHER = "  {}:\n    image: acme/{}:1\n"


@pytest.mark.parametrize(
    ("files", "restart"),
    [
        ({}, None),
        ({"docker-compose.loud.yml": OVER + OTHER.format("x", "x")}, "no"),
        ({"docker-compose.yml": MAIN.replace("restart: always", "init: true")}, "no"),
        ({"up.sh": "docker compose -f docker-compose.loud.yml up -d\n"}, "no"),
        ({"Makefile": "up:\n\tdocker compose --file docker-compose.loud.yml up\n"}, "no"),
    ],
)
def test_a_file_that_may_be_meant_to_lie_over_another_one_is_a_question(tmp_path, files, restart):
    given = {**FILES, "docker-compose.loud.yml": OVER, **files}
    root = roots(tmp_path, given)["docker-compose.loud.yml"]
    assert root.services[0].restart.value == restart
    if restart is None:
        assert "-f docker-compose.yml" in root.services[0].restart.question


def test_a_service_that_only_an_override_has_is_restarted_by_none(tmp_path):
    main = MAIN + OTHER.format("db", "db")
    over = OVER + OTHER.format("db", "db") + OTHER.format("mock", "mock")
    given = {**FILES, "docker-compose.yml": main, "docker-compose.loud.yml": over}
    root = roots(tmp_path, given)["docker-compose.loud.yml"]
    assert [one.restart.value for one in root.services] == [None, "no", "no"]
