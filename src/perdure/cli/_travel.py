"""`diff`, `replay`, `fork` and `rollback`: compare, recompute, branch, put back what happened."""

from collections.abc import Iterator
from typing import Annotated, Any

import typer

from perdure.cli import _shapes as shapes
from perdure.cli._asking import Asking, Yes
from perdure.cli._assign import assigned, parse_assignment
from perdure.cli._input import typed_input
from perdure.cli._options import AsJson, RunId, StoreUrl, Target, Tenant, await_
from perdure.cli._output import heading, print_json, say
from perdure.cli._store import DEFAULT_URL, existing, with_store
from perdure.cli._story import decision_line, edit_line, effect_line, step_lines
from perdure.cli._targets import load_target
from perdure.cli._text import clean, compact, indented, plural
from perdure.engine import Runtime
from perdure.engine.branches import ForkPreview, RollbackPreview
from perdure.engine.compare import Comparison
from perdure.engine.divergence import Replay
from perdure.engine.outlook import command
from perdure.engine.points import split_point
from perdure.errors import UsageError

DIVERGED = 14
"""Exit code of `replay` where the code does something else than the journal says."""

Point = Annotated[
    str,
    typer.Argument(metavar="THREAD[@N]", help="Thread, and a checkpoint of it: its id, or a tag."),
]


# -- diff ----------------------------------------------------------------------------------------


def diff(
    *,
    a: Annotated[
        str, typer.Argument(metavar="A", help="thread@checkpoint, thread@tag, thread or run id.")
    ],
    b: Annotated[str, typer.Argument(metavar="B", help="The same.")],
    tenant: Tenant = "default",
    store: StoreUrl = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    r"""Compare two checkpoints, threads or runs: state, steps, effects, decisions.

    What both have in common, also before a fork, is left out.

    \b
    Examples:
      perdure diff customer-12@3 customer-12@7
      perdure diff customer-12 my-fork
      perdure diff RUN_ID OTHER_RUN_ID --json
    """
    found = await_(_compare(store, a, b, tenant))
    if as_json:
        print_json(shapes.comparison_json(found))
    else:
        _print_comparison(found)


async def _compare(url: str, a: str, b: str, tenant: str) -> Comparison:
    async with existing(url) as runtime:
        return await runtime.compare(a, b, tenant=tenant)


def _print_comparison(found: Comparison) -> None:
    for name, place in (("A", found.a), ("B", found.b)):
        at = "nothing committed" if place.checkpoint is None else f"checkpoint {place.checkpoint}"
        say(clean(f"{name}: thread {place.thread}, {at}, run {place.run_id}"))
    if found.parted is not None:
        say(clean(f"in common up to {found.parted.thread}@{found.parted.checkpoint}"))
    if found.is_same:
        say("no difference")
        return
    _section("state", [edit_line(edit) for edit in found.edits])
    steps = found.steps
    lines = [f"the same nodes in {plural(steps.same, 'step')}, then"] if steps.same else []
    lines += [f"A {line}" for step in steps.a for line in step_lines(step, "")]
    lines += [f"B {line}" for step in steps.b for line in step_lines(step, "")]
    _section("steps", lines if steps.a or steps.b else [])
    effects, decisions = found.effects, found.decisions
    _section("effects", _pair_lines(effects, effect_line))
    _section("decisions", _pair_lines(decisions, decision_line))


def _pair_lines(found: Any, line: Any) -> list[str]:
    """Return what is on one side only, and what differs."""
    lines = [f"only A: {line(each)}" for each in found.only_a]
    lines += [f"only B: {line(each)}" for each in found.only_b]
    for one, other in found.differing:
        lines += [f"A: {line(one)}", f"B: {line(other)}"]
    if lines and found.same:
        lines.append(f"the same on both sides: {found.same}")
    return lines


def _section(title: str, lines: list[str]) -> None:
    if lines:
        heading(title)
        for line in lines:
            say(indented(f"  {line}"))


# -- replay --------------------------------------------------------------------------------------


def replay(
    *,
    run: RunId,
    target: Target,
    store: StoreUrl = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    r"""Recompute a run from its journal and say where the code does something else now.

    Nothing is sent, no file is touched, nothing is written: results of effects, answers, signals,
    timers and children come from the journal.

    Exit code 0: the code does what the journal says; 14: it does not.

    \b
    Examples:
      perdure replay RUN_ID refunds.py:graph
      perdure replay RUN_ID refunds.py:graph --json
    """
    found = await_(_replay(store, run, load_target(target)))
    if as_json:
        print_json(shapes.replay_json(found))
    else:
        _print_replay(found)
    raise typer.Exit(0 if found.is_clean else DIVERGED)


async def _replay(url: str, run_id: str, graph: Any) -> Replay:
    async with existing(url, [graph]) as runtime:
        return await runtime.replay(run_id, graph)


def _print_replay(found: Replay) -> None:
    pinned = found.recorded_version
    of = "" if pinned == found.version else f" (the run is pinned to v{pinned})"
    say(
        clean(
            f"run {found.run_id}, graph {found.graph} v{found.version}{of}, thread {found.thread}, "
            f"{found.status}"
        )
    )
    if found.part:
        say(clean(f"  recomputed {found.part}; the rest belongs to another version's code"))
    served = ", ".join(f"{count} {kind}" for kind, count in found.served.items()) or "none"
    say(
        f"  recomputed {plural(found.steps, 'step')} and {plural(found.nodes, 'node execution')}; "
        f"recorded results served: {served}"
    )
    for each in found.standing:
        say(indented(f"  stands at {each}"))
    if found.is_clean:
        say("  no divergence: the code does what the journal says")
        return
    heading(plural(len(found.divergences), "divergence"))
    for divergence in found.divergences:
        where = f" (attempt {divergence.attempt})" if divergence.attempt > 1 else ""
        say(f"  {clean(divergence.message + where)}")


# -- fork ----------------------------------------------------------------------------------------


def fork(
    *,
    point: Point,
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="[TARGET]", help="path/to/file.py:graph; needed for --set, to check it."
        ),
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="PATH=JSON", help="Change the state first; may be repeated."),
    ] = None,
    thread: Annotated[
        str | None,
        typer.Option("--thread", metavar="NEW", help="Name of the new thread (default: its own)."),
    ] = None,
    rerun: Annotated[
        bool,
        typer.Option(
            "--rerun", help="Begin where the run of the checkpoint began: reuse nothing of it."
        ),
    ] = False,
    yes: Yes = False,
    tenant: Tenant = "default",
    store: StoreUrl = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    r"""Start a run on a new thread from a checkpoint of another one.

    First shows what it starts with and which effects it would do again, and asks.

    \b
    Examples:
      perdure fork customer-12@3
      perdure fork customer-12@3 refunds.py:graph --set amount=60 --set 'notes[0]="again"'
      perdure fork customer-12@3 --thread what-if --yes
    """
    again = ["fork", point, *([target] if target else [])]
    again += [word for each in set_ or [] for word in ("--set", each)]
    again += ["--thread", thread] if thread else []
    again += ["--rerun"] if rerun else []
    again += ["--tenant", tenant] if tenant != "default" else []
    if set_ and target is None:
        named = with_store(command("fork", point, "FILE:GRAPH", *again[2:]), store)
        msg = (
            "fork --set: name the graph, to check it against the state's type; nothing was started"
        )
        raise UsageError(msg, next=[named])
    asking = Asking(again, store, yes=yes, as_json=as_json)
    await_(_fork(asking, point, target, set_ or [], (thread, rerun, tenant)))


async def _fork(
    asking: Asking,
    point: str,
    target: str | None,
    sets: list[str],
    terms: tuple[str | None, bool, str],
) -> None:
    to, rerun, tenant = terms
    graph = load_target(target) if target else None
    async with existing(asking.url, [graph] if graph is not None else []) as runtime:
        thread, at = await split_point(runtime.engine, tenant, point)
        preview = await runtime.preview_fork(thread, at=at, rerun=rerun, tenant=tenant)
        update = await _update(runtime, graph, preview, sets, tenant)
        if update:
            preview = await runtime.preview_fork(
                thread, at=at, update=update, rerun=rerun, tenant=tenant
            )
        asking.confirm(
            _fork_lines(preview), shapes.fork_preview_json(preview), "Start the fork?", "started"
        )
        run = await runtime.fork(thread, at=preview.checkpoint, update=update, to=to, tenant=tenant)
        row = await run.row()
    if asking.as_json:
        print_json({"run": shapes.run_json(row), "preview": shapes.fork_preview_json(preview)})
        return
    say(clean(f"started run {row.run_id} on thread {row.thread}"))
    say(f"next: {with_store(command('show', row.run_id), asking.url)}")


async def _update(
    runtime: Runtime, graph: Any, preview: ForkPreview, sets: list[str], tenant: str
) -> dict[str, Any]:
    """Return the fields that `--set` changes, in the types that the state declares."""
    if not sets:
        return {}
    plan = runtime.engine.plan_of(graph)
    if (plan.name, plan.version) != (preview.graph, preview.graph_version):
        wanted = f"{preview.graph} v{preview.graph_version}"
        msg = f"the checkpoint is of {wanted}, not {plan.name} v{plan.version}; nothing was started"
        raise UsageError(msg, graph=plan.name)
    assignments = [parse_assignment(each) for each in sets]
    state = await runtime.state(preview.thread, at=preview.checkpoint, tenant=tenant)
    values = state if isinstance(state, dict) else _values_of(state, list(plan.channels))
    update = typed_input(plan, assigned(values, assignments, list(plan.channels)))
    return dict(update)


def _values_of(state: Any, fields: list[str]) -> dict[str, Any]:
    return {name: getattr(state, name) for name in fields if hasattr(state, name)}


def _fork_lines(preview: ForkPreview) -> Iterator[str]:
    origin = f"{preview.thread}@{preview.checkpoint} (run {preview.run_id})"
    begun = "a fork that begins anew at" if preview.is_rerun else "a fork of"
    yield f"{begun} {origin}, graph {preview.graph} v{preview.graph_version}"
    yield f"  state: {compact(preview.state, 2000)}"
    yield f"  next: {', '.join(preview.next) or '(end): nothing would run'}"
    for title, effects in (
        ("would be done AGAIN, if it takes the same way", preview.again),
        ("would not be sent again: the business key gives the first result", preview.reused),
    ):
        if effects:
            yield f"  {title}:"
            yield from (f"    {effect_line(effect)}" for effect in effects)
    for run_id, graph in preview.children:
        yield f"  would be started again: a child run of {graph} (was {run_id})"
    if not (preview.again or preview.reused or preview.children):
        yield "  no effect that others can see happened after it"
    for running in preview.running:
        nodes = ", ".join(node.path for node in running.nodes if not node.is_finished)
        yield f"  goes on as it is: run {running.run_id} ({running.status}), at {nodes or '-'}"


# -- rollback ------------------------------------------------------------------------------------


def rollback(
    *,
    point: Annotated[
        str,
        typer.Argument(metavar="THREAD@N", help="Thread, and checkpoint (or tag) to go back to."),
    ],
    by: Annotated[
        str, typer.Option("--by", metavar="NAME", help="Who wants it; it is recorded.")
    ] = "",
    reason: Annotated[
        str, typer.Option("--reason", metavar="TEXT", help="Why; it is recorded.")
    ] = "",
    yes: Yes = False,
    tenant: Tenant = "default",
    store: StoreUrl = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    r"""Put a thread's state (and files) back to a checkpoint; effects stay as they happened.

    First shows what it would put back and which effects it would leave, and asks. History is not
    rewritten: the state of the checkpoint becomes a new one.

    \b
    Examples:
      perdure rollback customer-12@3 --by ada --reason 'wrong amount'
      perdure rollback customer-12@3 --by ada --yes --json
    """
    if not by:
        msg = (
            "rollback: --by NAME is missing: say who; it is recorded. See: perdure rollback --help"
        )
        raise UsageError(msg)
    again = ["rollback", point, "--by", by, *(["--reason", reason] if reason else [])]
    again += ["--tenant", tenant] if tenant != "default" else []
    asking = Asking(again, store, yes=yes, as_json=as_json)
    await_(_rollback(asking, point, by, reason, tenant))


async def _rollback(asking: Asking, point: str, by: str, reason: str, tenant: str) -> None:
    async with existing(asking.url) as runtime:
        thread, at = await split_point(runtime.engine, tenant, point)
        if at is None:
            named = with_store(command("history", thread), asking.url)
            msg = (
                f"rollback: which checkpoint? Write {thread}@N or {thread}@TAG; nothing was changed"
            )
            raise UsageError(msg, next=[named])
        preview = await runtime.preview_rollback(thread, at=at, tenant=tenant)
        body = shapes.rollback_json(preview)
        asking.confirm(_rollback_lines(preview, asking.url), body, "Put it back?", "changed")
        done = await runtime.rollback(thread, at=at, by=by, reason=reason, tenant=tenant)
    if asking.as_json:
        print_json(shapes.rollback_json(done))
        return
    say(
        clean(
            f"thread {thread} has the state of checkpoint {at} again, as checkpoint "
            f"{done.new_checkpoint} (run {done.run_id})"
        )
    )


def _rollback_lines(preview: RollbackPreview, url: str) -> Iterator[str]:
    back = f"from checkpoint {preview.newest} to {preview.checkpoint}"
    yield f"thread {preview.thread} would go back {back}"
    yield f"  state: {compact(preview.state, 2000)}"
    if preview.snapshot is not None:
        yield f"  files: those of snapshot {preview.snapshot}"
    if preview.not_undone:
        yield "  effects since then, NOT undone:"
    for each in preview.not_undone:
        yield f"    {effect_line(each.effect)}"
        yield from (f"      {with_store(line, url)}" for line in each.commands)
    for run_id, graph in preview.children:
        yield f"  started since then, NOT undone: child run {run_id} of {graph}"
    if not (preview.not_undone or preview.children):
        yield "  no effect that others can see happened since then"
