"""Whether what is noted as exported is there, with all that it stands on."""

from perdure.errors import NotFound, SnapshotBroken
from perdure.sandbox.export._condemned import Condemned
from perdure.sandbox.export._exporting import Note
from perdure.sandbox.export._importing import Catalogue, parse_name


class Whole:
    """Looks at manifests, and remembers which are whole."""

    def __init__(self, catalogue: Catalogue, condemned: Condemned) -> None:
        """Look in a catalogue; what is given up counts as not there."""
        self._catalogue = catalogue
        self._condemned = condemned
        self._known: set[Note] = set()

    def __call__(self, note: Note) -> bool:
        """Return whether a manifest and all below it are there; pieces are not looked at.

        Raises:
            SnapshotNotDurable: the place can't serve.
        """
        passed: list[Note] = []
        while note not in self._known:
            found = parse_name(note.object)
            if found is None or note.object in self._condemned:
                return False
            try:
                manifest, digest = self._catalogue.read(found)
            except (NotFound, SnapshotBroken):
                return False
            if digest != note.digest:
                return False
            passed.append(note)
            if not manifest.parent:
                break
            note = Note(manifest.parent_object, manifest.parent_digest)
        self._known.update(passed)
        return True
