"""A service, a store, and the processes of one scene, as its program holds them."""

import asyncio
import json
import random
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from perdure import Runtime, WorkerSettings
from perdure.errors import StoreUnavailable
from tests.fault import actors, service
from tests.fault.actors import Scene
from tests.fault.injector import Injector
from tests.fault.outside import OUTSIDE
from tests.fault.processes import Child, Family
from tests.fault.stores import SQLITE


class Stage:
    """A service, a store, and the processes of one scene."""

    def __init__(
        self,
        place: Path,
        play: str,
        *,
        deadline_s: float,
        settings: WorkerSettings,
        url: str = SQLITE,
    ) -> None:
        place.mkdir(parents=True, exist_ok=True)
        self.family = Family(place, deadline_s)
        listening = service.listen()
        self.scene = Scene(place, url, play, listening.getsockname()[1], settings)
        self.scene.door.prepare()
        self.family.fork("service", lambda: service.serve(listening, place / "service.db"))
        listening.close()

    def worker(
        self, name: str, injector: Injector | None = None, scene: Scene | None = None
    ) -> Child:
        """Fork a worker."""
        return self.family.fork(name, lambda: actors.worker(scene or self.scene, injector))

    def do(self, name: str, act: Callable[[Runtime], Coroutine[Any, Any, Any]]) -> Any:
        """Run a coroutine with a runtime in a process of its own; return what it returned."""
        child, answer = self.begin(name, act)
        return self.end(child, answer)

    def begin(
        self, name: str, act: Callable[[Runtime], Coroutine[Any, Any, Any]]
    ) -> tuple[Child, Path]:
        """Start such a process."""
        answer = self.scene.place / f"{name}-{random.getrandbits(32):08x}.json"

        async def body() -> None:
            runtime = await self._opened()
            try:
                answer.write_text(json.dumps(await act(runtime), default=str), encoding="utf-8")
            finally:
                await runtime.close()

        return self.family.fork(name, body), answer

    async def _opened(self) -> Runtime:
        """Return an open runtime, as soon as the store can be reached."""
        while True:
            runtime = self.scene.runtime(worker=False)
            try:
                return await runtime.__aenter__()
            except StoreUnavailable:
                await asyncio.sleep(0.2)

    def end(self, child: Child, answer: Path) -> Any:
        """Wait for it and return what it returned."""
        status = child.wait(self.family.left_s)
        if status != 0:
            msg = f"{child.name} ended with {status}\n{self.family.logs()}"
            raise RuntimeError(msg)
        return json.loads(answer.read_text(encoding="utf-8"))

    def counts(self) -> dict[str, Any]:
        """Return what the service counted up to now."""
        OUTSIDE.port = self.scene.port
        return asyncio.run(OUTSIDE.counts())

    def times(self) -> list[tuple[int, float]]:
        """Return which process asked the service when."""
        OUTSIDE.port = self.scene.port
        return asyncio.run(OUTSIDE.times())

    def until(self, what: str, is_true: Callable[[], Any]) -> None:
        """Wait until something is true.

        Raises:
            RuntimeError: the deadline of the scene is over.
        """
        while not is_true():
            if self.family.left_s <= 0:
                msg = f"not in time: {what}\n{self.family.logs()}"
                raise RuntimeError(msg)
            time.sleep(0.01)

    def journal(self) -> list[tuple[int, int]]:
        """Return (seq, token) of every frame of the store, by the back door."""
        return self.scene.door.journal()


def started_by(
    graph: Any, given: dict[str, Any], **options: Any
) -> Callable[[Runtime], Coroutine[Any, Any, str]]:
    async def act(runtime: Runtime) -> str:
        return (await runtime.start(graph, given, **options)).id

    return act


async def finish_all(runtime: Runtime) -> None:
    """Be the person until everything has ended."""
    while not all(row.status.is_final for row in await runtime.runs(limit=1000)):
        await actors.decide(runtime)
        await asyncio.sleep(0.02)


def is_stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rsplit(")", 1)[1].split()[0] == "T"
