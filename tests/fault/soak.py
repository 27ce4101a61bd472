"""The soak by hand: `python -m tests.fault.soak --runs 200 --kills 50 [--seed N]`."""

import argparse
import os
import shutil
import sys
import tempfile
from pathlib import Path

from tests.fault import scenes, stores

WRONG = ("lost", "doubled", "strange", "open_effects", "wrong")


def main() -> int:
    """Run it and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(4), "big"))
    parser.add_argument("--keep", action="store_true", help="keep the folder")
    stores.add_argument(parser)
    options = parser.parse_args()
    sys.stdout.write(f"seed {options.seed}\n")
    sys.stdout.flush()
    place = Path(tempfile.mkdtemp(prefix="perdure-soak-"))
    with stores.chosen(options) as url:
        seen = scenes.soak(
            place,
            runs=options.runs,
            kills=options.kills,
            workers=options.workers,
            seed=options.seed,
            url=url,
        )
    counts = ", ".join(f"{len(seen[name])} {name}" for name in WRONG)
    sys.stdout.write(
        f"soak: {seen['runs']} runs ({', '.join(seen['statuses'])}), {seen['kills']} kills, "
        f"{seen['takeovers']} claims after the first, {seen['decided']} decisions, "
        f"{seen['retried']} parked and retried, {counts}; {seen['seconds']} s\n"
    )
    is_fine = seen["statuses"] == ["succeeded"] and not any(seen[name] for name in WRONG)
    for name in WRONG:
        for each in seen[name]:
            sys.stdout.write(f"{name}: {each}\n")
    if not options.keep:
        shutil.rmtree(place, ignore_errors=True)
    return 0 if is_fine else 1


if __name__ == "__main__":
    sys.exit(main())
