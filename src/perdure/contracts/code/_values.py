"""What an expression may be, and from where: the words of the evaluation in `_flow`."""

import ast
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any, Protocol

from msgspec import Struct, field
from msgspec.structs import replace

from perdure.contracts.code import limits
from perdure.contracts.code._meanings import Variable
from perdure.contracts.code._program import Program
from perdure.contracts.code._scopes import Assign, Guard, Scope
from perdure.contracts.code.facts import Medium, Role
from perdure.contracts.evidence import Confidence, Evidence, weakest


class Kind(StrEnum):
    """What kind of thing a leaf is."""

    CONST = "const"
    """`value` is a Python constant, tuple or frozenset."""
    SITE = "site"
    """`value` is a `Made`."""
    INSTANCE = "instance"
    """`value` is an `Instance` of a class of the project."""
    TABLE = "table"
    """`value` is a `Table`."""
    MEANING = "meaning"
    """`value` is a function, class, module or name of a library."""
    LIST = "list"
    """`value` is an `Items`: a list or tuple whose items are expressions."""
    RESOURCE = "resource"
    """A connection or pool: `value` is a `Resource`."""
    UNKNOWN = "unknown"


class Frame(Struct, frozen=True, eq=False):
    """Where an expression is evaluated: a scope, and the arguments that are known there."""

    scope: Scope
    arguments: Mapping[str, "tuple[ast.expr, Frame]"] = field(default_factory=dict)
    instance: "Instance | None" = None
    depth: int = 0


class Made(Struct, frozen=True, eq=False):
    """A saver, store or history that a call makes."""

    role: Role
    medium: Medium
    class_name: str
    node: ast.Call
    frame: Frame
    is_entered: bool = True
    """False: a context manager that nobody has entered yet."""
    place: ast.expr | None = None
    """Of a saver of the project's own: what says where, in `place_frame`."""
    place_frame: Frame | None = None
    is_own: bool = False
    """The project wrote it, so that what its arguments mean is its own affair."""
    is_shared: bool = False
    """What it holds is the module's or the class's: its objects have it together."""

    @property
    def key(self) -> tuple[str, int, int]:
        """Which place of the project this is."""
        return self.frame.scope.path, self.node.lineno, self.node.col_offset


class Instance(Struct, frozen=True, eq=False):
    """An object of a class of the project."""

    scope: Scope
    node: ast.Call | None
    frame: Frame
    prefix: str = ""
    """Of a settings class within another: what its variables begin with."""


class Table(Struct, frozen=True, eq=False):
    """A dict: from a literal, or from a configuration file (plain values)."""

    node: ast.Dict | None
    frame: Frame
    plain: Mapping[str, Any] | None = None
    place: Evidence | None = None


class Items(Struct, frozen=True, eq=False):
    """A list or tuple of expressions."""

    items: tuple[ast.expr, ...]
    frame: Frame


class Resource(Struct, frozen=True, eq=False):
    """A connection, and the expression that says to where."""

    location: ast.expr | None
    frame: Frame
    node: ast.Call | None = None
    """The call that makes it."""


class Bound(Struct, frozen=True, eq=False):
    """A method with the object it belongs to."""

    scope: Scope
    instance: Instance


class Unnamed(Struct, frozen=True, eq=False):
    """A `lambda`, with where it stands."""

    node: ast.Lambda
    frame: Frame


Condition = tuple[Frame, Guard]


class Leaf(Struct, frozen=True, kw_only=True, eq=False):
    """One thing that an expression may be."""

    kind: Kind
    value: Any = None
    conditions: tuple[Condition, ...] = ()
    """What must be so for it to be this one."""
    evidence: tuple[Evidence, ...] = ()
    confidence: Confidence = Confidence.PROVED
    question: str | None = None
    assumed: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()
    """Names of the variables and settings that it depends on."""
    is_unset: bool = False
    """The value of a variable that nobody sets."""
    is_initial: bool = False
    """`None`, until something else is assigned."""

    def under(self, conditions: Iterable[Condition]) -> "Leaf":
        """Return it with more conditions."""
        conditions = tuple(conditions)
        if not conditions:
            return self
        if not self.conditions:
            too_many = len(conditions) > limits.CONDITIONS_MAX
            return unknown(self.question) if too_many else replace(self, conditions=conditions)
        held = set(self.conditions)
        more = tuple(one for one in conditions if one not in held)
        if not more:
            return self
        if len(more) + len(held) > limits.CONDITIONS_MAX:
            return unknown(self.question)
        return replace(self, conditions=(*more, *self.conditions))

    def after(self, steps: Iterable[Evidence], confidence: Confidence | None = None) -> "Leaf":
        """Return it with steps told before its own."""
        whole = tuple(dict.fromkeys((*steps, *self.evidence)))
        return replace(
            self,
            evidence=whole,
            confidence=weakest([self.confidence, confidence or Confidence.PROVED]),
        )

    def lost(self) -> "Leaf":
        """Return what a value that was made of it is: unknown, with its question."""
        return Leaf(kind=Kind.UNKNOWN, question=self.question, settings=self.settings)

    def by(self, decision: "Decision") -> "Leaf":
        """Return it with what the decision about its conditions stands on."""
        is_asked = decision.is_met is None and bool(decision.settings)
        return replace(
            self,
            confidence=weakest([self.confidence, decision.confidence]),
            question=self.question or (decision.question if is_asked else None),
            assumed=tuple(dict.fromkeys((*self.assumed, *decision.assumed))),
            settings=tuple(dict.fromkeys((*self.settings, *decision.settings))),
        )


def unknown(question: str | None = None, evidence: tuple[Evidence, ...] = ()) -> Leaf:
    """Return a leaf that says nothing, with the question that would settle it."""
    return Leaf(kind=Kind.UNKNOWN, question=question, evidence=evidence)


def const(value: object, evidence: tuple[Evidence, ...] = ()) -> Leaf:
    """Return a leaf that is a constant of the code."""
    return Leaf(kind=Kind.CONST, value=value, evidence=evidence)


class Decision(Struct, frozen=True, kw_only=True):
    """Whether a condition is met: `None` when not known."""

    is_met: bool | None
    evidence: tuple[Evidence, ...] = ()
    confidence: Confidence = Confidence.PROVED
    question: str | None = None
    assumed: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()
    """Names of the variables and settings that it depends on."""


class Deciding(Protocol):
    """Decides tests."""

    def truth(self, node: ast.expr, frame: Frame) -> Decision:
        """Return whether an expression is true."""
        ...

    def all_of(self, conditions: Iterable[Condition]) -> Decision:
        """Return whether all conditions are met."""
        ...


class Looking(Protocol):
    """Looks variables of the environment up."""

    def get(self, name: str, place: Evidence) -> Leaf:
        """Return the value of a variable that the code reads at `place`."""
        ...

    def is_left_out(self, name: str) -> bool:
        """Whether a variable is one that nobody commits, and no file of the project names it."""
        ...


class Evaluating(Protocol):
    """The evaluation as its parts see it; `_flow.Flow` is the one there is."""

    cuts: int
    """How many questions were answered without what they depend on."""
    left: float
    """Steps that are left for this kind of question."""
    program: Program

    @property
    def environment(self) -> Looking:
        """The variables of the environment."""
        ...

    @property
    def decider(self) -> Deciding:
        """What decides tests."""
        ...

    def initial(self, node: ast.expr, frame: "Frame") -> "list[Leaf]":
        """Return the `None` that a module's name surely begins with; empty: it may be more."""
        ...

    def is_left_out(self, scope: Scope) -> bool:
        """Whether what a scope assigns to variables and attributes of others counts for nothing."""
        ...

    def frame(self, scope: Scope) -> Frame:
        """Return the frame of a scope about whose arguments nothing particular is known."""
        ...

    def inside(
        self,
        scope: Scope,
        arguments: "dict[str, tuple[ast.expr, Frame]]",
        instance: "Instance | None" = None,
        depth: int = 1,
    ) -> Frame:
        """Return the frame of a call, the same one for the same arguments."""
        ...

    def instance(self, scope: Scope, node: ast.Call | None, frame: Frame) -> Instance:
        """Return the object that a constructor makes, the same one for the same call."""
        ...

    def leaves(self, node: ast.expr | None, frame: Frame) -> list[Leaf]:
        """Return what an expression may be; never empty."""
        ...

    def likely(self, node: ast.expr | None, frame: Frame) -> list[Leaf]:
        """Return the leaves whose conditions are not known to fail."""
        ...

    def only(self, node: ast.expr | None, frame: Frame) -> Leaf | None:
        """Return the one leaf that an expression has, if it has one."""
        ...

    def results(self, scope: Scope, frame: Frame) -> list[Leaf]:
        """Return what a function returns or yields."""
        ...

    def attribute_of(self, leaf: Leaf, name: str) -> list[Leaf]:
        """Return what an attribute of a leaf may be."""
        ...

    def item_of(self, leaf: Leaf, key: str) -> list[Leaf]:
        """Return what a dict holds under a key."""
        ...

    def variable(self, meaning: Variable, frame: Frame, line: int) -> list[Leaf]:
        """Return what a variable may be at a line."""
        ...

    def cut(self) -> None:
        """Note that a question was answered without what it depends on, so that nobody keeps it."""
        ...

    def assigned(self, assign: Assign, frame: Frame) -> list[Leaf]:
        """Return what an assignment binds."""
        ...


def argument(call: ast.Call, scope: Scope, name: str) -> ast.expr | None:
    """Return what a call passes for a parameter; `None` if it leaves it to the default."""
    for keyword in call.keywords:
        if keyword.arg == name:
            return keyword.value
    names = [parameter.arg for parameter in scope.parameters]
    if names and scope.owner is not None and names[0] in {"self", "cls"}:
        names = names[1:]
    node = scope.node
    positional = len(names)
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        positional -= len(node.args.kwonlyargs)
    if name in names[:positional]:
        at = names.index(name)
        if at < len(call.args) and not any(isinstance(one, ast.Starred) for one in call.args):
            return call.args[at]
    return None


def joined(left: str, right: str) -> str:
    """Join two paths as `Path.__truediv__` does."""
    if right.startswith("/"):
        return right
    return f"{left.rstrip('/')}/{right}" if left and left != "." else right


def replace_value(leaf: Leaf, value: object) -> Leaf:
    """Return a constant with another value, known from the same places."""
    return replace(leaf, value=value)


def settled(leaves: list[Leaf]) -> list[Leaf]:
    """Leave out what a value is before anything was assigned to it, if something ever is."""
    others = [leaf for leaf in leaves if not leaf.is_initial]
    return others or leaves
