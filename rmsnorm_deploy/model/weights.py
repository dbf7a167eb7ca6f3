"""External data of a model that is written: all of them in one new weight file."""

from __future__ import annotations

import dataclasses
import os
import types
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

import onnx
from onnx import TensorProto

from rmsnorm_deploy.errors import ModelError
from rmsnorm_deploy.model.external import external_reference, external_tensors, open_weights, weight_file
from rmsnorm_deploy.model.made import Made, location_of
from rmsnorm_deploy.model.skeleton import is_left_out, without_weights

NOTHING_MADE: Made = types.MappingProxyType({})
_ALIGNMENT = 4096
"""Larger tensors start at a multiple of it, so that runtimes can map them."""
_CHUNK = 16 * 2**20
_SMALL = 1024
"""Bytes below which a tensor stays inside the message."""


@dataclasses.dataclass(frozen=True)
class Reference:
    """Where the data of external tensors lie.

    Attributes:
        file: the weight file.
        folder: the folder of the model.
        location: the file's name as the model states it.
        offset, length: the part of it, in bytes.
        stamp: of the file when it was checked: which file it is, its size, and when it was written.
    """

    file: Path
    folder: Path
    location: str
    offset: int
    length: int
    stamp: tuple[int, int, int, int]


References = dict[tuple[str, int, int], Reference]
"""By location, offset and length."""


def references(proto: onnx.ModelProto, folder: Path) -> References:
    """The external data of ``proto``, each place once, in the order of the graph."""
    found: References = {}
    for tensor in external_tensors(proto):
        if location_of(tensor):
            continue
        key = external_reference(tensor)
        if key not in found:
            file = weight_file(folder, key[0], tensor.name)
            found[key] = Reference(file, folder, *key, _stamp(file.stat()))
    return found


def _stamp(status: os.stat_result) -> tuple[int, int, int, int]:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def with_weights_in(
    proto: onnx.ModelProto, known: References, out: BinaryIO, name: str, *, all_large: bool, made: Made = NOTHING_MADE
) -> tuple[onnx.ModelProto, int]:
    """A copy of ``proto`` whose external data are in one weight file, and how many bytes that has.

    Args:
        proto: the model; it is not changed.
        known: its external data.
        out: the new weight file, empty and open for writing.
        name: how the model refers to that file.
        all_large: move large data that are inside the message there as well.
        made: data that are computed while they are written.
    """
    if all_large:
        copy = without_weights(proto, lambda tensor: len(tensor.raw_data) >= _SMALL)
    else:
        copy = onnx.ModelProto()
        copy.CopyFrom(proto)
    places: dict[tuple[str, int, int], int] = {}
    for tensor in external_tensors(copy):
        if is_left_out(tensor):
            continue
        if location_of(tensor):
            data = made[location_of(tensor)].tobytes()
            _point_at(tensor, name, _append(out, [data], len(data)), len(data))
            continue
        key = external_reference(tensor)
        if key not in places:
            places[key] = _append(out, _chunks(known[key]), key[2])
        _point_at(tensor, name, places[key], key[2])
    for tensor, original in zip(copy.graph.initializer, proto.graph.initializer, strict=True):
        if is_left_out(tensor):
            size = len(original.raw_data)
            _point_at(tensor, name, _append(out, [original.raw_data], size), size)
    return copy, out.tell()


def renamed(proto: onnx.ModelProto, old: str, new: str) -> None:
    """Have ``proto`` name its weight file ``old`` as ``new``; it is changed."""
    for tensor in external_tensors(proto):
        for entry in tensor.external_data:
            if entry.key == "location" and entry.value == old:
                entry.value = new


def _point_at(tensor: TensorProto, location: str, offset: int, length: int) -> None:
    del tensor.external_data[:]
    for key, value in (("location", location), ("offset", str(offset)), ("length", str(length))):
        tensor.external_data.add(key=key, value=value)


def _append(out: BinaryIO, chunks: Iterable[bytes], length: int) -> int:
    place = out.tell()
    step = _ALIGNMENT if length >= _ALIGNMENT else 16
    padding = -place % step
    out.write(b"\0" * padding)
    for chunk in chunks:
        out.write(chunk)
    return place + padding


def _chunks(reference: Reference) -> Iterator[bytes]:
    with open_weights(reference.folder, reference.location) as file:
        left = min(reference.length, os.fstat(file.fileno()).st_size - reference.offset)
        if left < reference.length:
            raise ModelError(f"the weight file {reference.file} is too short", "Copy or export it again.")
        file.seek(reference.offset)
        while left:
            chunk = file.read(min(left, _CHUNK))
            if not chunk:
                raise ModelError(f"the weight file {reference.file} is too short", "Copy or export it again.")
            left -= len(chunk)
            yield chunk
        if _stamp(os.fstat(file.fileno())) != reference.stamp:  # the parts would be of different weights
            raise ModelError(
                f"the weight file {reference.file} was changed while it was copied",
                "Run it again when nothing writes there.",
            )
