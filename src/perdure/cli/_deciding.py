"""`approve`, `signal`, `resolve` and `cancel`: what people decide."""

from typing import Annotated, Any

import typer

from perdure.cli import _shapes as shapes
from perdure.cli._advice import is_answerable
from perdure.cli._input import parse_json
from perdure.cli._options import AnyTenant, AsJson, By, RunId, Sender, StoreUrl, await_
from perdure.cli._output import note, print_json, say
from perdure.cli._reading import print_asks, refuse_given
from perdure.cli._store import DEFAULT_URL, existing, with_store
from perdure.engine import Runtime
from perdure.engine.outlook import (
    approve_command,
    command,
    moved_graphs,
    resolve_commands,
    served_graphs,
)
from perdure.engine.versions import is_mismatched, ways_out
from perdure.engine.views import Ask, LedgerEntry
from perdure.engine.waits import as_datetime
from perdure.errors import NeedsDecision, UsageError, VersionMismatch
from perdure.ids import EffectId
from perdure.model import EffectState, WaitKind

_IDS_SHOWN = 10
"""Most ids that an error names."""


def approve(
    *,
    ask: Annotated[
        str | None, typer.Argument(metavar="[ASK]", help="Ask id; left out: list the open asks.")
    ] = None,
    value: Annotated[
        str | None, typer.Option("--value", metavar="JSON|@FILE", help="The answer.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Answer true.")] = False,
    no: Annotated[bool, typer.Option("--no", help="Answer false.")] = False,
    by: By = "",
    tenant: AnyTenant = None,
    store: StoreUrl = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    r"""Answer a question that a run asks; without an id, list the open ones.

    \b
    Examples:
      perdure approve
      perdure approve ASK_ID --yes --by ada
      perdure approve ASK_ID --value '{"granted": true, "limit": 40}' --by ada
    """
    if ask is None:
        _refuse_answer_without_ask(store, {"--value": value is not None, "--yes": yes, "--no": no})
        refuse_given("approve without an id lists the open asks", {"--by": by})
        _list_asks(*await_(_read_asks(store, tenant)), store, as_json=as_json)
        return
    refuse_given("approve with an id answers that ask", {"--tenant": tenant})
    answer = _chosen(value, yes=yes, no=no)
    _need_name(by, "approve")
    await_(_answer(store, ask, answer, by))
    _done({"ask": ask, "value": answer, "by": by}, f"answered {ask}", as_json=as_json)


def _chosen(value: str | None, *, yes: bool, no: bool) -> Any:
    if (value is not None) + yes + no != 1:
        msg = "approve: give exactly one of --value JSON, --yes and --no"
        raise UsageError(msg)
    return parse_json(value, "--value") if value is not None else yes


def _refuse_answer_without_ask(url: str, answers: dict[str, bool]) -> None:
    given = [name for name, is_given in answers.items() if is_given]
    if not given:
        return
    asks, now_us = await_(_read_asks(url, None))
    now = as_datetime(now_us)
    ids = [ask.id for ask in asks if is_answerable(ask, now)]
    msg = f"approve {given[0]}: which ask? Open: {', '.join(ids[:_IDS_SHOWN]) or 'none'}"
    raise UsageError(msg, asks=ids)


def _need_name(by: str, command: str) -> None:
    if not by:
        msg = (
            f"{command}: --by NAME is missing: say who decides; it is recorded. "
            f"See: perdure {command} --help"
        )
        raise UsageError(msg)


def _done(body: dict[str, Any], text: str, *, as_json: bool) -> None:
    if as_json:
        print_json(body)
    else:
        say(text)


def _list_asks(asks: list[Ask], now_us: int, url: str, *, as_json: bool) -> None:
    if as_json:
        print_json({"asks": [shapes.ask_json(ask) for ask in asks]})
        return
    print_asks(asks, now_us)
    for ask in (each for each in asks if is_answerable(each, as_datetime(now_us))):
        say(f"  {with_store(approve_command(ask.id, ask.schema), url)}")


async def _read_asks(url: str, tenant: str | None) -> tuple[list[Ask], int]:
    async with existing(url) as runtime:
        return await runtime.asks(tenant=tenant), runtime.engine.now_us()


async def _answer(url: str, ask_id: str, value: Any, by: str) -> None:
    async with existing(url) as runtime:
        await runtime.answer(ask_id, value, by=by)


# -- signal --------------------------------------------------------------------------------------


def signal(
    *,
    run: RunId,
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="What the run listens for.")],
    value: Annotated[
        str | None,
        typer.Option("--value", metavar="JSON|@FILE", help="What to send (default: null)."),
    ] = None,
    by: Sender = "",
    store: StoreUrl = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    r"""Send a run a signal. It is kept until a node receives it.

    \b
    Examples:
      perdure signal RUN_ID paid --value '{"amount": 40}'
      perdure signal RUN_ID go
    """
    body = None if value is None else parse_json(value, "--value")
    others = await_(_signal(store, run, topic, body, by))
    if others:
        note(f"nobody waits for {topic!r} yet, it is kept; the run waits for: {', '.join(others)}")
    sent = {"run": run, "topic": topic, "value": body, "by": by}
    _done(sent, f"signalled {topic} to {run}", as_json=as_json)


async def _signal(url: str, run_id: str, topic: str, value: Any, by: str) -> list[str]:
    """Send a signal; return the topics that the run waits for, if this one is not among them."""
    async with existing(url) as runtime:
        await runtime.signal(run_id, topic, value, by=by)
        waits = (await runtime.read_row(run_id)).waits
    topics = [wait.subject for wait in waits if wait.kind is WaitKind.SIGNAL]
    return [] if topic in topics else topics


# -- resolve -------------------------------------------------------------------------------------


ToVersion = Annotated[
    int | None,
    typer.Option(
        "--to-version",
        metavar="N",
        help="Let a run that nobody executes go on with version N of its graph.",
    ),
]


def resolve(
    *,
    subject: Annotated[
        str,
        typer.Argument(
            metavar="EFFECT|RUN", help="Uncertain effect (e_...), or parked run (r_...)."
        ),
    ],
    happened: Annotated[
        bool, typer.Option("--happened", help="The effect happened; it is not sent again.")
    ] = False,
    result: Annotated[
        str | None,
        typer.Option("--result", metavar="JSON|@FILE", help="What it returned (with --happened)."),
    ] = None,
    not_happened: Annotated[
        bool,
        typer.Option("--not-happened", help="It did not happen; a run under way sends it again."),
    ] = False,
    retry: Annotated[
        bool,
        typer.Option("--retry", help="Let a parked run go on, after what parked it is mended."),
    ] = False,
    to_version: ToVersion = None,
    by: By = "",
    store: StoreUrl = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    r"""Decide what became of an uncertain effect, or let a parked run go on.

    \b
    Examples:
      perdure resolve EFFECT_ID --happened --result '"refund-881"' --by ada
      perdure resolve EFFECT_ID --not-happened --by ada
      perdure resolve RUN_ID --retry --by ada
      perdure resolve RUN_ID --to-version 2 --by ada
    """
    if happened + not_happened + retry + (to_version is not None) != 1:
        msg = (
            "resolve: give one of --happened, --not-happened (an effect), --retry and --to-version "
            "(a run)"
        )
        raise UsageError(msg)
    if result is not None and not happened:
        msg = "resolve: --result goes with --happened"
        raise UsageError(msg)
    _need_name(by, "resolve")
    if retry or to_version is not None:
        _decide_run(store, subject, by, to_version, as_json=as_json)
        return
    value = None if result is None else parse_json(result, "--result")
    is_over = await_(_resolve(store, subject, value, by, happened=happened))
    decision = "happened" if happened else "not_happened"
    body = {"effect": subject, "decision": decision, "result": value, "by": by}
    over = "; its run has ended: recorded, nothing is sent" if is_over else ""
    _done(body, f"effect {subject}: {decision}{over}", as_json=as_json)


def _decide_run(url: str, run_id: str, by: str, to_version: int | None, *, as_json: bool) -> None:
    if to_version is None:
        await_(_retry(url, run_id, by))
        body: dict[str, Any] = {"run": run_id, "decision": "retry", "by": by}
        _done(body, f"run {run_id} may go on", as_json=as_json)
        return
    await_(_move(url, run_id, by, to_version))
    body = {"run": run_id, "decision": "to_version", "version": to_version, "by": by}
    _done(body, f"run {run_id} goes on with v{to_version}", as_json=as_json)


async def _move(url: str, run_id: str, by: str, version: int) -> None:
    async with existing(url) as runtime:
        if run_id.startswith("e_"):
            await _refuse_retry_of_effect(runtime, run_id, url)
        await runtime.resolve_version(run_id, version, by=by)


async def _retry(url: str, run_id: str, by: str) -> None:
    async with existing(url) as runtime:
        if run_id.startswith("e_"):
            await _refuse_retry_of_effect(runtime, run_id, url)
        row = await runtime.read_row(run_id)
        undecided = await _undecided(runtime, run_id)
        is_waiting = row.failure is not None and row.failure.type == "UncertainEffect"
        if undecided and is_waiting and not row.status.is_final:
            msg = (
                f"run {run_id!r} would park again at once: nobody has decided whether "
                f"{_named(undecided)} happened; nothing was done. Decide that instead of a retry"
            )
            raise NeedsDecision(msg, run_id=run_id, next=_decisions(undecided, url))
        served = await served_graphs(runtime.engine) | await moved_graphs(runtime.engine)
        if is_mismatched(row) and (row.graph, row.version) not in served:
            msg = (
                f"run {run_id!r} would park again: no live worker executes {row.graph} "
                f"v{row.version}; nothing was done. Start one, or move the run to another version"
            )
            following = await ways_out(runtime.engine, row)
            raise VersionMismatch(
                msg, run_id=run_id, next=[with_store(each, url) for each in following]
            )
        await runtime.retry(run_id, by=by)


async def _refuse_retry_of_effect(runtime: Runtime, effect_id: str, url: str) -> None:
    row = await runtime.engine.store.read_effect(EffectId(effect_id))
    if row is None:
        return  # read as a run id, there is none either
    decide = [with_store(each, url) for each in resolve_commands(effect_id)]
    retry = with_store(command("resolve", row.run_id, "--retry", "--by", "NAME"), url)
    msg = (
        f"{effect_id!r} is an effect ({row.name}, {row.state.value}): it is decided, its run is "
        "retried; nothing was done"
    )
    following = decide if row.state is EffectState.UNCERTAIN else [retry]
    raise UsageError(msg, effect_id=effect_id, run_id=row.run_id, next=following)


async def _undecided(runtime: Runtime, run_id: str) -> list[LedgerEntry]:
    effects = await runtime.effects("uncertain", run_id=run_id)
    return [effect for effect in effects if effect.decision is None]


def _named(effects: list[LedgerEntry]) -> str:
    return ", ".join(f"effect {effect.name} [{effect.id}]" for effect in effects[:_IDS_SHOWN])


def _decisions(effects: list[LedgerEntry], url: str) -> list[str]:
    return [with_store(each, url) for effect in effects for each in resolve_commands(effect.id)]


async def _resolve(url: str, effect_id: str, result: Any, by: str, *, happened: bool) -> bool:
    """Decide an effect; return whether its run has ended."""
    async with existing(url) as runtime:
        if effect_id.startswith("r_"):
            await _refuse_decision_of_run(runtime, effect_id, url)
        await runtime.resolve(effect_id, happened=happened, result=result, by=by)
        effect = await runtime.engine.store.read_effect(EffectId(effect_id))
        return effect is not None and (await runtime.read_row(effect.run_id)).status.is_final


async def _refuse_decision_of_run(runtime: Runtime, run_id: str, url: str) -> None:
    row = await runtime.read_row(run_id)
    undecided = await _undecided(runtime, run_id)
    has = f"undecided: {_named(undecided)}" if undecided else "it has no undecided effect"
    msg = (
        f"{run_id!r} is a run: --happened and --not-happened decide an effect; nothing was done; "
        f"{has}"
    )
    show = [with_store(command("show", row.run_id), url)]
    raise UsageError(msg, run_id=run_id, next=_decisions(undecided, url) or show)


# -- cancel --------------------------------------------------------------------------------------


def cancel(
    *,
    run: RunId,
    compensate: Annotated[
        bool, typer.Option("--compensate", help="Counter its confirmed effects, newest first.")
    ] = False,
    by: Sender = "",
    store: StoreUrl = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    r"""Ask a run to cancel. Nothing new is sent; effects in flight are then listed as uncertain.

    \b
    Examples:
      perdure cancel RUN_ID
      perdure cancel RUN_ID --compensate --by ada
    """
    await_(_cancel(store, run, by, compensate=compensate))
    body = {"run": run, "compensate": compensate, "by": by}
    _done(body, f"run {run} is asked to cancel; a worker of its graph does it", as_json=as_json)


async def _cancel(url: str, run_id: str, by: str, *, compensate: bool) -> None:
    async with existing(url) as runtime:
        await runtime.cancel(run_id, compensate=compensate, by=by)
