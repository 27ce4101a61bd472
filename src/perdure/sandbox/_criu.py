"""Images of processes in snapshots: which CRIU takes them, and which of them may be brought back.

An image says what memory, registers and descriptors processes have, and CRIU, which is root, makes
it so: who writes an image decides what is executed. So images are used on the host and in the boot
that they were taken in, and by nobody else: what is brought back has a seal, a keyed digest over
every file, made with a key that this host has until its next start and that is kept apart from the
images. The seal names the snapshot, too, and what its processes are made for: kernel, CRIU, base,
user and filter. An image of another host, boot or snapshot, or one that was changed, is not opened.
"""

import hashlib
import hmac
import json
import os
import re
import subprocess
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from msgspec import Struct

from perdure.errors import UsageError
from perdure.sandbox._disk import boot_id
from perdure.sandbox.limits import (
    CRIU_LOOK_S,
    IMAGES_BYTES_MAX,
    IMAGES_FILES_MAX,
    SEAL_BYTES_MAX,
    SEAL_CHUNK_BYTES,
    SEAL_OS_THREADS,
)

VERSION_MIN = (4, 2)
"""Earlier ones fail on kernels of today: 3.17 since Linux 6.13, 4.1 with sockets since 6.16."""
KEYS = Path("/run/perdure")
"""Where the key of this boot is: a folder that a start of the host empties, or that is found out
to be older by the boot that the seal names."""
KEY_BYTES = 32
SEAL = "seal.json"
NAMELESS = ("ghost-file", "remap-fpath")
"""Images of files that have no name any more."""
FORMAT = 1
"""Version of the seal."""


class Criu(Struct, frozen=True, kw_only=True):
    """A CRIU that can be used here. `program`: path; `version`: as it says."""

    program: str
    version: str


def usable(program: str) -> Criu:
    """Return the CRIU at a path.

    Raises:
        UsageError: it can't be used here; says why.
    """
    if os.geteuid() != 0:
        msg = "images of processes are taken by root only; run workers as root, or without criu="
        raise UsageError(msg)
    said = _asked(program, "--version")
    found = re.search(r"Version: (\d+)\.(\d+)(?:\.(\d+))?", said)
    if found is None:
        msg = f"{program} is no CRIU: it says {said[:100]!r}"
        raise UsageError(msg, path=program)
    version = ".".join(part for part in found.groups() if part)
    if (int(found[1]), int(found[2])) < VERSION_MIN:
        msg = f"{program} is CRIU {version}; images of processes need 4.2 or newer: make criu"
        raise UsageError(msg, path=program)
    return Criu(program=str(Path(program).absolute()), version=version)


def _asked(program: str, option: str) -> str:
    try:
        done = subprocess.run(  # noqa: S603  # a program that the caller named
            [program, option], capture_output=True, timeout=CRIU_LOOK_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        msg = f"CRIU can't be run at {program}: {error}. Get one with: make criu"
        raise UsageError(msg, path=program) from error
    return (done.stdout + done.stderr).decode("utf-8", "replace")


def host() -> dict[str, str]:
    """Return what names this boot of this host, for a seal."""
    return {"boot": boot_id(), "kernel": os.uname().release, "machine": os.uname().machine}


def key_of_boot(keys: Path = KEYS) -> bytes:
    """Return this boot's key, made if there is none.

    Raises:
        UsageError: the folder is not root's alone; nothing was made.
    """
    keys.mkdir(mode=0o700, exist_ok=True)
    folder = os.open(keys, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        seen = os.fstat(folder)
        if seen.st_uid != os.geteuid() or seen.st_mode & 0o077:
            msg = f"{keys} is not this user's alone; no images of processes are taken or used"
            raise UsageError(msg, path=str(keys))
        name, fresh = f"images.{boot_id()}", f"fresh.{os.getrandom(8).hex()}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(fresh, flags, 0o600, dir_fd=folder), "wb") as file:
            file.write(os.getrandom(KEY_BYTES))  # of the kernel: a secret is nobody's to steer
        try:
            os.link(fresh, name, src_dir_fd=folder, dst_dir_fd=folder)  # whole, or not at all
        except FileExistsError:
            pass  # another worker of this boot has made it
        finally:
            os.unlink(fresh, dir_fd=folder)
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(name, flags, dir_fd=folder), "rb") as file:
            return file.read(KEY_BYTES)
    finally:
        os.close(folder)


# -- the seal --------------------------------------------------------------------------------------


def seal(folder: Path, said: Mapping[str, str], key: bytes) -> int:
    """Seal the images in a folder; return their bytes.

    Args:
        folder: of files, written by CRIU, that nobody else can write to.
        said: what they are of and for; asked for again by `why_unfit`.
        key: see `key_of_boot`.

    Raises:
        UsageError: they are more than is kept; the caller removes them.
    """
    files = _files(folder)
    if nameless := [name for name in files if name.startswith(NAMELESS)]:
        msg = f"they have files without a name ({nameless[0]}), which would be made by their paths"
        raise UsageError(msg)
    size = sum(each for each, _digest in files.values())
    if size > IMAGES_BYTES_MAX:
        msg = f"images of processes have {size} bytes, more than {IMAGES_BYTES_MAX}"
        raise UsageError(msg)
    sealed = {"format": FORMAT, "said": dict(said), "files": files}
    sealed["seal"] = _digest(sealed, key)
    (folder / SEAL).write_bytes(json.dumps(sealed).encode())
    return size


def why_unfit(folder: Path, said: Mapping[str, str], key: bytes) -> str:
    """Return why images may not be brought back; empty: they may.

    Args:
        folder: of the images.
        said: what they must be of and for.
        key: see `key_of_boot`.
    """
    try:
        with (folder / SEAL).open("rb") as file:
            sealed = json.loads(file.read(SEAL_BYTES_MAX))
        given = bytes.fromhex(sealed.pop("seal"))
        is_ours = hmac.compare_digest(given, bytes.fromhex(_digest(sealed, key)))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return "they have no seal that can be read"
    if not is_ours:
        boot = sealed.get("said", {}).get("boot") if isinstance(sealed.get("said"), dict) else None
        if boot != said.get("boot"):
            return "they were taken by another host, or before its last start"
        return "their seal is not of this host's key: they were changed, or are another's"
    for name, value in said.items():
        if sealed["said"].get(name) != value:
            return f"they are for {name} {sealed['said'].get(name)!r}, this is {value!r}"
    if sealed["format"] != FORMAT:
        return f"their seal has format {sealed['format']}, this Perdure reads {FORMAT}"
    try:
        now = _files(folder)
    except (OSError, UsageError) as error:
        return f"they can't be read: {error}"
    wanted = {name: tuple(each) for name, each in sealed["files"].items()}
    changed = sorted(name for name in {*wanted, *now} if wanted.get(name) != now.get(name))
    return f"{changed[0]} was changed after they were taken" if changed else ""


def _digest(sealed: Mapping[str, object], key: bytes) -> str:
    content = json.dumps(sealed, sort_keys=True, separators=(",", ":")).encode()
    return hmac.new(key, content, "sha256").hexdigest()


def _files(folder: Path) -> dict[str, tuple[int, str]]:
    """Return the size and digest of each file.

    The digest is that of the digests of its chunks, which are made by several OS threads at once.
    """
    with os.scandir(folder) as entries:
        names = sorted(entry.name for entry in entries if entry.name != SEAL)
    if len(names) > IMAGES_FILES_MAX:
        msg = f"{folder} has more than {IMAGES_FILES_MAX} files"
        raise UsageError(msg)
    found = {}
    with ThreadPoolExecutor(SEAL_OS_THREADS) as pool:
        for name in names:
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            descriptor = os.open(folder / name, flags)
            try:
                size = os.fstat(descriptor).st_size
                starts = range(0, size, SEAL_CHUNK_BYTES)
                chunks = pool.map(lambda at, fd=descriptor: _chunk(fd, at), starts)
                whole = hashlib.sha256(b"".join(chunks)).hexdigest()
            finally:
                os.close(descriptor)
            found[name] = (size, whole)
    return found


def _chunk(descriptor: int, at: int) -> bytes:
    return hashlib.sha256(os.pread(descriptor, SEAL_CHUNK_BYTES, at)).digest()
