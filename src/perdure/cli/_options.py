"""Arguments and options that several commands share."""

import asyncio
import functools
import inspect
import os
from collections.abc import Callable, Coroutine
from typing import Annotated, Any, TypeVar

import typer

from perdure.cli._store import DEFAULT_URL, KEYS_VARIABLE, VARIABLE, with_terms
from perdure.errors import SettingInvalid

StoreUrl = Annotated[
    str,
    typer.Option(
        "--store",
        envvar=VARIABLE,
        metavar="URL",
        help="The store, e.g. sqlite:///perdure.db.",
        show_default=DEFAULT_URL,
    ),
]
Keys = Annotated[
    str | None,
    typer.Option(
        "--keys",
        envvar=KEYS_VARIABLE,
        metavar="FROM",
        help="Keys of an encrypted store: env:NAME or file:PATH.",
    ),
]
SandboxRoot = Annotated[
    str | None,
    typer.Option(
        "--sandbox",
        envvar="PERDURE_SANDBOX",
        metavar="FOLDER",
        help="Isolate contained effects, and keep their files there (docs/sandbox.md).",
    ),
]
ExportOf = Annotated[
    str | None,
    typer.Option(
        "--sandbox-export",
        envvar="PERDURE_SANDBOX_EXPORT",
        metavar="URL",
        help="Do it where they are exported to, too, e.g. file:///mnt/exports.",
    ),
]
ExportKeysOf = Annotated[
    str | None,
    typer.Option(
        "--sandbox-keys",
        envvar="PERDURE_SANDBOX_KEYS",
        metavar="FROM",
        help="What exports are encrypted with (default: the store's keys).",
    ),
]
FilesOf = Annotated[
    str | None,
    typer.Option(
        "--sandbox",
        envvar="PERDURE_SANDBOX",
        metavar="FOLDER",
        help="Do it with the files of sandboxes, too, which are kept there.",
    ),
]
SandboxExport = Annotated[
    str | None,
    typer.Option(
        "--sandbox-export",
        envvar="PERDURE_SANDBOX_EXPORT",
        metavar="URL",
        help="Export snapshots there, and fetch those of other hosts.",
    ),
]
SandboxKeys = Annotated[
    str | None,
    typer.Option(
        "--sandbox-keys",
        envvar="PERDURE_SANDBOX_KEYS",
        metavar="FROM",
        help="What exports are encrypted with (default: --keys).",
    ),
]
SandboxDurable = Annotated[
    bool,
    typer.Option("--sandbox-durable", help="Go on only when a snapshot outlives this host."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object (docs/cli.md).")]
By = Annotated[str, typer.Option("--by", metavar="NAME", help="Who decides; it is recorded.")]
Sender = Annotated[str, typer.Option("--by", metavar="NAME", help="Who sends it; it is recorded.")]
Input = Annotated[
    str | None,
    typer.Option(
        "--input",
        metavar="JSON|@FILE",
        help="Input fields as a JSON object, or @file (@-: stdin).",
    ),
]
Thread = Annotated[
    str | None,
    typer.Option("--thread", metavar="T", help="Line of state to go on with (default: a new one)."),
]
Key = Annotated[
    str | None,
    typer.Option("--key", metavar="K", help="Start key: the same key gives the first run again."),
]
Subject = Annotated[
    str | None,
    typer.Option("--subject", metavar="S", help="Whom the thread is about, for 'perdure erase'."),
]
Tenant = Annotated[str, typer.Option("--tenant", metavar="X", help="Whose run it is.")]
AnyTenant = Annotated[
    str | None, typer.Option("--tenant", metavar="X", help="Only this tenant's (default: all).")
]
Target = Annotated[
    str,
    typer.Argument(metavar="TARGET", help="path/to/file.py:graph or package.module:graph."),
]
RunId = Annotated[str, typer.Argument(metavar="RUN", help="Run id, as 'perdure ps' shows it.")]

T = TypeVar("T")


def opens_store(function: Callable[..., None]) -> Callable[..., None]:
    """Give a command that opens a store the option `--keys`; others are left as they are."""
    signature = inspect.signature(function)
    if "store" not in signature.parameters:
        return function

    @functools.wraps(function)
    def command(*args: Any, keys: str | None = None, **kwargs: Any) -> None:
        """Run the command with the store and the keys that are given."""
        with with_terms(kwargs.get("store", DEFAULT_URL), keys):
            function(*args, **kwargs)

    option = inspect.Parameter(
        "keys", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Keys
    )
    given = list(signature.parameters.values())
    place = list(signature.parameters).index("store") + 1
    command.__signature__ = signature.replace(  # type: ignore[attr-defined]  # what typer reads
        parameters=[*given[:place], option, *given[place:]]
    )
    command.__annotations__ = {**function.__annotations__, "keys": Keys}
    return command


def await_(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a command's coroutine.

    Raises:
        SettingInvalid: the variable for the store is set and empty; nothing was run.
    """
    if os.environ.get(VARIABLE) == "":
        coroutine.close()
        msg = f"{VARIABLE} is set and empty; unset it, or name a store: {VARIABLE}={DEFAULT_URL}"
        raise SettingInvalid(msg)
    return asyncio.run(coroutine)
