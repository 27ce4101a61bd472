"""Code that is no code, too much, or nested: bounded, and never an exception."""

from perdure.contracts.code import CodeReader, limits
from perdure.contracts.code.facts import CodeFacts


def served(text: str) -> dict[str, str]:
    return {"app.py": "import bad\napp = 1\n", "bad.py": text}


def test_nested_beyond_what_python_parses(read):
    assert isinstance(read(served("(" * 5000 + ")" * 5000)), CodeFacts)


def test_nested_within_what_python_parses(read):
    deep = "x = " + "-" * 900 + "1\n" + "y = " + "f(" * 80 + ")" * 80 + "\n"
    assert isinstance(read(served(deep)), CodeFacts)


def test_no_python_at_all(read):
    assert isinstance(read(served("\x00\x01 def (")), CodeFacts)


def test_too_long(read):
    assert isinstance(read(served("x = 1\n" * (limits.TEXT_OF_MODULE_MAX // 5))), CodeFacts)


def test_bytes_that_are_no_text(read, tmp_path):
    (tmp_path / "bad.py").write_bytes(b"# caf\xe9\nx = 1\n")
    assert isinstance(read({"app.py": "import bad\n"}), CodeFacts)


def test_circles_of_imports_values_and_classes(read):
    files = {
        "app.py": "from a import x\nfrom langgraph.graph import StateGraph\n"
        "app = StateGraph(dict).compile(checkpointer=x)\n",
        "a.py": "from b import *\nfrom b import x\nclass A(A): pass\n",
        "b.py": "from a import *\nfrom a import x\n"
        "def f(): return g()\ndef g(): return f()\nx = f()\n",
    }
    assert isinstance(read(files), CodeFacts)


def test_a_test_of_a_value_that_its_own_branch_sets(read):
    text = (
        "from langgraph.graph import StateGraph\n"
        "class A:\n"
        "    def get(self):\n"
        "        if self.x is None:\n"
        "            self.x = self.get() or self.x\n"
        "        return self.x\n"
        "app = StateGraph(dict).compile(checkpointer=A().get())\n"
    )
    assert isinstance(read({"app.py": text}), CodeFacts)


def test_a_value_of_thousands_of_branches_takes_bounded_steps(read):
    lines = ["import os", "from langgraph.graph import StateGraph", "def f0(): return None"]
    lines += [
        f"def f{at}(): return f{at - 1}() if os.environ['A{at}'] else f{at - 1}()"
        for at in range(1, 60)
    ]
    lines.append("app = StateGraph(dict).compile(checkpointer=f59())")
    assert isinstance(read({"app.py": "\n".join(lines)}), CodeFacts)


def test_more_modules_than_are_followed(read, monkeypatch):
    monkeypatch.setattr(limits, "MODULES_MAX", 50)
    files = {f"m{at}.py": f"import m{at + 1}\n" for at in range(200)}
    assert isinstance(read({**files, "app.py": "import m0\n"}), CodeFacts)


def test_readers_of_one_project_parse_a_module_once(tmp_path, read):
    read({"app.py": "import other\n", "other.py": "x = 1\n"})
    from perdure.contracts.files import Project  # noqa: PLC0415

    modules = CodeReader(Project(tmp_path)).modules
    assert modules.scope("other.py") is modules.scope("other.py")


def test_a_dict_made_of_itself_under_the_same_name(read):
    text = (
        "import os\n"
        "from langgraph.graph import StateGraph\n"
        "from langgraph.checkpoint.memory import InMemorySaver\n"
        "kinds = {'a': 1}\n"
        "if os.environ['MORE']:\n"
        "    kinds = {**kinds, 'b': 2}\n"
        "kinds = {**kinds, 'c': InMemorySaver()}\n"
        "kinds['b']\n"
        "def get(name):\n"
        "    own = kinds\n"
        "    own = {**own, **kinds}\n"
        "    return own.get(name) or own['c']\n"
        "graph = StateGraph(dict).compile(checkpointer=get('b'))\n"
        "other = StateGraph(dict).compile(checkpointer=kinds['x'])\n"
        "app = StateGraph(dict).compile(checkpointer=kinds.get('x'))\n"
    )
    assert isinstance(read({"app.py": text}), CodeFacts)
