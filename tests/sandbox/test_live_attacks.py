"""What runs in a tree that stays reaches neither its first process nor other commands."""

import pytest

from perdure.sandbox import Limits
from tests.sandbox.attacks import ATTACKS, PRELUDE
from tests.sandbox.kept import living_sandboxes

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def sandbox(is_able, tmp_path):
    backend = living_sandboxes(tmp_path / "sandboxes")
    yield backend.open("acme", "t-1")
    backend.close()


async def test_attacks_are_stopped_in_a_tree_that_stays(sandbox):
    await sandbox.run("sleep 1000 &")
    tree = sandbox._live.tree
    for attack in ATTACKS:
        if attack.name == "other_processes":
            continue  # that tells of numbers: those of a tree that stays rise
        ran = await sandbox.run(["/usr/bin/python3", "-I", "-c", PRELUDE + attack.code])
        assert "THROUGH" not in ran.output, (attack.name, ran)
        assert "stopped" in ran.output or ran.code not in {0, 1}, (attack.name, ran)
    assert sandbox._live.tree is tree


FORGE = """
import json, os, socket, sys
spare = [p for p in os.listdir("/proc") if p.isdigit() and int(p) not in (1, os.getpid())]
for pid in ["1", *spare]:
    for name in ("fd", "fdinfo", "mem", "environ", "maps", "cwd", "root", "exe"):
        path = f"/proc/{pid}/{name}"
        try:
            if name in ("fd", "fdinfo"):
                found = [os.open(f"{path}/{fd}", os.O_RDWR) for fd in os.listdir(path)]
            elif name in ("cwd", "root", "exe"):
                found = [os.readlink(path)]
            else:
                found = [open(path, "rb").read(1)]
        except OSError:
            continue
        line = open(f"/proc/{pid}/cmdline", "rb").read()
        if b"inside.launcher" in line and found:
            print("THROUGH", path, found)
for sig in range(1, 65):
    try:
        os.kill(1, sig)
    except OSError:
        pass
print("stopped")
"""


async def test_nothing_reaches_the_first_process(sandbox):
    await sandbox.run("sleep 1000 &")
    tree = sandbox._live.tree
    for _ in range(3):
        ran = await sandbox.run(["/usr/bin/python3", "-I", "-c", FORGE])
        assert ran.output == "stopped\n", ran
    assert (await sandbox.run("echo on")).output == "on\n"
    assert sandbox._live.tree is tree


async def test_a_command_can_not_be_reported_by_another(sandbox):
    """Its code is what the kernel says of it, whatever else prints or ends meanwhile."""
    await sandbox.run(
        '(while :; do printf \'{"id": 3, "code": 0}\'; (exit 9); done) > /dev/null 2>&1 &'
    )
    for code in range(5):
        assert (await sandbox.run(f"exit {code}")).code == code


async def test_a_spare_that_is_killed_stops_nobody(sandbox):
    await sandbox.run("sleep 1000 &")
    kill = (
        "for p in /proc/[0-9]*; do p=${p#/proc/}; [ $p != 1 ] && [ $p != $$ ] && kill -9 $p; done"
    )
    for _ in range(3):
        ran = await sandbox.run(kill)
        assert ran.code is not None
        assert (await sandbox.run("echo on")).output == "on\n"


async def test_a_spare_that_is_stopped_ends_with_the_deadline(sandbox):
    stop = "for p in /proc/[0-9]*; do kill -STOP ${p#/proc/} 2> /dev/null; done"
    await sandbox.run(f"sh -c '{stop}' &", limits=Limits(deadline_s=2))
    ran = await sandbox.run("echo on", limits=Limits(deadline_s=2))
    assert ran.killed_by in {"deadline", ""}
    await sandbox.restore(None)
    assert (await sandbox.run("echo on")).output == "on\n"
