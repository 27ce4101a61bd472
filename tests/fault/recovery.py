"""What an agent finds again after its worker was killed, under three ways to keep its sandbox.

    python -m tests.fault.recovery --turns 300 --kills 20 --seed 1

An agent makes shell turns: edits, installs, deletes, renames, modes, links, sparse files, services,
and turns that change nothing. The same turns are made by workers that are killed at random
instants. After each turn everything that can have changed, and what the services answer, is
compared with the undisturbed agent at the same turn: a complete copy, as a digest.

- chat: the journal alone is kept, as agents do that keep their messages: the sandbox begins empty.
- files: the files are restored, services are not.
- full: what Perdure does.
- live: the same, in sandboxes whose processes live between commands.
"""

import argparse
import asyncio
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from perdure import END, START, Context, Graph, Runtime, append, effect
from perdure.sandbox import IsolatedSandboxes, Limits
from tests import warm
from tests.sandbox.workload import LOOK, TOPS

POLICIES = ("chat", "files", "full", "live")
PORT = 8123
SERVER = (
    "import socket, sys\n"
    "server = socket.create_server(('127.0.0.1', int(sys.argv[1])))\n"
    "while True:\n"
    "    one, _ = server.accept()\n"
    "    try: one.sendall(open('/workspace/site/page', 'rb').read())\n"
    "    except OSError: pass\n"
    "    one.close()\n"
)
"""Answers with the page: what it needs to start is little, as it is started for each command."""
LOOK_ALL = (
    f"{LOOK}\n"
    "import socket\n"
    f"try: print(socket.create_connection(('127.0.0.1', {PORT}), 10).recv(100).decode().strip())\n"
    "except OSError: print('nothing answers')\n"
)
UNSEEN = ("/etc/perdure", "/var/log/services", "/run")
"""Not compared: what the services themselves are, and print."""


def turns(count: int, seed: int) -> list[str]:
    """Return commands that do the same whenever they are executed on the same files."""
    chance = random.Random(seed)  # noqa: S311  # not for secrets
    return [_turn(chance, n) for n in range(count)]


def _turn(chance: random.Random, n: int) -> str:
    top = chance.choice(["/workspace", "/workspace", "/usr/local", "/opt", "/tmp", "/dev/shm"])
    a, b = (f"{top}/{chance.choice('abcdef')}" for _ in range(2))
    site = "/usr/local/lib/python3/dist-packages"
    return chance.choice([
        f"seq {n} > {a}",
        f"echo {n} >> {a}",
        f"sed -i s/1/2/ {a}",
        f"mkdir -p {a}/x/y; echo {n} > {a}/x/y/z",
        f"d={site}/p{n % 7}-{n}.dist-info; mkdir -p $d; echo Name > $d/METADATA",
        f"rm -rf {site}/p{n % 7}-*",
        f"rm -rf {a}",
        f"rm -rf {a}; mkdir {a}; echo {n} > {a}/new",
        f"mv {a} {b}",
        f"cp -a {a} {b}",
        f"chmod {chance.choice(['600', '755', '4755'])} {a}",
        f"ln -sfn {b} {a}",
        f"ln -f {a} {b}",
        f"truncate -s {n * 1000} {a}",
        "true",
        "ls -laR /workspace > /dev/null",
        f"rm -f /usr/share/doc/{chance.choice(['bash', 'tar', 'sed'])}/*",
        f"mkdir -p /workspace/site; echo {n} > /workspace/site/page",
        "service start",
        "service stop",
    ])  # fmt: skip


@effect(kind="contained")
async def act(command: str, *, sandbox: Any) -> str:
    line = "true"
    if command == "service start":
        await sandbox.run("mkdir -p /workspace/site")
        server = ["/usr/bin/python3", "-I", "-S", "-c", SERVER, str(PORT)]
        await sandbox.start_service("web", server, port=PORT)
    elif command == "service stop":
        await sandbox.stop_service("web")
    else:
        line = command
    return await looked(sandbox, line)


async def looked(sandbox: Any, line: str) -> str:
    """Execute a line; return a digest of all files after it, and what the service answers."""
    python = ["/usr/bin/python3", "-I", "-S", "-c", LOOK_ALL, "0", *TOPS]
    # In one command: how a second one finds the files of the first is what the next turn shows.
    both = ["/bin/sh", "-c", '{ eval "$0"; } > /dev/null 2>&1; exec "$@"', line, *python]
    ran = await sandbox.run(both, limits=Limits(deadline_s=60))
    files, answer = ran.output.splitlines()
    kept = {p: told for p, told in json.loads(files).items() if not p.startswith(UNSEEN)}
    digest = hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()
    return f"{digest} {answer}"


@dataclass
class State:
    commands: list[str] = field(default_factory=list)
    at: int = 0
    looks: Annotated[list[str], append] = field(default_factory=list)


def graph() -> Graph:
    graph = Graph(State, name="recovery")

    @graph.node
    async def turn(state: State, ctx: Context) -> dict:
        print(state.at, flush=True)  # noqa: T201  # to who kills this
        look = await ctx.call(act, state.commands[state.at])
        return {"at": state.at + 1, "looks": [look]}

    graph.edge(START, turn)
    graph.branch(
        turn, lambda state: turn if state.at < len(state.commands) else END, targets=[turn, END]
    )
    return graph


class Forgetful:
    """A backend that keeps less than it is asked to, where a worker has begun anew."""

    def __init__(self, inner: IsolatedSandboxes, policy: str) -> None:
        self.inner = inner
        self.policy = policy

    def close(self) -> None:
        self.inner.close()

    def open(self, tenant: str, thread: str, **kwargs: Any) -> Any:
        sandbox = self.inner.open(tenant, thread, **kwargs)
        restore = sandbox.restore
        is_new = True

        async def less(snapshot: str | None) -> None:
            nonlocal is_new
            if not is_new or snapshot is None:
                await restore(snapshot)
            elif self.policy == "chat":
                await restore(None)
            else:
                await restore(snapshot)
                await sandbox.stop_service("web")
            is_new = False

        if self.policy in {"chat", "files"}:
            sandbox.resume = less
        return sandbox


async def work(folder: Path, policy: str, run_id: str) -> None:
    """Execute the run to its end."""
    inner = IsolatedSandboxes(folder / "boxes", live=policy == "live")
    backend = Forgetful(inner, policy)
    url = f"sqlite:///{folder / 'p.db'}"
    async with Runtime.open(url, graphs=[graph()], sandbox=backend) as runtime:
        run = await runtime.get(run_id)
        print("ready", flush=True)  # noqa: T201  # to who started this
        state = await run.result()
        (folder / "looks.json").write_text(json.dumps(state.looks))


async def _begin(folder: Path, commands: Sequence[str]) -> str:
    url = f"sqlite:///{folder / 'p.db'}"
    async with Runtime.open(url, graphs=[graph()], worker=False) as runtime:
        return (await runtime.start("recovery", {"commands": list(commands)}, thread="t")).id


Kill = tuple[int, float]
"""(turn that must have begun, seconds after which the worker is killed then)."""


def play(
    folder: Path, policy: str, commands: Sequence[str], kills: Sequence[Kill]
) -> tuple[list[str], int]:
    """Return what was seen after each turn, and how many workers were killed on the way."""
    folder.mkdir()
    run_id = asyncio.run(_begin(folder, commands))
    killed = 0
    for kill in [*kills, None]:
        worker = warm.Popen(
            [sys.executable, "-m", "tests.fault.recovery", "--work", str(folder), policy, run_id],
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        with worker:
            killed += _is_killed(worker, kill)
        if (folder / "looks.json").exists():
            break
    return json.loads((folder / "looks.json").read_text()), killed


def _is_killed(worker: subprocess.Popen, kill: Kill | None) -> bool:
    """Wait for a worker, and kill it when it is to be; return whether it was."""
    for line in worker.stdout:
        if kill is not None and line.strip().isdigit() and int(line) >= kill[0]:
            try:
                worker.wait(timeout=kill[1])
            except subprocess.TimeoutExpired:
                worker.send_signal(signal.SIGKILL)
                return True
    return False


def compare(
    folder: Path, *, count: int, kills: int, seed: int, policies: Sequence[str]
) -> dict[str, Any]:
    """Return for each policy how many turns were as those of the undisturbed agent."""
    commands = turns(count, seed)
    begun = time.monotonic()
    undisturbed, _ = play(folder / "undisturbed", "full", commands, [])
    length_s = time.monotonic() - begun
    chance = random.Random(seed + 1)  # noqa: S311
    # At turns, so that they are killed however long turns take (the last one may end before).
    begun_turns = sorted(chance.sample(range(count - 2), kills))
    at = [(turn, chance.uniform(0.0, 1.5) * length_s / count) for turn in begun_turns]
    found: dict[str, Any] = {"turns": count, "seed": seed, "undisturbed_s": round(length_s, 1)}
    with ThreadPoolExecutor(2) as pool:  # two at once: most of the time each waits for the kernel
        played = pool.map(lambda policy: play(folder / policy, policy, commands, at), policies)
    for policy, (looks, killed) in zip(policies, played, strict=True):
        equal = sum(a == b for a, b in zip(looks, undisturbed, strict=True))
        found[policy] = {
            "kills": killed,
            "equal": equal,
            "percent": round(100 * equal / count, 1),
            "is_end_equal": looks[-1] == undisturbed[-1],
        }
    return found


def main() -> None:
    """Print the comparison."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--turns", type=int, default=300)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--policies", nargs="+", default=list(POLICIES), choices=POLICIES)
    parser.add_argument("--work", nargs=3, metavar=("FOLDER", "POLICY", "RUN"))
    given = parser.parse_args()
    if given.work:
        folder, policy, run_id = given.work
        asyncio.run(work(Path(folder), policy, run_id))
        return
    with tempfile.TemporaryDirectory(prefix="perdure-recovery-") as folder:
        found = compare(
            Path(folder),
            count=given.turns,
            kills=given.kills,
            seed=given.seed,
            policies=given.policies,
        )
    print(json.dumps(found))  # noqa: T201  # the answer of a command
    whole = [policy for policy in given.policies if policy in {"full", "live"}]
    if any(found[policy]["equal"] != given.turns for policy in whole):
        sys.exit(1)


if __name__ == "__main__":
    main()
