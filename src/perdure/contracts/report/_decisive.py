"""Which line of a story a reader is sent to: not the import that leads there."""

from perdure.contracts.evidence import Evidence

_ON_THE_WAY = ("imports ", "reaches ")
_OF_SETTINGS = (" is set nowhere", " is its value", " is false here", " is true here")


def decisive(evidence: tuple[Evidence, ...]) -> Evidence | None:
    """Return the step that a story is about: where something is made, if anything.

    `None`: there is no evidence.
    """
    told = [each for each in evidence if not is_way(each)]
    made = [each for each in told if each.note.startswith("makes ")]
    return next(iter([*made, *told, *evidence]), None)


def is_way(step: Evidence) -> bool:
    """Whether a step only leads to another one: an import, or a setting that decides a branch."""
    return step.note.startswith(_ON_THE_WAY) or any(word in step.note for word in _OF_SETTINGS)
