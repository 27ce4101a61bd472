"""`perdure check` as its help declares it; `_quick` reads the same command line faster."""

from pathlib import Path
from typing import Annotated

import typer

from perdure.cli._contracts_asked import Asked, perform
from perdure.cli._contracts_output import FAIL_ON, FORMATS

Folder = Annotated[Path, typer.Argument(metavar="FOLDER", help="The project (default: here).")]
Assume = Annotated[
    list[str] | None,
    typer.Option("--assume", metavar="KEY=VALUE", help="A setting that no file says; repeatable."),
]
Only = Annotated[
    str | None,
    typer.Option("--only", metavar="R1,S2", help="Judge these contracts only."),
]
Strict = Annotated[
    bool,
    typer.Option(
        "--strict", help="Count what the usual way to deploy breaks (R5 in Compose, reloaders)."
    ),
]
Format = Annotated[
    str, typer.Option("--format", metavar="NAME", help=f"One of {', '.join(FORMATS)}.")
]
AsJson = Annotated[bool, typer.Option("--json", help="The same as --format json.")]
Everything = Annotated[
    bool, typer.Option("--all", help="Tell what holds and what does not apply, too.")
]
Output = Annotated[
    Path | None, typer.Option("--output", metavar="FILE", help="Write there, not to stdout.")
]
FailOn = Annotated[
    str, typer.Option("--fail-on", metavar="WHAT", help=f"Exit with 1 on: {', '.join(FAIL_ON)}.")
]
Baseline = Annotated[
    Path | None,
    typer.Option("--baseline", metavar="FILE", help="Leave out findings that this file knows."),
]
WriteBaseline = Annotated[
    Path | None,
    typer.Option("--write-baseline", metavar="FILE", help="Write the findings of today there."),
]
Explain = Annotated[
    str | None, typer.Option("--explain", metavar="R1", help="Say what a contract means, and end.")
]
Fix = Annotated[
    bool, typer.Option("--fix", help="Show edits that mend violations, and make them if told to.")
]
Prove = Annotated[
    str | None,
    typer.Option("--prove", metavar="R2", help="Check one contract, then break it to prove it."),
]
Engine = Annotated[
    str, typer.Option("--engine", metavar="NAME", help="With --prove: docker, podman or process.")
]
Yes = Annotated[bool, typer.Option("--yes", help="With --fix: make them without asking.")]


def check(
    folder: Folder = Path(),
    *,
    assume: Assume = None,
    only: Only = None,
    strict: Strict = False,
    output_format: Format = "text",
    as_json: AsJson = False,
    everything: Everything = False,
    output: Output = None,
    fail_on: FailOn = "violated",
    baseline: Baseline = None,
    write_baseline: WriteBaseline = None,
    explain: Explain = None,
    fix: Fix = False,
    yes: Yes = False,
    prove: Prove = None,
    engine: Engine = "docker",
) -> None:
    r"""Check what a deployment promises its agents: is state kept, are stops and updates harmless?

    Reads Compose files, Kubernetes manifests, Dockerfiles, files of Render, Fly and Railway, and
    the Python code that they start; executes nothing and changes nothing. Exit code 0: nothing
    found, 1: something counts (--fail-on), 2: it could not be checked.

    \b
    Examples:
      perdure check
      perdure check services/api --only S1,S2 --assume DATABASE_TYPE=postgres
      perdure check --explain R2
      perdure check --fix
      perdure check --prove R2
      perdure check --format sarif --output perdure.sarif --fail-on never
      perdure check --write-baseline .perdure-baseline.json
    """
    asked = Asked(
        folder=folder,
        assume=tuple(assume or ()),
        only=only,
        strict=strict,
        output_format=output_format,
        as_json=as_json,
        everything=everything,
        output=output,
        fail_on=fail_on,
        baseline=baseline,
        write_baseline=write_baseline,
        explain=explain,
        fix=fix,
        yes=yes,
        prove=prove,
        engine=engine,
    )
    raise typer.Exit(perform(asked))
