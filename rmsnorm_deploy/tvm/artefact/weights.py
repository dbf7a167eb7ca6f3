"""Weights as arguments instead of constants, so that they can be in a file of their own."""

from __future__ import annotations

import hashlib
import math
import mmap
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from tvm import relax

from rmsnorm_deploy.errors import MissingEnvironment, ModelError
from rmsnorm_deploy.tvm.artefact.arrays import WIDEST, numpy_dtype, numpy_of, tensor_on_cpu
from rmsnorm_deploy.tvm.artefact.description import HEAD

SMALLEST = 1024
"""Bytes from which on a constant is a weight; smaller ones stay in the library, except for empty ones,
which TVM cannot read back from there."""
_BEGINNING = b"rmsnorm_deploy weights\n"
ATTRIBUTE = "rmsnorm_deploy.weights"
"""A module's attribute: the weights, in the order of the arguments that follow the inputs of ``main``."""


def as_arguments(module: Any) -> Any:
    """``module`` with the large constants of ``main`` as arguments behind its inputs; equal constants are one."""
    lifting = _Lifting(module)
    result = lifting.run()
    return result.with_attr(ATTRIBUTE, lifting.values) if lifting.values else result


def of(module: Any) -> list[Any]:
    """The weights of a module from :func:`as_arguments`."""
    attributes = module.attrs
    return list(attributes[ATTRIBUTE]) if attributes is not None and ATTRIBUTE in attributes else []


def save(values: Sequence[Any], path: Path) -> dict[str, Any]:
    """Write ``values``, as they lie in memory; the result is what :func:`load` needs to know.

    Args:
        values: tensors on the CPU, or what has their ``shape`` and ``dtype`` and makes an array of them (``array()``).
        path: the file.

    Raises:
        MissingEnvironment: there is no space.
    """
    tensors: list[list[Any]] = []
    end = 0
    head, whole = hashlib.sha256(), hashlib.sha256()
    try:
        # hashing takes as long as writing, and neither needs the interpreter
        with path.open("wb") as file, ThreadPoolExecutor(1) as hashing:

            def put(data: Any) -> None:
                nonlocal end
                hashed = hashing.submit(whole.update, data)
                head.update(data[: max(0, HEAD - end)])
                file.write(data)
                hashed.result()
                end += len(data)

            put(_BEGINNING)
            for value in values:
                put(bytes(-end % WIDEST))
                tensors.append([list(map(int, value.shape)), str(value.dtype), end])
                if _size(value):
                    array = numpy_of(value) if isinstance(value, tvm.runtime.Tensor) else value.array()
                    put(array.reshape(-1).view(np.uint8).data)
    except OSError as error:
        raise MissingEnvironment(
            f"{path.name}, the weights, cannot be written: {error.strerror}", "Free some space."
        ) from error
    said = {"bytes": end, "sha256": whole.hexdigest(), "head_sha256": head.hexdigest()}
    return {"tensors": tensors, **said}


def load(path: Path, saved: Mapping[str, Any], device: Any) -> list[Any]:
    """What :func:`save` wrote, on ``device``.

    On a CPU the file is mapped: the system reads what is used, when it is used, once for all processes.

    Raises:
        ModelError: the file holds other weights.
    """
    try:
        with path.open("rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        values = [_placed(mapped, *tensor) for tensor in saved["tensors"]]
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ModelError(f"{path} holds no weights", "Copy the whole folder again, or compile it again.") from error
    return [v if device.dlpack_device_type() == v.device.dlpack_device_type() else v.copyto(device) for v in values]


def _placed(mapped: Any, shape: list[int], dtype: str, offset: int) -> Any:
    kind = numpy_dtype(dtype)
    return tensor_on_cpu(np.frombuffer(mapped, kind, math.prod(shape), offset).reshape(shape))


def _size(value: Any) -> int:
    return math.prod(value.shape)


@relax.expr_functor.mutator
class _Lifting(relax.PyExprMutator):  # type: ignore[misc]
    def __init__(self, module: Any) -> None:
        super().__init__(module)
        self.module = module
        self.values: list[Any] = []
        self.arguments: list[Any] = []
        self.seen: dict[Any, Any] = {}

    def run(self) -> Any:
        main = self.module.get_global_var("main")
        function = self.module[main]
        body = self.visit_expr(function.body)
        if self.values:
            attributes = {"num_input": len(function.params)} | dict(function.attrs)
            lifted = relax.Function(
                [*function.params, *self.arguments], body, function.ret_ty, function.is_pure
            ).with_attrs(attributes)
            self.builder_.update_func(main, lifted)
        return self.builder_.get()

    def visit_generic_const_(self, constant: Any) -> Any:
        value = constant.value
        if not isinstance(value, tvm.runtime.Tensor):
            return constant
        if 0 < _size(value) * value.dtype.itemsize < SMALLEST:
            return constant
        # one tensor used twice, as tied weights are, is one constant or two with the same memory
        key = value
        if key not in self.seen:
            self.seen[key] = relax.Var(f"weight_{len(self.values)}", relax.TensorType(value.shape, str(value.dtype)))
            self.arguments.append(self.seen[key])
            self.values.append(value)
        return self.seen[key]
