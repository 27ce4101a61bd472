"""Remove what of a tenant's exports nothing needs any more, while others export and import.

Theory: mark and sweep, as for layers. What is there is listed; then whoever knows the journals
reads which snapshots they name, and who holds which run; then go

- manifests of threads of the store that no journal names, that nothing stands on that stays, that
  are not their thread's newest, and whose taker can name nothing any more: his run has ended, or a
  newer holder has it. A manifest has (run, fencing token) in its name, so no age has to tell that a
  snapshot's record is still on its way;
- pieces that no manifest names which stays.

How that is safe from exports that are under way: see `_condemned`. An import reads what a journal
names, which stays; one by hand of what nobody needs may find that it is gone, and writes nothing.

Crashes: manifests go first, those that stand on others before them, then pieces. Killed anywhere,
what is left is garbage again, to the next collection.
"""

from collections.abc import Iterable, Mapping

from msgspec import Struct

from perdure.clock import Services
from perdure.errors import NotFound, SnapshotBroken, StoreCorrupt
from perdure.sandbox._made import Generation
from perdure.sandbox.export._condemned import Condemned
from perdure.sandbox.export._exporting import thread_name
from perdure.sandbox.export._importing import Catalogue, Found
from perdure.sandbox.export._manifest import Manifest
from perdure.sandbox.export._objects import ObjectStore
from perdure.sandbox.export._pieces import Pieces
from perdure.sandbox.export._sealer import Sealer
from perdure.sandbox.limits import CONDEMNED_KEPT_US, OBJECTS_LISTED_MAX


class Taker(Struct, frozen=True, kw_only=True):
    """Who takes snapshots of a thread, by the store.

    Attributes:
        erased: of its runs, the newest that is erased, or is to be; 0: none.
        held: fencing tokens of the runs that have not ended, by their number.
    """

    erased: int = 0
    held: Mapping[int, int] = {}

    def may_name(self, generation: Generation) -> bool:
        """Return whether who took a snapshot may write down yet that he did."""
        ordinal, token, _count = generation
        is_held = ordinal in self.held and token >= self.held[ordinal]
        return is_held and not self.has_erased(generation)

    def has_erased(self, generation: Generation) -> bool:
        """Return whether what was taken under a number is erased; by hand it is 0 or the last."""
        return 0 < self.erased >= generation[0]


class ExportsCollected(Struct, kw_only=True):
    """What a collection of exports did, or would do (`is_dry`).

    Attributes:
        manifests: exported layers that were removed.
        pieces: of content that were removed.
        kept: manifests that are needed.
        unknown: manifests that nothing needs, of threads that are none of the store's.
        remaining: layers of the threads that are erased, which others stand on.
        is_dry: whether they were counted only.
    """

    manifests: int = 0
    pieces: int = 0
    kept: int = 0
    unknown: int = 0
    remaining: list[str] = []
    is_dry: bool = False

    def add(self, other: "ExportsCollected") -> None:
        """Add what was done for another tenant."""
        self.manifests += other.manifests
        self.pieces += other.pieces
        self.kept += other.kept
        self.unknown += other.unknown
        self.remaining = self.remaining + other.remaining


class _Read(Struct, frozen=True):
    """What of a manifest matters here."""

    below: str
    pieces: frozenset[bytes]


class ExportCollection:
    """A collection of a tenant's exports, under way. For OS threads; several do no harm."""

    def __init__(self, objects: ObjectStore, sealer: Sealer, services: Services) -> None:
        """List what is there: pieces first, so that each has its manifest already, or is new."""
        self._objects = objects
        self._sealer = sealer
        self._services = services
        self._catalogue = Catalogue(objects, sealer)
        self._condemned = Condemned(objects, sealer, services)
        self._pieces = Pieces(objects, sealer)
        self._known: dict[str, _Read] = {}
        self._stored = self._listed()
        self._manifests = {found.object: found for found in self._catalogue.all()}

    def _listed(self) -> list[str]:
        found: list[str] = []
        for number in range(256):
            prefix, after = f"{self._sealer.folder}/pieces/{number:02x}/", ""
            while names := self._objects.list(prefix, after=after):
                found += names
                after = names[-1]
                if len(names) < OBJECTS_LISTED_MAX:
                    break
        return found

    def finish(
        self,
        named: Iterable[str],
        takers: Mapping[str, Taker],
        *,
        about: frozenset[str] = frozenset(),
        is_dry: bool = False,
    ) -> ExportsCollected:
        """Remove what is not needed.

        Args:
            named: snapshots that journals name, read after this was begun.
            takers: of all threads of the store, by the name of their folder.
            about: threads that are erased: what of theirs stays is listed.
            is_dry: count only.

        Raises:
            StoreCorrupt: a manifest that is needed can't be read, so that nobody knows what it
                stands on; nothing was removed.
            SnapshotBroken: a list of an earlier collection can't be read; the same.
            SnapshotNotDurable: the place can't serve.

        Durability: what is removed is gone when this returns; killed before, the next collection
            goes on. Idempotent: yes.
        """
        self._condemned.refresh()
        roots, strange = self._roots(frozenset(named), takers)
        needed = self._closed(roots)
        garbage = {name: each for name, each in self._manifests.items() if name not in needed}
        spare = self._spare(needed)
        known = self._closed(roots - strange)
        done = ExportsCollected(
            manifests=len(garbage),
            pieces=len(spare),
            kept=len(known),
            unknown=len(needed - known),
            remaining=self._of(about, needed),
            is_dry=is_dry,
        )
        if is_dry:
            return done
        if garbage or spare:
            self._condemned.publish([*garbage, *spare])
            # crash-point: sandbox.condemn.published
            self._services.probe("sandbox.condemn.published")
            self._remove(garbage, spare, needed, done)
        self._condemned.drop(
            [*self._listed(), *(found.object for found in self._catalogue.all())],
            older_than_us=self._services.clock.now_us() - CONDEMNED_KEPT_US,
        )
        return done

    # -- what is needed ----------------------------------------------------------------------------

    def _roots(
        self, named: frozenset[str], takers: Mapping[str, Taker]
    ) -> tuple[set[str], set[str]]:
        """Return the manifests that something needs, and those of them that are strangers'."""
        by_name = {thread_name(self._sealer, thread): each for thread, each in takers.items()}
        newest: dict[str, Generation] = {}
        for found in self._manifests.values():
            newest[found.thread] = max(newest.get(found.thread, (0, 0, 0)), found.generation)
        roots, strange = set(), set()
        for name, found in self._manifests.items():
            taker = by_name.get(found.thread)
            is_newest = found.generation == newest[found.thread]
            if taker is None:
                roots.add(name)
                if found.layer not in named:
                    strange.add(name)
            elif (
                found.layer in named
                or taker.may_name(found.generation)
                or (is_newest and not taker.has_erased(found.generation))
            ):
                roots.add(name)
        return roots, strange

    def _of(self, threads: frozenset[str], manifests: set[str]) -> list[str]:
        """Return the layers that some threads took, of these manifests."""
        names = {thread_name(self._sealer, thread) for thread in threads}
        found = [each for name, each in self._manifests.items() if name in manifests]
        return sorted({each.layer for each in found if each.thread in names})

    def _closed(self, roots: Iterable[str]) -> set[str]:
        """Return manifests with all that they stand on."""
        closed: set[str] = set()
        for root in roots:
            current = root
            while current and current not in closed and current in self._manifests:
                closed.add(current)
                current = self._read(self._manifests[current]).below
        return closed

    def _read(self, found: Found) -> _Read:
        if found.object not in self._known:
            try:
                manifest, _digest = self._catalogue.read(found)
            except NotFound:  # another collection removed it, which knows what needs it
                self._known[found.object] = _Read("", frozenset())
            except SnapshotBroken as error:
                msg = (
                    f"{error}: it is not known what {found.layer!r} stands on, which is needed; "
                    "nothing was removed. 'perdure sandbox verify' lists the damage"
                )
                raise StoreCorrupt(msg, object=found.object) from error
            else:
                self._known[found.object] = _said(manifest)
        return self._known[found.object]

    def _spare(self, manifests: Iterable[str]) -> set[str]:
        """Return the pieces of the list that none of these manifests names."""
        used: set[str] = set()
        for name in manifests:
            used |= {
                self._pieces.name_of(each) for each in self._read(self._manifests[name]).pieces
            }
        # A piece that was put again has its name with an ending; then the first one may go.
        again = {_without_ending(name) for name in self._stored if name not in self._condemned}
        return {
            name
            for name in self._stored
            if _without_ending(name) not in used
            or (name in self._condemned and _without_ending(name) in again)
        }

    # -- removing ----------------------------------------------------------------------------------

    def _remove(
        self,
        garbage: Mapping[str, Found],
        spare: set[str],
        needed: set[str],
        done: ExportsCollected,
    ) -> None:
        """Remove what was given up, but for what a manifest names that is there by now."""
        self._manifests = {found.object: found for found in self._catalogue.all()}
        staying = self._closed(
            name for name in self._manifests if name in needed or name not in self._condemned
        )
        going = [name for name in self._manifests if name in garbage and name not in staying]
        spare = spare & self._spare(staying)
        done.manifests, done.pieces = len(going), len(spare)
        for name in self._topmost_first(going):
            self._objects.delete(name)
            # crash-point: sandbox.condemn.manifest
            self._services.probe("sandbox.condemn.manifest")
        for name in sorted(spare):
            self._objects.delete(name)
            # crash-point: sandbox.condemn.piece
            self._services.probe("sandbox.condemn.piece")

    def _topmost_first(self, names: list[str]) -> list[str]:
        """Return manifests, each before what it stands on."""
        pending = {name: self._below(name) for name in names}
        ordered: list[str] = []
        while pending:
            tops = sorted(pending.keys() - pending.values()) or sorted(pending)
            ordered += tops
            for name in tops:
                del pending[name]
        return ordered

    def _below(self, name: str) -> str:
        try:
            return self._read(self._manifests[name]).below
        except StoreCorrupt:
            return ""  # it is damaged, and nobody needs it


def _without_ending(name: str) -> str:
    """Return the name that a piece had before it was put once more."""
    folder, _, last = name.rpartition("/")
    return f"{folder}/{last.partition('.')[0]}"


def _said(manifest: Manifest) -> _Read:
    return _Read(
        manifest.parent_object,
        frozenset(digest for digest, _length in manifest.pieces),
    )
