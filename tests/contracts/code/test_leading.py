"""What leads to a saver: classes named in texts, connections, paths, and what does not."""

from textwrap import dedent

from perdure.contracts.code.facts import Medium, Role


def app(text: str) -> dict[str, str]:
    return {"app.py": dedent(text)}


def only(facts):
    found = [
        site
        for site in facts.sites
        if site.role is Role.SAVER and site.is_served and site.chosen.value is not False
    ]
    assert len(found) == 1, found
    return found[0]


BY_NAME = """
    import importlib
    import sqlite3
    from langgraph.graph import StateGraph

    class Service:
        def __init__(self):
            self._connection = None
            self.graph = StateGraph(dict).compile(checkpointer=self.saver())

        def opened(self):
            return sqlite3.connect("threads.db")

        def saver(self):
            try:
                module = importlib.import_module("langgraph.checkpoint.sqlite")
                made = getattr(module, "SqliteSaver")
                if self._connection is None:
                    self._connection = self.opened()
                return made(self._connection)
            except ModuleNotFoundError:
                module = importlib.import_module("langgraph.checkpoint.memory")
                return getattr(module, "InMemorySaver")()

    app = Service().graph
    """


def test_a_class_that_is_named_in_texts_is_what_a_graph_gets(read):
    site = only(read(app(BY_NAME)))
    assert (site.class_name, site.medium) == ("SqliteSaver", Medium.FILE)
    assert site.location is not None
    assert site.location.value == "threads.db"


def test_a_missing_package_that_is_imported_by_name_and_required_is_no_branch(read):
    bare = read(app(BY_NAME)).degrades
    assert [one.when.value for one in bare] == [True]
    more = {
        "requirements.txt": "langgraph-checkpoint-sqlite\n",
        "Dockerfile": "FROM python:3.12\nRUN pip install -r requirements.txt\n",
    }
    listed = read({**app(BY_NAME), **more}, dockerfile="Dockerfile").degrades
    assert [one.when.value for one in listed] == [False]


def test_a_store_of_documents_keeps_no_memories(read):
    text = """
        from langchain.storage import InMemoryStore
        from langgraph.store.memory import InMemoryStore as Memories
        documents = InMemoryStore()
        app = Memories()
        """
    assert [site.evidence[-1].line for site in read(app(text)).sites] == [5]


LOCKED = """
    from redis.asyncio import from_url
    from langgraph.checkpoint.postgres import PostgresSaver
    from langgraph.graph import StateGraph

    class Shown:
        def set(self, key, value, **more):
            self.value = value

    shown = Shown()
    client = from_url("redis://queue")

    def locked():
        return bool(client.set("lock", 1, nx=True))

    def made():
        if not locked():
            return None
        shown.set("a", 1)
        return StateGraph(dict).compile(checkpointer=PostgresSaver(pool))

    app = made()
    """


def test_a_method_of_a_librarys_client_is_none_of_the_projects(read):
    assert [site.chosen.value for site in read(app(LOCKED)).sites] != [False]


PATHS = """
    import sqlite3
    from pathlib import Path
    from langgraph.checkpoint.sqlite import SqliteSaver
    from langgraph.graph import StateGraph

    def where():
        path = Path(".kept") / "threads.db"
        return path

    app = StateGraph(dict).compile(checkpointer=SqliteSaver(sqlite3.connect(str(where()))))
    """


def test_the_line_that_writes_a_path_is_told(read):
    location = only(read(app(PATHS))).location
    assert location is not None
    assert location.value == ".kept/threads.db"
    assert [(step.file, step.line) for step in location.evidence] == [("app.py", 8)]
