"""The stage of one trial: a deployment that runs, and what can be done to it.

Everything that a trial does goes through here and into its transcript. The stage polls, waits and
orders by itself; the engine only does what it is told. What it made is gone when it is closed.
"""

import asyncio
import contextlib
import re
import shutil
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import NoReturn, Self, TypeVar

from perdure.clock import Clock
from perdure.contracts.deployment.facts import Service
from perdure.contracts.inject import _http, _owner, limits
from perdure.contracts.inject._making import copies_folder, finished
from perdure.contracts.inject._plan import OUTSIDE, Names, Plan, outside_spec, service_spec
from perdure.contracts.inject._transcript import Transcript
from perdure.contracts.inject.engines import (
    ContainerSpec,
    ContainerState,
    HostProcess,
    MountKind,
)
from perdure.contracts.inject.probes import Probe, ProbeFailed, Said, Target
from perdure.errors import EngineFailed

TAKEN = re.compile(r"overlap|already used", re.IGNORECASE)
"""What Docker and Podman say of addresses that another network has."""

Value = TypeVar("Value")


class TrialInvalid(Exception):
    """The trial could not get to the point where it breaks something, so it says nothing."""


@dataclass(slots=True)
class App:
    """One instance of the service that is broken."""

    number: int
    spec: ContainerSpec
    container: str
    earlier_log: str = ""
    """What containers that were replaced by this one wrote."""


@dataclass(slots=True)
class Stage:
    """A trial's deployment; use it as an asynchronous context."""

    plan: Plan
    probe: Probe
    transcript: Transcript
    clock: Clock
    trial: str
    owner: str
    apps: list[App] = field(default_factory=list)
    _names: Names | None = None
    _made: list[str] = field(default_factory=list)
    _volumes: set[str] = field(default_factory=set)
    _dependencies: dict[str, str] = field(default_factory=dict)
    _outside: str | None = None
    _outside_url: str | None = None

    async def __aenter__(self) -> Self:
        labels = {_owner.LABEL: self.owner, _owner.TRIAL: self.trial}
        for attempt in range(limits.SUBNETS_MAX):
            number = (int(self.trial[-6:], 16) + attempt * 7919) % (200 * 250)
            names = Names(
                trial=self.trial,
                owner=labels,
                subnet=f"10.{20 + number // 250}.{number % 250}.0/24",
                folder=copies_folder(self.owner),
            )
            try:
                await finished(
                    self.plan.engine.make_network(names.network, names.subnet, labels),
                )
            except asyncio.CancelledError:
                await self.plan.engine.discard(f"network:{names.network}")
                shutil.rmtree(names.folder, ignore_errors=True)
                raise
            except EngineFailed as error:
                shutil.rmtree(names.folder, ignore_errors=True)
                if not TAKEN.search(str(error)) or attempt + 1 == limits.SUBNETS_MAX:
                    raise
                continue
            self._names = names
            break
        return self

    async def __aexit__(self, *_: object) -> None:
        """Keep the logs, and remove everything; goes on to its end when it is cancelled."""
        closing = asyncio.ensure_future(self._close())
        try:
            await asyncio.shield(closing)
        except asyncio.CancelledError:
            await closing
            raise

    async def _close(self) -> None:
        engine = self.plan.engine
        for app in self.apps:
            with contextlib.suppress(EngineFailed):
                log = app.earlier_log + await engine.log(app.container)
                self.transcript.keep(f"instance-{app.number}.log", log)
        failed: list[str] = []
        for container in reversed(self._made):
            failed += await self._removed(engine.remove(container))
        for handle in (
            f"network:{self.names.network}",
            *(f"volume:{each}" for each in sorted(self._volumes)),
        ):
            failed += await self._removed(engine.discard(handle))
        shutil.rmtree(self.names.folder, ignore_errors=True)
        if failed:
            self.transcript.saw("something is left, and is removed by the next start", left=failed)

    @staticmethod
    async def _removed(removal: Awaitable[None]) -> list[str]:
        try:
            await removal
        except EngineFailed as error:
            return [str(error)]
        return []

    @property
    def names(self) -> Names:
        """The trial's names."""
        if self._names is None:
            msg = "the stage is not open"
            raise TrialInvalid(msg)
        return self._names

    async def start_outside(self) -> None:
        """Start the scripted outside if the service is told of it, and wait until it answers."""
        if not self.plan.needs_outside:
            return
        self._outside = await self._make(outside_spec(self.plan, self.names))
        await self.plan.engine.start(self._outside)
        port = (await self.plan.engine.state(self._outside)).port
        self._outside_url = f"http://127.0.0.1:{port}"

        async def answers() -> bool:
            """Ask it once; where it has ended, say what it said."""
            state = await self.plan.engine.state(self._outside or "")
            if not state.is_running:
                log = (await self.plan.engine.log(self._outside or ""))[-400:]
                msg = f"the scripted outside does not start in the service's image: {log!r}"
                raise TrialInvalid(msg)
            status, _ = await _http.ask(f"{self._outside_url}/control/ready")
            return status == _http.OK

        await self.until(answers, limits.OUTSIDE_S, "the scripted outside to answer")

    @property
    def outside_url(self) -> str:
        """Where the trial reaches the scripted outside."""
        if self._outside_url is None:
            msg = "perdure.inject.toml names no stubs"
            raise TrialInvalid(msg)
        return self._outside_url

    async def start_dependencies(self, *, without: frozenset[str] = frozenset()) -> None:
        """Start what the service needs, each as its conditions say."""
        for service in self.plan.dependencies:
            if service.name not in without:
                await self.start_dependency(service)

    async def start_dependency(self, service: Service) -> None:
        """Make and start one, or start it again."""
        container = self._dependencies.get(service.name)
        if container is None:
            spec = service_spec(self.plan, self.names, service, outside=None)
            container = self._dependencies[service.name] = await self._make(spec)
        await self.plan.engine.start(container)
        self.transcript.did(f"started {service.name}")

    async def stop_dependency(self, service: Service) -> None:
        """Stop one; its container and what it keeps stay."""
        await self.plan.engine.stop(self._dependencies[service.name], limits.DEPENDENCY_GRACE_S)
        self.transcript.did(f"stopped {service.name}")

    async def await_conditions(self, service: Service) -> None:
        """Wait for what `service` says of its dependencies, as its platform would."""
        by_name = {each.name: each for each in self.plan.dependencies}
        for wanted in service.depends_on:
            needed, container = by_name.get(wanted.service), self._dependencies.get(wanted.service)
            if needed is None or container is None:
                continue
            if wanted.condition == "service_healthy":
                await self._until_healthy(needed, container)
            elif wanted.condition in ("service_completed_successfully", "init_container"):
                await self._completed(needed, container)

    async def _completed(self, needed: Service, container: str) -> None:
        async def ended() -> bool:
            return (await self.plan.engine.state(container)).exit_code is not None

        await self.until(ended, self.plan.settings.trial.ready_s, f"{needed.name} to end")
        code = (await self.plan.engine.state(container)).exit_code
        if code != 0:
            msg = f"{needed.name} ended with exit code {code}"
            raise TrialInvalid(msg)

    async def await_health(self, service: Service) -> None:
        """Wait until a dependency passes its health test, if it has one."""
        if service.health_test:
            await self._until_healthy(service, self._dependencies[service.name])

    async def _until_healthy(self, service: Service, container: str) -> None:
        async def is_healthy() -> bool:
            return await self.is_healthy(service, container)

        await self.until(
            is_healthy, self.plan.settings.trial.ready_s, f"{service.name} to be healthy"
        )

    async def renew_dependencies(self) -> None:
        """Remove the containers of all dependencies and start new ones, as `down` and `up` do."""
        for container in self._dependencies.values():
            await self.plan.engine.stop(container, limits.DEPENDENCY_GRACE_S)
            await self.plan.engine.remove(container)
            self._made.remove(container)
        self._dependencies.clear()
        await self.start_dependencies()

    async def is_healthy(self, service: Service, container: str) -> bool:
        """Ask a health test of the deployment; without one nothing ever becomes healthy."""
        kind, *words = service.health_test or ("NONE",)
        if kind == "CMD":
            argv = tuple(words)
        elif kind == "CMD-SHELL":
            argv = ("sh", "-c", words[0])
        else:
            return kind in ("HTTP", "TCP") and await self._answers(container, kind, words)
        return (await self.plan.engine.execute(container, argv)).exit_code == 0

    async def _answers(self, container: str, kind: str, words: list[str]) -> bool:
        port = (await self.plan.engine.state(container)).port
        path = "/" + (words[1] if len(words) > 1 else "").lstrip("/")  # never a part of the host
        try:
            status, _ = await _http.ask(f"http://127.0.0.1:{port}{path}", timeout_s=1.0)
        except ProbeFailed as error:
            return kind == "TCP" and "RemoteDisconnected" not in str(error) and port is not None
        return kind == "TCP" or 200 <= status < 400  # noqa: PLR2004  # as a kubelet counts

    async def make_app(self, restart: str | None = None) -> App:
        """Make one more instance, stopped; `restart`: another policy than the deployment's."""
        number = len(self.apps) + 1
        outside = None
        if self._outside_url is not None:
            outside = f"http://{OUTSIDE}:8099" if self.plan.has_images else self._outside_url
        spec = service_spec(
            self.plan, self.names, self.plan.service, outside=outside, number=number
        )
        if restart is not None:
            spec = replace(spec, restart=restart)
        app = App(number=number, spec=spec, container=await self._make(spec))
        self.apps.append(app)
        return app

    async def up(self, restart: str | None = None) -> App:
        """Start the outside, the dependencies and one instance, and wait until it is ready."""
        await self.start_outside()
        await self.start_dependencies()
        await self.await_conditions(self.plan.service)
        app = await self.make_app(restart=restart)
        await self.start(app)
        await self.until_ready(app)
        return app

    async def _make(self, spec: ContainerSpec) -> str:
        for mount in spec.mounts:
            if mount.kind is MountKind.VOLUME and mount.source not in self._volumes:
                self._volumes.add(mount.source)
                await finished(self.plan.engine.make_volume(mount.source, spec.labels))
        await finished(self.plan.engine.make(spec), self._made.append)
        return self._made[-1]

    async def start(self, app: App) -> None:
        """Start an instance; no wait."""
        await self.plan.engine.start(app.container)
        self.transcript.did(f"started {self.called(app)}", container=app.container)

    async def stop(self, app: App) -> ContainerState:
        """Stop an instance as its platform does, and return what became of it."""
        grace_s = await self._before_stop(app, self.plan.grace_s)
        began_s = self.clock.monotonic_s()
        self.transcript.did(f"sent the stop signal to {self.called(app)}, {grace_s:g} s of grace")
        await self.plan.engine.stop(app.container, grace_s)
        took_s = self.clock.monotonic_s() - began_s
        state = await self.plan.engine.state(app.container)
        self.transcript.saw(
            f"{self.called(app)} ended after {took_s:.1f} s with exit code {state.exit_code}",
            exit_code=state.exit_code, took_s=round(took_s, 3),
        )  # fmt: skip
        return state

    async def _before_stop(self, app: App, grace_s: float) -> float:
        """Do what its platform does before the signal; return the seconds of grace that are left.

        As a kubelet counts: the hook's time is of the grace, 2 s are left in any case, and a hook
        that fails changes nothing.
        """
        service, engine = self.plan.service, self.plan.engine
        kind, *words = service.pre_stop or ("SLEEP",)
        sleeps_s = service.pre_stop_s.value or 0.0
        if self.plan.lacks_hook:
            self.transcript.saw(self.plan.lacks_hook)
        if self.plan.lacks_hook or (kind == "SLEEP" and not sleeps_s):
            return grace_s
        began_s = self.clock.monotonic_s()
        if kind == "SLEEP":
            await self.clock.sleep(min(sleeps_s, grace_s))
            what = f"slept {sleeps_s:g} s"
        elif kind == "CMD":
            done = await engine.execute(app.container, self.plan.hook, timeout_s=grace_s)
            what = f"{' '.join(self.plan.hook)[:200]}: exit code {done.exit_code}"
        else:
            is_taken = await self._answers(app.container, kind, words)
            what = f"asked {':'.join(words)}: {'answered' if is_taken else 'no good answer'}"
        took_s = self.clock.monotonic_s() - began_s
        self.transcript.did(
            f"ran the preStop hook of {self.called(app)} for {took_s:.1f} s: {what}",
            took_s=round(took_s, 3),
        )
        return max(limits.AFTER_HOOK_S, grace_s - took_s)

    async def restart(self, app: App) -> None:
        """Stop the instance and start the same container (event E1); wait until it is ready."""
        await self.stop(app)
        await self.start(app)
        await self.until_ready(app)

    async def replace(self, app: App) -> None:
        """Stop it, remove its container and start a new one (event E2); wait until it is ready."""
        await self.stop(app)
        await self.renew(app)
        await self.until_ready(app)

    async def renew(self, app: App) -> None:
        """Remove an instance's container, and start a new one in its place."""
        app.earlier_log += await self.plan.engine.log(app.container) + "\n"
        await self.plan.engine.remove(app.container)
        self._made.remove(app.container)
        self.transcript.did(f"removed the container of {self.called(app)}; made a new one")
        app.container = await self._make(app.spec)
        await self.start(app)

    async def kill(self, app: App) -> tuple[HostProcess, ...]:
        """Send SIGKILL to the server from outside (event E4): to all that listen on its port.

        Where nothing listens, to all processes of the container. Not by the engine: what an engine
        kills it counts as stopped by a person, and starts no more.
        """
        processes = await self.processes(app)
        chosen = tuple(each for each in processes if each.listens) or processes
        if not chosen:
            msg = f"{self.called(app)} has no process to kill"
            raise TrialInvalid(msg)
        await self.plan.engine.kill(app.container, chosen)
        self.transcript.did(
            f"sent SIGKILL to {', '.join(_named(each) for each in chosen)}",
            pids=[each.pid for each in chosen],
        )
        return chosen

    async def processes(self, app: App) -> tuple[HostProcess, ...]:
        """Return the processes of an instance, and put their tree into the transcript."""
        found = await self.plan.engine.processes(app.container)
        for each in found:
            mark = " (listens)" if each.listens else ""
            self.transcript.saw(f"{'  ' * each.depth}{_named(each)}{mark}", pid=each.pid)
        return found

    async def come_back(self, app: App) -> bool:
        """Wait after a kill until the policy has started it again, else start it by hand.

        Return whether the policy did. Either way it is ready afterwards.
        """
        policy = app.spec.restart
        if policy != "no":
            with contextlib.suppress(TrialInvalid):
                await self.until_ready(app)
                return True
        await self.until_ended(app)
        await self.start(app)
        await self.until_ready(app)
        return False

    def called(self, app: App) -> str:
        """Name an instance for people."""
        return f"{self.plan.service.name}-{app.number}"

    async def target(self, app: App) -> Target:
        """Return where an instance is now; a start may have moved its port."""
        state = await self.plan.engine.state(app.container)
        return Target(
            name=self.called(app),
            url=f"http://127.0.0.1:{state.port}" if state.port else None,
            enter=self.plan.engine.enter(app.container),
        )

    async def is_ready(self, app: App) -> bool:
        """Ask the application; no answer is a no."""
        try:
            return await self.probe.ready(await self.target(app))
        except ProbeFailed:
            return False

    async def until_ready(self, app: App) -> None:
        """Wait until an instance says that it is ready.

        Raises:
            TrialInvalid: it did not within the time of the settings, or it has ended for good.
        """
        known = (await self.plan.engine.state(app.container)).restarts

        async def is_ready() -> bool:
            """Ask it once; where it has ended for good, give up."""
            if await self.is_ready(app):
                return True
            state = await self.plan.engine.state(app.container)
            code = state.exit_code
            if not state.is_running and app.spec.restart == "no" and code is not None:
                await self._gave_up(app, f"ended with exit code {code}")
            if state.restarts - known > limits.CRASHES_MAX:
                await self._gave_up(app, f"was started {state.restarts - known} times and crashed")
            return False

        wait_s = self.plan.settings.trial.ready_s
        await self.until(is_ready, wait_s, f"{self.called(app)} to be ready")
        self.transcript.saw(f"{self.called(app)} is ready")

    async def _gave_up(self, app: App, what: str) -> NoReturn:
        msg = f"{self.called(app)} {what}: {await self._tail(app)}"
        raise TrialInvalid(msg)

    async def _tail(self, app: App) -> str:
        lines = (await self.plan.engine.log(app.container)).strip().splitlines()
        return " / ".join(lines[-3:])[-400:] or "it logged nothing"

    async def until_gone(self, app: App, processes: tuple[HostProcess, ...] = ()) -> None:
        """Wait until processes that were killed are gone, so that what is seen next is new."""

        async def is_gone() -> bool:
            """Whether none of them is there any more."""
            now = {
                (each.pid, each.started) for each in await self.plan.engine.processes(app.container)
            }
            return not now & {(each.pid, each.started) for each in processes}

        await self.until(is_gone, limits.COMMAND_S, f"processes of {self.called(app)} to be gone")

    async def until_ended(self, app: App) -> ContainerState:
        """Wait until an instance's container has ended."""

        async def has_ended() -> bool:
            """Whether process 1 is gone."""
            return not (await self.plan.engine.state(app.container)).is_running

        await self.until(has_ended, limits.COMMAND_S, f"{self.called(app)} to end")
        return await self.plan.engine.state(app.container)

    async def said(self, app: App) -> Said:
        """Return what an instance said of itself over all its containers."""
        said = self.probe.said(app.earlier_log + await self.plan.engine.log(app.container))
        for line in said.lines[-limits.SAID_LINES_MAX :]:
            self.transcript.said(line)
        return said

    async def until(
        self, condition: Callable[[], Awaitable[Value]], timeout_s: float, what: str
    ) -> Value:
        """Ask until the answer is true, and return it; a failed probe is a no.

        Raises:
            TrialInvalid: it was not within `timeout_s`.
        """
        deadline_s = self.clock.monotonic_s() + timeout_s
        last = ""
        while True:
            try:
                if answer := await condition():
                    return answer
            except ProbeFailed as error:
                last = f" (last: {error})"
            if self.clock.monotonic_s() >= deadline_s:
                msg = f"waited {timeout_s:g} s for {what}{last}"
                raise TrialInvalid(msg)
            await self.clock.sleep(limits.POLL_S)


def _named(process: HostProcess) -> str:
    return f"{process.pid} {' '.join(process.argv)[:200]}"
