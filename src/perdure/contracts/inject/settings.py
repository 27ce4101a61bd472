"""What a project says about being broken: its file `perdure.inject.toml`.

Deployment files say how the service starts; this one says how to talk to it, and what to put in the
place of what it would call outside.

    service = "api"               # the service that is broken
    port = 8000                   # where it listens in its container
    probe = "http"                # http, langgraph, perdure, or program with `command`
    command = ["python3", "probe.py"]   # of perdure: ["app.py:graph"], and how Perdure is called
    abilities = ["run", "thread"] # left out: all that the probe knows
    stubs = ["effects", "model"]  # what is started beside it, for each trial anew

    [environment]                 # what the deployment leaves open, or the trial needs otherwise
    EFFECTS_URL = "{effects}"     # {effects} and {model} are the addresses of the stubs, which
    OPENAI_BASE_URL = "{model}/v1"  # are one server; {port} is the port to listen on
    [process]                     # how the process engine starts it; left out: as the image does
    argv = ["python3", "app.py"]
    pre_stop = ["rm", "ready"]    # what it does for a preStop hook that is a command of a container
    [trial]                       # left out: the defaults of `Trial`
    steps = 4
"""

import tomllib
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, fields
from typing import NoReturn

from perdure.contracts.inject import limits
from perdure.contracts.inject.probes import Ability
from perdure.errors import SettingInvalid

FILE = "perdure.inject.toml"
KINDS = ("http", "langgraph", "perdure", "program")
TABLES = frozenset(
    ["service", "port", "probe", "command", "abilities", "stubs", "environment", "process", "trial"]
)
STUBS = ("effects", "model")


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """What a trial's runs look like, and how long it waits. Seconds are upper bounds of waits."""

    steps: int = 4
    kill_after: int = 2
    """Steps that have ended when the application is killed."""
    step_s: float = 0.0
    """Least seconds of one step, where no barrier of the effect server holds it."""
    drain_s: float = 1.0
    """Seconds that the run under way still takes when the stop signal comes."""
    ready_s: float = 60.0
    run_s: float = 60.0
    """Until a run ends, or is taken up again by itself."""
    grace_s: float | None = None
    """`None`: what the deployment says."""
    late_s: float = 5.0
    """How much later than the service its dependency starts."""
    away_s: float = 15.0
    """How long a service is watched that should not say that it is ready."""
    dependency: str | None = None
    """The service that is late; `None`: the first database that it depends on."""
    rate: float = 20.0
    """Requests a second during an update."""
    concurrency: int = 8
    payload_bytes: int = 4_000_000
    resource: str = "lease"
    lease_s: float = 10.0
    """Until something that a killed instance held must be free."""
    lost_steps: int = 1
    """How many ended steps may be missing after a kill: 0 with `durability="sync"`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """A file `perdure.inject.toml`, or the defaults of one that is not there."""

    service: str | None = None
    port: int | None = None
    probe: str = "http"
    command: tuple[str, ...] = ()
    abilities: frozenset[Ability] | None = None
    stubs: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    process_argv: tuple[str, ...] = ()
    process_pre_stop: tuple[str, ...] = ()
    """Executed on this host in the place of a preStop hook; empty: nothing is."""
    trial: Trial = field(default_factory=Trial)


def read_settings(text: str) -> Settings:
    """Read the text of such a file.

    Raises:
        SettingInvalid: it is no TOML, or says something that there is not.
    """
    if len(text) > limits.SETTINGS_BYTES_MAX:
        _fail(f"it has more than {limits.SETTINGS_BYTES_MAX:,} characters")
    try:
        said = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # also of a number with thousands of digits
        _fail(str(error), error)
    _no_others(said, TABLES, "")
    process = _table(said, "process")
    _no_others(process, {"argv", "pre_stop"}, "process.")
    abilities = said.get("abilities")
    return Settings(
        service=_text(said, "service"),
        port=_number(said, "port"),
        probe=_one_of(said.get("probe", "http"), KINDS, "probe"),
        command=_words(said, "command"),
        abilities=None
        if abilities is None
        else frozenset(
            Ability(_one_of(each, tuple(Ability), "abilities"))
            for each in _words(said, "abilities")
        ),
        stubs=tuple(_one_of(each, STUBS, "stubs") for each in _words(said, "stubs")),
        environment={
            name: value if isinstance(value, str) else _fail(f"environment.{name} is no text")
            for name, value in _table(said, "environment").items()
        },
        process_argv=_words(process, "argv"),
        process_pre_stop=_words(process, "pre_stop"),
        trial=_trial(_table(said, "trial")),
    )


def _trial(said: Mapping[str, object]) -> Trial:
    names = {each.name for each in fields(Trial)}
    _no_others(said, names, "trial.")
    texts = {"resource", "dependency"}
    for name, value in said.items():
        wanted = (str,) if name in texts else (int, float)
        if not isinstance(value, wanted) or isinstance(value, bool):
            _fail(f"trial.{name} is {value!r}")
        if not isinstance(value, str) and not 0 <= value <= limits.SETTING_MAX:
            _fail(f"trial.{name} must lie between 0 and {limits.SETTING_MAX:,}")
    return Trial(**dict(said))  # type: ignore[arg-type]  # checked above


def _no_others(said: Mapping[str, object], known: AbstractSet[str], place: str) -> None:
    for name in sorted(set(said) - known):
        _fail(f"there is no {place}{name}; there are {', '.join(sorted(known))}")


def _table(said: Mapping[str, object], name: str) -> Mapping[str, object]:
    value = said.get(name, {})
    return value if isinstance(value, dict) else _fail(f"{name} is no table")


def _text(said: Mapping[str, object], name: str) -> str | None:
    value = said.get(name)
    return value if value is None or isinstance(value, str) else _fail(f"{name} is no text")


def _number(said: Mapping[str, object], name: str) -> int | None:
    value = said.get(name)
    if value is None:
        return None
    if type(value) is not int or not 0 < value < limits.PORT_MAX:
        _fail(f"{name} is no port")
    return value


def _words(said: Mapping[str, object], name: str) -> tuple[str, ...]:
    value = said.get(name, [])
    if not isinstance(value, list) or len(value) > limits.ARGV_MAX:
        _fail(f"{name} is no list of at most {limits.ARGV_MAX} texts")
    return tuple(
        each if isinstance(each, str) else _fail(f"{name} has a part that is no text")
        for each in value
    )


def _one_of(value: object, known: tuple[str, ...], name: str) -> str:
    if not isinstance(value, str) or value not in known:
        _fail(f"{name} is {value!r}; it may be {', '.join(known)}")
    return value


def _fail(what: str, cause: Exception | None = None) -> NoReturn:
    msg = f"{FILE} can't be used: {what}"
    raise SettingInvalid(msg, file=FILE) from cause
