"""Saying who owes what."""


def euros(cents: int) -> str:
    """Return cents as people write them: 12.50 or -0.05."""
    return f"{cents // 100}.{cents % 100:02}"


def report(totals: dict[str, int]) -> str:
    """Return a line for each person, who is owed most first, then by name."""
    lines = [f"{name}: {euros(cents)}" for name, cents in sorted(totals.items())]
    return "\n".join(lines)
