"""Checks projects that were spoilt at random: `python -m tests.contracts.fuzz [--seconds 60]`.

The specimens, or the projects of a folder, are copied; a few places of a few of their files are
spoilt; the copy is checked, and told in every format. It is a fault

- when the check fails or warns (an error of ours that says what can't be read is an answer),
- when a reader gave up for a reason that it did not know (`the check failed at ...`),
- when it takes more than `CPU_S_MAX` of processor time,
- when the same project is told differently the second time,
- and, where BuildKit's parser is installed and takes a Dockerfile, when ours reads it otherwise.

Each trial has a seed of its own, so that one can be played again: `--first 1234 --trials 1`.
"""

import argparse
import gc
import random
import shutil
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

from perdure.contracts import report as reports
from perdure.contracts.check import check
from perdure.contracts.findings import Report, Verdict
from perdure.errors import CheckImpossible, NothingToCheck
from tests.contracts.buildkit import KNOWN, reference, shape

ROOT = Path(__file__).resolve().parents[2]
SPECIMENS = Path(__file__).parent / "specimens"
CPU_S_MAX = 10.0
BYTES_MAX = 200_000
"""Files above it are not spoilt."""

WORDS = (
    "null", "true", "-1", "1e9", "0x10", "''", '""', "[]", "{}", "[a, b]", "{a: b}", "&a", "*a",
    "<<: *a", "${X}", "${X:-1}", "${X:?no}", "$$", "!!python/object:os.system", "|", ">-", "- ",
    "---", "...", "{{ .Values.a }}", "{{- if .Values.a }}", "{{ end }}",
    "{{ range $i, $e := .Values.a }}", '{{ include "a" . }}', "FROM a AS b", "COPY --from=b a a",
    'ENTRYPOINT ["a"', "CMD sh -c 'a", 'SHELL ["/bin/bash"]', "RUN <<EOF", "EOF", "ONBUILD",
    "ARG X=1", "\\", "`", "# escape=`", 'exec "$@"', "trap 'kill $p' TERM", "&", "&&", ";;",
    "case $a in", "lambda: 0", "async with a() as b:", "try:", "except* X:", "match a:",
    "case {}: ", "def f(a, /, *, b=1, **c):", "f'{a!r:>{b}}'", "from . import *",
    "import a.b.c as d", "global a", "nonlocal a", "yield", "await a", "class A(B[C]):",
    "checkpointer=None", "MemorySaver()", "os.environ['A']", "signal.signal(signal.SIGTERM, f)",
    "if __name__ == '__main__':", "\u0000", "\ufeff", "\u2028", "\u202e", "\x1b[31m", "\r", "\t",
    "é", "\U0001d518", "\ud7ff", "9" * 400, "a" * 5000, "[" * 60, "(" * 60, "{" * 60,
)  # fmt: skip
"""What readers may stumble over, of every language that they read."""


def places(folder: Path) -> list[Path]:
    """Return the projects to spoil: the folders right below."""
    found = sorted(path for path in folder.iterdir() if path.is_dir())
    return found or [folder]


def spoil(content: bytes, chance: random.Random) -> bytes:
    """Return the content with one place of it spoilt."""
    lines = content.split(b"\n")
    at = chance.randrange(len(lines))
    other = chance.randrange(len(lines))
    word = chance.choice(WORDS).encode("utf-8", "surrogatepass")
    line = lines[at]
    cut = chance.randint(0, len(line))
    match chance.randrange(10):
        case 0:
            del lines[at]
        case 1:
            lines[at:at] = lines[min(at, other) : max(at, other)][:40]
        case 2:
            lines[at], lines[other] = lines[other], line
        case 3:
            lines[at] = line[:cut] + word + line[cut:]
        case 4:
            lines[at] = line[: len(line) - len(line.lstrip())] + word
        case 5:
            key, colon, _ = line.partition(b":")
            lines[at] = key + colon + b" " + word
        case 6:
            lines[at] = b" " * chance.randint(0, 9) + line.lstrip()
        case 7:
            lines[at] = line[:cut] + bytes([chance.randrange(256)]) + line[cut + 1 :]
        case 8:
            lines[at] = line[:cut]
        case _:
            del lines[at:]
    return b"\n".join(lines)


def spoilt(source: Path, target: Path, chance: random.Random) -> list[Path]:
    """Copy a project and spoil some of its files; return these."""
    shutil.copytree(source, target, symlinks=True, ignore=shutil.ignore_patterns(".git"))
    files = sorted(
        path
        for path in target.rglob("*")
        if path.is_file() and not path.is_symlink() and 0 < path.stat().st_size < BYTES_MAX
    )
    chosen = chance.sample(files, min(len(files), chance.randint(1, 3)))
    for path in chosen:
        content = path.read_bytes()
        for _ in range(chance.randint(1, 6)):
            content = spoil(content, chance)
        path.write_bytes(content)
    return chosen


def told(folder: Path) -> tuple[Report | None, list[str]]:
    """Return what the check says of a folder, in every format. Raises what the check raises."""
    try:
        report = check(folder)
    except (NothingToCheck, CheckImpossible) as error:
        return None, [str(error)]
    texts = [
        repr(reports.as_json(report)),
        repr(reports.as_sarif(report, version="0")),
        reports.as_junit(report, fails=frozenset({Verdict.VIOLATED})),
        reports.as_github(report),
        reports.as_markdown(report),
        reports.as_text(report, everything=True),
    ]
    return report, texts


def faults(folder: Path, changed: list[Path]) -> Iterator[str]:
    """Yield what is wrong with how the check takes a project."""
    begun_s = time.process_time()
    try:
        report, texts = told(folder)
        _, again = told(folder)
    except Exception as error:  # noqa: BLE001 - what is looked for
        yield f"{type(error).__name__}: {error}"
        return
    taken_s = (time.process_time() - begun_s) / 2
    if taken_s > CPU_S_MAX:
        yield f"{taken_s:.1f} s of processor time"
    if texts != again:
        yield "told differently the second time"
    for each in () if report is None else report.unread:
        if "the check failed at" in each.reason:
            yield f"{each.file}: {each.reason}"
    for path in changed:
        if "dockerfile" in path.name.lower():
            yield from read_otherwise(path)


def read_otherwise(path: Path) -> Iterator[str]:
    """Yield how our reading of a Dockerfile differs from BuildKit's."""
    try:
        text = path.read_bytes().decode()
    except UnicodeDecodeError:
        return
    theirs = reference(text)
    ours = shape(text)
    if not theirs or any(name not in KNOWN for name, *_ in ours + theirs):
        return  # refused, or no instruction: we call such a file no Dockerfile
    if ours != theirs:
        yield f"{path.name}: ours {ours}, BuildKit's {theirs}"


def main(argv: list[str] | None = None) -> int:
    """Spoil and check until the time is over; 1: faults were found."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--first", type=int, default=0, help="seed of the first trial")
    parser.add_argument("--trials", type=int, default=10**9)
    parser.add_argument("--projects", type=Path, default=SPECIMENS, help="a folder of projects")
    parser.add_argument("--keep", type=Path, help="keep the projects with faults below this folder")
    options = parser.parse_args(argv)
    sources = places(options.projects)
    warnings.simplefilter("error")
    until = time.monotonic() + options.seconds
    seed = options.first
    found: list[str] = []
    with tempfile.TemporaryDirectory(prefix="perdure-fuzz-") as top:
        while seed < options.first + options.trials and time.monotonic() < until:
            chance = random.Random(seed)  # noqa: S311 - not for secrets
            folder = Path(top, f"p{seed}")
            source = chance.choice(sources)
            changed = spoilt(source, folder, chance)
            for fault in faults(folder, changed):
                found.append(f"seed {seed}, {source.name}: {fault}")
                sys.stdout.write(found[-1] + "\n")
                sys.stdout.flush()
                if options.keep:
                    shutil.copytree(folder, options.keep / folder.name, dirs_exist_ok=True)
            shutil.rmtree(folder)
            gc.collect()  # a check leaves that to whoever goes on
            seed += 1
    trials = seed - options.first
    sys.stdout.write(f"fuzz: {trials} projects from seed {options.first}, {len(found)} faults\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
