"""Runs in a child, to which something happens at its n-th change of the file system: a kill, or a full disk."""

import itertools
import os
import sys
import tempfile
from pathlib import Path

CHANGES = {"os.rename", "os.link", "os.remove", "os.rmdir", "os.mkdir", "os.chmod", "fsync"}


def at_change(at, act, *, reading=False, but=()):
    """In this process, call ``act()`` before its ``at``-th change of the file system; there is no way back.

    With ``reading``, files that are opened to be read count as well; the events ``but`` do not count.
    """
    left, fsync = itertools.count(at, -1), os.fsync
    busy = False

    def hook(event, arguments):
        nonlocal busy
        opened = event == "open" and isinstance(arguments[2], int)
        wanted = opened and (reading or arguments[2] & (os.O_WRONLY | os.O_RDWR))
        if not busy and event not in but and (event in CHANGES or wanted) and next(left) == 0:
            busy = True
            try:
                act()
            finally:
                busy = False

    def synced(file):
        hook("fsync", (file,))
        fsync(file)

    os.fsync = synced
    sys.addaudithook(hook)


def outcome(action, before=lambda: None):
    """The status with which ``action()`` ends in a child, below 0 for a signal, and what it says on stderr.

    Args:
        action: what the child does; the status is what it returns, if that is a number.
        before: called in the child, before it.
    """
    with tempfile.TemporaryFile() as said:
        child = start(action, before, said.fileno())
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        said.seek(0)
        return status, said.read().decode()


def start(action, before=lambda: None, said=None):
    """As :func:`outcome`, without waiting; the number of the child."""
    child = os.fork()
    if child:
        return child
    status = 99
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        if said is not None:
            os.dup2(said, 2)
        sys.stdout, sys.stderr = (open(i, "w", closefd=False) for i in (1, 2))  # noqa: SIM115
        before()
        returned = action()
        status = returned if isinstance(returned, int) else 0
        sys.stderr.flush()
    except BaseException as error:
        os.write(2, f"{type(error).__name__}: {error}".encode())
    finally:
        os._exit(status)


def die():
    """End this process as if the power went."""
    os.kill(os.getpid(), 9)


def dies(action, at):
    """Run ``action`` in a child that is killed at its ``at``-th change of the file system; whether it was."""
    return outcome(action, lambda: at_change(at, die))[0] == -9


def kills(action):
    """Once for each change of the file system, a run that is killed there."""
    for at in range(1000):
        if not dies(action, at):
            return
        yield at


def listing(folder):
    """What is in a folder and below, by name, with the content of files."""
    files = sorted(Path(folder).rglob("*"))
    return {str(p.relative_to(folder)): p.read_bytes() if p.is_file() else None for p in files}
