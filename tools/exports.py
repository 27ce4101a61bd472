"""Write `tests/public/exports.txt`, the snapshot of the public API; with `--check`, compare it.

One line for each name of the facade, and of the rooms that are public by themselves: what it is,
and for what can be called its parameters (names, kinds, and whether there is a default; annotations
are left out, as Python versions spell them differently). A difference is a reviewed decision: run
it as `PYTHONPATH=src python tools/exports.py` and explain the change in CHANGELOG.md.
"""

import difflib
import inspect
import sys
from pathlib import Path

import perdure
import perdure.agent

ROOMS = {"": perdure, "agent.": perdure.agent}

SNAPSHOT = Path(__file__).resolve().parent.parent / "tests" / "public" / "exports.txt"


def snapshot() -> str:
    """Return the snapshot, one line for each name, sorted within its room."""
    return "".join(
        line
        for prefix, room in ROOMS.items()
        for line in sorted(
            f"{prefix}{name}{described(getattr(room, name))}\n" for name in room.__all__
        )
    )


def described(thing: object) -> str:
    """Return `(parameters): kind` for what can be called, else `: type`."""
    if inspect.isclass(thing):
        return f"{parameters(thing)}: class"
    if callable(thing):
        kind = "async function" if inspect.iscoroutinefunction(thing) else "function"
        return f"{parameters(thing)}: {kind}"
    return f": {type(thing).__name__}"


def parameters(thing: object) -> str:
    """Return the parameters as Python would write them, defaults as `=...`."""
    try:
        signature = inspect.signature(thing)  # type: ignore[arg-type]  # described() gives callables
    except (TypeError, ValueError):
        return "(?)"
    bare = [
        parameter.replace(
            annotation=inspect.Parameter.empty,
            default=... if parameter.default is not inspect.Parameter.empty else parameter.empty,
        )
        for parameter in signature.parameters.values()
    ]
    text = str(inspect.Signature(bare))
    return text.replace("=Ellipsis", "=...")


def main(arguments: list[str]) -> int:
    """Write the snapshot, or compare it; return 1 if it differs."""
    if "--check" not in arguments:
        SNAPSHOT.write_text(snapshot(), encoding="utf-8")
        return 0
    old = SNAPSHOT.read_text(encoding="utf-8").splitlines()
    difference = list(difflib.unified_diff(old, snapshot().splitlines(), "snapshot", "now", n=0))
    print("\n".join(difference))
    return 1 if difference else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
