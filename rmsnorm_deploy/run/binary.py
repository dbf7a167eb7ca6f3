"""Whether a file can be loaded as a library by this process: the loader ends the process on one that is cut off."""

from __future__ import annotations

import struct
import sys
from pathlib import Path
from typing import IO

_OTHER_SYSTEMS = {
    "darwin": (b"\xcf\xfa\xed\xfe", b"\xca\xfe\xba\xbe"),  # for one machine, and for several
    "win32": (b"MZ",),
}
"""How libraries begin where they are not ELF files."""
_IDENTITY = 16
_SHARED = 3
_LITTLE = 1
_BITS = {1: 32, 2: 64}


def unloadable(path: Path) -> str:
    """Why a file is no library that this process can load, as what it is: "is cut off"; empty where it may be one."""
    try:
        with path.open("rb") as file:
            size = path.stat().st_size
            if sys.platform in _OTHER_SYSTEMS:
                known = file.read(4).startswith(_OTHER_SYSTEMS[sys.platform])
                return "" if known else "is not a library"
            return _elf_problem(file, size)
    except OSError as error:
        return f"cannot be read: {error.strerror}"


def _elf_problem(file: IO[bytes], size: int) -> str:
    start = file.read(64)
    if not size:
        return "is empty"
    if not start.startswith(b"\x7fELF"):
        return "is not a library"
    try:
        bits, order = _BITS[start[4]], "<" if start[5] == _LITTLE else ">"
        kind, machine = struct.unpack_from(f"{order}HH", start, _IDENTITY)
        if (mine := _this_process()) is not None and (start[4], start[5], machine) != mine:
            return f"is a library of {bits} bits for another kind of processor (ELF machine {machine})"
        if kind != _SHARED:
            return "is a program or an object file, not a library"
        # where the tables are and, behind 6 other bytes, the length and number of their entries
        address = "Q" if bits == 64 else "I"
        segments, sections = struct.unpack_from(f"{order}2{address}", start, 32 if bits == 64 else 28)
        lengths = struct.unpack_from(f"{order}4H", start, 54 if bits == 64 else 42)
        file.seek(segments)
        table = file.read(lengths[0] * lengths[1])
        ends = [segments + lengths[0] * lengths[1], sections + lengths[2] * lengths[3]]
        for i in range(lengths[1]):
            at = i * lengths[0] + (8 if bits == 64 else 4)
            offset, *_, length = struct.unpack_from(f"{order}4{address}", table, at)
            ends.append(offset + length)
    except (KeyError, IndexError, struct.error):
        return "is cut off or damaged"
    return f"is cut off: it has {size} of at least {max(ends)} bytes" if max(ends) > size else ""


def _this_process() -> tuple[int, int, int] | None:
    """Width, byte order and machine of the program that runs; None where it cannot be read."""
    try:
        with Path("/proc/self/exe").open("rb") as file:
            start = file.read(_IDENTITY + 4)
    except OSError:
        return None
    if not start.startswith(b"\x7fELF") or len(start) < _IDENTITY + 4:
        return None
    order = "<" if start[5] == _LITTLE else ">"
    return start[4], start[5], struct.unpack_from(f"{order}HH", start, _IDENTITY)[1]
