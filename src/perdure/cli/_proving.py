"""Breaks a service for a command: progress, stopping, and what is told in the end."""

import asyncio
import contextlib
import datetime as dt
import re
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from perdure.cli._output import note
from perdure.clock import system_services
from perdure.contracts.findings import Contract
from perdure.contracts.inject import Proof, Proven, Wanted, engine_named, prove_folder

EXIT = {Proven.HELD: 0, Proven.VIOLATED: 1, Proven.INCONCLUSIVE: 2}
"""Exit codes by verdict."""


def trials_folder(contract: str) -> Path:
    """Return a new folder for transcripts, below the working folder."""
    now = dt.datetime.fromtimestamp(system_services().clock.now_us() / 1e6, tz=dt.UTC)
    return Path(".perdure-trials") / f"{now:%Y%m%dT%H%M%S}-{contract.upper()}"


def proved(wanted: Wanted, engine: str) -> Proof:
    """Prove it, with progress on stderr; Ctrl-C and SIGTERM remove what was started first.

    Raises:
        KeyboardInterrupt: Ctrl-C stopped it; transcripts so far are kept.
        SystemExit: SIGTERM did, with the exit code that shells have for it.
    """
    stopped: list[int] = []

    async def play() -> Proof:
        """Prove it in one event loop, and let SIGTERM cancel it."""
        services = system_services()
        task = asyncio.ensure_future(
            prove_folder(wanted, engine_named(engine, services), services, _shown())
        )

        def stop() -> None:
            """End it, and remember by what."""
            stopped.append(128 + signal.SIGTERM)
            task.cancel()

        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop)
        return await task

    try:
        return asyncio.run(play())
    except (asyncio.CancelledError, KeyboardInterrupt):
        with contextlib.suppress(OSError):
            if wanted.output.is_dir():
                note(f"stopped; what was started is removed, transcripts are in {wanted.output}")
        if stopped:
            raise SystemExit(stopped[0]) from None
        raise KeyboardInterrupt from None


def _shown() -> Callable[[str], None]:
    """Return what shows progress: all of the story to people, a line a repetition to logs."""
    if sys.stderr.isatty():
        return note

    def brief(story: str) -> None:
        """Show where a repetition begins, and how it ended."""
        if _BRIEF.match(story):
            note(story)

    return brief


_BRIEF = re.compile(r"\s*[\d.]+ s  (concluded  |\w+\s+began repetition )")


def told(proof: Proof) -> str:
    """Return a proof for people: the verdict, what was done, each repetition, where to read on."""
    lines = [
        f"{proof.contract} {proof.service}: {proof.verdict}",
        f"  {proof.text}",
        f"  done: {proof.event}; engine: {proof.engine}",
    ]
    lines += [f"  {each.number:>3}. {each.ending}: {each.text}" for each in proof.repetitions]
    return "\n".join([*lines, f"  transcripts: {proof.folder}"])


def proof_of(folder: Path, contract: Contract, *, assume: dict[str, str], engine: str) -> Proof:
    """Break the service for `check --prove`, and return what that shows."""
    output = trials_folder(contract)
    return proved(Wanted(folder=folder, contract=contract, output=output, assume=assume), engine)
