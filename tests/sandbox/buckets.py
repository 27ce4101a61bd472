"""Servers of buckets for tests: real processes, each with an empty bucket for whoever asks.

moto's server, in an environment of its own (`make test-s3`; PERDURE_S3_PYTHON: its interpreter),
and rclone, which ignores conditions (PERDURE_RCLONE: the program). They are asked by a bare client.
"""

import importlib.util
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import contextmanager

import pytest

KEY, SECRET = "perdure-test-key", "perdure-test-secret"
STARTED_S = 60


def _python():
    """Return an interpreter that has moto's server; None: there is none."""
    named = os.environ.get("PERDURE_S3_PYTHON")
    if named:
        return named
    return sys.executable if importlib.util.find_spec("moto") else None


def _free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


@contextmanager
def _serving(command, port):
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"
    try:
        until = time.monotonic() + STARTED_S
        while True:
            try:
                urllib.request.urlopen(url, timeout=5).close()
                break
            except urllib.error.HTTPError:
                break  # it answers
            except OSError:
                assert process.poll() is None, f"it ended: {command}"
                assert time.monotonic() < until, f"it does not answer: {command}"
        yield url
    finally:
        process.kill()
        process.wait()


@contextmanager
def moto():
    """Serve buckets until the end of the block; yield the endpoint."""
    python = _python()
    if python is None:
        pytest.skip("moto's server is not installed: make test-s3")
    port = _free_port()
    with _serving([python, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)], port) as url:
        yield url


@contextmanager
def rclone(folder):
    """The same by a server that ignores If-None-Match; buckets are the folder's."""
    program = os.environ.get("PERDURE_RCLONE") or shutil.which("rclone")
    if program is None:
        pytest.skip("rclone is not installed: make test-s3")
    port = _free_port()
    keys = f"{KEY},{SECRET}"
    serve = [program, "serve", "s3", "--addr", f"127.0.0.1:{port}", "--auth-key", keys]
    with _serving([*serve, "--config", os.devnull, str(folder)], port) as url:
        yield url


def make_bucket(endpoint, name):
    """Make a bucket at moto's server, which asks for no signature."""
    request = urllib.request.Request(f"{endpoint}/{name}", method="PUT")  # noqa: S310  # a literal
    with urllib.request.urlopen(request, timeout=20) as answer:  # noqa: S310
        assert answer.status == 200
