"""Figures: what was measured, round by round, and what it is held against."""

import statistics
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Goal:
    """A figure is met when its median is on the right side of the limit.

    `of_ratio`: the median of the ratio to the floor counts, not the figure itself.
    """

    limit: float
    at_least: bool = False
    of_ratio: bool = False

    def text(self, unit: str) -> str:
        sign = ">=" if self.at_least else "<="
        return f"{sign} {self.limit:g} {'x floor' if self.of_ratio else unit}"


@dataclass(frozen=True, kw_only=True)
class Spec:
    """What a figure is.

    Attributes:
        name: stable identifier; "peers." begins the figures of others, "floor." the floors.
        title: for people.
        unit: of its values.
        floor: name of the floor it is a multiple of, or None.
        goal: what Perdure wants of it, or None.
        is_count: whether more is better and the ratio is a share of the floor.
        p99: whether the goal is about the 99th percentile.
    """

    name: str
    title: str
    unit: str
    floor: str | None = None
    goal: Goal | None = None
    p99: bool = False


@dataclass
class Figure:
    """A figure and what each round gave, by round."""

    spec: Spec
    values: dict[int, list[float]] = field(default_factory=dict)

    def add(self, round_: int, value: float) -> None:
        self.values.setdefault(round_, []).append(value)

    @property
    def all(self) -> list[float]:
        return [value for values in self.values.values() for value in values]


def percentile(values: list[float], share: float) -> float:
    """Return the smallest value that at least this share of them does not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, -int(-share * len(ordered) // 1) - 1))]


def ratios(figure: Figure, floor: Figure | None) -> list[float]:
    """Return the figure in multiples of its floor, round by round: what drifts hits both."""
    if floor is None:
        return []
    return [
        statistics.median(values) / statistics.median(floor.values[round_])
        for round_, values in figure.values.items()
        if round_ in floor.values
    ]


def summary(values: list[float]) -> dict[str, float] | None:
    if not values:
        return None
    return {
        "median": statistics.median(values),
        "min": min(values),
        "max": max(values),
        "p99": percentile(values, 0.99),
        "count": len(values),
    }


def as_json(figure: Figure, figures: dict[str, Figure]) -> dict[str, Any]:
    """Return everything that is known of a figure."""
    spec = figure.spec
    over = ratios(figure, figures.get(spec.floor) if spec.floor else None)
    return {
        "name": spec.name,
        "title": spec.title,
        "unit": spec.unit,
        "rounds": [{"round": n, "values": values} for n, values in figure.values.items()],
        "value": summary(figure.all),
        "floor": spec.floor,
        "ratio": summary(over),
        "goal": None if spec.goal is None else spec.goal.text(spec.unit) + (" (p99)" * spec.p99),
        "met": _is_met(spec, figure.all, over),
    }


def _is_met(spec: Spec, values: list[float], over: list[float]) -> bool | None:
    judged = over if spec.goal is not None and spec.goal.of_ratio else values
    if spec.goal is None or not judged:
        return None
    found = percentile(judged, 0.99) if spec.p99 else statistics.median(judged)
    return found >= spec.goal.limit if spec.goal.at_least else found <= spec.goal.limit
