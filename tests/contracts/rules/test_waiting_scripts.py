"""S4 where an entry script waits for the database before it migrates: the waits people write."""

from textwrap import indent

import pytest

from perdure.contracts.check import check
from perdure.contracts.findings import Contract, Verdict
from tests.contracts.projects import project

DOCKERFILE = """\
FROM python:3.12-slim
WORKDIR /app
COPY . .
ENTRYPOINT ["./entrypoint.sh"]
CMD ["uvicorn", "app:app"]
"""
COMPOSE = """\
services:
  api:
    build: .
    environment:
      DATABASE_URL: postgresql://u:p@db:5432/x
  db:
    image: postgres:16
  cache:
    image: redis:7
"""
APP = "from fastapi import FastAPI\napp = FastAPI()\n"

SOCKET = """\
for i in {1..30}; do
  if timeout 1 bash -c "cat < /dev/null > /dev/tcp/$DB_HOST/$DB_PORT" 2>/dev/null; then
    break
  fi
  sleep 1
done"""
PYTHON = """\
import os, socket, time
while True:
    try:
        socket.create_connection((os.environ["DB_HOST"], 5432), timeout=2).close()
        break
    except OSError:
        time.sleep(1)"""
WAITS = {
    "a socket of bash": SOCKET,
    "in an if": f'if [[ -n "$DATABASE_URL" ]]; then\n{SOCKET}\nfi',
    "in a function": f"prepare() {{\n{SOCKET}\n}}\nprepare",
    "a function that may fail": f"prepare() {{\n{SOCKET}\n}}\nprepare || exit 1",
    "a function asked for": (
        f"prepare() {{\n{SOCKET}\nreturn 1\n}}\nif ! prepare; then exit 1; fi"
    ),
    "pg_isready": 'until pg_isready -h db -p "5432"; do sleep 1; done',
    "pg_isready, numbered": "for n in $(seq 30); do pg_isready -h db && break; sleep 1; done",
    "psql": "until PGPASSWORD=$P psql -h \"$DB_HOST\" -U u -c '\\q'; do sleep 1; done",
    "psql in an if": "if [ -n \"$H\" ]; then\nuntil psql -c 'select 1'; do sleep 1; done\nfi",
    "nc": 'while ! nc -z "$DB_HOST" 5432; do sleep 0.1; done',
    "nc with options": 'while ! nc -w 2 -vz "$DB_HOST" 5432; do sleep 0.1; done',
    "bash of its own": "timeout 60 bash -c 'until nc db 5432 </dev/null; do sleep 1; done'",
    "asked of bash": "if ! timeout 9 bash -c 'until nc db 5432; do sleep 1; done'; then exit 1; fi",
    "python in a loop": (
        "until python -c \"import psycopg; psycopg.connect('$DATABASE_URL')\"; do sleep 1; done"
    ),
    "python that loops": f"python -c '{PYTHON}'",
    "python in a here-document": f"python - <<'EOF'\n{PYTHON}\nEOF",
    "python in a function": f"prepare() {{\npython3 - <<'EOF'\n{PYTHON}\nEOF\n}}\nprepare",
    "wait-for-it": "./wait-for-it.sh db:5432 --timeout=60",
    "dockerize": "dockerize -wait tcp://db:5432 -timeout 60s",
    "the migration again": "until alembic upgrade head; do sleep 2; done",
}
OTHERS = {
    "nothing": "echo 'waiting for psql: while sleep'",
    "another database": "until redis-cli -h cache ping; do sleep 1; done",
    "another service": "while ! curl -s http://cache:6379/; do sleep 1; done",
    "a loop of something else": "for f in a b; do cp $f $f.bak; done",
}


def judged(folder, script):
    where = project(
        folder,
        Dockerfile=DOCKERFILE,
        compose_dot_yaml=COMPOSE,
        app_dot_py=APP,
        entrypoint_dot_sh=f'#!/bin/bash\nset -e\n{script}\nalembic upgrade head\nexec "$@"\n',
    )
    (root,) = check(where).roots
    return next(f for f in root.findings if f.contract is Contract.S4 and f.service == "api")


@pytest.mark.parametrize("way", WAITS)
def test_a_script_that_waits_before_it_migrates_holds(tmp_path, way):
    found = judged(tmp_path, WAITS[way])
    assert found.verdict is Verdict.HELD, indent(WAITS[way], "    ")
    assert any(e.file == "entrypoint.sh" for e in found.evidence)


@pytest.mark.parametrize("way", OTHERS)
def test_what_waits_for_something_else_is_no_wait_for_the_database(tmp_path, way):
    assert judged(tmp_path, OTHERS[way]).verdict is Verdict.VIOLATED


def test_a_wait_for_mysql_is_one_for_it(tmp_path):
    compose = COMPOSE.replace("postgres:16", "mysql:8").replace(
        "    environment:", "    depends_on: [db]\n    environment:"
    )
    where = project(
        tmp_path,
        Dockerfile=DOCKERFILE,
        compose_dot_yaml=compose.replace("postgresql://u:p@db:5432", "mysql://u:p@db:3306"),
        app_dot_py=APP,
        entrypoint_dot_sh=(
            "#!/bin/sh\nwhile ! mysqladmin -h db ping --silent; do sleep 1; done\n"
            'python manage.py migrate\nexec "$@"\n'
        ),
    )
    (root,) = check(where).roots
    found = next(f for f in root.findings if f.contract is Contract.S4 and f.service == "api")
    assert found.verdict is Verdict.HELD


def test_a_script_that_only_says_that_it_migrates_needs_no_database(tmp_path):
    where = project(
        tmp_path,
        Dockerfile=DOCKERFILE,
        compose_dot_yaml=COMPOSE,
        app_dot_py=APP,
        entrypoint_dot_sh="#!/bin/sh\necho 'migrations are made elsewhere'\nexec \"$@\"\n",
    )
    (root,) = check(where).roots
    found = next(f for f in root.findings if f.contract is Contract.S4 and f.service == "api")
    assert found.verdict is Verdict.NOT_APPLICABLE
