"""Snapshots of plain directories that nothing needs go, and the files that only they had."""

import os
import random

import pytest

from perdure.errors import StoreCorrupt, StoreLocked
from perdure.sandbox import DirectorySandboxes, _directory, folder_name

KNOWN = {folder_name(name) for name in ("t-1", "t-2")}


@pytest.fixture
def backend(tmp_path):
    return DirectorySandboxes(tmp_path / "boxes")


@pytest.fixture
def sandbox(backend):
    return backend.open("acme", "t-1")


def collect(backend, named, threads=KNOWN, **kwargs):
    with backend.collection("acme") as collection:
        return collection.finish(named, set(threads), **kwargs)


def contents(path):
    return {
        str(each.relative_to(path)): each.read_bytes() if each.is_file() else None
        for each in path.rglob("*")
    }


def blobs(backend):
    return [path for path in backend.root.glob("*/blobs/*/*") if path.is_file()]


async def three(sandbox):
    taken = []
    for n in range(3):
        (sandbox.path / "same").write_bytes(b"same")
        (sandbox.path / "own").write_bytes(b"%d" % n * 5000)
        taken.append(await sandbox.take())
    return taken


async def test_files_that_only_garbage_had_go(backend, sandbox):
    taken = await three(sandbox)
    told = collect(backend, [taken[0]], is_dry=True)
    assert (told.layers, told.kept, len(blobs(backend))) == (1, 2, 4)
    assert told.bytes == 8192
    done = collect(backend, [taken[0]])
    assert (done.layers, done.kept, len(blobs(backend))) == (1, 2, 3)
    assert done.bytes >= told.bytes
    for n in (0, 2):  # the last one is the newest that the thread took
        await sandbox.restore(taken[n])
        assert (sandbox.path / "own").read_bytes() == b"%d" % n * 5000
    assert collect(backend, taken).layers == 0
    assert not (backend.folder("acme") / "collecting").exists()


async def test_the_same_tree_taken_again_meanwhile_stays(backend, sandbox):
    """It is garbage when the collection begins, and is not when it ends."""
    taken = await three(sandbox)
    with backend.collection("acme") as collection:
        await sandbox.restore(taken[0])
        assert await sandbox.take() == taken[0]
        (sandbox.path / "own").write_bytes(b"later")
        later = await sandbox.take()
        done = collection.finish([], KNOWN)
    assert (done.layers, done.kept) == (1, 2)
    for snapshot in (taken[0], taken[2], later):
        await sandbox.restore(snapshot)
    assert (sandbox.path / "own").read_bytes() == b"later"


async def test_a_file_that_goes_while_it_is_taken_is_kept_again(backend, sandbox, monkeypatch):
    taken = await three(sandbox)
    await sandbox.restore(taken[1])
    other = backend.open("acme", "t-2")
    (other.path / "own").write_bytes(b"2" * 5000)
    real, done = _directory.DirectorySandbox._kept, []  # the moment in between

    def kept(self, known):
        found = real(self, known)
        if not done:
            (sandbox._folder / "taken").unlink()
            done.append(collect(backend, [taken[0]]))
        return found

    monkeypatch.setattr(_directory.DirectorySandbox, "_kept", kept)
    snapshot = await other.take()
    assert done[0].layers == 2
    await other.restore(None)
    await other.restore(snapshot)
    assert contents(other.path) == {"own": b"2" * 5000}


async def test_files_that_are_collected_all_the_time_are_said(backend, sandbox, monkeypatch):
    (sandbox.path / "own").write_bytes(b"x")
    real = _directory.DirectorySandbox._kept

    def kept(self, known):
        found = real(self, known)
        for path in blobs(backend):
            path.unlink()
        return found

    monkeypatch.setattr(_directory.DirectorySandbox, "_kept", kept)
    with pytest.raises(StoreLocked, match="collected all the time"):
        await sandbox.take()


async def test_nothing_goes_where_a_thread_is_not_known(backend, sandbox):
    taken = await three(sandbox)
    backend.open("acme", "by-hand")
    done = collect(backend, [])
    assert (done.layers, done.unknown) == (0, 2)
    await sandbox.restore(taken[0])


async def test_a_needed_snapshot_that_can_not_be_read_keeps_all_files(backend, sandbox):
    taken = await three(sandbox)
    [manifest] = backend.root.glob(f"*/manifests/*/{taken[0]}.json")
    manifest.write_bytes(b"{}")
    before = len(blobs(backend))
    with pytest.raises(StoreCorrupt):
        collect(backend, [taken[0]])
    assert len(blobs(backend)) == before


@pytest.mark.parametrize("seed", range(4))
async def test_random_takes_restores_and_collections(backend, seed):
    chance = random.Random(seed)  # noqa: S311  # not for secrets
    threads = [backend.open("acme", name) for name in ("t-1", "t-2")]
    known, named = {}, set()
    for _ in range(120):
        sandbox = chance.choice(threads)
        act = chance.random()
        if act < 0.5:
            (sandbox.path / chance.choice("abc")).write_bytes(b"%d" % chance.randrange(9) * 500)
            snapshot = await sandbox.take()
            known[snapshot] = contents(sandbox.path)
            named.add(snapshot)
        elif act < 0.7 and named:
            await sandbox.restore(chance.choice(sorted(named)))
        elif act < 0.8 and named:
            named -= set(chance.sample(sorted(named), len(named) // 2))
        else:
            collect(backend, named)
    for sandbox in threads:
        await sandbox.restore(None)
        await sandbox.take()
    done = collect(backend, named)
    for snapshot in sorted(named):
        await threads[0].restore(snapshot)
        assert contents(threads[0].path) == known[snapshot]
    kept = {path.name.removesuffix(".json") for path in backend.root.glob("*/manifests/*/*")}
    assert len(kept) == done.kept
    assert kept >= named
    live = {each for snapshot in kept for each in contents_of(backend, snapshot)}
    assert {path.name for path in blobs(backend)} == live


def contents_of(backend, snapshot):
    tree = _directory.Snapshots(backend.folder("acme")).tree(snapshot)
    return {entry.digest for entry in tree.values() if entry.kind == "file"}


async def test_files_of_root_do_not_keep_others_out(backend, sandbox):
    if os.geteuid() != 0:
        pytest.skip("only root can make files of others")
    await three(sandbox)
    tenant = backend.folder("acme")
    (tenant / "gate").unlink()
    os.chown(tenant, 65_534, 65_534)
    collect(backend, [])
    for name in ("gate", "collecting.lock"):
        assert (tenant / name).lstat().st_uid == 65_534
