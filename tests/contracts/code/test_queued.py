"""What an API only hands to the workers of a queue."""

import pytest

from perdure.contracts.code.facts import Medium

TASKS = """
from celery import Celery
from langgraph.graph import StateGraph

celery_app = Celery("work", broker="redis://queue")

def graph():
    builder = StateGraph(dict)
    builder.add_node("a", print)
    builder.add_node("b", print)
    return builder.compile()

def answer(question):
    return graph().invoke({"question": question})

@celery_app.task(name="answer")
def answer_later(question):
    return answer(question)
"""
APP = """
from fastapi import FastAPI
from tasks import answer, answer_later

app = FastAPI()

@app.post("/")
def ask(question):
    answer_later.delay(question)
"""
FILES = {"tasks.py": TASKS, "app.py": APP}


def test_an_api_that_only_queues_runs_no_graph(read):
    facts = read(FILES)
    assert (facts.sites, facts.has_steps, facts.outlives) == ((), (), ())


def test_a_queue_that_a_function_makes_is_one(read):
    made = "def made():\n    return Celery()\n\ncelery_app = made()"
    tasks = TASKS.replace('celery_app = Celery("work", broker="redis://queue")', made)
    assert read({**FILES, "tasks.py": tasks}).sites == ()


def test_a_worker_runs_what_is_queued(read):
    facts = read(FILES, "celery", "-A", "tasks.celery_app", "worker")
    assert [one.medium for one in facts.sites] == [Medium.NONE]
    assert len(facts.has_steps) == 2
    assert facts.outlives != ()


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        ("app.py", "answer_later.delay(question)", "return answer(question)"),
        ("tasks.py", "def graph", "celery_app.conf.task_always_eager = True\n\ndef graph"),
        ("tasks.py", "@celery_app.task", "@app.task"),
    ],
    ids=["asked at once", "eager", "no queue"],
)
def test_what_the_api_runs_itself_counts(read, name, before, after):
    files = {**FILES, name: FILES[name].replace(before, after, 1)}
    if after == "@app.task":
        files["tasks.py"] = files["tasks.py"].replace("from celery", "from flows", 1)
    assert [one.medium for one in read(files).sites] == [Medium.NONE]


APART = {
    "work/__init__.py": "",
    "work/queue.py": 'from celery import Celery\nqueue = Celery("work", LISTED)\n',
    "work/answers/__init__.py": "",
    "work/answers/tasks.py": TASKS.replace(
        "from celery import Celery", "from work.queue import queue"
    )
    .replace('celery_app = Celery("work", broker="redis://queue")\n', "")
    .replace("celery_app", "queue"),
}


@pytest.mark.parametrize(
    "listed",
    [
        'include=["work.answers.tasks"]',
        ')\nqueue.conf.update(imports=("work.answers.tasks",)',
        ')\nqueue.autodiscover_tasks(["work.answers"]',
    ],
)
def test_a_worker_imports_what_its_queue_lists(read, listed):
    text = APART["work/queue.py"].replace("LISTED", listed)
    facts = read({**APART, "work/queue.py": text}, "celery", "-A", "work.queue", "worker")
    assert [one.medium for one in facts.sites] == [Medium.NONE]
    beat = read({**APART, "work/queue.py": text}, "celery", "-A", "work.queue", "beat")
    assert beat.sites == ()


@pytest.mark.parametrize(
    "used",
    [
        "return answer_later(question)",
        "return answer_later.run(question)",
        "return answer_later.apply(args=[question]).get()",
        "background.add_task(answer_later, question)",
        "loop.run_in_executor(None, answer_later, question)",
        "return answer_later.fn(question)",
    ],
)
def test_a_task_that_the_api_executes_itself_counts(read, used):
    text = APP.replace("answer_later.delay(question)", used)
    assert [one.medium for one in read({**FILES, "app.py": text}).sites] == [Medium.NONE]


@pytest.mark.parametrize(
    "said",
    [
        'celery_app.conf["task_always_eager"] = True',
        'celery_app.conf.update({"task_always_eager": True})',
        'celery_app.config_from_object("celeryconfig")',
        'celery_app.start(argv=["worker", "-l", "info"])',
        "worker = celery_app.Worker()\nworker.start()",
        'import subprocess\nsubprocess.Popen(["celery", "-A", "tasks", "worker"])',
    ],
)
def test_a_program_that_may_execute_its_tasks_itself_counts(read, said):
    tasks = TASKS.replace("def graph", f"{said}\n\ndef graph", 1)
    files = {**FILES, "tasks.py": tasks, "celeryconfig.py": "task_always_eager = True\n"}
    assert [one.medium for one in read(files).sites] == [Medium.NONE]


@pytest.mark.parametrize(
    "used",
    ["answer_later.apply_async([question])", "chain(answer_later.s(question)).delay()"],
)
def test_ways_to_queue_a_task(read, used):
    text = APP.replace("answer_later.delay(question)", used)
    assert read({**FILES, "app.py": text}).sites == ()


def test_a_graph_of_a_module_that_only_the_task_imports_is_the_workers(read):
    tasks = """
from celery import Celery
celery_app = Celery("work")

@celery_app.task
def answer_later(question):
    from graphs import made
    return made.invoke(question)
"""
    graphs = "from langgraph.graph import StateGraph\nmade = StateGraph(dict).compile()\n"
    app = APP.replace("import answer, answer_later", "import answer_later")
    files = {"tasks.py": tasks, "graphs.py": graphs, "app.py": app}
    assert read(files).sites == ()
    at_once = app.replace("answer_later.delay(question)", "answer_later(question)")
    assert read({**files, "app.py": at_once}).sites != ()
