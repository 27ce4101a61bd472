"""A graph in which an agent repairs a project inside its sandbox.

    prepare -> agent (think, act, think, ...) -> verify

`prepare` puts the project into the sandbox, the agent works on it with its tools, and `verify` runs
the tests and takes down every file. All three act on the sandbox alone: killed at any instant, the
sandbox goes back to what it was at the last checkpoint, and the step is done again.
"""

import io
import tarfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from examples.fix_tests.script import STEPS
from perdure import END, START, Context, Graph, Rejected, effect
from perdure.agent import Agent, AgentLimits, Ending, Model, ScriptedModel, sandbox_tools
from perdure.sandbox import IsolatedSandboxes, Limits

PROJECT = Path(__file__).with_name("project")
FOLDER = "/srv/bills"
TESTS = "PYTHONPATH=.packages python3 -m unittest discover -s tests -t ."

INSTRUCTIONS = f"""\
You repair a Python project in {FOLDER}. Its tests fail; make them pass without changing them. Run
them with: {TESTS}
A package that is missing is in vendor/; there is no network. Install it with
`python3 -m pip install --no-index --no-build-isolation --no-compile --target .packages PATH`.
Say in the end what was wrong, in a few lines.
"""

LIMITS = AgentLimits(turns_max=60, tokens_max=500_000)

LISTING = r"""
import hashlib, os, stat, sys
for top in sys.argv[1:]:
    for folder, folders, files in os.walk(top):
        folders.sort()
        for name in sorted(files) + [name for name in folders]:
            path = os.path.join(folder, name)
            mode = os.lstat(path).st_mode
            if stat.S_ISLNK(mode):
                what = "-> " + os.readlink(path)
            elif stat.S_ISREG(mode):
                what = hashlib.sha256(open(path, "rb").read()).hexdigest()
            else:
                what = "folder" if stat.S_ISDIR(mode) else "special"
            print(f"{mode:06o} {path} {what}")
"""
"""Prints mode, path and digest of everything in folders: for `python3 -`."""

LISTED = ["/srv", "/etc/perdure", "/workspace", "/root", "/tmp", "/home", "/opt", "/var", "/run"]  # noqa: S108  # of a sandbox


@dataclass
class Fixing:
    """The state; what the fields of a conversation mean is said there."""

    prompt: str = "The tests of the project fail. Repair it."
    answer: str = ""
    ended: Ending | None = None
    turns: int = 0
    tests_pass: bool = False
    tests_said: str = ""
    tree: list[str] = field(default_factory=list)


@effect(kind="contained")
async def unpack(*, sandbox: Any) -> None:
    """Put the project into the sandbox."""
    command = f"mkdir -p {FOLDER} && tar -x --no-same-owner -C {FOLDER}"
    ran = await sandbox.run(command, given=_archive())
    if ran.code != 0:
        message = f"the project can't be unpacked: {ran.errors}"
        raise Rejected(message)


def _archive() -> bytes:
    """Return the project, the same on every machine: modes and times are not this machine's."""
    kept = io.BytesIO()
    with tarfile.open(fileobj=kept, mode="w") as archive:
        for path in sorted(PROJECT.rglob("*")):
            if "__pycache__" in path.parts:
                continue
            entry = tarfile.TarInfo(path.relative_to(PROJECT).as_posix())
            if path.is_dir():
                entry.type, entry.mode = tarfile.DIRTYPE, 0o755
                archive.addfile(entry)
            else:
                content = path.read_bytes()
                entry.size, entry.mode = len(content), 0o644
                archive.addfile(entry, io.BytesIO(content))
    return kept.getvalue()


@effect(kind="contained")
async def run_tests(*, sandbox: Any) -> list[Any]:
    """Run the tests; return the exit code and what they said."""
    ran = await sandbox.run(TESTS, cwd=FOLDER)
    return [ran.code, ran.errors[-4_000:]]


@effect(kind="contained")
async def list_tree(*, sandbox: Any) -> list[str]:
    """Return a line for everything in the sandbox that may have changed."""
    ran = await sandbox.run(["python3", "-", *LISTED], given=LISTING.encode())
    if ran.code != 0 or ran.is_cut:
        message = f"the files can't be listed: {ran.errors[-1_000:]}"
        raise Rejected(message)
    return list(ran.output.splitlines())


async def prepare(ctx: Context) -> None:
    await ctx.call(unpack)


async def verify(ctx: Context) -> dict[str, Any]:
    code, said = await ctx.call(run_tests)
    tree = await ctx.call(list_tree)
    return {"tests_pass": code == 0, "tests_said": said, "tree": tree}


def build(model: Model | None = None) -> Graph[Fixing]:
    """Return the graph; without a model, the one that follows the script."""
    agent = Agent(
        name="fixer",
        model=model or ScriptedModel(STEPS),
        tools=sandbox_tools(folder=FOLDER),
        instructions=INSTRUCTIONS,
        limits=LIMITS,
    )
    graph = Graph(Fixing, name="fix-tests")
    graph.node(prepare)
    graph.node(agent.graph, name="agent")
    graph.node(verify)
    graph.edge(START, prepare)
    graph.edge(prepare, "agent")
    graph.edge("agent", verify)
    graph.edge(verify, END)
    return graph


def sandboxes(root: Path) -> IsolatedSandboxes:
    """Return where the agent works; compiled files carry times, so none are written."""
    env = {"PYTHONDONTWRITEBYTECODE": "1", "PIP_NO_CACHE_DIR": "1"}
    env["PIP_DISABLE_PIP_VERSION_CHECK"] = "1"
    return IsolatedSandboxes(root, env=env, limits=Limits(deadline_s=120))


graph = build()
"""With the scripted model: for `perdure replay RUN examples.fix_tests.fixing:graph`."""
