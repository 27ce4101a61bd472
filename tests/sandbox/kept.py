"""Which CRIU tests use: the one that `make criu` made, or the one that PERDURE_CRIU names."""

import os
from pathlib import Path

import pytest

from perdure.errors import PerdureError
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


def criu() -> str:
    """Return the path of a CRIU, or skip."""
    program = os.environ.get("PERDURE_CRIU", str(ROOT / ".criu" / "criu"))
    if not Path(program).exists():
        pytest.skip("NOT TESTED: there is no CRIU; as root on Debian: make criu")
    return program


def kept_sandboxes(folder: Path, **settings: object) -> IsolatedSandboxes:
    """Return a backend that keeps processes, or skip where this host can't."""
    try:
        return IsolatedSandboxes(folder, criu=criu(), **settings)
    except PerdureError as error:
        pytest.skip(f"NOT TESTED: {error}")


async def start_counter(sandbox, *, size: int = 0) -> str:
    """Have the counter running in a sandbox; return what it answers first."""
    await sandbox.write("/workspace/counter.py", COUNTER.encode())
    await sandbox.run(f"/usr/bin/python3 -I /workspace/counter.py {size} & ")
    return await ask(sandbox)


async def ask(sandbox) -> str:
    """Return what the counter answers, or that nothing does."""
    return (await sandbox.run(["/usr/bin/python3", "-I", "-c", ASK])).output.strip()
