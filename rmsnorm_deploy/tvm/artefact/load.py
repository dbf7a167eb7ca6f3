"""A compiled folder as a function; needs TVM's runtime, not the model."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping, Sequence, Set
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import tvm
from numpy.typing import NDArray

from rmsnorm_deploy.errors import MissingEnvironment, ModelError, UsageError, last_line
from rmsnorm_deploy.model.files import StrPath
from rmsnorm_deploy.tvm.artefact import carried, cubin, weights
from rmsnorm_deploy.tvm.artefact import description as describing
from rmsnorm_deploy.tvm.artefact.description import LIBRARY, WEIGHTS
from rmsnorm_deploy.tvm.targets.device import device_for
from rmsnorm_deploy.tvm.targets.machines import machine_of, this_machine

Array = NDArray[Any]


class CompiledModel:
    """A compiled model: call it with ``{name: array}``, and it returns ``{name: array}``.

    Attributes:
        description: what ``model.json`` says: inputs, outputs, target, versions.
    """

    def __init__(self, description: dict[str, Any], main: Any, weights: Sequence[Any], device: Any) -> None:
        self.description = description
        self._main = main
        self._weights = weights
        self._device = device

    def __call__(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """Run the model.

        Args:
            feeds: an array for each input, of exactly its type and of a shape that it allows.

        Raises:
            UsageError: an input is missing, unknown, or of another type or shape.
        """
        inputs = self.description["inputs"]
        unknown = sorted(set(feeds) - {i["name"] for i in inputs})
        if unknown:
            raise UsageError(
                f"the model has no input '{unknown[0]}'", f"It has: {', '.join(i['name'] for i in inputs)}."
            )
        sizes: dict[str, int] = {}
        not_empty = set(self.description["not_empty"])
        values = [tvm.runtime.tensor(_checked(i, feeds, sizes, not_empty), self._device) for i in inputs]
        results = self.run_tensors(*values)
        return {o["name"]: r.numpy() for o, r in zip(self.description["outputs"], results, strict=True)}

    def run_tensors(self, *inputs: Any) -> Sequence[Any]:
        """Run the model on TVM tensors that are on its device, without copies and without checks but TVM's own.

        Args:
            inputs: a ``tvm.runtime.Tensor`` for each input, in the order of ``description["inputs"]``.

        Returns:
            A new ``tvm.runtime.Tensor`` for each output, in their order.
        """
        results = self._main(*inputs, *self._weights)
        return [results] if len(self.description["outputs"]) == 1 else list(results)


def _checked(wanted: dict[str, Any], feeds: Mapping[str, Array], sizes: dict[str, int], not_empty: Set[str]) -> Array:
    name = wanted["name"]
    if name not in feeds:
        raise UsageError(f"input '{name}' is missing", f"Its type is {wanted['type']}, its shape {wanted['shape']}.")
    value = np.asarray(feeds[name])
    dtype = np.dtype(ml_dtypes.bfloat16 if wanted["type"] == "bfloat16" else wanted["type"])
    if value.dtype != dtype:
        raise UsageError(f"input '{name}' is {value.dtype}, not {dtype}", "Convert it before the call.")
    shape = wanted["shape"]
    if shape is not None:
        fits = len(shape) == value.ndim
        for dim, size in zip(shape, value.shape, strict=False):
            expected = dim if isinstance(dim, int) else size if dim == "?" else sizes.setdefault(dim, size)
            fits = fits and expected == size
        if not fits:
            raise UsageError(
                f"input '{name}' has shape {list(value.shape)}, not {shape}", "Equal names are equal sizes."
            )
        labels = [f"{name}[{i}]" if d == "?" else d for i, d in enumerate(shape)]
        empty = [label for label, size in zip(labels, value.shape, strict=True) if size == 0 and label in not_empty]
        if empty:
            raise UsageError(f"dimension '{empty[0]}' of input '{name}' is 0", "This model needs at least one of it.")
    return np.asarray(value, order="C")  # ascontiguousarray would give a scalar a dimension


def load(path: StrPath, *, verify_weights: bool = True) -> CompiledModel:
    """The model in a folder that :func:`rmsnorm_deploy.tvm.compile` wrote, for this process.

    Args:
        path: the folder.
        verify_weights: compare the weights with their hash, which takes about a second for 1 GiB; without it only
            their size and their beginning are checked.

    Raises:
        ModelError: the folder is not one, or is incomplete or damaged.
        MissingEnvironment: it was made by another release of TVM or for another architecture, or its device is not
            there.
    """
    folder = Path(path)
    description = describing.read(folder)
    made_for = machine_of(description["mtriple"])
    if made_for != this_machine():
        raise MissingEnvironment(
            f"{folder} was compiled for {made_for}, and this machine is {this_machine()}",
            "Run it on such a machine, or compile it without --mtriple.",
        )
    if description["tvm"].split(".")[:2] != tvm.__version__.split(".")[:2]:
        raise MissingEnvironment(
            f"{folder} was made by TVM {description['tvm']}, and this is {tvm.__version__}", "Compile it again."
        )
    describing.require_unchanged(folder, description)
    device = device_for(description["target"])
    describing.require_whole(folder / WEIGHTS, description["weights"], hashed=verify_weights)
    for name, said in description["kernel_files"].items():
        describing.require_whole(folder / name, said)
    beside = carried.name_of(description)
    if beside is not None:
        describing.require_whole(folder / beside, description["blas"]["file"])
    library = _opened(folder / LIBRARY, description["library"], beside)
    if description["kernel_files"]:
        cubin.attach(library.imports[0], folder)
    machine = tvm.relax.VirtualMachine(library, device)
    values = weights.load(folder / WEIGHTS, description["weights"], device)
    return CompiledModel(description, machine["main"], values, device)


def _opened(path: Path, said: Mapping[str, Any], beside: str | None) -> Any:
    """The library at ``path``, also where another one was there when this process loaded it last.

    The system's loader goes by the path: asked for one that it knows, it answers with what it has. So it gets a copy,
    under a path that nobody used before; the weights, which are most of a model, are not in it. A library of which a
    part is missing or damaged would end the process, so the copy is compared with what ``said`` is known of it.
    ``beside`` names the library that it looks for in its own folder.
    """
    if not path.is_file():
        raise ModelError(f"{path.parent} lacks {path.name}", "Copy the whole folder again, or compile it again.")
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / path.name
        try:
            shutil.copyfile(path, copy)
        except OSError as error:
            raise ModelError(f"{path} cannot be read: {error.strerror}", "Check its permissions.") from error
        try:
            describing.require_whole(copy, said)
        except ModelError as error:
            raise ModelError(error.message.replace(str(copy), str(path)), error.hint) from None
        if beside is not None:
            (Path(folder) / beside).symlink_to(path.parent.absolute() / beside)
        try:
            return tvm.runtime.load_module(str(copy))
        except RuntimeError as error:
            raise ModelError(
                f"{path} cannot be loaded: {last_line(error)}", "Compile it again, for this machine."
            ) from error
