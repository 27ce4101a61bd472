"""The report: a table for people, JSON for programs."""

from typing import Any

from rich import box
from rich.console import Console, JustifyMethod
from rich.table import Table

FORMAT = 1
"""Version of the JSON's shape."""

P99_COUNT_MIN = 20
"""Fewer values have no 99th percentile worth the name."""

WIDTH_MIN = 144
"""The table's columns need so many characters; a narrower place gets long lines, not dots."""

COLUMNS: dict[str, JustifyMethod] = {
    "figure": "left",
    "measured": "right",
    "unit": "left",
    "p99": "right",
    "floor": "right",
    "goal": "left",
    "met": "left",
}


def _number(value: float) -> str:
    if value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 100 else f"{value:.3g}"


def _spread(found: dict[str, float] | None) -> str:
    if found is None:
        return "-"
    return f"{_number(found['median'])} ({_number(found['min'])} to {_number(found['max'])})"


def show(report: dict[str, Any]) -> None:
    """Print the report."""
    console = Console()
    console.width = max(console.width, WIDTH_MIN)
    machine = report["machine"]
    console.print(
        f"{machine['processor']}, {machine['cores']} cores, {machine['system']}, "
        f"{machine['file_system']}; Python {machine['python']}, SQLite {machine['sqlite']}"
        + (f", PostgreSQL {machine['postgres']}" if machine["postgres"] else "")
    )
    load = report["load"]
    console.print(f"load over one minute: {load['before']:.2f} before, {load['after']:.2f} after")
    if load["before"] > machine["cores"] / 2:
        console.print(
            "[bold red]The machine was busy: believe the ratios and the CPU, not the times."
        )
    console.print(
        f"{report['rounds']} rounds; median (min to max); ratio to the floor in the same round"
    )
    table = Table(box=box.SIMPLE)
    for title, justify in COLUMNS.items():
        table.add_column(title, justify=justify, no_wrap=True)
    previous = ""
    for figure in report["figures"]:
        room = _room(figure["name"])
        peer, is_peer, title = figure["title"].rpartition(": ")
        if room != previous:
            table.add_section()
            if is_peer:
                table.add_row(f"[bold]{peer}")
        previous = room
        table.add_row(title, *_row(figure))
    console.print(table)
    for system, versions in report["peers"]["versions"].items():
        names = ", ".join(f"{name} {version}" for name, version in versions.items())
        console.print(f"{system}: {names}")
    for system, why in (report["skipped"] | report["peers"]["skipped"]).items():
        console.print(f"[bold red]NOT MEASURED: {system}: {why}")


def _room(name: str) -> str:
    return ".".join(name.split(".")[: 2 if name.startswith(("peers.", "postgres.")) else 1])


def _row(figure: dict[str, Any]) -> tuple[str, ...]:
    met = {True: "[green]yes", False: "[bold red]NO", None: ""}[figure["met"]]
    value = figure["value"]
    p99 = _number(value["p99"]) if value and value["count"] >= P99_COUNT_MIN else ""
    ratio = f"{_number(figure['ratio']['median'])} x" if figure["ratio"] else ""
    return (_spread(value), figure["unit"], p99, ratio, figure["goal"] or "", met)
