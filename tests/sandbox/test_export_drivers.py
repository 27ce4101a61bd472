"""What root exported comes back for a worker without rights, and the other way round."""

import json
import os
import subprocess
import sysconfig
import textwrap
from pathlib import Path

import pytest

from perdure.errors import UsageError
from tests.sandbox.test_rootless import NOBODY, PYTHON, REPOSITORY
from tests.sandbox.trees import KEY
from tests.sandbox.workload import seen

pytestmark = pytest.mark.timeout(200)

FILL = (
    "mkdir -p d/e; echo one > d/f; ln d/f d/e/g; ln -s ../f d/e/l; "
    "head -c 300000 /dev/urandom > big; "
    "truncate -s 5M holes; chmod 750 d; mkdir closed; echo x > closed/x; ln closed/x again; "
    "rm -rf /opt /var/cache; mkdir /opt; echo new > /opt/new"
)

CHILD = textwrap.dedent("""
    import asyncio, json, sys
    from perdure.sandbox import IsolatedSandboxes
    from tests.sandbox.workload import seen

    root, url, act, given = sys.argv[1:]

    async def main():
        backend = IsolatedSandboxes(root, export=url, keys="env:EXPORT_KEY")
        sandbox = backend.open("acme", "t")
        if act == "take":
            ran = await sandbox.run(given)
            assert ran.code == 0, ran.errors
            snapshot = await sandbox.take()
            await sandbox.make_durable(snapshot)
        else:
            snapshot = given
            await sandbox.restore(snapshot)
        print(json.dumps([snapshot, await seen(sandbox)]))
        backend.close()

    asyncio.run(main())
""")


def changed(files):
    """Return what is not of the base: of that, root's owner is another one for other workers."""
    tops = ("/workspace/", "/opt/")
    return {path: line for path, line in files.items() if path.startswith(tops)} | {
        "cache": "/var/cache" in files
    }


@pytest.fixture
def as_nobody(is_root, tmp_path):
    """Run the child as a user without rights; returns (snapshot, its files)."""
    if not is_root:
        pytest.skip("only root can be both users")
    folder = Path("/var/tmp") / f"perdure-drivers-{os.getpid()}"
    folder.mkdir(mode=0o700)
    os.chown(folder, NOBODY, NOBODY)
    env = {
        "PATH": "/usr/bin:/bin",
        "HOME": str(folder),
        "EXPORT_KEY": KEY,
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONPATH": os.pathsep.join(
            [str(REPOSITORY / "src"), str(REPOSITORY), sysconfig.get_paths()["purelib"]]
        ),
    }

    def run(act, given):
        for path in [folder / "objects", *(folder / "objects").rglob("*")]:
            if path.exists():
                os.chown(path, NOBODY, NOBODY)
        url = (folder / "objects").as_uri()
        done = subprocess.run(
            [PYTHON, "-c", CHILD, str(folder / "boxes"), url, act, given],
            user=NOBODY, group=NOBODY, extra_groups=[], env=env, cwd="/",
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if "can't be built on this host" in done.stderr or "No module named" in done.stderr:
            pytest.skip(f"NOT TESTED: nobody can't run sandboxes here: {done.stderr[-300:]}")
        assert done.returncode == 0 or act == "fails", done.stderr[-3000:]
        return done.stderr if act == "fails" else json.loads(done.stdout)

    run.objects = folder / "objects"
    yield run
    subprocess.run(["/bin/rm", "-rf", str(folder)], check=True)


async def test_of_root_for_nobody(as_nobody, hosts):
    sandbox = hosts("a", export=as_nobody.objects.as_uri()).open("acme", "t")
    assert (await sandbox.run(f"{FILL}; chmod 0 closed")).code == 0
    snapshot = await sandbox.take()
    await sandbox.make_durable(snapshot)
    _, files = as_nobody("restore", snapshot)
    assert changed(files) == changed(await seen(sandbox))


async def test_of_nobody_for_root(as_nobody, hosts):
    snapshot, files = as_nobody("take", FILL)
    sandbox = hosts("a", export=as_nobody.objects.as_uri()).open("acme", "t")
    await sandbox.restore(snapshot)
    assert changed(await seen(sandbox)) == changed(files)


async def test_files_of_users_that_are_not_there_are_refused(as_nobody, hosts):
    sandbox = hosts("a", export=as_nobody.objects.as_uri()).open("acme", "t")
    assert (await sandbox.run("echo 1 > f; chown 33:33 f")).code == 0
    snapshot = await sandbox.take()
    await sandbox.make_durable(snapshot)
    assert "files of user or group 33" in as_nobody("fails", snapshot)


async def test_what_is_closed_to_its_own_user_says_so(hosts, is_root):
    sandbox = hosts("a").open("acme", "t")
    await sandbox.run("mkdir d; echo 1 > d/f; chmod 0 d")
    snapshot = await sandbox.take()
    if is_root:
        await sandbox.make_durable(snapshot)
        return
    with pytest.raises(UsageError, match="closed to its own user"):
        await sandbox.make_durable(snapshot)
