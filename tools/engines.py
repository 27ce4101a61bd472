"""Puts a Docker Engine under `.engines/`, without installing anything, and runs it for tests.

Debian's packages are fetched by apt and unpacked, not installed: the host's package database stays
as it is. The engine runs as root in a mount namespace of its own, with its own data, socket and
control groups beside those of any other engine of the host, and dies with whoever started it.

    python tools/engines.py            fetch, unpack, start once, say what there is
    python tools/engines.py -- CMD     run a command with DOCKER_HOST and PATH of a running engine

Each engine that runs has a slot: its images are kept there for the next one, its containers are
not.
"""

import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType

ROOT = Path(__file__).resolve().parents[1]
PLACE = (ROOT / ".engines").resolve()
PACKAGES = ("docker.io", "containerd", "runc", "tini")
NEEDED = ("usr/sbin/dockerd", "usr/bin/tini-static")
SLOTS = 8
FETCH_S = 300
START_S = 60
STOP_S = 30
CAP_SYS_ADMIN = 21


class Missing(Exception):
    """What keeps an engine from running here."""


def prepare() -> Path:
    """Return the folder of the unpacked engine; fetched once, also if several processes ask.

    Raises:
        Missing: not root, no apt, or the packages can't be had.
    """
    return fetched("docker", PACKAGES, NEEDED)


def fetched(
    name: str,
    packages: tuple[str, ...],
    needed: tuple[str, ...],
    links: Mapping[str, str] = MappingProxyType({}),
) -> Path:
    """Return a folder with these packages unpacked, also if several processes ask at once.

    Args:
        name: of the folder.
        packages: Debian's.
        needed: files that show that it is whole.
        links: names of links to be there, with what they lead to: what Debian's choice of
            alternatives would make.

    Raises:
        Missing: not root, no apt, or the packages can't be had.
    """
    if os.geteuid() != 0 or not _may_mount():
        msg = "it takes root with CAP_SYS_ADMIN"
        raise Missing(msg)
    PLACE.mkdir(exist_ok=True)
    with (PLACE / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not all((PLACE / name / each).is_file() for each in needed):
            _fetch(PLACE / name, packages)
        for link, target in links.items():
            if not (PLACE / name / link).is_symlink():
                (PLACE / name / link).symlink_to(target)
    return PLACE / name


def _may_mount() -> bool:
    status = Path("/proc/self/status").read_text(encoding="ascii")
    found = re.search(r"^CapEff:\s*(\w+)$", status, re.MULTILINE)
    return bool(found and int(found[1], 16) >> CAP_SYS_ADMIN & 1)


def _fetch(target: Path, packages: tuple[str, ...]) -> None:
    for program in ("apt-get", "dpkg", "unshare", "setpriv"):
        if shutil.which(program) is None:
            msg = f"this host has no {program}"
            raise Missing(msg)
    with tempfile.TemporaryDirectory(dir=PLACE) as at:
        try:
            _run(["apt-get", "download", "-qq", *packages], cwd=at)
        except Missing:  # a fresh image has no lists
            _run(["apt-get", "update", "-qq"], cwd=at)
            _run(["apt-get", "download", "-qq", *packages], cwd=at)
        fresh = Path(at, "unpacked")
        for package in sorted(Path(at).glob("*.deb")):
            _run(["dpkg", "-x", str(package), str(fresh)], cwd=at)
        shutil.rmtree(target, ignore_errors=True)
        fresh.rename(target)


@contextmanager
def running() -> Iterator[dict[str, str]]:
    """Run an engine, and give the variables that its clients need: DOCKER_HOST and PATH.

    What is left of an engine of the same slot that was killed is removed first: containers,
    networks and volumes; never images.

    Raises:
        Missing: it can't be had, or does not start; the text is what it said.
    """
    unpacked = prepare()
    with slot("slot") as (number, lock):
        short = short_folder(f"pe-{number}")
        try:
            engine = _start(unpacked, PLACE / f"data-{number}", short, lock)
            path = f"{unpacked}/usr/bin:{unpacked}/usr/sbin:{os.environ['PATH']}"
            environment = {
                "DOCKER_HOST": f"unix://{short}/d.sock",
                "PATH": path,
                "DOCKER_BUILDKIT": "0",
            }
            try:
                _await(engine, short, environment)
                _empty(environment)
                yield environment
                _empty(environment)
            finally:
                _stop(engine)
        finally:
            shutil.rmtree(short, ignore_errors=True)


def short_folder(name: str, *, is_kept: bool = False) -> Path:
    """Make a folder for sockets, whose paths have 108 bytes at most; this clone may lie deep.

    Below /run, where only root writes, its name is always the same, so that none is left for ever.
    `is_kept`: with what one that was killed left there.
    """
    if not os.access("/run", os.W_OK):
        return Path(tempfile.mkdtemp(prefix=f"{name}-"))
    folder = Path(f"/run/{name}-{hashlib.sha256(str(PLACE).encode()).hexdigest()[:8]}")
    if not is_kept:
        shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o700, exist_ok=is_kept)
    return folder


@contextmanager
def slot(name: str) -> Iterator[tuple[int, int]]:
    """Take a free slot; the engine inherits its lock, so that it is held until that has ended."""
    for number in range(SLOTS):
        with (PLACE / f"{name}-{number}.lock").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            yield number, file.fileno()
            return
    msg = f"{SLOTS} engines run already"
    raise Missing(msg)


def _start(unpacked: Path, data: Path, short: Path, lock: int) -> "subprocess.Popen[bytes]":
    """Start it in a mount namespace without the unified hierarchy, which confuses version 20.

    `setpriv` lets it die with us; the words after `bash -c` are arguments, so that no path is code.
    """
    script = (
        "if mountpoint -q /sys/fs/cgroup/unified; then umount /sys/fs/cgroup/unified; fi; "
        'PATH="$1/usr/bin:$1/usr/sbin:$PATH" exec dockerd --data-root "$2" --exec-root "$3/x" '
        '--pidfile "$3/pid" --host "unix://$3/d.sock" --iptables=false --ip6tables=false '
        "--bridge=none --default-ulimit nofile=1024:1024 --default-ulimit nproc=1024:1024 "
        "--log-level warn"
    )
    program = shutil.which("setpriv") or "setpriv"
    with (short / "log").open("wb") as log:
        return subprocess.Popen(
            [program, "--pdeathsig", "TERM", "unshare", "--mount", "bash", "-c", script, "engine",
             str(unpacked), str(data), str(short)],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, pass_fds=(lock,),
            start_new_session=True,
        )  # fmt: skip


def _await(engine: "subprocess.Popen[bytes]", short: Path, environment: dict[str, str]) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        if engine.poll() is not None:
            break
        if _docker(environment, "version").returncode == 0:
            return
        time.sleep(0.1)
    said = (short / "log").read_text(encoding="utf-8", errors="replace").strip().splitlines()
    msg = f"dockerd does not start: {' / '.join(said[-3:])[-600:]}"
    raise Missing(msg)


def _empty(environment: dict[str, str]) -> None:
    """Remove containers, networks and volumes: the engine is ours alone."""
    for container in _docker(environment, "ps", "--all", "--quiet").stdout.split():
        _docker(environment, "rm", "--force", "--volumes", container)
    networks = _docker(environment, "network", "ls", "--quiet", "--filter", "type=custom")
    for network in networks.stdout.split():
        _docker(environment, "network", "rm", network)
    for volume in _docker(environment, "volume", "ls", "--quiet").stdout.split():
        _docker(environment, "volume", "rm", "--force", volume)


def _docker(environment: dict[str, str], *words: str) -> "subprocess.CompletedProcess[str]":
    program = shutil.which("docker", path=environment["PATH"]) or "docker"
    return subprocess.run(
        [program, *words], env=os.environ | environment, capture_output=True, text=True, check=False
    )


def _stop(engine: "subprocess.Popen[bytes]") -> None:
    engine.terminate()
    try:
        engine.wait(STOP_S)
    except subprocess.TimeoutExpired:
        engine.kill()
        engine.wait()


def _run(command: list[str], cwd: str) -> str:
    try:
        done = subprocess.run(
            command, cwd=cwd, capture_output=True, text=True, timeout=FETCH_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        msg = f"{command[0]}: {error}"
        raise Missing(msg) from error
    if done.returncode != 0:
        msg = f"{' '.join(command[:2])} failed: {done.stderr.strip()[-500:]}"
        raise Missing(msg)
    return done.stdout


def main(arguments: list[str]) -> int:
    """Prepare and try, or run a command beside an engine."""
    try:
        with running() as environment:
            if arguments[:1] == ["--"]:
                return subprocess.run(
                    arguments[1:], env=os.environ | environment, check=False
                ).returncode
            found = json.loads(_docker(environment, "info", "--format", "{{json .}}").stdout)
            driver, version = found["Driver"], found["ServerVersion"]
            print(
                f"Docker Engine {version} ({driver}, control groups {found['CgroupVersion']}) runs"
            )
    except Missing as missing:
        print(f"NO DOCKER ENGINE HERE: {missing}", file=sys.stderr)
        print("Trials run as processes only; everything else works.", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
