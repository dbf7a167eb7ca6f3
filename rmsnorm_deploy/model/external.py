"""External data: which tensors have their data in another file, where, and whether that file is safe to read."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath, PureWindowsPath

import onnx
import onnx_ir as ir
from onnx import GraphProto, ModelProto, SparseTensorProto, TensorProto

from rmsnorm_deploy.errors import ModelError, UsageError
from rmsnorm_deploy.model.graphs import PLAIN, walk

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
    needed = _byte_size(tensor)
    location = entries.get("location", "")
    if not location:
        raise ModelError(
            f"tensor '{tensor.name}' has its data in another file but does not name it", "Export the model again."
        )
    try:
        offset, length = int(entries.get("offset") or 0), int(entries.get("length") or needed)
    except ValueError:
        offset = length = -1
    if offset < 0 or length < needed:
        raise ModelError(
            f"tensor '{tensor.name}' has a malformed place in '{location}': offset {entries.get('offset')!r}, "
            f"length {entries.get('length')!r}",
            "Export the model again.",
        )
    return location, offset, length


def _byte_size(tensor: TensorProto) -> int:
    size = 1
    for dim in tensor.dims:
        size *= dim
    four_bit = (TensorProto.INT4, TensorProto.UINT4, TensorProto.FLOAT4E2M1)
    if tensor.data_type in four_bit:
        return (size + 1) // 2
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


def _is_within(path: str, folder: str) -> bool:
    return os.path.commonpath([path, folder]) == folder
