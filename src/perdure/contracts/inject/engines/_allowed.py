"""What a project may say to an engine: all that becomes a word of a command line, or a variable.

A project is not trusted. What it names must not be read as an option, as one more field of an
option, or as a path of the host; what can be is refused, and nothing is cut out or escaped.
"""

import re
from collections.abc import Mapping
from typing import NoReturn

from perdure.contracts.inject import limits
from perdure.errors import TrialImpossible

IMAGE = re.compile(
    r"(?:[A-Za-z0-9][A-Za-z0-9.-]*(?::[0-9]{1,5})?/)?"  # the registry
    r"[a-z0-9]+(?:(?:[./]|__?|-+)[a-z0-9]+)*"
    r"(?::[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?"
    r"(?:@sha256:[0-9a-f]{64})?"
)
IMAGE_ID = re.compile(r"(?:sha256:)?[0-9a-f]{64}")
PATH = re.compile(r"/[^\x00-\x1f\x7f,:\"\\]*")
HOST = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]{0,251}[A-Za-z0-9_])?")
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,199}")
POLICY = re.compile(r"no|always|unless-stopped|on-failure(?::[0-9]{1,6})?|controller|swarm_any")
SIGNAL = re.compile(r"[0-9]{1,3}|[A-Za-z][A-Za-z0-9]{1,9}(?:[+-][0-9]{1,2})?")
VARIABLE = re.compile(r"[A-Za-z0-9_.-]+")
STAGE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")


def image(said: str) -> str:
    """Return the reference or id of an image."""
    if len(said) <= limits.REFERENCE_CHARACTERS_MAX and (
        IMAGE_ID.fullmatch(said) or IMAGE.fullmatch(said)
    ):
        return said
    return refuse("an image", said, "it is no reference: NAME, NAME:TAG or NAME@DIGEST")


def path(said: str) -> str:
    """Return where something is mounted, or what is, as one value of one field of an option."""
    if PATH.fullmatch(said) and ".." not in said.split("/"):
        return text("a path", said)
    return refuse(
        "a mount's path", said,
        "it must be absolute, without comma, colon, quote, backslash, control character and ..",
    )  # fmt: skip


def is_host(said: str) -> bool:
    """Whether a name can be that of a host in the network of a trial."""
    return HOST.fullmatch(said) is not None


def host(said: str) -> str:
    """Return the name of a host in the network of a trial."""
    return said if is_host(said) else refuse("a host", said, "it is no name of a host")


def name(said: str) -> str:
    """Return the name of a container, network or volume."""
    return said if NAME.fullmatch(said) else refuse("a name", said, "it is none")


def policy(said: str) -> str:
    """Return a restart policy."""
    known = "no, always, unless-stopped, on-failure or on-failure:N"
    return said if POLICY.fullmatch(said) else refuse("restart", said, f"it may be {known}")


def stop_signal(said: str) -> str:
    """Return the name or number of a signal."""
    return said if SIGNAL.fullmatch(said) else refuse("stop_signal", said, "it is no signal")


def stage(said: str) -> str:
    """Return the name of a stage of a build."""
    return said if STAGE.fullmatch(said) else refuse("a build's target", said, "it is no name")


def text(what: str, said: str) -> str:
    """Return a text that can be a word of any command: no NUL, and UTF-8."""
    try:
        said.encode()
    except UnicodeEncodeError:
        refuse(what, said, "it is no UTF-8")
    return said if "\0" not in said else refuse(what, said, "it has a NUL")


def variables(said: Mapping[str, str]) -> Mapping[str, str]:
    """Return variables that any process can have."""
    for name, value in said.items():
        if not name or "=" in name:
            refuse("a variable", name, "its name is empty or has a =")
        text("the name of a variable", name)
        text(f"variable {name}", value)
    return said


def variables_of_lines(said: Mapping[str, str]) -> bytes:
    """Return variables as a file with one a line, which is how engines read them."""
    for name, value in variables(said).items():
        if not VARIABLE.fullmatch(name):
            refuse("a variable", name, "its name may have letters, digits, _, . and -")
        if "\n" in value or "\r" in value:
            refuse(
                "variable", name,
                "its value has more than one line, and engines read one a line; give it another "
                "value in perdure.inject.toml",
            )  # fmt: skip
    return "".join(f"{name}={value}\n" for name, value in said.items()).encode()


def refuse(what: str, said: str, why: str) -> NoReturn:
    """Say what is not given to an engine, and why.

    Raises:
        TrialImpossible: always.
    """
    msg = f"{what} {said[:200]!r} is not given to an engine: {why}"
    raise TrialImpossible(msg)
