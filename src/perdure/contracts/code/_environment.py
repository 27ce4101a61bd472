"""The variables of a service's environment, as its code would see them."""

from collections.abc import Mapping

from msgspec import Struct, field
from msgspec.structs import replace

from perdure.contracts._patterns import regex
from perdure.contracts.code._values import Kind, Leaf, unknown
from perdure.contracts.deployment.facts import Root, Service
from perdure.contracts.evidence import Confidence, Evidence, Known


class Environment(Struct, frozen=True):
    """Looks a variable up: assumed, set by the deployment, declared as a default, or unset."""

    service: Service
    root: Root
    assume: Mapping[str, str]
    asked: set[str] = field(default_factory=set)
    """The variables that the code was seen to read."""

    def said(self, name: str) -> tuple[Known[str] | None, Known[str] | None]:
        """Return all that is said of a variable: by the service, and as a declared default."""
        variable = self.service.environment.get(name)
        return (None if variable is None else variable.known, self.root.declared.get(name))

    def get(self, name: str, place: Evidence) -> Leaf:
        """Return the value of a variable that is read at `place`; `None` if nobody sets it."""
        self.asked.add(name)
        variable = self.service.environment.get(name)
        if name in self.assume and (variable is None or variable.known.value is None):
            return Leaf(
                kind=Kind.CONST,
                value=self.assume[name],
                evidence=(place,),
                assumed=(f"{name}={self.assume[name]}",),
                settings=(name,),
            )
        if variable is not None:
            return _leaf(name, variable.known, place)
        declared = self.root.declared.get(name)
        if declared is not None and declared.value and not is_placeholder(declared.value):
            leaf = _leaf(name, declared, place)
            return leaf.after((), Confidence.DECLARED_DEFAULT)
        if self.service.platform is not None:
            # Secrets, groups and what a dashboard says: no file of a platform holds them all.
            asked = unknown(f"the value of {name}", (place,))
            return replace(asked, settings=(name,))
        return Leaf(
            kind=Kind.CONST,
            value=None,
            evidence=(place,),
            confidence=Confidence.DECLARED_DEFAULT,
            settings=(name,),
            is_unset=True,
        )

    def is_left_out(self, name: str) -> bool:
        """Whether a variable is one that nobody commits, and no file of the project names it.

        Where a database is, and its password, is often told by the platform alone.
        """
        is_named = name in self.root.declared or name in self.service.environment
        return not is_named and name not in self.assume and bool(_CONNECTS.search(name))


_CONNECTS = regex(r"(?i)(_|^)(url|uri|dsn|conn|connection|conninfo|conn_str\w*|connection_string)$")
"""Ends of the names of variables that say where a database is."""


def is_placeholder(value: str) -> bool:
    """Whether a declared value only shows where a real one belongs."""
    text = value.strip().lower()
    return not text or text.startswith(("<", "your_", "your-", "changeme", "change-me", "xxx"))


def _leaf(name: str, known: Known[str], place: Evidence) -> Leaf:
    if known.value is None:
        question = known.question or f"the value of {name}"
        return replace(unknown(question, (*known.evidence, place)), settings=(name,))
    return Leaf(
        kind=Kind.CONST,
        value=known.value,
        evidence=(*known.evidence, place),
        confidence=known.confidence,
        assumed=known.assumed,
        settings=(name,),
    )
