"""What code that nobody vetted tries is stopped, and nothing of the host changes."""

import asyncio
import os
import socket
import subprocess

import pytest

from perdure.errors import NotFound, UsageError
from perdure.sandbox import IsolatedSandboxes, Limits
from tests.sandbox.attacks import ATTACKS, PRELUDE
from tests.sandbox.long import LONG

pytestmark = pytest.mark.timeout(120)

SMALL = Limits(
    memory_bytes=128 << 20, processes=64, file_bytes=64 << 20, output_bytes=10_000, deadline_s=20
)


@pytest.mark.parametrize("attack", ATTACKS, ids=[f"{a.number}_{a.name}" for a in ATTACKS])
def test_it_is_stopped(shell, attack):
    ran = shell(["/usr/bin/python3", "-I", "-c", PRELUDE + attack.code])
    assert "THROUGH" not in ran.output, ran
    assert "stopped" in ran.output or ran.code not in {0, 1}, ran


def test_a_program_can_say_that_it_got_through(shell):
    """Else the test above could not fail."""
    assert "THROUGH" in shell(["/usr/bin/python3", "-c", PRELUDE + "attempt(lambda: None)"]).output


def test_a_fork_bomb_ends_and_leaves_nothing(shell):
    ran = shell("bomb() { bomb | bomb & }; bomb; sleep 1; echo alive", limits=SMALL)
    assert ran.code is not None
    assert shell("echo again").output == "again\n"


def test_a_memory_bomb_is_killed(shell):
    code = "x = [bytearray(b'x' * (1 << 20)) for _ in range(4096)]; print('THROUGH')"
    ran = shell(["/usr/bin/python3", "-c", code], limits=SMALL)
    assert "THROUGH" not in ran.output
    assert ran.code != 0


def test_a_loop_is_killed_at_the_deadline(shell):
    ran = shell("while :; do :; done", limits=Limits(deadline_s=0.5))
    assert (ran.killed_by, ran.code) == ("deadline", 137)


def test_a_deadline_reaches_whoever_left_the_session(shell):
    ran = shell(
        "setsid sh -c 'trap \"\" TERM INT HUP; sleep 60' & wait", limits=Limits(deadline_s=1)
    )
    assert ran.killed_by == "deadline"


def test_a_file_has_a_largest_size(shell):
    ran = shell(
        "truncate -s 1T /workspace/sparse; head -c 100M /dev/zero > /workspace/big", limits=SMALL
    )
    assert ran.code != 0
    assert shell("stat -c %s /workspace/big").output.strip() in {str(64 << 20), ""}


def test_a_flood_is_cut_and_does_not_stop_what_prints_it(shell):
    ran = shell("head -c 20M /dev/zero | tr '\\0' x; echo done >&2", limits=SMALL)
    assert (len(ran.output), ran.is_cut, ran.errors, ran.code) == (10_000, True, "done\n", 0)


def test_a_daemon_does_not_outlive_the_command_and_is_named(shell):
    ran = shell(
        f"(setsid sleep {LONG} > /dev/null 2>&1 &) ; "
        f"until grep -aq ^sleep.{LONG} /proc/[0-9]*/cmdline; do :; done; echo ok"
    )
    assert ran.output == "ok\n"
    assert any(f"sleep {LONG}" in line for line in ran.left)
    found = subprocess.run(
        ["/bin/ps", "axww", "-o", "args"], capture_output=True, text=True, check=True
    )
    assert f"sleep {LONG}" not in found.stdout


def test_a_server_of_the_host_is_out_of_reach(shell):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        code = f"attempt(lambda: socket.create_connection(('127.0.0.1', {port}), 2))"
        assert "stopped" in shell(["/usr/bin/python3", "-c", PRELUDE + code]).output


def test_an_abstract_socket_of_the_host_is_out_of_reach(shell):
    name = f"\0perdure-{os.getpid()}"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(name)
        server.listen()
        code = f"attempt(lambda: socket.socket(socket.AF_UNIX).connect({name!r}))"
        assert "stopped" in shell(["/usr/bin/python3", "-c", PRELUDE + code]).output


def test_a_secret_of_the_worker_is_not_in_the_environment(shell, monkeypatch):
    monkeypatch.setenv("PERDURE_TEST_SECRET", "s3cret")
    assert "s3cret" not in shell("env; cat /proc/*/environ 2>/dev/null").output


def test_a_link_out_of_the_sandbox_leads_into_it(sandbox, tmp_path):
    outside = tmp_path / "outside"
    outside.write_text("host")

    async def body():
        await sandbox.run(
            f"mkdir -p {tmp_path}; ln -s {outside} /workspace/link; ln -s / /workspace/all"
        )
        with pytest.raises(NotFound):
            await sandbox.read("/workspace/link")
        await sandbox.write("/workspace/link", b"inside")
        with pytest.raises(NotFound):
            await sandbox.read(f"/workspace/all{outside}/nothing")

    asyncio.run(body())
    assert outside.read_text() == "host"


def test_a_folder_that_the_root_needs_is_made_again(shell):
    shell("rm -rf /dev /proc /run")
    assert shell("ls /proc/self/status && echo x > /dev/null && echo well").output.endswith(
        "well\n"
    )


def test_a_folder_that_the_root_needs_can_not_be_replaced_by_a_link(sandbox):
    async def body():
        await sandbox.run("rm -rf /run; ln -s /tmp /run")
        with pytest.raises(UsageError, match=r"/run/shm is no folder any more .* earlier snapshot"):
            await sandbox.run("true")
        await sandbox.restore(None)
        return await sandbox.run("echo well")

    assert asyncio.run(body()).output == "well\n"


def test_something_of_the_host_is_shown_and_can_not_be_changed(is_able, tmp_path):
    folder = tmp_path / "tools"
    folder.mkdir()
    (folder / "tool").write_text("hello")
    (tmp_path / "settings").write_text("a=1")
    backend = IsolatedSandboxes(
        tmp_path / "sandboxes",
        show={"/opt/tools": str(folder), "/etc/app.conf": str(tmp_path / "settings")},
        env={"APP": "x"},
    )

    async def body():
        ran = await backend.open("acme", "t").run(
            "cat /opt/tools/tool /etc/app.conf; echo $APP; echo no > /opt/tools/tool; "
            "rm -f /opt/tools/tool; echo no > /etc/app.conf"
        )
        assert ran.output == "helloa=1x\n"

    try:
        asyncio.run(body())
    finally:
        backend.close()
    assert (folder / "tool").read_text() == "hello"
    assert (tmp_path / "settings").read_text() == "a=1"


def test_two_tenants_have_other_ids(backend, is_root):
    if not is_root:
        pytest.skip("one user has one id: tenants are apart by their mounts alone")

    async def owner(tenant):
        sandbox = backend.open(tenant, "t")
        await sandbox.run("touch /workspace/mine")
        [path] = backend.root.glob(f"tenants/{tenant}.*/threads/*/top/root/workspace/mine")
        return path.stat().st_uid

    async def body():
        return await owner("one"), await owner("two")

    one, two = asyncio.run(body())
    assert one != two
    assert min(one, two) > 1_000_000


def test_a_thread_does_not_see_the_files_of_another(backend):
    async def body():
        await backend.open("acme", "a").write("/workspace/secret", b"x")
        return await backend.open("acme", "b").run(
            "ls -A /workspace; ls -d /proc/*/workspace/workspace/secret"
        )

    assert asyncio.run(body()).output == ""


def test_nothing_of_the_host_changed(shell, tmp_path):
    """By the names, sizes and times of what a sandbox is root over in its own eyes.

    Of /var the names alone: others of the host work there.
    """
    before = seen_of_host()
    shell(
        "touch /usr/touched /etc/touched /tmp/touched; rm -rf /usr/bin /usr/lib /etc /tmp /var; "
        "chmod 777 /usr/share /usr/share/*; chown -R 1:1 /usr/local; echo done",
        limits=Limits(deadline_s=60),
    )
    assert seen_of_host() == before


def seen_of_host():
    found = {}
    for top in ("/usr", "/usr/bin", "/usr/lib", "/usr/local", "/usr/share", "/etc", "/var"):
        with os.scandir(top) as entries:
            for entry in entries:
                stat = entry.stat(follow_symlinks=False)
                changed = () if top == "/var" else (stat.st_size, stat.st_mtime_ns)
                found[entry.path] = stat.st_mode, stat.st_uid, *changed
    return found
