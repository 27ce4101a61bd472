"""Runs that wait in the memory of the process until another request lets them go on.

Size: a small project for each shape, and for each neighbour of it.
"""

import re
from textwrap import dedent

import pytest

from perdure.contracts.code import limits
from perdure.contracts.code.facts import Medium, Role

HEAD = """
import asyncio
import uuid
from fastapi import FastAPI
app = FastAPI()
"""
WAITS = {
    "a future that is bound and put at once": """
        open_questions = {}
        async def ask_person(key):
            answer = open_questions[key] = asyncio.get_running_loop().create_future()
            return await answer
        @app.post("/answers/{key}")
        async def reply(key: str, text: str):
            open_questions.pop(key).set_result(text)
        """,
    "a future of a module": """
        open_questions: dict[str, asyncio.Future] = {}
        async def ask_person(text):
            key = uuid.uuid4().hex
            answer = asyncio.get_running_loop().create_future()
            open_questions[key] = answer
            try:
                return await asyncio.wait_for(answer, timeout=600)
            finally:
                open_questions.pop(key, None)
        @app.post("/answers/{key}")
        async def reply(key: str, text: str):
            waiting = open_questions.get(key)
            waiting.set_result(text)
        """,
    "an object of a class": """
        from dataclasses import dataclass, field
        @dataclass
        class Approval:
            key: str
            said: bool | None = None
            event: asyncio.Event = field(default_factory=asyncio.Event)
        class ApprovalDesk:
            def __init__(self):
                self._open = {}
            def ask(self, key):
                approval = Approval(key)
                self._open[key] = approval
                return approval
            def settle(self, key, said):
                approval = self._open.pop(key)
                approval.said = said
                approval.event.set()
        desk = ApprovalDesk()
        async def pay(amount):
            approval = desk.ask(uuid.uuid4().hex)
            await approval.event.wait()
            return approval.said
        @app.post("/settle/{key}")
        async def settle(key: str, said: bool):
            desk.settle(key, said)
        """,
    "a factory that gives the same": """
        import threading
        from functools import lru_cache
        class Consents:
            def __init__(self):
                self.events = {}
                self.said = {}
            def wait_for(self, key):
                self.events[key] = threading.Event()
                self.events[key].wait(timeout=300)
                return self.said.pop(key, False)
            def give(self, key, said):
                self.said[key] = said
                if key in self.events:
                    self.events[key].set()
        @lru_cache
        def consents():
            return Consents()
        def delete_rows(table):
            return consents().wait_for(table)
        @app.post("/consents/{key}")
        def give(key: str, said: bool):
            consents().give(key, said)
        """,
    "a dict of a class": """
        class Reviews:
            waiting = {}
            @classmethod
            async def wait(cls, key):
                entry = {"event": asyncio.Event(), "verdict": None}
                cls.waiting[key] = entry
                await asyncio.wait_for(entry["event"].wait(), 60)
                return entry["verdict"]
        async def node(state):
            return {"verdict": await Reviews.wait(state["key"])}
        @app.post("/review/{key}")
        async def review(key: str, verdict: str):
            Reviews.waiting[key]["verdict"] = verdict
            Reviews.waiting[key]["event"].set()
        """,
    "a queue": """
        human_replies = {}
        async def ask_human(thread, text):
            queue = human_replies.setdefault(thread, asyncio.Queue())
            return await queue.get()
        @app.post("/reply/{thread}")
        async def reply(thread: str, text: str):
            await human_replies[thread].put(text)
        """,
    "an entry that is handed on": """
        class Run:
            def __init__(self):
                self.events = asyncio.Queue()
                self.done = asyncio.Event()
                self.approval = asyncio.Event()
        runs = {}
        async def go_on(run):
            await run.events.put("asks")
            await run.approval.wait()
            run.done.set()
        @app.post("/runs/{key}")
        async def begin(key: str):
            run = Run()
            runs[key] = run
            asyncio.create_task(go_on(run))
        @app.post("/runs/{key}/approve")
        async def approve(key: str):
            run = runs[key]
            run.approval.set()
        @app.get("/runs/{key}/events")
        async def follow(key: str):
            return await runs[key].events.get()
        """,
    "the state of the application": """
        app.state.approvals = {}
        async def gate(request, key):
            event = asyncio.Event()
            request.app.state.approvals[key] = {"event": event, "said": None}
            await event.wait()
        @app.post("/approve/{key}")
        async def approve(request, key: str):
            request.app.state.approvals[key]["event"].set()
        """,
    "of another module": """
        import desk
        async def ask(key):
            desk.decisions[key] = asyncio.Event()
            await desk.decisions[key].wait()
        @app.post("/decide/{key}")
        async def decide(key: str):
            desk.decisions[key].set()
        """,
}
OTHERS = {
    "a copy of what a repository has": """
        pending_actions = {}
        @app.post("/orders")
        async def create(key: str):
            order = Order(key)
            await repo.create(order)
            pending_actions[key] = order
        @app.post("/payments/confirm")
        async def confirm(key: str):
            return pending_actions.get(key) or await repo.get(key)
        """,
    "a copy that the route commits": """
        class Cases:
            def __init__(self):
                self._all = {}
            def get(self, session, key):
                if key not in self._all:
                    self._all[key] = load_case(key)
                return self._all[key]
        cases = Cases()
        @app.post("/cases/{key}/approve")
        async def approve(key: str, session=None):
            case = cases.get(session, key)
            case.approved_at = now()
            session.commit()
        """,
    "a long poll, one function further": """
        feedback = {}
        async def wait(key):
            event = feedback.setdefault(key, asyncio.Event())
            await asyncio.wait_for(event.wait(), 25)
        @app.get("/feedback/{key}")
        async def poll(key: str):
            return await wait(key)
        @app.post("/feedback/{key}")
        async def send_feedback(key: str):
            feedback[key].set()
        """,
    "a stream, one function further": """
        answers = {}
        async def pull(key):
            return await answers[key].get()
        async def events(key):
            while True:
                yield await pull(key)
        @app.get("/answers/{key}")
        async def follow(key: str):
            answers[key] = asyncio.Queue()
            return StreamingResponse(events(key))
        async def work(key, text):
            async for part in agent.stream(text):
                await answers[key].put(part)
        @app.post("/question")
        async def question(key: str, text: str):
            await work(key, text)
        """,
    "jobs of a queue": """
        review_queues = {}
        async def consumer(tenant):
            queue = review_queues.setdefault(tenant, asyncio.Queue())
            while True:
                await do(await queue.get())
        @app.on_event("startup")
        async def begin():
            asyncio.create_task(consumer("a"))
        @app.post("/reviews")
        async def submit_review(tenant: str, text: str):
            review_queues[tenant].put_nowait(text)
        """,
    "the first of those that ask the same": """
        answers = {}
        async def compute(key):
            if key in answers:
                return await answers[key]
            answers[key] = asyncio.get_running_loop().create_future()
        def publish(key, value):
            answers.pop(key).set_result(value)
        @app.post("/ask")
        async def ask(key: str):
            if await compute(key):
                return
            publish(key, await model(key))
        """,
    "a loop that is to end": """
        class ReviewJob:
            def __init__(self):
                self.over = asyncio.Event()
            async def loop(self):
                while not self.over.is_set():
                    try:
                        await asyncio.wait_for(self.over.wait(), 5)
                    except TimeoutError:
                        await review_once()
        review_jobs = {}
        @app.post("/run")
        async def begin(key: str):
            job = ReviewJob()
            review_jobs[key] = job
            asyncio.create_task(job.loop())
        @app.post("/reviews/{key}/review")
        async def review(key: str):
            review_jobs.pop(key).over.set()
        """,
    "rights and a life's record": """
        permissions = {}
        async def load(user):
            permissions[user] = await ask_for(user)
            return permissions[user]
        @app.get("/me")
        async def me(user: str):
            return await load(user)
        @app.get("/resume")
        async def get_resume(user: str):
            return permissions.get(user)
        """,
    "tokens of a stream": """
        streams = {}
        async def run(key):
            async for part in graph.astream({}):
                await streams[key].put(part)
        @app.post("/runs")
        async def begin(key: str):
            streams[key] = asyncio.Queue()
            asyncio.create_task(run(key))
        @app.get("/runs/{key}")
        async def follow(key: str):
            return await streams[key].get()
        """,
    "an answer that a run makes": """
        answers = {}
        async def work(key):
            answers[key].set_result(await graph.ainvoke({}))
        @app.post("/ask")
        async def ask(key: str):
            answers[key] = asyncio.get_running_loop().create_future()
            asyncio.create_task(work(key))
            return await answers[key]
        """,
    "an order to stop": """
        cancel_events = {}
        async def run(key):
            cancel_events[key] = asyncio.Event()
            await asyncio.wait([graph.ainvoke({}), cancel_events[key].wait()])
        @app.post("/reject/{key}")
        async def stop(key: str):
            cancel_events[key].set()
        """,
    "locks": """
        approval_locks = {}
        async def run(key):
            approval_locks[key] = asyncio.Lock()
            async with approval_locks[key]:
                return await graph.ainvoke({})
        @app.post("/approve/{key}")
        async def approve(key: str):
            approval_locks[key].release()
        """,
    "calls to a client over its socket": """
        pending_calls = {}
        async def call(socket, key):
            pending_calls[key] = asyncio.get_running_loop().create_future()
            await socket.send_json({"id": key})
            return await asyncio.wait_for(pending_calls[key], 30)
        @app.websocket("/ws")
        async def ws(socket):
            while True:
                said = await socket.receive_json()
                pending_calls[said["id"]].set_result(said)
        """,
    "an end that another request waits for": """
        class Run:
            def __init__(self):
                self.done = asyncio.Event()
        runs = {}
        async def go_on(run):
            run.done.set()
        @app.post("/runs/{key}")
        async def begin(key: str):
            run = Run()
            runs[key] = run
            asyncio.create_task(go_on(run))
        @app.get("/runs/{key}/answer")
        async def answer(key: str):
            await runs[key].done.wait()
        """,
    "an object of each request": """
        class Approvals:
            def __init__(self):
                self.events = {}
            async def wait(self, key):
                self.events[key] = asyncio.Event()
                await self.events[key].wait()
            def approve(self, key):
                self.events[key].set()
        @app.post("/approve/{key}")
        async def approve(key: str):
            Approvals().approve(key)
        """,
}
OPEN = {
    "looking again": """
        confirmations = {}
        async def confirm(key):
            confirmations[key] = {"status": "open"}
            while confirmations[key]["status"] == "open":
                await asyncio.sleep(1)
            return confirmations[key]["status"]
        @app.post("/confirm/{key}")
        async def set_confirmation(key: str, status: str):
            entry = confirmations.get(key)
            entry["status"] = status
        """,
    "an action that is kept": """
        pending_actions = {}
        @app.post("/chat")
        async def chat(session: str, text: str):
            action = await plan(text)
            pending_actions[session] = action
            return {"needs_approval": action}
        @app.post("/approve/{session}")
        async def approve(session: str):
            return await execute(pending_actions.pop(session))
        """,
    "an entry that is approved": """
        class Cases:
            def __init__(self):
                self._all = {}
            def save(self, case):
                self._all[case.id] = case
            def get(self, case_id):
                return self._all.get(case_id)
        cases = Cases()
        @app.post("/alerts")
        async def alert(text: str):
            cases.save(await investigate(text))
        @app.post("/cases/{case_id}/approve")
        async def approve(case_id: str):
            case = cases.get(case_id)
            case.remedy.approved = True
            return await carry_out(case)
        """,
    "a request that waits itself": """
        answers = {}
        class Bus:
            async def request(self, key):
                answers[key] = asyncio.get_running_loop().create_future()
                await publish(key)
                return await asyncio.wait_for(answers[key], 30)
        bus = Bus()
        @app.post("/ask")
        async def ask(key: str):
            return await bus.request(key)
        @app.post("/webhooks/{key}")
        async def answer(key: str, text: str):
            answers[key].set_result(text)
        """,
    "a database that the route calls through another": """
        consents = {}
        async def ask(key):
            consents[key] = asyncio.Event()
            await consents[key].wait()
        async def note(key):
            await db.execute("UPDATE consents SET said = 1")
        @app.post("/consents/{key}")
        async def consent(key: str):
            await note(key)
            consents[key].set()
        """,
    "rows of a repository": """
        decisions = {}
        async def ask(key):
            await approvals_repo.create(key)
            event = decisions.setdefault(key, asyncio.Event())
            await event.wait()
        @app.post("/approvals/{key}")
        async def decide(key: str, said: bool):
            await approvals_repo.update_status(key, said)
            decisions[key].set()
        """,
    "also written down": """
        approvals = {}
        async def ask(key):
            await store.save_request(key)
            approvals[key] = asyncio.Event()
            await approvals[key].wait()
        @app.post("/approve/{key}")
        async def approve(key: str):
            approvals[key].set()
        """,
    "a graph that is interrupted": """
        from langgraph.types import Command, interrupt
        approvals = {}
        async def ask(key):
            approvals[key] = asyncio.Event()
            await approvals[key].wait()
            await graph.ainvoke(Command(resume=True))
        @app.post("/approve/{key}")
        async def approve(key: str):
            approvals[key].set()
        """,
    "what is pending, of whom nobody says": """
        pending = {}
        async def call(key):
            pending[key] = asyncio.Event()
            await pending[key].wait()
        @app.post("/results/{key}")
        async def result(key: str):
            pending[key].set()
        """,
}


def paused(read, text, imports="from openai import AsyncOpenAI\n"):
    files = {"app.py": imports + HEAD + dedent(text), "desk.py": "decisions = {}\n"}
    steps = re.findall(r"^(?:async )?def (\w+)", dedent(text), re.MULTILINE)
    tools = f"agent = make_agent(tools=[{', '.join(steps)}])\n"
    files["app.py"] += tools
    return [one for one in read(files).sites if one.role is Role.PAUSED]


@pytest.mark.parametrize("way", WAITS)
def test_what_a_run_waits_for_is_lost_with_the_process(read, way):
    (site,) = paused(read, WAITS[way])
    assert (site.medium, site.is_served) == (Medium.MEMORY, True)


@pytest.mark.parametrize("way", OTHERS)
def test_what_no_person_lets_go_on_is_no_run_that_waits(read, way):
    assert paused(read, OTHERS[way]) == []


@pytest.mark.parametrize("way", OPEN)
def test_whether_it_is_kept_elsewhere_is_open(read, way):
    (site,) = paused(read, OPEN[way])
    assert (site.medium, site.is_served) == (Medium.MEMORY, None)


@pytest.mark.parametrize("way", WAITS)
def test_without_an_agent_or_a_model_nothing_is_said(read, way):
    assert paused(read, WAITS[way], imports="") == []


def test_how_much_is_looked_at_for_waits_is_bounded(read, monkeypatch):
    monkeypatch.setattr(limits, "WAITED_LINES_MAX", 3)
    assert paused(read, WAITS["a future of a module"]) == []
