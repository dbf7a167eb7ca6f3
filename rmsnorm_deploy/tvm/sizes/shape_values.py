"""Integer tensors whose elements are known when a model is imported: sizes, and what is computed from sizes.

TVM's importer loses such a value as soon as it is reshaped, added to or compared, and then cannot tell the shape of
what is made with it. Here it stays what it is, through any arithmetic, until something needs it as a tensor.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm.ir
from numpy.typing import NDArray
from tvm import relax, te, tirx

from rmsnorm_deploy.tvm.sizes.dimensions import expression, is_static, plain_number, shape_of
from rmsnorm_deploy.tvm.sizes.kernel import emit_kernel

Elements = NDArray[np.object_]

LARGEST = 256
"""Number of elements from which on a constant is only a tensor: no shape has so many."""


class ShapeValue:
    """A tensor of numbers or of expressions of the inputs' sizes.

    Attributes:
        elements: an array of ``int``, ``bool``, ``float`` or TVM expressions.
        dtype: NumPy's name of the tensor's type.
        ty: TVM's type, which its importer asks every value for.
    """

    def __init__(self, elements: Any, dtype: str) -> None:
        self.elements = elements if isinstance(elements, np.ndarray) else array_of(elements)
        self.dtype = dtype
        self.ty = relax.TensorType(list(self.elements.shape), dtype)
        self._tensor: Any = None

    @property
    def static(self) -> bool:
        """Whether every element is a number."""
        return all(isinstance(e, (bool, int, float)) for e in self.elements.flat)

    def numpy(self) -> NDArray[Any]:
        """The numbers, of a static value."""
        return self.elements.astype(self.dtype)

    def list(self) -> list[Any]:
        """The elements of a vector or scalar."""
        return list(self.elements.flat)

    def tensor(self, bb: Any) -> Any:
        """The same as a Relax value, computed where the model runs."""
        if self._tensor is None:
            self._tensor = relax.const(self.numpy()) if self.static else self._computed(bb)
        return self._tensor

    def _computed(self, bb: Any) -> Any:
        shape, dtype = self.elements.shape, self.dtype

        values = [
            tirx.if_then_else(expression(e), expression(1), expression(0)) if dtype == "bool" else e
            for e in self.elements.flat
        ]

        def compute(*values: Any) -> Any:
            def element(*index: Any) -> Any:
                position: Any = 0
                for i, size in zip(index, shape, strict=True):
                    position = position * size + i
                result = values[-1]
                for number in reversed(range(len(values) - 1)):
                    result = tirx.if_then_else(position == number, values[number], result)
                return result != 0 if dtype == "bool" else result.astype(dtype)

            return te.compute(shape, element, name="shape_value")

        return emit_kernel(bb, "shape_value", compute, [], values)


def known(value: Any) -> ShapeValue | None:
    """``value`` as a ShapeValue if its elements are known, and not too many."""
    if isinstance(value, ShapeValue):
        return value
    if isinstance(value, tvm.ir.GenericConst) and hasattr(value.value, "numpy"):
        sizes = shape_of(value)
        if sizes is not None and is_static(sizes) and np.prod(sizes) <= LARGEST:
            array = value.value.numpy()
            if array.dtype.kind in "iubf" and array.dtype.itemsize <= 8:
                return ShapeValue(array.astype(object), str(array.dtype))
    return None


def array_of(elements: Any) -> Elements:
    """An object array; NumPy must not look into expressions, which are not sequences."""
    if isinstance(elements, np.ndarray):
        return elements.astype(object)
    if not isinstance(elements, (list, tuple)):
        scalar: Elements = np.empty((), object)
        scalar[()] = plain_number(elements)
        return scalar
    result: Elements = np.empty(len(elements), object)
    for i, e in enumerate(elements):
        result[i] = plain_number(e)
    return result
