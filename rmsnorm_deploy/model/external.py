"""External data: which tensors have their data in another file, where, and whether that file is safe to read."""

from __future__ import annotations

import math
import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import BinaryIO

import onnx
import onnx_ir as ir
from onnx import GraphProto, ModelProto, SparseTensorProto, TensorProto

from rmsnorm_deploy.errors import ModelError, UsageError
from rmsnorm_deploy.model.graphs import PLAIN, walk

_BITS = {21: 4, 22: 4, 23: 4, 25: 2, 26: 2, 27: 6, 28: 6}
"""Of an element, for the types of less than a byte: UINT4, INT4, FLOAT4E2M1, UINT2, INT2, FLOAT6E2M3, FLOAT6E3M2."""
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_DIGITS = 19
"""Of the largest number of 64 bits."""
_HUGGING_FACE = (
    "A Hugging Face cache keeps links into ../../blobs: copy the model out with "
    "'cp -rL <snapshot folder> <new folder>', or download it with 'hf download --local-dir'."
)


def external_tensors(model: ModelProto) -> Iterator[TensorProto]:
    """Every tensor of ``model`` whose data lie in another file: initializers, attributes, subgraphs and functions."""
    for found in walk(model):
        if isinstance(found, GraphProto):
            tensors = [*found.initializer, *_dense(found.sparse_initializer)]
        else:
            held = [a for a in found.attribute if a.type not in PLAIN]
            tensors = [
                t for a in held for t in (a.t, *a.tensors, *_dense([a.sparse_tensor]), *_dense(a.sparse_tensors))
            ]
        yield from (t for t in tensors if t.data_location == TensorProto.EXTERNAL)


def _dense(sparse: Iterable[SparseTensorProto]) -> Iterator[TensorProto]:
    for tensor in sparse:
        yield tensor.values
        yield tensor.indices


def weights_folder(model: ir.Model) -> Path | None:
    """The folder that the external data of ``model`` are relative to; None where it has none.

    Raises:
        UsageError: there are several.
    """
    folders = {
        str(Path(v.const_value.base_dir or ".").absolute())
        for graph in model.graphs()
        for v in graph.initializers.values()
        if isinstance(v.const_value, ir.ExternalTensor)
    }
    if len(folders) > 1:
        raise UsageError(
            f"the model takes weights from several folders: {', '.join(sorted(folders))}",
            "Save it with onnx_ir.save(..., external_data=...) first.",
        )
    return Path(folders.pop()) if folders else None


def external_reference(tensor: TensorProto) -> tuple[str, int, int]:
    """Where the data of an external tensor lie: ``(location, offset, length in bytes)``.

    Raises:
        ModelError: the entry is malformed.
    """
    entries = {e.key: e.value for e in tensor.external_data}
    if any(dim < 0 for dim in tensor.dims):
        raise ModelError(
            f"tensor '{tensor.name}' has a negative dimension: {list(tensor.dims)}", "Export the model again."
        )
    needed = _byte_size(tensor)
    location = entries.get("location", "")
    if not location:
        raise ModelError(
            f"tensor '{tensor.name}' has its data in another file but does not name it", "Export the model again."
        )
    offset = _number(entries.get("offset") or "0")
    length = _number(entries["length"]) if entries.get("length") else needed
    if offset is None or length is None or length < needed:
        raise ModelError(
            f"tensor '{tensor.name}' has a malformed place in '{location}': offset {entries.get('offset')!r}, "
            f"length {entries.get('length')!r}",
            "Export the model again.",
        )
    return location, offset, length


def _number(text: str) -> int | None:
    """A number as onnx writes it; none is longer, and Python would take underscores and other scripts' digits."""
    return int(text) if len(text) <= _DIGITS and text.isascii() and text.isdigit() else None


def _byte_size(tensor: TensorProto) -> int:
    size = int(math.prod(tensor.dims))
    if tensor.data_type in (TensorProto.UNDEFINED, TensorProto.STRING):
        raise ModelError(
            f"tensor '{tensor.name}' has its data in another file, and an element type that cannot be there",
            "Export the model again.",
        )
    bits = _BITS.get(int(tensor.data_type))
    if bits is not None:
        return (size * bits + 7) // 8
    try:
        return size * int(onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize)
    except (KeyError, TypeError):
        return 0


def weight_file(folder: Path, location: str, tensor: str) -> Path:
    """The weight file ``location`` of a model in ``folder``, once it is known to lie inside that folder.

    Args:
        folder: the folder of the model file.
        location: as the model states it.
        tensor: name of the tensor, for the message.

    Raises:
        ModelError: the place is absolute, leaves the folder (with ``..`` or through a link), does not exist, is not a
            regular file, or has a second name elsewhere (a hard link).
    """
    where = f"the weight file '{location}' (tensor '{tensor}')"
    if PurePosixPath(location).is_absolute() or PureWindowsPath(location).is_absolute() or "\0" in location:
        raise ModelError(
            f"{where} is named by an absolute path, which is not safe to follow",
            "Put the weight file beside the model and export with a relative name.",
        )
    path = folder / location
    inside = os.path.normpath(folder.absolute())  # links are looked at below
    if not _is_within(os.path.normpath(path.absolute()), inside):
        raise ModelError(
            f"{where} lies outside the model's folder {inside}",
            "Put the weight file beside the model and export with a relative name.",
        )
    if not os.path.lexists(path):
        raise ModelError(
            f"{where} is missing: there is no {path}",
            "Put it into the model's folder under this name; a model and its weight files must be moved together.",
        )
    real = Path(os.path.realpath(path))  # Path.resolve raises on circular links
    if not _is_within(str(real), os.path.realpath(folder)):
        raise ModelError(f"{where} is a link that leaves the model's folder, to {real}", _HUGGING_FACE)
    if not real.is_file():
        what = "a link to nothing" if not real.exists() else "not a regular file"
        raise ModelError(f"{where} is {what}: {path}", "Put the weight file itself there.")
    if real.stat().st_nlink > 1:
        # onnx and onnx_ir refuse these as well: such a name may expose a file from elsewhere
        raise ModelError(
            f"{where} has a second name somewhere else (a hard link), which is not safe to follow: {path}",
            f"Make a real copy: 'cp {path.name} copy && mv copy {path.name}'.",
        )
    return path


def open_weights(folder: Path, location: str) -> BinaryIO:
    """The weight file ``location`` of a model in ``folder``, open: what is checked is the file that is read.

    A name may be swapped for a link between a check and the opening. So no link is followed here: those inside the
    folder, which :func:`weight_file` allows, are resolved before, and each folder on the way is opened from the last.

    Raises:
        ModelError: it cannot be opened, is not a regular file, has a second name, or a link has come in its way.
    """
    where = f"the weight file '{location}'"
    base = os.path.realpath(folder)
    try:
        parts = Path(os.path.relpath(os.path.realpath(folder / location), base)).parts
        if not parts or os.pardir in parts:
            raise ModelError(f"{where} lies outside the model's folder {base} by now", _HUGGING_FACE)
        place = os.open(base, _FOLDER)
        try:
            for part in parts[:-1]:
                inner = os.open(part, _FOLDER | os.O_NOFOLLOW, dir_fd=place)
                os.close(place)
                place = inner
            opened = os.open(parts[-1], os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=place)
        finally:
            os.close(place)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise ModelError(f"{where} cannot be opened without following links: {why}", "Check it.") from error
    status = os.fstat(opened)
    if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
        os.close(opened)
        raise ModelError(f"{where} is not a file of its own by now", "Put the weight file itself there.")
    return os.fdopen(opened, "rb")


def _is_within(path: str, folder: str) -> bool:
    return os.path.commonpath([path, folder]) == folder
