"""Products of matrices become calls of a BLAS library; equal products share a kernel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tvm
from tvm import relax, te, tirx

from rmsnorm_deploy.tvm.passes.constants import ATTRIBUTE, FLOATS, Constants, with_arguments
from rmsnorm_deploy.tvm.passes.views import Bindings, Names, View, bindings_of, is_call, same, sizes_of, view_of
from rmsnorm_deploy.tvm.schedules.products import cblas, panels
from rmsnorm_deploy.tvm.schedules.products.panels import PanelProduct
from rmsnorm_deploy.tvm.schedules.products.product import Operand, Product
from rmsnorm_deploy.tvm.schedules.products.weight import PANEL

WIDE = ("float32", "float64")
"""The types of CBLAS."""


def lower_products(prefix: str, *, small: bool) -> Callable[[Any], Any]:
    """The pass that has every product computed by the library whose names begin with ``prefix``.

    A product stays as it is where its type is not the library's, or sizes are not known.

    Args:
        prefix: see above.
        small: whether the library multiplies small matrices as they lie, without copying them first.
    """

    def lower(module: Any) -> Any:
        lowering = _Lowering(module, prefix, small)
        return lowering.run() if lowering.any() else module

    return lower


@relax.expr_functor.mutator
class _Lowering(relax.PyExprMutator):  # type: ignore[misc]
    def __init__(self, module: Any, prefix: str, small: bool) -> None:
        super().__init__(module)
        self.module = module
        self.prefix = prefix
        self.small = small
        self.bindings: Bindings = {}
        self.constants: Constants | None = None
        self.made: dict[Product | PanelProduct, Any] = {}

    def any(self) -> bool:
        return any("relax.matmul" in names for names in map(_operators, self.module.functions.values()))

    def run(self) -> Any:
        saved: list[Any] = []
        for name, function in self.module.functions_items():
            if isinstance(function, relax.Function):
                self.bindings = bindings_of(function)
                self.constants = Constants(function, self.bindings) if name.name_hint == "main" else None
                changed = self.visit_expr(function)
                if self.constants is not None and self.constants.arguments:
                    changed = with_arguments(changed, self.constants.arguments)
                    saved = self.constants.saved
                self.builder_.update_func(name, changed)
        module = self.builder_.get()
        return module.with_attr(ATTRIBUTE, saved) if saved else module

    def visit_call_(self, call: Any) -> Any:
        if is_call(call, "take") and self.constants is not None and call.attrs.axis == 0:
            rows = self.constants.rows(call.args[0])
            if rows is not None:
                return self.builder_.call_te(
                    _taken, rows, self.visit_expr(call.args[1]), int(call.args[0].ty.shape.values[0])
                )
        if not is_call(call, "matmul"):
            return super().visit_call_(call)
        lowered = self.by_panels(call)
        if lowered is None:
            found = described(call, self.bindings)
            if found is None:
                return super().visit_call_(call)
            product, a, b = found
            operands = [self.in_type(self.visit_expr(v), product.dtype) for v in (a, b)]
            lowered = self.kernel(product), operands
        kernel, operands = lowered
        return relax.op.call_tir(kernel, relax.Tuple(operands), call.ty)

    def by_panels(self, call: Any) -> tuple[Any, list[Any]] | None:
        """A product with a weight: its kernel and arguments."""
        dtype, sizes = str(call.ty.dtype.dtype), sizes_of(call.args[0])
        if self.constants is None or dtype not in ("float32", "int32") or not sizes:
            return None
        if str(call.args[0].ty.dtype.dtype) not in FLOATS:
            return None
        found = self.constants.weight(call.args[1])
        if found is None:
            return None
        weight, arguments = found
        if (dtype == "int32") != (weight.dtype in ("int8", "uint8") and not weight.scale):
            return None
        product = PanelProduct(Names().sizes(sizes[:-1]), weight, dtype, self.small)
        return self.kernel(product), [self.in_type(self.visit_expr(call.args[0]), "float32"), *arguments]

    def kernel(self, product: Product | PanelProduct) -> Any:
        if product not in self.made:
            taken = sum(other.name == product.name for other in self.made)
            name = product.name + (f"_{taken + 1}" if taken else "")
            made = (
                panels.kernel(product, self.prefix)
                if isinstance(product, PanelProduct)
                else cblas.kernel(product, self.prefix)
            )
            self.made[product] = self.builder_.add_func(made.with_attr("global_symbol", name), name)
        return self.made[product]

    def in_type(self, value: Any, dtype: str) -> Any:
        """``value`` as the library takes it: it knows no 16-bit types."""
        if str(value.ty.dtype.dtype) == dtype:
            return value
        return self.builder_.emit(relax.op.astype(value, dtype))


def _taken(panels: Any, indices: Any, count: int) -> Any:
    """Rows of a matrix whose transpose lies in panels; an index beyond an end is that end."""

    def value(*at: Any) -> Any:
        row = indices(*at[:-1]).astype("int64")
        row = tirx.max(tirx.min(row, tirx.const(count - 1, "int64")), tirx.const(0, "int64"))
        return panels(row // PANEL, at[-1], row % PANEL)

    return te.compute((*indices.shape, panels.shape[1]), value, name="taken")


def _operators(function: Any) -> set[str]:
    found: set[str] = set()

    def look(expression: Any) -> None:
        if isinstance(expression, relax.Call) and isinstance(expression.op, tvm.ir.Op):
            found.add(expression.op.name)

    if isinstance(function, relax.Function):
        relax.analysis.post_order_visit(function, look)
    return found


def described(
    call: Any, bindings: Bindings, factors: Sequence[Any] | None = None, dtypes: Sequence[str] = WIDE
) -> tuple[Product, Any, Any] | None:
    """A ``relax.matmul`` as a :class:`Product` with its two factors in memory; None where BLAS cannot compute it.

    Args:
        call: the product.
        bindings: of the function.
        factors: in place of the call's: the same values in other types.
        dtypes: of results that the library has.
    """
    result = sizes_of(call)
    dtype = str(call.ty.dtype.dtype)
    factors = call.args if factors is None else factors
    narrow = FLOATS if dtype == "float32" else (dtype,)
    if result is None or dtype not in dtypes or any(str(f.ty.dtype.dtype) not in narrow for f in factors):
        return None
    whole = [view_of(f, bindings) for f in factors]
    plain = [view_of(f, {}) for f in factors]
    # where a view is not what BLAS can read, it is carried out
    for a, b in ((0, 0), (0, 1), (1, 0), (1, 1)):
        left, right = (plain if a else whole)[0], (plain if b else whole)[1]
        if left is None or right is None:
            return None
        product = _product(dtype, result, left, right)
        if product is not None and product.possible():
            return product, left.value, right.value
    return None


def _product(dtype: str, result: list[Any], left: View, right: View) -> Product | None:
    names = Names()
    vectors = [len(v.sizes) == 1 for v in (left, right)]
    rank = len(result) + sum(vectors) - 2  # of the batch
    inner = [0 if vectors[0] else 1, 0 if vectors[1] else 1]
    ends = [len(left.sizes) - 1 - inner[0], len(right.sizes) - 1 - inner[1]]
    batch = names.sizes(result[:rank])
    a_batch = _batch(left, ends[0], result[:rank])
    b_batch = _batch(right, ends[1], result[:rank])
    matrix_axes = [*left.axes[ends[0] :], *right.axes[ends[1] :]]
    if any(shared != 1 for _, shared in matrix_axes):
        return None
    a_rows: tuple[int, ...] = () if vectors[0] else (left.axes[-2][0],)
    b_columns = () if vectors[1] else (right.axes[-1][0],)
    c_rows: tuple[int, ...] = () if vectors[0] else (rank,)
    c_columns = () if vectors[1] else (rank + (0 if vectors[0] else 1),)
    c_batch: tuple[tuple[int, int] | None, ...] = tuple((i, 1) for i in range(rank))
    plain = tuple((i, 1) for i in range(len(left.sizes)))
    if (
        not vectors[0]
        and all(place is None for place in b_batch)
        and left.axes == plain
        and len(left.sizes) == rank + 2
    ):
        # every matrix meets the same one: all rows together are one matrix
        a_rows = c_rows = tuple(range(rank + 1))
        batch, a_batch, b_batch, c_batch = (), (), (), ()
    a = Operand(names.sizes(sizes_of(left.value)), a_batch, a_rows, (left.axes[-1][0],))
    b_rows = right.axes[-1 if vectors[1] else -2][0]
    b = Operand(names.sizes(sizes_of(right.value)), b_batch, (b_rows,), b_columns)
    c = Operand(names.sizes(result), c_batch, c_rows, c_columns)
    return Product(dtype, batch, a, b, c)


def _batch(view: View, own: int, wanted: list[Any]) -> tuple[tuple[int, int] | None, ...]:
    """The place of each dimension of the batch in a factor with ``own`` of them; None where it is broadcast."""
    found: list[tuple[int, int] | None] = [None] * (len(wanted) - own)
    for i in range(own):
        size, place = view.sizes[i], view.axes[i]
        one = isinstance(size, tirx.IntImm) and int(size) == 1
        alone = one and not same(size, wanted[len(wanted) - own + i])
        found.append(None if alone else place)
    return tuple(found)
