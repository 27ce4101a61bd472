"""What is done to workers and to the server while runs are under way: seeded, counted."""

import random
import re
import signal
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import psycopg

from perdure.testing.postgres import PostgresServer
from tests.fault.processes import Child
from tests.fault.stage import Stage

RESTART_GAP_S = (3.0, 6.0)
TERMINATE_GAP_S = (0.05, 0.4)
KILL_GAP_S = (0.1, 0.6)
STOP_GAP_S = (1.0, 3.0)
"""Shortest and longest time between two faults of a kind."""

DRAIN_S = 15.0
"""How long a worker with nothing to do may take to drain, while answers still get lost."""

KINDS = ("restart", "terminate", "kill", "stop")

_BACKENDS = """
SELECT pid FROM pg_stat_activity
WHERE backend_type = 'client backend' AND application_name LIKE 'f\\_%'
"""


class Workers:
    """Worker processes, each replaced when it has died."""

    def __init__(self, stage: Stage, count: int, port: int) -> None:
        """Fork so many; they reach the server by that port."""
        self._stage = stage
        own = f"port={port}"
        self._scene = replace(stage.scene, url=re.sub(r"port=\d+", own, stage.scene.url))
        self._number = 0
        self.late_starts = 0
        self.drain_s = 0.0
        self.children = [self._new() for _ in range(count)]
        self.stopped: dict[int, float] = {}

    def _new(self) -> Child:
        self._number += 1
        return self._stage.worker(f"worker-{self._number}", scene=self._scene)

    def kill(self, nth: int) -> None:
        """Kill one, and start another in its place."""
        self.children[nth].kill()
        self.stopped.pop(nth, None)
        self.children[nth] = self._new()

    def stop(self, nth: int, until_s: float) -> None:
        """Stop one; `go_on` lets it go on after that time."""
        self.children[nth].send(signal.SIGSTOP)
        self.stopped[nth] = until_s

    def go_on(self, *, all_of_them: bool = False) -> None:
        """Continue those whose time has come."""
        for nth, until_s in list(self.stopped.items()):
            if all_of_them or until_s <= time.monotonic():
                del self.stopped[nth]
                self.children[nth].send(signal.SIGCONT)

    def replace_failed(self) -> None:
        """Start another for one that could not open the store, as whoever supervises it would."""
        for nth, child in enumerate(self.children):
            if child.poll() is not None:
                self.late_starts += 1
                self.children[nth] = self._new()

    def end(self) -> list[int]:
        """Let all drain; return their exit statuses. One that hangs shows where, in its log."""
        self.go_on(all_of_them=True)
        begun_s = time.monotonic()
        for child in self.children:
            child.send(signal.SIGTERM)
        for child in self.children:
            if child.wait(3.0) is None:
                child.send(signal.SIGUSR1)
            if child.wait(DRAIN_S) is None:
                child.kill()
        self.drain_s = round(time.monotonic() - begun_s, 1)
        return [child.status or 0 for child in self.children]


class Storm:
    """Faults of the given kinds, each kind at moments of its own."""

    def __init__(
        self,
        server: PostgresServer,
        workers: Workers,
        *,
        kinds: tuple[str, ...],
        kills: int,
        lease_ttl_s: float,
        chance: random.Random,
    ) -> None:
        self._server = server
        self._workers = workers
        self._kills = kills
        self._ttl_s = lease_ttl_s
        self._chance = chance
        acts: dict[str, tuple[tuple[float, float], Callable[[], bool]]] = {
            "restart": (RESTART_GAP_S, self._restart),
            "terminate": (TERMINATE_GAP_S, self._terminate),
            "kill": (KILL_GAP_S, self._kill),
            "stop": (STOP_GAP_S, self._stop),
        }
        self._acts = {kind: acts[kind] for kind in kinds}
        self._next_s = {kind: time.monotonic() + chance.uniform(*acts[kind][0]) for kind in kinds}
        self.counts: Counter[str] = Counter(dict.fromkeys(kinds, 0))

    def blow(self) -> None:
        """Do what is due."""
        self._workers.go_on()
        self._workers.replace_failed()
        for kind, (gap_s, act) in self._acts.items():
            if self._next_s[kind] <= time.monotonic():
                self.counts[kind] += act()
                self._next_s[kind] = time.monotonic() + self._chance.uniform(*gap_s)

    def _restart(self) -> bool:
        self._server.restart("immediate")
        return True

    def _terminate(self) -> bool:
        try:
            pids = [pid for (pid,) in self._server.query(_BACKENDS)]
            if not pids:
                return False
            chosen = self._chance.choice(sorted(pids))
            [(was,)] = self._server.query("SELECT pg_terminate_backend(%s)", chosen)
        except psycopg.OperationalError:
            return False  # it restarts right now
        return bool(was)

    def _kill(self) -> bool:
        if self.counts["kill"] >= self._kills:
            return False
        self._workers.kill(self._chance.randrange(len(self._workers.children)))
        return True

    def _stop(self) -> bool:
        nth = self._chance.randrange(len(self._workers.children))
        others = len(self._workers.children) - len(self._workers.stopped)
        if nth in self._workers.stopped or others < 2:
            return False
        pause_s = self._chance.uniform(self._ttl_s + 0.5, self._ttl_s + 2.0)
        self._workers.stop(nth, time.monotonic() + pause_s)
        return True
