"""Who can write to the place of the exports, or to a sandbox, gets nothing out of an import.

The first half changes what lies there: found before anything of it has a name on the host. The
second half writes manifests with the right key, as a stolen worker could: even those may only say
what a layer can be.
"""

import asyncio
import os
import random
import stat

import msgspec
import pytest

from perdure.codec import compressed
from perdure.errors import NotFound, SnapshotBroken, UsageError
from perdure.sandbox._made import Made
from perdure.sandbox.export._manifest import (
    FORMAT,
    Entry,
    Kind,
    Manifest,
    Part,
    decode_manifest,
    encode_manifest,
)
from perdure.sandbox.export._sealer import PlainSealer
from perdure.sandbox.limits import DEPTH_MAX, MANIFEST_BYTES_MAX, PIECE_BYTES
from tests.sandbox.trees import layer_of, told

pytestmark = pytest.mark.timeout(200)


@pytest.fixture
async def exported(hosts):
    """Return (host, its sandbox, two snapshots, one on the other)."""
    backend = hosts("a")
    sandbox = backend.open("acme", "t")
    await sandbox.run("head -c 200000 /dev/urandom > big; echo one > small; mkdir d; echo x > d/x")
    first = await sandbox.take()
    await sandbox.run(
        "head -c 300000 /dev/urandom > other; rm -rf d; "
        "for i in $(seq 60); do head -c 9000 /dev/urandom > f$i; done"
    )
    second = await sandbox.take()
    await sandbox.make_durable(second)
    return backend, sandbox, first, second


def files_of(tmp_path, kind):
    return sorted(
        path for path in (tmp_path / "objects").rglob("*") if path.is_file() and kind in str(path)
    )


async def is_refused(backend, snapshot, errors=SnapshotBroken):
    """Nothing of a snapshot that is refused has a name, and the thread's files stay."""
    sandbox = backend.open("acme", "victim")
    await sandbox.write("/workspace/kept", b"1")
    with pytest.raises(errors):
        await sandbox.restore(snapshot)
    assert await sandbox.read("/workspace/kept") == b"1"
    assert not list(backend.root.glob(f"tenants/acme.*/layers/{snapshot}"))
    assert not list(backend.root.glob("tenants/acme.*/importing/*"))


@pytest.mark.parametrize("kind", ["pieces", "snapshots"])
async def test_a_changed_byte_anywhere_is_found(hosts, exported, tmp_path, kind):
    _, _, _, second = exported
    chance = random.Random(kind)  # noqa: S311  # not for secrets
    paths = files_of(tmp_path, f"/{kind}/")
    assert len(paths) >= 2
    for n, path in enumerate(paths * 3):
        whole = path.read_bytes()
        at = chance.choice([0, 1, 5, 20, 45, chance.randrange(len(whole)), len(whole) - 1])
        changed = bytearray(whole)
        changed[at] ^= 1 << chance.randrange(8)
        path.write_bytes(changed)
        try:
            await is_refused(hosts(f"b{n % 3}"), second)
        finally:
            path.write_bytes(whole)
    assert await hosts("c").open("acme", "t").restore(second) is None


async def test_cut_grown_swapped_and_missing_objects_are_found(hosts, exported, tmp_path):
    _, _, _, second = exported
    pieces, manifests = files_of(tmp_path, "/pieces/"), files_of(tmp_path, "/snapshots/")
    pairs = [(pieces[0], pieces[1]), (manifests[0], manifests[1]), (pieces[0], manifests[0])]
    for n, (one, other) in enumerate(pairs):
        kept = one.read_bytes(), other.read_bytes()
        for m, changed in enumerate((kept[1], kept[0][:-1], kept[0] + b"x", b"", kept[0] * 40)):
            one.write_bytes(changed)
            await is_refused(hosts(f"b{n}-{m}"), second)
        one.unlink()
        await is_refused(hosts(f"b{n}"), second, (SnapshotBroken, NotFound))
        one.write_bytes(kept[0])
    await hosts("c").open("acme", "t").restore(second)


async def test_an_older_snapshot_is_not_taken_for_another_one(hosts, exported, tmp_path):
    """Its object under the other's name, with the other's number, is not what was sealed for it."""
    _, _, first, second = exported
    [old] = [path for path in files_of(tmp_path, "/snapshots/") if first in str(path)]
    [new] = [path for path in files_of(tmp_path, "/snapshots/") if second in str(path)]
    new.write_bytes(old.read_bytes())
    await is_refused(hosts("b"), second)
    # Nor by a name of its own choice.
    new.unlink()
    old.rename(old.with_name(new.name))
    await is_refused(hosts("b"), first)


async def test_another_tenants_objects_are_not_read(hosts, exported, tmp_path):
    _, _, _, second = exported
    other = hosts("a").open("other", "t")
    await other.run("echo 1 > one")
    await other.make_durable(await other.take())
    [theirs] = (tmp_path / "objects").glob("other.*")
    [ours] = (tmp_path / "objects").glob("acme.*")
    for path in list(ours.glob("snapshots/*")):
        path.rename(theirs / "snapshots" / path.name)
    with pytest.raises(SnapshotBroken):
        await hosts("b").open("other", "t").restore(second)


# -- what a sandbox can write ----------------------------------------------------------------------

FORGED = """
import os
os.makedirs("d/e")
for path in ("d", "d/e", "."):
    for name in ("opaque", "whiteout", "redirect", "metacopy", "origin", "overlay.opaque"):
        try:
            os.setxattr(path, "user.overlay." + name, b"y")
        except OSError:
            pass
open("file", "w").close()
for name in ("whiteout", "metacopy", "redirect"):
    try:
        os.setxattr("file", "user.overlay." + name, b"/../../etc")
    except OSError:
        pass
os.symlink("/", "root")
os.symlink("../../../../../../..", "up")
os.symlink("/proc/self/root", "magic")
open(".wh.hosts", "w").close()
open(".wh..wh..opq", "w").close()
"""


async def test_forged_marks_and_links_mean_nothing_elsewhere(hosts):
    a, b = hosts("a"), hosts("b")
    sandbox = a.open("acme", "t")
    await sandbox.run("mkdir -p d/e; echo below > d/below; echo below > d/e/below")
    await sandbox.take()
    ran = await sandbox.run(
        ["/usr/bin/python3", "-I", "-c", FORGED.replace('os.makedirs("d/e")', "")]
    )
    assert ran.code == 0, ran.errors
    snapshot = await sandbox.take()
    await sandbox.make_durable(snapshot)
    there = b.open("acme", "t")
    await there.restore(snapshot)
    for each in (sandbox, there):
        assert (await each.run("cat d/below d/e/below; ls -A")).output.split() == [
            "below", "below", ".wh..wh..opq", ".wh.hosts", "d", "file", "magic", "root", "up",
        ]  # fmt: skip
    for path in layer_of(b, "acme", snapshot).rglob("*"):
        own = [name for name in os.listxattr(path, follow_symlinks=False) if ".overlay." in name]
        assert own == []


# -- what a manifest can say -----------------------------------------------------------------------

ROOT = Entry(-1, b"", Kind.FOLDER, 0o755)


def manifest_of(*entries, **changed):
    fields = {
        "format": FORMAT,
        "tenant": "acme",
        "thread": "t",
        "layer": "l_x",
        "is_whole": False,
        "generation": (1, 1, 1),
        "parent": "",
        "parent_object": "",
        "parent_digest": b"",
        "base": bytes(32),
        "made": Made(driver="ns"),
        "at_us": 1,
        "changes": "files",
        "exported_us": 1,
        "parts": (Part("", (ROOT, *entries)),),
        "packs": (),
        "inline": b"",
    }
    return Manifest(**{**fields, **changed})


def file_of(**fields):
    return Entry(0, b"f", Kind.FILE, 0o644, **{"packed": (0, 0), **fields})


def folders(count):
    return [Entry(number, b"d", Kind.FOLDER, 0o755) for number in range(count)]


OPAQUE = b"overlay.opaque"

LIES = {
    "a name with a slash": [Entry(0, b"a/b", Kind.LINK, target=b"x")],
    "the folder above": [Entry(0, b"..", Kind.FOLDER)],
    "the folder itself": [Entry(0, b".", Kind.FOLDER)],
    "an absolute name": [Entry(0, b"/etc", Kind.FOLDER)],
    "a name with a zero byte": [Entry(0, b"a\0b", Kind.FOLDER)],
    "no name": [Entry(0, b"", Kind.FOLDER)],
    "a name that is too long": [Entry(0, b"n" * 256, Kind.FOLDER)],
    "a name twice": [Entry(0, b"a", Kind.FOLDER), Entry(0, b"a", Kind.LINK, target=b"/etc")],
    "an entry in a link": [
        Entry(0, b"a", Kind.LINK, target=b"/etc"), Entry(1, b"passwd", Kind.FOLDER),
    ],
    "an entry in a file": [file_of(), Entry(1, b"x", Kind.FOLDER)],
    "an entry in itself": [Entry(1, b"a", Kind.FOLDER)],
    "an entry in a later one": [Entry(2, b"a", Kind.FOLDER), Entry(0, b"b", Kind.FOLDER)],
    "an entry in a folder that was left": [
        Entry(0, b"a", Kind.FOLDER), Entry(0, b"b", Kind.FOLDER), Entry(1, b"c", Kind.FOLDER),
    ],
    "an entry above the first": [Entry(-1, b"a", Kind.FOLDER)],
    "a device": [Entry(0, b"a", 9)],
    "a set-user-id bit": [Entry(0, b"f", Kind.FILE, 0o4755, packed=(0, 0))],
    "a set-group-id bit": [Entry(0, b"f", Kind.FILE, 0o2755, packed=(0, 0))],
    "bits that are none": [Entry(0, b"d", Kind.FOLDER, 1 << 20)],
    "an owner outside": [Entry(0, b"d", Kind.FOLDER, owner=65_536)],
    "an owner below": [Entry(0, b"d", Kind.FOLDER, group=-1)],
    "a file that replaces": [file_of(is_replaced=True)],
    "an attribute of the overlay": [
        Entry(0, b"d", Kind.FOLDER, attributes=((b"trusted." + OPAQUE, b"y"),)),
    ],
    "a forged attribute of the overlay": [
        Entry(0, b"d", Kind.FOLDER, attributes=((b"user." + OPAQUE, b"y"),)),
    ],
    "capabilities of a file": [file_of(attributes=((b"security.capability", b"x"),))],
    "too many attributes": [file_of(attributes=((b"user.x", bytes(70_000)),))],
    "another name of a folder": [Entry(0, b"d", Kind.FOLDER), Entry(0, b"e", Kind.SAME, same=1)],
    "another name of a link": [
        Entry(0, b"d", Kind.LINK, target=b"/x"), Entry(0, b"e", Kind.SAME, same=1),
    ],
    "another name of a later one": [Entry(0, b"e", Kind.SAME, same=2), file_of()],
    "another name of the first folder": [Entry(0, b"e", Kind.SAME, same=0)],
    "another name of nothing": [Entry(0, b"e", Kind.SAME)],
    "a link to nothing": [Entry(0, b"l", Kind.LINK)],
    "a link that is too long": [Entry(0, b"l", Kind.LINK, target=b"x" * 5_000)],
    "a folder that is a link": [Entry(0, b"d", Kind.FOLDER, target=b"/etc")],
    "a removal with content": [Entry(0, b"r", Kind.REMOVED, size=5)],
    "a file of more than there is": [file_of(size=10)],
    "a file that begins before": [file_of(packed=(0, -5))],
    "a file of another piece": [file_of(packed=(3, 0))],
    "a file of a huge size": [file_of(size=1 << 60, extents=())],
    "a file of a size below nothing": [file_of(size=-1)],
    "bytes after the end": [file_of(size=5, extents=((4, 4),))],
    "bytes twice": [file_of(size=50, extents=((0, 10), (5, 10)))],
    "bytes before the beginning": [file_of(size=50, extents=((-5, 10),))],
    "bytes of no length": [file_of(size=50, extents=((5, -5),))],
    "too few pieces": [file_of(packed=None, size=PIECE_BYTES * 2, pieces=(bytes(32),))],
    "too many pieces": [file_of(packed=None, size=10, pieces=(bytes(32),) * 2)],
    "a piece without a digest": [file_of(packed=None, size=10, pieces=(b"",))],
    "more bytes than may be": [
        Entry(0, str(n).encode(), Kind.FILE, size=1 << 36, pieces=(bytes(32),) * (1 << 14))
        for n in range(2)
    ],
    "a tree that is too deep": folders(DEPTH_MAX + 2),
    "a time that is none": [Entry(0, b"d", Kind.FOLDER, modified_ns=1 << 62)],
}  # fmt: skip


@pytest.mark.parametrize("lie", LIES)
def test_a_manifest_cannot_say(lie):
    with pytest.raises(SnapshotBroken):
        decode_manifest(encode_manifest(manifest_of(*LIES[lie])))


@pytest.mark.parametrize(
    "changed",
    [
        {"format": 2},
        {"generation": (-1, 0, 0)},
        {"base": b""},
        {"parent": "l_y"},
        {"parts": (Part("", ()),)},
        {"parts": (Part("", (ROOT,)), Part("", (ROOT,)))},
        {"parts": (Part("", (Entry(0, b"", Kind.FOLDER),)),)},
        {"parts": (Part("", (Entry(-1, b"", Kind.LINK, target=b"/"),)),)},
        {"packs": ((bytes(32), PIECE_BYTES + 1),)},
        {"packs": ((bytes(32), 0),)},
        {"packs": ((b"", 5),)},
        {"inline": bytes(300_000)},
        {"is_whole": True, "parent": "l_y", "parent_object": "x"},
    ],
    ids="-".join,
)
def test_a_manifest_as_a_whole_cannot_say(changed):
    with pytest.raises(SnapshotBroken):
        decode_manifest(encode_manifest(manifest_of(**changed)))


def test_what_is_said_truly_is_read():
    entries = [
        Entry(0, b"d", Kind.FOLDER, 0o3755, 33, 33, 5, ((b"user.x", b"y"),), is_replaced=True),
        Entry(1, b"f", Kind.FILE, 0o644, size=5, packed=(0, 1)),
        Entry(0, b"l", Kind.LINK, target=b"../../.."),
        Entry(0, b"s", Kind.SAME, same=2),
        Entry(0, b"gone", Kind.REMOVED),
    ]
    manifest = manifest_of(*entries, inline=b"123456")
    assert decode_manifest(encode_manifest(manifest)) == manifest
    decode_manifest(encode_manifest(manifest_of(*folders(DEPTH_MAX))))


@pytest.mark.parametrize(
    "content", [b"", b"\xc1", b"\x90", msgspec.msgpack.encode({}), b"\x81" * 10_000]
)
def test_what_is_no_manifest_is_refused(content):
    with pytest.raises(SnapshotBroken):
        decode_manifest(content)


def test_a_bomb_is_not_unpacked():
    """Bytes that pack a thousand times are held to what was said of them, not to what they are."""
    sealer = PlainSealer("t")
    stored = sealer.seal(bytes(64 << 20), ("piece", b"d"), free=MANIFEST_BYTES_MAX)
    assert len(stored) < 100_000
    with pytest.raises(SnapshotBroken, match="hold more"):
        sealer.unseal(stored, ("piece", b"d"), bytes_max=PIECE_BYTES)
    bomb = b"\x01" + (compressed(bytes(1 << 20)) or b"")
    with pytest.raises(SnapshotBroken):
        sealer.unseal(sealer._digest(bomb, ("p",)) + bomb, ("p",), bytes_max=1_000)  # as a forger


async def test_a_writer_stays_in_its_folder_whatever_lies_there(hosts, exported):
    """What is left of an import that was killed, also as links, is thrown away and not followed."""
    a, _, _, second = exported
    b = hosts("b")
    b.open("acme", "t")
    [tenant] = b.root.glob("tenants/acme.*")
    outside = b.root / "outside"
    (outside / "root").mkdir(parents=True)
    (outside / "root" / "kept").write_text("1")
    (tenant / "importing").mkdir()
    (tenant / "importing" / second).symlink_to(outside)
    await b.open("acme", "t").restore(second)
    assert [path.name for path in (outside / "root").iterdir()] == ["kept"]
    firsts = [each.open("acme", "t")._tenant.driver.first for each in (a, b)]  # by which ids differ
    assert told(layer_of(a, "acme", second), firsts[0]) == told(
        layer_of(b, "acme", second), firsts[1]
    )


async def test_devices_of_a_damaged_layer_are_not_exported(hosts, monkeypatch):
    """No sandbox can make one; where somebody else did, it goes nowhere."""
    if os.geteuid() != 0:
        pytest.skip("only root can make the device that is to be refused")
    backend = hosts("a")
    monkeypatch.setattr(backend.exports, "offer", lambda *_: None)
    sandbox = backend.open("acme", "t")
    await sandbox.run("echo 4 > four")
    snapshot = await sandbox.take()
    path = layer_of(backend, "acme", snapshot) / "root/workspace/disk"
    os.mknod(path, stat.S_IFBLK | 0o600, os.makedev(8, 0))
    with pytest.raises(UsageError, match="device"):
        await sandbox.make_durable(snapshot)


async def test_files_of_others_in_a_damaged_layer_are_not_exported(hosts, monkeypatch):
    if os.geteuid() != 0:
        pytest.skip("only root can make the file that is to be refused")
    backend = hosts("a")
    monkeypatch.setattr(backend.exports, "offer", lambda *_: None)
    sandbox = backend.open("acme", "t")
    await sandbox.run("echo 4 > four")
    snapshot = await sandbox.take()
    (layer_of(backend, "acme", snapshot) / "root/workspace/of root").write_text("secret")
    with pytest.raises(UsageError, match="belongs to 0:0"):
        await sandbox.make_durable(snapshot)


async def test_all_at_once_import_the_same(hosts, exported):
    _, sandbox, _, second = exported
    b = hosts("b")
    sandboxes = [b.open("acme", f"u-{n}") for n in range(5)]
    await asyncio.gather(*(each.restore(second) for each in sandboxes))
    expected = (await sandbox.run("cat f1 | md5sum")).output
    for each in sandboxes:
        assert (await each.run("cat f1 | md5sum")).output == expected
