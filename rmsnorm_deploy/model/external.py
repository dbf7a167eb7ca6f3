"""Which files may be read or written: weight files stay inside the model's folder, outputs never replace an input."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath, PureWindowsPath

import onnx
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto

from rmsnorm_deploy.errors import ModelError, UsageError

StrPath = str | os.PathLike[str]

_HUGGING_FACE = (
    "A Hugging Face cache keeps links into ../../blobs: copy the model out with "
    "'cp -rL <snapshot folder> <new folder>', or download it with 'hf download --local-dir'."
)


_WITHOUT_TENSORS = frozenset(
    AttributeProto.AttributeType.Value(name) for name in ("FLOAT", "INT", "STRING", "FLOATS", "INTS", "STRINGS")
)


def external_tensors(model: ModelProto) -> Iterator[TensorProto]:
    """Every tensor of ``model`` whose data lie in another file: initializers, attributes, subgraphs and functions."""

    def of_graph(graph: GraphProto) -> Iterator[TensorProto]:
        yield from graph.initializer
        for sparse in graph.sparse_initializer:
            yield sparse.values
            yield sparse.indices
        for node in graph.node:
            yield from of_node(node)

    def of_node(node: NodeProto) -> Iterator[TensorProto]:
        for attribute in node.attribute:
            if attribute.type in _WITHOUT_TENSORS:
                continue
            yield attribute.t
            yield from attribute.tensors
            for sparse in (attribute.sparse_tensor, *attribute.sparse_tensors):
                yield sparse.values
                yield sparse.indices
            # the test keeps the walk from creating empty graphs for ever
            if attribute.HasField("g"):
                yield from of_graph(attribute.g)
            for graph in attribute.graphs:
                yield from of_graph(graph)

    def everything() -> Iterator[TensorProto]:
        yield from of_graph(model.graph)
        for training in model.training_info:
            yield from of_graph(training.initialization)
            yield from of_graph(training.algorithm)
        for function in model.functions:
            for node in function.node:
                yield from of_node(node)

    return (t for t in everything() if t.data_location == TensorProto.EXTERNAL)


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


def check_output(path: Path, *, source: Path | None, overwrite: bool) -> None:
    """Whether ``path`` may be written.

    Args:
        path: the output file.
        source: the model that it was made from.
        overwrite: an existing output may be replaced.

    Raises:
        UsageError: the folder is missing or not writable, the output exists, is a folder, or is the input.
    """
    folder = path.parent
    if not folder.exists():
        raise UsageError(f"the folder {folder} of the output does not exist", f"Create it: 'mkdir -p {folder}'.")
    if not folder.is_dir():
        raise UsageError(
            f"{folder} is not a folder, so {path.name} cannot be written into it", "Choose another output."
        )
    if path.is_dir():
        raise UsageError(f"the output {path} is a folder", f"Name a file: '{path / 'fused.onnx'}'.")
    if path.exists() and not path.is_file():
        raise UsageError(f"the output {path} is a device, a pipe or a socket, not a file", "Choose another output.")
    if source is not None and same_file(path, source):
        raise UsageError(
            f"the output {path} is the input", "Choose another name: the original is needed to verify the result."
        )
    if os.path.lexists(path) and not overwrite:
        raise UsageError(f"the output {path} exists", "Pass --force (overwrite=True in Python) to replace it.")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UsageError(f"the folder {folder} is not writable", "Choose an output in a folder of yours.")


def same_file(a: Path, b: Path) -> bool:
    """Whether two names stand for one file, links followed."""
    try:
        return a.samefile(b)
    except OSError:
        return os.path.realpath(a) == os.path.realpath(b)
