"""External data of a model that is written: all of them in one new weight file, or inside the model."""

from __future__ import annotations

import dataclasses
import os
import types
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import onnx
from onnx import TensorProto

from rmsnorm_deploy.errors import ModelError
from rmsnorm_deploy.model.copying import copy_part
from rmsnorm_deploy.model.external import external_reference, external_tensors, open_weights, weight_file
from rmsnorm_deploy.model.made import Made, location_of
from rmsnorm_deploy.model.skeleton import is_left_out, without_weights

NOTHING_MADE: Made = types.MappingProxyType({})
_ALIGNMENT = 4096
"""Larger tensors start at a multiple of it, so that runtimes can map them."""
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


def _ignore(_: int) -> None:
    pass


def with_weights_in(
    proto: onnx.ModelProto,
    known: References,
    out: BinaryIO,
    name: str,
    *,
    all_large: bool,
    made: Made = NOTHING_MADE,
    told: Callable[[int], None] = _ignore,
) -> tuple[onnx.ModelProto, int]:
    """A copy of ``proto`` whose external data are in one weight file, and how many bytes that has.

    Args:
        proto: the model; it is not changed.
        known: its external data.
        out: the new weight file, empty and open for writing.
        name: how the model refers to that file.
        all_large: move large data that are inside the message there as well.
        made: data that are computed while they are written.
        told: called with the number of bytes that have been written since.
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
            _point_at(tensor, name, _append(out, data, told), len(data))
            continue
        key = external_reference(tensor)
        if key not in places:
            places[key] = _aligned(out, key[2])
            _copy(known[key], out, told)
        _point_at(tensor, name, places[key], key[2])
    for tensor, original in zip(copy.graph.initializer, proto.graph.initializer, strict=True):
        if is_left_out(tensor):
            _point_at(tensor, name, _append(out, original.raw_data, told), len(original.raw_data))
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


def with_weights_inside(
    proto: onnx.ModelProto, known: References, told: Callable[[int], None] = _ignore
) -> onnx.ModelProto:
    """A copy of ``proto`` that has its external data in itself.

    Args:
        proto: the model; it is not changed.
        known: its external data.
        told: called with the number of bytes that have been read since.

    Raises:
        ModelError: a weight file has changed since ``known`` was made, or is not safe to read any more.
    """
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    for tensor in external_tensors(copy):
        if location_of(tensor):
            continue
        reference = known[external_reference(tensor)]
        with open_weights(reference.folder, reference.location) as file:
            file.seek(reference.offset)
            data = file.read(reference.length)
            _check_part(reference, len(data), file)
        del tensor.external_data[:]
        tensor.ClearField("data_location")
        tensor.raw_data = data
        told(len(data))
    return copy


def _append(out: BinaryIO, data: bytes, told: Callable[[int], None]) -> int:
    """Write ``data`` and return where they begin."""
    place = _aligned(out, len(data))
    out.write(data)
    told(len(data))
    return place


def _aligned(out: BinaryIO, length: int) -> int:
    """Write padding in front of a tensor of so many bytes, and return where it begins."""
    place = out.tell()
    padding = -place % (_ALIGNMENT if length >= _ALIGNMENT else 16)
    out.write(b"\0" * padding)
    return place + padding


def _copy(reference: Reference, out: BinaryIO, told: Callable[[int], None]) -> None:
    out.flush()
    with open_weights(reference.folder, reference.location) as file:
        left = min(reference.length, os.fstat(file.fileno()).st_size - reference.offset)
        if left == reference.length:
            left = copy_part(file.fileno(), reference.offset, out.fileno(), reference.length, told)
        _check_part(reference, left, file)
    out.seek(0, os.SEEK_END)


def _check_part(reference: Reference, found: int, file: BinaryIO) -> None:
    """Whether all of it was there, of the file that was checked."""
    if found < reference.length:
        raise ModelError(f"the weight file {reference.file} is too short", "Copy or export it again.")
    if _stamp(os.fstat(file.fileno())) != reference.stamp:  # the parts would be of different weights
        raise ModelError(
            f"the weight file {reference.file} was changed while it was copied",
            "Run it again when nothing writes there.",
        )
