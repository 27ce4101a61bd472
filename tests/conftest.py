"""What all tests share."""

from itertools import count

import pytest
from hypothesis import settings

from perdure.testing.postgres import running_server

# How long one example takes depends on what else the machine does; a test has its own time limit.
settings.register_profile("perdure", deadline=None)
settings.load_profile("perdure")


_numbers = count()


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


def pytest_terminal_summary(terminalreporter):
    """Show figures that tests recorded (`record_property("figure", ...)`), from every worker."""
    reports = terminalreporter.getreports("passed")
    shown = [
        value for report in reports for name, value in report.user_properties if name == "figure"
    ]
    for value in shown:
        terminalreporter.write_line(f"figure: {value}")
