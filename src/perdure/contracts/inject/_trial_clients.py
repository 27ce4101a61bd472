"""Trials of what clients and the outside see: R5, C1, C2. Events: update, SIGKILL, replacement."""

import asyncio
from dataclasses import dataclass, field

from perdure.contracts.inject import limits
from perdure.contracts.inject._outcome import Outcome
from perdure.contracts.inject._stage import App, Stage, TrialInvalid
from perdure.contracts.inject._trial_state import AT_REST, until_at_rest, work
from perdure.contracts.inject.probes import Ability, ProbeFailed, Run, Stream


@dataclass(slots=True)
class _Load:
    """Requests at a constant rate to whatever the platform holds for ready now."""

    stage: Stage
    endpoints: list[App] = field(default_factory=list)
    sent: int = 0
    failures: list[str] = field(default_factory=list)
    _under_way: "dict[asyncio.Task[None], App | None]" = field(default_factory=dict)

    async def run(self) -> None:
        """Send until cancelled; a slow answer delays no other request."""
        pause_s = 1.0 / max(self.stage.plan.settings.trial.rate, limits.RATE_MIN)
        while self.sent < limits.REQUESTS_MAX:
            self.sent += 1
            app = self.endpoints[self.sent % len(self.endpoints)] if self.endpoints else None
            task = asyncio.create_task(self._request(app))
            self._under_way[task] = app
            task.add_done_callback(self._under_way.pop)
            await self.stage.clock.sleep(pause_s)

    async def _request(self, app: App | None) -> None:
        if app is None:
            self.failures.append("nobody listened")
            return
        try:
            if not await self.stage.probe.ready(await self.stage.target(app)):
                self.failures.append(f"{self.stage.called(app)} was not ready")
        except ProbeFailed as error:
            self.failures.append(f"{self.stage.called(app)}: {error}")

    async def finish(self, app: App | None = None) -> None:
        """Wait for the answers that are still to come, of one instance or of all."""
        waited = [task for task, of in self._under_way.items() if app is None or of is app]
        await asyncio.gather(*waited, return_exceptions=True)


async def update_keeps_listening(stage: Stage) -> Outcome:
    """R5: update all instances as the platform does, under a constant rate of requests."""
    first = await stage.up()
    old = [first]
    for _ in range(min(stage.plan.service.replicas.value or 1, limits.REPLICAS_MAX) - 1):
        old.append(await stage.make_app())
        await stage.start(old[-1])
        await stage.until_ready(old[-1])
    run = await _accepted(stage, first)
    load = _Load(stage=stage, endpoints=list(old))
    sending = asyncio.create_task(load.run())
    try:
        await stage.until(lambda: _sent(load, limits.REQUESTS_BEFORE), limits.COMMAND_S, "requests")
        await _update(stage, load, old)
        seen = load.sent
        await stage.until(
            lambda: _sent(load, seen + limits.REQUESTS_BEFORE), limits.COMMAND_S, "requests"
        )
    finally:
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
        await load.finish()
    stage.transcript.saw(
        f"{load.sent} requests, {len(load.failures)} failed", failures=load.failures[:20]
    )
    if load.failures:
        return Outcome(
            holds=False,
            text=f"{len(load.failures)} of {load.sent} requests failed during the update: "
            f"{load.failures[0]}",
        )
    if run is not None:
        found = await _after_update(stage, load.endpoints[0], run)
        if found is not None:
            return found
    return Outcome(holds=True, text=f"none of {load.sent} requests failed during the update")


async def _sent(load: _Load, count: int) -> bool:
    return load.sent >= count


async def _accepted(stage: Stage, app: App) -> tuple[Run, str] | None:
    """Start a run that is under way during the update, if the probe can."""
    if Ability.RUN not in stage.probe.abilities:
        return None
    wanted = work(stage)
    return await stage.probe.start(await stage.target(app), wanted), wanted.thread


async def _after_update(stage: Stage, app: App, run: tuple[Run, str]) -> Outcome | None:
    try:
        found = await until_at_rest(stage, app, run[0], run[1], AT_REST)
    except (TrialInvalid, ProbeFailed) as never:
        return Outcome(
            holds=False, text=f"a run accepted before the update is not finished: {never}"
        )
    stage.transcript.saw(f"the run accepted before the update {found.state}")
    return None


async def _update(stage: Stage, load: _Load, old: list[App]) -> None:
    """Replace instances one by one or all at once, in the order that the deployment says."""
    update = stage.plan.service.update
    mechanism = update.mechanism if update else "compose"
    surge = bool(update and update.max_surge and (update.max_surge.value or 0) > 0)
    starts_first = update is not None and (update.order == "start-first" or surge)
    stage.transcript.did(
        f"began an update ({mechanism}, {'start' if starts_first else 'stop'} first)"
    )
    if mechanism == "kubernetes_recreate":
        await asyncio.gather(*(_retire(stage, load, app) for app in old))
        for _ in old:
            await _introduce(stage, load)
        return
    for app in old:
        if starts_first:
            await _introduce(stage, load)
            await _retire(stage, load, app)
        else:
            await _retire(stage, load, app)
            await _introduce(stage, load)


async def _retire(stage: Stage, load: _Load, app: App) -> None:
    load.endpoints.remove(app)
    await load.finish(app)  # what was sent before the platform took it out is not the update's
    await stage.stop(app)


async def _introduce(stage: Stage, load: _Load) -> None:
    """Start a new instance, and send it requests as soon as the platform holds it for ready."""
    app = await stage.make_app()
    await stage.start(app)
    service = stage.plan.service
    if service.has_readiness and service.health_test:
        await stage.until(
            lambda: stage.is_healthy(service, app.container),
            stage.plan.settings.trial.ready_s, f"{stage.called(app)} to pass its readiness probe",
        )  # fmt: skip
    elif service.has_readiness or service.health:
        await stage.until_ready(app)
    load.endpoints.append(app)
    stage.transcript.saw(f"the platform sends requests to {stage.called(app)}")


async def resources_come_free(stage: Stage) -> Outcome:
    """C1: kill it while it holds something; a second start must get it within the lease's time."""
    app = await stage.up()
    trial = stage.plan.settings.trial
    if not await stage.probe.acquire(await stage.target(app), trial.resource):
        msg = f"it does not get {trial.resource!r} at first"
        raise TrialInvalid(msg)
    stage.transcript.did(f"let it acquire {trial.resource!r}")
    killed = await stage.processes(app)
    await stage.plan.engine.kill(app.container, killed)
    stage.transcript.did("sent SIGKILL to all of it")
    await stage.until_gone(app, killed)
    await stage.come_back(app)

    async def gets_it() -> bool:
        """Try once."""
        return await stage.probe.acquire(await stage.target(app), trial.resource)

    try:
        await stage.until(gets_it, trial.lease_s + limits.LEASE_MARGIN_S, "the resource to be free")
    except TrialInvalid:
        return Outcome(
            holds=False,
            text=f"{trial.resource!r} is still held {trial.lease_s:g} s after its holder",
        )
    return Outcome(
        holds=True, text=f"{trial.resource!r} was free again after its holder was killed"
    )


async def streams_resume(stage: Stage) -> Outcome:
    """C2: replace it in the middle of a stream; the client goes on after the last id that it has.

    What it saw over both connections must be what a client sees that reads all of it from the
    start.
    """
    app = await stage.up()
    wanted = work(stage)
    run = await stage.probe.start(await stage.target(app), wanted)
    first = await stage.probe.stream(
        await stage.target(app), run.id, wanted.thread, after=None, count=limits.EVENTS_BEFORE
    )
    _show(stage, "before", first)
    if any(event.is_last for event in first.events) or not first.events:
        msg = (
            "the stream ended before it could be cut; give the run more steps, or more time: step_s"
        )
        raise TrialInvalid(msg)
    last = first.events[-1].id
    if last is None:
        return Outcome(holds=False, text="its events have no ids, so that no client can go on")
    await stage.replace(app)
    try:
        second = await _rest(stage, app, run, wanted.thread, last)
        whole = await _rest(stage, app, run, wanted.thread, None)
    except (ProbeFailed, TrialInvalid) as lost:
        return Outcome(
            holds=False, text=f"the stream can't be taken up after the replacement: {lost}"
        )
    _show(stage, "after", second)
    seen = [event.id for event in (*first.events, *second.events)]
    if seen != [event.id for event in whole.events]:
        text = "the client missed events or got some twice"
        return Outcome(holds=False, text=f"{text}: {_shown(seen)} of {_shown(whole.events)}")
    return Outcome(holds=True, text=f"all {len(seen)} events came once, over two connections")


async def _rest(stage: Stage, app: App, run: Run, thread: str, after: str | None) -> Stream:
    stream = await stage.probe.stream(
        await stage.target(app), run.id, thread, after=after, count=limits.EVENTS_MAX
    )
    if stream.is_cut:
        msg = f"the connection ended after {len(stream.events)} events, without the last one"
        raise ProbeFailed(msg)
    return stream


def _show(stage: Stage, when: str, stream: Stream) -> None:
    ids = [event.id for event in stream.events]
    stage.transcript.saw(f"{len(ids)} events {when} the replacement", ids=ids[:50])


def _shown(events: object) -> str:
    ids = [str(getattr(each, "id", each)) for each in list(events)[:12]]  # type: ignore[call-overload]
    return ", ".join(ids)
