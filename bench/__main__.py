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
from bench.peers import SYSTEMS, Peer, PeerMissing
from bench.rounds import FULL, QUICK, Rounds


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few and short rounds: does it work?")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything to this file")
    parser.add_argument("--peers", action="store_true", help="measure other systems, too")
    parser.add_argument(
        "--only",
        action="append",
        choices=plan.PARTS,
        metavar="PART",
        help=f"measure this part only; may be repeated: {', '.join(plan.PARTS)}",
    )
    parser.add_argument(
        "--folder",
        type=Path,
        default=Path.cwd(),
        metavar="FOLDER",
        help="where the databases are made, on a real disk (default: here)",
    )
    return parser.parse_args()


@contextmanager
def started_peers(folder: Path, *, wanted: bool) -> Iterator[tuple[list[Peer], dict[str, str]]]:
    """Start the other systems; yield those that work, and why others do not."""
    peers: list[Peer] = []
    skipped: dict[str, str] = {}
    with ExitStack() as stack:
        for system in SYSTEMS if wanted else ():
            try:
                peer = Peer(system, folder)
            except PeerMissing as error:
                skipped[system] = str(error)
            else:
                stack.callback(peer.close)
                peers.append(peer)
        yield peers, skipped


def measure(options: argparse.Namespace, console: Console) -> dict[str, Any]:
    size = QUICK if options.quick else FULL
    parts = options.only or list(plan.PARTS)
    before = machine.load()
    with (
        tempfile.TemporaryDirectory(prefix="bench-", dir=options.folder) as name,
        started_peers(Path(name), wanted=options.peers) as (peers, skipped),
    ):
        rounds = Rounds(Path(name), size, parts=parts, peers=peers)
        for system, why in skipped.items():
            console.print(f"[bold red]SKIPPED: {system}: {why}")

        def told(number: int, of: int) -> None:
            console.print(f"round {number} of {of}" if number else "warming up")

        asyncio.run(rounds.run(told))
        return {
            "format": report.FORMAT,
            "machine": machine.describe(Path(name)),
            "load": {"before": before, "after": machine.load()},
            "quick": options.quick,
            "rounds": size.rounds,
            "parts": parts,
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
