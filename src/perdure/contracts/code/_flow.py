"""What an expression may be, traced backwards without executing anything.

Theory: an expression has leaves: constants, savers that a call makes, objects, or the unknown. A
leaf carries the conditions under which the expression is this one, from every branch on the way.
A condition is decided by the leaves of its own test. So "which saver does the graph get" and "is
DATABASE_TYPE postgres here" are the same question. It is bounded by steps and depth; what is beyond
them is unknown, never guessed.

Size: the tracing of one language; its parts call each other at every step.
"""

import ast
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from msgspec.structs import replace

from perdure.contracts.code import limits
from perdure.contracts.code._calls import Calls
from perdure.contracts.code._decide import Decider
from perdure.contracts.code._environment import Environment
from perdure.contracts.code._fields import Fields
from perdure.contracts.code._index import index_of
from perdure.contracts.code._meanings import External, Module, Parameter, Variable
from perdure.contracts.code._program import Program
from perdure.contracts.code._scopes import (
    Assign,
    Call,
    Guard,
    GuardKind,
    Guards,
    Scope,
    last_name,
    walk,
)
from perdure.contracts.code._values import (
    Condition,
    Decision,
    Frame,
    Instance,
    Items,
    Kind,
    Leaf,
    Table,
    Unnamed,
    argument,
    const,
    joined,
    settled,
    unknown,
)
from perdure.contracts.evidence import Confidence, Evidence


class Flow:
    """Answers what expressions of one program may be."""

    def __init__(
        self,
        program: Program,
        environment: Environment,
        *,
        left_out: Callable[[Scope], bool] | None = None,
    ) -> None:
        """Evaluate under this environment, without what some scopes assign to others' names."""
        self.program = program
        self._left_out = left_out
        self.environment = environment
        self.left = float(limits.FLOW_TOTAL_MAX)
        self._steps = 0
        self._steps_max = limits.FLOW_STEPS_MAX
        self._depth = 0
        self.cuts = 0
        self._kept: list[tuple[ast.expr, Frame]] = []
        self._busy: set[tuple[int, int]] = set()
        self._passing: dict[tuple[int, int], list[Leaf]] = {}
        """Answers without what was being asked around them, for one question that became long."""
        self._kept_passing: list[tuple[ast.expr, Frame]] = []
        self._frames: dict[int, Frame] = {}
        self._inside: dict[tuple[object, ...], Frame] = {}
        self._instances: dict[tuple[int, int, int], Instance] = {}
        self._known: dict[tuple[int, int], list[Leaf]] = {}
        self.calls = Calls(self)
        self.decider = Decider(self)
        self.fields = Fields(self)

    def frame(self, scope: Scope) -> Frame:
        """Return the frame of a scope about whose arguments nothing particular is known."""
        return self._frames.setdefault(id(scope), Frame(scope))

    def inside(
        self,
        scope: Scope,
        arguments: dict[str, tuple[ast.expr, Frame]],
        instance: Instance | None = None,
        depth: int = 1,
    ) -> Frame:
        """Return the frame of a call, the same one for the same arguments."""
        given = tuple((name, id(node), id(frame)) for name, (node, frame) in arguments.items())
        key = (id(scope), given, id(instance))
        if key not in self._inside:
            self._inside[key] = Frame(scope, arguments, instance, depth)
        return self._inside[key]

    def instance(self, scope: Scope, node: ast.Call | None, frame: Frame) -> Instance:
        """Return the object that a constructor makes, the same one for the same call."""
        key = (id(scope), id(node), id(frame))
        if key not in self._instances:
            self._instances[key] = Instance(scope, node, frame)
        return self._instances[key]

    def leaves(self, node: ast.expr | None, frame: Frame) -> list[Leaf]:
        """Return what an expression may be; never empty."""
        if node is None:
            return [const(None)]
        key = (id(node), id(frame))
        if key in self._known:
            return self._known[key]
        if key in self._busy or self._depth >= limits.FLOW_DEPTH_MAX or self._is_spent():
            self.cut()
            return [unknown()]
        if self._steps > limits.FLOW_EXACT_MAX and self._depth and key in self._passing:
            self.cut()
            return self._passing[key]
        if not self._depth:
            self._steps = 0
            self._passing.clear()
            self._kept_passing.clear()
        self._steps += 1
        self.left -= 1
        self._busy.add(key)
        self._depth += 1
        cuts = self.cuts
        try:
            found = self._bounded(self._of(node, frame))
        finally:
            self._depth -= 1
            self._busy.discard(key)
        if cuts == self.cuts or (not self._busy and self._steps_max == limits.FLOW_STEPS_MAX):
            self._known[key] = found
            self._kept.append((node, frame))  # so that no other object gets their ids
        else:
            self._passing[key] = found
            self._kept_passing.append((node, frame))
        return found

    def _bounded(self, leaves: list[Leaf]) -> list[Leaf]:
        """Keep as many as are looked at; where there are more, those go first that can't be."""
        if len(leaves) > limits.LEAVES_MAX:
            leaves = [
                one for one in leaves if self.decider.all_of(one.conditions).is_met is not False
            ]
        return leaves[: limits.LEAVES_MAX] or [unknown()]

    def is_left_out(self, scope: Scope) -> bool:
        """Whether what a scope assigns to variables and attributes of others counts for nothing."""
        return self._left_out is not None and self._left_out(scope)

    def begin(self) -> None:
        """Begin with another kind of question, with a bound of its own."""
        self.left = float(limits.FLOW_TOTAL_MAX)

    @contextmanager
    def briefly(self) -> Iterator[None]:
        """Give up on questions early: whoever asks wants to know of settings, which are near.

        What a request brings, or another service says, is traced far, and is not known in the end.
        """
        before, self._steps_max = self._steps_max, limits.FLOW_BRIEF_MAX
        try:
            yield
        finally:
            self._steps_max = before

    def cut(self) -> None:
        """Note that a question was answered without what it depends on, so that nobody keeps it."""
        self.cuts += 1

    def _is_spent(self) -> bool:
        return self.left <= 0 or (self._depth > 0 and self._steps > self._steps_max)

    # --------------------------------------------------------------------------- expressions

    def _of(  # noqa: C901, PLR0912 - one case for each kind of node
        self, node: ast.expr, frame: Frame
    ) -> list[Leaf]:
        match node:
            case ast.Constant():
                return [const(node.value)]
            case ast.Name():
                return self.name(node, frame)
            case ast.Attribute():
                return self.fields.attribute(node, frame)
            case ast.Call():
                return self.calls.call(node, frame)
            case ast.Await() | ast.Starred() | ast.NamedExpr() | ast.YieldFrom():
                return self.leaves(node.value, frame)
            case ast.IfExp():
                return self._either(node, frame)
            case ast.BoolOp():
                return self._chain(node, frame)
            case ast.Compare() | ast.UnaryOp(op=ast.Not()):
                return [self._truth(node, frame)]
            case ast.JoinedStr():
                return [self._joined(node, frame)]
            case ast.BinOp():
                return self._binary(node, frame)
            case ast.Dict():
                return [Leaf(kind=Kind.TABLE, value=Table(node, frame))]
            case ast.List() | ast.Tuple() | ast.Set():
                return [self._items(node, frame)]
            case ast.Subscript():
                return self.fields.subscript(node, frame)
            case ast.Lambda():
                return [Leaf(kind=Kind.MEANING, value=Unnamed(node, frame))]
            case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as number)):
                return [const(-number)]
        return [unknown()]

    def _either(self, node: ast.IfExp, frame: Frame) -> list[Leaf]:
        yes, no = (self.condition(node.test, frame, is_true=way) for way in (True, False))
        return [
            *(leaf.under([yes]) for leaf in self.leaves(node.body, frame)),
            *(leaf.under([no]) for leaf in self.leaves(node.orelse, frame)),
        ]

    @staticmethod
    def condition(test: ast.expr, frame: Frame, *, is_true: bool) -> Condition:
        """Return the condition that a test comes out so."""
        return (
            frame,
            Guard(kind=GuardKind.TEST, node=test, is_true=is_true, line=test.lineno),
        )

    def _chain(self, node: ast.BoolOp, frame: Frame) -> list[Leaf]:
        stops_when = isinstance(node.op, ast.Or)
        found: list[Leaf] = []
        before: list[Condition] = []
        for at, part in enumerate(node.values):
            is_last = at == len(node.values) - 1
            if is_last:
                return [*found, *(leaf.under(before) for leaf in self.leaves(part, frame))]
            truth = self.decider.truth(part, frame)
            if truth.is_met is stops_when:
                return [*found, *(leaf.under(before) for leaf in self.leaves(part, frame))]
            if truth.is_met is None:
                stop = self.condition(part, frame, is_true=stops_when)
                found.extend(leaf.under([*before, stop]) for leaf in self.leaves(part, frame))
            before.append(self.condition(part, frame, is_true=not stops_when))
        return found

    def _truth(self, node: ast.expr, frame: Frame) -> Leaf:
        truth = self.decider.truth(node, frame)
        if truth.is_met is None:
            return unknown(truth.question, truth.evidence)
        return Leaf(
            kind=Kind.CONST,
            value=truth.is_met,
            evidence=truth.evidence,
            confidence=truth.confidence,
            assumed=truth.assumed,
            settings=truth.settings,
        )

    def _joined(self, node: ast.JoinedStr, frame: Frame) -> Leaf:
        whole = ""
        steps: tuple[Evidence, ...] = ()
        confidences = [Confidence.PROVED]
        for part in node.values:
            inner = part.value if isinstance(part, ast.FormattedValue) else part
            leaf = self.only(inner, frame)
            if leaf is None or leaf.kind is not Kind.CONST:
                return unknown(leaf.question if leaf else None, leaf.evidence if leaf else ())
            whole += str(leaf.value)
            steps += leaf.evidence
            confidences.append(leaf.confidence)
            if len(whole) > limits.TEXT_MAX:
                return unknown()
        return const(whole).after(steps, max(confidences, key=list(Confidence).index))

    def _binary(self, node: ast.BinOp, frame: Frame) -> list[Leaf]:
        found = []
        for left in self.leaves(node.left, frame):
            if isinstance(node.op, ast.BitOr) and left.kind is Kind.TABLE:
                found.append(left)
                continue
            right = self.only(node.right, frame)
            if right is None or right.kind is not Kind.CONST or left.kind is not Kind.CONST:
                found.append(unknown(left.question or (right.question if right else None)))
                continue
            value = _combined(node.op, left.value, right.value)
            found.append(
                unknown()
                if value is None
                else replace(left, value=value).after(right.evidence, right.confidence)
            )
        return found

    def _items(self, node: ast.List | ast.Tuple | ast.Set, frame: Frame) -> Leaf:
        values = []
        for item in node.elts:
            if isinstance(item, ast.Constant):
                values.append(item.value)
            else:
                return Leaf(kind=Kind.LIST, value=Items(tuple(node.elts), frame))
        return const(tuple(values))

    # --------------------------------------------------------------------------------- names

    def name(self, node: ast.Name, frame: Frame) -> list[Leaf]:
        """Return what a name may be where it is used."""
        if node.id == "__file__":
            return [const(self.program.layout.in_container(frame.scope.path))]
        meaning = self.program.resolve(frame.scope, node.id)
        match meaning:
            case None:
                return [Leaf(kind=Kind.MEANING, value=External(f"builtins.{node.id}"))]
            case Parameter():
                return self.parameter(meaning, frame, node.lineno)
            case Variable():
                return self.variable(meaning, frame, node.lineno)
        return [Leaf(kind=Kind.MEANING, value=meaning)]

    def variable(self, meaning: Variable, frame: Frame, line: int) -> list[Leaf]:
        """Return what a variable may be at a line."""
        scope = meaning.scope
        inside = frame if scope is frame.scope else self.frame(scope)
        assigns = scope.assigns.get(meaning.name, [])
        if scope is frame.scope and scope.kind == "function":
            return self._in_order([one for one in assigns if one.line <= line], inside)
        found = self._in_order(assigns, inside)
        if scope.kind == "module":
            found = [replace(leaf, is_initial=_is_none(leaf)) for leaf in found]
            found.extend(self._from_functions(meaning))
            found.extend(self._from_elsewhere(meaning))
        return found

    def initial(self, node: ast.expr, frame: Frame) -> list[Leaf]:
        """Return the `None` that a module's name surely begins with; empty: it may be more.

        What functions put there later need not be known to say how a first request finds it, and
        they ask for the name themselves before they make anything: once, or again behind a lock.
        """
        meaning = self.program.resolve(frame.scope, node.id) if isinstance(node, ast.Name) else None
        if not isinstance(meaning, Variable) or meaning.scope.kind != "module":
            return []
        assigns = meaning.scope.assigns.get(meaning.name, [])
        if len(assigns) != 1 or assigns[0].guards or assigns[0].is_entered:
            return []
        value = assigns[0].value
        if not isinstance(value, ast.Constant) or value.value is not None:
            return []
        found = self.leaves(value, self.frame(meaning.scope))
        return [replace(leaf, is_initial=True) for leaf in found]

    def _from_functions(self, meaning: Variable) -> list[Leaf]:
        found: list[Leaf] = []
        for scope in index_of(meaning.scope).sharing.get(meaning.name, ()):
            if self.program.is_live(scope) and not self.is_left_out(scope):
                for assign in scope.assigns.get(meaning.name, []):
                    found.extend(self.assigned(assign, self.frame(scope)))
        return found

    def _from_elsewhere(self, meaning: Variable) -> list[Leaf]:
        """Return what other modules put into a variable: `module.name = value`."""
        found: list[Leaf] = []
        for scope in self.program.assigning(meaning.name)[: limits.CANDIDATES_MAX]:
            for assign in scope.attributes if not self.is_left_out(scope) else ():
                target = assign.target
                if isinstance(target, ast.Attribute) and target.attr == meaning.name:
                    module = self.program.meaning(scope, target.value)
                    if isinstance(module, Module) and module.path == meaning.scope.path:
                        found.extend(self.assigned(assign, self.frame(scope)))
        return found

    def _in_order(self, assigns: list[Assign], frame: Frame) -> list[Leaf]:
        """Return what assignments leave: the last certain one, and the doubtful after it."""
        found: list[Leaf] = []
        later: list[Condition] = []
        for assign in reversed(assigns):
            leaves = self.assigned(assign, frame)
            found.extend(leaf.under(later) for leaf in leaves)
            decision = self.decider.all_of([(frame, guard) for guard in assign.guards])
            if decision.is_met is True or not assign.guards:
                break
            last = assign.guards[-1]
            if last.kind != "handler" and not last.unless:
                later.append((frame, replace(last, is_true=not last.is_true)))
        return found

    def assigned(self, assign: Assign, frame: Frame) -> list[Leaf]:
        """Return what an assignment binds, under the guards it stands under."""
        if assign.value is None:
            return [unknown()]
        found = settled(self.leaves(assign.value, frame))
        if assign.is_entered:
            found = [more for leaf in found for more in self.calls.entered(leaf)]
        if assign.item is not None:
            found = [more for leaf in found for more in self._item(leaf, assign.item)]
        return [leaf.under((frame, guard) for guard in assign.guards) for leaf in found]

    def _item(self, leaf: Leaf, at: int) -> list[Leaf]:
        if leaf.kind is Kind.LIST and at < len(leaf.value.items):
            inner = self.leaves(leaf.value.items[at], leaf.value.frame)
            return [one.under(leaf.conditions) for one in inner]
        if leaf.kind is Kind.CONST and isinstance(leaf.value, tuple) and at < len(leaf.value):
            return [replace(leaf, value=leaf.value[at])]
        return [unknown()]

    def parameter(self, meaning: Parameter, frame: Frame, line: int) -> list[Leaf]:
        """Return what a parameter may be: what callers pass, or its default."""
        scope, name = meaning.scope, meaning.name
        changed = [one for one in scope.assigns.get(name, []) if one.line <= line]
        if changed and scope is frame.scope:
            found = self._in_order([one for one in changed if one.line < line], frame)
            certain = any(self.decider.all_of(leaf.conditions).is_met is True for leaf in found)
            return found if certain else [*found, *self._given(scope, name, frame)]
        return self._given(scope, name, frame)

    def _given(self, scope: Scope, name: str, frame: Frame) -> list[Leaf]:
        owner = scope.owner
        if owner is not None and scope.parameters and scope.parameters[0].arg == name:
            if name == "cls":
                return [Leaf(kind=Kind.MEANING, value=owner)]
            if name == "self":
                instance = frame.instance if frame.scope is scope else None
                instance = instance or self.instance(owner, None, self.frame(owner))
                return [Leaf(kind=Kind.INSTANCE, value=instance)]
        if frame.scope is scope and name in frame.arguments:
            node, where = frame.arguments[name]
            return settled(self.leaves(node, where))
        if frame.scope is scope and frame.depth:
            return self._default(scope, name)
        return self._from_callers(scope, name)

    def _default(self, scope: Scope, name: str) -> list[Leaf]:
        default = scope.default_of(name)
        injected = self._injected(scope, name)
        if injected is not None:
            return self.leaves(injected[0], self.frame(injected[1]))
        if default is None:
            return [unknown()]
        return self.leaves(default, self.frame(scope.parent or scope))

    def _from_callers(self, scope: Scope, name: str) -> list[Leaf]:
        if self._injected(scope, name) is not None:
            return self._default(scope, name)
        found: list[Leaf] = []
        sites = self.callers(scope)
        for where, call in sites[: limits.CALLERS_MAX]:
            frame = self.frame(where)
            given = argument(call.node, scope, name)
            leaves = self.leaves(given, frame) if given is not None else self._default(scope, name)
            leaves = settled(leaves)
            found.extend(leaf.under((frame, guard) for guard in call.guards) for leaf in leaves)
        if not sites and scope.default_of(name) is not None:
            return [leaf.after((), Confidence.INFERRED) for leaf in self._default(scope, name)]
        return found or [unknown()]

    def _injected(self, scope: Scope, name: str) -> tuple[ast.expr, Scope] | None:
        """Return the `Depends(...)` that a framework fills a parameter with, and where it is."""
        around = scope.parent or scope
        default = scope.default_of(name)
        if isinstance(default, ast.Call) and last_name(default.func) in {"Depends", "Security"}:
            return default, around
        for parameter in scope.parameters:
            if parameter.arg != name or parameter.annotation is None:
                continue
            found = _depends(parameter.annotation)
            if found is not None:
                return found, around
            alias = self.program.meaning(around, parameter.annotation)
            for assign in alias.scope.assigns[alias.name] if isinstance(alias, Variable) else ():
                found = _depends(assign.value) if assign.value is not None else None
                if found is not None and isinstance(alias, Variable):
                    return found, alias.scope
        return None

    def callers(self, scope: Scope) -> list[tuple[Scope, Call]]:
        """Return the reachable calls of a function, method or constructor."""
        known = self.program.callers
        if id(scope) not in known:
            known[id(scope)] = self._callers(scope)
        return known[id(scope)]

    def _callers(self, scope: Scope) -> list[tuple[Scope, Call]]:
        name = scope.name.rpartition(".")[2]
        owner = scope.owner
        if name == "__init__" and owner is not None:
            own = [
                (where, call)
                for where, call in self.program.calls_of(owner.name.rpartition(".")[2])
                if self.program.meaning(where, call.node.func) is owner
            ]
            return own + self._from_subclasses(owner)
        found = []
        for where, call in self.program.calls_of(name):
            meaning = self.program.meaning(where, call.node.func)
            is_attribute = isinstance(call.node.func, ast.Attribute)
            is_method = is_attribute and (owner is not None or id(scope) in self.program.offered)
            if meaning is scope or (meaning is None and is_method):
                found.append((where, call))
        return found

    def _from_subclasses(self, owner: Scope) -> list[tuple[Scope, Call]]:
        found = [
            (where, call)
            for where, call in self.program.calls_of("__init__")
            if (around := self.program.class_around(where)) is not None
            and around is not owner
            and owner in self.program.bases(around)
        ]
        derived = [
            one
            for one in self.program.family(owner)
            if owner in self.program.bases(one) and "__init__" not in one.inner
        ]
        for one in derived:
            found.extend(
                (where, call)
                for where, call in self.program.calls_of(one.name.rpartition(".")[2])
                if self.program.meaning(where, call.node.func) is one
            )
        return found

    def results(self, scope: Scope, frame: Frame) -> list[Leaf]:
        """Return what a function returns or yields."""
        return self.calls.results(scope, frame)

    def attribute_of(self, leaf: Leaf, name: str) -> list[Leaf]:
        """Return what an attribute of a leaf may be."""
        return self.fields.of(leaf, name)

    def item_of(self, leaf: Leaf, key: str) -> list[Leaf]:
        """Return what a dict holds under a key."""
        return self.fields.item(leaf, key)

    # ------------------------------------------------------------------------------- answers

    def likely(self, node: ast.expr | None, frame: Frame) -> list[Leaf]:
        """Return the leaves whose conditions are not known to fail."""
        found = []
        for leaf in self.leaves(node, frame):
            decision = self.decider.all_of(leaf.conditions)
            if decision.is_met is not False:
                found.append(leaf.by(decision) if leaf.conditions else leaf)
        return found

    def only(self, node: ast.expr | None, frame: Frame) -> Leaf | None:
        """Return the one leaf that an expression has; `None` if there are several or none."""
        found = self.likely(node, frame)
        if not found:
            return None
        first = found[0]
        if all(_same(first, other) for other in found[1:]):
            decisions = [self.decider.all_of(leaf.conditions) for leaf in found]
            best = next((d for d in decisions if d.is_met), decisions[0])
            return first.after(best.evidence, best.confidence)
        asked = next((leaf.question for leaf in found if leaf.question), None)
        for leaf in found:
            asked = asked or self.decider.all_of(leaf.conditions).question
        return unknown(asked) if asked else None

    def decide(self, conditions: Iterable[Condition]) -> Decision:
        """Return whether all conditions are met."""
        return self.decider.all_of(conditions)

    def under(self, scope: Scope, guards: Guards) -> Decision:
        """Return whether a line of a scope that stands under these guards is executed."""
        frame = self.frame(scope)
        return self.decider.all_of([(frame, guard) for guard in guards])


def _depends(annotation: ast.expr) -> ast.Call | None:
    for node in walk(annotation):
        if isinstance(node, ast.Call) and last_name(node.func) in {"Depends", "Security"}:
            return node
    return None


def _is_none(leaf: Leaf) -> bool:
    return leaf.kind is Kind.CONST and leaf.value is None


def _same(one: Leaf, other: Leaf) -> bool:
    if one.kind is not other.kind:
        return False
    if one.kind is Kind.CONST:
        return type(one.value) is type(other.value) and bool(one.value == other.value)
    if one.kind is Kind.SITE:
        return bool(one.value.key == other.value.key)
    if one.kind is Kind.INSTANCE:
        return one.value.scope is other.value.scope and one.value.prefix == other.value.prefix
    return one.value is other.value and one.kind is not Kind.UNKNOWN


def _combined(op: ast.operator, left: object, right: object) -> object:
    match op, left, right:
        case ast.Add(), str(), str():
            return (left + right)[: limits.TEXT_MAX]
        case ast.Div(), str(), str():
            return joined(left, right)
        case (
            ast.Add() | ast.Sub() | ast.Mult(),
            bool() | int() | float(),
            bool() | int() | float(),
        ):
            return _number(op, left, right)
    return None


def _number(op: ast.operator, left: float, right: float) -> float | None:
    if max(abs(left), abs(right)) > limits.NUMBER_MAX:
        return None
    if isinstance(op, ast.Add):
        return left + right
    return left - right if isinstance(op, ast.Sub) else left * right
