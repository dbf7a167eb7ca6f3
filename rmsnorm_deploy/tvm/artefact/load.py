"""A compiled folder as a function; needs TVM's runtime, not the model."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tvm

from rmsnorm_deploy.errors import MissingEnvironment, ModelError, last_line
from rmsnorm_deploy.model.files import StrPath
from rmsnorm_deploy.tvm.artefact import carried, cubin, weights
from rmsnorm_deploy.tvm.artefact import description as describing
from rmsnorm_deploy.tvm.artefact.arrays import Array, numpy_dtype, numpy_of
from rmsnorm_deploy.tvm.artefact.description import LIBRARY, WEIGHTS
from rmsnorm_deploy.tvm.artefact.feeds import Feeds
from rmsnorm_deploy.tvm.targets.device import device_for
from rmsnorm_deploy.tvm.targets.machines import machine_of, this_machine


class CompiledModel:
    """A compiled model: call it with ``{name: array}``, and it returns ``{name: array}``.

    Attributes:
        description: what ``model.json`` says: inputs, outputs, target, versions.
    """

    def __init__(self, description: dict[str, Any], main: Any, weights: Sequence[Any], device: Any) -> None:
        self.description = description
        self._main = main
        self._weights = weights
        self._feeds = Feeds(description["inputs"], frozenset(description["not_empty"]), device)
        self._outputs = [(o["name"], numpy_dtype(o["type"])) for o in description["outputs"]]
        self._names = [name for name, _ in self._outputs]
        self._plain = device == tvm.cpu() and all(dtype.kind != "V" for _, dtype in self._outputs)

    def __call__(self, feeds: Mapping[str, Any]) -> dict[str, Array]:
        """Run the model.

        On a CPU nothing is copied: arrays are read where they are, and outputs are NumPy arrays in memory that TVM
        made for them, which lives as long as they do and is nobody else's. Only an input with gaps between its rows,
        of the other byte order, or whose elements lie across their natural places is copied. For a GPU, NumPy arrays
        are copied there and outputs are copied back; see :meth:`tensors`.

        Args:
            feeds: for each input an array of exactly its type and of a shape that it allows: a NumPy array, anything
                that NumPy makes an array of, or what has ``__dlpack__``, such as a tensor of PyTorch or CuPy. None is
                changed.

        Raises:
            UsageError: an input is missing, unknown, or of another type or shape.
        """
        results = self.run_tensors(*self._feeds.tensors(feeds))
        if self._plain:  # nothing to ask each of many
            return dict(zip(self._names, map(np.from_dlpack, results), strict=True))
        return {n: numpy_of(r, dtype) for (n, dtype), r in zip(self._outputs, results, strict=True)}

    def tensors(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """Run the model, and leave its outputs where they are: ``torch.from_dlpack(outputs[name])`` takes them there.

        Args:
            feeds: as for a call. What is on the model's device is taken in place, outputs of a call before among them.

        Returns:
            A ``tvm.runtime.Tensor`` on the model's device for each output.

        Raises:
            UsageError: as for a call.
        """
        results = self.run_tensors(*self._feeds.tensors(feeds))
        return {name: result for (name, _), result in zip(self._outputs, results, strict=True)}

    def run_tensors(self, *inputs: Any) -> Sequence[Any]:
        """Run the model on TVM tensors that are on its device, without copies and without checks but TVM's own.

        Args:
            inputs: a ``tvm.runtime.Tensor`` for each input, in the order of ``description["inputs"]``.

        Returns:
            A new ``tvm.runtime.Tensor`` for each output, in their order.
        """
        results = self._main(*inputs, *self._weights)
        # a slice is a list, in a third of the time that list() takes
        return [results] if len(self._outputs) == 1 else results[:]


ALWAYS_VERIFIED = 256 << 20
"""Bytes of weights that are compared with their hash where the caller does not say otherwise."""


def load(path: StrPath, *, verify_weights: bool | None = None) -> CompiledModel:
    """The model in a folder that :func:`rmsnorm_deploy.tvm.compile` wrote, for this process.

    On a CPU the weights are mapped, not read: that takes no time, and all processes share their pages. So do not write
    to the files of a folder while it is loaded; put another folder in its place.

    Args:
        path: the folder.
        verify_weights: compare the weights with their hash, which reads them: about a second for 1 GiB. Where it is
            False only their size and their beginning are compared, and so it is by default from 256 MiB on.

    Raises:
        ModelError: the folder is not one, or is incomplete or damaged.
        MissingEnvironment: it was made by another release of TVM or for another architecture, or its device is not
            there, or the cuBLAS that it calls.
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
    if verify_weights is None:
        verify_weights = description["weights"]["bytes"] <= ALWAYS_VERIFIED
    describing.require_whole(folder / WEIGHTS, description["weights"], hashed=verify_weights)
    for name, said in description["kernel_files"].items():
        describing.require_whole(folder / name, said)
    beside = carried.name_of(description)
    if beside is not None:
        describing.require_whole(folder / beside, description["blas"]["file"])
    carried.open_beforehand(description)
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
