"""Weights of products: which constants a product alone reads, and as arguments of the model that lie in panels."""

from __future__ import annotations

import collections
import math
from typing import Any

import tvm
from tvm import relax, tirx

from rmsnorm_deploy.tvm.passes.views import Bindings, View, is_call, view_of
from rmsnorm_deploy.tvm.schedules.products.weight import Laid, Weight

ATTRIBUTE = "rmsnorm_deploy.constants"
"""A module's attribute: of each argument that was a constant how it lies, and the constant.

How it lies is a :class:`Laid`, as text, or nothing for as it is."""
LARGE = 1 << 16
"""Bytes from which on a constant becomes an argument whoever reads it: else TVM would calculate what can be calculated
from it, and a weight of 16 or 8 bits would lie in the folder in 32."""
LEAST = 32
"""Columns from which on a panel is worth its zeros."""
FLOATS = ("float32", "float16", "bfloat16")


def arguments_of(module: Any) -> list[tuple[Laid | None, Any]]:
    """The constants of a module from the passes that are arguments: how each lies, and the tensor."""
    attributes = module.attrs
    found = attributes[ATTRIBUTE] if attributes is not None and ATTRIBUTE in attributes else []
    return [(Laid.from_text(str(text)) if text else None, tensor) for text, tensor in found]


class Constants:
    """The constants of ``main`` that products read, as far as they have become arguments.

    Attributes:
        arguments: of ``main``, behind those that there are.
        saved: for :data:`ATTRIBUTE`.
    """

    def __init__(self, function: Any, bindings: Bindings) -> None:
        self.bindings = bindings
        self.arguments: list[Any] = []
        self.saved: list[Any] = []
        self._known: dict[Any, Any] = {}
        self._readers: dict[Any, list[Any]] = collections.defaultdict(list)
        relax.analysis.post_order_visit(function, self._look)

    def _look(self, expression: Any) -> None:
        """Note who reads what; whatever is not the argument of a call is read by None."""
        if isinstance(expression, relax.SeqExpr):
            for block in expression.blocks:
                for binding in block.bindings:
                    value: Any = getattr(binding, "value", None)
                    call = isinstance(value, relax.Call)
                    for read in value.args if call else _parts(value):
                        for part in [read] if call and not isinstance(read, relax.Tuple) else _parts(read):
                            self._note(part, binding if call else None)
            for part in _parts(expression.body):
                self._note(part, None)

    def _note(self, value: Any, binding: Any) -> None:
        if isinstance(value, tvm.ir.GenericConst):
            self._readers[_key(value)].append(binding)
        elif isinstance(value, relax.Var):
            self._readers[value].append(binding)

    def _multiplied_only(self, value: Any) -> bool:
        """Whether ``value`` is nothing but the right factor of products, as it is or transposed."""
        readers = self._readers[_key(value) if isinstance(value, tvm.ir.GenericConst) else value]
        for binding in readers:
            if binding is None:
                return False
            call = binding.value
            if is_call(call, "permute_dims"):
                if not self._multiplied_only(binding.var):
                    return False
            elif not is_call(call, "matmul") or _same(call.args[0], value) or not _same(call.args[1], value):
                return False
        return bool(readers)

    def weight(self, value: Any) -> tuple[Weight, list[Any]] | None:
        """The right factor of a product as a weight, with its arguments; None where it is not a constant."""
        view = view_of(value, self.bindings)
        if view is None or len(view.sizes) != 2 or any(shared != 1 for _, shared in view.axes):
            return None
        terms, columns = view.sizes
        if not isinstance(terms, tirx.IntImm) or not isinstance(columns, tirx.IntImm):
            return None
        if int(columns) < LEAST or int(terms) == 0:
            return None
        return self._plain(view, int(terms), int(columns))

    def _plain(self, view: View, terms: int, columns: int) -> tuple[Weight, list[Any]] | None:
        constant = constant_of(view.value, self.bindings)
        if constant is None or not self._multiplied_only(constant):
            return None
        if isinstance(view.value, relax.Var) and not self._multiplied_only(view.value):
            return None
        dtype = str(constant.value.dtype)
        if dtype not in FLOATS:
            return None
        weight = Weight(dtype, terms, columns)
        return weight, [self.argument(Laid(False, 0, view.axes[0][0] == 1, weight.shape, dtype), constant.value)]

    def argument(self, laid: Laid | None, tensor: Any) -> Any:
        """The argument for a constant, in panels or as it is; equal ones are one."""
        key = (laid, tensor)
        if key not in self._known:
            ty = (
                relax.TensorType(tensor.shape, tensor.dtype)
                if laid is None
                else relax.TensorType(laid.shape, laid.dtype)
            )
            self._known[key] = relax.Var(f"constant_{len(self.arguments)}", ty)
            self.arguments.append(self._known[key])
            self.saved.append(["" if laid is None else laid.to_text(), tensor])
        return self._known[key]


def is_large(constant: Any) -> bool:
    """Whether a constant becomes an argument whoever reads it."""
    value = constant.value
    return isinstance(value, tvm.runtime.Tensor) and math.prod(value.shape) * value.dtype.itemsize >= LARGE


def constant_of(value: Any, bindings: Bindings) -> Any:
    """The constant that ``value`` is, or None."""
    while isinstance(value, relax.Var) and value in bindings:
        value = bindings[value]
    return value if isinstance(value, tvm.ir.GenericConst) and isinstance(value.value, tvm.runtime.Tensor) else None


def _key(constant: Any) -> Any:
    return constant.value


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, tvm.ir.GenericConst) and isinstance(b, tvm.ir.GenericConst):
        return bool(a.value == b.value)
    return bool(a.same_as(b)) if isinstance(a, relax.Var) and isinstance(b, relax.Var) else False


def _parts(value: Any) -> list[Any]:
    if isinstance(value, relax.Tuple):
        return [part for field in value.fields for part in _parts(field)]
    return [value]
