"""Writing a model file: all of it, checked, or nothing."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, get_args

import onnx
import onnx_ir as ir

from rmsnorm_deploy.errors import ModelError, RmsNormDeployError, UsageError, first_line
from rmsnorm_deploy.model.atomic import Staging, staging, write_new
from rmsnorm_deploy.model.commit import commit_weights, old_weights
from rmsnorm_deploy.model.copying import Told
from rmsnorm_deploy.model.external import weights_folder
from rmsnorm_deploy.model.files import StrPath, check_output, output_path, same_file
from rmsnorm_deploy.model.leftovers import remove_leftovers
from rmsnorm_deploy.model.load import PROTOBUF_LIMIT
from rmsnorm_deploy.model.made import OUTSIDE, Made, put_inside, set_aside
from rmsnorm_deploy.model.sound import require_sound
from rmsnorm_deploy.model.turns import one_at_a_time
from rmsnorm_deploy.model.validity import check_written
from rmsnorm_deploy.model.weights import (
    NOTHING_MADE,
    References,
    references,
    renamed,
    with_weights_in,
    with_weights_inside,
)

_SPARE = 64 * 2**20
"""Room for everything in a message that is not weights."""

Weights = Literal["keep", "copy", "embed"]
"""What becomes of weights outside the model: the same files, a new file beside the output, or inside the output."""


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
    weights: Weights | str | None = None,
    progress: Told | None = None,
) -> SavedModel:
    """Write ``model`` to ``path``: to a temporary name in the same folder first, checked, then renamed.

    An output in the folder of ``source`` keeps pointing at the same weight files. Anywhere else the weights are copied
    into one file beside it, ``<name>.data``. So they are, one at a time, where some are computed while they are
    written, as in an ``onnx_ir.Model`` from :func:`rmsnorm_deploy.convert`. Equal models give equal bytes. One rename
    replaces an output and its weights: new weights get a name that the old model does not use, and the old ones go
    afterwards.

    Args:
        model: what to write; it is not changed.
        path: the output file.
        source: the file that the model came from. External data of an ``onnx.ModelProto`` are relative to its folder;
            without it, to the output's.
        overwrite: replace an existing output.
        check: called with the complete model under its temporary name; what it raises prevents the output.
        weights: ``keep``: the output uses the original's weight files, which are in its folder; ``copy``: it gets a
            file of its own; ``embed``: they go into the model. The first in the original's folder and the second
            anywhere else, unless it is said here. Weights that the model has inside stay there.
        progress: called while weights are copied, with words and with the bytes that are done and that there are.

    Raises:
        UsageError: the output exists, is the input or a weight file, has a name that no file can have, its folder is
            missing or not writable, or the weights cannot be where ``weights`` wants them.
        ModelError: the model is not valid, or its weight files are not there or not safe to read.
    """
    with saving(
        model, path, source=source, overwrite=overwrite, check=check, weights=weights, progress=progress
    ) as saved:
        return saved


@contextlib.contextmanager
def saving(
    model: onnx.ModelProto | ir.Model,
    path: StrPath,
    *,
    source: StrPath | None = None,
    overwrite: bool = False,
    check: Callable[[Path], None] | None = None,
    weights: Weights | str | None = None,
    progress: Told | None = None,
) -> Iterator[SavedModel]:
    """As :func:`save`, for whoever has to tell of the result: if that fails, the output is taken back.

    Raises:
        UsageError, ModelError: as :func:`save`, before the body begins.
    """
    if weights is not None and weights not in get_args(Weights):
        raise UsageError(f"there is no way '{weights}' to treat weights", f"Choose {', '.join(get_args(Weights))}.")
    target, origin = output_path(path), Path(source) if source is not None else None
    remove_leftovers(target.parent)  # they may stand in the way
    check_output(target, source=origin, overwrite=overwrite)
    proto, folder, made = _proto_and_folder(model, target, origin)
    known = references(proto, folder)
    for file in {r.file for r in known.values()}:
        if same_file(file, target):
            raise UsageError(f"the output {target} is a weight file of the model", "Choose another output.")
    outside = sum(r.length for r in known.values())
    to_make = sum(tensor.nbytes for tensor in made.values())
    telling, copied, note = _Telling(progress), 0, ""
    if weights == "embed" and (known or made):
        _check_embedding(_inline_size(proto) + outside + to_make, target)
        telling.begins(f"reading weights into {target.name}", outside)
        proto, known = with_weights_inside(proto, known, telling), {}
        copied = outside
        note = f"it has {(outside + to_make) / 2**20:.1f} MiB of weights inside that were outside the original"
    shared = bool(known) and same_file(folder, target.parent) and weights != "copy"
    if weights == "keep" and known and not shared:
        raise UsageError(
            f"the weights are in {folder}, and a model can only use those in its own folder",
            f"Write the output into {folder}, or use --weights copy.",
        )
    large = _inline_size(proto) + to_make + _SPARE > PROTOBUF_LIMIT
    elsewhere = large or (known and (made or not shared))
    elsewhere = elsewhere or (weights != "embed" and any(OUTSIDE in t.meta for t in made.values()))
    data = target.with_name(target.name + ".data") if elsewhere else None
    if data is not None:
        _check_data(data, overwrite, known)
    with staging(target) as stage, _beside_weights(target, stage, shared and data is None) as staged:
        if data is not None:
            _require_space(target.parent, outside + to_make)
            telling.begins(f"copying weights to {data.name}", outside + to_make)
            with (stage.folder / data.name).open("xb") as out:
                proto, copied = with_weights_in(proto, known, out, data.name, all_large=large, made=made, told=telling)
                out.flush()
                telling.begins(f"waiting for the disk to have {data.name}", 0)
                os.fsync(out.fileno())
        elif made:
            put_inside(proto, made)
        write_new(staged, _serialized(proto, target))
        check_written(staged, origin)
        if check is not None:
            check(staged)
        with one_at_a_time(target.parent):
            old = old_weights(target) if overwrite else []
            if data is not None:
                data = commit_weights(stage, stage.folder / data.name, data, old, overwrite=overwrite)
                if data.name != target.name + ".data":
                    renamed(proto, target.name + ".data", data.name)
                    staged.unlink()
                    write_new(staged, _serialized(proto, target))
            stage.replaces(*(file for file in old if file != data))
            stage.publish(staged, target, overwrite=overwrite)
        names = (data.name,) if data is not None else tuple(sorted({r.location for r in known.values()}))
        saved = SavedModel(str(target), target.stat().st_size, names, copied, note or _note(names, copied))
        stage.settled = True
        yield saved


class _Telling:
    """Tells how many bytes are done, if anybody wants to know."""

    def __init__(self, progress: Told | None) -> None:
        self._progress, self._words, self._done, self._all = progress, "", 0, 0

    def begins(self, words: str, size: int) -> None:
        """Something else begins, of so many bytes; 0 where that is not known."""
        self._words, self._done, self._all = words, 0, size
        self(0)

    def __call__(self, count: int) -> None:
        self._done += count
        if self._progress is not None:
            self._progress(self._words, self._done, max(self._all, self._done))


def _check_embedding(size: int, target: Path) -> None:
    if size + _SPARE > PROTOBUF_LIMIT:
        raise UsageError(
            f"the weights have {size / 2**30:.1f} GiB, and {target.name} can have 2 GiB with them inside",
            "Use --weights copy, or keep.",
        )


def _check_data(data: Path, overwrite: bool, known: References) -> None:
    """Whether the weights may be written to ``data``."""
    try:
        data.name.encode()
    except UnicodeError as error:
        raise UsageError(
            f"the output {data.stem!r} needs a weight file of its name, and a model names files in UTF-8",
            "Choose another name.",
        ) from error
    check_output(data, source=None, overwrite=overwrite)
    if any(same_file(data, r.file) for r in known.values()):
        raise UsageError(f"the weights would be written over themselves, {data}", "Choose another output.")


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
) -> tuple[onnx.ModelProto, Path, Made]:
    """The model as a proto, the folder to which its external data are relative, and data that are to be computed."""
    if isinstance(model, onnx.ModelProto):
        require_sound(model, "what is to be saved")
        return model, (target if origin is None else origin).parent, NOTHING_MADE
    folder = weights_folder(model)
    if folder is None:
        folder = origin.parent if origin is not None else Path()
    try:
        proto, made = set_aside(model)
        return proto, folder, made
    except RmsNormDeployError:
        raise
    except Exception as error:  # onnx_ir raises many types on graphs that contradict themselves
        why = first_line(error.__cause__ or error)
        raise ModelError(f"the model cannot be written: {why}", "Make it again from the original.") from error


def _inline_size(proto: onnx.ModelProto) -> int:
    """Bytes of the weights inside the message; asking protobuf for its size would build it."""
    return sum(len(t.raw_data) for t in proto.graph.initializer)


@contextlib.contextmanager
def _beside_weights(target: Path, stage: Staging, shares: bool) -> Iterator[Path]:
    """The model's temporary name: where it shares weight files it has to stand beside them."""
    if not shares:
        yield stage.folder / "model.onnx"
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
