"""Shell turns as agents make them, by chance; and a digest of everything that they can change."""

import json
import random
import time
from collections.abc import Iterator

from perdure.sandbox import IsolatedSandbox

TOPS = ("/workspace", "/tmp", "/usr/local", "/opt", "/var", "/etc", "/run", "/srv", "/home")
BEGUN_S = time.time() - 1
"""Nothing that a turn wrote is older: what is, is the host's as it was."""

LOOK = """
import hashlib, json, os, stat, sys
begun_s = float(sys.argv[1])
def told(path):
    seen = os.lstat(path)
    kind = stat.S_IFMT(seen.st_mode)
    line = [oct(seen.st_mode), seen.st_uid, seen.st_gid]
    if kind == stat.S_IFREG and (seen.st_size > 2 << 20 or seen.st_ctime < begun_s):
        line += [seen.st_size, seen.st_mtime_ns]  # of the host: turns make none so large or so old
    elif kind == stat.S_IFREG:
        with open(path, "rb") as file:
            line += [seen.st_size, hashlib.file_digest(file, "sha256").hexdigest()]
    elif kind == stat.S_IFLNK:
        line.append(os.readlink(path))
    return line
found = {}
for top in sys.argv[2:]:
    found[top] = told(top)
    for folder, folders, files in os.walk(top):
        for name in folders + files:
            path = os.path.join(folder, name)
            found[path] = told(path)
print(json.dumps(found))
"""


async def seen(sandbox: IsolatedSandbox) -> dict[str, list[object]]:
    """Return every path that a turn can have changed, with its mode, owner and content."""
    ran = await sandbox.run(["/usr/bin/python3", "-I", "-S", "-c", LOOK, str(BEGUN_S), *TOPS])
    assert ran.code == 0, ran
    assert not ran.is_cut
    return json.loads(ran.output)


def turns(chance: random.Random) -> Iterator[str]:
    """Yield shell commands without end; what they need may be missing, as in life."""
    while True:
        yield _turn(chance)


def _turn(chance: random.Random) -> str:
    top = chance.choice(
        ["/workspace", "/workspace", "/workspace", "/tmp", "/usr/local", "/opt", "/dev/shm", "/etc"]
    )
    a, b = (f"{top}/{chance.choice('abcdef')}" for _ in range(2))
    size = chance.choice([0, 1, 300, 5_000, 200_000])
    n = chance.randrange(1_000)
    return chance.choice([
        f"echo {n} > {a}",
        f"echo {n} >> {a}",
        f"mkdir -p {a}/x/y && echo {n} > {a}/x/y/z",
        f"head -c {size} /dev/urandom > {a}",
        f"rm -rf {a}",
        f"rm -rf {a} && mkdir {a} && echo {n} > {a}/new",
        f"mv {a} {b}",
        f"cp -a {a} {b}",
        f"chmod {chance.choice(['600', '755', '4755', '000'])} {a}",
        f"chown {chance.randrange(3)}:{chance.randrange(3)} {a}",
        f"ln -sfn {b} {a}",
        f"ln -f {a} {b}",
        f"truncate -s {size * 10} {a}",
        f"dd if=/dev/urandom of={a} bs=1 count=10 seek=100000 conv=notrunc 2> /dev/null",
        f"mkfifo {a}",
        f"sed -i s/1/2/ {a}",
        "true",
        "cat /etc/hosts > /dev/null",
        "ls -laR /workspace > /dev/null",
        f"(setsid sleep 30 &) ; echo {n} > {a}",
        f"python3 -c 'open(\"{a}\", \"w\").write(\"{n}\")'",
        "rm -rf /usr/local/share; mkdir -p /usr/local/share/x && echo new > /usr/local/share/x/f",
        f"rm -f /usr/share/{chance.choice(['doc/bash/README', 'misc/magic.mgc', 'zoneinfo/UTC'])}",
        f"tar -C /workspace -cf {a}.tar . 2> /dev/null; tar -tf {a}.tar > /dev/null",
        f"touch -d '2001-01-01' {a}",
    ])  # fmt: skip
