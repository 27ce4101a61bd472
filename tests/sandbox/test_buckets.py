"""Exports in a bucket: the rules of all places, on real servers; and what only a bucket has."""

import itertools
import socket
import threading

import pytest

from perdure.clock import system_services
from perdure.errors import NotFound, SnapshotBroken, SnapshotNotDurable, UsageError
from perdure.sandbox import make_objects
from perdure.testing.objects import ObjectStoreConformance
from tests.sandbox import buckets

obstore = pytest.importorskip("obstore")
pytestmark = pytest.mark.timeout(120)

_names = itertools.count()


@pytest.fixture(autouse=True)
def credentials(monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", buckets.KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", buckets.SECRET)
    monkeypatch.setenv("AWS_REGION", "us-east-1")


@pytest.fixture(scope="module")
def endpoint():
    with buckets.moto() as url:
        yield url


@pytest.fixture
def bucket(endpoint):
    name = f"bucket-{next(_names)}"
    buckets.make_bucket(endpoint, name)
    return name


def opened(url):
    return make_objects(url, system_services())


class TestBucket(ObjectStoreConformance):
    @pytest.fixture
    def make_objects(self, endpoint, bucket):
        return lambda: opened(f"s3://{bucket}?endpoint={endpoint}")


class TestPrefix(ObjectStoreConformance):
    @pytest.fixture
    def make_objects(self, endpoint, bucket):
        opened(f"s3://{bucket}/other?endpoint={endpoint}").put("a/b/1", b"not this one")
        opened(f"s3://{bucket}/one?endpoint={endpoint}").put("a/b/1", b"nor this one")
        return lambda: opened(f"s3://{bucket}/one/two?endpoint={endpoint}")


def test_a_server_that_replaces_is_refused(tmp_path):
    (tmp_path / "bucket-of-it").mkdir()
    with buckets.rclone(tmp_path) as endpoint:
        objects = opened(f"s3://bucket-of-it?endpoint={endpoint}")
        for _ in range(2):
            with pytest.raises(SnapshotNotDurable, match="ignores If-None-Match"):
                objects.put("a", b"1")
        assert objects.list("") == []
        with pytest.raises(NotFound):
            objects.get("a", bytes_max=1)


def test_a_bucket_that_is_not_there_is_no_empty_one(endpoint):
    objects = opened(f"s3://nobodys-bucket?endpoint={endpoint}")
    for act in (
        lambda: objects.put("a", b""),
        lambda: objects.get("a", bytes_max=1),
        lambda: objects.list(""),
    ):
        with pytest.raises(SnapshotNotDurable, match="NoSuchBucket"):
            act()


def test_a_server_that_does_not_answer_is_told(monkeypatch):
    from perdure.sandbox.export import _s3  # noqa: PLC0415  # only where the driver is

    monkeypatch.setattr(_s3, "S3_RETRIES_MAX", 1)
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    objects = opened(f"s3://some-bucket?endpoint=http://127.0.0.1:{port}")
    for act in (lambda: objects.put("a", b""), lambda: objects.has("a")):
        with pytest.raises(SnapshotNotDurable, match=f"some-bucket/.endpoint=.*:{port}"):
            act()


class Flaky(threading.Thread):
    """Between a client and a server: answers the first requests with 503, forwards the rest."""

    def __init__(self, to, failures):
        super().__init__(daemon=True)
        self.to, self.left = to, failures
        self.seen = 0
        self.server = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.server.getsockname()[1]}"

    def run(self):
        while True:
            try:
                client, _ = self.server.accept()
            except OSError:
                return
            self.seen += 1
            if self.left:
                self.left -= 1
                client.recv(1 << 16)
                client.sendall(b"HTTP/1.1 503 Slow Down\r\nContent-Length: 0\r\n\r\n")
                client.close()
                continue
            server = socket.create_connection(("127.0.0.1", self.to))
            for pair in ((client, server), (server, client)):
                threading.Thread(target=pour, args=pair, daemon=True).start()


def pour(source, target):
    try:
        while chunk := source.recv(1 << 16):
            target.sendall(chunk)
    except OSError:
        pass
    target.close()


def test_what_fails_for_a_moment_is_tried_again(endpoint, bucket):
    flaky = Flaky(int(endpoint.rpartition(":")[2]), failures=2)
    flaky.start()
    objects = opened(f"s3://{bucket}?endpoint={flaky.url}")
    assert objects.put("a", b"1")
    assert flaky.left == 0
    assert flaky.seen > 2
    flaky.server.close()
    assert opened(f"s3://{bucket}?endpoint={endpoint}").get("a", bytes_max=1) == b"1"


@pytest.mark.parametrize(
    "url",
    [
        "s3://",
        "s3://No_Bucket",
        "s3://key:secret@bucket/prefix",
        "s3://bucket/a/../b",
        "s3://bucket?unknown=1",
        "s3://bucket?hosted=perhaps",
        "s3://bucket?endpoint=http://example.org",
        "s3://bucket?endpoint=https://key:secret@example.org",
        "s3://bucket?endpoint=nothing",
    ],
)
def test_what_names_no_bucket_is_refused(url):
    with pytest.raises(UsageError) as caught:
        opened(url)
    assert "secret" not in str(caught.value)


def test_wrong_keys_are_told_without_them(tmp_path, monkeypatch):
    (tmp_path / "bucket-of-it").mkdir()
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another-secret")
    with buckets.rclone(tmp_path) as endpoint:
        objects = opened(f"s3://bucket-of-it?endpoint={endpoint}")
        with pytest.raises(
            SnapshotNotDurable, match=r"SignatureDoesNotMatch|AccessDenied"
        ) as caught:
            objects.put("a", b"1")
    assert "another-secret" not in str(caught.value)


async def test_another_host_restores_from_a_bucket(hosts, endpoint, bucket):
    url = f"s3://{bucket}/exports?endpoint={endpoint}"
    sandbox = hosts("a", export=url).open("acme", "t")
    await sandbox.run("seq 100000 > numbers; ln -s numbers link; echo 1 > one")
    snapshot = await sandbox.take()
    await sandbox.make_durable(snapshot)
    other = hosts("b", export=url).open("acme", "t")
    assert (await other.fetch()).snapshot == snapshot
    await other.restore(snapshot)
    assert (await other.run("tail -n 1 link; cat one")).output == "100000\n1\n"
    objects = opened(url)
    piece = next(name for name in objects.list("") if "/pieces/" in name)
    content = objects.get(piece, bytes_max=1 << 20)
    objects.delete(piece)
    objects.put(piece, content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(SnapshotBroken):
        await hosts("c", export=url).open("acme", "t").fetch()
