"""Operators whose inputs' sizes must agree, where sizes are expressions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import relax

from rmsnorm_deploy.tvm.importer.operator import Operator
from rmsnorm_deploy.tvm.sizes import broadcasting
from rmsnorm_deploy.tvm.sizes.dimensions import is_static


def _concat(o: Operator) -> Any:
    """Sizes beside the axis have to be equal; what cannot be proven is checked by the model."""
    shapes = [o.shape(i) for i in range(len(o.inputs))]
    first = shapes[0]
    if first is None or any(s is None for s in shapes) or all(is_static(s) for s in shapes if s is not None):
        return None
    axis = o.attr["axis"] % len(first)
    values = []
    for i, sizes in enumerate(s for s in shapes if s is not None):
        wanted = [*first[:axis], sizes[axis], *first[axis + 1 :]]
        values.append(o.with_sizes(o.input(i), wanted))
    return relax.op.concat(values, axis)


def _elementwise(o: Operator) -> Any:
    """Never a result: only the inputs are made to fit, and TVM's converter goes on."""
    if all(i is not None for i in o.inputs):
        values = [o.input(i) for i in range(len(o.inputs))]
        fitting = broadcasting.unified(o.bb, o.dims, values)
        o.inputs = values if fitting is None else fitting


def _pairwise(name: str) -> Callable[[Operator], Any]:
    def convert(o: Operator) -> Any:
        shapes = [o.shape(i) for i in range(len(o.inputs))]
        if any(s is None for s in shapes) or all(is_static(s) for s in shapes if s is not None):
            return None
        _elementwise(o)
        total = o.inputs[0]
        for value in o.inputs[1:]:
            total = o.emit(broadcasting.PAIRWISE[name](total, value))
        return total

    return convert


CONVERTERS: dict[str, Callable[[Operator], Any]] = {
    "Concat": _concat,
    **{name: _elementwise for name in broadcasting.ELEMENTWISE},
    **{name: _pairwise(name) for name in broadcasting.PAIRWISE},
}
"""By the operator's name. Each returns None where TVM's own converter does as well."""
