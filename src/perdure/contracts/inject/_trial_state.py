"""Trials of what is kept: S0 to S4. Events: restart, replacement, scale-out, a late database."""

from dataclasses import dataclass, replace

from perdure.contracts.deployment.facts import Service
from perdure.contracts.inject import limits
from perdure.contracts.inject._outcome import Outcome
from perdure.contracts.inject._stage import App, Stage, TrialInvalid
from perdure.contracts.inject.probes import (
    Ability,
    ProbeFailed,
    Run,
    RunState,
    Thread,
    Work,
)

ENDED = (RunState.SUCCEEDED, RunState.FAILED)
AT_REST = (*ENDED, RunState.INTERRUPTED)
MEMORY_KEY = "perdure-memory"
READS = 12
"""Reads that meet every worker of one container with good chance: the kernel chooses the worker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Before:
    """What a user had before something was done to the deployment."""

    thread: Thread
    run: Run
    memory: str | None


def work(stage: Stage, name: str = "a", **changes: object) -> Work:
    """Return a run of this trial, as the settings want it."""
    trial = stage.plan.settings.trial
    made = Work(
        thread=f"{stage.trial}-{name}",
        operation=f"{stage.trial}-{name}",
        steps=int(trial.steps),
        step_s=trial.step_s,
    )
    return replace(made, **changes)  # type: ignore[arg-type]  # names of fields, from our own code


async def until_at_rest(
    stage: Stage, app: App, run: Run, thread: str, states: tuple[RunState, ...] = AT_REST
) -> Run:
    """Wait until a run has ended or waits for a person; no client call but questions about it."""
    found = await _rest_within(stage, app, run, thread, states)
    stage.transcript.saw(f"run {run.id} is {found.state}", run=run.id, state=found.state)
    return found


async def _rest_within(
    stage: Stage,
    app: App,
    run: Run,
    thread: str,
    states: tuple[RunState, ...] = AT_REST,
    *,
    most_s: float | None = None,
) -> Run:
    async def at_rest() -> Run | None:
        """Ask once."""
        found = await stage.probe.run(await stage.target(app), run.id, thread)
        return found if found.state in states else None

    wait_s = stage.plan.settings.trial.run_s if most_s is None else most_s
    found = await stage.until(at_rest, wait_s, f"run {run.id} to come to rest")
    if found is None:
        msg = "unreachable"
        raise TrialInvalid(msg)
    return found


async def leave_something(stage: Stage, app: App) -> Before:
    """Let a user leave a thread, a paused run if the application knows such, and a memory."""
    wanted = work(stage, asks=Ability.RESUME in stage.probe.abilities)
    target = await stage.target(app)
    run = await stage.probe.start(target, wanted)
    stage.transcript.did(f"started run {run.id} on thread {wanted.thread}", run=run.id)
    run = await until_at_rest(stage, app, run, wanted.thread)
    thread = await stage.probe.thread(target, wanted.thread)
    if thread is None:
        msg = f"the application knows no thread {wanted.thread} although a run on it {run.state}"
        raise TrialInvalid(msg)
    _show(stage, thread)
    memory = None
    if Ability.MEMORY in stage.probe.abilities:
        memory = f"memory of {stage.trial}"
        await stage.probe.remember(target, MEMORY_KEY, memory)
        stage.transcript.did("let it remember something across threads")
    return Before(thread=thread, run=run, memory=memory)


def _show(stage: Stage, thread: Thread | None) -> None:
    if thread is None:
        stage.transcript.saw("the thread is not there")
        return
    stage.transcript.saw(
        f"thread {thread.id} is at checkpoint {thread.checkpoint} with {thread.steps} steps and "
        f"{len(thread.interrupts)} interrupts",
        checkpoint=thread.checkpoint, digest=thread.digest,
        interrupts=[each.id for each in thread.interrupts],
    )  # fmt: skip


async def what_is_lost(stage: Stage, app: App, before: Before) -> list[str]:
    """Compare by id and checkpoint id, then use what was kept: resume the paused run."""
    target = await stage.target(app)
    lost: list[str] = []
    after = await stage.probe.thread(target, before.thread.id)
    _show(stage, after)
    if after is None:
        lost.append("the thread")
    elif (after.checkpoint, after.digest) != (before.thread.checkpoint, before.thread.digest):
        lost.append("the thread's newest state")
    elif after.interrupts != before.thread.interrupts:
        lost.append("the paused run's question")
    if before.memory is not None and await _memory(stage, app) != before.memory:
        lost.append("what was remembered across threads")
    if before.thread.interrupts and not lost and not await _resumes(stage, app, before):
        lost.append("the paused run, which does not go on when it is answered")
    return lost


async def _memory(stage: Stage, app: App) -> str | None:
    try:
        found = await stage.probe.recall(await stage.target(app), MEMORY_KEY)
    except ProbeFailed:
        found = None
    stage.transcript.saw(f"it remembers {found!r}")
    return found


async def _resumes(stage: Stage, app: App, before: Before) -> bool:
    try:
        target = await stage.target(app)
        run = await stage.probe.resume(target, before.thread.id, before.thread.interrupts[0])
        stage.transcript.did(f"answered interrupt {before.thread.interrupts[0].id}")
        ended = await until_at_rest(stage, app, run, before.thread.id, ENDED)
    except (ProbeFailed, TrialInvalid) as failed:
        stage.transcript.saw(f"the paused run does not go on: {failed}")
        return False
    return ended.state is RunState.SUCCEEDED


def kept(lost: list[str], before: Before, event: str) -> Outcome:
    """Judge by what is lost."""
    if lost:
        return Outcome(holds=False, text=f"{event} loses {' and '.join(lost)}")
    there = ["the thread"]
    there += ["the paused run"] if before.thread.interrupts else []
    there += ["what was remembered"] if before.memory is not None else []
    same = "is the same" if len(there) == 1 else "are the same"
    return Outcome(holds=True, text=f"{' and '.join(there)} {same} after {event}")


async def restart_keeps(stage: Stage) -> Outcome:
    """S1: stop and start the same container."""
    app = await stage.up()
    before = await leave_something(stage, app)
    await stage.restart(app)
    return kept(await what_is_lost(stage, app, before), before, "a restart")


async def replacement_keeps(stage: Stage) -> Outcome:
    """S2: remove its container with layer and anonymous volumes, dependencies too; start anew.

    As `down` and `up` do it: what is in named volumes stays.
    """
    app = await stage.up()
    before = await leave_something(stage, app)
    await stage.stop(app)
    await stage.renew_dependencies()
    await stage.await_conditions(stage.plan.service)
    await stage.renew(app)
    await stage.until_ready(app)
    return kept(await what_is_lost(stage, app, before), before, "a replacement")


async def replicas_agree(stage: Stage) -> Outcome:
    """S3: write through one instance, read through the other; each is asked directly."""
    first = await stage.up()
    before = await leave_something(stage, first)
    second = await stage.make_app()
    await stage.start(second)
    await stage.until_ready(second)
    apart = [await _agrees(stage, app, before) for app in (first, second) for _ in range(READS)]
    wrong = sorted({text for text in apart if text})
    if wrong:
        return Outcome(holds=False, text=f"two replicas do not see the same: {' and '.join(wrong)}")
    return Outcome(holds=True, text="either replica, asked directly, sees the same checkpoint")


async def _agrees(stage: Stage, app: App, before: Before) -> str:
    target = await stage.target(app)
    found = await stage.probe.thread(target, before.thread.id)
    if found is None:
        return f"{stage.called(app)} does not know the thread"
    if found.checkpoint != before.thread.checkpoint:
        return f"{stage.called(app)} has another checkpoint of it"
    if before.memory is not None and await stage.probe.recall(target, MEMORY_KEY) != before.memory:
        return f"{stage.called(app)} does not remember what was told to the other"
    return ""


def _database(stage: Stage) -> Service:
    """Return the dependency that is late or lost: the one that is named, or the first database."""
    wanted = stage.plan.settings.trial.dependency
    listed = stage.plan.dependencies
    databases = [each for each in listed if each.image.catalog] or list(listed)
    found = [each for each in listed if each.name == wanted] if wanted else databases
    if not found:
        msg = "the service depends on nothing that could be late"
        raise TrialInvalid(msg)
    return found[0]


async def waits_for_its_database(stage: Stage) -> Outcome:
    """S4: the database comes late, by as much as the settings say; no restart policy helps.

    The platform's own order is kept: a service that waits for a healthy database is started only
    then.
    """
    database = _database(stage)
    trial = stage.plan.settings.trial
    await stage.start_outside()
    await stage.start_dependencies(without=frozenset({database.name}))
    condition = next(
        (each.condition for each in stage.plan.service.depends_on if each.service == database.name),
        "",
    )
    is_ordered = condition in ("service_healthy", "init_container")
    if is_ordered and not database.health_test:
        return Outcome(
            holds=False, text=f"it waits until {database.name} is healthy, which has no healthcheck"
        )
    app = await stage.make_app(restart="no")
    if not is_ordered:
        await stage.start(app)
    await stage.clock.sleep(trial.late_s)  # the fault itself: so much later it begins to start
    await stage.start_dependency(database)
    if is_ordered:
        await stage.await_conditions(stage.plan.service)
        await stage.start(app)
    try:
        await stage.until_ready(app)
    except TrialInvalid as never:
        return Outcome(
            holds=False, text=f"{database.name} came late, and the service gave up: {never}"
        )
    return Outcome(
        holds=True, text=f"it became ready by itself after {database.name} had come late"
    )


async def outlives_its_database(stage: Stage) -> Outcome:
    """S4, lost: its database is stopped while it serves, and comes back as it was.

    Connections break then. The first runs may fail; it must work again by itself, by its platform's
    restart if that is what happens, and have what it had stored.
    """
    database = _database(stage)
    app = await stage.up()
    if Ability.RUN not in stage.probe.abilities:
        await _interrupt(stage, database)
        return await _is_ready_again(stage, app, database)
    began_s = stage.clock.monotonic_s()
    before = None
    if Ability.THREAD in stage.probe.abilities:
        before = await leave_something(stage, app)
    else:
        wanted = work(stage)
        run = await stage.probe.start(await stage.target(app), wanted)
        await until_at_rest(stage, app, run, wanted.thread)
    took_s = stage.clock.monotonic_s() - began_s
    await _interrupt(stage, database)
    tries = await _tries(stage, app, max(limits.TRIED_S, limits.TRIED_TIMES * took_s))
    if tries is None:
        trial = stage.plan.settings.trial
        text = f"{database.name} came back, and no run ended well within {trial.ready_s:g} s"
        return Outcome(holds=False, text=text)
    stage.transcript.saw(f"try {tries} ended well")
    event = f"{database.name} was lost and came back"
    if before is None:
        return Outcome(holds=True, text=f"it worked again by itself after {event}")
    try:
        found = await stage.until(
            lambda: _thread(stage, app, before.thread.id), limits.TRIED_S, "the thread"
        )
    except TrialInvalid:
        found = None
    _show(stage, found)
    if found is None or found.checkpoint != before.thread.checkpoint:
        return Outcome(holds=False, text=f"{event}, and what a thread had stored is gone")
    return Outcome(holds=True, text=f"it worked again by itself after {event}, and lost nothing")


async def _thread(stage: Stage, app: App, thread: str) -> Thread | None:
    return await stage.probe.thread(await stage.target(app), thread)


async def _interrupt(stage: Stage, database: Service) -> None:
    """Stop a database, and start the same one again."""
    await stage.stop_dependency(database)
    await stage.clock.sleep(
        stage.plan.settings.trial.late_s
    )  # the fault itself: so long it is gone
    await stage.start_dependency(database)
    await stage.await_health(database)


async def _is_ready_again(stage: Stage, app: App, database: Service) -> Outcome:
    try:
        await stage.until_ready(app)
    except TrialInvalid as never:
        return Outcome(holds=False, text=f"{database.name} came back, and it did not: {never}")
    return Outcome(
        holds=True, text=f"it said that it was ready after {database.name} had come back"
    )


async def _tries(stage: Stage, app: App, each_s: float) -> int | None:
    """Start runs until one ends well; return which, `None` if none did in time."""
    trial = stage.plan.settings.trial
    deadline_s = stage.clock.monotonic_s() + trial.ready_s
    number = 0
    while stage.clock.monotonic_s() < deadline_s:
        number += 1
        wanted = work(stage, f"after{number}")
        try:
            run = await stage.probe.start(await stage.target(app), wanted)
            most_s = min(each_s, trial.run_s)
            found = await _rest_within(stage, app, run, wanted.thread, most_s=most_s)
        except (ProbeFailed, TrialInvalid) as failed:
            stage.transcript.saw(f"try {number} failed: {failed}")
            await stage.clock.sleep(limits.POLL_S)
            continue
        stage.transcript.saw(f"try {number} {found.state}")
        if found.state is not RunState.FAILED:
            return number
    return None


async def is_not_ready_without(stage: Stage) -> Outcome:
    """S0: the database is never there; a green readiness is taken at its word."""
    database = _database(stage)
    await stage.start_outside()
    await stage.start_dependencies(without=frozenset({database.name}))
    app = await stage.make_app()
    await stage.start(app)
    if not await _turns_green(stage, app):
        return Outcome(holds=True, text=f"without {database.name} it never says that it is ready")
    stage.transcript.saw(f"it says that it is ready without {database.name}")
    wanted = work(stage)
    try:
        run = await stage.probe.start(await stage.target(app), wanted)
        await until_at_rest(stage, app, run, wanted.thread, ENDED)
    except (ProbeFailed, TrialInvalid) as refused:
        return Outcome(holds=True, text=f"it is ready, but takes no work it could lose: {refused}")
    await stage.start_dependency(database)
    await stage.await_health(database)
    await stage.restart(app)
    found = await stage.probe.thread(await stage.target(app), wanted.thread)
    _show(stage, found)
    if found is None:
        return Outcome(
            holds=False,
            text=f"it was ready without {database.name}, took a run, and its thread is gone",
        )
    return Outcome(holds=True, text="what it took while the database was away was kept elsewhere")


async def _turns_green(stage: Stage, app: App) -> bool:
    """Watch whether it says that it is ready while its database is away, or ends."""
    deadline_s = stage.clock.monotonic_s() + stage.plan.settings.trial.away_s
    while stage.clock.monotonic_s() < deadline_s:
        if await stage.is_ready(app):
            return True
        state = await stage.plan.engine.state(app.container)
        if state.exit_code is not None and app.spec.restart == "no":
            stage.transcript.saw(f"it ended with exit code {state.exit_code}")
            return False
        await stage.clock.sleep(limits.POLL_S)
    return False
