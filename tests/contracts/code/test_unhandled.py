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


LOOP = """
import asyncio
from work import loop, once

def main():
    try:
        asyncio.run(loop())
    except KeyboardInterrupt:
        print("stopped")

if __name__ == "__main__":
    main()
"""
WORK = """
import asyncio
import pydantic_ai

async def once():
    print("a step")

async def loop():
    while True:
        await once()
        await asyncio.sleep(1)
"""


@pytest.mark.parametrize(
    ("before", "after", "verdict"),
    [
        ("", "", Verdict.VIOLATED),
        ("        await once()", "        if await once():\n            break", Verdict.UNDECIDED),
        ("while True", "while await once()", Verdict.UNDECIDED),
        ("import asyncio", "import asyncio\nimport uvicorn", Verdict.UNDECIDED),
        ("async def loop", "async def unused", Verdict.UNDECIDED),
    ],
)
def test_a_loop_without_an_end_that_the_program_executes(tmp_path, before, after, verdict):
    work = WORK.replace(before, after, 1) if before else WORK
    work += "async def loop(): pass\n" if "unused" in work else ""
    found = judged(tmp_path, "", main_dot_py=LOOP, work_dot_py=work)
    assert found.verdict is verdict
    if verdict is Verdict.VIOLATED:
        assert ("work.py", 9) in {(step.file, step.line) for step in found.evidence}


def test_a_loop_that_others_are_handed_may_end_with_the_program(tmp_path):
    handed = LOOP.replace("asyncio.run(loop())", "Thread(target=loop(), daemon=True).start()")
    found = judged(tmp_path, "", main_dot_py=handed, work_dot_py=WORK)
    assert found.verdict is Verdict.UNDECIDED


POD = """apiVersion: apps/v1
kind: Deployment
metadata: {name: api}
spec:
  selector: {matchLabels: {app: api}}
  template:
    metadata: {labels: {app: api}}
    spec:
      containers:
        - {name: api, image: "api:1", MORE}
"""
SERVICE = """apiVersion: v1
kind: Service
metadata: {name: api}
spec: {selector: {app: api}, ports: [{port: 80}]}
"""


@pytest.mark.parametrize(
    ("more", "service", "verdict"),
    [
        ("env: []", "", Verdict.UNDECIDED),
        ("ports: [{containerPort: 80}]", "", Verdict.VIOLATED),
        ("env: []", SERVICE, Verdict.VIOLATED),
    ],
)
def test_an_update_of_what_nothing_leads_to_is_a_question(tmp_path, more, service, verdict):
    files = {
        "Dockerfile": DOCKERFILE,
        "app_dot_py": None,
        "compose_dot_yaml": None,
        "main_dot_py": LOOP,
        "work_dot_py": WORK,
        "k8s__pod_dot_yaml": POD.replace("MORE", more),
        "k8s__service_dot_yaml": service or None,
    }
    report = check(project(tmp_path, **files))
    [found] = [f for root in report.roots for f in root.findings if f.contract is Contract.R5]
    assert found.verdict is verdict


STARTS = """
import asyncio
from work import start

if __name__ == "__main__":
    start()
"""
STEPS = """
import asyncio
import os
import sys
import threading
import time
import pydantic_ai

def step():
    print("a step")

def loop():
    while True:
        step()
        time.sleep(1)

def start():
    loop()
"""
TIMED = """
import asyncio
import pydantic_ai

async def loop():
    while True:
        await asyncio.sleep(1)

async def both():
    await loop()

def start():
    asyncio.run(both())
"""


@pytest.mark.parametrize(
    ("work", "before", "after"),
    [
        (STEPS, "        step()", "        if not step():\n            sys.exit(0)"),
        (STEPS, "        step()", "        step() or os._exit(0)"),
        (STEPS, '    print("a step")', "    exit()"),
        (STEPS, '    print("a step")', "    raise SystemExit"),
        (STEPS, "        step()", "        next(rows)"),
        (
            STEPS,
            "    loop()\n",
            "    try:\n        loop()\n    except LookupError:\n        pass\n",
        ),
        (STEPS, "    loop()\n", "    threading.Timer(1, lambda: loop()).start()\n"),
        (STEPS, "    loop()\n", "    if os.fork() == 0:\n        loop()\n"),
        (STEPS, "def loop", "@in_background\ndef loop"),
        (TIMED, "await loop()", "await asyncio.wait_for(loop(), 30)"),
        (TIMED, "await loop()", "await asyncio.wait([loop(), other()], return_when='F')"),
        (TIMED, "    await loop()", "    async with asyncio.timeout(3):\n        await loop()"),
        (TIMED, "await loop()", "one = loop()"),
    ],
)
def test_a_loop_that_may_be_left_or_is_executed_by_others(tmp_path, work, before, after):
    files = {"main_dot_py": STARTS}
    assert judged(tmp_path, "", **files, work_dot_py=work).verdict is Verdict.VIOLATED
    found = judged(tmp_path, "", **files, work_dot_py=work.replace(before, after))
    assert found.verdict is Verdict.UNDECIDED


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("        step()", "        child.kill()"),
        ("    loop()\n", "    try:\n        loop()\n    except KeyboardInterrupt:\n        pass\n"),
        ("def loop", "@staticmethod\ndef loop"),
    ],
)
def test_a_loop_that_goes_on_all_the_same(tmp_path, before, after):
    files = {"main_dot_py": STARTS, "work_dot_py": STEPS.replace(before, after)}
    assert judged(tmp_path, "", **files).verdict is Verdict.VIOLATED


def test_a_server_in_a_thread_or_that_is_stopped_later_is_not_waited_for(tmp_path):
    text = "import asyncio\n\ndef start():\n    loop = asyncio.new_event_loop()\n    MORE\n"
    for more, verdict in {
        "loop.run_forever()": Verdict.VIOLATED,
        "loop.call_later(3, loop.stop)\n    loop.run_forever()": Verdict.UNDECIDED,
        "wait = lambda: loop.run_forever()": Verdict.UNDECIDED,
    }.items():
        files = {"main_dot_py": STARTS, "work_dot_py": text.replace("MORE", more)}
        assert judged(tmp_path, "", **files).verdict is verdict


HOST = POD.replace(", MORE", "").replace(
    "      containers", "      hostPID: true\n      containers"
)
CUSTOM = {
    "Dockerfile": DOCKERFILE + "COPY sitecustomize.py /usr/local/lib/python3.12/site-packages/\n",
    "sitecustomize_dot_py": "import signal\nsignal.signal(signal.SIGTERM, print)\n",
}


@pytest.mark.parametrize("is_own", [True, False])
@pytest.mark.parametrize(
    "more",
    [
        {"compose_dot_yaml": INIT.replace("init: true", "pid: host")},
        {"compose_dot_yaml": INIT.replace("init: true", "pid: 'service:db'")},
        {"compose_dot_yaml": INIT.replace("init: true", "stop_signal: SIGINT")},
        {"compose_dot_yaml": None, "k8s__pod_dot_yaml": HOST},
        CUSTOM,
    ],
)
def test_what_is_not_process_1_or_gets_another_signal_is_a_question(tmp_path, more, is_own):
    files = {"main_dot_py": "import time\nwhile True:\n    time.sleep(1)\n"}
    files = files if is_own else {"main_dot_py": STARTS, "work_dot_py": STEPS}
    assert judged(tmp_path / "plain", "", **files).verdict is Verdict.VIOLATED
    assert judged(tmp_path / "more", "", **files, **more).verdict is Verdict.UNDECIDED
