"""Commands of a shell by what they do to the shell: end by themselves, or go on as servers."""

import re

from perdure.contracts import limits
from perdure.contracts.deployment._programs import (
    INITS,
    MODULES,
    SERVING,
    TRANSPARENT,
    after_options,
    after_uv_run,
    after_wrapper,
    migrates,
    name_of,
    python_target,
)

NEUTRAL = frozenset(
    [
        "set",
        "cd",
        "echo",
        "mkdir",
        "chmod",
        "chown",
        "source",
        ".",
        "[",
        "[[",
        "test",
        "cp",
        "ln",
        "rm",
        "true",
        "false",
        "printf",
        "cat",
        "read",
        "unset",
        "umask",
        "ulimit",
        "local",
        "return",
        "touch",
        "mv",
        "ls",
        "pwd",
        "date",
        "id",
        "whoami",
        "which",
        "command",
        "hash",
        "sed",
        "awk",
        "grep",
        "find",
        "tr",
        "head",
        "curl",
        "wget",
        "apt-get",
        "apt",
        "apk",
        "dnf",
        "microdnf",
        "yum",
        "aws",
        "az",
        "gcloud",
        "gsutil",
        "kubectl",
        "sqlite3",
        "pip",
        "uv",
        "npm",
        "pnpm",
        "yarn",
        "poetry",
        "git",
        "sleep",
        "export",
        "declare",
        "typeset",
        "readonly",
        "env",
        "shift",
        "let",
        "eval",
        ":",
        "alias",
        "getopts",
        "hostname",
        "openssl",
        "tar",
        "unzip",
        "jq",
        "envsubst",
        "rsync",
        "su",
        "sudo",
        "tee",
        "xargs",
        "dirname",
        "basename",
        "cut",
        "sort",
        "uniq",
        "wc",
        "kill",
        "pkill",
        "stty",
        "exit",
    ]
)
"""Commands that end by themselves, or change only the shell."""


def serves(words: tuple[str, ...]) -> bool:
    """Whether a command goes on until it is stopped, as far as its name says."""
    found = innermost(words)
    if not found:
        return False
    name = name_of(found[0])
    if name == "python":
        kind, target, _ = python_target(found[1:])
        if kind == "module" and target in MODULES:
            return MODULES[target] in SERVING
        return kind in {"module", "file"} and not migrates(found) and not is_step(target)
    if name in {"npm", "pnpm", "yarn", "bun"}:
        return any(w in {"start", "dev", "serve", "preview"} for w in found[1:])
    if name == "flask":
        return "run" in found
    if name == "langgraph":
        return bool({"dev", "up"} & set(found[1:]))
    return name in SERVING


def innermost(words: tuple[str, ...]) -> tuple[str, ...]:
    """Return the command behind wrappers, as far as their words tell."""
    for _ in range(limits.START_DEPTH_MAX):
        if not words:
            return ()
        name = name_of(words[0])
        if name == "uv" and "run" in words[1:4]:
            words = after_uv_run(words[words.index("run") + 1 :])
        elif name in {"poetry", "pipenv", "pdm", "rye", "hatch"} and words[1:2] == ("run",):
            words = words[2:]
        elif name == "timeout":
            words = after_options(words[1:], frozenset({"-k", "-s"}))[1:]
        elif name in TRANSPARENT and name != "exec":
            words = after_wrapper(name, words[1:]) or ()
        elif name in INITS:
            words = after_options(words[1:], frozenset())
        else:
            return words
    return words


def is_step(target: str | None) -> bool:
    """Whether a Python program's name says that it prepares something and ends."""
    return (
        re.search(
            r"init|setup|seed|migrat|wait|check|prestart|bootstrap_db|create_|load_|download|ingest|compile"
            r"|collectstatic|generate|validate|test",
            target or "",
            re.IGNORECASE,
        )
        is not None
    )
