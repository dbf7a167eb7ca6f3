"""A Relax function as a pass looks at it that replaces calls by kernels."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, Protocol

import tvm
from tvm import relax

from rmsnorm_deploy.tvm.passes.views import bindings_of, is_call
from rmsnorm_deploy.tvm.schedules.script import kernel_of

SIXTEEN_BITS = ("float16", "bfloat16")


class Spec(Protocol):
    """What describes a kernel: equal specs share one."""

    @property
    def name(self) -> str:
        """For the kernel. Equal ones have equal names; different ones can have the same."""

    def source(self, width: int) -> str:
        """TVMScript for a CPU with vectors of ``width`` float32 values."""


@dataclasses.dataclass(frozen=True)
class Seen:
    """What is known of a function's variables.

    Attributes:
        bindings: what each is bound to.
        uses: in how many values each is.
    """

    bindings: dict[Any, Any]
    uses: dict[Any, int]

    @classmethod
    def of(cls, function: Any) -> Seen:
        """Those of ``function``."""
        bindings = bindings_of(function)
        uses: dict[Any, int] = {}

        def look(expression: Any) -> None:
            if isinstance(expression, relax.SeqExpr):
                for block in expression.blocks:
                    for binding in block.bindings:
                        for var in set(relax.analysis.all_vars(binding.value)):
                            uses[var] = uses.get(var, 0) + 1
                for var in set(relax.analysis.all_vars(expression.body)):
                    uses[var] = uses.get(var, 0) + 1

        relax.analysis.post_order_visit(function, look)
        return cls(bindings, uses)

    def made(self, value: Any) -> Any:
        """The call that made ``value``, or None."""
        while isinstance(value, relax.Var):
            value = self.bindings.get(value)
        return value if isinstance(value, relax.Call) else None

    def widened(self, value: Any) -> Any:
        """The 16-bit values that ``value`` was converted from, as kernels read those as well; else ``value``."""
        call = self.made(value)
        if is_call(call, "astype") and dtype_of(call) == "float32" and dtype_of(call.args[0]) in SIXTEEN_BITS:
            return call.args[0]
        return value

    def narrowed(self, call: Any, names: tuple[str, ...]) -> tuple[Any, str] | None:
        """Of an operator of ``names`` in float32, the call and the type that it is stored in.

        ``call`` is that call, or its conversion to float16 where nobody reads the float32.
        """
        if self._narrows(call):
            inner = self.made(call.args[0])
            return (inner, "float16") if any(is_call(inner, name) for name in names) else None
        if call in self.narrowed_calls or not any(is_call(call, name) for name in names):
            return None
        return call, dtype_of(call)

    @functools.cached_property
    def narrowed_calls(self) -> set[Any]:
        """What is read by its conversion to float16 only."""
        return {self.made(call.args[0]) for call in self.bindings.values() if self._narrows(call)}

    @functools.cached_property
    def rounded(self) -> dict[Any, str]:
        """Calls that give float32 which is read by its conversion to 16 bits only, and the type of that."""
        return {self.made(call.args[0]): dtype_of(call) for call in self.bindings.values() if self.rounds(call)}

    def rounds(self, call: Any) -> bool:
        """Whether ``call`` converts float32 to 16 bits that nobody else reads."""
        if not is_call(call, "astype") or dtype_of(call) not in SIXTEEN_BITS or dtype_of(call.args[0]) != "float32":
            return False
        return self.uses.get(call.args[0]) == 1

    def _narrows(self, call: Any) -> bool:
        return self.rounds(call) and dtype_of(call) == "float16"


def dtype_of(value: Any) -> str:
    """The type of a tensor's values."""
    return str(value.ty.dtype.dtype) if isinstance(value.ty, relax.TensorType) else ""


def rewritten(mutator: Any) -> Any:
    """The module of ``mutator`` after its visit of each function, of which it has the :class:`Seen` as ``seen``."""
    for name, function in mutator.module.functions_items():
        if isinstance(function, relax.Function):
            mutator.seen = Seen.of(function)
            mutator.builder_.update_func(name, mutator.visit_expr(function))
    return mutator.builder_.get()


Describe = Callable[[Any, Seen], "tuple[Spec, list[Any]] | None"]
"""The kernel for a call, and its operands; None where it has none."""


def replaced(module: Any, describe: Describe, width: int) -> Any:
    """``module`` with the kernels of ``describe`` for the calls that it knows."""
    return _Replacing(module, describe, width).run()


@relax.expr_functor.mutator
class _Replacing(relax.PyExprMutator):  # type: ignore[misc]
    def __init__(self, module: Any, describe: Describe, width: int) -> None:
        super().__init__(module)
        self.module = module
        self.describe = describe
        self.width = width
        self.seen: Seen | None = None
        self.made: dict[Spec, Any] = {}

    def run(self) -> Any:
        return rewritten(self)

    def visit_call_(self, call: Any) -> Any:
        found = self.describe(call, self.seen) if isinstance(call.op, tvm.ir.Op) and self.seen else None
        call = super().visit_call_(call)
        if found is None:
            return call
        spec, operands = found
        if spec not in self.made:
            taken = sum(other.name == spec.name for other in self.made)
            name = spec.name + (f"_{taken + 1}" if taken else "")
            kernel = kernel_of(spec.source(self.width)).with_attr("global_symbol", name)
            self.made[spec] = self.builder_.add_func(kernel, name)
        return relax.op.call_tir(self.made[spec], relax.Tuple([self.visit_expr(v) for v in operands]), call.ty)
