"""`limit` and `schedule`: what is said for all runs to come."""

from collections.abc import Awaitable, Callable
from typing import Annotated, Any

import typer

from perdure.cli import _shapes as shapes
from perdure.cli._input import parse_json, typed_input
from perdure.cli._options import (
    AnyTenant,
    AsJson,
    Input,
    StoreUrl,
    Target,
    Tenant,
    Thread,
    await_,
)
from perdure.cli._output import print_json, say, table
from perdure.cli._store import DEFAULT_URL, check_shared, creating, existing
from perdure.cli._targets import load_target
from perdure.cli._text import clean, full_time
from perdure.engine import Runtime, Schedule, WorkLimit
from perdure.model import Missed, OnBusy

OfGraph = Annotated[
    str | None, typer.Option("--graph", metavar="NAME", help="Runs of this graph (default: all).")
]
OfTenant = Annotated[
    str | None,
    typer.Option(
        "--tenant", metavar="X", help="This tenant's runs; '*': each tenant's (default: all)."
    ),
]
Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the schedule.")]


# -- limits ----------------------------------------------------------------------------------------


def limit_set(
    *,
    graph: OfGraph = None,
    tenant: OfTenant = None,
    concurrency: Annotated[
        int | None,
        typer.Option("--concurrency", metavar="N", help="Most runs that are running at once."),
    ] = None,
    rate: Annotated[
        int | None, typer.Option("--rate", metavar="N", help="Most runs that begin per period.")
    ] = None,
    period: Annotated[
        float, typer.Option("--period", metavar="SECONDS", help="The period of --rate.")
    ] = 1.0,
    store: StoreUrl = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    r"""Set a limit that every worker of the store obeys; all of them together never exceed it.

    \b
    Examples:
      perdure limit set --graph refunds --concurrency 10
      perdure limit set --tenant '*' --concurrency 5
      perdure limit set --graph refunds --tenant acme --rate 100 --period 60
    """

    async def work(runtime: Runtime) -> list[WorkLimit]:
        """Set it, and return all there are."""
        await runtime.set_limit(
            graph=graph, tenant=tenant, concurrency=concurrency, rate=rate, period=period
        )
        return await runtime.limits()

    found = await_(_on_new(store, work))
    mine = next(each for each in found if (each.graph, each.tenant) == (graph, tenant))
    _done({"limit": shapes.limit_json(mine)}, f"set: {_limit_words(mine)}", as_json=as_json)


def limit_list(*, store: StoreUrl = DEFAULT_URL, as_json: AsJson = False) -> None:
    r"""List the limits over all workers, and how many runs each counts now.

    \b
    Examples:
      perdure limit list
      perdure limit list --json
    """
    found = await_(_on(store, lambda runtime: runtime.limits()))
    if as_json:
        print_json({"limits": [shapes.limit_json(limit) for limit in found]})
        return
    table(
        ("graph", "tenant", "running", "concurrency", "rate"),
        [
            (
                limit.graph or "(all)",
                limit.tenant or "(all)",
                limit.running,
                "any" if limit.concurrency is None else limit.concurrency,
                "any" if limit.rate is None else f"{limit.rate} per {limit.period_s:g} s",
            )
            for limit in found
        ],
        empty="no limits; set one with: perdure limit set --graph NAME --concurrency N",
    )


def limit_remove(
    *,
    graph: OfGraph = None,
    tenant: OfTenant = None,
    store: StoreUrl = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    r"""Remove the limit of exactly this graph and tenant; what it kept back may begin.

    \b
    Examples:
      perdure limit remove --graph refunds
      perdure limit remove --tenant '*'
    """
    await_(_on(store, lambda runtime: runtime.remove_limit(graph=graph, tenant=tenant)))
    _done({"graph": graph, "tenant": tenant}, "removed", as_json=as_json)


def _limit_words(limit: WorkLimit) -> str:
    parts = [f"graph {limit.graph}"] if limit.graph else []
    parts += [f"tenant {limit.tenant}"] if limit.tenant else []
    parts += [f"at most {limit.concurrency} running"] if limit.concurrency is not None else []
    per = f"{limit.rate} begun per {limit.period_s:g} s"
    parts += [per] if limit.rate is not None else []
    return ", ".join(parts)


# -- schedules -------------------------------------------------------------------------------------


def schedule_add(
    *,
    name: Name,
    target: Target,
    cron: Annotated[
        str,
        typer.Option("--cron", metavar="FIELDS", help="'minute hour day month weekday'."),
    ],
    timezone: Annotated[
        str, typer.Option("--timezone", metavar="ZONE", help="IANA name, e.g. Europe/Paris.")
    ] = "UTC",
    input_: Input = None,
    tenant: Tenant = "default",
    thread: Thread = None,
    priority: Annotated[int, typer.Option("--priority", metavar="N", help="Higher first.")] = 0,
    on_busy: Annotated[
        OnBusy, typer.Option("--on-busy", help="On a busy thread: queue, reject or cancel.")
    ] = OnBusy.QUEUE,
    missed: Annotated[
        Missed, typer.Option("--missed", help="Of due times that nobody fired: one, skip or all.")
    ] = Missed.ONE,
    store: StoreUrl = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    r"""Start a run of a graph at each due time, once, whichever workers live then.

    \b
    Examples:
      perdure schedule add nightly reports.py:graph --cron '0 2 * * *' --timezone Europe/Paris
      perdure schedule add sync shop.sync:graph --cron '*/5 * * * *' --missed skip --thread sync
    """
    given = None if input_ is None else parse_json(input_, "--input")
    graph = load_target(target)

    async def work(runtime: Runtime) -> Schedule:
        """Read the input as the graph's types, and add the schedule."""
        typed = typed_input(runtime.engine.plan_of(graph), given)
        return await runtime.schedule(
            name,
            graph,
            typed,
            cron=cron,
            timezone=timezone,
            tenant=tenant,
            thread=thread,
            priority=priority,
            on_busy=on_busy,
            missed=missed,
        )

    _tell(await_(_on_new(store, work)), as_json=as_json)


def schedule_list(
    *, tenant: AnyTenant = None, store: StoreUrl = DEFAULT_URL, as_json: AsJson = False
) -> None:
    r"""List the schedules, the next due one first, paused ones last.

    \b
    Examples:
      perdure schedule list
      perdure schedule list --tenant acme --json
    """
    found = await_(_on(store, lambda runtime: runtime.schedules(tenant=tenant)))
    if as_json:
        print_json({"schedules": [shapes.schedule_json(each) for each in found]})
        return
    table(
        ("name", "tenant", "graph", "cron", "timezone", "next (UTC)", "last (UTC)", "last run"),
        [
            (
                each.name,
                each.tenant,
                each.graph,
                each.cron,
                each.timezone,
                "paused" if each.is_paused else full_time(each.next_at),
                full_time(each.fired_at),
                clean(each.problem) or each.fired_run or "",
            )
            for each in found
        ],
        empty="no schedules; add one with: perdure schedule add NAME FILE:GRAPH --cron FIELDS",
    )


def schedule_remove(
    *,
    name: Name,
    tenant: Tenant = "default",
    store: StoreUrl = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    r"""Remove a schedule; runs that it has started go on.

    \b
    Examples:
      perdure schedule remove nightly
    """
    await_(_on(store, lambda runtime: runtime.unschedule(name, tenant=tenant)))
    _done({"name": name, "tenant": tenant}, f"removed {name}", as_json=as_json)


def schedule_pause(
    *,
    name: Name,
    tenant: Tenant = "default",
    store: StoreUrl = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    r"""Let a schedule rest until it is resumed; due times meanwhile are left out.

    \b
    Examples:
      perdure schedule pause nightly
    """
    found = await_(_on(store, lambda runtime: runtime.pause_schedule(name, tenant=tenant)))
    _tell(found, as_json=as_json)


def schedule_resume(
    *,
    name: Name,
    tenant: Tenant = "default",
    store: StoreUrl = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    r"""Let a paused schedule go on with the next due time from now.

    \b
    Examples:
      perdure schedule resume nightly
    """
    found = await_(_on(store, lambda runtime: runtime.resume_schedule(name, tenant=tenant)))
    _tell(found, as_json=as_json)


def _tell(schedule: Schedule, *, as_json: bool) -> None:
    when = "paused" if schedule.is_paused else f"next at {full_time(schedule.next_at)} UTC"
    body = {"schedule": shapes.schedule_json(schedule)}
    _done(body, f"schedule {schedule.name}: {when}", as_json=as_json)


def _done(body: dict[str, Any], text: str, *, as_json: bool) -> None:
    if as_json:
        print_json(body)
    else:
        say(text)


async def _on(url: str, work: Callable[[Runtime], Awaitable[Any]]) -> Any:
    async with existing(url) as runtime:
        return await work(runtime)


async def _on_new(url: str, work: Callable[[Runtime], Awaitable[Any]]) -> Any:
    """Do the work over a store that is created if it does not exist."""
    check_shared(url)
    async with creating(url, [], worker=False) as runtime:
        return await work(runtime)
