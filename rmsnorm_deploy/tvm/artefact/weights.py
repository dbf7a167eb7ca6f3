"""Weights as arguments instead of constants, so that they can be in a file of their own."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tvm
from tvm import relax

from rmsnorm_deploy.errors import MissingEnvironment, ModelError
from rmsnorm_deploy.tvm.artefact.description import part

SMALLEST = 1024
"""Bytes from which on a constant is a weight; smaller ones stay in the library, except for empty ones."""
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
    """Write ``values``; the result, their number, the file's size and hashes, is what :func:`load` needs to know.

    Empty ones are only described: TVM cannot read those that it writes.

    Raises:
        MissingEnvironment: there is no space.
    """
    try:
        tvm.runtime.save_param_dict_to_file({str(i): v for i, v in enumerate(values) if _size(v)}, str(path))
    except RuntimeError as error:
        raise MissingEnvironment(f"{path.name}, the weights, cannot be written", "Free some space.") from error
    empty = {str(i): [list(v.shape), str(v.dtype)] for i, v in enumerate(values) if not _size(v)}
    return {"count": len(values), **part(path)} | ({"empty": empty} if empty else {})


def load(path: Path, saved: Mapping[str, Any], device: Any) -> list[Any]:
    """What :func:`save` wrote, on ``device``.

    Raises:
        ModelError: the file holds no weights, or others.
    """
    try:
        found = dict(tvm.runtime.load_param_dict_from_file(str(path)))
        found |= {i: tvm.runtime.empty(shape, dtype) for i, (shape, dtype) in saved.get("empty", {}).items()}
        values = [found[str(i)] for i in range(saved["count"])]
    except (RuntimeError, ValueError, KeyError) as error:
        raise ModelError(f"{path} holds no weights", "Copy the whole folder again, or compile it again.") from error
    return [v if device.dlpack_device_type() == v.device.dlpack_device_type() else v.copyto(device) for v in values]


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
        main = next(v for v, _ in self.module.functions_items() if v.name_hint == "main")
        function = self.module[main]
        body = self.visit_expr(function.body)
        if self.values:
            attributes = dict(function.attrs) | {"num_input": len(function.params)}
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
