"""Whether the conditions on the way to a line are met: yes, no, or a question."""

import ast
from collections.abc import Iterable

from msgspec import Struct
from msgspec.structs import replace

from perdure.contracts.code import limits
from perdure.contracts.code._scopes import Guard, GuardKind
from perdure.contracts.code._values import (
    Condition,
    Decision,
    Evaluating,
    Frame,
    Kind,
    Leaf,
)
from perdure.contracts.evidence import Confidence, Evidence, weakest

_MET = Decision(is_met=True)


STEP = 0.1
"""What a test costs of the steps that there are for all questions of one kind."""


class _Whole(Struct, frozen=True, eq=False):
    """What conditions that were all decided before come to."""

    conditions: tuple[Condition, ...]
    """Kept, so that nothing else gets its `id`."""
    steps: float
    decision: Decision


class Decider:
    """Decides tests with what an evaluation knows, in three values."""

    def __init__(self, flow: Evaluating) -> None:
        """Ask `flow` for the values."""
        self.flow = flow
        self._known: dict[tuple[int, int, int, bool], Decision] = {}
        self._whole: dict[int, _Whole] = {}
        """By `id` of the conditions: the values of a function carry the same ones again."""
        self._kept: list[Condition] = []
        self._busy: set[tuple[int, int, int, bool]] = set()
        self._passing: dict[tuple[int, int, int, bool], Decision] = {}
        """Open ones, kept while one question is answered."""
        self._texts: dict[int, str] = {}
        self._bare_ones: dict[int, tuple[Guard, Guard]] = {}
        """Tests that need not be met, with themselves as if they had to be."""
        self._is_set_up = False
        """What is none or false before a start's set-up counts as set up."""

    def all_of(self, conditions: Iterable[Condition]) -> Decision:
        """Return whether all conditions are met: no if one isn't, open if one is open."""
        if not isinstance(conditions, tuple):
            conditions = tuple(conditions)
        whole = self._whole.get(id(conditions))
        if whole is not None:
            self.flow.left -= whole.steps
            return whole.decision
        found: list[Decision] = []
        is_kept = True
        for frame, guard in conditions:
            # Most are decided already, and there are many: no call for those.
            key = (id(guard.node), id(guard.case), id(frame), guard.is_true)
            known = self._known.get(key) if not guard.unless else None
            if known is None:
                is_kept = False
                decision = self._one(frame, guard)
            else:
                decision = known
                self.flow.left -= STEP
            found.append(decision)
            if decision.is_met is False:
                break
        decision = _together(found)
        if is_kept and found:
            self._whole[id(conditions)] = _Whole(conditions, len(found) * STEP, decision)
        return decision

    def _one(self, frame: Frame, guard: Guard) -> Decision:
        if guard.unless:
            return self._unless(frame, guard)
        key = (id(guard.node), id(guard.case), id(frame), guard.is_true)
        self.flow.left -= STEP
        if guard.node is not None and key in self._known:
            return self._known[key]
        if key in self._passing:
            return self._passing[key]
        if key in self._busy or len(self._busy) >= limits.DECIDE_DEPTH_MAX or self.flow.left <= 0:
            # A test of a value that is only set where the test came out one way; or too much.
            self.flow.cut()
            return Decision(is_met=None)
        self._busy.add(key)
        cuts = self.flow.cuts
        try:
            decision = self._decide(frame, guard)
        finally:
            self._busy.discard(key)
        if guard.node is None:
            return decision
        if decision.is_met is not None or cuts == self.flow.cuts:
            self._known[key] = decision
            self._kept.append((frame, guard))
        elif self._busy:
            self._passing[key] = decision
        if not self._busy:
            self._passing.clear()
        return decision

    def _unless(self, frame: Frame, guard: Guard) -> Decision:
        """Decide a test that need not be met where other conditions are."""
        own = self._one(frame, self._bare(guard))
        if own.is_met is True:
            return own
        others = self.all_of((frame, one) for one in guard.unless)
        if own.is_met is False or others.is_met is True:
            return others
        return own

    def _bare(self, guard: Guard) -> Guard:
        known = self._bare_ones.get(id(guard))
        if known is None:
            known = self._bare_ones[id(guard)] = (guard, replace(guard, unless=()))
        return known[1]

    def _decide(self, frame: Frame, guard: Guard) -> Decision:
        place = Evidence(file=frame.scope.path, line=guard.line, note="")
        if guard.kind is GuardKind.HANDLER or guard.node is None:
            note = f"only after {guard.catches} was raised"
            return Decision(
                is_met=False,
                evidence=(Evidence(file=place.file, line=place.line, note=note),),
                confidence=Confidence.INFERRED,
            )
        before, self._is_set_up = self._is_set_up, guard.raises
        try:
            is_case = guard.kind is GuardKind.CASE
            truth = self._case(frame, guard) if is_case else self.truth(guard.node, frame)
        finally:
            self._is_set_up = before
        if id(guard.node) not in self._texts:
            self._texts[id(guard.node)] = _shown(guard.node)
            self._kept.append((frame, guard))
        shown = self._texts[id(guard.node)]
        if truth.is_met is None and guard.raises:
            # The other way is an error, and never another value.
            return Decision(is_met=True, confidence=Confidence.INFERRED, settings=truth.settings)
        if truth.is_met is None:
            return Decision(
                is_met=None,
                evidence=truth.evidence,
                question=truth.question or f"whether {shown!r} holds at {place.file}:{place.line}",
                settings=truth.settings,
            )
        is_met = truth.is_met is guard.is_true
        if not is_met and guard.raises and truth.confidence is not Confidence.PROVED:
            # A default that lets nothing be served says that the service is not set up.
            return Decision(is_met=True, confidence=Confidence.INFERRED, settings=truth.settings)
        note = f"{shown} is {'true' if truth.is_met else 'false'} here"
        step = Evidence(file=place.file, line=place.line, note=note)
        return Decision(
            is_met=is_met,
            evidence=(*truth.evidence, step),
            confidence=truth.confidence,
            assumed=truth.assumed,
            settings=truth.settings,
        )

    def _case(self, frame: Frame, guard: Guard) -> Decision:
        subject = self.flow.only(guard.node, frame)
        return self._pattern(guard.case, subject, frame)

    def _pattern(self, pattern: ast.pattern | None, subject: Leaf | None, frame: Frame) -> Decision:
        match pattern:
            case ast.MatchAs(pattern=None):
                return Decision(is_met=True)
            case ast.MatchAs():
                return self._pattern(pattern.pattern, subject, frame)
            case ast.MatchOr():
                parts = [self._pattern(one, subject, frame) for one in pattern.patterns]
                return _any(parts)
            case ast.MatchValue():
                return _compared(ast.Eq(), subject, self.flow.only(pattern.value, frame))
            case ast.MatchSingleton():
                known = subject is not None and subject.kind is Kind.CONST
                is_met = (subject.value is pattern.value) if known and subject else None
                return _told(subject, is_met=is_met) if subject else Decision(is_met=None)
        return Decision(is_met=None)

    # ---------------------------------------------------------------------------------- tests

    def truth(self, node: ast.expr, frame: Frame) -> Decision:
        """Return whether an expression is true."""
        match node:
            case ast.UnaryOp(op=ast.Not()):
                inner = self.truth(node.operand, frame)
                return _not(inner)
            case ast.BoolOp(op=ast.And()):
                return _all([self.truth(part, frame) for part in node.values])
            case ast.BoolOp():
                return _any([self.truth(part, frame) for part in node.values])
            case ast.Compare():
                return self._compare(node, frame)
        return self._of_leaves(node, frame)

    def _of_leaves(self, node: ast.expr, frame: Frame) -> Decision:
        is_set_up = self._is_set_up
        leaves = [] if is_set_up else self.flow.initial(node, frame)
        leaves = leaves or self.flow.likely(node, frame)
        leaves = _set_up(leaves) if is_set_up else leaves
        first = next((leaf for leaf in leaves if leaf.is_initial), None)
        if first is not None:
            return _told(first, is_met=False)
        decisions = [_told(leaf, is_met=_truth_of(leaf)) for leaf in leaves]
        return _agreed(decisions)

    def _compare(self, node: ast.Compare, frame: Frame) -> Decision:
        if len(node.ops) != 1:
            return Decision(is_met=None)
        op, right = node.ops[0], node.comparators[0]
        is_set_up = self._is_set_up
        asks_for_none = isinstance(op, ast.Is | ast.IsNot) and _is_none(right)
        left = self.flow.initial(node.left, frame) if asks_for_none and not is_set_up else []
        left = left or self.flow.likely(node.left, frame)
        left = _set_up(left) if is_set_up else left
        if asks_for_none:
            return self._none_test(left, is_wanted=isinstance(op, ast.Is))
        other = self.flow.only(right, frame)
        decided = [_compared(op, leaf, other) for leaf in left]
        return _agreed(decided)

    @staticmethod
    def _none_test(leaves: list[Leaf], *, is_wanted: bool) -> Decision:
        first = next((leaf for leaf in leaves if leaf.is_initial), None)
        if first is not None:
            return _told(first, is_met=is_wanted)
        decisions = []
        for leaf in leaves:
            if leaf.kind is Kind.UNKNOWN:
                decisions.append(_told(leaf, is_met=None))
            else:
                is_none = leaf.kind is Kind.CONST and leaf.value is None
                decisions.append(_told(leaf, is_met=is_none is is_wanted))
        return _agreed(decisions)


def _set_up(leaves: list[Leaf]) -> list[Leaf]:
    """Leave out what a value is until it is set up, if it ever is."""
    others = [leaf for leaf in leaves if leaf.kind is not Kind.CONST or leaf.value]
    return others or leaves


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _told(leaf: Leaf, *, is_met: bool | None) -> Decision:
    return Decision(
        is_met=is_met,
        evidence=leaf.evidence,
        confidence=leaf.confidence,
        question=leaf.question,
        assumed=leaf.assumed,
        settings=leaf.settings,
    )


def _truth_of(leaf: Leaf) -> bool | None:
    match leaf.kind:
        case Kind.CONST:
            return bool(leaf.value)
        case Kind.SITE | Kind.INSTANCE | Kind.MEANING | Kind.RESOURCE:
            return True
        case Kind.LIST:
            return bool(leaf.value.items)
    return None


def _compared(op: ast.cmpop, left: Leaf | None, right: Leaf | None) -> Decision:
    if left is None or right is None:
        return Decision(is_met=None)
    question = left.question or right.question
    evidence = (*left.evidence, *right.evidence)
    settings = (*left.settings, *right.settings)
    if left.kind is not Kind.CONST or right.kind is not Kind.CONST:
        return Decision(is_met=None, evidence=evidence, question=question, settings=settings)
    return Decision(
        is_met=_apply(op, left.value, right.value),
        evidence=evidence,
        confidence=weakest([left.confidence, right.confidence]),
        question=question,
        assumed=(*left.assumed, *right.assumed),
        settings=settings,
    )


def _apply(op: ast.cmpop, left: object, right: object) -> bool | None:
    try:
        match op:
            case ast.Eq() | ast.Is():
                return left == right
            case ast.NotEq() | ast.IsNot():
                return left != right
            case ast.In() if isinstance(right, tuple | str):
                return left in right
            case ast.NotIn() if isinstance(right, tuple | str):
                return left not in right
            case ast.Lt() | ast.LtE() | ast.Gt() | ast.GtE():
                return _ordered(op, left, right)
    except TypeError:
        return None
    return None


def _ordered(op: ast.cmpop, left: object, right: object) -> bool | None:
    if not isinstance(left, int | float) or not isinstance(right, int | float):
        return None
    return {
        ast.Lt: left < right,
        ast.LtE: left <= right,
        ast.Gt: left > right,
        ast.GtE: left >= right,
    }[type(op)]


def _not(inner: Decision) -> Decision:
    return Decision(
        is_met=None if inner.is_met is None else not inner.is_met,
        evidence=inner.evidence,
        confidence=inner.confidence,
        question=inner.question,
        assumed=inner.assumed,
        settings=inner.settings,
    )


def _together(found: list[Decision]) -> Decision:
    """Return what conditions come to of which the last may not be met."""
    if not found:
        return _MET
    if found[-1].is_met is False:
        return found[-1]
    open_one: Decision | None = None
    for one in found:
        if one.is_met is None:
            open_one = open_one if open_one and open_one.question else one
    if open_one is not None:
        return open_one
    return Decision(
        is_met=True,
        evidence=tuple(dict.fromkeys(step for one in found for step in one.evidence)),
        confidence=weakest([one.confidence for one in found]),
        assumed=tuple(dict.fromkeys(name for one in found for name in one.assumed)),
        settings=tuple(dict.fromkeys(name for one in found for name in one.settings)),
    )


def _all(parts: list[Decision]) -> Decision:
    return next(
        (one for one in parts if one.is_met is False),
        next((one for one in parts if one.is_met is None), _joined(parts)),
    )


def _any(parts: list[Decision]) -> Decision:
    return next(
        (one for one in parts if one.is_met is True),
        next((one for one in parts if one.is_met is None), _joined(parts)),
    )


def _joined(parts: list[Decision]) -> Decision:
    return Decision(
        is_met=parts[0].is_met if parts else None,
        evidence=tuple(dict.fromkeys(step for one in parts for step in one.evidence)),
        confidence=weakest([one.confidence for one in parts]),
        assumed=tuple(dict.fromkeys(name for one in parts for name in one.assumed)),
        settings=tuple(dict.fromkeys(name for one in parts for name in one.settings)),
    )


def _agreed(parts: list[Decision]) -> Decision:
    """What all the values that an expression may have say alike."""
    if not parts:
        return Decision(is_met=None)
    if any(one.is_met is not parts[0].is_met for one in parts) or parts[0].is_met is None:
        question = next((one.question for one in parts if one.question), None)
        settings = tuple(dict.fromkeys(name for one in parts for name in one.settings))
        return Decision(
            is_met=None, evidence=parts[0].evidence, question=question, settings=settings
        )
    return parts[0]


def _shown(node: ast.expr) -> str:
    text = " ".join(ast.unparse(node).split())
    return text if len(text) <= limits.SHOWN_MAX else f"{text[: limits.SHOWN_MAX - 3]}..."
