"""`perdure erase`: a preview, a question, a receipt; and whom threads are about."""

import asyncio
import json

import pytest

from perdure import Runtime
from perdure.model import ErasedThread, ErasureRow
from tests.cli.conftest import FLOWS

HELLO = f"{FLOWS}:hello"


@pytest.fixture
def filled(cli):
    for thread, subject in (("t", "ada"), ("u", "bob")):
        given = ["--input", '"a-name-of-somebody"', "--thread", thread, "--subject", subject]
        assert cli("run", HELLO, *given, "--json").code == 0
    return cli


def test_a_dry_run_erases_nothing(filled):
    done = filled("erase", "--subject", "ada", "--dry-run")
    assert done.code == 0
    assert "would erase 1 thread" in done.out
    found = filled("erase", "--thread", "t", "--dry-run", "--json").json
    assert (found["threads"], found["runs"], found["unfinished"]) == (["t"], 1, [])
    assert filled("history", "t").code == 0


def test_erased_with_a_receipt(filled):
    filled("audit", "keygen", "-o", "key")
    assert filled("erase", "--subject", "ada", "--by", "eve", "--json").code == 2  # not asked
    options = ["--by", "eve", "--yes", "--receipt", "r.json", "--key", "key"]
    done = filled("erase", "--subject", "ada", *options)
    assert done.code == 0, done.err
    assert "0 afterwards" in done.out
    assert "receipt: r.json, signed" in done.out
    body = json.loads((filled.folder / "r.json").read_text())
    assert (body["asked"], body["threads"]) == ({"subject": "ada"}, ["t"])
    assert filled("audit", "receipt", "r.json", "--public-key", "key.pub").code == 0
    (filled.folder / "r.json").write_text(json.dumps(body | {"by": "nobody"}))
    assert filled("audit", "receipt", "r.json", "--json").code == 40
    assert filled("history", "t").code == 4
    assert filled("history", "u").code == 0
    verified = filled("audit", "verify", "--json").json
    assert (verified["is_sound"], verified["checked"]["erased"] > 0) == (True, True)
    again = filled("erase", "--subject", "ada", "--by", "eve", "--yes")
    assert (again.code, "is about subject" in again.err) == (4, True)


def test_whom_threads_are_about_is_shown(filled):
    listed = filled("ps", "--all", "--json").json["runs"]
    assert {run["thread"]: run["subject"] for run in listed} == {"t": "ada", "u": "bob"}
    assert "SUBJECT" in filled("ps", "--all").out
    shown = filled("show", listed[0]["id"])
    assert f"subject {listed[0]['subject']}" in shown.out


def test_what_is_missing_is_said(filled):
    assert "--by NAME" in filled("erase", "--thread", "t").err
    assert "a thread, or a subject" in filled("erase", "--by", "eve", "--yes").err
    (filled.folder / "there").write_text("")
    refused = filled("erase", "--thread", "t", "--by", "eve", "--yes", "--receipt", "there")
    assert (refused.code, "nothing was erased" in refused.err) == (2, True)


async def begin(url):
    """Begin an erasure as one does who then dies."""
    async with Runtime.open(url, worker=False) as runtime:
        row = ErasureRow(
            erasure_id="x_1",
            tenant="default",
            threads=(ErasedThread("t"),),
            by="eve",
            begun_at_us=runtime.engine.now_us(),
        )
        assert (await runtime.engine.store.begin_erasure(row)).row is not None


def test_a_doctor_sees_what_was_not_finished(filled):
    asyncio.run(begin(f"sqlite:///{filled.folder}/perdure.db"))
    done = filled("doctor")
    assert "erasure_unfinished" in done.out
    assert "perdure erase --thread t --by eve" in done.out
    assert filled("erase", "--thread", "t", "--by", "eve", "--yes").code == 0
    assert "erasure_unfinished" not in filled("doctor").out
