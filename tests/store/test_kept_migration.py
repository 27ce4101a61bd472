"""A store of before copies were indexed is opened, and its pages are collected as any other's."""

import pytest

from perdure.clock import system_services
from perdure.model import Erased
from perdure.store import make_store
from perdure.store.postgres import _schema as postgres_schema
from perdure.store.sqlite import _schema as sqlite_schema
from perdure.testing import _store_kit as kit
from perdure.testing._conformance_kept import erasure_of, tag
from perdure.testing._conformance_pages import page


@pytest.fixture(params=["sqlite", "postgres"])
def place(request, tmp_path):
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/s.db", sqlite_schema, 5
    url = request.getfixturevalue("postgres").url(request.getfixturevalue("schema"))
    return url, postgres_schema, 4


async def test_an_older_store_is_migrated(place, monkeypatch):
    url, schema, version = place
    before = make_store(url, system_services())
    with monkeypatch.context() as older:
        older.setattr(schema, "MIGRATIONS", schema.MIGRATIONS[:version])
        older.setattr(schema, "SCHEMA_VERSION", version)
        await before.open()
    row = await kit.taken(before, "a")
    await before.put_pages(kit.TENANT, [page(1), page(2)])
    after = make_store(url, system_services())
    await after.open()
    thread = await after.read_thread(row.tenant, row.thread)
    assert thread.pruned_at_us == 0
    assert await after.find_copies(row.tenant, row.thread) == []
    assert await after.find_quotas() == []
    begun = await after.begin_collection(kit.TENANT)
    assert begun.pages == 2
    await before.put_pages(kit.TENANT, [page(1)])  # a process that goes on with what it was
    assert len(await after.find_pages(begun)) == 1
    assert await after.drop_pages(begun, [page(1).hash, page(2).hash]) == 1
    await kit.written(before, row, kit.ended())
    await after.put_tag(tag(row, "release", 1))
    seen = frozenset({("release", 1)})
    assert await after.erase(erasure_of(row, 2, tags=seen)) == Erased(1)
    for store in (before, after):
        await store.close()
