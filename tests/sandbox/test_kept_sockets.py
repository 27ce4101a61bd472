"""Sockets whose path is gone, in images of processes: CRIU is led through no link of a sandbox."""

import pytest

from tests.sandbox.kept import kept_sandboxes

pytestmark = pytest.mark.timeout(300)

BEGIN = """
import os, signal, socket
os.makedirs("/workspace/d")
one = socket.socket(socket.AF_UNIX)
one.bind("/workspace/d/sock")
one.listen()
"""
GO_ON = """
open("/workspace/ready", "w").close()
signal.pause()
"""
UNLINK = "os.unlink('/workspace/d/sock')\n"
TO_LINK = "os.rmdir('/workspace/d')\nos.symlink({outside!r}, '/workspace/d')\n"
MOVE = "os.rename('/workspace/d', '/workspace/e')\nos.symlink({outside!r}, '/workspace/d')\n"
NO_FOLDER = "os.rmdir('/workspace/d')\nopen('/workspace/d', 'w').close()\n"
LINE_END = (
    "two = socket.socket(socket.AF_UNIX)\ntwo.bind('/workspace/d/a\\n0: 1 2')\n"
    "os.unlink('/workspace/d/a\\n0: 1 2')\n"
)
LINKED = "os.rename('/workspace/d', '/workspace/e')\nos.symlink('e', '/workspace/d')\n"


@pytest.fixture
def sandbox(is_able, tmp_path):
    backend = kept_sandboxes(tmp_path / "sandboxes")
    yield backend.open("acme", "t")
    backend.close()


async def kept(sandbox, program: str):
    """Take a snapshot with a process of the program in it; return its layer, and what is lost."""
    await sandbox.write("/workspace/p.py", (BEGIN + program + GO_ON).encode())
    ran = await sandbox.run(
        "/usr/bin/python3 -I /workspace/p.py > /dev/null 2> errors & "
        "while ! [ -e ready -o -s errors ]; do :; done; cat errors"
    )
    assert ran.output == ""
    snapshot = await sandbox.take()
    layer = sandbox._ground.layers.layer(snapshot)
    ran = await sandbox.run("true")
    return layer, ran


@pytest.mark.parametrize(
    "program",
    [UNLINK + TO_LINK, MOVE, UNLINK + NO_FOLDER, LINE_END],
    ids=["unlinked", "moved", "no_folder", "line_end"],
)
async def test_a_path_that_leads_elsewhere_is_refused_before_criu_is_asked(
    sandbox, tmp_path, program
):
    outside = tmp_path / "outside"
    outside.mkdir()
    layer, ran = await kept(sandbox, program.format(outside=str(outside)))
    assert not layer.has_images
    assert "a socket" in layer.why_none
    assert ran.left == ()
    assert [each.partition(" (pid")[0] for each in ran.lost] == [
        "/usr/bin/python3 -I /workspace/p.py"
    ]
    assert [*outside.iterdir()] == []


@pytest.mark.parametrize(
    "program",
    ["", UNLINK, UNLINK + "os.rmdir('/workspace/d')\n", LINKED],
    ids=["there", "unlinked", "without_folder", "by_a_link"],
)
async def test_other_sockets_are_kept(sandbox, program):
    layer, ran = await kept(sandbox, program)
    assert (layer.has_images, ran.lost) == (True, ())
    assert ran.left == ("/usr/bin/python3 -I /workspace/p.py",)
