"""The command line of `perdure check` without a framework, which would take longer than the check.

It understands what is well-formed and nothing else: help, mistakes and unknown words are left to
the command as `_contracts` declares it. A test holds the two to the same options.
"""

from pathlib import Path

from perdure.cli._contracts_asked import Asked, perform
from perdure.cli._ending import ended

FLAGS = {
    "--strict": "strict",
    "--json": "as_json",
    "--all": "everything",
    "--fix": "fix",
    "--yes": "yes",
}
"""Options without a value: the field of `Asked` that each sets."""

VALUES = {
    "--only": "only",
    "--format": "output_format",
    "--output": "output",
    "--fail-on": "fail_on",
    "--baseline": "baseline",
    "--write-baseline": "write_baseline",
    "--explain": "explain",
    "--prove": "prove",
    "--engine": "engine",
}
"""Options with one value."""

ASSUME = "--assume"
"""The option that may be given several times."""

_PATHS = frozenset({"output", "baseline", "write_baseline"})


def run(words: list[str]) -> int | None:
    """Run a check, and return its exit code; `None`: the words are not understood here."""
    asked = asked_of(words)
    if asked is None:
        return None
    return ended(lambda: perform(asked), as_json=asked.as_json)


def asked_of(words: list[str]) -> Asked | None:
    """Return what a well-formed command line asks for; `None` for any other."""
    fields: dict[str, object] = {}
    assume: list[str] = []
    folders: list[str] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        name, equals, value = word.partition("=")
        if word in FLAGS:
            fields[FLAGS[word]] = True
        elif name in VALUES or name == ASSUME:
            if not equals and not rest:
                return None
            given = value if equals else rest.pop(0)
            if name == ASSUME:
                assume.append(given)
            else:
                fields[VALUES[name]] = Path(given) if VALUES[name] in _PATHS else given
        elif word.startswith("-") or folders:
            return None
        else:
            folders.append(word)
    folder = Path(folders[0]) if folders else Path()
    return Asked(folder=folder, assume=tuple(assume), **fields)  # type: ignore[arg-type]  # by name
