"""Whether code that is reached by name is executed here, as far as settings decide it.

Reaching goes by names, so that it takes too much. A function whose every use stands under a setting
that is off here is never executed, and what it does says nothing of this deployment. Only settings
count: what depends on a request's own values may happen, and so may what an error leads to.
"""

from collections.abc import Iterable

from perdure.contracts.code import limits
from perdure.contracts.code._flow import Flow
from perdure.contracts.code._scopes import Guard, GuardKind, Scope
from perdure.contracts.code._startup import is_route
from perdure.contracts.code._values import Decision, Frame
from perdure.contracts.evidence import Known

_YES = Decision(is_met=True)


class Executed:
    """Answers for one program whether scopes, and lines in them, are executed."""

    def __init__(self, flow: Flow) -> None:
        """Nothing is asked yet."""
        self.flow = flow
        self._known: dict[int, Decision] = {}
        self._decided: dict[tuple[int, int], tuple[Frame, Guard, Decision]] = {}
        self._busy: set[int] = set()
        self._mentions: dict[str, list[Scope]] | None = None

    def line(self, scope: Scope, guards: Iterable[Guard]) -> Decision:
        """Return whether a line of a scope under these guards is executed."""
        own = self.guarded(scope, guards)
        if own.is_met is False:
            return own
        around = self.scope(scope)
        if around.is_met is False or own.is_met is True:
            return around if around.is_met is not True else joined(own, around)
        return own

    def guarded(
        self, scope: Scope, guards: Iterable[Guard], frame: Frame | None = None
    ) -> Decision:
        """Return what settings say of the tests on the way to a line."""
        told = _YES
        for guard in guards:
            if guard.kind is GuardKind.HANDLER:
                continue
            decision = self._decision(frame or self.flow.frame(scope), guard)
            is_open = decision.is_met is None
            if not decision.settings or (is_open and _is_of_values(decision)):
                continue
            if decision.is_met is False:
                return decision
            if decision.is_met is None:
                told = decision if told.is_met else told
            elif told.is_met:
                told = joined(told, decision)
        return told

    def _decision(self, frame: Frame, guard: Guard) -> Decision:
        key = (id(frame), id(guard))
        if key not in self._decided:
            with self.flow.briefly():
                self._decided[key] = frame, guard, self.flow.decide([(frame, guard)])
        return self._decided[key][-1]

    def scope(self, scope: Scope) -> Decision:
        """Return whether anything that is executed uses a function, a method or a class."""
        key = id(scope)
        if key in self._known:
            return self._known[key]
        if key in self._busy or len(self._busy) >= limits.EXECUTED_DEPTH_MAX:
            return _YES
        self._busy.add(key)
        try:
            found = self._of(scope)
        finally:
            self._busy.discard(key)
        if found.is_met is False or not self._busy:
            self._known[key] = found
        return found

    def _of(self, scope: Scope) -> Decision:
        if scope.kind == "module" or scope.name == "<main>" or is_route(scope):
            return _YES
        name = scope.name.rpartition(".")[2]
        if scope.owner is not None:
            around = self.scope(scope.owner)
            if around.is_met is not True or (name.startswith("__") and name.endswith("__")):
                return around
        return self._used(scope, name)

    def _used(self, scope: Scope, name: str) -> Decision:
        """Return the best of all uses of a name; where none was seen, a framework may do it."""
        best: Decision | None = None
        count = 0
        for where in self._mentioning(name):
            if where is scope or not self._means(where, name, scope):
                continue
            for guards in where.mentions[name]:
                count += 1
                if count > limits.MENTIONS_MAX:
                    return _YES
                decision = self.line(where, guards)
                if decision.is_met is True:
                    return decision
                best = decision if best is None or best.is_met is False else best
        if scope.kind == "class":
            for derived in self.flow.program.derived(scope):
                decision = self.scope(derived)
                if decision.is_met is True:
                    return decision
                best = decision if best is None or best.is_met is False else best
        return best or _YES

    def _mentioning(self, name: str) -> list[Scope]:
        if self._mentions is None:
            self._mentions = {}
            for scope in self.flow.program.live:
                for one in scope.mentions:
                    self._mentions.setdefault(one, []).append(scope)
        return self._mentions.get(name, [])

    def _means(self, where: Scope, name: str, scope: Scope) -> bool:
        """Whether a name may be this scope there: as an attribute, it may always."""
        if name not in where.names:
            return True
        meaning = self.flow.program.resolve(where, name)
        return meaning is scope or (scope.owner is not None and name in where.attribute_names)


def _is_of_values(decision: Decision) -> bool:
    """Whether an open decision is about a request's values, and no setting's own."""
    return (decision.question or "whether ").startswith("whether ")


def joined(one: Decision, other: Decision) -> Decision:
    """Return two decisions that are both met as one."""
    parts = [part for part in (one, other) if part.settings or part.evidence]
    if len(parts) < len((one, other)):
        return parts[0] if parts else one
    return Decision(
        is_met=True,
        evidence=tuple(dict.fromkeys((*one.evidence, *other.evidence))),
        confidence=max(one.confidence, other.confidence, key=list(type(one.confidence)).index),
        assumed=tuple(dict.fromkeys((*one.assumed, *other.assumed))),
        settings=tuple(dict.fromkeys((*one.settings, *other.settings))),
    )


def asked(decision: Decision) -> Known[bool]:
    """Return a decision as a fact, with a question that names the setting that answers it."""
    question = None
    if decision.is_met is None:
        name = decision.settings[0] if decision.settings else "what decides it"
        question = decision.question or f"the value of {name}"
    return Known(
        value=decision.is_met,
        evidence=tuple(dict.fromkeys(step for step in decision.evidence if step.note)),
        confidence=decision.confidence,
        question=question,
        assumed=decision.assumed,
    )
