"""How a value lies in memory: through transpositions and repetitions, which then need not be carried out."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import tvm
import tvm_ffi
from tvm import relax, tirx

from rmsnorm_deploy.tvm.schedules.products.product import Size

Bindings = Mapping[Any, Any]
"""What each variable is bound to."""


@dataclasses.dataclass(frozen=True)
class View:
    """A tensor as another one sees it.

    Attributes:
        value: what is in memory.
        sizes: of the view.
        axes: for each dimension of the view, the axis of ``value``, and how many places in a row share one place there.
    """

    value: Any
    sizes: tuple[Any, ...]
    axes: tuple[tuple[int, int], ...]


def sizes_of(value: Any) -> list[Any] | None:
    """The sizes of a tensor, if they are known."""
    ty = value.ty
    if not isinstance(ty, relax.TensorType) or not isinstance(ty.shape, relax.ShapeExpr):
        return None
    return list(ty.shape.values)


def bindings_of(function: Any) -> dict[Any, Any]:
    """What each variable of ``function`` is bound to."""
    found: dict[Any, Any] = {}

    def look(expression: Any) -> None:
        if isinstance(expression, relax.SeqExpr):
            for block in expression.blocks:
                for binding in block.bindings:
                    if isinstance(binding, relax.VarBinding):
                        found[binding.var] = binding.value

    relax.analysis.post_order_visit(function, look)
    return found


class Names:
    """A name for each size that is known at run time only, in the order in which they are asked for."""

    def __init__(self) -> None:
        self.known: list[Any] = []

    def size(self, dim: Any) -> Size:
        """A number, or a name."""
        if isinstance(dim, tirx.IntImm):
            return int(dim)
        for i, other in enumerate(self.known):
            if same(other, dim):
                return f"s{i}"
        self.known.append(dim)
        return f"s{len(self.known) - 1}"

    def sizes(self, dims: Any) -> tuple[Size, ...]:
        """All of a shape."""
        return tuple(self.size(d) for d in dims)


def view_of(value: Any, bindings: Bindings) -> View | None:
    """``value`` as a view of what it was made of; None where its sizes are not known."""
    sizes = sizes_of(value)
    if sizes is None:
        return None
    view = View(value, tuple(sizes), tuple((i, 1) for i in range(len(sizes))))
    while True:
        further = _through(view, bindings)
        if further is None:
            return view
        view = further


def is_call(value: Any, name: str) -> bool:
    """Whether ``value`` is a call of the Relax operator ``name``."""
    return isinstance(value, relax.Call) and value.op == tvm.ir.Op.get(f"relax.{name}")


def same(a: Any, b: Any) -> bool:
    """Whether two sizes are written the same way."""
    return bool(tvm_ffi.structural_equal(a, b))


def _through(view: View, bindings: Bindings) -> View | None:
    made: Any = bindings.get(view.value)
    if isinstance(made, relax.Var) and sizes_of(made) is not None:
        return dataclasses.replace(view, value=made)
    if is_call(made, "permute_dims"):
        source = made.args[0]
        rank = source.ty.ndim
        axes = list(reversed(range(rank))) if made.attrs.axes is None else [int(a) % rank for a in made.attrs.axes]
        if sizes_of(source) is None:
            return None
        return dataclasses.replace(view, value=source, axes=tuple((axes[a], shared) for a, shared in view.axes))
    if is_call(made, "reshape"):
        return _through_repetition(view, made.args[0], bindings)
    return None


def _through_repetition(view: View, many: Any, bindings: Bindings) -> View | None:
    """Heads repeated for groups of queries: (..., G, ...) as (..., G, 1, ...), (..., G, R, ...), (..., G R, ...)."""
    widened: Any = bindings.get(many)
    if not is_call(widened, "broadcast_to"):
        return None
    made: Any = bindings.get(widened.args[0])
    if not (is_call(made, "expand_dims") or is_call(made, "reshape")):
        return None
    few = made.args[0]
    last, before, middle, first = (sizes_of(v) for v in (view.value, many, widened.args[0], few))
    if last is None or before is None or middle is None or first is None:
        return None
    if not len(last) == len(first) == len(before) - 1 == len(middle) - 1:
        return None
    for g in range(len(first)):
        repeated = before[g + 1]
        rest = [*range(g), *range(g + 1, len(first))]
        if (
            isinstance(repeated, tirx.IntImm)
            and _is(middle[g + 1], 1)
            and all(isinstance(d, tirx.IntImm) for d in (first[g], last[g], before[g]))
            and int(last[g]) == int(first[g]) * int(repeated)
            and all(same(m, b) for i, (m, b) in enumerate(zip(middle, before, strict=True)) if i != g + 1)
            and same(middle[g], first[g])
            and all(same(last[i], first[i]) and same(middle[i + (i > g)], first[i]) for i in rest)
        ):
            axes = tuple((a, shared * int(repeated) if a == g else shared) for a, shared in view.axes)
            return dataclasses.replace(view, value=few, axes=axes)
    return None


def _is(dim: Any, number: int) -> bool:
    return isinstance(dim, tirx.IntImm) and int(dim) == number
