"""A snapshot waits for the disk once: what is there then is enough, and nothing else is trusted."""

import shutil
import subprocess
from dataclasses import replace

import pytest

from perdure.errors import NotFound
from perdure.sandbox import IsolatedSandboxes, _layers, folder_name
from perdure.sandbox._lock import last_generation
from perdure.sandbox._untold import UNTOLD, give_second_name
from tests.sandbox.workload import seen

pytestmark = pytest.mark.timeout(120)

KNOWN = {folder_name("t-1")}


def layers_of(root):
    return {path.name for path in root.glob("tenants/*/layers/*")}


def collect(backend, named, threads=KNOWN, **kwargs):
    with backend.collection("acme") as collection:
        return collection.finish(named, set(threads), **kwargs)


def lose_second_name(root, snapshot):
    """Have a layer as a power failure right after it was told of can leave it."""
    [layer] = root.glob(f"tenants/*/layers/{snapshot}")
    return layer.rename(layer.with_name(f"{UNTOLD}{snapshot}"))


@pytest.fixture
def disk(tmp_path, monkeypatch):
    """Return what is on the disk for certain: all that was there when it was last waited for."""
    synced = tmp_path / "disk"
    sync = _layers.sync_file_system

    def sync_and_note(folder):
        sync(folder)
        shutil.rmtree(synced, ignore_errors=True)
        subprocess.run(["/bin/cp", "-a", folder.parents[2], synced], check=True)

    monkeypatch.setattr(_layers, "sync_file_system", sync_and_note)
    monkeypatch.setattr("perdure.sandbox._prepared.SWEEP_AFTER_S", 3600.0)  # it stays as it is
    return synced


@pytest.fixture
def power_loss(tmp_path, disk):
    """Return a function that opens the sandboxes, and again with what was there for certain."""
    opened = []

    def open_again():
        if opened:
            opened[-1].close()
            shutil.rmtree(tmp_path / "box")
            disk.rename(tmp_path / "box")
        opened.append(IsolatedSandboxes(tmp_path / "box"))
        return opened[-1]

    yield open_again
    for backend in opened:
        backend.close()


async def test_what_is_told_is_on_the_disk(is_able, is_root, power_loss):
    """The copy has what was synced, and nothing that came later: a name, a head."""
    if not is_root:
        pytest.skip("owners and marks of a copy are root's to make")
    sandbox = power_loss().open("acme", "t-1")
    taken = []
    for n in range(3):
        await sandbox.run(f"rm -rf d{n - 1}; mkdir d{n}; echo {n} > d{n}/f; chown 7 d{n}")
        taken.append(await sandbox.take())
    expected = await seen(sandbox)
    backend = power_loss()
    assert f"{UNTOLD}{taken[-1]}" in layers_of(backend.root)
    fork = backend.open("acme", "t-2")
    await fork.restore(taken[-1])
    assert layers_of(backend.root) == {*taken}
    assert await seen(fork) == expected
    assert fork.head() == taken[-1]


async def test_numbers_of_before_are_read(sandbox):
    """They were in a file; a link that leads nowhere has them now, which has no blocks to free."""
    await sandbox.run("echo 1 > f")
    await sandbox.take()
    folder = sandbox._ground.folder
    assert last_generation(folder) == (0, 0, 1)
    (folder / "generation").unlink()
    (folder / "generation").write_text("0 0 7")
    (folder / "generation.new").symlink_to("left by a process that was killed")
    await sandbox.run("echo 2 > f")
    taken = await sandbox.take()
    assert last_generation(folder) == (0, 0, 8)
    assert sandbox._ground.layers.read(taken).generation == (0, 0, 8)
    (folder / "generation").unlink()
    (folder / "generation").symlink_to("torn")
    assert last_generation(folder) == (0, 0, 0)


async def test_it_waits_once(sandbox, monkeypatch):
    calls = []
    monkeypatch.setattr("os.fsync", lambda _fd: calls.append("fsync"))
    sync = _layers.sync_file_system
    monkeypatch.setattr(_layers, "sync_file_system", lambda f: (calls.append("all"), sync(f)))
    await sandbox.run("echo 1 > f")
    await sandbox.take()
    assert calls == ["all"]


async def test_who_was_told_finds_it_and_others_do_not(backend, sandbox):
    await sandbox.run("echo 1 > f")
    first = await sandbox.take()
    await sandbox.run("echo 2 > f")
    second = await sandbox.take()
    lose_second_name(backend.root, second)
    layers = backend.open("acme", "t-2")._ground.layers
    assert layers.names() == [first]
    assert layers.has(second)
    assert layers.names() == [first, second]
    lose_second_name(backend.root, second)
    await sandbox.restore(first)
    await sandbox.restore(second)
    assert (await sandbox.run("cat f")).output == "2\n"
    with pytest.raises(NotFound):
        await sandbox.restore("l_0")
    # Somebody else may ask for it at the same instant.
    [folder] = backend.root.glob("tenants/*/layers")
    assert give_second_name(second, folder)
    assert not give_second_name("l_0", folder)


async def test_a_collection_keeps_what_was_told_and_removes_the_rest(backend, sandbox):
    taken = []
    for n in range(3):
        await sandbox.restore(None)
        await sandbox.run(f"echo {n} > f")
        taken.append(await sandbox.take())
    await sandbox.restore(None)
    named, torn, announced = taken
    for name in taken:
        lose_second_name(backend.root, name)
    [said] = backend.root.glob(f"tenants/*/layers/{UNTOLD}{torn}/layer.json")
    said.write_bytes(b"")  # as a power failure leaves what was not waited for
    sandbox._ground.layers._announce_head(sandbox._ground.folder, announced)  # and then killed
    assert collect(backend, [named], is_dry=True).layers == 1
    # Whose it was can't be read: with strangers about it stays.
    other = backend.open("acme", "t-2")
    await other.run("echo 1 > f")
    assert collect(backend, [named]).layers == 0
    assert layers_of(backend.root) == {named, f"{UNTOLD}{torn}", f"{UNTOLD}{announced}"}
    assert collect(backend, [named], KNOWN | {folder_name("t-2")}).layers == 1
    assert layers_of(backend.root) == {named, f"{UNTOLD}{announced}"}
    await sandbox.restore(named)
    assert (await sandbox.run("cat f")).output == "0\n"
    assert collect(backend, []).layers == 1
    assert layers_of(backend.root) == {named}


@pytest.mark.parametrize("point", ["sandbox.freeze.begun", "sandbox.freeze.placed"])
async def test_a_collection_leaves_what_is_being_taken(backend, sandbox, point):
    """Begun before or after it has its first name, and finished at the same instant or later."""
    under_way = []

    def probe(name):
        if name == point:
            with backend.collection("acme") as collection:
                assert collection.finish([], KNOWN).layers == 0
            context = backend.collection("acme")
            under_way.extend([context, context.__enter__()])

    backend.services = replace(backend.services, probe=probe)
    await sandbox.run("echo 1 > f")
    taken = await sandbox.take()
    await sandbox.restore(None)  # so that no head names it either
    context, collection = under_way
    assert collection.finish([], KNOWN).layers == 0
    context.__exit__(None, None, None)
    assert layers_of(backend.root) == {taken}
