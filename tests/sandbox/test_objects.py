"""Places of exported snapshots: the folder, by the rules for all; and what only it has."""

import os
import signal
import sys
import textwrap

import pytest

from perdure.clock import system_services
from perdure.errors import SettingInvalid, SnapshotBroken, SnapshotNotDurable
from perdure.sandbox import FolderObjects
from perdure.sandbox.export import make_objects
from perdure.testing.objects import ObjectStoreConformance
from tests import warm


class TestFolder(ObjectStoreConformance):
    @pytest.fixture
    def make_objects(self, tmp_path):
        return lambda: FolderObjects(tmp_path / "objects")


WRITER = textwrap.dedent("""
    import os, signal, sys
    from perdure.sandbox import FolderObjects

    objects = FolderObjects(sys.argv[1])
    objects.put("before", b"1")
    link = os.link
    def die(*_args, **_kwargs):
        os.kill(os.getpid(), signal.SIGKILL)
    os.link = die
    objects.put("a/half", b"x" * 100_000)
""")


def test_a_writer_that_was_killed_leaves_nothing(tmp_path):
    done = warm.run(
        [sys.executable, "-c", WRITER, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.returncode == -signal.SIGKILL
    assert len(list((tmp_path / ".staging").iterdir())) == 1
    objects = FolderObjects(tmp_path)
    assert objects.list("") == ["before"]
    assert objects.put("a/half", b"whole")
    assert list((tmp_path / ".staging").iterdir()) == []
    assert objects.get("a/half", bytes_max=10) == b"whole"


def test_links_are_not_followed(tmp_path):
    objects = FolderObjects(tmp_path / "objects")
    objects.put("a/real", b"1")
    (tmp_path / "secret").write_bytes(b"secret")
    (tmp_path / "objects/a/link").symlink_to(tmp_path / "secret")
    with pytest.raises(SnapshotNotDurable):
        objects.get("a/link", bytes_max=100)
    os.mkfifo(tmp_path / "objects/a/pipe")
    with pytest.raises(SnapshotBroken):
        objects.get("a/pipe", bytes_max=100)


def test_a_place_that_cannot_serve_says_so(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    objects = FolderObjects(tmp_path / "file")
    with pytest.raises(SnapshotNotDurable, match="can't write to"):
        objects.put("a", b"")


@pytest.mark.parametrize(
    "url", ["file:relative", "file://host/path", "file:///", "s4://x", "/path", ""]
)
def test_what_names_no_place_is_refused(url):
    with pytest.raises(SettingInvalid):
        make_objects(url, system_services())


def test_a_url_names_a_folder(tmp_path):
    folder = tmp_path / "with space"
    objects = make_objects(folder.as_uri(), system_services())
    objects.put("a", b"1")
    assert (folder / "a").read_bytes() == b"1"
    assert objects.place == folder.as_uri()
