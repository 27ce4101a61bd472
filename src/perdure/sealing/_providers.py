"""Where the keys come from that wrap data keys: a variable, a file, or an installed plug-in.

A provider's key never touches data: it wraps the data keys of a store, and the store keeps those
wrapped. So a rotation wraps them anew and rewrites no data, and a key service (KMS) is asked once
for each thread that a process works on.
"""

import base64
import binascii
import os
import re
import stat
from collections.abc import Callable, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from perdure.clock import Entropy, Services
from perdure.codec import KEY_BYTES, NONCE_BYTES, DataKey, key_id_of
from perdure.errors import KeyMissing, SealBroken, SettingInvalid
from perdure.sealing.limits import KEY_FILE_BYTES_MAX, PROVIDER_KEYS_MAX

_ID = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_ENTRY = re.compile(r"[\s,]+")


@runtime_checkable
class KeyProvider(Protocol):
    """A source of keys that wrap data keys.

    It must not put a key, or a data key, into logs, errors or its `repr`.
    """

    async def current(self) -> str:
        """Return the id of the key that new data keys are wrapped with: 1 to 64 characters."""
        ...

    async def wrap(self, data_key: bytes, *, key_id: str, context: bytes) -> bytes:
        """Return a data key of 32 bytes as it may be stored.

        Args:
            data_key: what is wrapped.
            key_id: with which key.
            context: where it belongs; the same must be given to unwrap it.

        Raises:
            KeyMissing: there is no such key.
        """
        ...

    async def unwrap(self, wrapped: bytes, *, key_id: str, context: bytes) -> bytes:
        """Return what `wrap` was given.

        Raises:
            KeyMissing: there is no such key.
            SealBroken: it was not wrapped with that key, or not in that context.
        """
        ...


class LocalKeys:
    """Keys that this process has in memory."""

    def __init__(self, place: str, keys: Sequence[tuple[str, bytes]], entropy: Entropy) -> None:
        """Take keys of 32 bytes with their ids, the newest last; `place`: where they are from."""
        self._place = place
        self._keys = {name: DataKey(_seal_id(name), key) for name, key in keys}
        self._current = keys[-1][0]
        self._entropy = entropy

    def __repr__(self) -> str:
        return f"LocalKeys({self._place}: {', '.join(self._keys)})"

    async def current(self) -> str:
        """Return the id of the newest key."""
        return self._current

    async def wrap(self, data_key: bytes, *, key_id: str, context: bytes) -> bytes:
        """Return the data key sealed with a key; see `KeyProvider.wrap`."""
        key = self._key(key_id)
        return key.seal(data_key, ("perdure data key", context), self._entropy(NONCE_BYTES))

    async def unwrap(self, wrapped: bytes, *, key_id: str, context: bytes) -> bytes:
        """Return the data key; see `KeyProvider.unwrap`."""
        key = self._key(key_id)
        if key_id_of(wrapped) != key.id:
            msg = f"it was not wrapped by the key {key_id!r}"
            raise SealBroken(msg, key_id=key_id)
        return key.unseal(wrapped, ("perdure data key", context))

    def _key(self, key_id: str) -> DataKey:
        if key_id not in self._keys:
            msg = (
                f"the key {key_id!r} is needed, and {self._place} has {', '.join(self._keys)}; "
                "nothing was written. Add that key, or name the place that has it (--keys)"
            )
            raise KeyMissing(msg, key_id=key_id, known=list(self._keys))
        return self._keys[key_id]


def _seal_id(name: str) -> bytes:
    return sha256(name.encode()).digest()[:12]


def new_key(entropy: Entropy) -> str:
    """Return a new key as `env:` and `file:` take it: its id, a colon, and the key in base64."""
    key = entropy(KEY_BYTES)
    return f"{_fingerprint(key)}:{base64.b64encode(key).decode()}"


def _fingerprint(key: bytes) -> str:
    """Return the id of a key that was given none; it says nothing of a key of 256 random bits."""
    return f"k_{sha256(b'perdure key id' + key).hexdigest()[:12]}"


def parse_keys(text: str, place: str) -> list[tuple[str, bytes]]:
    """Return (id, key) of each entry: `ID:BASE64` or `BASE64`, split by commas or white space.

    Args:
        text: the entries, the newest last; from `#` to its end a line is a comment.
        place: where they are from, for the errors: no error shows an entry.

    Raises:
        SettingInvalid: none, too many, one that is not 32 bytes of base64, or an id twice.
    """
    lines = [line.partition("#")[0] for line in text.splitlines()]
    entries = [entry for line in lines for entry in _ENTRY.split(line) if entry]
    if not 1 <= len(entries) <= PROVIDER_KEYS_MAX:
        msg = (
            f"{place} has {len(entries)} keys (possible: 1 to {PROVIDER_KEYS_MAX}); nothing was "
            "written. 'perdure keys new' makes one"
        )
        raise SettingInvalid(msg, place=place)
    keys: dict[str, bytes] = {}
    for number, entry in enumerate(entries, 1):
        name, key = _parsed(entry, f"{place}, entry {number}")
        if name in keys:
            msg = f"{place} has two keys with the id {name!r}; nothing was written"
            raise SettingInvalid(msg, place=place, key_id=name)
        keys[name] = key
    return list(keys.items())


def _parsed(entry: str, place: str) -> tuple[str, bytes]:
    name, colon, encoded = entry.rpartition(":")
    try:
        key = base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if len(key) != KEY_BYTES or (colon and not _ID.fullmatch(name)):
        msg = (
            f"{place}: must be {KEY_BYTES} bytes in base64, or an id (letters, digits, '_', '.', "
            "'-'), a colon, and those; nothing was written. 'perdure keys new' makes one"
        )
        raise SettingInvalid(msg, place=place) from None  # the cause would show what was given
    return name or _fingerprint(key), key


def _of_variable(rest: str, services: Services) -> KeyProvider:
    text = os.environ.get(rest)
    if not text:
        msg = f"env:{rest}: the variable {rest!r} is not set, or empty; nothing was written"
        raise SettingInvalid(msg, variable=rest)
    if len(text) > KEY_FILE_BYTES_MAX:
        msg = f"env:{rest}: more than {KEY_FILE_BYTES_MAX} characters; nothing was written"
        raise SettingInvalid(msg, variable=rest)
    return LocalKeys(f"env:{rest}", parse_keys(text, f"env:{rest}"), services.entropy)


def _of_file(rest: str, services: Services) -> KeyProvider:
    path = Path(rest)
    text = read_key_file(path)
    return LocalKeys(f"file:{path}", parse_keys(text, f"file:{path}"), services.entropy)


def read_key_file(path: Path) -> str:
    """Return what is in a file of keys.

    Raises:
        SettingInvalid: it can't be read, or others than its owner may read it.
    """
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            content = file.read(KEY_FILE_BYTES_MAX + 1)
    except OSError as error:
        msg = (
            f"file:{path}: {error.strerror}; nothing was written. 'perdure keys new --file {path}' "
            "makes it"
        )
        raise SettingInvalid(msg, path=str(path)) from error
    if not stat.S_ISREG(status.st_mode) or status.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        msg = (
            f"file:{path} has mode {stat.S_IMODE(status.st_mode):04o}, and nobody but its owner "
            f"may reach keys; nothing was written. Run: chmod 600 {path}"
        )
        raise SettingInvalid(msg, path=str(path))
    if len(content) > KEY_FILE_BYTES_MAX:
        msg = f"file:{path} has more than {KEY_FILE_BYTES_MAX} bytes; nothing was written"
        raise SettingInvalid(msg, path=str(path))
    return content.decode("utf-8", "replace")


_BUILT_IN: dict[str, Callable[[str, Services], KeyProvider]] = {
    "env": _of_variable,
    "file": _of_file,
}


def make_keys(spec: str | KeyProvider, services: Services) -> KeyProvider:
    """Return the provider that a text names: `env:NAME`, `file:PATH`, or a plug-in's scheme.

    A plug-in (of a key service) is a function `(rest of the text, services) -> KeyProvider` in the
    entry point group `perdure.keys`, under its scheme.

    Raises:
        SettingInvalid: there is no such scheme, variable or file, or it holds no keys.
    """
    if not isinstance(spec, str):
        return spec
    scheme, colon, rest = spec.partition(":")
    if colon and scheme in _BUILT_IN:
        return _BUILT_IN[scheme](rest, services)
    from importlib.metadata import entry_points  # noqa: PLC0415  # costs start-up time

    plug_ins = {point.name: point for point in entry_points(group="perdure.keys")}
    if colon and scheme in plug_ins:
        made: Any = plug_ins[scheme].load()(rest, services)
        return made  # type: ignore[no-any-return]  # a plug-in's word
    known = ", ".join(f"{name}:" for name in sorted([*_BUILT_IN, *plug_ins]))
    # Not shown: somebody may have given the key itself.
    msg = (
        f"keys must be named as 'env:NAME' or 'file:PATH' (known: {known}), and what was given "
        f"begins with none of them; nothing was written"
    )
    raise SettingInvalid(msg, known=known)
