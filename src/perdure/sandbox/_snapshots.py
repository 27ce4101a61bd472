"""The snapshots of one tenant: blobs by content, and manifests that name them.

Layout: `blobs/ab/abcd...` holds the bytes of a file under their SHA-256, `manifests/ab/abcd...json`
a whole tree under the SHA-256 of the manifest, which is the snapshot's id. Both are written
beside and renamed into place, fsynced first, and never changed. A manifest is renamed only when
all its blobs are durable: who finds a manifest has the snapshot. What a crash leaves between is
a blob that nobody names. The blobs are copies, no hard links to the live tree: a program that
writes to a file in place would write through.
"""

import hashlib
import json
import os
from collections.abc import Iterable
from contextlib import AbstractContextManager
from itertools import count
from pathlib import Path

from perdure.errors import NotFound, StoreCorrupt
from perdure.sandbox._disk import make_folder, put_file, sync_names
from perdure.sandbox._standing import gate
from perdure.sandbox._tree import Entry, Kind, Tree, pour, read_whole

FORMAT = 1
"""Version of the manifest's layout."""

COLLECTING = "collecting"
"""Folder that is there while a collection is under way: new snapshots are marked in it."""

TAKEN = "taken"
"""File in a thread's folder: the newest snapshot that was taken."""

DIGITS = frozenset("0123456789abcdef")
DIGEST_LENGTH = 64


class Snapshots:
    """What a tenant's sandboxes have taken."""

    def __init__(self, root: Path) -> None:
        """Use the folder root; it is made when something is kept."""
        self._root = root
        self._blobs = root / "blobs"
        self._manifests = root / "manifests"
        self._unique = count()

    def has_blob(self, digest: str) -> bool:
        """Whether the bytes are there; perhaps not durable yet."""
        return self._blob(digest).exists()

    def keep_blob(self, source: Path, staging: Path) -> str:
        """Keep a file's bytes and return their digest.

        Args:
            source: a file of the live tree.
            staging: folder on the same file system, cleaned by its owner.

        Durability: the bytes are on disk, under a name that `sync_blobs` makes durable.
        """
        temporary = staging / f"blob-{next(self._unique)}"
        digest, _, _ = read_whole(source, temporary)
        blob = self._blob(digest)
        make_folder(blob.parent)
        temporary.replace(blob)
        return digest

    def sync_blobs(self, digests: Iterable[str]) -> None:
        """Make the names of blobs durable."""
        folders = {self._blob(digest).parent for digest in digests}
        if folders:
            sync_names(folders, self._root)

    def write_blob(self, digest: str, mode: int, target: Path) -> None:
        """Write a blob's bytes to a new file. Not durable: a live tree can be restored again.

        Raises:
            StoreCorrupt: the blob is missing or is not what was kept; the file is to be thrown
                away.
        """
        blob = self._blob(digest)
        try:
            with blob.open("rb", buffering=0) as source:
                found = pour(source, target, mode=mode, fsync=False)
        except FileNotFoundError as error:
            raise _corrupt(blob, "is missing") from error
        if found != digest:
            raise _corrupt(blob, f"has the digest {found}")

    def keep_manifest(self, tree: Tree, staging: Path) -> str:
        """Keep a tree whose blobs are durable; return the snapshot's id, one for each tree.

        Args:
            tree: the tree.
            staging: folder on the same file system, cleaned by its owner.

        Durability: the snapshot is complete on disk when this returns.
        """
        content = _encode(tree)
        snapshot = hashlib.sha256(content).hexdigest()
        path = self.manifest(snapshot)
        make_folder(path.parent)
        if not path.exists():
            put_file(path, content, staging=staging, fsync=True)
        # Also where it was there: who put it there may have died before this.
        sync_names([path.parent], self._root)
        return snapshot

    def kept(self) -> AbstractContextManager[None]:
        """Hold the gate: what is there stays, until the gate is let go of."""
        make_folder(self._root)
        return gate(self._root, is_shared=True)

    def mark(self, snapshot: str) -> None:
        """Let a collection that is under way know of a snapshot; for a holder of the gate."""
        marks = self._root / COLLECTING
        if marks.is_dir():
            (marks / snapshot).touch()

    def manifest(self, snapshot: str) -> Path:
        """Return the file of a snapshot's tree."""
        return self._manifests / snapshot[:2] / f"{snapshot}.json"

    def tree(self, snapshot: str | None) -> Tree:
        """Return the tree of a snapshot; None: the empty tree.

        Raises:
            NotFound: there is no such snapshot.
            StoreCorrupt: the manifest is not what was kept.
        """
        if snapshot is None:
            return {}
        if not is_snapshot(snapshot):
            msg = f"{snapshot!r} is no snapshot: ids have {DIGEST_LENGTH} hexadecimal digits"
            raise NotFound(msg, snapshot=snapshot)
        path = self.manifest(snapshot)
        try:
            content = path.read_bytes()
        except FileNotFoundError as error:
            msg = (
                f"no snapshot {snapshot!r} under {self._manifests}; the live tree was left as it is"
            )
            raise NotFound(msg, snapshot=snapshot) from error
        found = hashlib.sha256(content).hexdigest()
        if found != snapshot:
            raise _corrupt(path, f"has the digest {found}")
        return _decode(content)

    def _blob(self, digest: str) -> Path:
        return self._blobs / digest[:2] / digest


def is_snapshot(name: str) -> bool:
    """Return whether a name is one of a snapshot."""
    return len(name) == DIGEST_LENGTH and DIGITS.issuperset(name)


def _corrupt(path: Path, what: str) -> StoreCorrupt:
    msg = f"{path} {what}: the snapshot cannot be restored. Bring the file back from a backup."
    return StoreCorrupt(msg, path=str(path))


def _encode(tree: Tree) -> bytes:
    """Return the one spelling of a tree, in ASCII; names that are no UTF-8 as lone surrogates."""
    ordered = sorted(tree.items(), key=lambda item: os.fsencode(item[0]))
    entries = [[path, entry.kind, entry.mode, entry.size, entry.digest] for path, entry in ordered]
    text = json.dumps({"format": FORMAT, "entries": entries}, separators=(",", ":"))
    return text.encode("ascii")


def _decode(content: bytes) -> Tree:
    manifest = json.loads(content)
    if manifest["format"] != FORMAT:
        msg = f"the manifest has the format {manifest['format']!r}; this Perdure reads {FORMAT}"
        raise StoreCorrupt(msg, format=manifest["format"])
    tree = {
        path: Entry(Kind(kind), mode, size, digest)
        for path, kind, mode, size, digest in manifest["entries"]
    }
    for path in tree:
        folder, _, name = path.rpartition("/")
        is_inside = not folder or (folder in tree and tree[folder].kind is Kind.FOLDER)
        if name in ("", ".", "..") or path.startswith("/") or not is_inside:
            msg = f"the manifest has an entry outside of its tree: {path!r}"
            raise StoreCorrupt(msg, path=path)
    return tree
