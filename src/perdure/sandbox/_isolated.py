"""Sandboxes whose commands run in namespaces of their own, over layers of files.

Every command is a turn: a fresh process tree that sees the base, the thread's layers and nothing
else of the host, and of which nothing is alive afterwards. So a snapshot is the renaming of a
folder, and a rollback forgets one. The next tree is built in advance, see `_prepared`.
"""

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from perdure.clock import Services, system_services
from perdure.errors import SandboxUnstoppable, SettingInvalid, UsageError
from perdure.sandbox._cgroups import Cgroups, Group
from perdure.sandbox._commands import IsolatedSandbox
from perdure.sandbox._criu import usable
from perdure.sandbox._disk import disk_errors, locked, make_folder, put_file
from perdure.sandbox._ground import Ground
from perdure.sandbox._keeping import LayersKept
from perdure.sandbox._kept import KeptSandbox
from perdure.sandbox._launching import Ended, Launcher, NoFolder, NotBegun, Order, SetUpFailed
from perdure.sandbox._layers import Layers
from perdure.sandbox._lock import Fence, Lock
from perdure.sandbox._made import made_here
from perdure.sandbox._names import folder_name
from perdure.sandbox._network import PORT, Network, WayOut
from perdure.sandbox._prepared import Prepared
from perdure.sandbox._python import checked_warm, template_of
from perdure.sandbox._room import checked_room
from perdure.sandbox._skeleton import make_skeleton, parts_of_host
from perdure.sandbox._standing import User
from perdure.sandbox._trees import Tree
from perdure.sandbox._turns import (
    HOME,
    Capabilities,
    Limits,
    refused,
    rlimits,
)
from perdure.sandbox.export import (
    Base,
    ExportCollection,
    Exports,
    ObjectStore,
    Tally,
    Tenant,
    driver_of,
    make_objects,
)
from perdure.sandbox.inside import landlock
from perdure.sandbox.limits import (
    EXPORT_WINDOW_S,
    PREPARED,
    PREPARED_MAX,
    RANGE_FIRST,
    RANGE_IDS,
    RANGES_MAX,
    SANDBOX_BYTES_MAX,
    SANDBOX_FILES_MAX,
)
from perdure.sealing import KeyProvider, make_keys

OVERLAY = {
    "metacopy": "off",
    "redirect_dir": "nofollow",
    "xino": "off",
    "index": "off",
    "volatile": "",
}
"""Options of the overlays. Volatile: syncing at each unmount would cost a millisecond and promise
nothing, as a snapshot syncs; it needs a scratch folder that is new for each mount."""

NS, USERNS, PLAIN = "ns", "userns", "plain"
"""Drivers: namespaces made by root, or by any user in a user namespace of its own; none at all."""

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class IsolatedSandboxes(LayersKept):
    """A backend whose sandboxes are isolated from the host and from each other.

    What runs in one sees the host's `/usr` read-only below its own changes, its own files, and
    nothing else: no other process, no network, no device, no file of the host or of another thread.
    It is root over its own files and over nothing else.
    """

    def __init__(
        self,
        root: str | Path,
        *,
        show: Mapping[str, str] | None = None,
        env: Mapping[str, str] | None = None,
        limits: Limits | None = None,
        network: Network | None = None,
        warm: Iterable[str] = (),
        prepared: int = PREPARED,
        live: bool = False,
        bytes_max: int = SANDBOX_BYTES_MAX,
        files_max: int = SANDBOX_FILES_MAX,
        export: str | ObjectStore | None = None,
        keys: str | KeyProvider | None = None,
        plain: bool = False,
        durable: bool = False,
        criu: str | Path | None = None,
        driver: str | None = None,
        services: Services | None = None,
    ) -> None:
        """Keep everything under root, which is made on first use.

        Args:
            root: a folder on a local disk that belongs to this backend alone, not below /usr.
            show: path in the sandbox -> folder or file of the host that is shown there, read-only.
            env: environment of every command, beside PATH, HOME and LANG.
            limits: of every turn, unless a call says otherwise.
            network: which hosts commands may reach; None: none.
            prepared: how many sandboxes may have their next process tree built in advance; 0: none.
            warm: modules of the standard library that a Python imports which waits for the next
                program of `python()`; see docs/sandbox.md.
            live: processes that a command leaves go on until the sandbox is restored or closed.
            bytes_max: what a sandbox may take on the disk; a command that takes more is killed.
            files_max: the same in files and folders.
            export: where snapshots are exported to, so that other hosts find them: `file:///path`,
                a plug-in's URL, or an `ObjectStore`; None: they are on this host only.
            keys: what exports are encrypted with, as a store's: `env:NAME`, `file:PATH`, or a
                `KeyProvider`.
            plain: export without encryption, when no keys are given.
            durable: a snapshot is taken only when it is exported: runs then record none that dies
                with the host. Else it is exported as soon as there is time.
            criu: program that takes images of processes: what commands leave running goes on then,
                and is brought back where a snapshot is restored or forked. By root only.
            driver: `ns` or `userns`, to be refused where it would be the other one; None: `ns` if
                this is root, else `userns`.
            services: clock, identifiers and crash points.

        Raises:
            UsageError: this platform has no namespaces, says what there is instead; a number is
                out of range; or there is no such CRIU or driver that can be used here.
            SandboxUnstoppable: processes are to live on, and here is no group to stop them by.
            SettingInvalid: `export` names no place, `keys` no keys, or one is given without the
                other.
        """
        if not 0 <= prepared <= PREPARED_MAX:
            msg = f"prepared is {prepared}: it can be from 0 to {PREPARED_MAX}"
            raise UsageError(msg)
        if os.uname().sysname != "Linux":
            msg = (
                f"isolated sandboxes need Linux, this is {os.uname().sysname}. For tools that you "
                "trust there is DirectorySandboxes, which isolates nothing."
            )
            raise UsageError(msg)
        self.services = services or system_services()
        super().__init__(Path(root).absolute(), self.services.probe)
        self._show = dict(show or {})
        self._env = {"PATH": PATH, "HOME": HOME, "LANG": "C.UTF-8", **(env or {})}
        self.limits = limits or Limits()
        self.network = network
        self.exports = _exports(self.root, export, keys, self.services, plain=plain)
        self.durable = durable
        if durable and self.exports is None:
            msg = "durable= needs a place to export to: name it (export=)"
            raise SettingInvalid(msg)
        self._base: Base | None = None
        self._is_root = os.geteuid() == 0
        _check_driver(driver, is_root=self._is_root)
        self._launcher = Launcher()
        self._cgroups = Cgroups(self.services.ids)
        self.prepared = prepared if criu is None else 0
        self._warm = checked_warm(warm)
        self.is_live = live and criu is None
        self._criu = None if criu is None else usable(str(criu))
        if (live or criu is not None) and not self._cgroups.can_freeze:
            msg = (
                "processes can't live between commands here: there is no control group that this "
                "process may make groups in, so that nothing could stop them for a snapshot. Run "
                "the worker as root, or delegate a group to its user, as systemd does with "
                "Delegate=yes; or leave live=True out"
            )
            raise SandboxUnstoppable(msg)
        self.closings = 0
        self.wishes: list[Prepared] = []
        self.is_building = False
        self._waiting: list[Prepared] = []
        self.room = checked_room(bytes_max, files_max)
        self._user = User(self.root, self.services.ids.new("u", self.services.clock.now_us()))
        self.parts: list[tuple[str, str]] = []

    def close(self) -> None:
        """Kill what is running or waits, and the process that starts it. Idempotent.

        An export that is under way stops; `settle` waits for it.
        """
        if self.exports is not None:
            self.exports.stop()
        self.closings += 1
        self.is_building = False
        self.wishes = []
        self._launcher.close()
        for each in self._waiting:
            each.stop()
        self._waiting.clear()
        self._user.end()

    async def settle(self, window_s: float = EXPORT_WINDOW_S) -> None:
        """Return when the snapshots that were taken are exported, or after so many seconds."""
        if self.exports is not None:
            await self.exports.settle(window_s)

    def open(self, tenant: str, thread: str, *, fence: Fence | None = None) -> IsolatedSandbox:
        """Return the sandbox of a thread; a new one stands on the base.

        `fence`: of the run that uses it, see `_lock`; None: it is used by hand.
        """
        opened = self.tenant(folder_name(tenant))
        folder = opened.layers.tenant / "threads" / folder_name(thread)
        with disk_errors("open", folder):
            make_folder(folder)
        ids = opened.driver.first, opened.driver.count
        ground = Ground(folder, opened.layers, self.services, ids=ids, fence=fence)
        if self._criu is None:
            return IsolatedSandbox(self, ground, opened)
        of = {"user": str(ids[0]), "base": Path(self.parts[0][1]).name}
        return KeptSandbox(self, ground, opened, self._launcher, criu=self._criu, of=of)

    def tenant(self, name: str) -> Tenant:
        """Return the layers of a tenant; `name`: of its folder."""
        folder = self.root / "tenants" / name
        with disk_errors("open", folder):
            self._prepare()
            self._user.begin()
            make_folder(folder)
            ids = self._ids(name)
            ats = tuple(at for at, _base in self.parts)
            if self._base is None:
                self._base = Base(self.parts, list(self._show))
            base = Path(self.parts[0][1]).name
            layers = Layers(
                folder,
                base=base,
                parts=ats,
                owner=ids[0],
                made=made_here(self._driver),
                room=self.room,
                user=self._user.name,
                now_us=self.services.clock.now_us,
            )
            return Tenant(name, layers, driver_of(ids), self._base)

    async def make_all_durable(self) -> tuple[list[str], Tally]:
        """Export every snapshot of every tenant that is not there, whatever was noted of it.

        Returns:
            The snapshots that were exported, oldest first, and what was put there for them.

        Raises:
            SettingInvalid: the backend has no place to export to.
            UsageError, StoreError: one of them can't be exported; those before it are.
        """
        if self.exports is None:
            msg = "these sandboxes export nothing: name a place, IsolatedSandboxes(..., export=URL)"
            raise SettingInvalid(msg)
        done: list[str] = []
        total = Tally()
        for name in self.tenants():
            tenant = self.tenant(name)
            for snapshot in tenant.layers.names():
                one = await self.exports.make_durable(tenant, snapshot, is_checked=True)
                total += one
                if one.snapshots:
                    done.append(snapshot)
                else:
                    total.known += 1
        return done, total

    async def export_collection(self, tenant: str) -> ExportCollection | None:
        """Begin a collection of what a tenant exported; None: it exported nothing, or no place."""
        if self.exports is None:
            return None
        return await self.exports.collection(self.tenant(folder_name(tenant)))

    def tenants(self) -> list[str]:
        """Return the names of the folders of all tenants."""
        folder = self.root / "tenants"
        return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []

    async def capabilities(self) -> Capabilities:
        """Return what isolates here, after having executed something in it.

        Raises:
            UsageError: nothing does; says which step failed.
        """
        sandbox = self.open("perdure", "probe")
        try:
            await sandbox.run(["true"])
        finally:
            await sandbox.close()
        return Capabilities(
            driver=self._driver,
            landlock=landlock.version() if self._criu is None else 0,
            cgroups=self._cgroups.version,
            kernel=os.uname().release,
            criu="" if self._criu is None else self._criu.version,
        )

    @property
    def _driver(self) -> str:
        return NS if self._is_root else USERNS

    def _prepare(self) -> None:
        if self.parts:
            return
        of_host = parts_of_host()
        above = [base for _at, base in of_host if self.root.is_relative_to(base)]
        if above:
            msg = (
                f"sandboxes can't be kept below {above[0]}, which is a part of what they see; "
                "nothing was made. Name another folder."
            )
            raise UsageError(msg, path=str(self.root))
        make_folder(self.root)
        skeleton = make_skeleton(self.root / "base", self._show)
        self.parts = [("", str(skeleton)), *of_host]

    def _ids(self, tenant: str) -> tuple[int, int]:
        """Return the first id and the number of ids of a tenant's sandboxes."""
        if not self._is_root:
            return os.geteuid(), 1
        ranges = self.root / "ranges.json"
        with locked(self.root / "ranges.lock"):
            known: dict[str, int] = {}
            if ranges.exists():
                known = json.loads(ranges.read_bytes())
            if tenant not in known:
                if len(known) >= RANGES_MAX:
                    msg = f"{self.root} has ids for {RANGES_MAX} tenants only; nothing was made"
                    raise UsageError(msg, path=str(self.root))
                known[tenant] = len(known)
                staging = self.root / "base"
                put_file(ranges, json.dumps(known).encode(), staging=staging, fsync=True)
        return RANGE_FIRST + known[tenant] * RANGE_IDS, RANGE_IDS

    # -- trees -------------------------------------------------------------------------------------

    async def build(
        self,
        ground: Ground,
        limits: Limits,
        lock: Lock,
        *,
        is_staying: bool = False,
        more: Mapping[str, object] | None = None,
    ) -> Tree:
        """Ask for a tree; return when that was sent. For the sandboxes of this backend.

        Args:
            ground: what it stands on; its lock is held.
            limits: that it has.
            lock: of which the tree holds a copy while it is built.
            is_staying: whether it goes on after a command, with the lock that the first brings.
            more: of its spec.

        Raises:
            StoreUnavailable: the launcher can't be started.
        """
        scratch, spec = ground.spec(self.parts, list(self._show.items()))

        def make() -> Group:
            """Make groups with the limits."""
            return self._cgroups.make(
                memory_bytes=limits.memory_bytes,
                processes=limits.processes,
                cores=limits.cores,
                is_staying=is_staying,
            )

        has_images = "criu" in (more or {})
        kind = (limits.memory_bytes, limits.processes, limits.cores, is_staying)
        spare = None if has_images else self._launcher.spare(kind)
        group = make() if spare is None else spare.group
        spec |= {"scratch": scratch, "is_staying": is_staying, "landlock": True}
        spec |= {"cgroups": group.entrances, "rlimits": rlimits(limits, group)}
        spec["port"] = 0 if self.network is None else PORT
        spec["options"] = OVERLAY if self._is_root else {**OVERLAY, "userxattr": ""}
        spec |= more or {}
        way_out = None if self.network is None else WayOut(self.network)
        if spare is None:
            tree = await self._launcher.build(spec, group, lock, way_out=way_out)
        else:
            tree = await self._launcher.claim(spare, spec, lock, way_out=way_out)
        if not has_images:
            self._launcher.begin_spare(kind, make, is_rootless=not self._is_root)
        return tree

    def template(self, ground: Ground) -> Mapping[str, object]:
        """Return what is to be told of a Python that waits in a tree; for a holder of the lock.

        Empty: there is to be none, as the sandbox has changed what a Python is.
        """
        with disk_errors("look at", ground.folder):
            folders = ground.folders([at for at, _base in self.parts])
            told = template_of(folders, self.variables({}), self._warm)
        return {} if told is None else {"python": told}

    async def end(self, tree: Tree) -> None:
        """Kill a tree; return when no process of it is alive."""
        await self._launcher.end(tree)

    async def lend(self, tree: Tree) -> Lock | None:
        """Return a copy of the lock that a tree has which stays; None: it is over."""
        return await self._launcher.lend(tree)

    def waits(self, prepared: Prepared) -> None:
        """Count a tree that waits; the one that has waited longest may be ended for it."""
        self._waiting = [each for each in self._waiting if each.tree and each is not prepared]
        self._waiting.append(prepared)
        while len(self._waiting) > self.prepared:
            tree = self._waiting.pop(0).tree
            if tree is not None:
                self._launcher.kill(tree)

    async def execute(self, tree: Tree, order: Order, lock: Lock | None) -> Ended:
        """Execute a command in a tree; the lock is handed over.

        Raises:
            UsageError: the sandbox could not be built, has no room, or not the folder to begin in;
                nothing was executed.
        """
        try:
            return await self._launcher.execute(tree, order, lock)
        except SetUpFailed as error:
            raise refused(str(error)) from error
        except NoFolder as error:
            cwd = order.spec["cwd"]
            msg = f"cwd={cwd!r} is no folder in the sandbox: {error}; nothing was executed"
            raise UsageError(msg, cwd=cwd) from error
        except NotBegun as error:
            msg = (
                f"the command can't be started: {error}; nothing was executed. What is alive in "
                "the sandbox has all the processes that limits= allow; sandbox.restore() ends it"
            )
            raise UsageError(msg) from error

    def variables(self, env: Mapping[str, str]) -> dict[str, str]:
        """Return the environment of a command."""
        variables = {} if self.network is None else self.network.variables
        return {**self._env, **variables, **env}


def _exports(
    root: Path,
    export: str | ObjectStore | None,
    keys: str | KeyProvider | None,
    services: Services,
    *,
    plain: bool,
) -> Exports | None:
    """Return the exports of a backend; None: it has none."""
    if export is None:
        if keys is not None or plain:
            msg = "keys= and plain= are for exports: name their place (export=)"
            raise SettingInvalid(msg)
        return None
    if (keys is None) != plain:
        msg = (
            "exports are encrypted: name the keys (keys='file:PATH'; 'perdure keys new' makes "
            "one). Or say plain=True: who gets at the exports can then read and change them"
        )
        raise SettingInvalid(msg)
    provider = None if keys is None else make_keys(keys, services)
    return Exports(root, make_objects(export, services), provider, services)


def _check_driver(driver: str | None, *, is_root: bool) -> None:
    """Refuse a driver that there is not, or that this user can't have."""
    own = NS if is_root else USERNS
    if driver in (None, own):
        return
    if driver == NS:
        msg = f"the driver {NS} is root's: run the worker as root, or take {USERNS}"
    elif driver == USERNS:
        msg = (
            f"the driver {USERNS} would give sandboxes root's own id: run the worker as another "
            f"user, or take {NS}"
        )
    elif driver == PLAIN:
        msg = (
            f"the driver {PLAIN} isolates nothing: it is TrustedSandboxes(root, trusted=True), and "
            "nothing else becomes it"
        )
    else:
        msg = f"there is no driver {driver!r}, but {NS} (by root) and {USERNS} (by others)"
    msg = f"{msg}; nothing was made"
    raise UsageError(msg)
