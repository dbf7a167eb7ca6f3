"""Which domains a serialized model imports, read without its graph and weights."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import IO

from onnx import OperatorSetIdProto, helper

_ORT_FORMAT = b"ORTM"
"""What stands behind the first four bytes of a model in onnxruntime's own format."""

_OPSET_IMPORT = 8
"""Number of that field of ModelProto."""
_VARINT, _BYTES = 0, 2
"""Wire types of protobuf."""
_LENGTHS = {1: 8, 5: 4}
"""Bytes of the wire types of a fixed length."""


def imported_domains(model: str | os.PathLike[str] | bytes) -> frozenset[str] | None:
    """The domains of operators that a model imports, that of the standard operators as ``""``.

    Args:
        model: the path of a model file, or its bytes.

    Returns:
        None where that cannot be told: the file is not there, or it is in another format than ONNX's, such as
        onnxruntime's own, whose files import every domain.
    """
    try:
        with io.BytesIO(model) if isinstance(model, bytes) else Path(model).open("rb") as file:
            return _read(file)
    except (OSError, _NotProtobuf):
        return None


def with_import(model: bytes, domain: str) -> bytes:
    """A serialized model that imports one more domain, in its first version."""
    entry = helper.make_opsetid(domain, 1).SerializeToString()
    # Protobuf takes the values of a repeated field from wherever they stand.
    return b"".join((model, bytes([_OPSET_IMPORT << 3 | _BYTES, len(entry)]), entry))


class _NotProtobuf(Exception):
    pass


def _read(file: IO[bytes]) -> frozenset[str] | None:
    size = file.seek(0, os.SEEK_END)
    file.seek(4)
    if file.read(4) == _ORT_FORMAT:
        return None
    file.seek(0)
    domains = set()
    while file.tell() < size:
        number, wire = divmod(_varint(file), 8)
        if wire == _VARINT:
            _varint(file)
            continue
        length = _varint(file) if wire == _BYTES else _LENGTHS.get(wire, size)
        if length > size - file.tell():
            raise _NotProtobuf
        if number == _OPSET_IMPORT:
            domains.add(_domain(file.read(length)))
        else:
            file.seek(length, os.SEEK_CUR)
    return frozenset(domains) or None


def _domain(entry: bytes) -> str:
    try:
        domain = OperatorSetIdProto.FromString(entry).domain
    except Exception as error:  # protobuf's DecodeError, which has no type stubs
        raise _NotProtobuf from error
    return "" if domain == "ai.onnx" else str(domain)


def _varint(file: IO[bytes]) -> int:
    value = shift = 0
    while shift < 64:
        byte = file.read(1)
        if not byte:
            break
        value |= (byte[0] & 0x7F) << shift
        if byte[0] < 0x80:
            return value
        shift += 7
    raise _NotProtobuf
