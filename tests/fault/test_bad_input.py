"""What people and disks do wrong: a clear error, and nothing lost."""

import asyncio
import base64
import hashlib
import random
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import pytest

from perdure import END, START, Graph, NeedsDecision, RunFailed, Runtime, append
from perdure.errors import (
    NotFound,
    StoreCorrupt,
    StoreForeign,
    StoreFull,
    StoreReadOnly,
    StoreSchemaNewer,
    ValueUnserializable,
)
from tests.beside import beside
from tests.fault.conftest import run_program

pytestmark = [pytest.mark.fault, pytest.mark.timeout(60)]


def incompressible(size: int) -> str:
    """Return text that is as large on disk as it is long."""
    chance = random.Random(size)  # noqa: S311  # no secret
    return base64.b85encode(chance.randbytes(size)).decode()[:size]


@dataclass
class Work:
    size: int = 0
    done: Annotated[list[str], append] = field(default_factory=list)
    thing: object = None


graph = Graph(Work, name="work")


@graph.node
async def wait(_state: Work, ctx) -> dict:
    return {"done": [await ctx.receive("go")]}


@graph.node
async def fill(state: Work) -> dict:
    return {"done": [incompressible(state.size)]}


@graph.node
async def finish(_state: Work) -> dict:
    return {"done": ["end"]}


graph.edge(START, wait)
graph.edge(wait, fill)
graph.edge(fill, finish)
graph.edge(finish, END)

plain = Graph(Work, name="plain")


@plain.node
async def keep(state: Work) -> dict:
    return {"thing": asyncio.Lock()} if state.size else {"done": ["kept"]}


plain.edge(START, keep)
plain.edge(keep, END)

GRAPHS = [graph, plain]


def url_of(path: Path, query: str = "") -> str:
    return f"sqlite:///{path}{query}"


@pytest.fixture
def path(tmp_path):
    return tmp_path / "store.db"


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


async def wait_for(run, status: str, timeout_s: float = 20.0) -> None:
    async with asyncio.timeout(timeout_s):
        while await run.status() != status:  # noqa: ASYNC110  # the store tells, no event
            await asyncio.sleep(0.01)


def command(*arguments: object) -> subprocess.CompletedProcess[str]:
    return run_program("-m", "perdure", *map(str, arguments), timeout_s=30.0)


def chattr(flag: str, path: Path) -> bool:
    """Change a flag of a file; return whether that is possible here."""
    program = shutil.which("chattr")
    done = program and subprocess.run([program, flag, path], capture_output=True, check=False)
    return bool(done) and done.returncode == 0


# -- names that do not exist -----------------------------------------------------------------------


async def test_unknown_thread_run_ask_and_effect(path):
    async with Runtime.open(url_of(path), graphs=GRAPHS, worker=False) as runtime:
        for asked in (
            runtime.state("nowhere"),
            runtime.history("nowhere"),
            runtime.fork("nowhere"),
            runtime.get("r_nowhere"),
            runtime.events("r_nowhere"),
            runtime.signal("r_nowhere", "go"),
            runtime.cancel("r_nowhere"),
            runtime.retry("r_nowhere", by="test"),
            runtime.answer("a_nowhere", True, by="test"),
            runtime.resolve("e_nowhere", happened=True, by="test"),
        ):
            with pytest.raises(NotFound) as caught:
                await asked
            assert "nowhere" in str(caught.value)


def test_unknown_thread_on_the_command_line(path):
    assert command("history", "nowhere", "--store", url_of(path)).returncode != 0
    done = command("show", "r_nowhere", "--store", url_of(path))
    assert done.returncode != 0
    assert "Traceback" not in done.stdout


# -- files that are not ours -----------------------------------------------------------------------


def _text(path: Path) -> None:
    path.write_text("Dear diary, " * 500, encoding="utf-8")


def _database(path: Path) -> None:
    db = beside(path)
    db.execute("CREATE TABLE theirs (name)")
    db.execute("PRAGMA application_id = 7")
    db.close()


@pytest.mark.parametrize("make", [_text, _database])
async def test_foreign_file_is_left_untouched(path, make):
    make(path)
    before = digest(path)
    with pytest.raises(StoreForeign) as caught:
        async with Runtime.open(url_of(path), graphs=GRAPHS):
            pass
    assert str(path) in str(caught.value)
    done = command("ps", "--store", url_of(path))
    assert done.returncode != 0
    assert "Traceback" not in done.stdout
    assert digest(path) == before


async def test_newer_schema_is_left_untouched(path):
    async with Runtime.open(url_of(path), graphs=GRAPHS):
        pass
    db = beside(path)
    db.execute("PRAGMA user_version = 999")
    db.close()
    before = digest(path)
    with pytest.raises(StoreSchemaNewer, match="999"):
        async with Runtime.open(url_of(path), graphs=GRAPHS):
            pass
    assert command("ps", "--store", url_of(path)).returncode != 0
    assert digest(path) == before


async def test_file_that_cannot_be_written(path):
    async with Runtime.open(url_of(path), graphs=GRAPHS):
        pass
    if not chattr("+i", path):
        path.chmod(0o400)
        if path.stat().st_uid == 0:
            pytest.skip("gap: neither chattr nor permissions make a file read-only here")
    try:
        with pytest.raises(StoreReadOnly) as caught:
            async with Runtime.open(url_of(path), graphs=GRAPHS):
                pass
        assert str(path) in str(caught.value)
    finally:
        chattr("-i", path)


# -- damage ----------------------------------------------------------------------------------------


def flip(path: Path, run_id: str, seq: int | None = None) -> int:
    """Flip a bit of a frame (None: the newest) and return its first seq. Twice: as it was."""
    db = beside(path)
    no, seq, body = db.execute(
        "SELECT frame_no, first_seq, body FROM perdure_frames JOIN perdure_runs USING (run_no) "
        "WHERE run_id = ?1 AND first_seq = coalesce(?2, first_seq) ORDER BY first_seq DESC LIMIT 1",
        (run_id, seq),
    ).fetchone()
    at = len(body) // 2
    body = body[:at] + bytes([body[at] ^ 0x10]) + body[at + 1 :]
    db.execute("UPDATE perdure_frames SET body = ? WHERE frame_no = ?", (body, no))
    db.close()
    return int(seq)


def journal(path: Path) -> list[tuple]:
    db = beside(path)
    try:
        return db.execute("SELECT * FROM perdure_frames ORDER BY frame_no").fetchall()
    finally:
        db.close()


async def test_flipped_byte_is_named_and_nothing_is_changed(path):
    async with Runtime.open(url_of(path), graphs=GRAPHS) as runtime:
        run = await runtime.start(plain, {}, thread="t")
        await run.result(timeout=10)
        seq = flip(path, run.id)
        before = journal(path)
        for asked in (runtime.events(run.id), runtime.state("t"), runtime.history("t")):
            with pytest.raises(StoreCorrupt) as caught:
                await asked
            assert caught.value.fields["run_id"] == run.id
            assert caught.value.fields["seq"] == seq
            assert run.id in str(caught.value)
            assert str(seq) in str(caught.value)
        # The next run of the thread would go on from it: it is not executed on older data.
        following = await runtime.start(plain, {}, thread="t")
        with pytest.raises((NeedsDecision, StoreCorrupt)) as caught:
            await following.result(timeout=10)
        assert run.id in str(caught.value)
        # Others are not touched by it.
        other = await runtime.start(plain, {}, thread="other")
        assert (await other.result(timeout=10)).done == ["kept"]
    assert [row for row in journal(path) if row in before] == before


async def test_damaged_run_is_parked_and_visible(path):
    async with Runtime.open(url_of(path), graphs=GRAPHS) as runtime:
        run = await runtime.start(graph, {})
        await wait_for(run, "waiting")
        seq = flip(path, run.id)
        before = journal(path)
        await run.signal("go", "on")
        await wait_for(run, "needs_decision")
        row = await run.row()
        assert row.failure is not None
        assert row.failure.type == "StoreCorrupt"
        assert str(seq) in row.failure.message
        with pytest.raises(NeedsDecision):
            await run.result(timeout=5)
        assert journal(path)[: len(before)] == before  # what was there is as it was
        assert flip(path, run.id, seq) == seq  # repaired
        await runtime.retry(run.id, by="test")
        assert (await run.result(timeout=10)).done == ["on", "", "end"]


# -- a full disk -----------------------------------------------------------------------------------


async def test_full_disk_in_the_middle_of_a_run(path):
    async with Runtime.open(url_of(path), graphs=GRAPHS) as runtime:
        run = await runtime.start(graph, {"size": 300_000}, thread="t")
        await wait_for(run, "waiting")
    pages = path.stat().st_size // 4096 + 20
    quota = url_of(path, f"?max_pages={pages}")
    async with Runtime.open(quota, graphs=GRAPHS) as runtime:
        again = await runtime.get(run.id)
        await again.signal("go", "on")
        await asyncio.sleep(1.0)  # it tries, and can't
        assert not (await again.status()).is_final
        with pytest.raises(StoreFull) as caught:
            await runtime.start(plain, {"done": [incompressible(300_000)]})
        assert "df -h" in str(caught.value)
    async with Runtime.open(url_of(path), graphs=GRAPHS) as runtime:
        again = await runtime.get(run.id)
        if await again.status() == "needs_decision":
            await runtime.retry(run.id, by="test")
        async with asyncio.timeout(30):
            while not (await again.status()).is_final:  # noqa: ASYNC110  # as above
                await asyncio.sleep(0.05)
        done = (await again.result(timeout=10)).done
        assert [len(each) for each in done] == [2, 300_000, 3]
        assert done[0] == "on"
        await runtime.events(run.id)


# -- values ----------------------------------------------------------------------------------------


async def test_value_that_cannot_be_stored_names_its_field(path):
    async with Runtime.open(url_of(path), graphs=GRAPHS) as runtime:
        with pytest.raises(ValueUnserializable, match="thing"):
            await runtime.start(plain, {"thing": sys.stdout})
        assert await runtime.runs() == []
        run = await runtime.start(plain, {"size": 1})
        with pytest.raises(RunFailed, match="thing") as caught:
            await run.result(timeout=10)
        assert caught.value.fields["type"] == "ValueUnserializable"
        assert (await run.status()) == "failed"
