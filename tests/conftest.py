"""What all tests share."""

import signal
from collections import defaultdict
from itertools import count

import pytest
from hypothesis import settings

from perdure.testing.postgres import running_server

# How long one example takes depends on what else the machine does; a test has its own time limit.
settings.register_profile("perdure", deadline=None)
settings.load_profile("perdure")


_numbers = count()
_spare: dict[object, list[str]] = defaultdict(list)
"""Schemas whose tables are there and empty, by server."""

EMPTY = """
DO $do$
DECLARE
    each record;
    is_used boolean;
BEGIN
    FOR each IN
        SELECT oid::regclass AS name, relkind AS kind FROM pg_class
        WHERE relnamespace = '{schema}'::regnamespace AND relkind IN ('r', 'S')
            AND relname NOT IN ('schema_version', 'claim_turn')
    LOOP
        IF each.kind = 'S' THEN
            EXECUTE format('SELECT is_called FROM %s', each.name) INTO is_used;
            IF is_used THEN EXECUTE format('ALTER SEQUENCE %s RESTART', each.name); END IF;
        ELSE
            EXECUTE format('SELECT EXISTS (SELECT FROM %s)', each.name) INTO is_used;
            IF is_used THEN EXECUTE format('TRUNCATE %s', each.name); END IF;
        END IF;
    END LOOP;
END
$do$
"""
"""Leaves of a store what its migrations wrote, which is one row in each of the two tables."""


@pytest.fixture(scope="session")
def postgres():
    """The PostgreSQL server that the tests of one process share."""
    with running_server() as server:
        yield server


@pytest.fixture
def schema(postgres, worker_id):
    """The name of a schema of one test; it is dropped afterwards."""
    name = f"t_{worker_id}_{next(_numbers)}"
    yield name
    postgres.query(f"DROP SCHEMA IF EXISTS {name} CASCADE")


@pytest.fixture
def emptied_schema(postgres, worker_id):
    """The name of a schema of one test, where an earlier one may have made the tables already.

    For tests of what is in tables: to make them takes several times as long as most such tests.
    """
    spare = _spare[postgres]
    name = spare.pop() if spare else f"e_{worker_id}_{next(_numbers)}"
    yield name
    if postgres.query("SELECT to_regnamespace(%s)", name) != [(None,)]:
        postgres.query(EMPTY.format(schema=name))
        spare.append(name)


def pytest_configure():
    """Take Ctrl-C as programs do that are started in front: behind a shell's `&` it is ignored."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_itemcollected(item):
    """Keep tests of one engine of containers on one worker: another takes a minute to prepare."""
    for engine in {"docker", "podman"}.intersection(getattr(item, "fixturenames", ())):
        item.add_marker(pytest.mark.xdist_group(engine))


def pytest_terminal_summary(terminalreporter):
    """Show figures that tests recorded (`record_property("figure", ...)`), from every worker."""
    reports = terminalreporter.getreports("passed")
    shown = [
        value for report in reports for name, value in report.user_properties if name == "figure"
    ]
    for value in shown:
        terminalreporter.write_line(f"figure: {value}")
