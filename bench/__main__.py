"""Measure: `python -m bench [--quick] [--json FILE] [--peers] [--only PART]...`."""

import argparse
import asyncio
import json
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console

from bench import machine, plan, report
from bench.figures import as_json
from bench.peers import ON_POSTGRES, SYSTEMS, Peer, PeerMissing
from bench.places import PlaceMissing, PostgresPlace
from bench.rounds import FULL, QUICK, Rounds


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few and short rounds: does it work?")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything to this file")
    parser.add_argument("--peers", action="store_true", help="measure other systems, too")
    parser.add_argument(
        "--only",
        action="append",
        choices=[*plan.PARTS, *plan.GROUPS],
        metavar="PART",
        help="measure this part only; may be repeated: "
        f"{', '.join(plan.PARTS)}; sqlite and postgres are all parts of that store",
    )
    parser.add_argument(
        "--folder",
        type=Path,
        default=Path.cwd(),
        metavar="FOLDER",
        help="where the databases are made, on a real disk (default: here)",
    )
    return parser.parse_args()


def asked_parts(options: argparse.Namespace) -> list[str]:
    asked = options.only or list(plan.GROUPS)
    return list(dict.fromkeys(part for name in asked for part in plan.GROUPS.get(name, [name])))


@contextmanager
def started_postgres(
    folder: Path, parts: list[str], *, peers: bool
) -> Iterator[tuple[PostgresPlace | None, dict[str, str]]]:
    """Start a server if it is needed; yield it, or why there is none."""
    if not peers and not any(part in plan.POSTGRES_PARTS for part in parts):
        yield None, {}
        return
    try:
        place = PostgresPlace(folder)
    except PlaceMissing as error:
        yield None, {"postgres": str(error)}
        return
    try:
        yield place, {}
    finally:
        place.close()


@contextmanager
def started_peers(
    folder: Path, postgres: PostgresPlace | None, *, wanted: bool
) -> Iterator[tuple[list[Peer], dict[str, str]]]:
    """Start the other systems; yield those that work, and why others do not."""
    peers: list[Peer] = []
    skipped: dict[str, str] = {}
    with ExitStack() as stack:
        for system in SYSTEMS if wanted else ():
            if system in ON_POSTGRES and postgres is None:
                skipped[system] = "there is no PostgreSQL server"
                continue
            try:
                peer = Peer(system, folder, postgres.server.dsn() if postgres else "")
            except PeerMissing as error:
                skipped[system] = str(error)
            else:
                stack.callback(peer.close)
                peers.append(peer)
        yield peers, skipped


def measure(options: argparse.Namespace, console: Console) -> dict[str, Any]:
    size = QUICK if options.quick else FULL
    parts = asked_parts(options)
    before = machine.load()
    with (
        tempfile.TemporaryDirectory(prefix="bench-", dir=options.folder) as name,
        started_postgres(Path(name), parts, peers=options.peers) as (postgres, missing),
        started_peers(Path(name), postgres, wanted=options.peers) as (peers, skipped),
    ):
        if postgres is None:
            parts = [part for part in parts if part not in plan.POSTGRES_PARTS]
        rounds = Rounds(Path(name), size, parts=parts, postgres=postgres, peers=peers)
        for system, why in (missing | skipped).items():
            console.print(f"[bold red]SKIPPED: {system}: {why}")

        def told(number: int, of: int) -> None:
            console.print(f"round {number} of {of}" if number else "warming up")

        asyncio.run(rounds.run(told))
        return {
            "format": report.FORMAT,
            "machine": machine.describe(Path(name))
            | {"postgres": postgres.version() if postgres else ""},
            "load": {"before": before, "after": machine.load()},
            "quick": options.quick,
            "rounds": size.rounds,
            "parts": parts,
            "skipped": missing,
            "figures": [as_json(figure, rounds.figures) for figure in rounds.figures.values()],
            "peers": {
                "versions": {peer.system: peer.versions for peer in peers},
                "skipped": skipped,
            },
        }


def main() -> int:
    options = arguments()
    found = measure(options, Console(stderr=True))
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    report.show(found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
