"""Whatever was taken comes back equal, in any order, on any thread; and costs what changed."""

import asyncio
import json
import random

import pytest

from perdure.errors import NotFound, SettingInvalid, StoreCorrupt, UsageError
from perdure.sandbox import IsolatedSandboxes, Limits, _layers
from perdure.sandbox import limits as room_limits
from tests.sandbox.courses import MORE
from tests.sandbox.long import LONG, alive
from tests.sandbox.workload import seen, turns

pytestmark = pytest.mark.timeout(300)

TURNS = 40


@pytest.mark.parametrize("seed", [1, MORE(2)])
async def test_every_snapshot_of_random_turns_comes_back(backend, seed, record_property):
    chance = random.Random(seed)  # noqa: S311  # not for secrets
    commands = turns(chance)
    threads = [backend.open("acme", f"t-{n}") for n in range(2)]
    known = {None: await seen(threads[0])}
    for _ in range(TURNS):
        sandbox = chance.choice(threads)
        if chance.random() < 0.2:
            await sandbox.restore(chance.choice([*known]))
        await sandbox.run(next(commands))
        snapshot = await sandbox.take()
        now = await seen(sandbox)
        assert known.setdefault(snapshot, now) == now
    backend.close()
    for snapshot in chance.sample([*known], min(len(known), 15)):
        sandbox = backend.open("acme", f"u-{chance.randrange(3)}")
        await sandbox.restore(snapshot)
        assert await seen(sandbox) == known[snapshot]
    record_property("figure", f"sandbox: {TURNS} random turns, {len(known)} snapshots, all equal")


async def test_looking_changes_nothing(sandbox):
    first = await sandbox.take()
    await sandbox.run(
        "ls -laR /workspace /usr/bin > /dev/null; cat /etc/hosts; python3 -c 'import json'"
    )
    assert await sandbox.take() == first


async def test_a_write_to_shared_memory_is_part_of_a_snapshot(sandbox):
    await sandbox.run("echo here > /dev/shm/x")
    snapshot = await sandbox.take()
    assert (await sandbox.run("cat /dev/shm/x; rm /dev/shm/x")).output == "here\n"
    await sandbox.restore(snapshot)
    assert (await sandbox.run("cat /dev/shm/x")).output == "here\n"


def bytes_of_layers(backend):
    kept = backend.root.glob("tenants/*/layers/**/*")  # elsewhere a task removes what it finds
    return sum(path.stat().st_size for path in kept if path.is_file())


async def test_a_fork_shares_and_does_not_disturb(backend):
    first = backend.open("acme", "first")
    await first.run("head -c 5M /dev/urandom > /workspace/big; echo 1 > /workspace/n")
    snapshot = await first.take()
    before = bytes_of_layers(backend)
    fork = backend.open("acme", "fork")
    await fork.restore(snapshot)
    await fork.run("echo 2 > /workspace/n")
    await fork.take()
    assert bytes_of_layers(backend) - before < 10_000
    assert (await first.run("cat /workspace/n")).output == "1\n"
    assert (
        await fork.run("cat /workspace/n; stat -c %s /workspace/big")
    ).output == f"2\n{5 << 20}\n"


async def test_another_tenant_has_not_the_snapshot(backend):
    sandbox = backend.open("acme", "t")
    await sandbox.run("echo 1 > /workspace/n")
    snapshot = await sandbox.take()
    with pytest.raises(NotFound, match="no snapshot"):
        await backend.open("other", "t").restore(snapshot)


@pytest.mark.parametrize("name", ["l_../../x", "", "l_", "x", "l_" + "a" * 26, "../../../etc"])
async def test_what_is_no_snapshot_is_not_found(sandbox, name):
    await sandbox.write("/workspace/kept", b"1")
    if name:
        with pytest.raises(NotFound):
            await sandbox.restore(name)
        assert await sandbox.read("/workspace/kept") == b"1"


async def test_a_missing_layer_is_named(backend, sandbox):
    await sandbox.run("echo 1 > /workspace/n")
    below = await sandbox.take()
    await sandbox.run("echo 2 > /workspace/n")
    above = await sandbox.take()
    [layer] = backend.root.glob(f"tenants/*/layers/{below}")
    layer.rename(layer.with_name("gone"))
    with pytest.raises(StoreCorrupt, match=below):
        await sandbox.restore(above)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"format": 1}', b'{"format": 99}'])
async def test_a_damaged_layer_is_named(backend, sandbox, content):
    await sandbox.run("echo 1 > /workspace/n")
    snapshot = await sandbox.take()
    [layer] = backend.root.glob(f"tenants/*/layers/{snapshot}/layer.json")
    layer.write_bytes(content)
    with pytest.raises(StoreCorrupt, match=snapshot):
        await sandbox.restore(snapshot)


async def test_a_newer_format_is_refused(backend, sandbox):
    await sandbox.run("echo 1 > /workspace/n")
    snapshot = await sandbox.take()
    [layer] = backend.root.glob(f"tenants/*/layers/{snapshot}/layer.json")
    layer.write_text(json.dumps(json.loads(layer.read_text()) | {"format": 3}))
    with pytest.raises(StoreCorrupt, match="format 3"):
        await sandbox.restore(snapshot)


async def test_a_loop_of_layers_ends(backend, sandbox, monkeypatch):
    monkeypatch.setattr("perdure.sandbox._layers.CHAIN_MAX", 5)
    await sandbox.run("echo 1 > /workspace/n")
    snapshot = await sandbox.take()
    [layer] = backend.root.glob(f"tenants/*/layers/{snapshot}/layer.json")
    layer.write_text(json.dumps(json.loads(layer.read_text()) | {"parent": snapshot}))
    with pytest.raises(StoreCorrupt, match="more than 5"):
        await sandbox.restore(snapshot)


async def test_another_base_is_refused(is_able, tmp_path):
    one = IsolatedSandboxes(tmp_path / "s")
    other = IsolatedSandboxes(tmp_path / "s", show={"/opt/x": str(tmp_path)})
    try:
        sandbox = one.open("acme", "t")
        await sandbox.run("echo 1 > /workspace/n")
        snapshot = await sandbox.take()
        with pytest.raises(UsageError, match="was made on base"):
            await other.open("acme", "t").restore(snapshot)
    finally:
        one.close()
        other.close()


async def test_sandboxes_are_not_kept_below_what_they_see(is_able):
    with pytest.raises(UsageError, match="can't be kept below /usr"):
        IsolatedSandboxes("/usr/local/sandboxes-of-a-test").open("acme", "t")


async def test_a_cancelled_command_is_killed_and_the_next_one_runs(sandbox):
    task = asyncio.create_task(sandbox.run(f"echo begun > /workspace/begun; sleep {LONG}"))
    while not alive():  # noqa: ASYNC110  # of a process
        await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (await sandbox.run("cat /workspace/begun")).output == "begun\n"
    assert not alive()


async def test_commands_of_one_sandbox_take_turns(sandbox):
    await asyncio.gather(*(sandbox.run(f"echo {n} >> /workspace/log") for n in range(8)))
    assert sorted((await sandbox.read("/workspace/log")).split()) == [b"%d" % n for n in range(8)]


async def test_many_sandboxes_run_at_once(backend):
    names = [f"t-{n}" for n in range(12)]
    ran = await asyncio.gather(*(backend.open("acme", n).run(f"echo {n}") for n in names))
    assert [each.output.strip() for each in ran] == names


@pytest.mark.parametrize(
    ("argv", "kwargs", "what"),
    [
        ([], {}, "needs a program"),
        ([""], {}, "needs a program"),
        (["true", "a\0b"], {}, "zero byte"),
        (["true"], {"env": {"A=B": "x"}}, "can't hold '='"),
        (["true", "x" * 200_000], {}, "use a file"),
    ],
)
async def test_what_can_not_be_a_command_is_refused(sandbox, argv, kwargs, what):
    with pytest.raises(UsageError, match=what):
        await sandbox.run(argv, **kwargs)


async def test_too_much_input_is_refused(sandbox, monkeypatch):
    monkeypatch.setattr("perdure.sandbox._turns.GIVEN_BYTES_MAX", 10)
    with pytest.raises(UsageError, match="at most 10 bytes"):
        await sandbox.write("/workspace/x", b"x" * 11)


async def test_a_command_that_is_not_there_has_the_code_of_a_shell(sandbox):
    ran = await sandbox.run(["/usr/bin/no-such-program"])
    assert (ran.code, ran.errors) == (127, "/usr/bin/no-such-program: No such file or directory\n")
    assert (await sandbox.run(["/etc/hosts"])).code == 126
    assert (await sandbox.run("kill -TERM $$")).code == 143


async def test_input_goes_in_and_bytes_come_back(sandbox):
    raw = bytes(range(256)) * 1000
    await sandbox.write("/workspace/deep/er/raw", raw, mode=0o600)
    assert await sandbox.read("/workspace/deep/er/raw") == raw
    assert (await sandbox.run("stat -c '%a %U' /workspace/deep/er/raw")).output == "600 root\n"
    assert (await sandbox.run(["wc", "-c"], given=b"12345")).output == "5\n"
    with pytest.raises(UsageError, match="more than 10"):
        await sandbox.read("/workspace/deep/er/raw", bytes_max=10)
    with pytest.raises(NotFound, match="Is a directory"):
        await sandbox.read("/workspace/deep")
    with pytest.raises(UsageError, match="Not a directory"):
        await sandbox.write("/workspace/deep/er/raw/below", b"x")


@pytest.mark.parametrize("seed", [5, MORE(6)])
async def test_long_chains_are_squashed_and_come_back_equal(backend, seed, monkeypatch, is_root):
    monkeypatch.setattr("perdure.sandbox._layers.SQUASH_AT", 4)
    chance = random.Random(seed)  # noqa: S311  # not for secrets
    commands = turns(chance)
    sandbox = backend.open("acme", "t")
    known = {}
    for _ in range(24):
        await sandbox.run(next(commands))
        snapshot = await sandbox.take()
        known[snapshot] = await seen(sandbox)
    # A user without rights can't merge folders that a command closed: the chain stays.
    assert [*backend.root.glob("tenants/*/layers/*/squashed")] or not is_root
    # Turns that change nothing leave the snapshot of the turn before them.
    for snapshot in chance.sample([*known], min(12, len(known))):
        await sandbox.restore(snapshot)
        assert await seen(sandbox) == known[snapshot]
    await sandbox.run(next(commands))
    await sandbox.take()


async def test_what_can_not_be_squashed_is_kept_as_it_is(sandbox, monkeypatch):
    monkeypatch.setattr("perdure.sandbox._layers.SQUASH_AT", 2)
    deep = "/".join(["d"] * 140)
    await sandbox.run(f"mkdir -p {deep}; echo 1 > {deep}/f")
    taken = await sandbox.take()
    for n in range(5):
        await sandbox.run(f"echo {n} > n")
        taken = await sandbox.take()
    await sandbox.restore(taken)
    assert (await sandbox.run(f"cat {deep}/f n")).output == "1\n4\n"


async def test_more_links_than_a_file_can_have_are_copied(sandbox, monkeypatch):
    monkeypatch.setattr("perdure.sandbox._layers.SQUASH_AT", 2)
    code = "import os\nopen('f','w').write('x')\nfor n in range(40000): os.link('f', f'l{n}')"
    await sandbox.run(["/usr/bin/python3", "-c", code])
    for n in range(4):
        await sandbox.take()
        await sandbox.run(f"echo {n} > n")
    taken = await sandbox.take()
    await sandbox.restore(taken)
    assert (await sandbox.run("ls | wc -l; cat l39999 n")).output == "40002\nx3\n"


@pytest.mark.slow  # the quick run has the same for files, of which there are most
async def test_more_links_than_a_pipe_or_a_link_can_have_are_made_anew(sandbox, monkeypatch):
    monkeypatch.setattr("perdure.sandbox._layers.SQUASH_AT", 2)
    code = (
        "import os\nos.mkfifo('p', 0o640); os.symlink('x', 's')\n"
        "for n in range(33000): os.link('p', f'p{n}'); os.link('s', f's{n}', follow_symlinks=False)"
    )
    await sandbox.run(["/usr/bin/python3", "-c", code])
    for n in range(3):
        taken = await sandbox.take()
        await sandbox.run(f"echo {n} > n")
    taken = await sandbox.take()
    squashed = [*sandbox._ground.layers.tenant.glob("layers/*/squashed")]
    assert squashed
    await sandbox.restore(taken)
    look = "ls | wc -l; stat -c '%F %a %u' p p32999; readlink s s32999; cat n"
    assert (await sandbox.run(look)).output == "66003\nfifo 640 0\nfifo 640 0\nx\nx\n2\n"


async def test_a_squashed_layer_is_no_other_than_the_chain(backend, sandbox, monkeypatch):
    """What overlays merge in many ways: removed, replaced, made again, of another kind."""
    monkeypatch.setattr("perdure.sandbox._layers.SQUASH_AT", 6)
    for command in (
        "mkdir -p d/e gone; echo 1 > d/e/f; echo 1 > gone/x; rm -rf /etc/alternatives",
        "rm -rf d; mkdir d; echo 2 > d/new; chmod 700 d; chown 3:4 d",
        "rm -rf gone; echo file > gone; mkdir /etc/alternatives; echo 1 > /etc/alternatives/x",
        "rm gone; ln -s d gone; ln d/new hard",
        "rm gone; mkdir -p gone/deep; mkfifo gone/deep/pipe; touch -d 2001-01-01 gone",
        "setfattr -n user.note -v hi d 2>/dev/null; rm -rf d/new",
        "echo on > on",
    ):
        await sandbox.run(command)
        last = await sandbox.take()
    expected = await seen(sandbox)
    assert [*backend.root.glob("tenants/*/layers/*/squashed")]
    other = backend.open("acme", "other")
    await other.restore(last)
    assert await seen(other) == expected
    ran = await other.run("ls -A /etc/alternatives; stat -c '%Y' gone; cat hard")
    assert ran.output == "x\n978307200\n2\n"


@pytest.mark.parametrize(
    ("path", "mode"),
    [("/workspace/" + "a/" * 3000 + "f", 0o644), ("/workspace/x" * 500, 0o644), ("f\n", 1 << 40)],
)
async def test_what_was_not_written_is_said(sandbox, path, mode):
    with pytest.raises(UsageError):
        await sandbox.write(path, b"hello", mode=mode)
    await sandbox.write("/workspace/a/b/c", b"1")
    assert (await sandbox.run("cat a/b/c; echo $?")).output == "10\n"
    # What walks this folder afterwards may do it by recursion.
    await sandbox.run("rm -rf a")


async def test_a_long_path_of_the_root_is_no_trouble(is_able, tmp_path):
    folder = tmp_path / ("x" * 100) / ("y" * 100) / ("z" * 100)
    backend = IsolatedSandboxes(folder)
    try:
        sandbox = backend.open("t" * 300, "u" * 300)
        await sandbox.run("echo 1 > /workspace/n")
        await sandbox.restore(await sandbox.take())
        assert await sandbox.read("/workspace/n") == b"1\n"
    finally:
        backend.close()


async def test_the_kernel_takes_a_deep_stack(sandbox):
    for n in range(60):
        await sandbox.run(f"echo {n} > /workspace/f{n}")
        await sandbox.take()
    ran = await sandbox.run("cat /workspace/f* | wc -l")
    assert ran.output.strip() == "60"


def test_the_limit_of_layers_is_below_the_kernels():
    assert room_limits.SQUASH_AT < room_limits.CHAIN_MAX < 500


async def test_an_attribute_that_a_command_set_hides_nothing_in_a_long_chain(backend, monkeypatch):
    monkeypatch.setattr(_layers, "SQUASH_AT", 2)
    sandbox = backend.open("acme", "t")
    await sandbox.run("mkdir d; echo below > d/below")
    await sandbox.take()
    forge = "import os; os.setxattr('d', 'user.overlay.opaque', b'y'); open('d/above', 'w').close()"
    assert (await sandbox.run(["/usr/bin/python3", "-I", "-c", forge])).code == 0
    snapshot = await sandbox.take()
    assert [change.kind for change in (await sandbox.changes("base")).paths] == ["added"] * 3
    await sandbox.run("echo more > more")  # over it, so that it is kept as one layer
    await sandbox.take()
    await sandbox.restore(snapshot)
    assert (await sandbox.run("ls d")).output == "above\nbelow\n"


# -- arguments -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("cores", 0),
        ("cores", float("nan")),
        ("cores", True),
        ("memory_bytes", 1000),
        ("memory_bytes", 1e9),
        ("processes", 1),
        ("file_bytes", -1),
        ("output_bytes", "1"),
        ("deadline_s", 0),
        ("deadline_s", float("inf")),
    ],
)
def test_limits_that_nothing_can_be_executed_with_are_refused(name, value):
    with pytest.raises(SettingInvalid, match=f"{name}={value!r}.* nothing was executed"):
        Limits(**{name: value})


async def test_the_least_limits_execute_a_command(sandbox):
    least = Limits(memory_bytes=32 << 20, processes=4, cores=0.1, deadline_s=60)
    ran = await sandbox.run("echo hi; sleep 0", limits=least)
    assert (ran.code, ran.output, ran.errors) == (0, "hi\n", "")


async def test_a_folder_to_begin_in_that_is_none_is_refused(sandbox):
    for cwd in ("/nope", "/etc/passwd", "/usr/bin/env"):
        with pytest.raises(UsageError, match=f"cwd='{cwd}' is no folder in the sandbox"):
            await sandbox.run("echo 1 > executed", cwd=cwd)
    assert (await sandbox.run("pwd; ls", cwd="/workspace/../tmp")).output == "/tmp\n"
