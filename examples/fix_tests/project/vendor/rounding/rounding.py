"""Shares of a whole number that add up to it: the largest remainders get what is left."""

from collections.abc import Sequence


def shares(total: int, weights: Sequence[int]) -> list[int]:
    """Return the share of each weight, whole numbers that add up to the total."""
    whole = sum(weights)
    parts = [total * weight // whole for weight in weights]
    rest = [total * weight % whole for weight in weights]
    order = sorted(range(len(weights)), key=lambda place: (-rest[place], place))
    for place in order[: total - sum(parts)]:
        parts[place] += 1
    return parts
