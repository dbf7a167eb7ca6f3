"""What a library is, from its file: what it offers, and whether this process can load it.

The system's loader ends the process on a library that is cut off.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterator
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
_DYNAMIC_SYMBOLS = 11
"""The kind of a section."""
_UNDEFINED = 0
"""The section of a name that another library offers."""


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


def offered(path: Path) -> tuple[int, frozenset[bytes]] | None:
    """The ELF machine of a library, and the names that it offers to others; None for what is none of 64 bits.

    Raises:
        OSError: the file cannot be read.
    """
    with path.open("rb") as file:
        try:
            head = _Head(file.read(64))
            if head.bits != 64:
                return None
            return head.machine, frozenset(_names(file, head))
        except (KeyError, IndexError, ValueError, struct.error):
            return None


class _Head:
    """The beginning of an ELF file.

    Raises:
        KeyError, IndexError, struct.error: it is damaged, or not one.
    """

    def __init__(self, start: bytes) -> None:
        if not start.startswith(b"\x7fELF"):
            raise KeyError
        self.bits, self.order = _BITS[start[4]], "<" if start[5] == _LITTLE else ">"
        self.kind, self.machine = struct.unpack_from(f"{self.order}HH", start, _IDENTITY)
        # where the tables are and, behind 6 other bytes, the length and number of their entries
        self.address = "Q" if self.bits == 64 else "I"
        self.segments, self.sections = struct.unpack_from(
            f"{self.order}2{self.address}", start, 32 if self.bits == 64 else 28
        )
        lengths = struct.unpack_from(f"{self.order}4H", start, 54 if self.bits == 64 else 42)
        self.segment_bytes, self.segment_count, self.section_bytes, self.section_count = lengths


def _names(file: IO[bytes], head: _Head) -> Iterator[bytes]:
    """The names that are defined in the tables of dynamic symbols."""

    def part(at: int, length: int) -> bytes:
        file.seek(at)
        return file.read(length)

    table = part(head.sections, head.section_bytes * head.section_count)
    # name, kind, flags, address, offset, length, the section that belongs to it
    sections = [
        struct.unpack_from(f"{head.order}2I4QI", table, i * head.section_bytes) for i in range(head.section_count)
    ]
    for _, kind, _, _, offset, length, of_names in sections:
        if kind != _DYNAMIC_SYMBOLS:
            continue
        names = part(*sections[of_names][4:6])
        for name, _, _, section, _, _ in struct.iter_unpack(f"{head.order}I2BH2Q", part(offset, length)):
            if section != _UNDEFINED:
                yield names[name : names.index(b"\0", name)]


def _elf_problem(file: IO[bytes], size: int) -> str:
    start = file.read(64)
    if not size:
        return "is empty"
    if not start.startswith(b"\x7fELF"):
        return "is not a library"
    try:
        head = _Head(start)
        if (mine := _this_process()) is not None and (start[4], start[5], head.machine) != mine:
            return f"is a library of {head.bits} bits for another kind of processor (ELF machine {head.machine})"
        if head.kind != _SHARED:
            return "is a program or an object file, not a library"
        file.seek(head.segments)
        table = file.read(head.segment_bytes * head.segment_count)
        ends = [
            head.segments + head.segment_bytes * head.segment_count,
            head.sections + head.section_bytes * head.section_count,
        ]
        for i in range(head.segment_count):
            at = i * head.segment_bytes + (8 if head.bits == 64 else 4)
            offset, *_, length = struct.unpack_from(f"{head.order}4{head.address}", table, at)
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
