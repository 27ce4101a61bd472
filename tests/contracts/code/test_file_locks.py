"""Locks of files: what the kernel gives back with a process, and what outlives it beside them."""

import pytest

BEGUN = """import fcntl
import json
import os
import subprocess

def app():
    handle = open("/data/a.lock", "w")
"""
TAKEN = "    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)\n"


def found(read, *lines, begun=BEGUN):
    """Return what an application takes that does this under its lock."""
    text = begun + TAKEN + "".join(f"{line}\n" for line in lines)
    return [one.what for one in read({"app.py": text}).leases]


@pytest.mark.parametrize(
    "lines",
    [
        (),
        ("    return handle",),
        ("    print(os.getpid())",),
        ("def other():", "    subprocess.Popen(['ls'])"),
    ],
)
def test_a_lock_alone_is_given_back_with_the_process(read, lines):
    assert found(read, *lines) == ["a lock of a file"]


@pytest.mark.parametrize(
    "lines",
    [
        ("    json.dump({'claimed': True}, open('/data/jobs.json', 'w'))",),
        ("    mark_claimed()",),
        ("    open('/data/owner.pid', 'x')",),
        ("    os.open('/data/owner', os.O_CREAT | os.O_EXCL)",),
        ("    subprocess.Popen(['worker'], pass_fds=[handle.fileno()])",),
        ("    os.set_inheritable(handle.fileno(), True)",),
        ("    yield handle",),
    ],
)
def test_what_outlives_the_process_beside_a_lock_makes_it_none(read, lines):
    assert found(read, *lines) == []


def test_what_is_called_before_a_lock_is_not_under_it(read):
    before = BEGUN + "    make_ready()\n"
    assert found(read, begun=before) == ["a lock of a file"]


def test_a_lock_that_somebody_else_opened_is_none(read):
    handed = BEGUN.replace('handle = open("/data/a.lock", "w")', "handle = inherited()")
    assert found(read, begun=handed) == []


def test_what_a_caller_writes_under_a_lock_makes_it_none(read):
    using = "from holding import hold\ndef app():\n    hold()\n    "
    files = {
        "holding.py": BEGUN.replace("app()", "hold()") + TAKEN + "    return handle\n",
        "app.py": using + "open('j', 'w').write('1')\n",
    }
    assert read(files).leases == ()
    alone = {**files, "app.py": using + "print(1)\n"}
    assert [one.what for one in read(alone).leases] == ["a lock of a file"]
