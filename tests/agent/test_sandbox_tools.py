"""The tools of a sandbox, in real sandboxes. Where this host can make none, they are skipped."""

import asyncio

import pytest

from perdure import Runtime
from perdure.agent import Agent, Ending, Role, ScriptedModel, call, sandbox_tools
from perdure.errors import RunFailed, UsageError
from perdure.sandbox import DirectorySandboxes, IsolatedSandboxes, Limits

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def is_able(tmp_path_factory):
    """Return whether this host isolates, or skip."""
    backend = IsolatedSandboxes(tmp_path_factory.mktemp("able"))
    try:
        asyncio.run(backend.capabilities())
    except UsageError as error:
        pytest.skip(f"NOT TESTED: isolated sandboxes can't be made on this host: {error}")
    finally:
        backend.close()
    return True


@pytest.fixture
def backend(is_able, tmp_path):
    backend = IsolatedSandboxes(tmp_path / "boxes", limits=Limits(deadline_s=60))
    yield backend
    backend.close()


async def told(backend, *steps, **options):
    """Return what the model is told of the calls of a script, in order."""
    agent = Agent(name="coder", model=ScriptedModel([*steps, "ok"]), tools=sandbox_tools(**options))
    async with Runtime.open("memory://", graphs=[agent.graph], sandbox=backend) as runtime:
        run = await runtime.start(agent.graph, {"prompt": "work"}, thread="t")
        state = await run.result(timeout=60)
    assert state.ended is Ending.ANSWERED
    return [each for each in state.messages if each.role is Role.TOOL]


async def texts(backend, *steps, **options):
    return [each.text for each in await told(backend, *steps, **options)]


async def test_commands_and_programs(backend):
    results = await texts(
        backend,
        call("shell", command="echo out; echo err >&2; exit 3"),
        call("shell", command="cd /tmp && touch x && pwd"),
        call("shell", command="pwd; ls /tmp/x"),
        call("python", code="import sys\nprint(sum(range(5)), sys.stdin.read())"),
        call("python", code="1/0"),
        call("shell", command="sleep 1000 & echo left"),
        call("shell", command="true"),
    )
    assert results[0] == "exit code 3\n--- output\nout\n--- errors\nerr"
    assert results[1] == "exit code 0\n--- output\n/tmp"
    assert results[2] == "exit code 0\n--- output\n/workspace\n/tmp/x"
    assert results[3] == "exit code 0\n--- output\n10"
    assert results[4].startswith("exit code 1\n--- errors\nTraceback")
    assert "ZeroDivisionError" in results[4]
    assert "[left running, and stopped (1): " in results[5]
    assert "sleep 1000" in results[5], "under its own name, or still that of its shell"
    assert results[6] == "exit code 0"


async def test_long_output_and_what_was_killed(backend, tmp_path):
    command = call("shell", command="seq 100000; echo the end")
    [long] = await texts(backend, command, result_chars_max=1_000)
    hasty = IsolatedSandboxes(tmp_path / "hasty", limits=Limits(deadline_s=1))
    [stopped] = await texts(hasty, call("python", code="while True: pass"))
    hasty.close()
    assert len(long) < 1_200
    assert "characters left out" in long
    assert long.endswith("the end")
    assert "it was killed: it took longer than a command may" in stopped


async def test_files(backend):
    content = "one\ntwo\nthree\ntwo\n"
    results = await told(
        backend,
        [call("write", path="a/b.txt", content=content), call("read", path="a/b.txt")],
        call("edit", path="a/b.txt", old="three\ntwo", new="drei\ntwo"),
        call("edit", path="a/b.txt", old="two", new="zwei"),
        call("edit", path="a/b.txt", old="", new="zwei"),
        call("edit", path="a/none", old="x", new="zwei"),
        call("read", path="a/b.txt", from_line=3, lines=1),
        call("read", path="a/b.txt", from_line=30),
        call("read", path="a"),
        call("shell", command="chmod 755 a/b.txt; printf '\\377' > a/binary"),
        call("edit", path="a/b.txt", old="drei", new="trois"),
        call("shell", command="stat -c %a a/b.txt; cat a/b.txt"),
        call("read", path="a/binary"),
        call("write", path="/proc/1/comm/x", content=""),
        call("read", path="/etc/../workspace/a/b.txt", lines=1),
    )
    assert [each.text for each in results[:4]] == [
        "a/b.txt written: 18 bytes",
        "     1  one\n     2  two\n     3  three\n     4  two",
        "a/b.txt changed at line 3",
        "the call failed: a/b.txt was not changed: the old text is there 2 times, not once",
    ]
    assert [each.is_error for each in results[3:6]] == [True] * 3
    assert results[6].text == "     3  drei\n[1 more lines; go on with from_line]"
    assert results[7].text == "[a/b.txt has 4 lines; none from line 30 on]"
    assert results[8].is_error
    assert results[11].text == "exit code 0\n--- output\n755\none\ntwo\ntrois\ntwo"
    assert "no UTF-8 text" in results[12].text
    assert results[13].is_error
    assert results[14].text == "     1  one\n[3 more lines; go on with from_line]"


async def test_search(backend):
    results = await texts(
        backend,
        call("write", path="p/one.py", content="def add(a, b):\n    return a - b\n"),
        call("search", pattern=r"def \w+\(", path="p"),
        call("search", pattern="nothing at all"),
        call("search", pattern="(", path="p"),
        call("search", pattern="--help", path="--version"),
        call("search", pattern="return", path="p/one.py"),
    )
    assert results[1] == "p/one.py:1:def add(a, b):\n"
    assert results[2] == "[no line matches]"
    assert "Unmatched" in results[3]
    assert "No such file" in results[4]
    assert "2:    return a - b" in results[5]


ASK = "import urllib.request as r; print(r.urlopen('http://127.0.0.1:8123/x').read())"


async def test_services(backend):
    serve = "python3 -m http.server 8123 --bind 127.0.0.1"
    results = await told(
        backend,
        call("write", path="x", content="hello"),
        call("start_service", name="web", command=serve, port=8123),
        [call("python", code=ASK), call("shell", command="wc -l < /var/log/services/web.log")],
        call("start_service", name="bad", command="false"),
        call("start_service", name="../x", command=serve),
        call("start_service", name="y", command=serve, port=70_000),
        call("stop_service", name="web"),
        call("stop_service", name="web"),
        call("python", code=ASK),
    )
    assert [each.is_error for each in results] == [*[False] * 4, *[True] * 3, *[False] * 3]
    assert results[1].text == "web is up, and will be during every command"
    assert results[2].text == "exit code 0\n--- output\nb'hello'"
    assert "bad did not come up, and is not kept" in results[4].text
    assert results[7].text == "web is stopped"
    assert results[8].text == "there is no service 'web'"
    assert "Connection refused" in results[9].text


async def test_hostile_paths_and_texts_stay_inside(backend, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("kept-from-them")
    results = await told(
        backend,
        call("read", path=str(secret)),
        call("read", path="../../../../" + str(secret)),
        call("shell", command=f"ln -s {secret} link"),
        call("read", path="link"),
        call("write", path="x\x00y", content="z"),
        call("read", path="x" * 5_000),
        call("shell", command="a" * 200_000),
        call("python", code="print('\\ud800')"),
        folder="/srv",
    )
    assert all("kept-from-them" not in each.text for each in results)
    assert [each.is_error for each in results] == [
        *[True, True, False, True, True, True, True],
        False,
    ]


async def test_without_a_sandbox_that_runs_commands_the_run_fails(tmp_path):
    agent = Agent(
        name="coder", model=ScriptedModel([call("shell", command="ls")]), tools=sandbox_tools()
    )
    boxes = DirectorySandboxes(tmp_path / "boxes")
    async with Runtime.open("memory://", graphs=[agent.graph], sandbox=boxes) as runtime:
        run = await runtime.start(agent.graph, {"prompt": "work"})
        with pytest.raises(RunFailed, match="IsolatedSandboxes"):
            await run.result(timeout=10)
