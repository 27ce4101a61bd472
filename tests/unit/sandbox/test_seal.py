"""Images of processes that were changed, or are of somewhere else, are not brought back."""

import json
import os

import pytest

from perdure.errors import UsageError
from perdure.sandbox import _criu
from perdure.sandbox._criu import SEAL, key_of_boot, seal, usable, why_unfit

SAID = {"boot": "b", "kernel": "6", "snapshot": "l_1"}
KEY = b"k" * 32


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "images"
    folder.mkdir()
    (folder / "core-1.img").write_bytes(b"registers")
    (folder / "pages-1.img").write_bytes(bytes(range(256)) * 100)
    seal(folder, SAID, KEY)
    return folder


def test_what_was_sealed_is_fit(folder):
    assert why_unfit(folder, SAID, KEY) == ""
    assert why_unfit(folder, {}, KEY) == "", "who asks for less gets no less"


@pytest.mark.parametrize("at", [0, 100, -1])
def test_a_changed_byte_is_found(folder, at):
    path = folder / "pages-1.img"
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)
    assert why_unfit(folder, SAID, KEY) == "pages-1.img was changed after they were taken"


def test_a_byte_beyond_the_first_chunk_is_found(folder, monkeypatch):
    monkeypatch.setattr(_criu, "SEAL_CHUNK_BYTES", 1000)
    seal(folder, SAID, KEY)
    assert why_unfit(folder, SAID, KEY) == ""
    path = folder / "pages-1.img"
    content = path.read_bytes()
    path.write_bytes(content[1000:2000] + content[:1000] + content[2000:])
    assert "pages-1.img" in why_unfit(folder, SAID, KEY)


def test_a_file_that_was_added_or_removed_or_is_a_link_now_is_found(folder):
    extra = folder / "core-2.img"
    extra.touch()
    assert "core-2.img" in why_unfit(folder, SAID, KEY)
    extra.unlink()
    (folder / "core-1.img").rename(folder.parent / "elsewhere")
    assert "core-1.img" in why_unfit(folder, SAID, KEY)
    (folder / "core-1.img").symlink_to(folder.parent / "elsewhere")
    assert "can't be read" in why_unfit(folder, SAID, KEY)


@pytest.mark.parametrize("name", ["kernel", "snapshot"])
def test_what_they_are_for_is_compared(folder, name):
    assert f"for {name}" in why_unfit(folder, {**SAID, name: "another"}, KEY)


def test_another_key_is_found_and_another_boot_is_said(folder):
    assert "not of this host's key" in why_unfit(folder, SAID, b"x" * 32)
    assert "last start" in why_unfit(folder, {**SAID, "boot": "c"}, b"x" * 32)


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"null", b'{"seal": 7}', b'{"seal": "zz"}', b"[" * 100_000],
)
def test_a_seal_that_is_none_is_refused(folder, content):
    (folder / SEAL).write_bytes(content)
    assert why_unfit(folder, SAID, KEY) == "they have no seal that can be read"


def test_a_seal_that_says_something_else_is_not_of_this_key(folder):
    sealed = json.loads((folder / SEAL).read_bytes())
    sealed["said"]["snapshot"] = "l_2"
    (folder / SEAL).write_text(json.dumps(sealed))
    assert "not of this host's key" in why_unfit(folder, {**SAID, "snapshot": "l_2"}, KEY)


def test_images_that_are_too_large_are_not_sealed(folder, monkeypatch):
    monkeypatch.setattr(_criu, "IMAGES_BYTES_MAX", 1000)
    with pytest.raises(UsageError, match="more than 1000"):
        seal(folder, SAID, KEY)


def test_the_key_is_made_once_and_is_nobody_elses(tmp_path):
    keys = tmp_path / "keys"
    first = key_of_boot(keys)
    assert len(first) == 32
    assert key_of_boot(keys) == first
    assert [path.stat().st_mode & 0o077 for path in keys.iterdir()] == [0]
    keys.chmod(0o755)
    with pytest.raises(UsageError, match="alone"):
        key_of_boot(keys)


@pytest.mark.skipif(os.geteuid() != 0, reason="NOT TESTED: who is no root is refused before")
@pytest.mark.parametrize(
    ("says", "match"),
    [("Version: 4.1.1", "4.2 or newer"), ("Version: 3.17", "4.2 or newer"), ("hello", "no CRIU")],
)
def test_an_old_criu_is_refused(tmp_path, says, match):
    program = tmp_path / "criu"
    program.write_text(f"#!/bin/sh\necho '{says}'\n")
    program.chmod(0o755)
    with pytest.raises(UsageError, match=match):
        usable(str(program))
