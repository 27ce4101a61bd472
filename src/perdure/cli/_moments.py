"""Points of threads, as `show` and `history` print them."""

from perdure.cli import _shapes as shapes
from perdure.cli._output import heading, print_json, say
from perdure.cli._store import existing
from perdure.cli._story import decision_line, effect_line, step_lines
from perdure.cli._text import clean, pretty_json
from perdure.engine.compare import Moment
from perdure.engine.points import is_number, split_point
from perdure.errors import NotFound


def named(at: str) -> int | str:
    """Return a checkpoint as it was named: by its id, or by a tag."""
    return int(at) if is_number(at) else at


async def show_at(run_id: str, at: int | str, url: str, *, as_json: bool) -> None:
    """Print a run's state at a checkpoint that it came to, and what led to it.

    Raises:
        NotFound: there is no such checkpoint, or another run came to it.
    """
    async with existing(url) as runtime:
        row = await runtime.read_row(run_id)
        found = await runtime.moment((row.thread, at), of_run=True, tenant=row.tenant)
    if found.place.run_id != run_id:
        msg = (
            f"checkpoint {at} of thread {row.thread!r} is of run {found.place.run_id!r}, not of "
            f"{run_id!r}"
        )
        raise NotFound(msg, run_id=run_id, checkpoint=at)
    print_moment(found, as_json=as_json)


def print_moment(found: Moment, *, as_json: bool) -> None:
    """Print a point of a thread: its state, and the steps, effects and decisions up to it."""
    if as_json:
        print_json(shapes.moment_json(found))
        return
    place = found.place
    at = f"checkpoint {place.checkpoint}, run {place.run_id}"
    say(clean(f"thread {place.thread}, {at}; next: {', '.join(found.next) or '(end)'}"))
    if found.snapshot is not None:
        say(clean(f"files: snapshot {found.snapshot}"))
    heading("state")
    say(pretty_json(found.state))
    for title, lines in (
        ("steps", [line for step in found.steps for line in step_lines(step, "")]),
        ("effects", [effect_line(effect) for effect in found.effects]),
        ("decisions", [decision_line(decision) for decision in found.decisions]),
    ):
        if lines:
            heading(title)
            for line in lines:
                say(f"  {line}")


async def read_moment(thread: str, at: int | str | None, tenant: str, url: str) -> Moment | None:
    """Return a point of a thread; None: a text that names a thread, and no point of it."""
    async with existing(url) as runtime:
        if at is not None:
            return await runtime.moment((thread, at), tenant=tenant)
        name, checkpoint = await split_point(runtime.engine, tenant, thread)
        return (
            None if checkpoint is None else await runtime.moment((name, checkpoint), tenant=tenant)
        )
