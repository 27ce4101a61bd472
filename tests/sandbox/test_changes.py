"""What turns changed is told exactly: compared with the whole trees before and after."""

import random

import pytest

from perdure.errors import UsageError
from perdure.sandbox import Change, Package
from tests.sandbox.courses import MORE
from tests.sandbox.workload import seen, turns

pytestmark = pytest.mark.timeout(180)


def told(changes):
    return {(change.path, change.kind) for change in changes.paths}


async def test_an_empty_turn_changed_nothing(sandbox):
    await sandbox.run("ls -la / /usr/bin > /dev/null")
    assert (await sandbox.changes()).is_nothing


async def test_each_kind_of_change(sandbox, is_root):
    await sandbox.run(
        "mkdir -p /workspace/d /workspace/gone/x; echo 1 > /workspace/f; echo 1 > /workspace/d/old"
    )
    await sandbox.take()
    # The base belongs to nobody in a sandbox of a user without rights.
    removed = "/usr/bin/awk" if is_root else "/etc/hosts"
    await sandbox.run(
        f"echo 22 > /workspace/f; echo 1 > /workspace/new; rm -rf /workspace/gone; rm {removed}; "
        "rm -rf /workspace/d; mkdir /workspace/d; echo 1 > /workspace/d/fresh; chmod 700 /workspace"
    )
    changes = await sandbox.changes()
    assert told(changes) == {
        ("/workspace", "changed"),
        ("/workspace/d", "replaced"),
        ("/workspace/d/fresh", "added"),
        ("/workspace/f", "changed"),
        ("/workspace/gone", "removed"),
        ("/workspace/new", "added"),
        (removed, "removed"),
    }
    assert Change(path="/workspace/f", kind="changed", bytes=3) in changes.paths


async def test_since_an_earlier_snapshot(sandbox):
    await sandbox.run("echo 1 > /workspace/a; echo 1 > /workspace/b")
    first = await sandbox.take()
    await sandbox.run("rm /workspace/a; echo 1 > /workspace/c")
    await sandbox.take()
    await sandbox.run("rm /workspace/c; echo 2 > /workspace/b; echo 1 > /workspace/a")
    assert told(await sandbox.changes(first)) == {
        ("/workspace/a", "changed"),
        ("/workspace/b", "changed"),
    }
    assert told(await sandbox.changes("base")) == {
        ("/workspace/a", "added"),
        ("/workspace/b", "added"),
    }
    await sandbox.restore(None)
    with pytest.raises(UsageError, match="don't stand on"):
        await sandbox.changes(first)


async def test_packages_are_named(sandbox):
    await sandbox.write(
        "/workspace/lib/dist-packages/left_pad-1.2.3.dist-info/METADATA", b"Name: left_pad"
    )
    await sandbox.write("/workspace/node_modules/@a/b/package.json", b'{"version": "4.5.6"}')
    await sandbox.write("/workspace/node_modules/bad/package.json", b"[" * 100_000)
    await sandbox.run(
        "ln -s /etc/passwd /workspace/node_modules/link; mkdir -p /workspace/node_modules/d"
    )
    await sandbox.run("mkfifo /workspace/node_modules/d/package.json")
    for number in (1, 2):
        await sandbox.write(f"/var/lib/dpkg/info/tool{number}:amd64.list", b"/usr/bin/tool\n")
    await sandbox.write(
        "/var/lib/dpkg/status",
        b"Package: tool1\nStatus: install ok installed\nVersion: 1:2.0-3\n\n"
        b"Package: other\nVersion: 9\n",
    )
    assert (await sandbox.changes()).packages == (
        Package(manager="apt", name="tool1", version="1:2.0-3"),
        Package(manager="apt", name="tool2", version=""),
        Package(manager="npm", name="@a/b", version="4.5.6"),
        Package(manager="npm", name="bad", version=""),
        Package(manager="npm", name="d", version=""),
        Package(manager="pip", name="left-pad", version="1.2.3"),
    )


async def test_more_than_anybody_reads_is_cut(sandbox, monkeypatch):
    monkeypatch.setattr("perdure.sandbox._changes.CHANGES_MAX", 5)
    await sandbox.run("for n in $(seq 30); do echo $n > /workspace/f$n; done")
    changes = await sandbox.changes()
    assert changes.is_cut
    assert len(changes.paths) == 5


@pytest.mark.parametrize("seed", [3, MORE(4)])
async def test_random_turns_are_told_as_the_trees_differ(sandbox, seed):
    chance = random.Random(seed)  # noqa: S311  # not for secrets
    commands = turns(chance)
    before = await seen(sandbox)
    for _ in range(12):
        for _ in range(3):
            await sandbox.run(next(commands))
        after = await seen(sandbox)
        changes = await sandbox.changes()
        removed = {change.path for change in changes.paths if change.kind == "removed"}
        replaced = [change.path for change in changes.paths if change.kind == "replaced"]
        names = {change.path for change in changes.paths}
        differ = {
            path for path in before.keys() | after.keys() if before.get(path) != after.get(path)
        }
        for path in differ:
            is_told = path in names or any(
                path.startswith(f"{top}/") for top in [*removed, *replaced]
            )
            assert is_told, (path, changes)
        added = {change.path for change in changes.paths if change.kind == "added"}
        assert added.isdisjoint(before), (added, before)
        await sandbox.take()
        before = after
