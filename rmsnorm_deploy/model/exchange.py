"""Two names that change places at once: a folder, unlike a file, cannot be renamed over another."""

from __future__ import annotations

import ctypes
import os
import tempfile
from pathlib import Path

_HERE = -100
"""AT_FDCWD: names are relative to the working folder."""
_EXCHANGE = 2
"""RENAME_EXCHANGE"""


def exchange(one: Path, other: Path) -> None:
    """Have two files or folders, which are there and on one file system, change names, at no moment without one.

    Raises:
        OSError: the system or the file system cannot do that.
    """
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError, TypeError) as error:
        raise OSError(38, "the system has no renameat2") from error
    if rename(_HERE, os.fsencode(one), _HERE, os.fsencode(other), ctypes.c_uint(_EXCHANGE)):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def can_exchange(folder: Path) -> bool:
    """Whether names in ``folder`` can change places."""
    try:
        with tempfile.TemporaryDirectory(dir=folder, prefix=".rmsnorm-deploy.") as scratch:
            places = [Path(scratch) / name for name in ("a", "b")]
            for place in places:
                place.mkdir()
            exchange(*places)
    except OSError:
        return False
    return True
