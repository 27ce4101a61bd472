"""Write `docs/states.md` from the tables of `core.machines`; with `--check`, fail if it differs.

Run it as `PYTHONPATH=src python tools/states_doc.py` after a change of a table.
"""

import sys
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path

from perdure.core.machines import ASK_TABLE, EFFECT_TABLE, RUN_TABLE
from perdure.model import AskState, EffectState, RunStatus

PAGE = Path(__file__).resolve().parent.parent / "docs" / "states.md"

HEAD = """\
# States

<!-- Written by tools/states_doc.py from src/perdure/core/machines.py: change that. -->

What can become of a run, an effect and an ask. An event that a diagram does not have in a state is
refused as an error (`InvariantBroken`), and nothing is written.
"""

RUN = """\
`claim` gives the run to a worker, with a new fencing token. A run that waits, or that needs a
decision, is held by nobody; `wake` makes it claimable and leaves it where it is. A run that a
limit over all workers keeps back is `pending` (or `waiting`, woken) as before; that it is kept back
is no state, as the next claim may take it. A run of a graph version that nobody executes is parked
(`claim`, then `park`) and claimed again by a worker of that version."""

EFFECT = """\
Kinds that others can see (`keyed`, `lookup`, `once`) begin as intended. The other kinds keep no
intent: their first record says that they are confirmed or failed."""

ASK = """\
The first answer counts. An ask is withdrawn when its run ends before it is answered."""

Table = Mapping[tuple[StrEnum, StrEnum], StrEnum]

MACHINES: dict[str, tuple[str, Table, StrEnum]] = {
    "Run": (RUN, RUN_TABLE, RunStatus.PENDING),
    "Effect": (EFFECT, EFFECT_TABLE, EffectState.INTENDED),
    "Ask": (ASK, ASK_TABLE, AskState.OPEN),
}


def page() -> str:
    """Return the whole page."""
    return HEAD + "".join(section(name, *machine) for name, machine in MACHINES.items())


def section(
    name: str,
    text: str,
    table: Table,
    first: StrEnum,
) -> str:
    """Return one machine: its text, its diagram and its table."""
    rows = "".join(
        f"| {source} | {event} | {target} |\n" for (source, event), target in table.items()
    )
    return (
        f"\n## {name}\n\n{text}\n\n```mermaid\n{diagram(table, first)}```\n\n"
        f"| state | event | next state |\n|---|---|---|\n{rows}"
    )


def diagram(table: Table, first: StrEnum) -> str:
    """Return the diagram of a table, which begins at `first`."""
    sources = {source for source, _event in table}
    final = [state for state in type(first) if state not in sources]
    lines = ["stateDiagram-v2", f"    [*] --> {first}"]
    lines += [f"    {source} --> {target} : {event}" for (source, event), target in table.items()]
    lines += [f"    {state} --> [*]" for state in final]
    return "\n".join(lines) + "\n"


def main(arguments: list[str]) -> int:
    """Write the page, or compare it; return 1 if it differs."""
    if "--check" not in arguments:
        PAGE.write_text(page(), encoding="utf-8")
        return 0
    if not PAGE.exists() or PAGE.read_text(encoding="utf-8") != page():
        print("docs/states.md is not what the tables say; run tools/states_doc.py")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
