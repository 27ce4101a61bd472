"""Sandboxes that are directories: what is kept, what comes back, and what is refused."""

import asyncio
import errno
import json
import os
import socket
import stat
import threading

import pytest

from perdure.errors import NotFound, StoreCorrupt, StoreFull, StoreLocked, StoreReadOnly, UsageError
from perdure.sandbox import DirectorySandboxes, _directory, _disk, _snapshots, _tree


@pytest.fixture
def backend(tmp_path):
    return DirectorySandboxes(tmp_path / "sandboxes")


@pytest.fixture
def sandbox(backend):
    return backend.open("acme", "thread-1")


def picture(root):
    """Return everything that a snapshot promises to keep of a tree, read the plain way."""
    seen = {}
    for folder, folders, files in os.walk(root):
        for name in folders + files:
            path = os.path.join(folder, name)  # noqa: PTH118  (names that are no UTF-8, too)
            found = os.lstat(path)
            relative = os.path.relpath(path, root)
            if stat.S_ISLNK(found.st_mode):
                seen[relative] = os.readlink(path)  # noqa: PTH115
            elif stat.S_ISDIR(found.st_mode):
                seen[relative] = stat.S_IMODE(found.st_mode)
            else:
                with open(path, "rb") as file:  # noqa: PTH123
                    seen[relative] = (stat.S_IMODE(found.st_mode), file.read())
    return seen


def fill(path):
    (path / "src" / "deep").mkdir(parents=True)
    (path / "src" / "main.py").write_text("print(1)\n")
    (path / "src" / "deep" / "run.sh").write_text("#!/bin/sh\n")
    (path / "src" / "deep" / "run.sh").chmod(0o755)
    (path / "src-2").write_text("sorts between src and src/main.py")
    (path / "empty").mkdir(mode=0o750)
    (path / "zero").write_bytes(b"")
    (path / "big").write_bytes(os.urandom(3_000_000))
    (path / "inside").symlink_to("src/main.py")
    (path / "outside").symlink_to("/etc")
    (path / "nowhere").symlink_to("./no/../where")
    (path / os.fsdecode(b'\xff\xfe\n"name')).write_text("no UTF-8")


def wreck(path):
    """Change everything that can be changed, kinds too."""
    (path / "src" / "main.py").write_text("print(2)\n")
    (path / "src" / "deep" / "run.sh").unlink()
    (path / "src" / "deep").rmdir()
    (path / "src" / "deep").symlink_to("/etc")
    (path / "src-2").unlink()
    (path / "src-2").mkdir()
    (path / "src-2" / "new").write_text("new")
    (path / "empty").chmod(0o700)
    (path / "zero").chmod(0o777)
    (path / "inside").unlink()
    (path / "inside").write_text("was a link")
    (path / "nowhere").unlink()
    with (path / "big").open("r+b") as file:  # in place
        file.write(b"changed")


async def test_what_was_taken_comes_back(sandbox):
    fill(sandbox.path)
    before = picture(sandbox.path)
    snapshot = await sandbox.take()
    wreck(sandbox.path)
    other = await sandbox.take()
    wrecked = picture(sandbox.path)

    await sandbox.restore(snapshot)
    assert picture(sandbox.path) == before
    await sandbox.restore(other)
    assert picture(sandbox.path) == wrecked
    await sandbox.restore(None)
    assert picture(sandbox.path) == {}


async def test_changes_that_no_snapshot_holds_are_gone_after_a_restore(sandbox):
    fill(sandbox.path)
    before = picture(sandbox.path)
    snapshot = await sandbox.take()
    wreck(sandbox.path)
    await sandbox.restore(snapshot)
    assert picture(sandbox.path) == before


async def test_a_new_sandbox_is_empty_and_may_be_taken(sandbox):
    snapshot = await sandbox.take()
    (sandbox.path / "a").write_text("a")
    await sandbox.restore(snapshot)
    assert picture(sandbox.path) == {}


async def test_same_tree_same_id_in_every_thread(backend, sandbox):
    other = backend.open("acme", "thread-2")
    for one in (sandbox, other):
        (one.path / "b").write_text("b")
        (one.path / "a").write_text("a")
    assert await sandbox.take() == await other.take()
    assert await sandbox.take() == await sandbox.take()


async def test_another_thread_of_the_tenant_can_be_restored_to_it(backend, sandbox):
    fill(sandbox.path)
    snapshot = await sandbox.take()
    fork = backend.open("acme", "fork")
    await fork.restore(snapshot)
    assert picture(fork.path) == picture(sandbox.path)


async def test_another_tenant_can_not(backend, sandbox):
    (sandbox.path / "a").write_text("a")
    snapshot = await sandbox.take()
    with pytest.raises(NotFound):
        await backend.open("other", "thread-1").restore(snapshot)


async def test_opened_again_it_is_as_it_was_left(backend, sandbox):
    (sandbox.path / "a").write_text("a")
    first = await sandbox.take()
    assert await backend.open("acme", "thread-1").take() == first


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../../x", "/etc", "a/b", "ö" * 300, "\ud800", "\0"]
)
async def test_no_name_leads_out_of_the_root(tmp_path, name):
    root = tmp_path / "root"
    sandbox = DirectorySandboxes(root).open(name, name)
    assert root in sandbox.path.resolve().parents
    assert len(list(root.iterdir())) == 1


def test_names_that_look_alike_are_kept_apart():
    names = ["a", "A", "a_", "a/", "a.", "", "_", "x" * 40, "x" * 41]
    assert len({_directory.folder_name(name).lower() for name in names}) == len(names)


@pytest.mark.parametrize(
    "snapshot", ["0" * 64, "", "x", "../../etc/passwd", "0" * 63, "G" * 64, "ab" * 31 + "/."]
)
async def test_unknown_snapshot_is_said_and_changes_nothing(sandbox, snapshot):
    (sandbox.path / "a").write_text("a")
    with pytest.raises(NotFound):
        await sandbox.restore(snapshot)
    assert (sandbox.path / "a").read_text() == "a"
    await sandbox.take()  # still whole


async def test_special_files_are_refused_by_take_and_removed_by_restore(monkeypatch, sandbox):
    os.mkfifo(sandbox.path / "pipe")
    with pytest.raises(UsageError, match="'pipe' is a socket, pipe or device"):
        await sandbox.take()
    monkeypatch.chdir(sandbox.path)  # the name of a socket must be short
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("socket")
        await sandbox.restore(None)
    assert picture(sandbox.path) == {}


@pytest.mark.parametrize(
    ("limit", "value", "text"),
    [("ENTRIES_MAX", 11, "one entry too many"), ("BYTES_MAX", 2_999_999, "bytes"),
     ("DEPTH_MAX", 1, "deeper")],
)  # fmt: skip
async def test_limits_refuse_the_snapshot_and_keep_the_tree(
    monkeypatch, sandbox, limit, value, text
):
    fill(sandbox.path)
    before = picture(sandbox.path)
    monkeypatch.setattr(_tree, limit, value)
    with pytest.raises(UsageError, match=text):
        await sandbox.take()
    assert picture(sandbox.path) == before


async def test_a_tree_deeper_than_python_recurses_is_removed(sandbox):
    inner = os.open(sandbox.path, os.O_RDONLY)
    for _ in range(1500):
        os.mkdir("d", dir_fd=inner)  # its path is longer than the system takes
        outer, inner = inner, os.open("d", os.O_RDONLY, dir_fd=inner)
        os.close(outer)
    os.close(inner)
    with pytest.raises(UsageError, match="deeper"):
        await sandbox.take()
    await sandbox.restore(None)
    assert picture(sandbox.path) == {}


async def test_links_are_never_followed(tmp_path, sandbox):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("precious")
    (sandbox.path / "folder").mkdir()
    (sandbox.path / "folder" / "file").write_text("mine")
    snapshot = await sandbox.take()
    (sandbox.path / "folder" / "file").unlink()
    (sandbox.path / "folder").rmdir()
    (sandbox.path / "folder").symlink_to(outside)
    with_link = await sandbox.take()
    await sandbox.restore(snapshot)
    await sandbox.restore(with_link)
    await sandbox.restore(None)
    assert picture(outside) == {"precious": (0o644, b"precious")}


async def test_a_tree_that_was_replaced_by_a_link_is_made_again(tmp_path, sandbox):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("precious")
    sandbox.path.rmdir()
    sandbox.path.symlink_to(outside)
    await sandbox.restore(None)
    assert (outside / "precious").exists()
    assert sandbox.path.is_dir()
    assert not sandbox.path.is_symlink()


async def test_write_in_place_does_not_reach_the_snapshot(sandbox):
    (sandbox.path / "a").write_text("old")
    snapshot = await sandbox.take()
    with (sandbox.path / "a").open("r+") as file:
        file.write("new")
    await sandbox.restore(snapshot)
    with (sandbox.path / "a").open("r+") as file:
        file.write("NEW")
    await sandbox.restore(snapshot)
    assert (sandbox.path / "a").read_text() == "old"


async def test_a_change_that_keeps_size_and_time_is_seen(sandbox):
    file = sandbox.path / "a"
    for n in range(50):
        file.write_text(f"{n:04d}")
        os.utime(file, ns=(1, 1))
        snapshot = await sandbox.take()
        file.write_text("0bad")
        os.utime(file, ns=(1, 1))
        await sandbox.restore(snapshot)
        assert file.read_text() == f"{n:04d}"


async def test_unchanged_files_are_not_read_again(monkeypatch, sandbox):
    monkeypatch.setattr(_directory, "RACY_NS", -(10**12))  # as if all were changed long ago
    fill(sandbox.path)
    snapshot = await sandbox.take()
    read = []
    whole = _directory.read_whole
    monkeypatch.setattr(
        _directory, "read_whole", lambda path: read.append(path.name) or whole(path)
    )
    await sandbox.take()
    await sandbox.restore(snapshot)
    assert read == []
    (sandbox.path / "zero").write_text("1")
    await sandbox.take()
    assert read == ["zero"]
    await sandbox.restore(None)
    await sandbox.restore(snapshot)
    await sandbox.take()
    assert read == ["zero"]


async def test_restore_touches_only_what_differs(sandbox):
    fill(sandbox.path)
    snapshot = await sandbox.take()
    before = (sandbox.path / "big").lstat()
    (sandbox.path / "zero").write_text("1")
    await sandbox.restore(snapshot)
    assert (sandbox.path / "big").lstat() == before


async def test_unchanged_bytes_are_kept_once(tmp_path, sandbox):
    (sandbox.path / "a").write_bytes(b"x" * 1000)
    (sandbox.path / "b").write_bytes(b"x" * 1000)
    await sandbox.take()
    (sandbox.path / "c").write_bytes(b"y")
    await sandbox.take()
    blobs = [path for path in tmp_path.rglob("blobs/*/*") if path.is_file()]
    assert sorted(path.stat().st_size for path in blobs) == [1, 1000]


async def test_damaged_blob_is_an_error_and_then_no_snapshot_can_be_taken(tmp_path, sandbox):
    (sandbox.path / "a").write_text("old")
    snapshot = await sandbox.take()
    (sandbox.path / "a").unlink()
    (blob,) = (path for path in tmp_path.rglob("blobs/*/*") if path.is_file())
    blob.write_text("OLD")
    with pytest.raises(StoreCorrupt, match="has the digest"):
        await sandbox.restore(snapshot)
    with pytest.raises(UsageError, match="not whole"):
        await sandbox.take()
    blob.unlink()
    with pytest.raises(StoreCorrupt, match="is missing"):
        await sandbox.restore(snapshot)
    blob.write_text("old")
    await sandbox.restore(snapshot)
    assert await sandbox.take() == snapshot


async def test_damaged_manifest_is_an_error(tmp_path, sandbox):
    (sandbox.path / "a").write_text("old")
    snapshot = await sandbox.take()
    (manifest,) = tmp_path.rglob(f"{snapshot}.json")
    manifest.write_text(manifest.read_text().replace('"a"', '"b"'))
    with pytest.raises(StoreCorrupt, match="has the digest"):
        await sandbox.restore(snapshot)
    assert (sandbox.path / "a").read_text() == "old"


async def test_missing_blob_is_kept_again(tmp_path, monkeypatch, sandbox):
    monkeypatch.setattr(_directory, "RACY_NS", -(10**12))
    (sandbox.path / "a").write_text("old")
    await sandbox.take()
    (blob,) = (path for path in tmp_path.rglob("blobs/*/*") if path.is_file())
    blob.unlink()
    snapshot = await sandbox.take()
    await sandbox.restore(None)
    await sandbox.restore(snapshot)
    assert (sandbox.path / "a").read_text() == "old"


@pytest.mark.parametrize("path", ["../x", "/x", "a/../x", "a/x", "", "b/x"])
def test_manifest_with_an_entry_outside_is_refused(path):
    entries = [["a", "link", 0, 0, "/etc"], [path, "file", 0o644, 1, "0" * 64]]
    content = json.dumps({"format": 1, "entries": entries}).encode()
    with pytest.raises(StoreCorrupt, match="outside"):
        _snapshots._decode(content)


def test_manifest_of_a_later_format_is_refused():
    content = json.dumps({"format": 2, "entries": []}).encode()
    with pytest.raises(StoreCorrupt, match="format"):
        _snapshots._decode(content)


async def test_file_that_keeps_changing_is_refused(monkeypatch, sandbox):
    (sandbox.path / "log").write_text("1")
    pour = _tree.pour

    def grow(source, copy, **options):
        with (sandbox.path / "log").open("a") as file:
            file.write("1")
        return pour(source, copy, **options)

    monkeypatch.setattr(_tree, "pour", grow)
    with pytest.raises(UsageError, match="changes while it is read"):
        await sandbox.take()


async def test_after_a_restart_of_the_host_nothing_is_believed(monkeypatch, sandbox):
    (sandbox.path / "a").write_text("old")
    snapshot = await sandbox.take()
    monkeypatch.setattr(_directory, "boot_id", lambda: "another")
    with pytest.raises(UsageError, match="host was restarted"):
        await sandbox.take()
    await sandbox.restore(snapshot)
    assert await sandbox.take() == snapshot


@pytest.mark.parametrize("torn", [b"", b"\0" * 20, b'{"boot": "'])
async def test_torn_note_of_what_is_known_is_no_knowledge(sandbox, torn):
    await sandbox.take()
    (sandbox.path.parent / "settled.json").write_bytes(torn)
    with pytest.raises(UsageError, match="not whole"):
        await sandbox.take()
    await sandbox.restore(None)
    await sandbox.take()


async def test_two_at_once_take_turns(backend, sandbox):
    other = backend.open("acme", "thread-1")
    fill(sandbox.path)
    first = await sandbox.take()
    await asyncio.gather(*(one.restore(first) for one in (sandbox, other) * 3))
    assert await other.take() == first


async def test_a_lock_that_is_never_let_go_is_said(monkeypatch, sandbox):
    monkeypatch.setattr(_disk, "LOCK_WAIT_S", 0.0)
    with _disk.locked(sandbox.path.parent / "lock"), pytest.raises(StoreLocked, match="fuser"):
        await sandbox.take()


async def test_cancelled_restore_is_waited_for_by_the_next(tmp_path):
    entered, go = threading.Event(), threading.Event()

    def stop_once(name):
        if name == "sandbox.restore.begun" and not entered.is_set():
            entered.set()
            go.wait(10)

    sandbox = DirectorySandboxes(tmp_path, probe=stop_once).open("t", "1")
    (sandbox.path / "a").write_text("a")
    task = asyncio.create_task(sandbox.restore(None))
    await asyncio.to_thread(entered.wait, 10)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    go.set()
    await sandbox.restore(None)
    assert picture(sandbox.path) == {}


@pytest.mark.parametrize(
    ("number", "error"),
    [("ENOSPC", StoreFull), ("EROFS", StoreReadOnly), ("EACCES", StoreReadOnly)],
)
async def test_what_the_disk_says_is_passed_on(monkeypatch, sandbox, number, error):
    def fail(*_arguments):
        raise OSError(getattr(errno, number), number)

    (sandbox.path / "a").write_text("a")
    monkeypatch.setattr(_directory, "read_whole", fail)
    with pytest.raises(error, match=number):
        await sandbox.take()
    monkeypatch.undo()
    await sandbox.take()


async def test_closed_folders_come_back_closed(sandbox):
    closed = sandbox.path / "closed"
    closed.mkdir()
    (closed / "a").write_text("a")
    (closed / "a").chmod(0o400)
    closed.chmod(0o500)
    snapshot = await sandbox.take()
    closed.chmod(0o700)
    (closed / "a").unlink()
    closed.chmod(0o000)
    await sandbox.restore(snapshot)
    assert stat.S_IMODE(closed.lstat().st_mode) == 0o500
    assert (closed / "a").read_text() == "a"
    assert stat.S_IMODE((closed / "a").lstat().st_mode) == 0o400
    await sandbox.restore(None)
    assert picture(sandbox.path) == {}
