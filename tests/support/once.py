"""What takes long to build, and is built once for all processes of a test run."""

import fcntl
import os


def once(tmp_path_factory, name, make):
    """The folder in which ``make(folder)`` has built; whoever comes first builds, and the others wait."""
    root = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:  # each worker has a folder of its own in the one of the run
        root = root.parent
    folder = root / name
    with (root / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            unfinished = root / f"{name}.unfinished"
            make(unfinished)
            unfinished.rename(folder)
    return folder
