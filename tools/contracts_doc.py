"""Write `docs/contracts.md` from the texts of `perdure check --explain`; with `--check`, compare.

Run it as `PYTHONPATH=src python tools/contracts_doc.py` after a change of those texts.
"""

import sys
import textwrap
from pathlib import Path

from perdure.contracts._words import ANSWERS, FACTS
from perdure.contracts.findings import Contract
from perdure.contracts.report import EXPLAINED, TITLES

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "contracts.md"
SPECIMENS = ROOT / "docs" / "specimens.md"

HEAD = """\
# Operational contracts

<!-- Written by tools/contracts_doc.py from contracts/report/_explained.py; change that. -->

A container platform treats containers as disposable: it stops, kills, moves, doubles and replaces
them. An agent keeps threads, paused runs, memories and work under way. What each side expects of
the other is nowhere written down; fifteen such expectations are the contracts here. `perdure
check` reads a deployment and the code it starts, and says which hold:

    perdure check                      # this folder; exit code 1 if something is violated
    perdure check --explain R2         # the section below, in the terminal
    perdure check --fix                # edits that mend what can be mended by itself, shown first
    perdure check --prove R2           # break a real container, and look

## How to read a report

| verdict | means |
|---|---|
| violated | the files say so: each step of the story is a line that you can open |
| held | the files say so, too; the absence of a fault is no proof |
| open | one fact is missing; the question names it, and says how it is answered |
| not applicable | the service has nothing that the contract is about |

`proved`: written in what is deployed. `declared_default`: what the project says applies where
nobody sets it (`.env.example`, `${A:-b}`, defaults of settings); a real `.env` is never read.
`inferred`: what is usual; another reading is possible.

Only services of the project are judged: databases and other people's images are read, because
services depend on them. What is built here in another language is judged where nothing in Python
is beside it, else its name stands at the end of the report (`beside` in JSON).

What is read: Compose files, Kubernetes manifests, kustomizations, charts, Dockerfiles, and of
platforms `render.yaml`, `fly.toml`, `railway.json` and `railway.toml`, and a Procfile where no
Dockerfile is beside it. An image that is only named is the Dockerfile's of which a build command,
a Compose file or its own name says so; else it is named as not judged. Defaults of platforms are
those of their documentation: Render waits 30 s after SIGTERM, Fly 5 s after SIGINT; volumes of
Railway, what a Procfile leaves open, and variables that a platform's file does not set (secrets,
what a dashboard says) are questions. Files for Cloud Run, ECS, Nomad, App Engine, Heroku
(`app.json`, `heroku.yml`), Terraform, systemd, Quadlet and Modal are named as not read.

**Living with a finding.** `# perdure: ignore[R4] restarted by systemd` in a line of its story, or
in the line above it. The reason is needed; `until=2027-01-01` gives it an end; one that nothing
meets is told. `--write-baseline FILE` remembers all findings of today, `--baseline FILE` leaves
them out; they are recognised when lines move.

**Answering a question.** Each open contract says how it is answered. A setting that no file says:
`--assume DATABASE_TYPE=postgres`. What the platform does, where no file says how the image is run:

| `--assume` | takes |
|---|---|
FACTS
`api.restart=always` says it of the service `api` only. What a file says is never replaced; what is
assumed in vain is told (`note: --assume NOPE=1: nothing that was read has a setting of that
name`). Verdicts that stand on it name it, and JSON has it as `assumptions`. R6, R7, R8, C2, R1
where nothing bounds a drain, and R5 in Compose are no question to files: they are one line of the
report (`R5, R6, R7 can't be told from files: ...`), `--all` asks
them, and JSON marks them with `is_beyond_files`.

**In CI.** `perdure check --format github` annotates lines, `--format sarif --output FILE` is for
code scanning, `--format junit` for test reports. For pre-commit: hook `perdure-check` of this
repository.

"""

TAIL = """\
## What a check does not do

It executes nothing, follows no link out of the folder, reads no `.env`, and asks no cluster. Code
is read from the start command on: a saver in a module that nothing imports is no evidence. What
it can't read it names and goes on. R6, R7, R8 and C2 are decided by execution only: a check says
what it noticed, and `perdure inject` decides.
"""


def page() -> str:
    """Return the whole page."""
    index = "".join(f"| [{c.value}](#{c.value.lower()}) | {TITLES[c]} |\n" for c in Contract)
    table = f"| contract | what it says |\n|---|---|\n{index}\n"
    seen = ""
    if SPECIMENS.exists():
        seen = (
            "For each there is a small deployment that holds and one that breaks: "
            "[specimens.md](specimens.md).\n\n"
        )
    facts = "".join(f"| `{key}` | {takes} |\n" for key, takes in FACTS.items())
    facts += f"| a contract, as `R3` | {ANSWERS}: what you know, where its question is open |\n"
    return (
        HEAD.replace("FACTS\n", f"{facts}\n")
        + table
        + seen
        + "".join(section(each) for each in Contract)
        + TAIL
    )


def section(contract: Contract) -> str:
    """Return the section of one contract, under the anchor that its id names."""
    text = EXPLAINED[contract]
    parts = [
        f'<a id="{contract.value.lower()}"></a>',
        f"## {contract.value}: {TITLES[contract]}",
        text.why,
        f"*Applies when* {text.applies}.",
        "*Violated when*\n\n" + "\n".join(f"- {each}" for each in text.violated),
        "*Held when*\n\n" + "\n".join(f"- {each}" for each in text.held),
        *([f"*Open when* {text.open_when}."] if text.open_when else []),
        f"*To mend it:* {text.mend}",
        f"*Proof by injection:* {text.proof}",
        *([text.limits] if text.limits else []),
    ]
    return "\n\n".join(_filled(part) for part in parts) + "\n\n"


def _filled(text: str) -> str:
    if text.startswith(("<", "##")) or "\n" in text:
        return text
    return textwrap.fill(text, 120, break_long_words=False, break_on_hyphens=False)


def main(arguments: list[str]) -> int:
    """Write the page, or compare it; return 1 if it differs."""
    if "--check" not in arguments:
        PAGE.write_text(page(), encoding="utf-8")
        return 0
    if not PAGE.exists() or PAGE.read_text(encoding="utf-8") != page():
        print("docs/contracts.md is not what the texts say; run tools/contracts_doc.py")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
