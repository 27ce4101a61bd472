"""Programs for Python, by one that waits in the next tree: as `python3 -`, and never stale."""

import asyncio

import pytest

from perdure import START, Context, Graph, Runtime
from perdure.errors import UsageError
from perdure.sandbox import IsolatedSandboxes, Limits
from tests.engine.one_node import State
from tests.engine.polled import PAUSE_S
from tests.sandbox.attacks import ATTACKS, PRELUDE
from tests.sandbox.kept import living_sandboxes
from tests.sandbox.long import LONG

pytestmark = pytest.mark.timeout(150)

KIND = "print(open('/proc/self/cmdline').read().split('\\0')[1])\n"
"""A program that prints `-S` if its Python waited, and `-` if it was started for it."""
WAITED, STARTED = "-S\n", "-\n"
SITE = "/usr/local/lib/python3.11/dist-packages"


async def tree_of(sandbox):
    """Return the tree that waits, as soon as there is one."""
    while sandbox._next.tree is None:  # noqa: ASYNC110  # it is built by a task of its own
        await asyncio.sleep(PAUSE_S)
    return sandbox._next.tree


async def waited(sandbox, code):
    """Execute a program by a Python that waited; return also what it printed, without `KIND`'s."""
    await tree_of(sandbox)
    ran = await sandbox.python(KIND + code)
    assert ran.output.startswith(WAITED), ran
    return ran, ran.output.removeprefix(WAITED)


@pytest.fixture
async def warmed(is_able, tmp_path):
    backend = IsolatedSandboxes(tmp_path / "boxes", warm=("json", "re", "cmd"))
    sandbox = backend.open("acme", "t")
    await sandbox.python("pass")
    yield sandbox
    backend.close()


async def test_the_first_one_is_started_and_the_next_ones_wait(sandbox):
    assert (await sandbox.python(KIND)).output == STARTED
    for _ in range(3):
        ran, _output = await waited(sandbox, "")
        assert (ran.code, ran.errors, ran.left) == (0, "", ())


PROGRAMS = {
    "itself": (
        "import os, sys\n"
        "print(sys.argv, sys.path, sys.executable, sys.dont_write_bytecode, __name__)\n"
        "print(sorted(globals()), sorted(os.listdir('/proc/self/fd')), sys.prefix, os.umask(0))\n"
        "print(sys.stdin.read(), sys.stdout.encoding, sys.stdout.isatty(), dict(os.environ))\n"
        "print(os.getpid() == os.getsid(0), __builtins__.__name__, os.getcwd())\n"
        "import __main__; print(__main__.os is os)"
    ),
    "error": "def f():\n  1 / 0\ntry:\n  f()\nexcept Exception as e:\n  raise KeyError('x') from e",
    "syntax": "print(1)\nif:\n",
    "exit": "import sys\nsys.exit(7)",
    "text": "raise SystemExit('said')",
    "hook": "import sys\nsys.excepthook = lambda *a: print('hook', a[0])\nraise ValueError",
    "input": "try:\n    input()\nexcept EOFError:\n    print('no input')",
    "cookie": "# coding: latin-1\nprint('ok')",
    "threads": "import threading, time\nthreading.Thread(target=lambda: print('thread')).start()",
    "atexit": "import atexit\natexit.register(print, 'at the end')",
    "child": "import subprocess, sys\nprint(subprocess.run([sys.executable, '-c', 'print(1)'],"
    " capture_output=True, text=True))",
    "pickle": "import pickle\nclass A: pass\nprint(type(pickle.loads(pickle.dumps(A()))))",
    "signal": "import os, signal\nprint(signal.getsignal(signal.SIGINT), signal.getsignal(13))\n"
    "import sys; sys.stdout.flush(); os.kill(os.getpid(), 9)",
    "aware": "import sys\nprint(sys.flags.hash_randomization, sys.flags.no_user_site)",
    "annotated": "x: int = 1\nprint(__annotations__)",
}


@pytest.mark.parametrize("name", PROGRAMS)
async def test_it_does_what_a_plain_start_does(sandbox, name):
    code = KIND + PROGRAMS[name]
    plain = await sandbox.run(["python3", "-"], given=code.encode())
    assert plain.output.startswith(STARTED) or name == "syntax"
    await sandbox.python("pass")
    if name == "syntax":  # nothing is printed before
        await tree_of(sandbox)
        ran, output = await sandbox.python(code), ""
    else:
        ran, output = await waited(sandbox, PROGRAMS[name])
    assert output == plain.output.removeprefix(STARTED)
    assert (ran.code, ran.errors) == (plain.code, plain.errors)


async def test_packages_are_there_and_nothing_of_them_runs_before(sandbox, is_root):
    """Also what a sandbox has put where every Python looks at its start."""
    site = SITE if is_root else "/workspace/.local/lib/python3.11/site-packages"
    marks = "open('/workspace/marks', 'a').write('x')"
    await sandbox.run(
        f"mkdir -p {site}; cd {site}; echo 'name = 1' > mine.py; echo 'import mine' > mine.pth;"
        f"""echo "{marks}" > usercustomize.py; echo "{marks}" > /json.py;"""
        f"""echo "{marks}" > /workspace/re.py; echo "{marks}" > /posix.py"""
    )
    await sandbox.python("pass")
    assert (await sandbox.read("/workspace/marks")) == b"x"
    _, output = await waited(sandbox, "import mine, sys; print(mine.name, 'mine' in sys.modules)")
    assert output == "1 True\n"
    before = len(await sandbox.read("/workspace/marks"))
    for count in range(3):  # trees with a Python that nobody uses
        await tree_of(sandbox)
        assert len(await sandbox.read("/workspace/marks")) == before, count
    _, output = await waited(
        sandbox, "import re; print(re.__file__, open('marks').read().count('x'))"
    )
    assert output.startswith("/workspace/re.py"), "what a plain start would import"


async def test_what_is_warm_is_imported_and_nothing_else_is(warmed):
    # The tree's own folder is on the path of a plain start; in advance it is not.
    await warmed.write("/json.py", b"raise SystemExit('in advance')")
    _, output = await waited(
        warmed, "import sys; print('cmd' in sys.modules, 'csv' in sys.modules)"
    )
    assert output == "True False\n"
    plain = await warmed.run(["python3", "-c", "import sys; print('cmd' in sys.modules)"])
    assert plain.output == "False\n"


async def test_nothing_of_one_program_is_in_the_next(sandbox):
    await sandbox.python("pass")
    leave = (
        "import builtins, os, sys\nbuiltins.x = 1; sys.modules['y'] = sys; os.environ['Z'] = 'z'\n"
    )
    _, first = await waited(sandbox, f"{leave}print(hash('a'), os.getpid())")
    look = (
        "import os, sys\nprint('x' in dir(__builtins__), 'y' in sys.modules, 'Z' in os.environ)\n"
    )
    _, second = await waited(sandbox, look + "print(hash('a'))")
    assert second.startswith("False False False\n")
    assert second.split()[-1] != first.split()[0], "a seed of its own"


SCRIPT = "printf '#!/bin/sh\\necho another\\n' > {0}; chmod 755 {0}; "
FIRST = "import csv\nprint('the first')"
NEWER = [
    SCRIPT.format("/usr/bin/other") + "ln -sf other /usr/bin/python3",
    SCRIPT.format("/usr/local/bin/python3"),
    "for each in /usr/lib/python3.*/csv.py; do echo \"print('another'); exit()\" > $each; done",
    "cp -a /usr/bin /usr/newer; /usr/newer/rm -rf /usr/bin; /usr/newer/ln -s newer /usr/bin; "
    "rm /usr/newer/python3; " + SCRIPT.format("/usr/newer/python3"),
]


@pytest.mark.parametrize("command", NEWER)
async def test_it_is_never_stale(sandbox, is_root, command):
    if not is_root:
        pytest.skip("only root's driver lets a sandbox change /usr")
    await sandbox.python("pass")
    before = await sandbox.take()
    await waited(sandbox, "")
    assert (await sandbox.run(command)).code == 0
    tree = await tree_of(sandbox)
    assert "python" not in tree.spec, "one in advance would execute what a sandbox wrote"
    assert (await sandbox.python(FIRST)).output == "another\n"
    # Kept in a layer it is as new as in what changed since; and gone with it.
    after = await sandbox.take()
    tree = await tree_of(sandbox)
    assert "python" not in tree.spec
    assert (await sandbox.python(FIRST)).output == "another\n"
    await sandbox.restore(before)
    await waited(sandbox, "")
    await sandbox.restore(after)
    assert (await sandbox.python(FIRST)).output == "another\n"


MARKED = [
    "mkdir -p /usr/bin/Modules; touch /usr/bin/Modules/Setup.local",
    "cp -r /usr/lib/python3.* /usr/Lib",
    "mkdir -p /usr/bin/lib",
    "touch /usr/bin/pybuilddir.txt",
    "touch /usr/python311.zip",
]
"""What makes an interpreter look for its library elsewhere, or may in another version."""


@pytest.mark.parametrize("command", MARKED)
async def test_none_waits_where_its_library_might_be_another(sandbox, is_root, command):
    if not is_root:
        pytest.skip("only root's driver lets a sandbox change /usr")
    await sandbox.python("pass")
    await waited(sandbox, "")
    assert (await sandbox.run(command)).code == 0
    assert "python" not in (await tree_of(sandbox)).spec


async def test_without_python_there_is_none(sandbox, is_root):
    if not is_root:
        pytest.skip("only root's driver lets a sandbox change /usr")
    await sandbox.python("pass")
    await sandbox.run("rm /usr/bin/python3")
    assert "python" not in (await tree_of(sandbox)).spec
    ran = await sandbox.python("pass")
    assert (ran.code, ran.errors) == (127, "python3: No such file or directory\n")


async def test_a_command_that_is_none_sees_none(sandbox):
    await sandbox.python("pass")
    for _ in range(5):
        tree = await tree_of(sandbox)
        assert "python" in tree.spec
        ran = await sandbox.run(
            "cat /proc/[0-9]*/cmdline | tr '\\0' ' '; ls /proc | grep -c '^[0-9]'"
        )
        assert "-S -B" not in ran.output
        assert ran.left == ()


async def test_one_is_started_as_long_as_programs_come(sandbox):
    await sandbox.python("pass")
    for n in range(9):
        assert ("python" in (await tree_of(sandbox)).spec) == (n < 8), n
        await sandbox.run("true")


async def test_what_it_leaves_is_named_and_deadlines_hold(sandbox):
    await sandbox.python("pass")
    ran, _ = await waited(sandbox, f"import subprocess\nsubprocess.Popen(['sleep', '{LONG}'])")
    assert any(f"sleep {LONG}" in line for line in ran.left)
    await tree_of(sandbox)
    ran = await sandbox.python("while True: pass", limits=Limits(deadline_s=0.5))
    assert ran.killed_by == "deadline"
    await tree_of(sandbox)
    with pytest.raises(UsageError, match="cwd='/nowhere' is no folder in the sandbox"):
        await sandbox.python("pass", cwd="/nowhere")
    await tree_of(sandbox)
    ran = await sandbox.python("import os; print(os.environ['A'])", env={"A": "a"})
    assert ran.output == "a\n"


async def test_attacks_are_stopped_in_one(sandbox):
    await sandbox.python("pass")
    for attack in ATTACKS:
        ran, _ = await waited(sandbox, PRELUDE + attack.code)
        assert "THROUGH" not in ran.output, (attack.name, ran)
        assert "stopped" in ran.output or ran.code not in {0, 1}, (attack.name, ran)


async def test_variables_that_a_python_minds_prevent_it(is_able, tmp_path):
    backend = IsolatedSandboxes(tmp_path / "boxes", env={"PYTHONPATH": "/workspace/lib"})
    try:
        sandbox = backend.open("acme", "t")
        await sandbox.write("/workspace/lib/mine.py", b"print('mine')")
        await sandbox.python("pass")
        assert "python" not in (await tree_of(sandbox)).spec
        assert (await sandbox.python("import mine")).output == "mine\n"
    finally:
        backend.close()


@pytest.mark.parametrize("warm", [("numpy",), ("os", "perdure.x"), ("site",), ("re\0",)])
def test_what_may_not_be_warm_is_refused(tmp_path, warm):
    with pytest.raises(UsageError, match="warm="):
        IsolatedSandboxes(tmp_path, warm=warm)


async def test_live_sandboxes_execute_programs_too(is_able, tmp_path):
    backend = living_sandboxes(tmp_path / "boxes")
    try:
        sandbox = backend.open("acme", "t")
        for n in range(2):
            ran = await sandbox.python(f"open('f', 'a').write('{n}'); print(open('f').read())")
            assert ran.output == "01\n"[: n + 1].rstrip("\n") + "\n"
    finally:
        backend.close()


async def test_a_node_executes_them(is_able, tmp_path):
    graph = Graph(State, name="programs")

    @graph.node
    async def node(state: State, ctx: Context) -> dict:
        found = [await ctx.sandbox.python(f"print({n})") for n in range(2)]
        return {"results": [each.output for each in found]}

    graph.edge(START, node)
    backend = IsolatedSandboxes(tmp_path / "boxes")
    url = f"sqlite:///{tmp_path / 'p.db'}"
    async with Runtime.open(url, [graph], sandbox=backend) as runtime:
        state = await (await runtime.start(graph, {}, thread="t")).result(timeout=60)
    assert state.results == ["0\n", "1\n"]
