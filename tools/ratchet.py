"""Keep functions and files short, by a frozen list of old offenders that may only shrink.

Limits (lines of a function without its docstring; lines of a file):

- A function over FUNCTION_LINES_MAX or a file over FILE_LINES_MAX fails, unless `ratchet.json`
  lists it with at least its present length.
- A file over FILE_LINES_EXPLAINED must say why in its header, on a line that starts with `Size:`.
- Functions over FUNCTION_LINES_RETHINK are counted and named, and fail nothing.

`--update` writes the list again: shorter lengths are lowered, entries that are no longer needed are
dropped, and nothing is ever raised or added.
"""

import ast
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import quantiles

ROOT = Path(__file__).resolve().parent.parent
FROZEN = Path(__file__).with_name("ratchet.json")
ROOMS = ("src", "tests", "tools", "bench", "examples")

FUNCTION_LINES_MAX = 70
FUNCTION_LINES_RETHINK = 40
FILE_LINES_MAX = 800
FILE_LINES_EXPLAINED = 500

Function = ast.FunctionDef | ast.AsyncFunctionDef


def function_lines(node: Function) -> int:
    """Return how many lines the function takes, decorators and docstring left out."""
    end = node.end_lineno or node.lineno
    lines = end - node.lineno + 1
    first = node.body[0]
    if ast.get_docstring(node, clean=False) is not None:
        lines -= (first.end_lineno or first.lineno) - first.lineno + 1
    return lines


def functions(tree: ast.AST, prefix: str = "") -> Iterator[tuple[str, Function]]:
    """Yield every function with its qualified name, outer ones first."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, Function):
            yield prefix + node.name, node
        if isinstance(node, Function | ast.ClassDef):
            yield from functions(node, f"{prefix}{node.name}.")
        else:
            yield from functions(node, prefix)


def measure(root: Path) -> tuple[dict[str, int], dict[str, int], set[str]]:
    """Return lines by function, lines by file, and the files whose header explains their size."""
    by_function: dict[str, int] = {}
    by_file: dict[str, int] = {}
    explained: set[str] = set()
    for path in sorted(path for room in ROOMS for path in (root / room).rglob("*.py")):
        name = path.relative_to(root).as_posix()
        text = path.read_text(encoding="utf-8")
        tree = ast.parse(text)
        by_file[name] = len(text.splitlines())
        header = ast.get_docstring(tree) or ""
        if any(line.startswith("Size:") for line in header.splitlines()):
            explained.add(name)
        for function, node in functions(tree):
            by_function[f"{name}::{function}"] = function_lines(node)
    return by_function, by_file, explained


def offences(root: Path, frozen: dict[str, int]) -> list[str]:
    """Return what breaks the limits, as messages for people; empty: nothing does."""
    by_function, by_file, explained = measure(root)
    found = [
        f"{name}: {lines} lines, allowed are {allowed}; split it"
        for measured, limit in ((by_function, FUNCTION_LINES_MAX), (by_file, FILE_LINES_MAX))
        for name, lines in measured.items()
        if lines > (allowed := max(limit, frozen.get(name, 0)))
    ]
    found += [
        f"{name}: {lines} lines; over {FILE_LINES_EXPLAINED} its header needs a line 'Size: why'"
        for name, lines in by_file.items()
        if lines > FILE_LINES_EXPLAINED and name not in explained
    ]
    return found


def lowered(root: Path, frozen: dict[str, int]) -> dict[str, int]:
    """Return the frozen list with what it can do without taken away; nothing is added or raised."""
    by_function, by_file, _explained = measure(root)
    limits = dict.fromkeys(by_function, FUNCTION_LINES_MAX)
    limits |= dict.fromkeys(by_file, FILE_LINES_MAX)
    now = by_function | by_file
    return {
        name: min(allowed, now[name])
        for name, allowed in sorted(frozen.items())
        if name in now and now[name] > limits[name]
    }


def report(root: Path) -> str:
    """Return the counts that fail nothing, for people."""
    by_function, by_file, _explained = measure(root)
    shipped = [lines for name, lines in by_function.items() if name.startswith("src/")]
    median, p90 = (quantiles(shipped, n=10)[i] for i in (4, 8)) if len(shipped) > 1 else (0, 0)
    long = {name: lines for name, lines in by_function.items() if lines > FUNCTION_LINES_RETHINK}
    large = sum(lines > FILE_LINES_EXPLAINED for lines in by_file.values())
    named = "".join(f"\n  {name}: {lines}" for name, lines in sorted(long.items()))
    return (
        f"ratchet: {len(by_file)} files, {len(by_function)} functions "
        f"(in src: median {median:.0f} lines, p90 {p90:.0f}); over {FUNCTION_LINES_RETHINK} lines: "
        f"{len(long)} functions; over {FILE_LINES_EXPLAINED}: {large} files{named}"
    )


def main(arguments: list[str]) -> int:
    """Check, or with `--update` lower the frozen list; return 1 if a limit is broken."""
    frozen: dict[str, int] = json.loads(FROZEN.read_text(encoding="utf-8"))
    if "--update" in arguments:
        frozen = lowered(ROOT, frozen)
        FROZEN.write_text(json.dumps(frozen, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    found = offences(ROOT, frozen)
    print(report(ROOT))
    for offence in found:
        print(offence)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
