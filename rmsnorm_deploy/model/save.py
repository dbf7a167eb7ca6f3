"""Writing a model file: all of it, checked, or nothing."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import onnx
import onnx_ir as ir
from onnx import TensorProto

from rmsnorm_deploy.errors import ModelError, UsageError
from rmsnorm_deploy.model.external import (
    StrPath,
    check_output,
    external_reference,
    external_tensors,
    same_file,
    weight_file,
)
from rmsnorm_deploy.model.load import PROTOBUF_LIMIT, load_model

_SPARE = 64 * 2**20
"""Room for everything in a message that is not weights."""
_ALIGNMENT = 4096
"""Larger tensors start at a multiple of it, so that runtimes can map them."""
_CHUNK = 16 * 2**20

_RUNTIME_OPS = frozenset({"SimplifiedLayerNormalization"})
"""onnxruntime has this one in ai.onnx, where onnx's checker takes it for a mistake."""
_UNCHECKED = "rmsnorm_deploy.unchecked"


@dataclasses.dataclass(frozen=True)
class SavedModel:
    """What was written.

    Attributes:
        path: the model file.
        size: its bytes.
        weight_files: the files that hold its external data, relative to its folder.
        copied: bytes of weights that were copied; 0 where the output shares the original's weight files.
        note: what happened to the weights, in a sentence; empty without external data.
    """

    path: str
    size: int
    weight_files: tuple[str, ...] = ()
    copied: int = 0
    note: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return dataclasses.asdict(self)


def save(
    model: onnx.ModelProto | ir.Model,
    path: StrPath,
    *,
    source: StrPath | None = None,
    overwrite: bool = False,
    check: Callable[[Path], None] | None = None,
) -> SavedModel:
    """Write ``model`` to ``path``: to a temporary name in the same folder first, checked, then renamed.

    An output in the folder of ``source`` keeps pointing at the same weight files. Anywhere else the weights are copied
    into one file beside it, ``<name>.data``. Equal models give equal bytes.

    Args:
        model: what to write; it is not changed.
        path: the output file.
        source: the file that the model came from. External data of an ``onnx.ModelProto`` are relative to its folder;
            without it, to the output's.
        overwrite: replace an existing output.
        check: called with the complete model under its temporary name; what it raises prevents the output.

    Raises:
        UsageError: the output exists, is the input or a weight file, or its folder is missing or not writable.
        ModelError: the model is not valid, or its weight files are not there or not safe to read.
    """
    target, origin = Path(path), Path(source) if source is not None else None
    check_output(target, source=origin, overwrite=overwrite)
    if isinstance(model, ir.Model):
        proto, folder = _from_ir(model, origin)
    else:
        proto, folder = model, origin.parent if origin is not None else target.parent
    references = _references(proto, folder)
    for file in {r.file for r in references.values()}:
        if same_file(file, target):
            raise UsageError(f"the output {target} is a weight file of the model", "Choose another output.")
    shared = bool(references) and same_file(folder, target.parent)
    large = _inline_size(proto) + _SPARE > PROTOBUF_LIMIT
    move = large or (bool(references) and not shared)
    data = target.with_name(target.name + ".data") if move else None
    if data is not None:
        check_output(data, source=None, overwrite=overwrite)
        if any(same_file(data, r.file) for r in references.values()):
            raise UsageError(f"the weights would be written over themselves, {data}", "Choose another output.")
    with _staging(target, own_folder=not shared or move) as (staged, undo):
        copied = 0
        if data is not None:
            _require_space(target.parent, sum(r.length for r in references.values()))
            with (staged.parent / data.name).open("xb") as out:
                proto, copied = _with_weights_in(proto, references, out, data.name, all_large=large)
        _write(staged, proto)
        _check(staged, origin)
        if check is not None:
            check(staged)
        if data is not None:
            undo.replace(staged.parent / data.name, data, overwrite=overwrite)
        undo.replace(staged, target, overwrite=overwrite)
    names = (data.name,) if data is not None else tuple(sorted({r.location for r in references.values()}))
    return SavedModel(str(target), target.stat().st_size, names, copied, _note(names, copied))


def _require_space(folder: Path, size: int) -> None:
    free = shutil.disk_usage(folder).free
    if size > free:
        raise UsageError(
            f"the weights to copy have {size / 2**30:.1f} GiB, and {folder} has {free / 2**30:.1f} GiB left",
            "Free some space, or write the output beside the original: it then shares the weight file.",
        )


def _note(names: tuple[str, ...], copied: int) -> str:
    if copied:
        return f"copied {copied / 2**20:.1f} MiB of weights to {names[0]}"
    return f"shares the weights in {', '.join(names)} with the original" if names else ""


# -- where weights lie ------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class _Reference:
    file: Path
    location: str
    offset: int
    length: int


def _references(proto: onnx.ModelProto, folder: Path) -> dict[tuple[str, int, int], _Reference]:
    """The external data of ``proto``, each place once, in the order of the graph."""
    found: dict[tuple[str, int, int], _Reference] = {}
    for tensor in external_tensors(proto):
        key = external_reference(tensor)
        if key not in found:
            found[key] = _Reference(weight_file(folder, key[0], tensor.name), *key)
    return found


def _from_ir(model: ir.Model, origin: Path | None) -> tuple[onnx.ModelProto, Path]:
    """The model as a proto, and the folder to which its external data are relative."""
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
    folder = Path(folders.pop()) if folders else (origin.parent if origin is not None else Path())
    return ir.to_proto(model), folder


def _inline_size(proto: onnx.ModelProto) -> int:
    """Bytes of the weights inside the message; asking protobuf for its size would build it."""
    return sum(len(t.raw_data) for t in proto.graph.initializer)


# -- writing ----------------------------------------------------------------------------------------------------------


class _Undo:
    """Renames files into place and, should a later one fail, brings the earlier state back."""

    def __init__(self, aside: Path) -> None:
        self.aside = aside
        self.done: list[tuple[Path, Path | None]] = []

    def replace(self, staged: Path, target: Path, *, overwrite: bool) -> None:
        old = None
        if not overwrite:
            # unlike a rename, a link fails where something has appeared under the name meanwhile
            try:
                os.link(staged, target)
            except FileExistsError as error:
                raise UsageError(
                    f"the output {target} exists by now", "Pass --force (overwrite=True in Python) to replace it."
                ) from error
            except OSError:  # a file system without hard links
                check_output(target, source=None, overwrite=False)
                staged.replace(target)
        else:
            if target.exists():
                staged.chmod(stat.S_IMODE(target.stat().st_mode))
                old = self._set_aside(target)
            staged.replace(target)
        self.done.append((target, old))

    def _set_aside(self, target: Path) -> Path:
        old = self.aside / f"old-{len(self.done)}"
        try:
            os.link(target, old, follow_symlinks=False)
        except OSError:  # a file system without hard links
            shutil.copy2(target, old)
        return old

    def roll_back(self) -> None:
        for target, old in reversed(self.done):
            if old is None:
                target.unlink(missing_ok=True)
            else:
                old.replace(target)


@contextlib.contextmanager
def _staging(target: Path, *, own_folder: bool) -> Iterator[tuple[Path, _Undo]]:
    """A temporary name on the target's file system; whatever is left under it disappears at the end.

    A model that shares weight files has to stand beside them, any other stands in a folder of its own.
    """
    try:
        aside = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".tmp", dir=target.parent))
    except OSError as error:
        raise UsageError(f"cannot write into {target.parent}: {error.strerror}", "Choose another folder.") from error
    staged = aside / target.name if own_folder else target.parent / f"{aside.name}.onnx"
    undo = _Undo(aside)
    try:
        yield staged, undo
    except OSError as error:
        undo.roll_back()
        raise UsageError(
            f"cannot write {target}: {error.strerror or error}", "Free some space or choose another folder."
        ) from error
    except BaseException:
        undo.roll_back()
        raise
    finally:
        staged.unlink(missing_ok=True)
        shutil.rmtree(aside, ignore_errors=True)


def _with_weights_in(
    proto: onnx.ModelProto,
    references: dict[tuple[str, int, int], _Reference],
    out: BinaryIO,
    name: str,
    *,
    all_large: bool,
) -> tuple[onnx.ModelProto, int]:
    """A copy of ``proto`` whose external data (and large inline data, if asked) are in ``out``; bytes written."""
    copy = _without_inline_weights(proto) if all_large else _copy(proto)
    places: dict[tuple[str, int, int], int] = {}
    for tensor in external_tensors(copy):
        if not tensor.external_data:
            continue  # taken out of the message just now; written below
        key = external_reference(tensor)
        if key not in places:
            places[key] = _append(out, _chunks(references[key]), key[2])
        _point_at(tensor, name, places[key], key[2])
    if all_large:
        for tensor, original in zip(copy.graph.initializer, proto.graph.initializer, strict=True):
            if tensor.data_location == TensorProto.EXTERNAL and not tensor.external_data:
                size = len(original.raw_data)
                _point_at(tensor, name, _append(out, [original.raw_data], size), size)
    return copy, out.tell()


def _copy(proto: onnx.ModelProto) -> onnx.ModelProto:
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    return copy


def _without_inline_weights(proto: onnx.ModelProto) -> onnx.ModelProto:
    """A copy of everything but the data of large initializers, which are marked as external without a place."""
    copy = onnx.ModelProto()
    for field, value in proto.ListFields():
        if field.name == "graph":
            continue
        if field.is_repeated:
            getattr(copy, field.name).MergeFrom(value)
        elif field.message_type is not None:
            getattr(copy, field.name).CopyFrom(value)
        else:
            setattr(copy, field.name, value)
    for field, value in proto.graph.ListFields():
        if field.name == "initializer":
            continue
        if field.is_repeated:
            getattr(copy.graph, field.name).MergeFrom(value)
        else:
            setattr(copy.graph, field.name, value)
    for tensor in proto.graph.initializer:
        if len(tensor.raw_data) < 1024:
            copy.graph.initializer.append(tensor)
            continue
        copy.graph.initializer.add(
            name=tensor.name,
            data_type=tensor.data_type,
            dims=tensor.dims,
            doc_string=tensor.doc_string,
            metadata_props=tensor.metadata_props,
            data_location=TensorProto.EXTERNAL,
        )
    return copy


def _point_at(tensor: TensorProto, location: str, offset: int, length: int) -> None:
    del tensor.external_data[:]
    for key, value in (("location", location), ("offset", str(offset)), ("length", str(length))):
        tensor.external_data.add(key=key, value=value)


def _append(out: BinaryIO, chunks: Any, length: int) -> int:
    place = out.tell()
    step = _ALIGNMENT if length >= _ALIGNMENT else 16
    padding = -place % step
    out.write(b"\0" * padding)
    for chunk in chunks:
        out.write(chunk)
    return place + padding


def _chunks(reference: _Reference) -> Iterator[bytes]:
    with reference.file.open("rb") as file:
        file.seek(reference.offset)
        left = reference.length
        while left:
            chunk = file.read(min(left, _CHUNK))
            if not chunk:
                raise ModelError(f"the weight file {reference.file} is too short", "Copy or export it again.")
            left -= len(chunk)
            yield chunk


def _write(path: Path, proto: onnx.ModelProto) -> None:
    try:
        data = proto.SerializeToString(deterministic=True)
    except Exception as error:  # protobuf's own exception types differ between its implementations
        raise ModelError(
            f"{path.name} cannot be written: the model is larger than protobuf's 2 GiB",
            "Save the original with external data first: onnx.save(..., save_as_external_data=True).",
        ) from error
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


# -- checking ---------------------------------------------------------------------------------------------------------


def _check(staged: Path, origin: Path | None) -> None:
    """The written file loads and is valid, or complains of nothing new."""
    load_model(staged)
    complaint = _complaint(staged) and _complaint_without_runtime_ops(staged)
    if complaint and (origin is None or _complaint(origin) != complaint):
        raise ModelError(
            f"the result would not be a valid model: {complaint}",
            "Please report this with the original model."
            if origin is not None
            else "If the original has the same fault, pass source=<its path> to save it nevertheless.",
        )


def _complaint_without_runtime_ops(staged: Path) -> str:
    """The complaint about a file whose operators that only onnxruntime knows are moved out of the checker's sight."""
    proto = onnx.ModelProto()
    proto.ParseFromString(staged.read_bytes())
    for nodes in _node_lists(proto):
        for node in nodes:
            if node.op_type in _RUNTIME_OPS and node.domain in ("", "ai.onnx"):
                node.domain = _UNCHECKED
    proto.opset_import.add(domain=_UNCHECKED, version=1)
    for function in proto.functions:
        function.opset_import.add(domain=_UNCHECKED, version=1)
    copy = staged.with_name(f"{staged.name}.check")
    try:
        _write(copy, proto)
        return _complaint(copy)
    finally:
        copy.unlink(missing_ok=True)


def _node_lists(proto: onnx.ModelProto) -> Iterator[Iterable[onnx.NodeProto]]:
    work: list[Iterable[onnx.NodeProto]] = [proto.graph.node, *(f.node for f in proto.functions)]
    while work:
        nodes = work.pop()
        yield nodes
        for node in nodes:
            for attribute in node.attribute:
                work += [g.node for g in [*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs]]


def _complaint(path: Path) -> str:
    """The first line of what onnx's checker says about a file; empty where it is content."""
    try:
        onnx.checker.check_model(path)
    except Exception as error:  # the checker raises several types, some of them from C++
        return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
    return ""
