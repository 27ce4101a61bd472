"""A scan for secrets: what a user puts anywhere is in no byte of a store, in no obvious form."""

import base64
import sqlite3
import zlib

import pytest

from perdure import Runtime
from perdure.errors import StartKeyReused
from tests.governance.canaries import (
    canary,
    check_readable,
    forms,
    graphs,
    large,
    marks_in,
    release,
    scan_files,
    scan_rows,
    zstd,
)
from tests.sealing.conftest import local_keys


def test_the_scan_finds_what_is_there():
    text = f"{canary('x')} and more of it ".encode() * 40
    for blob in (
        text,
        b"123" + zlib.compress(text),
        b"12" + zstd.compress(text),
        *(base64.b64encode(b"\0" * shift + text) for shift in range(3)),
        text.hex().encode(),
    ):
        assert marks_in(b"before" + blob + b"after")
    assert not marks_in(b"nothing here")


async def test_no_byte_of_sqlite_files_holds_a_canary(tmp_path):
    url = f"sqlite:///{tmp_path}/store.db"
    async with Runtime.open(url, graphs(), keys=local_keys(1)) as runtime:
        run, failed = await release(runtime)
        scanned = scan_files(tmp_path)  # with the log still beside the file
    assert scanned >= 2
    assert scan_files(tmp_path)
    async with Runtime.open(url, graphs(), worker=False, keys=local_keys(1)) as runtime:
        await check_readable(runtime, run, failed)


async def test_a_start_key_that_is_reused_is_named_in_plain(tmp_path):
    url = f"sqlite:///{tmp_path}/store.db"
    async with Runtime.open(url, graphs(), keys=local_keys(1), worker=False) as runtime:
        await runtime.start("quiet", {"text": "one"}, thread="t", key=canary("start-key"))
        with pytest.raises(StartKeyReused, match=canary("start-key")):
            await runtime.start("quiet", {"text": "other"}, thread="t", key=canary("start-key"))


async def test_the_same_without_keys_is_found(tmp_path):
    """What the scan is worth: in a plain store it finds what it looks for."""
    url = f"sqlite:///{tmp_path}/store.db"
    async with Runtime.open(url, graphs()) as runtime:
        await release(runtime)
        blob = b"".join(
            path.read_bytes() for path in sorted(tmp_path.glob("store.db*")) if path.is_file()
        )
    for place in ("state", "effect-argument", "question", "answer", "start-key", "business-key"):
        assert any(canary(place).encode() in form for form in forms(blob)), place
    assert any(b"kQ7zW" in form and b"CANARY-shared" in form for form in forms(blob))


async def test_no_row_of_postgresql_holds_a_canary(postgres, schema):
    url = postgres.url(schema)
    async with Runtime.open(url, graphs(), keys=local_keys(1)) as runtime:
        run, failed = await release(runtime)
    assert scan_rows(postgres, schema) > 10
    async with Runtime.open(url, graphs(), worker=False, keys=local_keys(1)) as runtime:
        await check_readable(runtime, run, failed)


async def test_equal_pages_of_two_tenants_are_not_alike(tmp_path):
    url = f"sqlite:///{tmp_path}/store.db"
    async with Runtime.open(url, graphs(), keys=local_keys(1), worker=False) as runtime:
        for tenant, thread in (("a", "t1"), ("a", "t2"), ("b", "t1")):
            await runtime.start("asking", {"large": large("shared")}, tenant=tenant, thread=thread)
    async with Runtime.open(f"sqlite:///{tmp_path}/plain.db", graphs(), worker=False) as runtime:
        await runtime.start("asking", {"large": large("shared")}, tenant="a", thread="t1")
    names = {tenant: pages_of(tmp_path / "store.db", tenant) for tenant in ("a", "b")}
    plain = pages_of(tmp_path / "plain.db", "a")
    assert len(names["a"]) == len(names["b"]) == len(plain) > 10  # shared within a tenant
    assert not set(names["a"]) & set(names["b"])
    assert not set(names["a"]) & set(plain)
    bodies = [*names["a"].values(), *names["b"].values()]
    assert len(set(bodies)) == len(bodies)


def pages_of(path, tenant):
    db = sqlite3.connect(path)
    try:
        return dict(db.execute("SELECT hash, body FROM perdure_pages WHERE tenant = ?", (tenant,)))
    finally:
        db.close()
