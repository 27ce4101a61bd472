"""How start commands lead to files."""

import pytest

from perdure.contracts.code.facts import Medium

SUPERVISED = """
[supervisord]
nodaemon=true
[program:web]
command=python3 -m uvicorn web:app --port 8000 ; the server
directory=/app
[program:proxy]
command=/usr/sbin/nginx -g "daemon off;"
"""
OPTIONS = """
import uvicorn
def options():
    given = {"app": "web:app", "host": "0.0.0.0"}
    return given
given = options()
uvicorn.Server(config=uvicorn.Config(**given)).run()
"""
PROCFILE = "web: uvicorn web:app --port 80\nother: node index.js\n"
MAIN = "def main():\n    import inner\n"


@pytest.mark.parametrize(
    ("argv", "files", "first"),
    [
        (("uvicorn", "pkg.main:app", "-p", "80"), {"pkg/main.py": "import inner"}, "pkg/main.py"),
        (("uvicorn", "--app-dir", "src", "main:app"), {"src/main.py": "import inner"},
         "src/main.py"),
        (("gunicorn", "-w", "2", "main:make()"), {"main.py": "import inner"}, "main.py"),
        (("python", "-m", "uvicorn", "main:app"), {"main.py": "import inner"}, "main.py"),
        (("uv", "run", "--no-sync", "uvicorn", "main:app"), {"main.py": "import inner"}, "main.py"),
        (("python", "-u", "run.py"), {"run.py": "if __name__ == '__main__':\n    import inner"},
         "run.py"),
        (("python", "-m", "pkg"), {"pkg/__main__.py": "import inner"}, "pkg/__main__.py"),
        (("fastapi", "run", "main.py"), {"main.py": "import inner"}, "main.py"),
        (("celery", "-A", "jobs.app", "worker"), {"jobs/app.py": "import inner"}, "jobs/app.py"),
        (("arq", "jobs.Settings"), {"jobs.py": "import inner\nclass Settings: ..."}, "jobs.py"),
        (("streamlit", "run", "ui.py"), {"ui.py": "import inner"}, "ui.py"),
        (
            ("serve",),
            {"pyproject.toml": '[project.scripts]\nserve = "tool:main"\n', "tool.py": MAIN},
            "tool.py",
        ),
        (
            ("python", "run.py"),
            {"run.py": "import uvicorn\nuvicorn.run('web:app')", "web.py": "import inner"},
            "run.py",
        ),
        (
            ("python", "run.py"),
            {"run.py": OPTIONS, "web.py": "import inner"},
            "run.py",
        ),
        (
            ("/usr/bin/supervisord", "-c", "/etc/supervisord.conf"),
            {"deploy/supervisord.conf": SUPERVISED, "web.py": "import inner"},
            "web.py",
        ),
        (("honcho", "start"), {"Procfile": PROCFILE, "web.py": "import inner"}, "web.py"),
        (
            ("uv", "run", "watchfiles", "--filter", "python", "arq jobs.Settings", "app"),
            {"jobs.py": "import inner\nclass Settings: ..."},
            "jobs.py",
        ),
        (
            ("watchmedo", "auto-restart", "-d", "app", "--", "celery", "-A", "jobs", "worker"),
            {"jobs.py": "import inner"},
            "jobs.py",
        ),
        (("python3", "src/server"), {"src/server/__main__.py": "import inner"},
         "src/server/__main__.py"),
        (
            ("serve", "--port", "80"),
            {"setup.py": "setup(entry_points={'console_scripts': ['serve = tool:main']})",
             "tool.py": MAIN},
            "tool.py",
        ),
    ],
)  # fmt: skip
def test_the_entry_is_found_and_followed(read, argv, files, first):
    saver = "from langgraph.checkpoint.memory import MemorySaver\nsaver = MemorySaver()\n"
    facts = read({**files, "inner.py": saver}, *argv)
    assert facts.question is None
    assert [site.class_name for site in facts.sites] == ["MemorySaver"], first


def test_copied_folders_are_followed_to_the_project(read):
    files = {
        "src/web/main.py": "from agents.graph import saver\n",
        "src/agents/graph.py": "from langgraph.checkpoint.memory import MemorySaver\n"
        "saver = MemorySaver()\n",
    }
    sources = (("/srv/web", "src/web"), ("/srv/agents", "src/agents"))
    facts = read(files, "uvicorn", "web.main:app", sources=sources, workdir="/srv")
    assert facts.sites[0].evidence[-1].file == "src/agents/graph.py"


def test_packages_of_a_workspace_are_found_by_name(read):
    files = {
        "main.py": "import agentlib.core\n",
        "packages/agentlib/src/agentlib/__init__.py": "",
        "packages/agentlib/src/agentlib/core.py": "from langgraph.checkpoint.memory import "
        "MemorySaver\nsaver = MemorySaver()\n",
    }
    assert read(files, "uvicorn", "main:app").sites


def test_nothing_found_is_a_question(read):
    facts = read({"main.py": ""}, "uvicorn", "other:app")
    assert not facts.entry
    assert facts.question is not None
    assert "other:app" in facts.question


def test_aegras_own_application_brings_its_saver_and_serves_the_graphs_of_its_file(read):
    files = {
        "aegra.json": '{"graphs": {"chat": "./chat.py:graph"}}',
        "chat.py": "from langgraph.graph import StateGraph\n"
        "from langgraph.checkpoint.memory import InMemorySaver\n"
        "graph = StateGraph(dict).compile(checkpointer=InMemorySaver())\n",
    }
    url = {"DATABASE_URL": "postgresql://db:5432/x"}
    found = read(files, "uvicorn", "aegra_api.main:app", environment=url)
    taken = [one for one in found.sites if one.is_served is not False]
    assert [(one.medium, one.location.value) for one in taken] == [
        (Medium.PLATFORM, "postgresql://db:5432/x")
    ]
    own = {**files, "aegra_api/__init__.py": "", "aegra_api/main.py": "app = 1\n"}
    found = read(own, "uvicorn", "aegra_api.main:app", environment=url)
    assert all(one.medium is not Medium.PLATFORM for one in found.sites)


def test_a_package_that_is_copied_whole_is_searched_for_what_it_imports_from_within(read):
    files = {
        "backend/__init__.py": "",
        "backend/app/__init__.py": "",
        "backend/app/main.py": "from app.graphs import graph\nfrom redis.client import x\n",
        "backend/app/graphs.py": (
            "from langgraph.checkpoint.memory import MemorySaver\n"
            "from langgraph.graph import StateGraph\n"
            "graph = StateGraph(dict).compile(checkpointer=MemorySaver())\n"
        ),
    }
    start = ("uvicorn", "backend.app.main:app")
    assert len(read(files, *start, sources=(("/app/backend", "backend"),)).sites) == 1


LAZY = """
def __getattr__(name):
    if name == "app":
        from service.served import app
        return app
    raise AttributeError(name)
"""
SERVED = """
from fastapi import FastAPI
from langgraph.checkpoint.memory import MemorySaver
from langgraph.graph import StateGraph
app = FastAPI()
graph = StateGraph(dict).compile(checkpointer=MemorySaver())
@app.post("/")
def run(thread_id: str):
    return graph.invoke({}, {"configurable": {"thread_id": thread_id}})
"""


def test_what_a_module_gives_when_it_is_asked_is_followed(read):
    files = {"service/__init__.py": LAZY, "service/served.py": SERVED}
    found = read(files, "uvicorn", "service:app")
    assert [site.class_name for site in found.sites] == ["MemorySaver"]
    assert found.uses_threads
