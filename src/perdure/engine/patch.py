"""From one JSON-like value to another: exact edits, and JSON Patch (RFC 6902).

Theory: two lists are compared as sequences, so that an insertion in the middle is one edit and not
a new tail. What is equal at both ends is left out first. In between, the shortest script is looked
for (Myers 1986) while it is short; beyond `EDITS_MAX` edits the items that are there exactly once
on both sides are the anchors. So the cost is bounded whatever the lists are. What is left between
two matches is paired in order, and each pair is compared inside.

Invariant: applying the operations, in order, to `before` gives `after`, types included.
"""

import json
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator
from typing import Any

from msgspec import Struct

from perdure.codec import ShownArray

EDITS_MAX = 400
"""Most edits of one list that the shortest script is looked for: the cost grows with the square."""

Match = tuple[int, int]
"""Places of one item in both lists."""


class Edit(Struct, frozen=True, kw_only=True):
    """One change of a value.

    Attributes:
        op: "add", "remove" or "replace".
        path: JSON Pointer, as the value is when the edits before it were applied; `/-` at its end:
            behind the last item of the list.
        old: what was there; None for "add".
        new: what is there then; None for "remove".
        differing: of two arrays of one type and shape: how many of their elements differ.
    """

    op: str
    path: str
    old: Any = None
    new: Any = None
    differing: int | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the operation of a JSON Patch."""
        if self.op == "remove":
            return {"op": self.op, "path": self.path}
        return {"op": self.op, "path": self.path, "value": self.new}


def patch(before: Any, after: Any, path: str = "") -> list[dict[str, Any]]:
    """Return JSON Patch operations (RFC 6902) from one JSON-like value to another."""
    return [edit.to_json() for edit in edits(before, after, path)]


def edits(before: Any, after: Any, path: str = "") -> Iterator[Edit]:
    """Yield the edits that turn one JSON-like value into another, in order."""
    if isinstance(before, ShownArray) or isinstance(after, ShownArray):
        yield from _of_arrays(before, after, path)
    elif isinstance(before, dict) and isinstance(after, dict):
        yield from _of_maps(before, after, path)
    elif isinstance(before, list) and isinstance(after, list):
        yield from _of_lists(before, after, path)
    elif before != after or type(before) is not type(after):
        yield Edit(op="replace", path=path, old=before, new=after)


def _of_arrays(before: Any, after: Any, path: str) -> Iterator[Edit]:
    """Yield the edit of an array, or between one and something else: always of all of it."""
    are_both = isinstance(before, ShownArray) and isinstance(after, ShownArray)
    if before != after or not are_both:
        differing = before.differing(after) if are_both else None
        yield Edit(op="replace", path=path, old=before, new=after, differing=differing)


def _escape(key: object) -> str:
    return str(key).replace("~", "~0").replace("/", "~1")


def _of_maps(before: dict[str, Any], after: dict[str, Any], path: str) -> Iterator[Edit]:
    for key, value in before.items():
        if key not in after:
            yield Edit(op="remove", path=f"{path}/{_escape(key)}", old=value)
    for key, value in after.items():
        place = f"{path}/{_escape(key)}"
        if key in before:
            yield from edits(before[key], value, place)
        else:
            yield Edit(op="add", path=place, new=value)


def _of_lists(before: list[Any], after: list[Any], path: str) -> Iterator[Edit]:
    """Yield the edits of a list.

    `at`: where they have come to; `length`: how long the list is by then.
    """
    at, length = 0, len(before)
    was = now = 0
    for matched_was, matched_now in [*_matches(before, after), (len(before), len(after))]:
        old, new = before[was:matched_was], after[now:matched_now]
        for one, other in zip(old, new, strict=False):
            yield from edits(one, other, f"{path}/{at}")
            at += 1
        for one in old[len(new) :]:
            yield Edit(op="remove", path=f"{path}/{at}", old=one)
            length -= 1
        for one in new[len(old) :]:
            yield Edit(op="add", path=f"{path}/{'-' if at == length else at}", new=one)
            at, length = at + 1, length + 1
        was, now, at = matched_was + 1, matched_now + 1, at + 1


def _matches(before: list[Any], after: list[Any]) -> list[Match]:
    """Return the places of items that stay, in order on both sides."""
    a, b = [_key(item) for item in before], [_key(item) for item in after]
    shorter = min(len(a), len(b))
    head = next((n for n in range(shorter) if a[n] != b[n]), shorter)
    room = shorter - head
    tail = next((n for n in range(room) if a[-1 - n] != b[-1 - n]), room)
    inner_a, inner_b = a[head : len(a) - tail], b[head : len(b) - tail]
    found = _shortest(inner_a, inner_b)
    if found is None:
        found = _anchors(inner_a, inner_b)
    return [
        *((n, n) for n in range(head)),
        *((x + head, y + head) for x, y in found),
        *((len(a) - n, len(b) - n) for n in range(tail, 0, -1)),
    ]


def _key(item: Any) -> str:
    """Return a text that is equal for equal items of equal types only."""
    return json.dumps(item, sort_keys=True)


def _shortest(a: list[str], b: list[str]) -> list[Match] | None:
    """Return the matches of the shortest edit script; None: it is longer than `EDITS_MAX`.

    Source: E. W. Myers, An O(N D) Difference Algorithm and Its Variations, 1986.
    """
    furthest = {1: 0}
    trace: list[dict[int, int]] = []
    for edits_made in range(min(len(a) + len(b), EDITS_MAX) + 1):
        trace.append(furthest.copy())
        for diagonal in range(-edits_made, edits_made + 1, 2):
            x = _step(furthest, diagonal, edits_made)
            y = x - diagonal
            while x < len(a) and y < len(b) and a[x] == b[y]:
                x, y = x + 1, y + 1
            furthest[diagonal] = x
            if x >= len(a) and y >= len(b):
                return _walk_back(trace, len(a), len(b))
    return None


def _step(furthest: dict[int, int], diagonal: int, edits_made: int) -> int:
    """Return where a path with so many edits enters a diagonal: by an insertion or a removal."""
    below, above = furthest.get(diagonal - 1, -1), furthest.get(diagonal + 1, -1)
    inserts = diagonal == -edits_made or (diagonal != edits_made and below < above)
    return above if inserts else below + 1


def _walk_back(trace: list[dict[int, int]], x: int, y: int) -> list[Match]:
    found: list[Match] = []
    for edits_made in range(len(trace) - 1, -1, -1):
        furthest, diagonal = trace[edits_made], x - y
        entered = _step(furthest, diagonal, edits_made)
        while x > max(entered, 0) and y > 0:
            x, y = x - 1, y - 1
            found.append((x, y))
        below, above = furthest.get(diagonal - 1, -1), furthest.get(diagonal + 1, -1)
        inserts = diagonal == -edits_made or (diagonal != edits_made and below < above)
        x, y = (x, y - 1) if inserts else (x - 1, y)
    return found[::-1]


def _anchors(a: list[str], b: list[str]) -> list[Match]:
    """Return the longest rising row of items that are there exactly once on both sides."""
    count_a, count_b = Counter(a), Counter(b)
    place = {item: n for n, item in enumerate(b) if count_b[item] == 1}
    pairs = [(n, place[item]) for n, item in enumerate(a) if count_a[item] == 1 and item in place]
    ends: list[int] = []  # for each length of a row: the smallest end of one, and whose it is
    owners: list[int] = []
    before: list[int] = []
    for index, (_x, y) in enumerate(pairs):
        length = bisect_left(ends, y)
        before.append(owners[length - 1] if length else -1)
        ends[length : length + 1] = [y]
        owners[length : length + 1] = [index]
    found: list[Match] = []
    index = owners[-1] if owners else -1
    while index >= 0:
        found.append(pairs[index])
        index = before[index]
    return found[::-1]
