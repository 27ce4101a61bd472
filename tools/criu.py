"""Put CRIU 4.2 or newer under `.criu`, from Debian's sid suite, without installing anything.

Images of processes need it, and stable Debian has none that works with kernels of today: 3.17 fails
since Linux 6.13, 4.1 with sockets since 6.16 (see docs/decisions/0027). The packages come from the
mirror that this host is set up with, suite rewritten, with lists and caches of their own; they are
checked by apt against Debian's keyring. They are unpacked, not installed, and run by their own
dynamic loader, so that the host's libraries and package database stay as they are.

    python tools/criu.py            fetch, unpack, try
    python tools/criu.py --check    try what is there

Then `.criu/criu` is a program to name as PERDURE_CRIU or `IsolatedSandboxes(criu=...)`.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
TARGET = HERE.parent / ".criu"
SUITE = "sid"
VERSION_MIN = (4, 2)
SHIM = HERE / "criu_limits.c"
CAP_SYS_RESOURCE = 24
DOWNLOAD_S = 300

APT = """\
Dir::Etc::sourcelist "/dev/null";
Dir::Etc::sourceparts "{at}/sources";
Dir::State::lists "{at}/lists";
Dir::State::status "{at}/status";
Dir::Cache "{at}/cache";
APT::Sandbox::User "root";
Acquire::Languages "none";
"""

PROGRAM = """\
#!/bin/sh
# CRIU with the libraries that it was built for; see tools/criu.py.
here=$(dirname "$(readlink -f "$0")")
exec "$here/{loader}" {preload}--library-path "$here/{libraries}" "$here/usr/sbin/criu" "$@"
"""


class Missing(Exception):
    """What keeps CRIU from being had here."""


def main() -> None:
    """Fetch it, unless asked to check only; say what there is, or what is missing."""
    try:
        if "--check" not in sys.argv[1:]:
            fetch()
        print(checked(TARGET / "criu"))
    except Missing as missing:
        print(f"NO CRIU HERE: {missing}", file=sys.stderr)
        print("Images of processes can't be taken; everything else works.", file=sys.stderr)
        sys.exit(1)


def fetch() -> None:
    """Download, unpack and put it in place; what was there is replaced at the end."""
    sources = _sources()
    with tempfile.TemporaryDirectory(prefix="criu-") as at:
        environment = {**os.environ, "APT_CONFIG": f"{at}/apt.conf"}
        for name in ("sources", "lists/partial", "cache/archives/partial", "packages"):
            Path(at, name).mkdir(parents=True)
        Path(at, "status").touch()
        Path(at, "apt.conf").write_text(APT.format(at=at), encoding="utf-8")
        Path(at, "sources", "sid.sources").write_text(sources, encoding="utf-8")
        _run(["apt-get", "update", "-qq"], at, environment)
        needed = _needed(_run(
            ["apt-cache", "depends", "--recurse", "--no-recommends", "--no-suggests",
             "--no-conflicts", "--no-breaks", "--no-replaces", "--no-enhances", "criu"],
            at, environment,
        ))  # fmt: skip
        _run(["apt-get", "download", "-qq", *needed], f"{at}/packages", environment)
        fresh = Path(at, "prefix")
        for package in Path(at, "packages").glob("*.deb"):
            _run(["dpkg", "-x", str(package), str(fresh)], at, environment)
        _make_program(fresh)
        shutil.rmtree(TARGET, ignore_errors=True)
        shutil.move(str(fresh), TARGET)


def _sources() -> str:
    """Return a source of the suite at the mirror of this host, as deb822."""
    if not shutil.which("apt-get") or not shutil.which("dpkg"):
        msg = "this host has no apt. Install CRIU 4.2 or newer and name it as PERDURE_CRIU"
        raise Missing(msg)
    if os.geteuid() != 0:
        msg = "it is run by root only, and so is this"
        raise Missing(msg)
    keyring = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
    for file in sorted(Path("/etc/apt").glob("**/*.sources")):
        for paragraph in file.read_text(encoding="utf-8").split("\n\n"):
            address = re.search(r"^URIs:\s*(\S+/debian/?)\s*$", paragraph, re.MULTILINE)
            signed = re.search(r"^Signed-By:\s*(/\S+)\s*$", paragraph, re.MULTILINE)
            if address:
                return _source(address[1], signed[1] if signed else str(keyring))
    for file in [Path("/etc/apt/sources.list"), *Path("/etc/apt").glob("sources.list.d/*.list")]:
        text = file.read_text(encoding="utf-8") if file.exists() else ""
        line = re.search(r"^deb\s+(?:\[[^\]]*\]\s+)?(\S+/debian/?)\s", text, re.MULTILINE)
        if line:
            return _source(line[1], str(keyring))
    msg = "no mirror of Debian is set up in /etc/apt. Name a CRIU of your own as PERDURE_CRIU"
    raise Missing(msg)


def _source(address: str, keyring: str) -> str:
    fields = {"Types": "deb", "URIs": address, "Suites": SUITE, "Components": "main"}
    return "".join(f"{key}: {value}\n" for key, value in {**fields, "Signed-By": keyring}.items())


def _needed(listed: str) -> list[str]:
    """Return the packages of a list of dependencies; lines that begin with a space are edges."""
    return [line for line in listed.splitlines() if re.fullmatch(r"[a-z0-9][a-z0-9.+-]*", line)]


def _make_program(prefix: Path) -> None:
    """Write the program that runs it, and build what it needs on hosts like this one."""
    loaders = sorted(prefix.glob("usr/lib/*/ld-linux-*.so.*"))
    if not loaders:
        msg = "the packages have no dynamic loader for this architecture"
        raise Missing(msg)
    libraries = loaders[0].parent.relative_to(prefix)
    preload = ""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler:
        _run([compiler, "-shared", "-fPIC", "-O2", "-Wall", "-Werror", str(SHIM),
              "-o", str(prefix / "limits.so"), "-ldl"], str(prefix), dict(os.environ))  # fmt: skip
        preload = '--preload "$here/limits.so" '
    elif not _may_read_limits():
        msg = (
            "this host gives no CAP_SYS_RESOURCE, so that CRIU can't read limits of other users' "
            "processes; the shim for that needs a C compiler: install gcc and try again"
        )
        raise Missing(msg)
    program = prefix / "criu"
    loader = loaders[0].relative_to(prefix)
    text = PROGRAM.format(loader=loader, libraries=libraries, preload=preload)
    program.write_text(text, encoding="utf-8")
    program.chmod(0o755)


def _may_read_limits() -> bool:
    status = Path("/proc/self/status").read_text(encoding="ascii")
    effective = int(re.search(r"^CapEff:\s*(\w+)$", status, re.MULTILINE)[1], 16)  # type: ignore[index]  # always there
    return bool(effective >> CAP_SYS_RESOURCE & 1)


def checked(program: Path) -> str:
    """Return a line about a CRIU that works here."""
    if not program.exists():
        msg = f"{program.name} is not there: make criu"
        raise Missing(msg)
    said = _run([str(program), "--version"], "/", dict(os.environ))
    found = re.search(r"Version: (\d+)\.(\d+)", said)
    if not found or (int(found[1]), int(found[2])) < VERSION_MIN:
        msg = f"it is {said.strip()!r}, which is older than 4.2"
        raise Missing(msg)
    looks = _run([str(program), "check"], "/", dict(os.environ))
    return f"{program}: {said.split()[1]}; check: {looks.strip()}"


def _run(command: list[str], cwd: str, environment: dict[str, str]) -> str:
    """Run a command to its end and return what it printed."""
    try:
        done = subprocess.run(  # commands of this file alone
            command, cwd=cwd, env=environment, capture_output=True, text=True,
            timeout=DOWNLOAD_S, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        msg = f"{command[0]} takes more than {DOWNLOAD_S} s"
        raise Missing(msg) from error
    if done.returncode != 0:
        msg = f"{' '.join(command[:2])} failed: {done.stderr.strip()[-500:]}"
        raise Missing(msg)
    return done.stdout


if __name__ == "__main__":
    main()
