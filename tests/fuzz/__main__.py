"""``python -m tests.fuzz``: fuzz from the command line."""

import argparse
import sys
import time
from pathlib import Path

from tests.fuzz import models


def main():
    """Run one kind of fuzzing; the status is 1 where something was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("kind", choices=["models"])
    parser.add_argument("--seed", default="1", help="another seed gives other models")
    parser.add_argument("--first", type=int, default=0, help="the number of the first model")
    parser.add_argument("--count", type=int, default=1000, help="how many executions")
    parser.add_argument("--keep", type=Path, default=Path("build/fuzz"), help="where models go that show a fault")
    given = parser.parse_args()
    start = time.monotonic()

    def report(text):
        sys.stdout.write(text)
        sys.stdout.flush()

    faults, _ = models.campaign(given.seed, given.first, given.count, given.keep, report)
    report(f"{given.count} executions in {time.monotonic() - start:.0f} s, {len(faults)} faults\n")
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main())
