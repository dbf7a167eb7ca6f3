"""One ONNX operator while it is being imported."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tvm import relax

from rmsnorm_deploy.tvm.importer.dtypes import dtype_of
from rmsnorm_deploy.tvm.sizes.dimensions import Dimensions, expression, shape_of
from rmsnorm_deploy.tvm.sizes.shape_values import ShapeValue, known


class Operator:
    """One operator being imported.

    Attributes:
        bb: TVM's block builder.
        inputs: values, or None.
        attr: attributes by name.
        dims: what is known of sizes.
    """

    def __init__(self, bb: Any, inputs: Sequence[Any], attr: Mapping[str, Any], dims: Dimensions) -> None:
        self.bb = bb
        self.inputs = list(inputs)
        self.attr = attr
        self.dims = dims

    def input(self, i: int) -> Any:
        """Input ``i`` as a tensor, or None."""
        value = self.inputs[i] if i < len(self.inputs) else None
        return value.tensor(self.bb) if isinstance(value, ShapeValue) else value

    def value(self, i: int) -> list[Any] | None:
        """Elements of input ``i`` if they are known."""
        found = known(self.inputs[i]) if i < len(self.inputs) and self.inputs[i] is not None else None
        return None if found is None else found.list()

    def shape(self, i: int) -> list[Any] | None:
        """Sizes of input ``i`` if they are known."""
        sizes = shape_of(self.inputs[i])
        if sizes is not None:
            self.dims.bind(sizes)
        return sizes

    def known_shape(self, i: int) -> list[Any]:
        """Sizes of input ``i``.

        Raises:
            ValueError: TVM does not know them.
        """
        sizes = self.shape(i)
        if sizes is None:
            raise ValueError(f"the shape of input {i}, {self.inputs[i].ty}, is not known")
        return sizes

    def emit(self, call: Any) -> Any:
        """A variable for the result of ``call``."""
        return self.bb.emit(call)

    def sizes_of(self, value: Any) -> list[Any]:
        """Sizes of a tensor.

        Raises:
            ValueError: TVM does not know them.
        """
        sizes = shape_of(value)
        if sizes is None:
            raise ValueError(f"the shape of {value.ty} is not known")
        self.dims.bind(sizes)
        return sizes

    def with_sizes(self, value: Any, wanted: Sequence[Any]) -> Any:
        """``value`` with the sizes that it has to have; the model checks what cannot be proven."""
        if all(self.dims.equal(a, b) for a, b in zip(self.sizes_of(value), wanted, strict=True)):
            return value
        return self.bb.match_cast(value, relax.TensorType([expression(d) for d in wanted], dtype_of(value)))


def shape_expr(sizes: Sequence[Any]) -> Any:
    """Sizes as TVM's operators want them."""
    return relax.ShapeExpr([expression(d) for d in sizes])
