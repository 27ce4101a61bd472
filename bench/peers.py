"""Other systems at the same work, each in a process and an environment of its own."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PYTHON = ROOT / ".venv-peers" / "bin" / "python"
WORK = Path(__file__).resolve().with_name("peer_work.py")

SYSTEMS = {
    "langgraph": "LangGraph, nothing kept",
    "langgraph-sqlite": "LangGraph, SqliteSaver, sync",
    "dbos-sqlite": "DBOS on SQLite",
    "dbos-postgres": "DBOS on PostgreSQL",
    "absurd": "absurd on PostgreSQL",
}

ON_POSTGRES = {"dbos-postgres", "absurd"}
"""Those that work on the server that Perdure is measured on."""


class PeerMissing(Exception):
    """The other system can't be measured; the text says why."""


class Peer:
    """A process that does the work on request."""

    def __init__(self, system: str, folder: Path, dsn: str = "") -> None:
        """Start it; `dsn` names a database on the server, for those that work on one.

        Raises:
            PeerMissing: there is no environment, or the system is not installed in it.
        """
        if not PYTHON.exists():
            msg = f"there is no {PYTHON.relative_to(ROOT)}; make it with: make bench-peers"
            raise PeerMissing(msg)
        self.system = system
        self._errors = (folder / f"{system}.txt").open("w+", encoding="utf-8")
        self._process = subprocess.Popen(
            [str(PYTHON), str(WORK), system, str(folder), dsn],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env={key: value for key, value in os.environ.items() if key != "PYTHONPATH"},
        )
        self.versions = self._answer()["versions"]

    def work(self, kind: str, size: int) -> dict[str, float]:
        """Have the work done once; return seconds per step (`wall_s`, `cpu_s`)."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{kind} {size}\n")
        self._process.stdin.flush()
        answer: dict[str, float] = self._answer()
        return answer

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._process.wait()
            self._errors.seek(0)
            raise PeerMissing(self._errors.read().strip().rpartition("\n")[2])
        return json.loads(line)

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()
        self._errors.close()
