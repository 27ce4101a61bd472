"""Which CRIU tests use: the one that PERDURE_CRIU names, or the one that `make criu` makes.

Where there is none, `make criu` is tried once for all workers of a run of tests: by root on Debian
it takes some 15 s. Where that fails the tests are skipped, and say why. PERDURE_CRIU= (empty) skips
them without trying.
"""

import fcntl
import functools
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from perdure.errors import PerdureError, SandboxUnstoppable
from perdure.sandbox import IsolatedSandboxes

ROOT = Path(__file__).resolve().parents[2]

COUNTER = """
import http.server, sys
held = bytearray(b"x" * int(sys.argv[1]))
count = 0
class Counter(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        global count
        count += 1
        print("asked", count, flush=True)
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"%d of %d" % (count, len(held)))
http.server.HTTPServer(("127.0.0.1", 8000), Counter).serve_forever()
"""
"""A server that knows only in its memory how often it was asked."""

ASK = """
import time, urllib.request
for _ in range(200):
    try:
        print(urllib.request.urlopen("http://127.0.0.1:8000", timeout=10).read().decode())
        break
    except OSError:
        time.sleep(0.05)
else:
    print("nothing answers")
"""


TRY_S = 150
"""How long the tests wait for it: longer than a slow mirror takes, shorter than their timeouts."""


def criu() -> str:
    """Return the path of a CRIU, or skip."""
    program, why = program_or_why()
    if why:
        pytest.skip(f"NOT TESTED: there is no CRIU: {why}")
    return program


@functools.cache
def program_or_why() -> tuple[str, str]:
    """Return the path of a CRIU, and why there is none; empty: there is."""
    if os.geteuid() != 0:
        return "", "images of processes are taken by root only"
    named = os.environ.get("PERDURE_CRIU")
    made = ROOT / ".criu" / "criu"
    program = made if named is None else Path(named)
    if program.is_file():
        return str(program), ""
    if named is not None:
        return "", f"PERDURE_CRIU is {named!r}"
    if not shutil.which("apt-get"):
        return "", "it is made on Debian: make criu"
    session = os.environ.get("PYTEST_XDIST_TESTRUNUID", str(os.getpid()))
    with (ROOT / ".criu.lock").open("a+", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # another worker makes it
        if made.is_file():
            return str(made), ""
        file.seek(0)
        tried, _, failed = file.read().partition("\n")
        if tried != session:
            failed = _made()
            file.seek(0)
            file.truncate()
            file.write(f"{session}\n{failed}")
    return str(made), failed


def _made() -> str:
    """Have it made; return why that failed; empty: it is there."""
    command = [sys.executable, str(ROOT / "tools" / "criu.py")]
    try:
        done = subprocess.run(  # ours
            command, capture_output=True, text=True, timeout=TRY_S, check=False
        )
    except subprocess.TimeoutExpired:
        return f"make criu takes more than {TRY_S} s"
    return "" if done.returncode == 0 else f"make criu failed: {done.stderr.strip()[-500:]}"


def kept_sandboxes(folder: Path, **settings: object) -> IsolatedSandboxes:
    """Return a backend that keeps processes, or skip where this host can't."""
    try:
        return IsolatedSandboxes(folder, criu=criu(), **settings)
    except PerdureError as error:
        pytest.skip(f"NOT TESTED: {error}")


def living_sandboxes(folder: Path, **settings: object) -> IsolatedSandboxes:
    """Return a backend whose processes go on, or skip where nothing could stop them."""
    try:
        return IsolatedSandboxes(folder, live=True, **settings)
    except SandboxUnstoppable as error:
        pytest.skip(f"NOT TESTED: {error}")


async def start_counter(sandbox, *, size: int = 0) -> str:
    """Have the counter running in a sandbox; return what it answers first."""
    await sandbox.write("/workspace/counter.py", COUNTER.encode())
    await sandbox.run(f"/usr/bin/python3 -I /workspace/counter.py {size} & ")
    return await ask(sandbox)


async def ask(sandbox) -> str:
    """Return what the counter answers, or that nothing does."""
    return (await sandbox.run(["/usr/bin/python3", "-I", "-c", ASK])).output.strip()
