"""What a report shows of a project has no secrets in it, whatever they are written like."""

import json
import time

import pytest

from perdure.contracts._secrets import without_secrets
from perdure.contracts.check import check
from perdure.contracts.report import as_json, as_sarif, as_text
from tests.contracts.projects import project

SECRET = "hunter2secret"  # noqa: S105  # of a test

HIDDEN = [
    "python app.py --password hunter2secret",
    "python app.py --password=hunter2secret --port 80",
    "python app.py --db-password 'hunter2secret and more'",
    '["app", "--api-key", "hunter2secret"]',
    "['app', '--auth-token', 'hunter2secret']",
    '{"password": "hunter2secret"}',
    "{'secret_key': 'hunter2secret'}",
    "AWS_SECRET_ACCESS_KEY=hunter2secret",
    "DB_PASS=hunter2secret",
    "PRIVATE_KEY=hunter2secret",
    "ANTHROPIC_KEY: hunter2secret",
    'PASSWORD="a hunter2secret c"',
    'PASSWORD="a hunter2secret',
    "Authorization: Bearer hunter2secret",
    "TOKEN: Bearer hunter2secret",
    "authToken=hunter2secret",
    "PASSWORD=-hunter2secret",
    "postgres://u:p@hunter2secret@h/db",
    "https://hunter2secret@github.com/x",
    "postgresql://me:hunter2secret",
    "postgresql://me:hunter2/secret@db",
]

SHOWN = [
    "--tokenizer cl100k --max-tokens 100",
    "http://db:5432/x and http://host/package@1.2",
    "redis://cache:${PORT}",
    "the key is there twice",
    "--key-file /run/secrets/key",
    "which token is it?",
    "python -m app --port 8000",
]


@pytest.mark.parametrize("text", HIDDEN)
def test_a_secret_is_hidden(text):
    shown = without_secrets(text)
    assert "hunter2" not in shown
    assert "***" in shown


@pytest.mark.parametrize("text", SHOWN)
def test_what_is_no_secret_is_shown(text):
    assert without_secrets(text) == text


@pytest.mark.parametrize("part", ["://a:", "password", "--key ", "key='", "token=", "@", "://a:b@"])
def test_long_texts_are_gone_through_once(part):
    begin = time.process_time()
    without_secrets(part * 50_000)
    assert time.process_time() - begin < 20  # by the square: many minutes


@pytest.mark.parametrize(
    "command",
    [
        f"python app.py --password {SECRET}",
        f'["python", "app.py", "--api-key", "{SECRET}"]',
        f'python app.py \'{{"password": "{SECRET}"}}\'',
    ],
)
def test_no_format_has_the_secret_of_a_command(tmp_path, command):
    project(tmp_path, compose_dot_yaml=f"services:\n  api:\n    build: .\n    command: {command}\n")
    report = check(tmp_path)
    assert report.roots
    said = [
        json.dumps(as_json(report)),
        json.dumps(as_sarif(report, version="1")),
        as_text(report, everything=True),
    ]
    assert not [text for text in said if "hunter2" in text]
