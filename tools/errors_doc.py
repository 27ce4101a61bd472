"""Write `docs/errors.md` from the error catalogue; with `--check`, fail if it differs.

Run it as `PYTHONPATH=src python tools/errors_doc.py` after a change of the tree or the catalogue.
"""

import inspect
import sys
from pathlib import Path

from perdure.errors import CATALOGUE, CatalogueEntry, PerdureError

PAGE = Path(__file__).resolve().parent.parent / "docs" / "errors.md"

HEAD = """\
# Errors

<!-- Written by tools/errors_doc.py from src/perdure/errors. Change those, then run it again. -->

Every error that Perdure raises on purpose is a `PerdureError`. Each class has one code, which never
gets another meaning; the command line exits with the exit code, the server answers with the HTTP
status. *Retryable* says whether the same call can succeed later without anybody changing anything.

A subclass of your own has the row of its nearest ancestor here. Every error carries `fields` (ids
and values for programs) beside its message, and survives pickling and a JSON round trip
(`to_json`, `from_json`).

| code | class | exit code | HTTP | retryable |
|---|---|---|---|---|
"""


def page() -> str:
    """Return the whole page."""
    rows = sorted(CATALOGUE.items(), key=lambda row: row[1].code)
    table = "".join(
        f"| [{entry.code}](#{entry.anchor}) | `{cls.__name__}` | {entry.exit_code} "
        f"| {entry.http_status} | {'yes' if entry.retryable else 'no'} |\n"
        for cls, entry in rows
    )
    return HEAD + table + "".join(section(cls, entry) for cls, entry in rows)


def section(cls: type[PerdureError], entry: CatalogueEntry) -> str:
    """Return the section of one class, under the anchor that its code names."""
    parent = next((base for base in cls.__mro__[1:] if base in CATALOGUE), None)
    kind = f"A kind of `{parent.__name__}`. " if parent else ""
    again = "Trying again can help." if entry.retryable else "Trying again alone does not help."
    return (
        f'\n<a id="{entry.anchor}"></a>\n\n## {entry.code} {cls.__name__}\n\n'
        f"{inspect.getdoc(cls)}\n\n{kind}{again}\n"
    )


def main(arguments: list[str]) -> int:
    """Write the page, or compare it; return 1 if it differs."""
    if "--check" not in arguments:
        PAGE.write_text(page(), encoding="utf-8")
        return 0
    if not PAGE.exists() or PAGE.read_text(encoding="utf-8") != page():
        print("docs/errors.md is not what the catalogue says; run tools/errors_doc.py")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
