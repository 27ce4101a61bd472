"""Programs that wait for ever as process 1, with nothing in them that handles SIGTERM."""

import pytest

from perdure.contracts.check import check
from perdure.contracts.findings import Confidence, Contract, Verdict
from tests.contracts.projects import project

DOCKERFILE = """\
FROM python:3.12-slim
WORKDIR /app
COPY . .
CMD ["python", "main.py"]
"""
MAIN = """
import asyncio
from bot import Bot

async def main():
    await Bot().run()

if __name__ == "__main__":
    asyncio.run(main())
"""
BOT = """
import asyncio
from telegram.ext import Application
from langgraph.graph import StateGraph

class Bot:
    async def run(self):
        app = Application.builder().token("t").build()
        await app.initialize()
        await app.start()
        await app.updater.start_polling()
        try:
            await asyncio.Event().wait()
        finally:
            await app.stop()
"""
INIT = "services:\n  api:\n    build: .\n    init: true\n"


def judged(folder, bot, **more):
    files = {"Dockerfile": DOCKERFILE, "app_dot_py": None, "main_dot_py": MAIN, "bot_dot_py": bot}
    report = check(project(folder, **{**files, **more}))
    return next(
        one for root in report.roots for one in root.findings if one.contract is Contract.R2
    )


def test_a_bot_that_is_started_by_hand_never_notices_sigterm(tmp_path):
    found = judged(tmp_path, BOT)
    assert (found.verdict, found.confidence) == (Verdict.VIOLATED, Confidence.INFERRED)
    assert {(step.file, step.line) for step in found.evidence} >= {("main.py", 9), ("bot.py", 13)}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("await app.updater.start_polling()", "app.run_polling()"),
        ("from langgraph", "import signal\nfrom langgraph"),
        ("from langgraph", "import something_unknown\nfrom langgraph"),
        ("await asyncio.Event().wait()", "loop.add_signal_handler(2, stop)"),
        ("await asyncio.Event().wait()", "threading.Event().wait(timeout=3)"),
        ("await asyncio.Event().wait()", "await asyncio.sleep(60)"),
        ("        try:", "        return\n        try:"),
        ("await asyncio.Event().wait()", "if '--on' in argv: await asyncio.Event().wait()"),
        ("from langgraph", "import importlib\nimportlib.import_module('a' + 'b')\nfrom langgraph"),
        ("from langgraph", "exec(open('handlers.py').read())\nfrom langgraph"),
        ("from langgraph", "import google.adk.cli\nfrom langgraph"),
    ],
)
def test_what_may_handle_it_leaves_it_open(tmp_path, before, after):
    assert judged(tmp_path, BOT.replace(before, after)).verdict is Verdict.UNDECIDED


def test_what_ends_by_itself_is_not_said_to_wait(tmp_path):
    bot = BOT.replace("await asyncio.Event().wait()", "pass").replace("start_polling", "fetch_once")
    assert judged(tmp_path, bot).verdict is Verdict.UNDECIDED


def test_an_init_leaves_it_open(tmp_path):
    assert judged(tmp_path, BOT, compose_dot_yaml=INIT).verdict is Verdict.UNDECIDED
