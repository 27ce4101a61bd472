"""What the scripted model does: the work of a model that knows the project, on the real files.

Nothing is made up: each step that depends on what the last call gave looks at it, and the run fails
if it is not what was to be expected.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from perdure import Rejected
from perdure.agent import Message, call

TESTS = "PYTHONPATH=.packages python3 -m unittest discover -s tests -t ."
INSTALL = "python3 -m pip install --no-index --no-build-isolation --no-compile --target .packages"


def seen(*parts: str, then: Any) -> Callable[[Sequence[Message]], Any]:
    """Return a step that is taken when the last result has these parts."""

    def step(messages: Sequence[Message]) -> Any:
        last = messages[-1].text
        missing = [part for part in parts if part not in last]
        if missing:
            message = f"the script expected {missing} in: {last[-1_500:]}"
            raise Rejected(message)
        return then

    return step


DECIMALS = """\
    euros, _, cents = text.strip().replace(",", ".").partition(".")
    whole = abs(int(euros)) * 100 + int(cents.ljust(2, "0"))
    return -whole if euros.startswith("-") else whole
"""

EUROS = """\
    sign = "-" if cents < 0 else ""
    return f"{sign}{abs(cents) // 100}.{abs(cents) % 100:02}"
"""

CHECK = """\
import sys
sys.path[:0] = [".", ".packages"]
from bills.parse import parse
from bills.report import report
from bills.split import balances
bills = parse("2026-11-03;ada;12,50;bread\\n2026-11-04;bob;0,05;a sweet")
print(report(balances(bills, ["ada", "bob", "cy"])))
"""

COMMAND = """\
#!/bin/sh
# Says who owes what, of the bills in a file: bin/bills FILE ada bob cy
cd "$(dirname "$0")/.." || exit 1
PYTHONPATH=.packages exec python3 -c '
import sys
from bills.parse import parse
from bills.report import report
from bills.split import balances
print(report(balances(parse(open(sys.argv[1]).read()), sys.argv[2:])))
' "$@"
"""

SERVE = """\
# Answers with what bin/bills says of the bills in a file: GET /tmp/today?ada&cy
import subprocess
from http.server import BaseHTTPRequestHandler, HTTPServer


class Bills(BaseHTTPRequestHandler):
    def do_GET(self):
        path, _, people = self.path.partition("?")
        done = subprocess.run(["bin/bills", path, *people.split("&")], capture_output=True)
        self.send_response(200 if done.returncode == 0 else 500)
        self.end_headers()
        self.wfile.write(done.stdout)

    def log_message(self, *_arguments):
        pass


HTTPServer(("127.0.0.1", 8123), Bills).serve_forever()
"""

ASK = """\
from urllib.request import urlopen
print(urlopen("http://127.0.0.1:8123/tmp/today?ada&cy").read().decode())
"""

STEPS: list[Any] = [
    [call("shell", command="ls -R . && cat README.md"), call("shell", command=TESTS)],
    seen("FAILED", "No module named 'rounding'", then=call("search", pattern="def shares")),
    seen("vendor/rounding/rounding.py", then=call("shell", command=f"{INSTALL} ./vendor/rounding")),
    seen("exit code 0", "rounding-1.0", then=call("shell", command=TESTS)),
    seen("test_amounts", "Ran 7 tests", then=call("read", path="bills/parse.py")),
    seen(
        "int(cents or 0)",
        then=call(
            "edit",
            path="bills/parse.py",
            old='    euros, _, cents = text.strip().partition(".")\n'
            "    return int(euros) * 100 + int(cents or 0)\n",
            new=DECIMALS,
        ),
    ),
    seen(
        "changed at line",
        then=call(
            "edit",
            path="bills/parse.py",
            old='        if not line or line.startswith("#"):',
            new='        if not line.strip() or line.startswith("#"):',
        ),
    ),
    seen("changed", then=call("shell", command="python3 -m unittest tests.test_parse")),
    seen(
        "exit code 0",
        then=[call("read", path="bills/split.py"), call("read", path="bills/report.py")],
    ),
    seen(
        "sorted(totals.items())",
        then=[
            call(
                "edit",
                path="bills/split.py",
                old="    return {person: cents // len(people) for person in people}",
                new="    return weighted(cents, dict.fromkeys(people, 1))",
            ),
            call(
                "edit",
                path="bills/split.py",
                old="totals[person] += part",
                new="totals[person] -= part",
            ),
        ],
    ),
    seen(
        "changed",
        then=call(
            "edit",
            path="bills/report.py",
            old='    return f"{cents // 100}.{cents % 100:02}"\n',
            new=EUROS,
        ),
    ),
    seen("changed", then=call("shell", command=TESTS)),
    seen(
        "test_who_is_owed_most_comes_first",
        then=call(
            "edit",
            path="bills/report.py",
            old="for name, cents in sorted(totals.items())]",
            new="for name, cents in ranked]",
        ),
    ),
    seen(
        "changed",
        then=call(
            "edit",
            path="bills/report.py",
            old="    lines = [",
            new="    ranked = sorted(totals.items(), key=lambda each: (-each[1], each[0]))\n"
            "    lines = [",
        ),
    ),
    seen("changed", then=call("shell", command=TESTS)),
    seen("exit code 0", "OK", then=call("python", code=CHECK)),
    seen("ada: 8.31\nbob: -4.14\ncy: -4.17", then=call("write", path="bin/bills", content=COMMAND)),
    seen("written", then=call("write", path="bin/serve", content=SERVE)),
    seen(
        "written",
        then=call(
            "shell",
            command="chmod 755 bin/bills && ln -s bin/bills run && "
            "echo '2026-11-05;cy;3;tea' > /tmp/today && ./bin/bills /tmp/today ada cy",
        ),
    ),
    seen(
        "cy: 1.50\nada: -1.50",
        then=call("start_service", name="bills", command="python3 bin/serve", port=8123),
    ),
    seen("bills is up", then=call("python", code=ASK)),
    seen("exit code 0", "cy: 1.50", then=call("shell", command=f"rm /tmp/today && {TESTS}")),
    seen(
        "exit code 0",
        then="The package rounding was not installed. Amounts with a comma, one digit or a sign "
        "were read wrongly, shares lost cents and were added, amounts below zero were shown "
        "wrongly, and the report was not in order. All tests pass now; bin/bills and bin/serve, "
        "which runs as a service, are new.",
    ),
]


def slowly(seconds: float) -> list[Any]:
    """Return the steps with a pause before each, as a model would take."""
    return [_Pausing(step, seconds) for step in STEPS]


class _Pausing:
    def __init__(self, step: Any, seconds: float) -> None:
        self._step = step
        self._seconds = seconds

    async def __call__(self, messages: Sequence[Message]) -> Any:
        await asyncio.sleep(self._seconds)
        return self._step(messages) if callable(self._step) else self._step
