"""Numbers from texts of a project, through one bounded gate.

`int` refuses more than 4,300 digits by ValueError and `str.isdigit` is true of `²`; `float` knows
`nan` and `inf`. None of them may end a check.
"""

import math

from perdure.contracts import limits


def whole(text: str | None) -> int | None:
    """Return the number that plain digits say; `None`: they are none, or too many."""
    digits = (text or "").strip()
    if not 0 < len(digits) <= limits.DIGITS_MAX or not (digits.isascii() and digits.isdigit()):
        return None
    return int(digits)


def decimal(text: str | None) -> float | None:
    """Return the finite number that a text says, as `float` reads it; `None`: it says none."""
    said = (text or "").strip()
    if not 0 < len(said) <= limits.NUMBER_CHARACTERS_MAX:
        return None
    try:
        number = float(said)
    except ValueError:
        return None
    return number if math.isfinite(number) and abs(number) <= limits.NUMBER_MAX else None
