"""Sandboxes that are plain directories: files only, no isolation.

Layout under the root, one folder per tenant:

    <tenant>/blobs, <tenant>/manifests      what was taken; see _snapshots
    <tenant>/threads/<thread>/tree          the live tree
                              settled.json  written last; removed first by restore
                              staging       half-written files; emptied by the next take or restore
                              lock          held by whoever takes or restores

A live tree is not durable and needs not be: it can be restored. `settled.json` says that the tree
was whole in the time since the host started, and which file had which digest. Killed in a restore,
it is missing; after a power failure, it names another start of the host. Either way nothing is
believed: `take` refuses, and `restore` looks at every byte. So a restore may die at any instant and
is simply done again.
"""

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from perdure.clock import Probe, no_probe
from perdure.errors import StoreLocked, UsageError
from perdure.sandbox._disk import (
    boot_id,
    clear_staging,
    disk_errors,
    make_folder,
    put_file,
    remove_folder,
)
from perdure.sandbox._keeping import DirectoriesKept
from perdure.sandbox._lock import Fence, held
from perdure.sandbox._names import folder_name
from perdure.sandbox._snapshots import TAKEN, Snapshots
from perdure.sandbox._tree import (
    Entry,
    Kind,
    Seen,
    Stamp,
    Tree,
    as_entry,
    look,
    read_whole,
    refused,
)
from perdure.sandbox.limits import RACY_NS, READ_TRIES_MAX

Result = TypeVar("Result")


class DirectorySandboxes(DirectoriesKept):
    """A backend whose sandboxes are directories under one root.

    What runs in such a sandbox is not isolated: it can read and write whatever the process can. Use
    it for tools that you trust to stay inside.
    """

    def __init__(self, root: str | Path, *, probe: Probe = no_probe) -> None:
        """Keep everything under root, which is made on first use.

        Args:
            root: a folder on a local disk that belongs to this backend alone.
            probe: called at each crash point.
        """
        super().__init__(Path(root).absolute(), probe)

    def close(self) -> None:
        """Do nothing: nothing is running. For callers that have one of several backends."""

    def open(self, tenant: str, thread: str, *, fence: Fence | None = None) -> "DirectorySandbox":
        """Return the sandbox of a thread; a new one has an empty tree.

        `fence`: of the run that uses it, see `_lock`; None: it is used by hand.
        """
        tenant_folder = self.folder(tenant)
        with disk_errors("open", tenant_folder):
            return DirectorySandbox(
                tenant_folder / "threads" / folder_name(thread),
                Snapshots(tenant_folder),
                probe=self.probe,
                fence=fence,
            )


@dataclass(frozen=True, slots=True)
class Known:
    """The digest of a file while it has this stamp, and whether its blob is durable."""

    stamp: Stamp
    digest: str
    is_kept: bool


class DirectorySandbox:
    """The files of one thread. Work on the disk is done in OS threads.

    Attributes:
        path: the live tree.
    """

    def __init__(
        self,
        folder: Path,
        snapshots: Snapshots,
        *,
        probe: Probe = no_probe,
        fence: Fence | None = None,
    ) -> None:
        """Use the folder, and make it if need be."""
        self._fence = fence
        self.path = folder / "tree"
        self._folder = folder
        self._staging = folder / "staging"
        self._settled = folder / "settled.json"
        self._snapshots = snapshots
        self._probe = probe
        if not self.path.exists():
            make_folder(folder)
            self._locked("make", self._make)

    async def take(self) -> str:
        """Keep the tree as it is now; return the snapshot's id, the same for the same tree.

        Kept are names, bytes, permission bits and links; not owners, times, extended attributes, or
        that two names are hard links to one file. Nothing may write to the tree meanwhile.

        Returns:
            64 hexadecimal digits. A snapshot never changes; any sandbox of the tenant can be
            restored to it.

        Raises:
            UsageError: special file, over a limit, a file that keeps changing, or a tree that is
                not whole because a restore was cut short (restore it again). No snapshot was taken.
            StoreError: the disk cannot serve; no snapshot was taken.
            LeaseLost: a newer holder of the run uses the sandbox; no snapshot was taken.

        Durability: the whole snapshot is on disk when this returns. Cancel-safe: yes; it may be
            taken still.
        """
        return await asyncio.to_thread(self._locked, "take a snapshot of", self._take)

    async def restore(self, snapshot: str | None) -> None:
        """Make the tree what it was at the snapshot (None: empty). Touches only what differs.

        Raises:
            NotFound: there is no such snapshot; the tree is as it was.
            StoreCorrupt: bytes of the snapshot are missing or changed; the tree is in between.
            StoreError: the disk cannot serve; the tree is in between.
            LeaseLost: a newer holder of the run uses the sandbox; the tree is as it was.

        Durability: none needed, see above. Idempotent: yes. Cancel-safe: yes; it goes on in the
            background, and the next take or restore waits for it.
        """

        def work() -> None:
            """Read and restore on the same OS thread."""
            self._restore(self._snapshots.tree(snapshot))

        await asyncio.to_thread(self._locked, "restore", work)

    async def resume(self, snapshot: str | None) -> None:
        """Go on from a snapshot: here the same as `restore`, as nothing lives in a plain folder."""
        await self.restore(snapshot)

    async def close(self) -> None:
        """Do nothing: nothing lives in a plain folder."""

    def _locked(self, act: str, work: Callable[[], Result]) -> Result:
        with disk_errors(act, self._folder), held(self._folder, self._fence):
            clear_staging(self._staging)
            return work()

    def _make(self) -> None:
        if not self.path.exists():
            self._settle({})
            self.path.mkdir(mode=0o700)

    # -- take --------------------------------------------------------------------------------------

    def _take(self) -> str:
        known = self._known()
        if known is None:
            msg = (
                f"the tree {self.path} is not whole: a restore was cut short, or the host was "
                "restarted. No snapshot was taken. Restore it first: sandbox.restore(snapshot)"
            )
            raise UsageError(msg, path=str(self.path))
        for _try in range(READ_TRIES_MAX):
            trusted_ns = self._disk_time_ns() - RACY_NS
            tree, files = self._kept(known)
            # crash-point: sandbox.take.blobs
            self._probe("sandbox.take.blobs")
            with self._snapshots.kept():
                # A collection may have removed some of them since: nobody needed them then.
                if not all(self._snapshots.has_blob(file.digest) for file in files.values()):
                    continue
                snapshot = self._snapshots.keep_manifest(tree, self._staging)
                self._snapshots.mark(snapshot)
                content = snapshot.encode("ascii")
                put_file(self._folder / TAKEN, content, staging=self._staging, fsync=False)
            break
        else:
            msg = (
                f"files of {self.path} are collected all the time; no snapshot was taken. Try again"
            )
            raise StoreLocked(msg, path=str(self.path))
        # crash-point: sandbox.take.manifest
        self._probe("sandbox.take.manifest")
        self._settle({
            path: Known(file.stamp, file.digest, is_kept=True)
            for path, file in files.items()
            if file.stamp.changed_ns < trusted_ns
        })  # fmt: skip
        return snapshot

    def _kept(self, known: dict[str, Known]) -> tuple[Tree, dict[str, Known]]:
        """Return the tree and what is known of its files now, whose bytes are kept durably."""
        tree: Tree = {}
        files: dict[str, Known] = {}
        for path, seen in look(self.path, to_keep=True).items():
            file = self._keep(path, seen, known.get(path)) if seen.kind is Kind.FILE else None
            if file is not None:
                files[path] = file
            tree[path] = as_entry(seen, file.digest if file else "")
        self._snapshots.sync_blobs(file.digest for file in files.values() if not file.is_kept)
        return tree, files

    def _keep(self, path: str, seen: Seen, known: Known | None) -> Known:
        """Return the digest of a file whose bytes are kept, if perhaps not durably named."""
        if known is not None and known.stamp == seen.stamp:
            if self._snapshots.has_blob(known.digest):
                return known
            known = None
        digest, stamp, mode = read_whole(self.path / path)
        if not self._snapshots.has_blob(digest):
            # crash-point: sandbox.take.blob
            self._probe("sandbox.take.blob")
            kept = self._snapshots.keep_blob(self.path / path, self._staging)
            if kept != digest:
                digest = ""
        if not digest or stamp != seen.stamp or mode != seen.mode:
            raise refused(path, "changes while it is read", "Stop what still writes there.")
        return Known(stamp, digest, is_kept=False)

    # -- restore -----------------------------------------------------------------------------------

    def _restore(self, wanted: Tree) -> None:
        known = self._known() or {}
        self._settled.unlink(missing_ok=True)
        # crash-point: sandbox.restore.begun
        self._probe("sandbox.restore.begun")
        if self.path.is_symlink() or not self.path.is_dir():
            self.path.unlink(missing_ok=True)
            self.path.mkdir(mode=0o700)
        trusted_ns = self._disk_time_ns() - RACY_NS
        found = look(self.path, to_keep=False)
        same = self._same(found, wanted, known)
        self._remove(found, wanted, same)
        # crash-point: sandbox.restore.removed
        self._probe("sandbox.restore.removed")
        written = self._write(wanted, same)
        if written:
            trusted_ns = self._disk_time_ns() - RACY_NS
        self._set_folder_modes(wanted)
        files = {path: file for path, file in same.items() if file is not None} | written
        self._settle({p: file for p, file in files.items() if file.stamp.changed_ns < trusted_ns})

    def _same(
        self, found: dict[str, Seen], wanted: Tree, known: dict[str, Known]
    ) -> dict[str, Known | None]:
        """Return what need not be touched: paths, and for files what is known of them now."""
        same: dict[str, Known | None] = {}
        for path, seen in found.items():
            entry = wanted.get(path)
            if entry is None or entry.kind is not seen.kind:
                continue
            if seen.kind is Kind.FILE:
                file = self._unchanged(path, seen, entry, known.get(path))
                if file is not None:
                    same[path] = file
            elif seen.kind is Kind.FOLDER or seen.target == entry.digest:
                same[path] = None
        return same

    def _unchanged(self, path: str, seen: Seen, entry: Entry, known: Known | None) -> Known | None:
        if (seen.mode, seen.stamp.size) != (entry.mode, entry.size):
            return None
        if known is not None and known.stamp == seen.stamp:
            return known if known.digest == entry.digest else None
        try:
            digest, stamp, _ = read_whole(self.path / path)
        except (OSError, UsageError):
            return None  # unreadable, or still written to: it is put in place anew
        return Known(stamp, digest, is_kept=True) if digest == entry.digest else None

    def _remove(self, found: dict[str, Seen], wanted: Tree, same: dict[str, Known | None]) -> None:
        """Remove what is not wanted, or wanted as something else; a folder after what was in it."""
        for path in reversed(found):
            if path in same:
                continue
            if found[path].kind is Kind.FOLDER:
                self._remove_folder(self.path / path)
            elif path not in wanted or wanted[path].kind is not Kind.FILE:
                (self.path / path).unlink()
            # Else the rename of the right file replaces it in one step.

    def _remove_folder(self, folder: Path) -> None:
        try:
            folder.rmdir()
        except OSError:  # deeper than was looked
            remove_folder(folder, self._staging)

    def _write(self, wanted: Tree, same: dict[str, Known | None]) -> dict[str, Known]:
        written: dict[str, Known] = {}
        staged = self._staging / "file"
        for path, entry in wanted.items():
            if path in same:
                continue
            target = self.path / path
            if entry.kind is Kind.FOLDER:
                target.mkdir(mode=0o700)
            elif entry.kind is Kind.LINK:
                target.symlink_to(entry.digest)
            else:
                self._snapshots.write_blob(entry.digest, entry.mode, staged)
                staged.replace(target)
                written[path] = Known(Stamp.of(target.lstat()), entry.digest, is_kept=True)
            # crash-point: sandbox.restore.entry
            self._probe("sandbox.restore.entry")
        return written

    def _set_folder_modes(self, wanted: Tree) -> None:
        """Give folders their permission bits: what is in a closed one, before that one."""
        for path in reversed(wanted):
            entry = wanted[path]
            if entry.kind is Kind.FOLDER:
                folder = self.path / path
                if folder.lstat().st_mode & 0o7777 != entry.mode:
                    folder.chmod(entry.mode)

    # -- what is known of the tree -----------------------------------------------------------------

    def _disk_time_ns(self) -> int:
        """Return the time by the clock that stamps the tree's files."""
        probe = self._staging / "now"
        probe.write_bytes(b"")
        return probe.lstat().st_mtime_ns

    def _known(self) -> dict[str, Known] | None:
        """Return what is known of the files of a whole tree; None: it may not be whole."""
        try:
            settled = json.loads(self._settled.read_bytes())
        except (FileNotFoundError, ValueError):  # a power failure may have torn it
            return None
        if settled["boot"] != boot_id():
            return None
        return {
            path: Known(Stamp(*stamp), digest, is_kept=is_kept)
            for path, stamp, digest, is_kept in settled["files"]
        }

    def _settle(self, files: dict[str, Known]) -> None:
        listed = [
            [
                path,
                [f.stamp.inode, f.stamp.size, f.stamp.modified_ns, f.stamp.changed_ns],
                f.digest,
                f.is_kept,
            ]
            for path, f in files.items()
        ]
        content = json.dumps({"boot": boot_id(), "files": listed}, separators=(",", ":"))
        put_file(self._settled, content.encode("ascii"), staging=self._staging, fsync=False)
