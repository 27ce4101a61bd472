"""Reading bills from text."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Bill:
    """What somebody paid for all; the amount is in cents."""

    day: str
    payer: str
    cents: int
    what: str


def parse_cents(text: str) -> int:
    """Return an amount in cents; a comma or a point stands before them: 12,50 or 12.5 or 12."""
    euros, _, cents = text.strip().partition(".")
    return int(euros) * 100 + int(cents or 0)


def parse(text: str) -> list[Bill]:
    """Return the bills of a text, one a line; lines that are empty or begin with # don't count."""
    bills = []
    for line in text.splitlines():
        if not line or line.startswith("#"):
            continue
        day, payer, amount, what = line.split(";")
        bills.append(Bill(day.strip(), payer.strip(), parse_cents(amount), what.strip()))
    return bills
