"""Every public method refuses arguments of a wrong type with an error of ours, and does nothing."""

import inspect
import typing

import pytest

from perdure import NotFound, PerdureError, Run, Runtime, UsageError, sync
from perdure.engine.edge import checked
from perdure.errors import SettingInvalid
from tests.engine.one_node import one_node

NEEDED = {
    str: "x",
    int: 1,
    bool: True,
    float: 1.0,
}
"""What stands in for the arguments that are not on trial."""


def methods():
    """Return the public methods of the runtime and of runs that take something."""
    found = [(cls, name) for cls in (Runtime, Run) for name in dir(cls) if not name.startswith("_")]
    return [
        (cls, name)
        for cls, name in found
        if callable(getattr(cls, name))
        and len(inspect.signature(getattr(cls, name)).parameters) > 0
    ]


def parameters(cls, name):
    """Return the parameters of a method and what each is annotated with."""
    function = inspect.unwrap(getattr(cls, name))
    hints = typing.get_type_hints(function)
    names = [each for each in inspect.signature(function).parameters if each not in ("self", "cls")]
    return {each: hints.get(each, typing.Any) for each in names}


CASES = [(cls, name, each) for cls, name in methods() for each in parameters(cls, name)]


def needed(cls, name):
    """Return values for all required arguments of a method."""
    signature = inspect.signature(inspect.unwrap(getattr(cls, name)))
    hints = parameters(cls, name)
    return {
        each: NEEDED.get(hint, "x")
        for each, hint in hints.items()
        if signature.parameters[each].default is inspect.Parameter.empty
    }


async def outcome_of(held, name, arguments):
    """Call a method and do with what it returns what callers do."""
    found = getattr(held, name)(**arguments)
    if hasattr(found, "__anext__"):
        return [each async for each in found]
    return await found if hasattr(found, "__await__") else found


@pytest.fixture
async def started():
    """Return an open runtime with one run that waits for ever."""
    graph = one_node(lambda ctx: ctx.receive("never"), name="waiting")
    async with Runtime.open("memory://", [graph], worker=False) as runtime:
        yield runtime, await runtime.start("waiting", {}, thread="t")


@pytest.mark.parametrize(
    ("cls", "name", "argument"), CASES, ids=[f"{c.__name__}.{n}-{a}" for c, n, a in CASES]
)
async def test_an_argument_of_no_type_of_its_own_is_refused(started, cls, name, argument):
    held = started[0 if cls is Runtime else 1]
    values = needed(cls, name) | {argument: object()}
    if (name, argument) in STORED:
        return
    with pytest.raises(PerdureError) as caught:
        await outcome_of(held, name, values)
    is_about_it = not isinstance(caught.value, NotFound)
    assert is_about_it or parameters(cls, name)[argument] is typing.Any


STORED = {("open", "sandbox"), ("open", "services")}
"""What only tests and plug-ins give: protocols, which say themselves what they lack."""


WRONG = [
    (str, 5),
    (str, b"t"),
    (str, "a\0b"),
    (str, "\udcff"),
    (int, "3"),
    (int, 3.0),
    (int, True),
    (int, 2**63),
    (bool, "no"),
    (bool, 0),
    (float, "3"),
    (float, True),
]


@pytest.mark.parametrize(("cls", "name", "argument"), [c for c in CASES if c[1] != "open"])
async def test_what_only_looks_right_is_refused(started, cls, name, argument):
    held = started[0 if cls is Runtime else 1]
    hint = parameters(cls, name)[argument]
    kinds = typing.get_args(hint) or (hint,)
    for kind, value in WRONG:
        if kind not in kinds or (type(value) in kinds and kind is not type(value)):
            continue
        with pytest.raises(UsageError):
            await outcome_of(held, name, needed(cls, name) | {argument: value})


async def test_a_limit_lets_something_through(started):
    runtime, _run = started
    for limit in (0, -1):
        for method in (runtime.runs, runtime.effects):
            with pytest.raises(SettingInvalid, match="at least 1"):
                await method(limit=limit)


async def test_the_refusal_names_method_argument_and_type(started):
    runtime, _run = started
    with pytest.raises(SettingInvalid) as caught:
        await runtime.state("t", at=b"3")
    assert str(caught.value) == (
        "state(at=b'3'): must be a whole number or a text or None, not bytes; nothing was done"
    )
    assert caught.value.fields == {"argument": "at", "got": "bytes"}


@pytest.mark.parametrize(
    "point", [("t", "3"), (5, 3), ("t", True), "\0", "t@" + "9" * 30, ("t", -1)]
)
async def test_points_that_are_none_are_refused(started, point):
    runtime, _run = started
    for method in (runtime.compare, runtime.diff):
        with pytest.raises((UsageError, NotFound)):
            await method(point, "t")
    with pytest.raises((UsageError, NotFound)):
        await runtime.moment(point)


def test_the_sync_door_has_the_same_edge(tmp_path):
    opened = sync.Runtime.open(f"sqlite:///{tmp_path}/s.db", worker=False)
    with opened as runtime, pytest.raises(SettingInvalid, match="a whole number or a text or None"):
        runtime.state("t", at=b"3")


def test_a_subclass_is_of_its_type_and_missing_arguments_stay_pythons():
    class Name(str):
        __slots__ = ()

    @checked
    def method(name: str, *, at: int | None = None) -> str:
        return name

    assert method(Name("n"), at=None) == "n"
    with pytest.raises(TypeError, match="missing"):
        method()
