"""Writing a model file: all of it, checked, or nothing."""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir

from rmsnorm_deploy.errors import ModelError, UsageError
from rmsnorm_deploy.model.atomic import Staging, staging, write_new
from rmsnorm_deploy.model.external import weights_folder
from rmsnorm_deploy.model.files import StrPath, check_output, same_file
from rmsnorm_deploy.model.load import PROTOBUF_LIMIT
from rmsnorm_deploy.model.validity import check_written
from rmsnorm_deploy.model.weights import references, with_weights_in

_SPARE = 64 * 2**20
"""Room for everything in a message that is not weights."""


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
    proto, folder = _proto_and_folder(model, target, origin)
    known = references(proto, folder)
    for file in {r.file for r in known.values()}:
        if same_file(file, target):
            raise UsageError(f"the output {target} is a weight file of the model", "Choose another output.")
    shared = bool(known) and same_file(folder, target.parent)
    large = _inline_size(proto) + _SPARE > PROTOBUF_LIMIT
    data = target.with_name(target.name + ".data") if large or (known and not shared) else None
    if data is not None:
        check_output(data, source=None, overwrite=overwrite)
        if any(same_file(data, r.file) for r in known.values()):
            raise UsageError(f"the weights would be written over themselves, {data}", "Choose another output.")
    copied = 0
    with staging(target) as stage, _beside_weights(target, stage, shared and data is None) as staged:
        if data is not None:
            _require_space(target.parent, sum(r.length for r in known.values()))
            with (stage.folder / data.name).open("xb") as out:
                proto, copied = with_weights_in(proto, known, out, data.name, all_large=large)
        write_new(staged, _serialized(proto, target))
        check_written(staged, origin)
        if check is not None:
            check(staged)
        if data is not None:
            stage.publish(stage.folder / data.name, data, overwrite=overwrite)
        stage.publish(staged, target, overwrite=overwrite)
    names = (data.name,) if data is not None else tuple(sorted({r.location for r in known.values()}))
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


def _proto_and_folder(
    model: onnx.ModelProto | ir.Model, target: Path, origin: Path | None
) -> tuple[onnx.ModelProto, Path]:
    """The model as a proto, and the folder to which its external data are relative."""
    if isinstance(model, onnx.ModelProto):
        return model, (target if origin is None else origin).parent
    folder = weights_folder(model)
    if folder is None:
        folder = origin.parent if origin is not None else Path()
    return ir.to_proto(model), folder


def _inline_size(proto: onnx.ModelProto) -> int:
    """Bytes of the weights inside the message; asking protobuf for its size would build it."""
    return sum(len(t.raw_data) for t in proto.graph.initializer)


@contextlib.contextmanager
def _beside_weights(target: Path, stage: Staging, shares: bool) -> Iterator[Path]:
    """The model's temporary name: where it shares weight files it has to stand beside them."""
    if not shares:
        yield stage.folder / target.name
        return
    staged = target.parent / f"{stage.folder.name}.onnx"
    try:
        yield staged
    finally:
        staged.unlink(missing_ok=True)


def _serialized(proto: onnx.ModelProto, target: Path) -> bytes:
    try:
        return bytes(proto.SerializeToString(deterministic=True))
    except Exception as error:  # protobuf's own exception types differ between its implementations
        raise ModelError(
            f"{target.name} cannot be written: the model is larger than protobuf's 2 GiB",
            "Save the original with external data first: onnx.save(..., save_as_external_data=True).",
        ) from error
