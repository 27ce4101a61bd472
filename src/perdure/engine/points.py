"""Which checkpoint somebody means: by id, by tag, or by a text `thread@id` or `thread@tag`."""

from perdure.engine.environment import Environment
from perdure.engine.limits import TAGS_SHOWN_MAX
from perdure.engine.tagging import tags_of
from perdure.errors import NotFound
from perdure.ids import TenantId, ThreadId


async def checkpoint_at(
    engine: Environment, tenant: TenantId, thread: ThreadId, at: int | str | None
) -> int | None:
    """Return the id of a checkpoint that is named by its id, or by a tag; None: the newest.

    Raises:
        NotFound: the thread has no such tag; says which it has.
    """
    if not isinstance(at, str):
        return at
    tags = await tags_of(engine, tenant, thread)
    for tag in tags:
        if tag.name == at:
            return tag.checkpoint
    if await engine.store.read_thread(tenant, thread) is None:
        msg = f"no thread {thread!r}; 'perdure ps --all' lists the runs and their threads"
        raise NotFound(msg, thread=thread)
    import difflib  # noqa: PLC0415  # costs start-up time; needed for a message only

    names = [tag.name for tag in tags]
    near = difflib.get_close_matches(at, names, n=TAGS_SHOWN_MAX)
    shown = ", ".join(map(repr, near or names[:TAGS_SHOWN_MAX])) or "none"
    known = f"{'did you mean' if near else 'tags of it'}: {shown}"
    msg = (
        f"thread {thread!r} has no tag {at!r}; {known}. "
        f"'perdure history {thread}' lists its checkpoints and tags"
    )
    raise NotFound(msg, thread=thread, tag=at)


async def split_point(engine: Environment, tenant: str, text: str) -> tuple[str, int | None]:
    """Return thread and checkpoint of a text `thread`, `thread@checkpoint` or `thread@tag`.

    A thread may have an `@` in its name: where there is one of the whole name, it is meant. So may
    a tag: the longest name of a thread that is there counts. A number is a checkpoint's.

    Raises:
        NotFound: the thread has no such tag.
    """
    whose = TenantId(tenant)
    thread, mark, name = text.rpartition("@")
    if not mark or await engine.store.read_thread(whose, ThreadId(text)) is not None:
        return text, None
    if is_number(name):
        return thread, int(name)
    while mark:
        if await engine.store.read_thread(whose, ThreadId(thread)) is not None:
            return thread, await checkpoint_at(engine, whose, ThreadId(thread), name)
        thread, mark, rest = thread.rpartition("@")
        name = f"{rest}@{name}"
    return text, None


def is_number(text: str) -> bool:
    """Return whether a text is the id of a checkpoint, rather than the name of a tag."""
    return text.isascii() and text.isdecimal()
