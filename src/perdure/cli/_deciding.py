"""`approve`, `signal`, `resolve` and `cancel`: what people decide."""

from typing import Annotated, Any

import typer

from perdure.cli import _shapes as shapes
from perdure.cli._advice import is_answerable
from perdure.cli._input import parse_json
from perdure.cli._options import AnyTenant, AsJson, By, RunId, StoreUrl, await_
from perdure.cli._output import print_json, say
from perdure.cli._reading import print_asks
from perdure.cli._store import DEFAULT_URL, existing, with_store
from perdure.engine.outlook import approve_command
from perdure.engine.views import Ask
from perdure.engine.waits import as_datetime
from perdure.errors import UsageError


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
      perdure approve a_5f0c --yes --by ada
      perdure approve a_5f0c --value '{"granted": true, "limit": 40}' --by ada
    """
    if ask is None:
        _list_asks(*await_(_read_asks(store, tenant)), store, as_json=as_json)
        return
    answer = _chosen(value, yes=yes, no=no)
    _need_name(by)
    await_(_answer(store, ask, answer, by))
    _done({"ask": ask, "value": answer, "by": by}, f"answered {ask}", as_json=as_json)


def _chosen(value: str | None, *, yes: bool, no: bool) -> Any:
    if (value is not None) + yes + no != 1:
        msg = "approve: give exactly one of --value JSON, --yes and --no"
        raise UsageError(msg)
    return parse_json(value, "--value") if value is not None else yes


def _need_name(by: str) -> None:
    if not by:
        msg = "--by NAME: say who decides; it is recorded"
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
    by: By = "",
    store: StoreUrl = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    r"""Send a run a signal. It is kept until a node receives it.

    \b
    Examples:
      perdure signal r_01kb6qz0000000000000000000 paid --value '{"amount": 40}'
      perdure signal r_01kb6qz0000000000000000000 go
    """
    body = None if value is None else parse_json(value, "--value")
    await_(_signal(store, run, topic, body, by))
    sent = {"run": run, "topic": topic, "value": body, "by": by}
    _done(sent, f"signalled {topic} to {run}", as_json=as_json)


async def _signal(url: str, run_id: str, topic: str, value: Any, by: str) -> None:
    async with existing(url) as runtime:
        await runtime.signal(run_id, topic, value, by=by)


# -- resolve -------------------------------------------------------------------------------------


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
        bool, typer.Option("--not-happened", help="It did not happen; it is sent again.")
    ] = False,
    retry: Annotated[
        bool,
        typer.Option("--retry", help="Let a parked run go on, after what parked it is mended."),
    ] = False,
    by: By = "",
    store: StoreUrl = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    r"""Decide what became of an uncertain effect, or let a parked run go on.

    \b
    Examples:
      perdure resolve e_9c41 --happened --result '"refund-881"' --by ada
      perdure resolve e_9c41 --not-happened --by ada
      perdure resolve r_01kb6qz0000000000000000000 --retry --by ada
    """
    if happened + not_happened + retry != 1:
        msg = "resolve: give one of --happened, --not-happened (an effect) and --retry (a run)"
        raise UsageError(msg)
    if result is not None and not happened:
        msg = "resolve: --result goes with --happened"
        raise UsageError(msg)
    _need_name(by)
    if retry:
        await_(_retry(store, subject, by))
        _done(
            {"run": subject, "decision": "retry", "by": by},
            f"run {subject} may go on",
            as_json=as_json,
        )
        return
    value = None if result is None else parse_json(result, "--result")
    await_(_resolve(store, subject, value, by, happened=happened))
    decision = "happened" if happened else "not_happened"
    body = {"effect": subject, "decision": decision, "result": value, "by": by}
    _done(body, f"effect {subject}: {decision}", as_json=as_json)


async def _retry(url: str, run_id: str, by: str) -> None:
    async with existing(url) as runtime:
        await runtime.retry(run_id, by=by)


async def _resolve(url: str, effect_id: str, result: Any, by: str, *, happened: bool) -> None:
    async with existing(url) as runtime:
        await runtime.resolve(effect_id, happened=happened, result=result, by=by)


# -- cancel --------------------------------------------------------------------------------------


def cancel(
    *,
    run: RunId,
    compensate: Annotated[
        bool, typer.Option("--compensate", help="Counter its confirmed effects, newest first.")
    ] = False,
    by: By = "",
    store: StoreUrl = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    r"""Ask a run to cancel. Nothing new is sent; effects in flight are then listed as uncertain.

    \b
    Examples:
      perdure cancel r_01kb6qz0000000000000000000
      perdure cancel r_01kb6qz0000000000000000000 --compensate --by ada
    """
    await_(_cancel(store, run, by, compensate=compensate))
    body = {"run": run, "compensate": compensate, "by": by}
    _done(body, f"run {run} is asked to cancel; a worker of its graph does it", as_json=as_json)


async def _cancel(url: str, run_id: str, by: str, *, compensate: bool) -> None:
    async with existing(url) as runtime:
        await runtime.cancel(run_id, compensate=compensate, by=by)
