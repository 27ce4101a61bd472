"""S4 on facts written by hand."""

import pytest

from perdure.contracts.check import Settings, check
from perdure.contracts.code.facts import Medium, Migration
from perdure.contracts.deployment.facts import Dependency, Image
from perdure.contracts.evidence import Confidence, Known
from perdure.contracts.findings import Contract, Verdict
from perdure.contracts.rules import RULES
from tests.contracts.making import at, code, database, root, service, start
from tests.contracts.projects import project

V, H, U, NA = (Verdict.VIOLATED, Verdict.HELD, Verdict.UNDECIDED, Verdict.NOT_APPLICABLE)
CHECKED = (at("compose.yaml", 25, "pg_isready -h 127.0.0.1"),)


def judged(own, facts, *others):
    return RULES[Contract.S4](own, facts, root(own, *others))


def waiting(condition="service_healthy", name="db", **more):
    found = Dependency(service=name, condition=condition, evidence=(at("compose.yaml", 11),))
    return service(depends_on=(found,), **more)


def migrates(**changes):
    given = {
        "evidence": (at("main.py", 8, "runs setup()"),),
        "medium": Medium.POSTGRES,
        "location": Known(value="postgresql://u@db/x"),
    }
    return code(migrations=(Migration(**{**given, **changes}),))


@pytest.mark.parametrize(
    ("own", "facts", "db", "expected"),
    [
        (service(), migrates(), database(), V),
        (waiting("service_started"), migrates(), database(), V),
        (waiting(), migrates(), database(health=CHECKED), H),
        (waiting(), migrates(), database(), V),
        (waiting("service_completed_successfully", "migrate"), migrates(), database(), H),
        (waiting("init_container", "wait"), migrates(), database(), H),
        (service(), migrates(retries=(at("main.py", 5, "tenacity"),)), database(), H),
        (service(start=start(waits=(at("start.sh", 2),))), migrates(), database(), H),
        (service(), migrates(is_lazy=True), database(), NA),
        (service(), migrates(location=Known(value="postgresql://u@elsewhere/x")), database(), NA),
        (waiting(), code(), database(health=CHECKED), H),
        (service(), code(), database(), NA),
        (service(start=start(migrations=(at("start.sh", 3),))), code(), database(), V),
        (
            service(),
            migrates(medium=Medium.REDIS, location=Known(value="redis://db:6379")),
            database(catalog="redis", reference="redis:7"),
            V,
        ),
    ],
)
def test_what_waits_for_the_database(own, facts, db, expected):
    assert judged(own, facts, db).verdict is expected


def test_a_command_that_migrates_tables_does_not_mean_redis():
    cache = database("cache", catalog="redis", reference="redis:7")
    own = waiting("service_started", "cache", start=start(migrations=(at("start.sh", 3),)))
    assert judged(own, code(), cache).verdict is NA


def test_a_violation_names_the_migration_the_service_and_the_database():
    found = judged(service(), migrates(), database())
    assert [(e.file, e.line) for e in found.evidence] == [
        ("main.py", 8),
        ("compose.yaml", 3),
        ("compose.yaml", 20),
    ]


def test_a_platform_migrates_at_its_start():
    image = Image(
        reference="langchain/langgraph-api", catalog="langgraph-api", evidence=(at("D", 1),)
    )
    own = service(image=image, start=None)
    assert judged(own, code(), database()).verdict is V


def test_a_check_that_meets_the_server_of_the_set_up_is_warned_of():
    weak = (at("compose.yaml", 25, "pg_isready -U postgres"),)
    found = judged(waiting(), migrates(), database(health=weak))
    assert (found.verdict, len(found.warnings)) == (H, 1)


def test_who_waits_for_somebody_who_waits_has_waited():
    api = service(
        "api",
        depends_on=(
            Dependency(
                service="db", condition="service_healthy", evidence=(at("compose.yaml", 11),)
            ),
        ),
    )
    after = Dependency(
        service="api", condition="service_started", evidence=(at("compose.yaml", 31),)
    )
    worker = service("worker", depends_on=(after,))
    db = database(health=CHECKED)
    assert judged(worker, migrates(), api, db).verdict is H
    bare = service("worker")
    assert judged(bare, migrates(), api, db).verdict is V
    short = Dependency(service="db", condition="service_started", evidence=())
    both = service("worker", depends_on=(short, after))
    assert judged(both, migrates(), api, db).verdict is H


def test_a_circle_of_services_ends():
    first = service(
        "a", depends_on=(Dependency(service="b", condition="service_started", evidence=()),)
    )
    second = service(
        "b", depends_on=(Dependency(service="a", condition="service_started", evidence=()),)
    )
    assert judged(first, migrates(), second, database()).verdict is V


@pytest.mark.parametrize(
    ("policy", "until"),
    [
        ("always", "crash-loops until db is there"),
        ("unless-stopped", "crash-loops until db is there"),
        ("on-failure", "crash-loops until db is there"),
        ("controller", "crash-loops until db is there"),
        ("on-failure:3", "until db is there or 3 tries are used up"),
    ],
)
def test_a_restart_policy_repeats_the_attempt_and_is_no_wait(policy, until):
    line = at("compose.yaml", 14, f"restart: {policy}")
    found = judged(service(restart=Known(value=policy, evidence=(line,))), migrates(), database())
    assert found.verdict is V
    assert found.confidence is Confidence.INFERRED
    assert until in found.summary
    assert line in found.evidence


def test_without_a_restart_policy_it_stays_down():
    found = judged(service(restart=Known(value="no", is_default=True)), migrates(), database())
    assert (found.verdict, found.confidence) == (V, Confidence.PROVED)
    assert "crash-loops" not in found.summary


def test_a_migration_that_names_no_database_is_that_of_the_mysql_that_is_waited_for():
    short = Dependency(service="db", condition="service_started", evidence=())
    own = service("api", depends_on=(short,))
    mysql = database(catalog="mysql", reference="mysql:8")
    unnamed = migrates(location=None)
    found = judged(own, unnamed, mysql)
    assert (found.verdict, found.confidence) == (V, Confidence.INFERRED)
    assert judged(service("api"), unnamed, mysql).verdict is NA


ENGINE = """\
import os
from fastapi import FastAPI
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import declarative_base

Base = declarative_base()
engine = None


def init_engine(url: str | None = None):
    global engine
    engine = create_async_engine(url or os.environ["DATABASE_URL"])


async def lifespan(app):
    init_engine()
    async with engine.begin() as conn:
        await conn.run_sync(Base.metadata.create_all)
    yield


app = FastAPI(lifespan=lifespan)
"""


@pytest.mark.parametrize(
    ("url", "verdict"),
    [
        ("sqlite+aiosqlite:///own.db", NA),
        ("sqlite:////data/own.db", NA),
        ("postgresql+asyncpg://u:p@db/x", V),
    ],
)
def test_tables_in_sqlite_need_no_database_that_runs_beside_it(tmp_path, url, verdict):
    lines = (
        "services:",
        "  api:",
        "    build: .",
        f"    environment: {{DATABASE_URL: '{url}'}}",
        "    depends_on: [db]",
        "  db:",
        "    image: postgres:16",
    )
    folder = project(tmp_path, compose_dot_yaml="\n".join(lines) + "\n", app_dot_py=ENGINE)
    [deployed] = check(folder, Settings(only=(Contract.S4,))).roots
    assert [f.verdict for f in deployed.findings if f.service == "api"] == [verdict]


def test_a_job_that_is_tried_again_is_a_question():
    found = judged(service(controller="Job"), migrates(), database())
    assert found.verdict is U
    assert "backoffLimit" in found.question
    pod = judged(service(controller="Deployment"), migrates(), database())
    assert pod.verdict is V
    assert "init container" in pod.repair
