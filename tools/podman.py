"""Puts Podman under `.engines/`, without installing anything, and runs it for tests.

Debian's packages are fetched by apt and unpacked. Podman has no service: each command is a process,
and so is what starts a container again. So that all of them find their libraries, plug-ins and
settings, they run in a mount namespace in which the unpacked files lie over those of the host.

    python tools/podman.py            fetch, unpack, start once, say what there is
    python tools/podman.py -- CMD     run a command with a PATH that has this podman

Networks are bridges of the host, and ports are published by rules of its iptables (nft), as Podman
does on any host; at the end the containers, networks and volumes are gone, and the empty chains
NETAVARK* of the host stay.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tools.engines import PLACE, Missing, fetched, short_folder, slot

PACKAGES = (
    "podman", "catatonit", "conmon", "runc", "netavark", "iptables",
    "golang-github-containers-common", "golang-github-containers-image",
    "libassuan0", "libdevmapper1.02.1", "libglib2.0-0", "libgpgme11", "libip4tc2", "libip6tc2",
    "libmnl0", "libnetfilter-conntrack3", "libnfnetlink0", "libnftnl11", "libseccomp2",
    "libsubid4", "libxtables12",
)  # fmt: skip
"""Podman, what it starts, and what of their libraries not every Debian has."""

NEEDED = ("usr/bin/podman", "usr/bin/conmon", "usr/bin/catatonit", "usr/lib/podman/netavark")
LINKS = {"usr/sbin/iptables": "xtables-nft-multi", "usr/sbin/ip6tables": "xtables-nft-multi"}
COMMAND_S = 120
READY = b"ready\n"

SETTINGS = """\
[containers]
default_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]
log_driver = "k8s-file"
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
lock_type = "file"
runtime = "runc"
static_dir = "{data}/storage/libpod"
volume_path = "{data}/storage/volumes"
tmp_dir = "{short}/tmp"
[network]
network_backend = "netavark"
network_config_dir = "{data}/networks"
"""
STORAGE = """\
[storage]
driver = "overlay"
graphroot = "{data}/storage"
runroot = "{short}/run"
"""
"""`static_dir` is where `--root` puts it: what starts a container again is told no more."""

NAMESPACE = """\
set -e
if mountpoint -q /sys/fs/cgroup/unified; then umount /sys/fs/cgroup/unified; fi
mount -t overlay overlay -o "lowerdir=$1/usr:/usr" /usr
mount -t overlay overlay -o "lowerdir=$2/etc:$1/etc:/etc" /etc
echo ready
exec sleep infinity
"""
"""The words after `bash -c` are arguments, so that no path is code."""

SHOWN = (
    "{{.Version.Version}} ({{.Store.GraphDriverName}}, {{.Host.OCIRuntime.Name}}, "
    "control groups {{.Host.CgroupsVersion}})"
)

COMMAND = """\
#!/bin/sh
exec nsenter --mount=/proc/{holder}/ns/mnt -- \\
    sh -c 'cd "$1" && shift && exec /usr/bin/podman "$@"' podman "$PWD" "$@"
"""


@contextmanager
def running() -> Iterator[dict[str, str]]:
    """Give a PATH with a `podman` whose storage is this slot's; images are kept for the next one.

    Raises:
        Missing: it can't be had, or starts no container; the text is what it said.
    """
    unpacked = fetched("podman", PACKAGES, NEEDED, LINKS)
    with slot("podman") as (number, lock):
        short = short_folder(f"pp-{number}", is_kept=True)  # what still runs is known from it
        _write_settings(PLACE / f"podman-data-{number}", short)
        holder = _hold(unpacked, short, lock)
        try:
            environment = _commands(short, holder.pid)
            _empty(environment)
            try:
                yield environment
            finally:
                _empty(environment)
        finally:
            holder.kill()
            holder.wait()
        shutil.rmtree(short, ignore_errors=True)


def _write_settings(data: Path, short: Path) -> None:
    data.mkdir(exist_ok=True)
    places = {"data": data, "short": short}
    settings = short / "etc/containers"
    settings.mkdir(parents=True, exist_ok=True)
    (settings / "containers.conf").write_text(SETTINGS.format(**places), encoding="utf-8")
    (settings / "storage.conf").write_text(STORAGE.format(**places), encoding="utf-8")


def _hold(unpacked: Path, short: Path, lock: int) -> "subprocess.Popen[bytes]":
    """Start what holds the namespace open; it dies with us."""
    program = shutil.which("setpriv") or "setpriv"
    holder = subprocess.Popen(
        [program, "--pdeathsig", "KILL", "unshare", "--mount", "bash", "-c", NAMESPACE, "podman",
         str(unpacked), str(short)],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        pass_fds=(lock,), start_new_session=True,
    )  # fmt: skip
    said = _first_line(holder)
    if said != READY:
        holder.kill()
        holder.wait()
        why = said.decode("utf-8", "replace").strip()
        msg = f"podman's files can't be laid over the host's: {why}"
        raise Missing(msg)
    return holder


def _first_line(holder: "subprocess.Popen[bytes]") -> bytes:
    if holder.stdout is None:
        return b""
    with holder.stdout as said:
        return said.readline()


def _commands(short: Path, holder: int) -> dict[str, str]:
    (short / "bin").mkdir(exist_ok=True)
    command = short / "bin/podman"
    command.write_text(COMMAND.format(holder=holder), encoding="utf-8")
    command.chmod(0o755)
    # Its network program calls `iptables`, which users have no path to.
    return {"PATH": f"{short / 'bin'}:{os.environ['PATH']}:/usr/sbin:/sbin"}


def _empty(environment: dict[str, str]) -> None:
    """Remove containers, networks and volumes: the storage is ours alone."""
    podman(environment, "rm", "--all", "--force", "--time", "0")
    podman(environment, "network", "prune", "--force")
    podman(environment, "volume", "prune", "--force")


def podman(environment: dict[str, str], *words: str) -> str:
    """Run one command of it, and return what it printed.

    Raises:
        Missing: it failed; the text is what it said.
    """
    program = shutil.which("podman", path=environment["PATH"]) or "podman"
    try:
        done = subprocess.run(
            [program, *words], env=os.environ | environment, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=COMMAND_S, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        msg = f"podman {' '.join(words[:2])} does not end within {COMMAND_S} s"
        raise Missing(msg) from error
    if done.returncode != 0:
        msg = f"podman {' '.join(words[:2])}: {done.stderr.strip()[-500:]}"
        raise Missing(msg)
    return done.stdout


def main(arguments: list[str]) -> int:
    """Prepare and try, or run a command beside it."""
    try:
        with running() as environment:
            if arguments[:1] == ["--"]:
                return subprocess.run(
                    arguments[1:], env=os.environ | environment, check=False
                ).returncode
            found = podman(environment, "info", "--format", SHOWN)
            print(f"Podman {found.strip()} runs")
    except Missing as missing:
        print(f"NO PODMAN HERE: {missing}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
