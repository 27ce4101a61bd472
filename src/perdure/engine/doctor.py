"""The invariant scan: is every unfinished run held, due, waiting for something named, or claimable?

Theory: rows are read while workers work, so that what looks wrong may only have been read between
two writes. A finding that says a rule is broken is made only of a run that was read again and had
not moved.

Severities: *error*, a guarantee does not hold; *action*, somebody must do something; *note*, worth
knowing.
"""

from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from perdure.engine.environment import Environment
from perdure.engine.limits import CLAIM_OVERDUE_S, SCAN_PAGE
from perdure.engine.loading import read_kept
from perdure.engine.outlook import (
    command,
    describe_kept,
    is_due,
    is_silent,
    kept_back,
    moved_graphs,
    resolve_commands,
    room_of,
    run_before,
    worker_command,
)
from perdure.engine.starting import DEFAULT_TENANT
from perdure.engine.versions import ways_out
from perdure.engine.waits import as_datetime
from perdure.errors import DecodeFailed, StoreCorrupt
from perdure.ids import RunId
from perdure.model import (
    AskState,
    EffectRow,
    EffectState,
    Mail,
    MailKind,
    RunRow,
    RunStatus,
    Wait,
    WaitKind,
    WorkerRow,
)
from perdure.store.api import AskQuery, EffectQuery, RunQuery

UNFINISHED = tuple(status for status in RunStatus if not status.is_final)

FINDING_CODES = {
    "store_damaged": "the store's own integrity check found something",
    "journal_damaged": "an unfinished run's journal is not what was written, or can't be read",
    "run_stuck": "an unfinished run that nothing will ever make claimable",
    "wake_up_lost": "what a waiting run waits for is there, and the run was not woken",
    "effect_left_intended": "an effect of an ended run that still counts as under way",
    "graph_unserved": "runs of a graph version that no live worker executes",
    "claim_overdue": "a claimable run that no worker has taken for long, though one could",
    "runs_kept_back": "claimable runs that a limit over all workers keeps back",
    "run_parked": "a run that waits for a decision",
    "effect_uncertain": "an effect of which nobody knows whether it happened",
    "erasure_unfinished": "an erasure that was begun, and that nobody has finished",
    "ask_expired": "a question that expired and whose run has not been told yet",
    "lease_ended": "a run whose holder died or lost its lease, and that nobody has taken over yet",
    "worker_dead": "a worker of this host that died; its runs were freed",
    "worker_silent": "a worker that has not been seen for long",
    "scan_truncated": "there is more of a kind than one scan looks at",
}
"""Every code of a finding, with what it says."""


class Severity(StrEnum):
    """How bad a finding is."""

    ERROR = "error"
    ACTION = "action"
    NOTE = "note"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that the scan found.

    Attributes:
        code: one of FINDING_CODES.
        following: the next commands.
    """

    code: str
    severity: Severity
    run_id: str | None
    what: str
    following: tuple[str, ...] = ()
    is_repaired: bool = False


@dataclass(slots=True)
class Report:
    """What a scan looked at and found, the worst first.

    Attributes:
        done: what it changed, in words.
    """

    runs: int = 0
    records: int = 0
    workers: int = 0
    done: list[str] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)


async def examine(engine: Environment, *, repair: bool = False) -> Report:
    """Return what is wrong, or wants somebody, in the whole store.

    The runs of workers of this host that are dead are freed, as any live worker would do at once.

    Args:
        engine: over an open store; no worker is needed.
        repair: make claimable what nothing would wake (a message to the run: it looks again and
            waits again).
    """
    report = Report()
    report.findings += await _dead(engine, report)
    report.findings += await _damage(engine)
    workers = await engine.store.find_workers()
    report.workers = len(workers)
    live = {row.worker_id: row for row in workers if not is_silent(engine, row)}
    served = {graph for row in live.values() for graph in row.graphs} | await moved_graphs(engine)
    unserved: Counter[tuple[str, int]] = Counter()
    kept: Counter[str] = Counter()
    room = await room_of(engine)
    async for row in _unfinished(engine):
        report.runs += 1
        found = await _examine_run(engine, row, report)
        is_parked = row.status is RunStatus.NEEDS_DECISION and row.ready_at_us is None
        if (row.graph, row.version) not in served and not is_parked:
            unserved[row.graph, row.version] += 1
            found += _lease_ended(engine, row)
        elif is_due(engine, row) and (by := kept_back(row, room)) is not None:
            kept[describe_kept(by)] += 1
        else:
            found += _overdue(engine, row)
        report.findings += [
            await _repaired(engine, each, report) if repair else each for each in found
        ]
    report.findings += [_unserved(graph, count) for graph, count in unserved.items()]
    report.findings += [
        _finding("runs_kept_back", Severity.NOTE, None, f"{count} run(s) {by}", _LIMITS)
        for by, count in kept.items()
    ]
    report.findings += await _effects(engine)
    report.findings += await _asks(engine)
    report.findings += await _erasures(engine)
    report.findings += [_silent(engine, row) for row in workers if row.worker_id not in live]
    report.findings.sort(key=lambda finding: list(Severity).index(finding.severity))
    return report


async def _unfinished(
    engine: Environment, statuses: tuple[RunStatus, ...] = UNFINISHED
) -> AsyncIterator[RunRow]:
    before: RunId | None = None
    while True:
        query = RunQuery(statuses=statuses, before=before, limit=SCAN_PAGE)
        rows = await engine.store.find_runs(query)
        for row in rows:
            yield row
        if len(rows) < SCAN_PAGE:
            return
        before = rows[-1].run_id


async def _erasures(engine: Environment) -> list[Finding]:
    """Return the erasures that were begun and not finished; one that is under way is among them."""
    found = []
    for row in await engine.store.find_erasures(open_only=True):
        whose = ["--subject", row.subject] if row.subject else ["--thread", row.threads[0].thread]
        tenant = ["--tenant", row.tenant] if row.tenant != DEFAULT_TENANT else []
        what = (
            f"erasure {row.erasure_id} of {len(row.threads)} threads, begun by {row.by} at "
            f"{as_datetime(row.begun_at_us).isoformat()}, is not finished"
        )
        again = (command("erase", *whose, *tenant, "--by", row.by),)
        found.append(_finding("erasure_unfinished", Severity.ACTION, None, what, again))
    return found


async def _damage(engine: Environment) -> list[Finding]:
    check = getattr(engine.store, "check", None)  # not every store has one
    problems = [] if check is None else await check()
    return [
        Finding(
            code="store_damaged",
            severity=Severity.ERROR,
            run_id=None,
            what=f"integrity check: {problem}; restore the store from a backup",
        )
        for problem in problems
    ]


# -- one run ---------------------------------------------------------------------------------------


async def _examine_run(engine: Environment, row: RunRow, report: Report) -> list[Finding]:
    found = await _journal(engine, row, report)
    broken = await _broken_rule(engine, row)
    if broken is not None:
        again = await engine.store.read_run(row.run_id)
        if again is not None and _is_same(row, again):
            found.append(broken)
    if row.status is RunStatus.NEEDS_DECISION and row.ready_at_us is None:
        found.append(await _parked(engine, row))
    return found


def _is_same(before: RunRow, after: RunRow) -> bool:
    return (before.token, before.last_seq, before.status, before.ready_at_us) == (
        after.token,
        after.last_seq,
        after.status,
        after.ready_at_us,
    )


async def _journal(engine: Environment, row: RunRow, report: Report) -> list[Finding]:
    """Read the whole journal: every hash of its chain, every record."""
    try:
        report.records += len(await read_kept(engine.store, row.run_id))
    except (StoreCorrupt, DecodeFailed) as error:
        return [
            Finding(
                code="journal_damaged",
                severity=Severity.ERROR,
                run_id=row.run_id,
                what=str(error),
                following=(command("show", row.run_id),),
            )
        ]
    return []


async def _broken_rule(engine: Environment, row: RunRow) -> Finding | None:
    """Return why nothing will ever make the run claimable; None: something will."""
    if row.ready_at_us is not None:
        return None  # held until then, due then, or claimable since then
    if row.status is RunStatus.NEEDS_DECISION:
        return await _unheard(engine, row, lambda mail: mail.kind in _DECIDING)
    if row.status is RunStatus.RUNNING:
        return _stuck(row, "running without an end of its lease")
    if not row.waits:
        return _stuck(row, f"{row.status.value}, without a due time and waiting for nothing")
    if row.status is RunStatus.PENDING:
        is_queued = any(wait.kind is WaitKind.THREAD for wait in row.waits)
        if is_queued and await run_before(engine, row) is not None:
            return None
        return _stuck(row, f"queued on thread {row.thread!r} behind no unfinished run")
    for wait in row.waits:
        problem = await _deaf(engine, wait)
        if problem is not None:
            return _wake_up_lost(row, problem)
    return await _unheard(engine, row, lambda mail: _is_awaited(mail, row))


_DECIDING = frozenset({MailKind.DECISION, MailKind.RETRY, MailKind.CANCEL})
_AWAITED = {
    WaitKind.ASK: MailKind.ANSWER,
    WaitKind.SIGNAL: MailKind.SIGNAL,
    WaitKind.CHILD: MailKind.CHILD,
}


def _is_awaited(mail: Mail, row: RunRow) -> bool:
    if mail.kind in {MailKind.RETRY, MailKind.CANCEL}:
        return True
    return any(
        _AWAITED.get(wait.kind) is mail.kind and wait.subject == mail.subject for wait in row.waits
    )


async def _unheard(
    engine: Environment, row: RunRow, is_awaited: Callable[[Mail], bool]
) -> Finding | None:
    """Return that a message lies there which should have woken the run."""
    for mail in await engine.store.read_mail(row.run_id):
        if is_awaited(mail):
            subject = f" {mail.subject!r}" if mail.subject else ""
            return _wake_up_lost(row, f"an unread {mail.kind.value}{subject} is there")
    return None


async def _deaf(engine: Environment, wait: Wait) -> str | None:
    """Return why a wait can't end any more, although nothing is due; None: it can."""
    if wait.kind is WaitKind.TIMER or wait.due_us is not None:
        return f"its wait ({wait.kind.value}) is due at a time, and the run is not"
    if wait.kind is WaitKind.ASK:
        ask = await engine.store.read_ask(wait.subject)  # type: ignore[arg-type]  # an approval names an ask
        if ask is None or ask.state is not AskState.OPEN:
            return f"ask {wait.subject!r} is {'missing' if ask is None else ask.state.value}"
    if wait.kind is WaitKind.CHILD:
        child = await engine.store.read_run(wait.subject)  # type: ignore[arg-type]  # a child wait names a run
        if child is None or child.status.is_final:
            status = "missing" if child is None else child.status.value
            return f"child run {wait.subject!r} is {status}"
    return None


def _stuck(row: RunRow, what: str) -> Finding:
    return Finding(
        code="run_stuck",
        severity=Severity.ERROR,
        run_id=row.run_id,
        what=f"{what}; nothing will make it claimable",
        following=(command("show", row.run_id), command("cancel", row.run_id)),
    )


def _wake_up_lost(row: RunRow, what: str) -> Finding:
    return Finding(
        code="wake_up_lost",
        severity=Severity.ERROR,
        run_id=row.run_id,
        what=f"{what}, but the {row.status.value} run was not woken",
        following=(command("doctor", "--repair"),),
    )


async def _repaired(engine: Environment, finding: Finding, report: Report) -> Finding:
    """Wake a run that nothing would wake: it looks again, and waits again if it must."""
    if finding.code != "wake_up_lost" or finding.run_id is None:
        return finding
    run_id = RunId(finding.run_id)
    now_us = engine.now_us()
    post_id = engine.services.ids.new("p", now_us)
    mail = Mail(run_id=run_id, kind=MailKind.RETRY, sender="doctor", at_us=now_us, post_id=post_id)
    row = await engine.store.post(mail)
    if row.ready_at_us is None:
        return finding
    report.done.append(f"woke run {run_id}: it looks again, and waits again if it must")
    return replace(finding, is_repaired=True, following=())


async def _parked(engine: Environment, row: RunRow) -> Finding:
    query = EffectQuery(run_id=row.run_id, states=(EffectState.UNCERTAIN,), limit=SCAN_PAGE)
    effects = [e for e in await engine.store.find_effects(query) if e.decision is None]
    following = [each for effect in effects for each in resolve_commands(effect.effect_id)]
    reason = f"{row.failure.type}: {row.failure.message}" if row.failure else "no reason was kept"
    return Finding(
        code="run_parked",
        severity=Severity.ACTION,
        run_id=row.run_id,
        what=f"needs a decision: {reason}",
        following=tuple(following) or await ways_out(engine, row),
    )


def _overdue(engine: Environment, row: RunRow) -> list[Finding]:
    """Return that a run can be claimed and nobody does, though somebody could."""
    if row.ready_at_us is None:
        return []
    late_s = (engine.now_us() - row.ready_at_us) / 1_000_000
    if late_s > CLAIM_OVERDUE_S:
        graph = f"{row.graph} v{row.version}"
        what = f"claimable for {late_s:.0f} s, and a live worker executes {graph}; is it full?"
        following = (command("ps", "--workers"),)
        return [_finding("claim_overdue", Severity.ACTION, row.run_id, what, following)]
    return _lease_ended(engine, row)


def _lease_ended(engine: Environment, row: RunRow) -> list[Finding]:
    """Return that a run was lost by its holder."""
    if row.status is not RunStatus.RUNNING or not is_due(engine, row):
        return []
    what = f"holder {row.holder} died or lost its lease; any worker may take the run over"
    return [_finding("lease_ended", Severity.NOTE, row.run_id, what)]


def _finding(
    code: str,
    severity: Severity,
    run_id: str | None,
    what: str,
    following: tuple[str, ...] = (),
) -> Finding:
    return Finding(code=code, severity=severity, run_id=run_id, what=what, following=following)


# -- workers, effects, asks ------------------------------------------------------------------------


async def _dead(engine: Environment, report: Report) -> list[Finding]:
    """Free the runs of dead workers of this host; return who died, with what they held."""
    workers = {row.worker_id: row for row in await engine.store.find_workers()}
    if not workers:
        return []
    held: dict[str, list[RunRow]] = {}
    async for row in _unfinished(engine, (RunStatus.RUNNING,)):
        held.setdefault(row.holder or "", []).append(row)
    dead = await engine.store.release_dead()
    found = []
    for worker_id in dead:
        runs = held.get(worker_id, [])
        report.done += [f"freed run {row.run_id} of dead worker {worker_id}" for row in runs]
        report.done += [] if runs else [f"removed dead worker {worker_id}, which held no run"]
        found.append(_died(worker_id, workers.get(worker_id), runs))
    return found


def _died(worker_id: str, worker: WorkerRow | None, runs: Sequence[RunRow]) -> Finding:
    where = f" (pid {worker.pid} on {worker.host})" if worker is not None else ""
    freed = ", ".join(row.run_id for row in runs)
    what = f"freed, any worker may take over: {freed}" if runs else "it held no run"
    graphs = dict.fromkeys((row.graph, row.version) for row in runs)
    return _finding(
        "worker_dead",
        Severity.ACTION if runs else Severity.NOTE,
        runs[0].run_id if len(runs) == 1 else None,
        f"worker {worker_id}{where} died; {what}",
        tuple(worker_command(*graph) for graph in graphs),
    )


def _silent(engine: Environment, row: WorkerRow) -> Finding:
    silent_s = (engine.now_us() - row.seen_at_us) / 1_000_000
    what = (
        f"worker {row.worker_id} (pid {row.pid} on {row.host}) was last seen {silent_s:.0f} s ago"
    )
    return _finding("worker_silent", Severity.NOTE, None, what)


_LIMITS = (command("limit", "list"),)


def _unserved(graph: tuple[str, int], count: int) -> Finding:
    name, version = graph
    what = (
        f"{count} unfinished run(s) of {name} v{version}, and no live worker executes that version"
    )
    return _finding(
        "graph_unserved",
        Severity.ACTION,
        None,
        what,
        (worker_command(name, version),),
    )


async def _effects(engine: Environment) -> list[Finding]:
    uncertain = await _of_state(engine, EffectState.UNCERTAIN)
    intended = await _of_state(engine, EffectState.INTENDED)
    found = [_uncertain(row) for row in uncertain if row.decision is None]
    for row in intended:
        run = await engine.store.read_run(row.run_id)
        if run is not None and run.status.is_final:
            what = f"effect {row.name} [{row.effect_id}] is intended, its run {run.status.value}"
            show = (command("show", row.run_id),)
            found.append(_finding("effect_left_intended", Severity.ERROR, row.run_id, what, show))
    return found + _truncated("uncertain effects", uncertain) + _truncated("effects", intended)


async def _of_state(engine: Environment, state: EffectState) -> list[EffectRow]:
    return await engine.store.find_effects(EffectQuery(states=(state,), limit=SCAN_PAGE))


def _uncertain(row: EffectRow) -> Finding:
    why = f": {row.failure.message}" if row.failure else ""
    what = f"effect {row.name} ({row.kind.value}) may have happened{why}"
    commands = resolve_commands(row.effect_id)
    return _finding("effect_uncertain", Severity.ACTION, row.run_id, what, commands)


def _truncated(what: str, rows: Sequence[object]) -> list[Finding]:
    """Say that there may be more than were looked at."""
    if len(rows) < SCAN_PAGE:
        return []
    text = f"only {SCAN_PAGE} {what} were looked at; there may be more"
    return [_finding("scan_truncated", Severity.NOTE, None, text)]


async def _asks(engine: Environment) -> list[Finding]:
    now_us = engine.now_us()
    asks = await engine.store.find_asks(AskQuery(states=(AskState.OPEN,), limit=SCAN_PAGE))
    found = []
    for ask in asks:
        if ask.expires_at_us is not None and ask.expires_at_us <= now_us:
            at = as_datetime(ask.expires_at_us).isoformat()
            what = f"ask {ask.ask_id} expired at {at}; the next worker of its graph tells the run"
            found.append(_finding("ask_expired", Severity.NOTE, ask.run_id, what))
    return found + _truncated("open asks", asks)
