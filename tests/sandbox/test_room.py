"""How much room a sandbox may take: who takes more is killed, and no snapshot of it is taken."""

import asyncio
import contextlib
import os

import pytest

from perdure import START, Context, Graph, RunFailed, Runtime, effect
from perdure.errors import SandboxFull, SettingInvalid
from perdure.sandbox import IsolatedSandboxes, Limits
from perdure.sandbox._ground import Ground
from perdure.sandbox._measure import measure
from perdure.sandbox._nameless import Nameless
from perdure.sandbox._watch import Pace, Watch
from tests.engine.one_node import State
from tests.sandbox.kept import living_sandboxes

pytestmark = pytest.mark.timeout(300)

MB = 1 << 20


@pytest.fixture
def small(is_able, tmp_path):
    backend = IsolatedSandboxes(tmp_path / "small", bytes_max=20 * MB, files_max=2_000)
    yield backend
    backend.close()


@pytest.fixture
def box(small):
    return small.open("acme", "t")


FILL = "head -c {0}M /dev/urandom > {1}"


async def test_a_command_that_fills_the_disk_is_killed(box):
    ran = await box.run("cat /dev/zero > big; sleep 600")
    assert (ran.code, ran.killed_by) == (137, "disk")
    size = int((await box.run("rm -f x; stat -c %s big")).output)
    with pytest.raises(SandboxFull, match="it may take 20971520") as caught:
        await box.take()
    assert caught.value.fields["bytes"] >= size > 20 * MB
    assert "bytes_max=41943040" in str(caught.value)
    # Nothing was changed: it is made smaller, and taken then.
    assert int((await box.run("stat -c %s big; rm big; echo 1 > n")).output) == size
    assert await box.take() != "base"
    assert (await box.run("cat n; ls")).output == "1\nn\n"


NESTED = """
import os
n = 0
while True:
    os.mkdir(f"d{n}")
    if n % 3 == 0:
        os.chdir(f"d{n}")
    n += 1
"""


@pytest.mark.parametrize(
    "command",
    ["i=0; while :; do i=$((i+1)); : > f$i; done", ["/usr/bin/python3", "-c", NESTED]],
    ids=["flat", "nested"],
)
async def test_a_command_that_makes_very_many_files_is_killed(box, command):
    ran = await box.run(command)
    assert (ran.code, ran.killed_by) == (137, "disk")
    with pytest.raises(SandboxFull):
        await box.take()
    await box.restore(None)
    assert (await box.run("ls")).output == ""


async def test_folders_too_deep_to_be_looked_at_are_refused(box, monkeypatch):
    monkeypatch.setattr("perdure.sandbox._measure.MEASURED_DEPTH_MAX", 20)
    await box.run("mkdir -p " + "/".join("d" * 30))
    with pytest.raises(SandboxFull, match="deeper than"):
        await box.take()
    await box.restore(None)
    await box.run("mkdir -p " + "/".join("d" * 15))
    await box.take()


async def test_what_is_sparse_or_has_several_names_counts_once(box):
    await box.run("truncate -s 4G sparse; head -c 5M /dev/urandom > one; ln one two; ln one three")
    found = await box.snapshot(await box.take())
    assert 5 * MB <= found.bytes < 6 * MB
    assert (await box.run("stat -c %s sparse")).output == f"{4 << 30}\n"


async def test_what_was_replaced_counts_no_more_when_room_gets_short(small, box):
    """Each layer replaces the one below: together they are above the limit, the files are not."""
    for n in range(6):
        ran = await box.run(FILL.format(6, "same") + f"; echo {n} > n")
        assert ran.killed_by == "", n
        last = await box.take()
    assert [*small.root.glob("tenants/*/layers/*/squashed")]
    other = small.open("acme", "other")
    await other.restore(last)
    assert (await other.run("cat n; stat -c %s same")).output == f"5\n{6 * MB}\n"


async def test_a_fork_counts_what_it_stands_on(small, box):
    await box.run(FILL.format(15, "a"))
    snapshot = await box.take()
    fork = small.open("acme", "fork")
    await fork.restore(snapshot)
    await fork.run(FILL.format(10, "b"))
    with pytest.raises(SandboxFull):
        await fork.take()
    await fork.restore(snapshot)
    await fork.run("rm a")  # a mark hides it, and takes nothing back
    await fork.run(FILL.format(1, "b"))
    assert await fork.take() != snapshot


def test_a_room_of_nothing_is_refused(tmp_path):
    with pytest.raises(SettingInvalid, match="bytes_max=0"):
        IsolatedSandboxes(tmp_path, bytes_max=0)
    with pytest.raises(SettingInvalid, match="files_max=-1"):
        IsolatedSandboxes(tmp_path, files_max=-1)


@effect(kind="contained")
async def fill(megabytes: int, *, sandbox) -> str:
    ran = await sandbox.run(FILL.format(megabytes, "big"))
    return ran.killed_by


async def test_a_run_whose_node_leaves_too_much_fails_and_its_files_are_those_of_before(
    is_able, tmp_path
):
    graph = Graph(State, name="fills")

    @graph.node
    async def act(state: State, ctx: Context) -> dict:
        return {"results": [await ctx.call(fill, 3)]}

    @graph.node
    async def more(state: State, ctx: Context) -> dict:
        return {"results": [await ctx.call(fill, 8)]}

    graph.edge(START, act)
    graph.edge(act, more)
    backend = IsolatedSandboxes(tmp_path / "boxes", bytes_max=10 * MB)
    async with Runtime.open("memory://", graphs=[graph], sandbox=backend) as runtime:
        run = await runtime.start(graph, {}, thread="t")
        with pytest.raises(RunFailed, match="no snapshot was taken"):
            await run.result(timeout=100)
        newest = max(await runtime.history("t"), key=lambda each: each.id)
        sandbox = backend.open("default", "t")
        await sandbox.restore(newest.snapshot)
        assert (await sandbox.run("stat -c %s big")).output == f"{3 * MB}\n"


# -- measuring -------------------------------------------------------------------------------------


def test_a_measurement_is_that_of_du(tmp_path):
    (tmp_path / "a/b/c").mkdir(parents=True)
    (tmp_path / "a/x").write_bytes(b"x" * 10_000)
    os.link(tmp_path / "a/x", tmp_path / "a/b/y")
    (tmp_path / "a/link").symlink_to("/etc/passwd")
    (tmp_path / "a/b/out").symlink_to("/usr", target_is_directory=True)
    os.mkfifo(tmp_path / "a/pipe")
    with (tmp_path / "a/sparse").open("wb") as file:
        file.truncate(1 << 30)
    found = measure([tmp_path])
    walked = [tmp_path / "a", *(tmp_path / "a").rglob("*")]
    inodes = {path.lstat().st_ino: path.lstat().st_blocks * 512 for path in walked}
    assert found.bytes == sum(inodes.values())
    assert (found.entries, found.is_cut, found.is_deep) == (len(walked), False, False)
    os.link(tmp_path / "a/x", tmp_path / "outside")
    alone = measure([tmp_path / "a"], is_alone=True)
    assert (
        alone.bytes == measure([tmp_path / "a"]).bytes - (tmp_path / "a/x").lstat().st_blocks * 512
    )
    assert measure([tmp_path / "none"]).entries == 0


def test_a_measurement_ends_when_it_knows_enough(tmp_path):
    for n in range(200):
        (tmp_path / f"f{n}").write_bytes(b"x" * 5000)
    assert measure([tmp_path], entries_stop=10).entries == 11
    found = measure([tmp_path], bytes_stop=20_000)
    assert (found.is_cut, found.bytes) == (True, 24_576)


def test_deep_trees_are_measured_with_few_descriptors(tmp_path):
    depth = 900
    folder = os.open(tmp_path, os.O_RDONLY)
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208  # not a tree of ours
    for n in range(depth):
        os.mkdir("d", dir_fd=folder)
        os.close(os.open(f"f{n}", os.O_CREAT | os.O_WRONLY, dir_fd=folder))
        os.mkdir("beside", dir_fd=folder)
        below = os.open("d", os.O_RDONLY, dir_fd=folder)
        os.close(folder)
        folder = below
    os.close(folder)
    found = measure([tmp_path])
    assert (found.entries, found.is_deep) == (3 * depth, False)
    assert len(os.listdir("/proc/self/fd")) <= before - 1  # noqa: PTH208
    # What walks this folder afterwards may do it by recursion.
    asyncio.run(_remove(tmp_path / "d"))


async def _remove(path):
    process = await asyncio.create_subprocess_exec("rm", "-rf", str(path))
    assert await process.wait() == 0


@pytest.mark.slow
async def test_a_million_small_files(is_able, tmp_path, record_property):
    backend = IsolatedSandboxes(tmp_path / "s", files_max=400_000)
    box = backend.open("acme", "t")
    make = (
        "import os\nfor n in range(1000):\n os.mkdir(str(n))\n for m in range(1000):\n"
        "  os.close(os.open(f'{n}/{m}', os.O_CREAT | os.O_WRONLY))"
    )
    try:
        ran = await box.run(["/usr/bin/python3", "-c", make])
        assert ran.killed_by == "disk"
        with pytest.raises(SandboxFull) as caught:
            await box.take()
        assert 400_000 < caught.value.fields["files"] < 1_001_000
        record_property(
            "figure", f"room: killed at {caught.value.fields['files']} files of 400,000"
        )
        await box.restore(None)
        assert (await box.run("ls")).output == ""
    finally:
        backend.close()


# -- files without a name --------------------------------------------------------------------------

NAMELESS = """
import mmap, os, signal, socket, sys, threading
block = os.urandom(1 << 20)
def make(size):
    file = os.open("unnamed", os.O_CREAT | os.O_RDWR)
    os.unlink("unnamed")
    for _ in range(size):
        os.write(file, block)
    return file
def plain():
    for _ in range(8):
        make(5)
def mapped():
    import ctypes
    libc = ctypes.CDLL(None)
    libc.mmap.restype = ctypes.c_void_p
    for _ in range(8):
        file = make(5)
        libc.mmap(None, ctypes.c_size_t(4096), 1, 1, file, ctypes.c_long(0))
        os.close(file)
def sent():
    one, other = socket.socketpair()
    for _ in range(8):
        file = make(5)
        socket.send_fds(one, [b"x"], [file])
        os.close(file)
    globals()["kept"] = one, other
def other_table():
    import ctypes
    libc = ctypes.CDLL(None)
    stack = ctypes.create_string_buffer(1 << 20)
    top = ctypes.c_void_p(ctypes.addressof(stack) + (1 << 20) - 64)
    pause = ctypes.cast(libc.pause, ctypes.c_void_p)
    files = [make(5) for _ in range(8)]
    VM_FS_SIGHAND_THREAD = 0x10B00
    assert libc.clone(pause, top, VM_FS_SIGHAND_THREAD, None) > 0
    for file in files:
        os.close(file)
    globals()["kept"] = stack
globals()[sys.argv[1]]()
print("made", flush=True)
signal.pause()
"""
"""40 MB that no name leads to: open, only mapped, only in a socket, only open by an OS thread that
has a table of descriptors of its own."""

KINDS = ["plain", "mapped", "sent"]


@pytest.mark.parametrize("kind", KINDS)
async def test_files_without_a_name_are_counted(box, kind):
    ran = await box.run(["/usr/bin/python3", "-c", NAMELESS, kind], limits=Limits(deadline_s=120))
    assert (ran.code, ran.killed_by) == (137, "disk")
    await box.take()  # they are gone, with who had them
    assert (await box.run("ls")).output == ""


@pytest.mark.parametrize("kind", [*KINDS, "other_table"])
async def test_every_place_where_files_without_a_name_are_is_looked_at(tmp_path, kind):
    process = await asyncio.create_subprocess_exec(
        "/usr/bin/python3", "-c", NAMELESS, kind, cwd=tmp_path, stdout=asyncio.subprocess.PIPE
    )
    try:
        assert await process.stdout.readline() == b"made\n"
        nameless = Nameless()
        nameless.look([process.pid])
        is_known = kind != "sent" and (kind != "mapped" or os.geteuid() == 0)
        assert nameless.is_hiding is not is_known
        assert (nameless.bytes >= 40 * MB) is is_known
    finally:
        process.kill()
        await process.communicate()


def test_what_one_process_has_twice_is_counted_once(tmp_path):
    with (tmp_path / "f").open("wb") as file, (tmp_path / "f").open("rb"):
        file.write(os.urandom(5 * MB))
        file.flush()
        nameless = Nameless()
        nameless.look([os.getpid()])
        before = nameless.bytes
        (tmp_path / "f").unlink()
        nameless = Nameless()
        nameless.look([os.getpid(), os.getpid()])
        assert nameless.bytes - before == 5 * MB


@pytest.fixture
def living(is_able, tmp_path, monkeypatch):
    quick = Pace(look_s=0.05, age_s=1.0)
    monkeypatch.setattr("perdure.sandbox._resting.RESTING", quick)
    monkeypatch.setattr("perdure.sandbox._watch.RESTING", quick)
    backend = living_sandboxes(tmp_path / "living", bytes_max=20 * MB)
    yield backend
    backend.close()


BETWEEN = {
    "named": FILL.format(30, "big"),
    "nameless": f"python3 -c '{NAMELESS}' plain",
}


@pytest.mark.parametrize(
    ("kind", "is_in_command"), [("named", False), ("nameless", False), ("nameless", True)]
)
async def test_what_goes_on_between_commands_is_ended_when_it_takes_too_much(
    living, kind, is_in_command
):
    """Also what it took while a command was executed, if nothing but its end gives it back."""
    box = living.open("acme", "t")
    await box.write("fill", f"read go < go; {BETWEEN[kind]}; sleep 600".encode())
    ran = await box.run("mkfifo go; sh fill > out 2>&1 & echo begun; sleep 600 & true")
    assert ran.killed_by == ""
    tree = box._live.tree
    if is_in_command:
        await box.run("echo > go; while ! grep -q made out; do :; done")
    else:
        await box.run("echo > go")
    await asyncio.wait_for(asyncio.shield(tree.over), 120)
    ran = await box.run("true")
    assert any("more room on the disk" in each for each in ran.lost), ran.lost
    assert any(each.line.startswith("sleep 600") for each in box.lost())


# -- what removes is not killed --------------------------------------------------------------------


@pytest.fixture
def unseen(monkeypatch):
    """Do something in a sandbox while nobody looks at its room."""

    async def nothing(watch: Watch) -> None:
        return

    @contextlib.contextmanager
    def unseen():
        with monkeypatch.context() as patch:
            patch.setattr(Watch, "_watch", nothing)
            yield
        # What others do with the room of the disk meanwhile tells nothing here: it is walked.
        monkeypatch.setattr(Ground, "_before", lambda *_: None)

    return unseen


async def test_over_the_room_a_command_that_removes_is_not_killed(box, unseen):
    with unseen():
        await box.write("big", os.urandom(25 * MB))
    ran = await box.run("sleep 2; ls; sleep 2; rm big; echo removed")
    assert (ran.code, ran.killed_by, ran.output) == (0, "", "big\nremoved\n")
    assert await box.take() != "base"


async def test_over_the_room_a_command_that_adds_is_killed(box, unseen):
    with unseen():
        await box.write("big", os.urandom(25 * MB))
    ran = await box.run(FILL.format(5, "more") + "; sleep 600")
    assert (ran.code, ran.killed_by) == (137, "disk")


async def test_far_over_the_room_nothing_is_executed_but_a_restore(small, box, unseen, monkeypatch):
    """However short the commands are that fill the disk."""
    monkeypatch.setattr("perdure.sandbox._room.FAR_BYTES", 10 * MB)
    with unseen():
        for n in range(7):  # 20 MB, and as much again
            await box.run(FILL.format(6, f"f{n}"))
    with pytest.raises(SandboxFull, match="no command was executed") as caught:
        await box.run("rm f1")
    assert "restore" in str(caught.value)
    await box.restore(None)
    assert (await box.run("ls")).output == ""


async def test_over_the_room_a_service_says_what_is_wrong_with_it(box, unseen):
    with unseen():
        await box.write("big", os.urandom(25 * MB))
    state = await box.start_service("w", "sleep 100", port=99, ready_s=1)
    assert (state.is_up, state.reason.split(":")[0]) == (
        False,
        "nothing answers at port 99 after 1 s",
    )


async def test_too_many_files_are_spoken_of_as_files(is_able, tmp_path, unseen):
    backend = IsolatedSandboxes(tmp_path / "few", files_max=50)
    try:
        box = backend.open("acme", "t")
        with unseen():
            await box.run("for n in $(seq 80); do : > $n; done")
        with pytest.raises(SandboxFull, match=r"files_max=100\)") as caught:
            await box.take()
        assert "81 files and folders" in str(caught.value)
        assert "bytes" not in str(caught.value)
    finally:
        backend.close()
