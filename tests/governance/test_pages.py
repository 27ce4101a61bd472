"""Large values: each page that a journal refers to is there, and is what was written."""

import asyncio
import random
from dataclasses import dataclass, field
from typing import Annotated

import pytest

from perdure import END, START, Graph, Runtime, append
from perdure.errors import ExportInvalid
from perdure.governance import _file as file_format
from perdure.governance import check, export, verify
from perdure.governance._check import Checked, Contents
from perdure.governance._file import reader_of
from tests.governance.conftest import Tampered
from tests.governance.test_verify import codes


@dataclass
class Large:
    text: str = ""
    rows: Annotated[list[str], append] = field(default_factory=list)


graph = Graph(Large, name="large")


def noise(seed, size):
    return random.Random(seed).randbytes(size // 2).hex()  # noqa: S311  # repeatable, not secret


@graph.node
async def edit(state: Large) -> dict:
    middle = len(state.text) // 2
    return {
        "text": f"{state.text[:middle]}!{state.text[middle:]}",
        "rows": [noise(len(state.rows), 40_000)],
    }


graph.edge(START, edit)
graph.edge(edit, END)


@pytest.fixture(scope="module", params=[100_000, 2_500_000], ids=["flat", "lists of lists"])
def filled(request, tmp_path_factory):
    """A thread of three runs; in the second case the list of pages is in pages itself."""
    path = tmp_path_factory.mktemp("pages") / "store.db"

    async def fill():
        async with Runtime.open(f"sqlite:///{path}", graphs=[graph]) as runtime:
            for number in range(3):
                given = {"text": noise(9, request.param)} if number == 0 else {}
                await (await runtime.start(graph, given, thread="t")).result(timeout=20)

    asyncio.run(fill())
    store = Tampered(path)
    store.run("PRAGMA wal_checkpoint(TRUNCATE)")
    return store


@pytest.fixture
def store(filled, tmp_path):
    copy = tmp_path / "store.db"
    copy.write_bytes(filled.path.read_bytes())
    return Tampered(copy)


async def audited(store, to=None):
    async with Runtime.open(f"sqlite:///{store.path}", worker=False) as runtime:
        if to is not None:
            await export(runtime, to)
        return await verify(runtime)


async def test_every_page_is_verified_once(store, tmp_path):
    report = await audited(store, tmp_path / "x")
    assert report.findings == []
    assert report.pages == store.run("SELECT count(*) FROM perdure_pages")[0][0]
    found = check(tmp_path / "x").report
    assert (found.findings, found.pages, found.anchored) == ([], report.pages, 2)


async def test_a_missing_page(store, tmp_path):
    chosen = store.run("SELECT rowid FROM perdure_pages ORDER BY hash LIMIT 1")[0][0]
    store.run("DELETE FROM perdure_pages WHERE rowid = ?", chosen)
    report = await audited(store, tmp_path / "x")
    assert codes(report) == ["page_missing"]
    assert codes(check(tmp_path / "x").report) == ["page_missing"]
    assert report.findings[0].thread == "t"


@pytest.mark.parametrize("to", [b"", b"\x00other", b"\x01other", b"\x07"])
async def test_a_changed_page(store, tmp_path, to):
    chosen = store.run("SELECT rowid FROM perdure_pages ORDER BY hash LIMIT 1")[0][0]
    store.run("UPDATE perdure_pages SET body = ? WHERE rowid = ?", to, chosen)
    assert codes(await audited(store, tmp_path / "x")) == ["page_changed"]
    assert codes(check(tmp_path / "x").report) == ["page_changed"]


async def test_flips_in_pages_are_found_by_the_contents_alone(store, tmp_path):
    await audited(store, tmp_path / "x")
    data = (tmp_path / "x").read_bytes()
    reader = reader_of(data)
    spans = []
    while (kind := file_format.kind_of(encoded := reader.encoded())) != file_format.IS_END:
        if kind == 12:
            spans.append((reader.offset - len(encoded), reader.offset))
    chance = random.Random(5)  # noqa: S311  # repeatable, not secret
    for start, stop in chance.sample(spans, min(len(spans), 12)):
        damaged = bytearray(data)
        damaged[chance.randrange(start, stop)] ^= 1 << chance.randrange(8)
        checked = Checked()
        try:
            Contents(checked, {}, lambda _report: None).read(reader_of(bytes(damaged)))
        except ExportInvalid:
            continue
        assert not checked.report.is_sound
