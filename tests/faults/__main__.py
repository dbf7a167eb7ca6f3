"""``python -m tests.faults``: faults, load and the same bytes, with the counts that are asked for."""

import argparse
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.faults import disk, load, saves

MANY = 200 * 2**20
"""Bytes of weights outside, in the large case."""


def kills(given, folder):
    """Runs that are killed: a small model, and one with weights outside."""
    for name, outside, count in (("small", 0, given.kills), ("large", given.weights, given.large_kills)):
        (folder / name).mkdir()
        place = saves.Place(folder / name, outside)
        for force in (False, True):
            found = list(saves.killed(place, force, count, random.Random(given.seed)))
            yield f"{count} kills, {name}{' --force' if force else ''}", found


def writing(given, folder):
    """Disks that are full or cannot be written, folders that go away, and two runs at once."""
    for name, outside in (("small", 0), ("outside", saves.SOME)):
        (folder / f"w{name}").mkdir()
        place = saves.Place(folder / f"w{name}", outside)
        for force in (False, True):
            rng, forced = random.Random(given.seed), " --force" if force else ""
            yield f"no space, {name}{forced}", list(saves.without_space(place, force, given.moments, rng))
            yield f"{given.moments} pairs, {name}{forced}", list(saves.two_at_once(place, force, given.moments))
            yield f"overtaken, {name}{forced}", list(saves.overtaken(place, force))
        yield f"folder removed, {name}", list(saves.folder_removed(place))
    if disk.able():
        (folder / "disk").mkdir()
        command = [*disk.COMMAND, sys.executable, "-m", "tests.faults.disk", str(folder / "disk")]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        yield "small and read-only disks", done.stdout.splitlines() + ([done.stderr] if done.returncode else [])


def reading(given, folder):
    """Inputs that change while they are read."""
    for name, outside in (("small", 0), ("outside", saves.SOME)):
        (folder / f"r{name}").mkdir()
        place = saves.Place(folder / f"r{name}", outside)
        for how in saves.CHANGES:
            yield f"input {how.__name__}, {name}", list(saves.input_changed(place, how))


def calls(given, folder):
    """Threads on one session."""
    made, different = load.concurrent(given.threads, given.calls)
    yield f"{made} concurrent norm calls of {given.threads} threads", [f"{different} runs differ"] if different else []
    differ = load.registered(given.threads)
    yield f"registered from {given.threads} threads", [f"{differ} differ"] if differ else []


def sessions(given, folder):
    """Sessions that are made and dropped."""
    for library in ("ours", "override"):
        command = [sys.executable, "-m", "tests.support.sessions", str(given.sessions), library, "alone"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        grown = float(done.stdout.split()[1]) if done.returncode == 0 else float("inf")
        found = [f"grown by {grown / 2**20:.2f} MiB"] if grown > 2 * 2**20 else []
        yield f"{given.sessions} sessions, {library}, {grown / 2**20:.2f} MiB", found + [done.stderr] * bool(found)


KINDS = {kind.__name__: kind for kind in (kills, writing, reading, calls, sessions)}


def main():
    """Run the kinds that are asked for; the status is 1 where something was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("kinds", nargs="*", metavar="KIND", help=f"of {', '.join(KINDS)}; all by default")
    parser.add_argument("--seed", type=int, default=1, help="of the moments")
    parser.add_argument("--kills", type=int, default=200, help="of the small model, with and without --force")
    parser.add_argument("--large-kills", type=int, default=200, help="of the large model, likewise")
    parser.add_argument("--weights", type=int, default=MANY, help="bytes of weights of the large model")
    parser.add_argument("--moments", type=int, default=20, help="random faults of each other kind")
    parser.add_argument("--threads", type=int, default=64)
    parser.add_argument("--calls", type=int, default=1_000_000, help="of norms, by all threads together")
    parser.add_argument("--sessions", type=int, default=10_000)
    given = parser.parse_args()
    bad = 0
    for kind in given.kinds or KINDS:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            if kind in ("kills", "writing", "reading"):
                saves.warm(folder)
            start = time.monotonic()
            for what, found in KINDS[kind](given, folder):
                sys.stdout.write(f"{what}: {len(found)} faults, {time.monotonic() - start:.0f} s\n")
                sys.stdout.writelines(f"    {line}\n" for line in found)
                sys.stdout.flush()
                bad += len(found)
                start = time.monotonic()
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main())
