"""Objects in a bucket of S3, or of what speaks like it.

    s3://BUCKET/PREFIX?endpoint=https://minio.internal:9000&region=eu-central-1

Theory: what is never to be replaced is put with `If-None-Match: *`, so that of two writers one
makes the object. A server that ignores that header would replace without a word; so the first
`put` of a process tries it, at an object of its own, and refuses such a server. Credentials are
those of the environment (`AWS_ACCESS_KEY_ID` ..., or the role of the machine), never of the URL.

Bodies are sent with their SHA-256, which the server compares. What is read is checked by those
above, who know what they put there.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from threading import Lock
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import obstore
from obstore import exceptions as failures
from obstore.store import S3Store

from perdure.clock import Services
from perdure.errors import NotFound, SettingInvalid, SnapshotBroken, SnapshotNotDurable
from perdure.sandbox.export._names import checked_name
from perdure.sandbox.limits import (
    OBJECTS_LISTED_MAX,
    S3_BACKOFF_S,
    S3_BACKOFF_S_MAX,
    S3_CONNECT_S,
    S3_REQUEST_S,
    S3_RETRIES_MAX,
    S3_RETRY_S,
)

_PROBE = ".perdure"
"""Object that conditional writes are tried at; no object's name begins with a full stop."""

_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_OPTIONS = frozenset({"endpoint", "region", "hosted"})
_LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})
_SAID = re.compile(r"<Code>(\w{1,64})</Code>")


class S3Objects:
    """Objects of a bucket whose names begin with a prefix."""

    def __init__(
        self,
        bucket: str,
        prefix: str = "",
        *,
        endpoint: str | None = None,
        region: str | None = None,
        is_hosted: bool = False,
    ) -> None:
        """Use a bucket; nothing is asked of it yet.

        Args:
            bucket: its name; it is there.
            prefix: of all names in it; may have `/`.
            endpoint: URL of the server; None: Amazon's, or that of `AWS_ENDPOINT_URL`.
            region: None: that of the environment.
            is_hosted: the bucket is a part of the host's name and not of the path.

        Raises:
            SettingInvalid: no bucket or prefix can be called so; or the endpoint is not encrypted,
                and of another host.
        """
        if not _BUCKET.fullmatch(bucket):
            msg = f"{bucket[:80]!r} can't be the name of a bucket; nothing was changed"
            raise SettingInvalid(msg)
        self._prefix = f"{checked_name(prefix)}/" if prefix else ""
        shown = f"?endpoint={endpoint}" if endpoint else ""
        self._place = f"s3://{bucket}/{self._prefix}{shown}"
        self._lock = Lock()
        self._is_tried = False
        self._store = _opened(bucket, endpoint, region, is_hosted=is_hosted)

    def __repr__(self) -> str:
        return f"S3Objects({self._place!r})"

    @property
    def place(self) -> str:
        """Return the bucket, the prefix and the endpoint, as a URL."""
        return self._place

    def put(self, name: str, content: bytes) -> bool:
        """Make an object unless there is one; see `ObjectStore.put`."""
        key = self._key(name)
        with self._serving("write to"):
            self._try()
            return self._create(key, content)

    def _create(self, key: str, content: bytes) -> bool:
        try:
            obstore.put(self._store, key, content, mode="create", use_multipart=False)
        except failures.AlreadyExistsError:
            return False
        return True

    def _try(self) -> None:
        """See that what is there is not replaced here, once in a process."""
        with self._lock:
            if self._is_tried:
                return
            key = f"{self._prefix}{_PROBE}"
            if self._create(key, b"") and self._create(key, b""):
                msg = (
                    f"{self._place} replaces objects that are there: it ignores If-None-Match, and "
                    "two hosts that export to it could lose snapshots; nothing was written. Use a "
                    "server that has conditional writes"
                )
                raise SnapshotNotDurable(msg, place=self._place)
            self._is_tried = True

    def get(self, name: str, *, bytes_max: int) -> bytes:
        """Return an object's bytes; see `ObjectStore.get`."""
        with self._serving("read from", name):
            found = obstore.get(self._store, self._key(name))
            length = int(found.meta["size"])
            if length > bytes_max:
                msg = (
                    f"the object {name!r} of {self._place} has {length} bytes, {bytes_max} at most "
                    "were put there; it was not read"
                )
                raise SnapshotBroken(msg, place=self._place, object=name)
            return bytes(found.bytes())

    def has(self, name: str) -> bool:
        """Return whether there is such an object; see `ObjectStore.has`."""
        with self._serving("read from"):
            try:
                obstore.head(self._store, self._key(name))
            except FileNotFoundError:
                return False
            return True

    def list(self, prefix: str, *, after: str = "", limit: int = OBJECTS_LISTED_MAX) -> list[str]:
        """Return names that begin with a prefix; see `ObjectStore.list`."""
        folder, _, _rest = prefix.rpartition("/")
        if folder:
            checked_name(folder)
        found: list[str] = []
        with self._serving("read from"):
            for name in self._names(folder, after if after >= prefix else prefix[:-1]):
                if not name.startswith(prefix):
                    if name > prefix:
                        break  # in order: none comes after it
                elif name > after:
                    found.append(name)
                if len(found) >= limit:
                    break
        return found

    def _names(self, folder: str, above: str) -> Iterator[str]:
        """Yield the names of a folder that are above a text, in order."""
        offset = f"{self._prefix}{above}" if above else None
        inside = f"{self._prefix}{folder}".rstrip("/") or None
        for page in obstore.list(self._store, inside, offset=offset, chunk_size=OBJECTS_LISTED_MAX):
            for found in page:
                name = str(found["path"]).removeprefix(self._prefix)
                if not name.startswith("."):
                    yield name

    def delete(self, name: str) -> None:
        """Remove an object; see `ObjectStore.delete`."""
        key = self._key(name)
        with self._serving("remove from"):
            try:
                obstore.delete(self._store, key)
            except FileNotFoundError:
                return

    def _key(self, name: str) -> str:
        return f"{self._prefix}{checked_name(name)}"

    @contextmanager
    def _serving(self, act: str, name: str = "") -> Iterator[None]:
        """Raise what the server or the network says as Perdure's errors."""
        try:
            yield
        except (failures.BaseError, OSError) as error:
            code = _SAID.search(str(error))
            said = code[1] if code else ""
            if isinstance(error, FileNotFoundError) and name and said in ("", "NoSuchKey"):
                msg = f"no object {name!r} in {self._place}"
                raise NotFound(msg, place=self._place, object=name) from error
            # The first line: what follows is for the driver's authors.
            told = said or str(error).partition("\n")[0][:300]
            msg = (
                f"can't {act} {self._place}: {told}; what was there is as it was, or all of it was "
                "done. Look at the bucket, its rights and the network, and try again"
            )
            raise SnapshotNotDurable(msg, place=self._place) from error


def _opened(bucket: str, endpoint: str | None, region: str | None, *, is_hosted: bool) -> S3Store:
    given: Any = {  # its type exists for type checkers only
        "checksum_algorithm": "SHA256",
        "virtual_hosted_style_request": is_hosted,
    }
    is_plain = False
    if endpoint is not None:
        parts = urlsplit(endpoint)
        is_plain = parts.scheme == "http" and parts.hostname in _LOOPBACK
        if not parts.hostname or parts.username or (parts.scheme != "https" and not is_plain):
            msg = (
                f"the endpoint {parts.scheme}://{parts.hostname} can't be used: write "
                "https://host[:port]; http:// is for servers of this host alone"
            )
            raise SettingInvalid(msg)
        given["endpoint"] = endpoint
    if region is not None:
        given["region"] = region
    try:
        return S3Store(
            bucket,
            config=given,
            client_options={
                "allow_http": is_plain,
                "connect_timeout": timedelta(seconds=S3_CONNECT_S),
                "timeout": timedelta(seconds=S3_REQUEST_S),
            },
            retry_config={
                "max_retries": S3_RETRIES_MAX,
                "retry_timeout": timedelta(seconds=S3_RETRY_S),
                "backoff": {
                    "init_backoff": timedelta(seconds=S3_BACKOFF_S),
                    "max_backoff": timedelta(seconds=S3_BACKOFF_S_MAX),
                    "base": 2,
                },
            },
        )
    except failures.BaseError as error:
        told = str(error).partition("\n")[0][:300]
        msg = f"the bucket {bucket!r} can't be used: {told}; nothing was changed"
        raise SettingInvalid(msg) from error


def of_url(url: str, _services: Services) -> S3Objects:
    """Return the place that a URL names: `s3://bucket/prefix?endpoint=URL&region=NAME&hosted=yes`.

    Raises:
        SettingInvalid: it names none, or has credentials or an option that there is not.
    """
    parts = urlsplit(url)
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    unknown = sorted(set(options) - _OPTIONS)
    if parts.username or parts.password:
        msg = (
            "credentials don't go into a URL, which is logged: set AWS_ACCESS_KEY_ID and "
            "AWS_SECRET_ACCESS_KEY; nothing was changed"
        )
        raise SettingInvalid(msg)
    if unknown or parts.fragment or options.get("hosted", "yes") not in ("yes", "no"):
        msg = (
            f"a bucket's URL has no option {', '.join(unknown) or 'of this value'}: write "
            "s3://bucket/prefix?endpoint=URL&region=NAME&hosted=yes; nothing was changed"
        )
        raise SettingInvalid(msg)
    return S3Objects(
        parts.netloc,
        parts.path.strip("/"),
        endpoint=options.get("endpoint"),
        region=options.get("region"),
        is_hosted=options.get("hosted") == "yes",
    )
