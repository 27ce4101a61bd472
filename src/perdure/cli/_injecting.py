"""`perdure inject`: arguments, progress and exit codes; the breaking is in the room `contracts`."""

from pathlib import Path
from typing import Annotated

import typer

from perdure.cli._contracts_words import assumed, contract_of
from perdure.cli._output import print_json, say
from perdure.cli._proving import EXIT, proved, told, trials_folder
from perdure.contracts.inject import Event, Wanted

Folder = Annotated[Path, typer.Argument(metavar="FOLDER", help="The project (default: here).")]
OneContract = Annotated[
    str, typer.Option("--contract", metavar="R2", help="The contract to prove.")
]
Service = Annotated[
    str | None, typer.Option("--service", metavar="NAME", help="The service that is broken.")
]
Root = Annotated[
    str | None, typer.Option("--root", metavar="FILE", help="The deployment that has it.")
]
OneEvent = Annotated[
    Event | None,
    typer.Option(
        "--event", metavar="NAME", help="What is done, where a contract knows two: S4 late, lost."
    ),
]
Engine = Annotated[
    str,
    typer.Option("--engine", metavar="NAME", help="docker, podman, or process (no containers)."),
]
Repetitions = Annotated[
    int, typer.Option("--repetitions", metavar="N", help="How often; a verdict needs 3 valid ones.")
]
Seed = Annotated[int, typer.Option("--seed", metavar="N", help="Names threads and operations.")]
Assume = Annotated[
    list[str] | None,
    typer.Option("--assume", metavar="KEY=VALUE", help="A setting that no file says; repeatable."),
]
Output = Annotated[
    Path | None,
    typer.Option("--output", metavar="FOLDER", help="Where transcripts go (.perdure-trials/...)."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


def inject(
    folder: Folder = Path(),
    *,
    contract: OneContract,
    service: Service = None,
    root: Root = None,
    event: OneEvent = None,
    engine: Engine = "docker",
    repetitions: Repetitions = 5,
    seed: Seed = 0,
    assume: Assume = None,
    output: Output = None,
    as_json: AsJson = False,
) -> None:
    r"""Break a service for real, and see whether it keeps a contract.

    Starts the deployment in containers of its own, with fresh volumes, breaks it as the contract
    says (docs/injection.md), and asks the application what became of its runs. The project is not
    changed; what was started is removed, also after Ctrl-C. Exit code 0: held, 1: violated,
    2: inconclusive, or it could not be done.

    \b
    Examples:
      perdure inject --contract R2
      perdure inject services/api --contract S2 --service api --repetitions 3
      perdure inject --contract S4 --event lost
      perdure inject --contract R7 --engine process --json
    """
    wanted = Wanted(
        folder=folder,
        contract=contract_of("--contract", contract),
        output=output or trials_folder(contract),
        service=service,
        root=root,
        repetitions=repetitions,
        seed=seed,
        assume=assumed(assume or []),
        event=event,
    )
    proof = proved(wanted, engine)
    if as_json:
        print_json(proof.to_json())
    else:
        say(told(proof))
    raise typer.Exit(EXIT[proof.verdict])
