"""Writes docs/specimens.md: what the check predicts of each specimen, and what breaking it showed.

    python tools/specimens_doc.py                     write the page again, from stored outcomes
    python tools/specimens_doc.py --check             say whether it is what would be written
    python tools/specimens_doc.py --run [S1 R2 ...]   break them (all, or these) in Docker first

Outcomes are kept in tests/contracts/specimens/outcomes.json with the number of valid
repetitions, so that the page can be checked without a container engine.
"""

import argparse
import asyncio
import json
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from perdure.contracts.findings import Contract  # noqa: E402
from perdure.contracts.inject.engines import CliEngine  # noqa: E402
from perdure.contracts.inject.prove import Ending, Proof  # noqa: E402
from tests.contracts.images.images import NoImages, load  # noqa: E402
from tests.contracts.trying import (  # noqa: E402
    BY_INJECTION,
    EXPECTED,
    KINDS,
    SPECIMENS,
    broken,
    findings,
    specimen,
)
from tools.engines import Missing, running  # noqa: E402

PAGE = ROOT / "docs" / "specimens.md"
OUTCOMES = SPECIMENS / "outcomes.json"
TEXT_CHARACTERS_MAX = 110
HEAD = """# Specimens: what the check predicts, and what breaking them shows

Written by `tools/specimens_doc.py`; `make specimens` breaks all of them again in Docker.

For each contract `tests/contracts/specimens` has two small deployments that really run, alike but
for one thing: one holds the contract and one breaks it. *Predicted* is what `perdure check` says
without starting anything; *shown* is what became of it when it was broken as the contract says,
with the valid repetitions that showed it. R6, R7, R8 and C2 need execution: the check gives hints
there and no verdict.

| contract | specimen | predicted | shown | repetitions | what was seen |
|---|---|---|---|---|---|
"""


def main(arguments: list[str]) -> int:
    """Run trials if asked, and write or compare the page."""
    parser = argparse.ArgumentParser(description="The page of specimens")
    parser.add_argument(
        "--run", nargs="*", metavar="CONTRACT", help="break these (none: all) first"
    )
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--check", action="store_true", help="write nothing, compare")
    chosen = parser.parse_args(arguments)
    if chosen.run is not None:
        wanted = [Contract(name) for name in chosen.run] or list(Contract)
        try:
            run(wanted, chosen.repetitions)
        except (Missing, NoImages) as missing:
            print(f"NO DOCKER ENGINE WITH IMAGES HERE: {missing}", file=sys.stderr)
            return 1
    written = page()
    if chosen.check:
        return 0 if PAGE.read_text(encoding="utf-8") == written else 1
    PAGE.write_text(written, encoding="utf-8")
    return 0


def run(wanted: list[Contract], repetitions: int) -> None:
    """Break specimens in Docker; each outcome is stored as soon as it is there."""
    with running() as environment, tempfile.TemporaryDirectory() as output:
        load(("docker",), environment)
        os.environ.update(environment)
        for contract in wanted:
            for kind in KINDS:
                folder = Path(output) / f"{contract}-{kind}"
                proof = asyncio.run(
                    broken(contract, kind, CliEngine("docker"), folder, repetitions)
                )
                _store(specimen(contract, kind).name, proof)
                print(f"{contract} {kind}: {proof.verdict}: {proof.text}", flush=True)


def _store(name: str, proof: Proof) -> None:
    stored = outcomes()
    endings = [each.ending for each in proof.repetitions]
    stored[name] = {
        "engine": proof.engine,
        "verdict": str(proof.verdict),
        "text": _short(proof.text),
        **{str(ending): endings.count(ending) for ending in Ending},
    }
    text = json.dumps(dict(sorted(stored.items())), indent=1) + "\n"
    OUTCOMES.write_text(text, encoding="utf-8")


def _short(text: str) -> str:
    """Leave out what is another one each time: ids, addresses, logs, counts of repetitions."""
    text = re.sub(r" \(\d+ of \d+\)$", "", text)
    text = re.sub(r"\b[0-9a-f]{12}-", "", text)
    text = re.sub(r" \(waited .*\)$", "", text)
    text = re.sub(r": (INFO| {2}File|psycopg|Traceback| +raise ).*", "", text)
    return text[:TEXT_CHARACTERS_MAX]


def outcomes() -> dict[str, Any]:
    """Return what was shown of each specimen."""
    return json.loads(OUTCOMES.read_text(encoding="utf-8")) if OUTCOMES.exists() else {}


def page() -> str:
    """Return the page as it should be."""
    stored = outcomes()
    lines = [_line(contract, kind, stored) for contract in Contract for kind in KINDS]
    agreeing = sum(line.agrees for line in lines)
    engines = sorted({each["engine"] for each in stored.values()})
    return (
        HEAD
        + "".join(f"{line.text}\n" for line in lines)
        + f"\n{agreeing} of {len(lines)} specimens do what their name says, in the check (where it "
        + f"judges) and when broken. Engine: {', '.join(engines) or 'none'}.\n"
    )


class _Line:
    def __init__(self, text: str, *, agrees: bool) -> None:
        self.text, self.agrees = text, agrees


def _line(contract: Contract, kind: str, stored: dict[str, Any]) -> _Line:
    name = specimen(contract, kind).name
    finding = findings(contract, kind).get(contract)
    predicted = str(finding.verdict) if finding and contract not in BY_INJECTION else "-"
    shown = stored.get(name, {"verdict": "-", "text": "", "held": 0, "violated": 0, "invalid": 0})
    valid = shown["held"] + shown["violated"]
    counted = f"{shown.get(EXPECTED[kind], 0)} of {valid}" if valid else "-"
    counted += f", {shown['invalid']} invalid" if shown["invalid"] else ""
    expected = str(EXPECTED[kind])
    return _Line(
        f"| {contract} | {name} | {predicted} | {shown['verdict']} | {counted} | {shown['text']} |",
        agrees=shown["verdict"] == expected
        and predicted == ("-" if contract in BY_INJECTION else expected),
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
