"""Which contracts a text could matter to that was not read: by the words in it.

What could not be parsed can still be searched. A model of a table in the syntax of a newer Python
says nothing of savers, and leaves no question about them.
"""

import re
from collections.abc import Iterable

from perdure.contracts._patterns import regex

_STATE = r"checkpoint|saver|memory|store|histor|thread|langgraph|langchain|graph|agent|session|conversation|interrupt"  # noqa: E501 - one pattern
_WORDS = {
    "S0": _STATE,
    "S1": _STATE,
    "S2": _STATE,
    "S3": _STATE,
    "S4": r"migrat|create_all|alembic|setup|create_|schema|database|engine|upgrade",
    "R1": r"graceful|shutdown|drain|timeout|sigterm|stop|lifespan|close|uvicorn",
    "R2": r"signal|sigterm|uvicorn|hypercorn|granian|subprocess|popen|serve",
    "R3": _STATE,
    "R6": r"post|send|put|interrupt|publish|charge|patch|delete",
    "R7": r"resume|recover|reap|requeue|acks_late|invoke|stream|orphan|stale",
    "C1": r"lock|lease|sandbox|setnx|nx\s*=|container|job|claim|heartbeat|webhook|browser",
    "C2": r"stream|eventsource|sse\b",
}
_PATTERNS = {name: regex(words, re.IGNORECASE) for name, words in _WORDS.items()}
_IMPORTS = regex(r"^[ \t]*(?:from[ \t]+(\.|[^\W\d]\w*)|import[ \t]+([^\W\d]\w*))", re.MULTILINE)
_CALLED = regex(r"\b(?:import_module|__import__|exec|eval)\s*\(")


def mattering(texts: Iterable[str], tops: Iterable[str]) -> frozenset[str] | None:
    """Return the contracts that texts could matter to; `None`: any of them.

    Args:
        texts: what was left out: modules, or single functions and classes of them.
        tops: first names of the project's own packages; what a text imports of them is not reached.
    """
    own = set(tops)
    found: set[str] = set()
    for text in texts:
        imported = {first or second for first, second in _IMPORTS.findall(text)}
        if "." in imported or imported & own or _CALLED.search(text):
            return None
        found.update(name for name, pattern in _PATTERNS.items() if pattern.search(text))
    return frozenset(found)
