"""Trials of runs under way: R1 to R8. Events: stop, SIGKILL, update, memory."""

import contextlib

from perdure.contracts.inject import _http, limits
from perdure.contracts.inject._outcome import Outcome
from perdure.contracts.inject._stage import App, Stage, TrialInvalid
from perdure.contracts.inject._trial_state import AT_REST, ENDED, until_at_rest, work
from perdure.contracts.inject.probes import ProbeFailed, Run, RunState, Work

KILLED = 137
"""Exit code after SIGKILL, as shells count."""


async def drain_fits_grace(stage: Stage) -> Outcome:
    """R1: stop it while a run still takes the drain's time; then see what became of the run.

    What it says of a drain counts only if it went on for as long as the run takes: servers say that
    they are done, too, when they have given up what was under way.
    """
    app = await stage.up()
    trial = stage.plan.settings.trial
    wanted = work(stage, steps=1, step_s=trial.drain_s)
    began_s = stage.clock.monotonic_s()
    run = await stage.probe.start(await stage.target(app), wanted)
    stage.transcript.did(f"started run {run.id}, which takes {trial.drain_s:g} s")
    state = await stage.stop(app)
    had_time = stage.clock.monotonic_s() - began_s >= trial.drain_s
    said = await stage.said(app)
    if state.exit_code == KILLED:
        return Outcome(
            holds=False,
            text=f"it was killed after {stage.plan.grace_s:g} s of grace, before it had drained",
        )
    if not said.stop_signals:
        return Outcome(
            holds=False, text="it ended without having got the signal, so it drained nothing"
        )
    if said.drained and not had_time:
        stage.transcript.saw(
            "it ended sooner than the run could have, so that it has not drained it"
        )
    elif said.drained:
        return Outcome(
            holds=True, text="it says that it got the signal and finished what was under way"
        )
    return await _is_not_lost(stage, app, run, wanted)


async def _is_not_lost(stage: Stage, app: App, run: Run, wanted: Work) -> Outcome:
    await stage.start(app)
    await stage.until_ready(app)
    try:
        found = await until_at_rest(stage, app, run, wanted.thread)
    except TrialInvalid as never:
        return Outcome(holds=False, text=f"the run that it had accepted is not finished: {never}")
    holds = found.state in (RunState.SUCCEEDED, RunState.INTERRUPTED)
    return Outcome(
        holds=holds, text=f"the run that was under way when it was stopped {found.state}"
    )


async def signal_reaches_it(stage: Stage) -> Outcome:
    """R2: stop it; only its own word that it got the signal counts."""
    app = await stage.up()
    await stage.processes(app)
    await stage.stop(app)
    said = await stage.said(app)
    if said.stop_signals:
        drained = ", and that it drained" if said.drained else "; it says nothing of a drain"
        return Outcome(holds=True, text=f"the application says that it got the signal{drained}")
    return Outcome(holds=False, text="the application never says that it got the signal")


async def kill_mid_run(stage: Stage, app: App, wanted: Work) -> Run:
    """Start a run, wait until `kill_after` of its steps have ended, and kill the server.

    With the scripted outside, the next step is held there after it has had its effect; without, the
    application is asked how far it is.
    """
    trial = stage.plan.settings.trial
    held = f"effect/{wanted.operation}:{int(trial.kill_after) + 1}"
    if stage.plan.needs_outside:
        await _outside(stage, "/control/hold", {"point": held, "when": "after"})
    run = await stage.probe.start(await stage.target(app), wanted)
    stage.transcript.did(f"started run {run.id} with {wanted.steps} steps", run=run.id)
    if stage.plan.needs_outside:
        await _arrival(stage, held)
        stage.transcript.saw(
            f"step {int(trial.kill_after) + 1} has had its effect and waits for the answer"
        )
    else:
        await stage.until(
            lambda: _has_done(stage, app, run, wanted, int(trial.kill_after)), trial.run_s,
            f"{int(trial.kill_after)} steps to end",
        )  # fmt: skip
        stage.transcript.saw(f"{int(trial.kill_after)} steps have ended")
    killed = await stage.kill(app)
    await stage.until_gone(app, killed)
    if stage.plan.needs_outside:
        await _outside(stage, "/control/release", {"point": held})
    return run


async def _has_done(stage: Stage, app: App, run: Run, wanted: Work, count: int) -> bool:
    found = await stage.probe.run(await stage.target(app), run.id, wanted.thread)
    if found.state in ENDED:
        msg = f"the run {found.state} before it could be killed; give its steps more time: step_s"
        raise TrialInvalid(msg)
    return (found.steps_done or 0) >= count


async def _outside(stage: Stage, path: str, body: dict[str, object]) -> None:
    status, answer = await _http.ask(f"{stage.outside_url}{path}", "POST", body)
    if status != _http.OK:
        msg = f"the scripted outside refused {path}: {answer}"
        raise TrialInvalid(msg)


async def _arrival(stage: Stage, point: str) -> None:
    async def arrived() -> bool:
        """Wait a little at the outside itself."""
        url = f"{stage.outside_url}/control/arrived?point={_http.quoted(point)}&timeout_s=2"
        _, answer = await _http.ask(url)
        return isinstance(answer, dict) and answer.get("arrived", 0) > 0

    await stage.until(
        arrived, stage.plan.settings.trial.run_s, f"the application to come to {point}"
    )


async def applied(stage: Stage) -> dict[str, int]:
    """Return how often each operation of the trial was applied outside."""
    _, answer = await _http.ask(f"{stage.outside_url}/effects")
    operations = answer.get("operations", {}) if isinstance(answer, dict) else {}
    return {name: int(of["applied"]) for name, of in operations.items()}


async def progress_is_saved(stage: Stage) -> Outcome:
    """R3: kill it in the middle; what had ended must be stored, but for what may be lost."""
    app = await stage.up()
    wanted = work(stage)
    trial = stage.plan.settings.trial
    await kill_mid_run(stage, app, wanted)
    await stage.come_back(app)
    found = await stage.probe.thread(await stage.target(app), wanted.thread)
    stored = found.steps if found else 0
    needed = max(1, int(trial.kill_after) - int(trial.lost_steps))
    stage.transcript.saw(f"{stored} steps are stored; {int(trial.kill_after)} had ended")
    if stored >= needed:
        return Outcome(
            holds=True, text=f"{stored} of {int(trial.kill_after)} ended steps are stored"
        )
    return Outcome(
        holds=False,
        text=f"{int(trial.kill_after)} steps had ended, and {stored} are stored: it begins anew",
    )


async def comes_back(stage: Stage) -> Outcome:
    """R4: kill the server from outside; nobody starts it again but its platform."""
    app = await stage.up()
    before = await stage.plan.engine.state(app.container)
    killed = await stage.kill(app)
    await stage.until_gone(app, killed)
    try:
        await stage.until_ready(app)
    except TrialInvalid as never:
        return Outcome(holds=False, text=f"nothing started it again: {never}")
    after = await stage.plan.engine.state(app.container)
    return Outcome(
        holds=True,
        text=f"it was ready again by itself, after {after.restarts - before.restarts} restarts",
    )


async def effects_happen_once(stage: Stage) -> Outcome:
    """R6: kill it between an effect and its checkpoint; let the run end; count at the outside.

    A run that is not taken up by itself is started again by its user, as people do.
    """
    app = await stage.up()
    wanted = work(stage)
    run = await kill_mid_run(stage, app, wanted)
    await stage.come_back(app)
    try:
        ended = await until_at_rest(stage, app, run, wanted.thread)
        is_ended = ended.state is RunState.SUCCEEDED
    except TrialInvalid:
        is_ended = False
    if not is_ended:
        run = await stage.probe.start(await stage.target(app), wanted)
        stage.transcript.did("started the same run again, as its user would")
        await until_at_rest(stage, app, run, wanted.thread, ENDED)
    counts = await applied(stage)
    stage.transcript.saw("the outside counted effects", applied=counts)
    again = sorted(name for name, count in counts.items() if count > 1)
    if again:
        return Outcome(holds=False, text=f"{again[0]} happened {counts[again[0]]} times")
    return Outcome(holds=True, text=f"each of {len(counts)} operations happened once")


async def runs_are_resumed(stage: Stage) -> Outcome:
    """R7: kill it in the middle of a run; the run must end without a call of its client."""
    app = await stage.up()
    wanted = work(stage)
    run = await kill_mid_run(stage, app, wanted)
    await stage.come_back(app)
    try:
        ended = await until_at_rest(stage, app, run, wanted.thread)
    except TrialInvalid as never:
        with contextlib.suppress(ProbeFailed):
            now = await stage.probe.run(await stage.target(app), run.id, wanted.thread)
            return Outcome(holds=False, text=f"the run is {now.state} and does not go on ({never})")
        return Outcome(holds=False, text=f"the run does not go on: {never}")
    if ended.state is RunState.FAILED:
        return Outcome(holds=False, text="the run was only marked as failed (partial)")
    return Outcome(holds=True, text=f"the run {ended.state} without a call of its client")


async def memory_fits(stage: Stage) -> Outcome:
    """R8: start as many runs as the settings say, each with its payload, and see who is killed."""
    app = await stage.up()
    trial = stage.plan.settings.trial
    if app.spec.memory_bytes is None:
        msg = "the deployment sets no memory limit"
        raise TrialInvalid(msg)
    target = await stage.target(app)
    runs: list[tuple[Run, Work]] = []
    refused = 0
    for number in range(int(trial.concurrency)):
        wanted = work(
            stage, f"m{number}", steps=1, payload_bytes=int(trial.payload_bytes),
            step_s=max(trial.step_s, limits.TOGETHER_S),
        )  # fmt: skip
        try:
            runs.append((await stage.probe.start(target, wanted), wanted))
        except ProbeFailed:
            refused += 1
    stage.transcript.did(f"started {len(runs)} runs at once; {refused} were refused")
    if await _ends_killed(stage, app, runs):
        return Outcome(
            holds=False,
            text=f"{len(runs) + refused} runs at once took more than the limit of "
            f"{app.spec.memory_bytes:,} bytes; the kernel killed the application",
        )
    states = [await stage.probe.run(target, run.id, wanted.thread) for run, wanted in runs]
    failed = sum(each.state is not RunState.SUCCEEDED for each in states)
    if failed or not runs:
        return Outcome(holds=False, text=f"{failed} of {len(runs)} runs at once did not end well")
    return Outcome(holds=True, text=f"{len(runs)} runs at once ended well within the limit")


async def _ends_killed(stage: Stage, app: App, runs: list[tuple[Run, Work]]) -> bool:
    """Wait until the kernel has killed it for its memory, or every run has ended; say which."""
    killed = False

    async def over() -> bool:
        """Look at memory first: a killed application answers nothing."""
        nonlocal killed
        killed = await stage.plan.engine.ran_out_of_memory(app.container)
        if killed:
            return True
        target = await stage.target(app)
        found = [await stage.probe.run(target, run.id, wanted.thread) for run, wanted in runs]
        return all(each.state in ENDED for each in found)

    await stage.until(over, stage.plan.settings.trial.run_s, "all runs to end")
    return killed


__all__ = [
    "AT_REST",
    "comes_back",
    "drain_fits_grace",
    "effects_happen_once",
    "memory_fits",
    "progress_is_saved",
    "runs_are_resumed",
    "signal_reaches_it",
]
