"""Copying a part of one open file into another: by the system where it can, which shares blocks where the disk can."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable

Told = Callable[[str, int, int], None]
"""A function of what is being done, how much of it is done, and how much there is; bytes or steps."""
CHUNK = 16 * 2**20
"""Bytes of one step: what is held in memory, and how often progress is told."""
_ELSEWHERE = {errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM, errno.EBADF, errno.ETXTBSY}
"""Errors with which the system says that it does not copy between these two files itself."""


def copy_part(source: int, offset: int, target: int, length: int, told: Callable[[int], None]) -> int:
    """Copy bytes of one open file to the place where another one stands, and move that place.

    ``copy_file_range`` copies inside the system; file systems that can share blocks (Btrfs, XFS, NFS) share those that
    begin and end as theirs do, and copy nothing. Where it is refused, the bytes are read and written.

    Args:
        source: file descriptor to read from; its own place is not used and not moved.
        offset: where to begin there.
        target: file descriptor to write to, at its place.
        length: how many bytes.
        told: called with the number of bytes of each step.

    Returns:
        How many bytes were copied: fewer than ``length`` where the source ends before.

    Raises:
        OSError: it cannot be read or written.
    """
    done = 0
    by_system = sys.platform == "linux"
    while done < length:
        most = min(length - done, CHUNK)
        count = _by_system(source, offset + done, target, most) if by_system else 0
        if not count:  # refused; or the source ends, of which reading is the judge
            by_system = False
            count = _by_hand(source, offset + done, target, most)
        if not count:
            break
        done += count
        told(count)
    return done


def _by_system(source: int, offset: int, target: int, most: int) -> int:
    try:
        return os.copy_file_range(source, target, most, offset_src=offset)
    except OSError as error:
        if error.errno not in _ELSEWHERE:
            raise
        return 0


def _by_hand(source: int, offset: int, target: int, most: int) -> int:
    data = memoryview(os.pread(source, most, offset))
    done = 0
    while done < len(data):
        done += os.write(target, data[done:])
    return done
