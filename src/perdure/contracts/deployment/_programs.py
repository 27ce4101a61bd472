"""Programs by name: servers and what they do with SIGTERM, wrappers, and what their options say."""

import posixpath
import re
from collections.abc import Mapping, Sequence

from perdure.contracts._patterns import regex
from perdure.contracts.deployment.facts import Process
from perdure.contracts.evidence import Evidence
from perdure.contracts.numbers import whole

HANDLING = frozenset(
    [
        "uvicorn",
        "gunicorn",
        "hypercorn",
        "daphne",
        "fastapi",
        "langgraph",
        "granian",
        "celery",
        "arq",
        "rq",
        "dramatiq",
        "taskiq",
        "streamlit",
        "chainlit",
        "litestar",
        "aegra",
        "nginx",
        "redis-server",
        "postgres",
        "mongod",
        "caddy",
        "traefik",
        "jupyter",
        "jupyter-lab",
        "adk",
        "robyn",
        "sanic",
        "waitress-serve",
        "prefect",
        "mlflow",
        "aerich-serve",
    ]
)
"""They install a handler for SIGTERM, or are PID 1's usual guests and stop on it."""

SERVING = HANDLING | frozenset(
    [
        "flask",
        "http.server",
        "node",
        "npm",
        "npx",
        "yarn",
        "pnpm",
        "bun",
        "deno",
        "next",
        "java",
        "supervisord",
        "honcho",
        "php-fpm",
        "serve",
        "rails",
        "puma",
        "dotnet",
        "pm2",
        "vite",
        "gradio",
        "huey",
        "procrastinate",
        "temporal",
        "mcp",
        "fastmcp",
        "autogenstudio",
        "ollama",
        "vllm",
    ]
)
"""Programs that go on until they are stopped."""

RUNNERS = frozenset({"node", "bun", "deno", "java", "dotnet", "ruby", "php"})
"""They run programs of other languages, which say what becomes of SIGTERM."""

_LIKE_SERVERS = regex(r"serv|worker|daemon|gateway|listen|(^|[-_])(api|bot|agent)($|[-_])")
"""Names of programs that nobody knows and that go on all the same."""


def is_server(process: Process | None) -> bool:
    """Whether a program goes on until it is stopped, as far as its name tells."""
    if process is None or process.program == "python" or process.program in SERVING:
        return process is not None
    return _LIKE_SERVERS.search(process.program) is not None


_RANKS: tuple[frozenset[str], ...] = (
    frozenset(
        [
            "uvicorn",
            "gunicorn",
            "hypercorn",
            "daphne",
            "fastapi",
            "langgraph",
            "granian",
            "litestar",
            "aegra",
        ]
    ),
    frozenset(
        ["celery", "arq", "rq", "dramatiq", "taskiq", "python", "flask", "sanic", "robyn", "adk"]
    ),
    frozenset(["streamlit", "chainlit", "gradio"]),
)

MODULES = {
    "uvicorn": "uvicorn", "gunicorn": "gunicorn", "hypercorn": "hypercorn", "daphne": "daphne",
    "celery": "celery", "streamlit": "streamlit", "chainlit": "chainlit", "flask": "flask",
    "fastapi": "fastapi", "granian": "granian", "dramatiq": "dramatiq", "rq": "rq", "arq": "arq",
    "langgraph_cli": "langgraph", "http.server": "http.server", "taskiq": "taskiq",
    "alembic": "alembic", "pytest": "pytest", "pip": "pip", "jupyter": "jupyter",
    "uvicorn.main": "uvicorn", "gunicorn.app.wsgiapp": "gunicorn", "langgraph": "langgraph",
    "waitress": "waitress-serve", "supervisor.supervisord": "supervisord", "sanic": "sanic",
    "hypercorn.__main__": "hypercorn", "streamlit.web.cli": "streamlit",
}  # fmt: skip
"""Modules that are programs of that name."""

TRANSPARENT = frozenset(
    [
        "env",
        "exec",
        "gosu",
        "su-exec",
        "setpriv",
        "nice",
        "ionice",
        "stdbuf",
        "chpst",
        "opentelemetry-instrument",
        "ddtrace-run",
        "numactl",
        "setuidgid",
        "runuser-exec",
        "nohup",
        "command",
    ]
)
"""They execute what follows in their own place."""

INITS = frozenset(["tini", "tini-static", "dumb-init", "docker-init", "catatonit", "pid1"])
WAITERS = frozenset({"wait-for-it.sh", "wait-for-it", "wait-for.sh", "wait-for", "wait_for_it.sh"})
"""Scripts that everybody copies: they end with an exec of what follows `--`."""
SHELLS = frozenset(["sh", "bash", "dash", "ash", "zsh", "ksh"])

_UV_VALUES = frozenset(
    [
        "--directory",
        "--project",
        "--package",
        "--extra",
        "--group",
        "--only-group",
        "--with",
        "--python",
        "-p",
        "--env-file",
        "--no-group",
        "--no-extra",
        "--with-requirements",
        "--with-editable",
        "--index-url",
        "--index",
        "--extra-index-url",
        "--find-links",
        "-f",
        "--config-file",
        "--cache-dir",
        "--link-mode",
        "--config-setting",
        "-C",
        "--resolution",
        "--prerelease",
        "--no-build-package",
        "--no-binary-package",
        "--color",
        "--python-platform",
        "--default-index",
        "--from",
        "--refresh-package",
        "--reinstall-package",
        "--upgrade-package",
        "-P",
    ]
)
_MIGRATES = regex(
    r"(^|[\s/])(alembic|aerich|yoyo|dbmate|goose|flyway|liquibase|sqlx|piccolo|atlas)\b"
    r"|\bmigrate\b|\bmigrations?\b|db[ :_-](upgrade|push|init|migrate|setup)|init[-_]?db"
    r"|create[-_]?tables|setup[-_]?db|setup[-_]?checkpointer|db[-_]?init|createdb|psql\b",
    re.IGNORECASE,
)
_WAITS = regex(
    r"pg_isready|wait[-_]?(for|until|db|database|postgres)|wait4x|dockerize|await[-_]|/dev/tcp/"
    r"|\bnc\s+(-\S{1,20}\s+(\d+\s+)?){0,5}-\w*z|(mysql|mariadb-)admin\b.{0,200}\bping"
    r"|redis-cli[^|;]{0,200}ping|mongosh?\b.{0,200}ping|pre[-_]?start|check[-_]db|db[-_]?ready",
    re.IGNORECASE,
)
_LOOPS = regex(r"\b(until|while|for)\b")
_PROBES = regex(
    r"\b(psql|mysql|mariadb|mongosh?|redis-cli|cqlsh|curl|wget|nc|ncat|netcat|telnet)\b"
    r"|connect|create_engine|\bping\b|is_?ready|\bmigrat|\balembic\b",
    re.IGNORECASE,
)
_APP = regex(r"^[A-Za-z_][\w.\-/]*:[A-Za-z_][\w.]*(\(.*\))?$")


GOES_ON = regex(
    r"(?m)^[ \t]*while (True|1)\b|uvicorn|gunicorn|hypercorn|aiohttp\.web|serve_forever|run_forever"
    r"|start_polling|FastMCP|app\.run\(|\.launch\(|Scheduler\(|idle\(\)|start_consuming"
)
"""What a program that goes on has in it."""

RANK_OF_OTHERS = len(_RANKS)
"""The rank of the first program that is no server of agents, nor a front end in Python."""


def name_of(word: str) -> str:
    """Return a program's name without folder and version: `/usr/bin/python3.11` is `python`."""
    name = posixpath.basename(word)
    if re.fullmatch(r"python[\d.]*|pypy[\d.]*", name):
        return "python"
    if re.fullmatch(r"pip[\d.]*", name):
        return "pip"
    return name


def rank(process: Process | None) -> int:
    """Return how likely a process is the one that serves agents; less is likelier."""
    if process is None:
        return len(_RANKS) + 2
    for number, names in enumerate(_RANKS):
        if process.program in names:
            return number
    return len(_RANKS) + (1 if process.program in {"http.server", "nginx", "serve"} else 0)


def migrates(words: Sequence[str]) -> bool:
    """Whether a command changes the schema of a database, by its name."""
    return _MIGRATES.search(" ".join(words)) is not None


def waits(text: str) -> bool:
    """Whether a command or loop waits for something over the network, by its text."""
    return _WAITS.search(text) is not None


def tries(text: str) -> str | None:
    """Return the line of a loop that tries something, sleeps and tries again; `None`: it doesn't.

    Such a loop waits whatever it tries: a shell's, or one of Python that a shell is given.
    """
    loop = _LOOPS.search(text)
    if loop is None or "sleep" not in text[loop.end() :]:
        return None
    probe = _WAITS.search(text) or _PROBES.search(text)
    if probe is None:
        return None
    start = text.rfind("\n", 0, probe.start()) + 1
    return text[start:].partition("\n")[0].strip()


def after_options(words: Sequence[str], valued: frozenset[str]) -> tuple[str, ...]:
    """Return what follows the options of a wrapper; `valued` options take the next word."""
    at = 0
    while at < len(words):
        word = words[at]
        if word == "--":
            return tuple(words[at + 1 :])
        if not word.startswith("-"):
            break
        at += 2 if word in valued else 1
    return tuple(words[at:])


def after_uv_run(words: Sequence[str]) -> tuple[str, ...]:
    """Return the command that `uv run` (its words after `run`) starts."""
    for at, word in enumerate(words):
        if word in {"-m", "--module"}:
            return ("python", "-m", *words[at + 1 :])
        if not word.startswith("-") and (at == 0 or words[at - 1] not in _UV_VALUES):
            break
    rest = after_options(words, _UV_VALUES)
    if rest and rest[0].endswith(".py"):
        return ("python", *rest)
    return rest


def after_wrapper(name: str, words: Sequence[str]) -> tuple[str, ...] | None:
    """Return what a transparent wrapper executes; `None`: it can't be told."""
    rest = list(words)
    if name == "env":
        while rest and (rest[0].startswith("-") or re.match(r"^[A-Za-z_]\w*=", rest[0])):
            rest = rest[2:] if rest[0] in {"-u", "-C", "--unset"} else rest[1:]
        return tuple(rest)
    if name in {"gosu", "su-exec", "setuidgid"}:
        return tuple(rest[1:])
    if name == "newrelic-admin":
        return tuple(rest[1:]) if rest[:1] == ["run-program"] else None
    valued = frozenset({"-n", "-c", "-p", "-i", "-o", "-e", "--reuid", "--regid", "--service_name"})
    return after_options(rest, valued)


def python_target(words: Sequence[str]) -> tuple[str, str | None, tuple[str, ...]]:
    """Return what Python executes: `module`, `file`, `inline` or `none`; its name; the rest."""
    at = 0
    while at < len(words):
        word = words[at]
        if word == "-m" and at + 1 < len(words):
            return "module", words[at + 1], tuple(words[at + 2 :])
        if word.startswith("-m") and len(word) > 2 and word[2] != "-":  # noqa: PLR2004
            return "module", word[2:], tuple(words[at + 1 :])
        if word == "-c" and at + 1 < len(words):
            return "inline", words[at + 1], ()
        if word in {"-W", "-X", "--check-hash-based-pycs"}:
            at += 2
        elif word.startswith("-") and word != "-":
            at += 1
        else:
            return "file", word, tuple(words[at + 1 :])
    return "none", None, ()


def process_of(
    name: str, argv: Sequence[str], evidence: tuple[Evidence, ...], *, is_background: bool = False
) -> Process:
    """Return a process with what it imports or executes."""
    target: str | None = None
    is_module = False
    words = list(argv[1:])
    if name == "python":
        kind, found, _ = python_target(words)
        target = found if kind in {"module", "file"} else None
        is_module = kind == "module"
    elif name in {"celery", "flask"}:
        target = option(words, ("-A", "--app"))
        is_module = target is not None and not target.endswith(".py")
    elif name in {"streamlit", "chainlit", "fastapi"}:
        target = next((word for word in words if word.endswith(".py")), None)
        named = option(words, ("-e", "--entrypoint"))
        if named is not None and target is None:
            target, is_module = named, True
    elif name in {"arq", "rq", "dramatiq", "taskiq", "granian", "daphne", "sanic"}:
        words = [word for word in words if not word.startswith("-")]
        target = next((w for w in words if re.fullmatch(r"[A-Za-z_]\w*([.:]\w+)+", w)), None)
        is_module = target is not None
    else:
        target = next((word for word in words if _APP.match(word)), None)
        is_module = target is not None
    if name == "uvicorn" and target is None:
        plain = [w for w in words if re.fullmatch(r"[A-Za-z_][\w.]*", w)]
        target, is_module = (plain[0], True) if plain and words[:1] == plain[:1] else (None, False)
    return Process(
        argv=tuple(argv),
        evidence=evidence,
        program=name,
        target=target,
        is_module=is_module,
        is_background=is_background,
    )


def option(words: Sequence[str], names: Sequence[str]) -> str | None:
    """Return the value of an option in any of its forms: `-w 4`, `-w4`, `--workers=4`."""
    for at, word in enumerate(words):
        for name in names:
            if word == name:
                return words[at + 1] if at + 1 < len(words) else None
            if name.startswith("--") and word.startswith(name + "="):
                return word[len(name) + 1 :]
            short = len(name) == len("-w") and not name.startswith("--")
            if short and word.startswith(name) and whole(word[2:]) is not None:
                return word[2:]
    return None


GRACEFUL: Mapping[str, tuple[str, ...]] = {
    "uvicorn": ("--timeout-graceful-shutdown",),
    "fastapi": ("--timeout-graceful-shutdown",),
    "gunicorn": ("--graceful-timeout",),
    "hypercorn": ("--graceful-timeout",),
    "granian": ("--workers-kill-timeout",),
}
"""Options that bound how long a server drains, in seconds."""

WORKERS: Mapping[str, tuple[str, ...]] = {
    "uvicorn": ("--workers",),
    "fastapi": ("--workers",),
    "gunicorn": ("-w", "--workers"),
    "hypercorn": ("-w", "--workers"),
    "granian": ("--workers",),
    "celery": ("-c", "--concurrency"),
    "sanic": ("--workers", "-w"),
}
"""Options that make several server processes."""

WORKER_VARIABLES: Mapping[str, tuple[str, ...]] = {
    "uvicorn": ("UVICORN_WORKERS", "WEB_CONCURRENCY"),
    "fastapi": ("WEB_CONCURRENCY",),
    "gunicorn": ("WEB_CONCURRENCY",),
    "granian": ("GRANIAN_WORKERS",),
}
"""Environment variables that do the same."""
