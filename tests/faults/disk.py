"""Saves on a small disk, a full one and one that cannot be written, in a mount namespace of their own.

``unshare -rm python -m tests.faults.disk FOLDER`` prints a line for everything that is not as promised.
"""

import os
import subprocess
import sys
from pathlib import Path

from tests.faults.saves import SOME, Place, fusing, told, warm
from tests.support.changes import outcome

COMMAND = ("unshare", "-rm")


def able():
    """Whether this machine lets us mount a file system."""
    try:
        made = [*COMMAND, "mount", "-t", "tmpfs", "none", "/tmp"]
        return subprocess.run(made, capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def findings(folder, outside):
    """What is not as promised on a disk with too little space, and on one that is read-only."""
    place = Place(folder, outside)
    for force in (False, True):
        options = ["--force"] if force else []
        for spare in (0, 4, 64):
            subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "none", str(place.out)], check=True)
            if force:
                assert outcome(fusing(place.one, place.output))[0] == 0
            room = os.statvfs(place.out)
            filler = place.out / "filler"
            filler.write_bytes(bytes(max(room.f_bavail * room.f_frsize - spare * 1024, 0)))
            before = sorted(p.name for p in place.out.iterdir())
            status, said = outcome(fusing(place.two, place.output, *options))
            wrong = (told(status, said, {2}) if status else "") or place.wrong(
                {1 if force else None} if status else {2}
            )
            if status and sorted(p.name for p in place.out.iterdir()) != before:
                wrong = wrong or f"left over: {sorted(p.name for p in place.out.iterdir())}"
            if wrong or (not status and spare == 0):
                yield f"{spare} KiB left, force {force}: {status} {wrong}"
            filler.unlink()
            subprocess.run(["mount", "-o", "remount,ro", str(place.out)], check=True)
            status, said = outcome(fusing(place.two, place.out / "other.onnx", *options))
            if not status or told(status, said, {2}):
                yield f"read-only: {status} {said}"
            subprocess.run(["umount", str(place.out)], check=True)


def main(folder):
    warm(folder)
    for outside in (0, SOME):
        (folder / str(outside)).mkdir()
        for found in findings(folder / str(outside), outside):
            sys.stdout.write(found + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
