"""What a command leaves running goes on, is stopped for a snapshot, and is not lost in silence."""

import asyncio
import json
import os
import signal
from pathlib import Path

import pytest

from perdure.errors import LeaseLost, StoreLocked, UsageError
from perdure.sandbox import IsolatedSandboxes, Limits
from perdure.sandbox._processes import processes_of
from tests.sandbox.kept import living_sandboxes
from tests.sandbox.processes import is_alive

pytestmark = pytest.mark.timeout(120)

SERVER = """
import http.server, json, sys
count = 0
class Counts(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        global count
        count += 1
        body = str(count).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *_): print("asked", flush=True)
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Counts).serve_forever()
"""
ASK = """
import sys, time, urllib.request as u
for _ in range(600):
    try:
        print(u.urlopen(f"http://127.0.0.1:{sys.argv[1]}/").read().decode()); break
    except OSError:
        time.sleep(0.05)
"""

FILL = """
import os, time
while True:
    try:
        if os.fork() == 0:
            time.sleep(1000)
    except OSError:
        time.sleep(0.001)
"""

HIDE = """
import ctypes, os, signal
if os.fork() == 0:
    start, end = (int(open("/proc/self/stat").read().split()[n]) for n in (47, 48))
    ctypes.memset(start, 0, end - start)
    open("ready", "w").close()
    signal.pause()
while not os.path.exists("ready"):
    pass
"""


@pytest.fixture
def backend(is_able, tmp_path):
    backend = living_sandboxes(tmp_path / "sandboxes")
    yield backend
    backend.close()


@pytest.fixture
def sandbox(backend):
    return backend.open("acme", "t-1")


async def started(sandbox, port=8123):
    """Have a server in the background that counts in its memory."""
    await sandbox.write("/workspace/server.py", SERVER.encode())
    ran = await sandbox.run(
        f"/usr/bin/python3 server.py {port} & "
        "until grep -aq ^/usr/bin/python3 /proc/$!/cmdline; do :; done"
    )
    assert (ran.code, len(ran.left)) == (0, 1), ran


def size_of(folder, name):
    return Path(folder, "workspace", name).stat().st_size


def lines_of(tree):
    return [each.line for each in processes_of(tree.group.cell.pids(), ())]


async def until_refused(sandbox):
    while True:
        await sandbox.run(":")


async def asked(sandbox, port=8123):
    ran = await sandbox.run(["/usr/bin/python3", "-c", ASK, str(port)])
    return ran.output.strip()


async def test_what_is_in_memory_stays(sandbox):
    await started(sandbox)
    assert [await asked(sandbox) for _ in range(3)] == ["1", "2", "3"]
    ran = await sandbox.run("echo done")
    assert (ran.output, ran.left) == ("done\n", ("/usr/bin/python3 server.py 8123",))


async def test_its_memory_stays_over_snapshots(sandbox):
    await started(sandbox)
    assert await asked(sandbox) == "1"
    first = await sandbox.take()
    await sandbox.resume(first)
    assert await asked(sandbox) == "2"
    second = await sandbox.take()
    assert second != first
    assert await asked(sandbox) == "3"


async def test_a_snapshot_says_what_was_alive(backend, sandbox):
    await started(sandbox)
    await asked(sandbox)
    taken = await sandbox.take()
    [path] = backend.root.glob(f"tenants/*/layers/{taken}/layer.json")
    [process] = json.loads(path.read_text())["processes"]
    assert process.pop("pid") > 1
    assert process == {
        "line": "/usr/bin/python3 server.py 8123", "ports": [8123], "is_service": False,
    }  # fmt: skip


async def test_a_restore_ends_all_and_says_what_is_lost(backend, sandbox):
    await started(sandbox)
    await asked(sandbox)
    taken = await sandbox.take()
    await sandbox.run("echo more > f")
    pid = sandbox._live.tree.pid
    await sandbox.restore(taken)
    assert not is_alive(pid)
    assert [(each.line, each.ports) for each in sandbox.lost()] == [
        ("/usr/bin/python3 server.py 8123", (8123,))
    ]
    ran = await sandbox.run("ls f")
    assert (ran.code, ran.left) == (2, ())
    [said] = ran.lost
    assert "python3 server.py 8123" in said
    assert "listened at 8123" in said
    assert (await sandbox.run("true")).lost == ()
    assert len(sandbox.lost()) == 1
    fork = backend.open("acme", "fork")
    await fork.restore(taken)
    assert len((await fork.run("true")).lost) == 1


async def test_a_backend_where_nothing_lives_says_it_too(is_able, tmp_path):
    live = living_sandboxes(tmp_path)
    plain = IsolatedSandboxes(tmp_path)
    try:
        sandbox = live.open("acme", "t")
        await started(sandbox)
        taken = await sandbox.take()
        await sandbox.close()
        other = plain.open("acme", "t")
        await other.restore(taken)
        assert len((await other.run("true")).lost) == 1
        assert (await other.run("true")).lost == ()
    finally:
        live.close()
        plain.close()


async def test_one_that_ends_by_itself_is_not_lost(sandbox):
    await sandbox.run("sleep 0.01 &")
    while (await sandbox.run("true")).left:
        pass
    await sandbox.take()
    ran = await sandbox.run("true")
    assert (ran.lost, sandbox.lost()) == ((), ())


async def test_a_tree_that_was_killed_is_told(sandbox):
    await started(sandbox)
    tree = sandbox._live.tree
    os.kill(tree.pid, signal.SIGKILL)
    await asyncio.wait_for(tree.over, 30)
    ran = await sandbox.run("echo on")
    assert (ran.output, ran.left) == ("on\n", ())
    assert [line for line in ran.lost if "server.py" in line]


async def test_files_of_a_live_tree_are_as_they_were_at_the_snapshot(sandbox):
    """A process writes with a descriptor, and over its working folder, all the time."""
    await sandbox.run("mkdir d; cd d; (while :; do echo x; echo y >> z; done) > log &")
    lines = 0
    for _ in range(5):
        taken = await sandbox.take()
        ran = await sandbox.run("wc -l < d/log; wc -l < d/z")
        assert int(ran.output.split()[0]) >= lines
        lines = int(ran.output.split()[0])
    folder = sandbox._ground.layers.folder(taken, "")
    before = [size_of(folder, f"d/{name}") for name in ("log", "z")]
    while (int((await sandbox.run("wc -l < d/log")).output)) <= lines + 100:
        pass
    after = [size_of(folder, f"d/{name}") for name in ("log", "z")]
    assert before == after
    await sandbox.restore(taken)
    ran = await sandbox.run("stat -c %s d/log d/z")
    assert [*map(int, ran.output.split())] == before


async def test_with_nothing_alive_a_snapshot_is_a_rename(sandbox):
    await sandbox.run("echo 1 > f")
    tree = sandbox._live.tree
    top = (sandbox._ground.folder / "top/root").stat().st_ino
    taken = await sandbox.take()
    layer = sandbox._ground.layers.folder(taken, "")
    assert os.stat(layer).st_ino == top  # noqa: PTH116  # one look
    assert tree.over.done()
    assert await sandbox.take() == taken
    assert (await sandbox.run("cat f")).output == "1\n"
    assert await sandbox.take() == taken
    assert sandbox._live.tree is not None, "nothing was changed, so it goes on"


async def test_snapshots_one_after_the_other_are_the_files_of_then(sandbox):
    await sandbox.run("sleep 1000 &")
    await sandbox.run("echo 1 > f; mkdir d; echo a > d/a; rm /etc/passwd")
    one = await sandbox.take()
    await sandbox.run("rm f; rm -r d; mkdir d; echo b > d/b")
    two = await sandbox.take()
    await sandbox.run("echo 3 > f; rm -r d")
    three = await sandbox.take()
    look = "cat f; ls d; ls -d /etc/passwd"
    for snapshot, seen in ((one, "1\na\n"), (two, "b\n"), (three, "3\n"), (one, "1\na\n")):
        await sandbox.restore(snapshot)
        assert (await sandbox.run(look)).output == seen
        assert await sandbox.take() == snapshot


async def test_a_deadline_ends_the_command_and_nothing_else(sandbox):
    await started(sandbox)
    assert await asked(sandbox) == "1"
    script = "(setsid sh -c 'trap \"\" TERM INT HUP; sleep 1111' &) ; sleep 2222"
    ran = await sandbox.run(script, limits=Limits(deadline_s=1))
    assert (ran.killed_by, ran.code) == ("deadline", 137)
    ran = await sandbox.run("true")
    assert ran.left == ("/usr/bin/python3 server.py 8123",)
    assert await asked(sandbox) == "2"


async def test_a_cancelled_command_is_killed_with_what_it_started(sandbox):
    await sandbox.run("sleep 1000 &")
    task = asyncio.create_task(sandbox.run("(setsid sleep 3333 &); touch begun; exec sleep 4444"))
    tree = sandbox._live.tree
    while "sleep 4444" not in lines_of(tree):  # noqa: ASYNC110  # of another process
        await asyncio.sleep(0.01)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    ran = await sandbox.run("ls begun")
    while "sleep 4444" in ran.left or "sleep 3333" in ran.left:
        ran = await sandbox.run("ls begun")
    assert (ran.output, ran.left) == ("begun\n", ("sleep 1000",))


async def test_a_flood_in_the_background_stops_nobody(sandbox):
    await sandbox.run("yes &")
    ran = await sandbox.run("head -c 3000000 /dev/zero | tr '\\0' x; echo; echo on >&2")
    assert (len(ran.output), ran.is_cut, ran.errors) == (1 << 20, True, "on\n")


async def test_what_an_earlier_command_prints_is_not_another_ones(sandbox):
    await sandbox.run("(while :; do echo noise; done) &")
    for n in range(20):
        ran = await sandbox.run(f"echo {n}")
        assert ran.output == f"{n}\n"


async def test_one_that_eats_memory_is_killed_and_the_others_go_on(is_able, tmp_path, is_root):
    if not is_root:
        pytest.skip("without control groups memory is limited for each process alone")
    limits = Limits(memory_bytes=128 << 20, processes=64)
    backend = living_sandboxes(tmp_path, limits=limits)
    try:
        sandbox = backend.open("acme", "t")
        await started(sandbox)
        assert await asked(sandbox) == "1"
        code = "x = [bytearray(b'x' * (1 << 20)) for _ in range(4096)]; print('THROUGH')"
        ran = await sandbox.run(["/usr/bin/python3", "-c", code])
        assert "THROUGH" not in ran.output
        assert ran.killed_by == "memory"
        assert await asked(sandbox) == "2"
        await sandbox.write("/workspace/fill.py", FILL.encode())
        await sandbox.run("/usr/bin/python3 fill.py &")
        with pytest.raises(UsageError, match="all the processes that limits= allow"):
            await until_refused(sandbox)
        taken = await sandbox.take()
        assert len(sandbox._states.processes(taken)) > 50
        await sandbox.restore(None)
        assert (await sandbox.run("echo on")).output == "on\n"
    finally:
        backend.close()


async def test_services_go_on_and_come_back(sandbox):
    await sandbox.write("/workspace/server.py", SERVER.encode())
    state = await sandbox.start_service("web", "/usr/bin/python3 server.py 8200", port=8200)
    assert state.is_up
    first = int(await asked(sandbox, 8200))
    ran = await sandbox.run("true")
    assert ([each.is_up for each in ran.services], ran.left) == ([True], ())
    assert int(await asked(sandbox, 8200)) == first + 1
    taken = await sandbox.take()
    assert int(await asked(sandbox, 8200)) == first + 2, "it lived on"
    await sandbox.restore(taken)
    ran = await sandbox.run("true")
    assert ([each.is_up for each in ran.services], ran.lost) == ([True], ())
    assert int(await asked(sandbox, 8200)) == first, "it was started again"
    await sandbox.start_service("web", "/usr/bin/python3 server.py 8201", port=8201)
    assert await asked(sandbox, 8201) == str(first)
    assert sandbox._live.tree.group.cell.pids() != []
    assert await sandbox.stop_service("web")
    assert sandbox._live.tree.group.cell.pids() == []


async def test_a_service_that_died_is_started_again(sandbox):
    await sandbox.write("/workspace/server.py", SERVER.encode())
    await sandbox.start_service("web", "exec /usr/bin/python3 server.py 8200", port=8200)
    [pid] = sandbox._live.tree.group.cell.pids()
    os.kill(pid, signal.SIGKILL)
    while sandbox._live.tree.group.cell.pids():  # noqa: ASYNC110  # of another process
        await asyncio.sleep(0.01)
    ran = await sandbox.run("true")
    assert [each.is_up for each in ran.services] == [True]


async def test_a_newer_holder_ends_the_tree(backend):
    older = backend.open("acme", "t", fence=(1, 1))
    await started(older)
    tree = older._live.tree
    newer = backend.open("acme", "t", fence=(1, 2))
    await newer.restore(None)
    assert not is_alive(tree.pid)
    for act in (lambda: older.run("true"), older.take, lambda: older.restore(None)):
        with pytest.raises(LeaseLost):
            await act()
    assert (await newer.run("ls")).output == ""


async def test_somebody_else_waits_for_a_live_tree(backend, monkeypatch):
    monkeypatch.setattr("perdure.sandbox._disk.LOCK_WAIT_S", 0.2)
    one = backend.open("acme", "t")
    await one.run("echo 1 > f")
    other = backend.open("acme", "t")
    with pytest.raises(StoreLocked):
        await other.run("true")
    await one.close()
    assert (await other.run("cat f")).output == "1\n"


async def test_close_ends_all(backend, sandbox):
    await started(sandbox)
    pid = sandbox._live.tree.pid
    cell = sandbox._live.tree.group.cell
    await sandbox.close()
    await sandbox.close()
    assert not is_alive(pid)
    assert not cell.folder.exists()
    ran = await sandbox.run("ls server.py")
    assert ran.output == "server.py\n"
    assert [line for line in ran.lost if "server.py" in line]
    pid = sandbox._live.tree.pid
    backend.close()
    assert not is_alive(pid)


async def test_a_process_that_hides_its_name_is_told(sandbox):
    ran = await sandbox.run(["/usr/bin/python3", "-c", HIDE])
    assert ran.left == ("[python3]",)


async def test_limits_of_a_tree_are_not_those_of_a_command(sandbox):
    with pytest.raises(UsageError, match="limits of its backend"):
        await sandbox.run("true", limits=Limits(processes=10))
    ran = await sandbox.run("echo long", limits=Limits(output_bytes=3))
    assert (ran.output, ran.is_cut) == ("lon", True)


async def test_hard_links_holes_owners_and_marks_are_copied(sandbox, is_root):
    await sandbox.run("sleep 1000 &")
    await sandbox.run(
        "echo 1 > a; ln a b; mkdir -p deep/er; ln a deep/er/c; ln -s a link; mkfifo pipe;"
        "truncate -s 100M holes; printf x | dd of=holes bs=1 seek=50000000 conv=notrunc 2> /tmp/x;"
        "chmod 4711 a; chmod 000 deep/er; touch -d 2001-01-01 deep; rm -rf /usr/share/doc/bash;"
        "rm -rf /usr/share/misc; mkdir /usr/share/misc; rm -f /etc/shells;"
        f"{'chown 5:6 link b' if is_root else ':'}; setfattr -n user.x -v y a 2> /dev/null || :"
    )
    look = (
        "chmod 755 deep/er; stat -c '%n %a %u %g %h %s %Y' a b link pipe holes; cat a deep/er/c;"
        "stat -c '%n %a %u %g %Y' deep; stat -c '%n %h' deep/er/c;"
        "[ $(stat -c %i a) = $(stat -c %i deep/er/c) ] && echo same;"
        "ls /usr/share/misc; ls -d /usr/share/doc/bash /etc/shells 2>&1; md5sum holes"
    )
    taken = await sandbox.take()
    folder = Path(sandbox._ground.layers.folder(taken, ""))
    assert (folder / "workspace/holes").stat().st_blocks < 1000
    before = await sandbox.run(look)
    await sandbox.restore(taken)
    assert (await sandbox.run(look)).output == before.output
    assert "same" in before.output


async def test_hard_links_at_paths_longer_than_the_system_takes_are_copied(sandbox):
    code = (
        "import os\nfor _ in range(30): os.mkdir('n' * 200); os.chdir('n' * 200)\n"
        "open('f', 'w').write('x'); os.link('f', 'g')"
    )
    await sandbox.run(["/usr/bin/python3", "-c", code])
    await sandbox.run("sleep 1000 &")
    taken = await sandbox.take()
    assert (await sandbox.run("true")).left  # it was copied, not ended
    await sandbox.restore(taken)
    look = "find . -type f -links 2 -execdir cat {} \\;"
    assert (await sandbox.run(look)).output == "xx"


async def test_what_can_not_be_copied_is_ended_and_said(sandbox):
    deep = "import os\nfor _ in range(200):\n os.mkdir('d'); os.chdir('d')"
    await sandbox.run(["/usr/bin/python3", "-c", deep])
    await sandbox.run("sleep 1000 &")
    taken = await sandbox.take()
    ran = await sandbox.run("ls")
    assert (ran.output, ran.left) == ("d\n", ())
    assert [line for line in ran.lost if line.startswith("sleep 1000")]
    assert await sandbox.take() == taken
