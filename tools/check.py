"""Run every static check, go on after a failure, and name those that failed at the end."""

import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent

CHECKS: dict[str, tuple[str, ...]] = {
    "format": ("ruff", "format", "--check", "."),
    "lint": ("ruff", "check", "."),
    "types": ("mypy",),
    "imports": ("lint-imports", "--no-logo"),
    "size": ("python", "tools/ratchet.py"),
    "docstrings": ("interrogate", "--quiet", "src/perdure"),
    "dead code": ("vulture",),
    "spelling": ("codespell",),
}


def main() -> int:
    """Run the checks in order; return 1 if any failed."""
    failed = []
    environment = {**os.environ, "PYTHONPATH": "src"}
    for name, (program, *arguments) in CHECKS.items():
        print(f"--- {name}: {program} {' '.join(arguments)}", flush=True)
        started_s = time.monotonic()
        command = [str(BIN / program), *arguments]
        done = subprocess.run(command, cwd=ROOT, env=environment, check=False)
        verdict = "ok" if done.returncode == 0 else f"FAILED ({done.returncode})"
        print(f"    {verdict}, {time.monotonic() - started_s:.1f} s", flush=True)
        if done.returncode != 0:
            failed.append(name)
    if failed:
        print(f"check: {len(failed)} of {len(CHECKS)} failed: {', '.join(failed)}")
        return 1
    print(f"check: all {len(CHECKS)} passed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
