"""``python -m tests.fuzz``: fuzz from the command line."""

import argparse
import importlib.util
import subprocess
import sys
import time
from pathlib import Path

from tests.fuzz import batches, calls, compiled, models

BATCHES = {"octets": "octets", "recognition": "recognition", "texts": "texts", "convert": "conversion"}
"""Kinds that are modules with :mod:`tests.fuzz.batches`, and their modules."""
KINDS = ("models", *BATCHES, "guided", "calls", "folders", "logs")


def report(text):
    """Show what was found at once."""
    sys.stdout.write(text)
    sys.stdout.flush()


def run(kind, given, count):
    """One kind of fuzzing; how many faults it found."""
    if kind == "models":
        return len(models.campaign(given.seed, given.first, count, given.keep, report, given.without)[0])
    if kind in BATCHES:
        return len(batches.campaign(f"tests.fuzz.{BATCHES[kind]}", given.seed, given.first, count, given.keep, report))
    if kind == "guided":
        return guided(given.seed, count, given.keep / "guided")
    if kind == "calls":
        return calls.campaign(given.seed, given.first, count, given.keep, report)
    folder = given.keep / "compiled"
    return len(compiled.campaign(given.seed, given.first, count, folder, report, logs=kind == "logs"))


def guided(seed, count, folder):
    """Bytes by atheris, in a process of its own; what it found is in ``folder``."""
    if importlib.util.find_spec("atheris") is None:
        report("no atheris: bytes are chosen at random only; pip install atheris\n")
        return 0
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run([sys.executable, "-m", "tests.fuzz.guided", str(seed), str(count), str(folder)], check=False)
    return len(list((folder / "found").iterdir()))


def main():
    """Run one kind of fuzzing; the status is 1 where something was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--seed", type=int, default=1, help="another seed gives other executions")
    parser.add_argument("--first", type=int, default=0, help="the number of the first execution")
    parser.add_argument("--count", type=int, default=1000, help="how many executions")
    parser.add_argument("--keep", type=Path, default=Path("build/fuzz"), help="where files go that show a fault")
    parser.add_argument("--without", nargs="*", default=[], help="mutations whose models are left out")
    given = parser.parse_args()
    start = time.monotonic()
    faults = run(given.kind, given, given.count)
    report(f"{given.kind}: {given.count} executions in {time.monotonic() - start:.0f} s, {faults} faults\n")
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main())
