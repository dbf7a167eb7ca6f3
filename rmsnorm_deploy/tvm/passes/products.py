"""Products of matrices become calls of a BLAS library; equal products share a kernel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tvm
from tvm import relax, tirx

from rmsnorm_deploy.tvm.passes.views import Bindings, Names, View, bindings_of, is_call, same, sizes_of, view_of
from rmsnorm_deploy.tvm.schedules.products import cblas
from rmsnorm_deploy.tvm.schedules.products.product import Operand, Product


def lower_products(prefix: str) -> Callable[[Any], Any]:
    """The pass that has every product computed by the library whose names begin with ``prefix``.

    A product stays as it is where its type is not the library's, or sizes are not known.
    """

    def lower(module: Any) -> Any:
        lowering = _Lowering(module, prefix)
        return lowering.run() if lowering.any() else module

    return lower


@relax.expr_functor.mutator
class _Lowering(relax.PyExprMutator):  # type: ignore[misc]
    def __init__(self, module: Any, prefix: str) -> None:
        super().__init__(module)
        self.module = module
        self.prefix = prefix
        self.bindings: Bindings = {}
        self.made: dict[Product, Any] = {}

    def any(self) -> bool:
        return any("relax.matmul" in names for names in map(_operators, self.module.functions.values()))

    def run(self) -> Any:
        for name, function in self.module.functions_items():
            if isinstance(function, relax.Function):
                self.bindings = bindings_of(function)
                self.builder_.update_func(name, self.visit_expr(function))
        return self.builder_.get()

    def visit_call_(self, call: Any) -> Any:
        found = described(call, self.bindings) if is_call(call, "matmul") else None
        call = super().visit_call_(call)
        if found is None:
            return call
        product, a, b = found
        if product not in self.made:
            taken = sum(other.name == product.name for other in self.made)
            name = product.name + (f"_{taken + 1}" if taken else "")
            kernel = cblas.kernel(product, self.prefix).with_attr("global_symbol", name)
            self.made[product] = self.builder_.add_func(kernel, name)
        operands = [self.visit_expr(v) for v in (a, b)]
        return relax.op.call_tir(self.made[product], relax.Tuple(operands), call.ty)


def _operators(function: Any) -> set[str]:
    found: set[str] = set()

    def look(expression: Any) -> None:
        if isinstance(expression, relax.Call) and isinstance(expression.op, tvm.ir.Op):
            found.add(expression.op.name)

    if isinstance(function, relax.Function):
        relax.analysis.post_order_visit(function, look)
    return found


def described(call: Any, bindings: Bindings) -> tuple[Product, Any, Any] | None:
    """A ``relax.matmul`` as a :class:`Product` with its two factors in memory; None where BLAS cannot compute it."""
    result = sizes_of(call)
    dtype = str(call.ty.dtype.dtype)
    factors = list(call.args)
    if result is None or any(str(f.ty.dtype.dtype) != dtype for f in factors):
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
