"""Weights of products: which constants a product alone reads, and as arguments of the model that lie in panels."""

from __future__ import annotations

import collections
import math
from typing import Any

import tvm
from tvm import relax, tirx

from rmsnorm_deploy.tvm.passes.dequantise import stored_of
from rmsnorm_deploy.tvm.passes.views import Bindings, View, is_call, view_of
from rmsnorm_deploy.tvm.schedules.products.stored import Stored
from rmsnorm_deploy.tvm.schedules.products.weight import PANEL, Laid, Weight

ATTRIBUTE = "rmsnorm_deploy.constants"
"""A module's attribute: of each argument that was a constant how it lies, and the constant.

How it lies is a :class:`Laid`, as text, or nothing for as it is."""
LARGE = 1 << 16
"""Bytes from which on a constant becomes an argument whoever reads it: else TVM would calculate what can be calculated
from it, and a weight of 16 or 8 bits would lie in the folder in 32."""
LEAST = 48
"""Columns from which on a panel is worth its zeros."""
FLOATS = ("float32", "float16", "bfloat16")


def arguments_of(module: Any) -> list[tuple[Laid | None, Any]]:
    """The constants of a module from the passes that are arguments: how each lies, and the tensor."""
    attributes = module.attrs
    found = attributes[ATTRIBUTE] if attributes is not None and ATTRIBUTE in attributes else []
    return [(Laid.from_text(str(text)) if text else None, tensor) for text, tensor in found]


def with_arguments(function: Any, arguments: list[Any]) -> Any:
    """``function`` with arguments behind those that it has."""
    attributes = {"num_input": len(function.params)} | dict(function.attrs)
    return relax.Function([*function.params, *arguments], function.body, function.ret_ty, function.is_pure).with_attrs(
        attributes
    )


def large_as_arguments(module: Any) -> Any:
    """``module`` with the constants of ``main`` as arguments that are too large to calculate with."""
    return _Lifting(module).run()


@relax.expr_functor.mutator
class _Lifting(relax.PyExprMutator):  # type: ignore[misc]
    def __init__(self, module: Any) -> None:
        super().__init__(module)
        self.module = module
        self.found: dict[Any, Any] = {}
        self.before = arguments_of(module)

    def run(self) -> Any:
        main = self.module.get_global_var("main")
        function = self.visit_expr(self.module[main])
        if not self.found:
            return self.module
        self.builder_.update_func(main, with_arguments(function, list(self.found.values())))
        before = [["" if laid is None else laid.to_text(), tensor] for laid, tensor in self.before]
        return self.builder_.get().with_attr(ATTRIBUTE, [*before, *(["", tensor] for tensor in self.found)])

    def visit_generic_const_(self, constant: Any) -> Any:
        if not is_large(constant):
            return constant
        value = constant.value
        if value not in self.found:
            name = f"constant_{len(self.before) + len(self.found)}"
            self.found[value] = relax.Var(name, relax.TensorType(value.shape, value.dtype))
        return self.found[value]


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
                    if isinstance(value, relax.Var | tvm.ir.GenericConst):
                        self._note(value, binding)  # another name
                        continue
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
            if is_call(call, "permute_dims") or isinstance(call, relax.Var | tvm.ir.GenericConst):
                if not self._multiplied_only(binding.var):
                    return False
            elif not is_call(call, "matmul") or _same(call.args[0], value) or not _same(call.args[1], value):
                return False
        return bool(readers)

    def tied(self, constant: Any) -> bool:
        """Whether 16-bit rows are taken from ``constant``, and its transpose is multiplied: an embedding and the head.

        Plain, all of it would become float32 in each call. Rows can be taken from panels, too.
        """
        value = constant.value
        if str(value.dtype) not in FLOATS[1:] or len(value.shape) != 2 or int(value.shape[0]) < LEAST:
            return False
        found = self._uses(constant, transposed=False)
        return None not in found and {"taken", "multiplied"} <= found

    def _uses(self, value: Any, *, transposed: bool) -> set[str | None]:
        """How ``value`` is used, as ``tied`` wants to know it; None for any other way."""
        found: set[str | None] = set()
        for binding in self._readers[_key(value) if isinstance(value, tvm.ir.GenericConst) else value]:
            call: Any = None if binding is None else binding.value
            if isinstance(call, relax.Var | tvm.ir.GenericConst):
                found |= self._uses(binding.var, transposed=transposed)
            elif is_call(call, "permute_dims") and _swaps(call):
                found |= self._uses(binding.var, transposed=not transposed)
            elif is_call(call, "take") and not transposed and call.attrs.axis == 0 and not _same(call.args[1], value):
                found.add("taken")
            elif is_call(call, "matmul") and transposed and not _same(call.args[0], value):
                found.add("multiplied")
            else:
                found.add(None)
        return found

    def rows(self, value: Any) -> Any:
        """The argument for a constant that is tied, as it lies in panels; None where ``value`` is none."""
        constant = constant_of(value, self.bindings)
        if constant is None or not self.tied(constant):
            return None
        columns, terms = map(int, constant.value.shape)
        weight = Weight(str(constant.value.dtype), terms, columns)
        return self.argument(Laid(False, 0, True, weight.shape, weight.dtype), constant.value)

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
        call = self.bindings.get(view.value) if isinstance(view.value, relax.Var) else None
        found = stored_of(call)
        if found is None:
            return self._plain(view, int(terms), int(columns))
        return self._quantised(view, int(terms), int(columns), *found) if self._multiplied_only(view.value) else None

    def _quantised(
        self, view: View, terms: int, columns: int, stored: Stored, *values: Any
    ) -> tuple[Weight, list[Any]] | None:
        """A weight with scales and zero points that differ from column to column and, in blocks, along the terms."""
        constants = [None if v is None else constant_of(v, self.bindings) for v in values]
        if any(v is not None and c is None for v, c in zip(values, constants, strict=True)):
            return None
        tensors: list[Any] = [None if c is None else c.value for c in constants]
        x, scale, zero = tensors
        if str(x.dtype) not in ("int8", "uint8"):
            return None
        if zero is not None and not stored.bits and not zero.numpy().any():
            zero = tensors[2] = None
        across = view.axes[0][0] == 1  # columns are rows of the tensor
        along_terms = stored.axis == view.axes[0][0]
        if any(math.prod(v.shape) != 1 for v in (scale, zero) if v is not None):
            if along_terms != bool(stored.block):
                return None
            if stored.block and len(scale.shape) < 2 and not stored.bits:
                return None
        block = stored.block if along_terms and stored.block else terms
        block = min(block, terms)
        packed_zeros = stored.bits == 4 and zero is not None and str(zero.dtype) == "uint8"
        low, high = (0, 15) if stored.bits == 4 else _limits(x, zero)
        narrow = stored.bits == 4 or (low >= -8 and high <= 7) or (low >= 0 and high <= 15)
        shift = 8 if narrow and low < 0 else 0
        zero_type = "" if zero is None else "uint8" if shift else str(zero.dtype)
        weight = Weight(
            "uint8" if narrow else str(x.dtype),
            *(terms, columns, 4 if narrow else 0, shift + stored.offset),
            *("" if scale is None else str(scale.dtype), zero_type, block),
        )
        rows = columns if stored.bits else 0
        laid = [Laid(narrow, shift, across, weight.shape, weight.dtype, rows, stored.bits == 4)]
        factors = weight.panels, weight.blocks, PANEL
        blocked = across and bool(stored.block)
        if scale is not None:
            laid.append(Laid(False, 0, blocked, factors, weight.scale, rows))
        if zero is not None:
            laid.append(Laid(False, shift, blocked, factors, zero_type, rows, packed_zeros))
        given = [t for t in tensors if t is not None]
        return weight, [self.argument(how, tensor) for how, tensor in zip(laid, given, strict=True)]

    def _plain(self, view: View, terms: int, columns: int) -> tuple[Weight, list[Any]] | None:
        constant = constant_of(view.value, self.bindings)
        if constant is None or not (self.tied(constant) or self._multiplied_only(constant)):
            return None
        if isinstance(view.value, relax.Var) and not (self.tied(constant) or self._multiplied_only(view.value)):
            return None
        dtype = str(constant.value.dtype)
        if dtype not in FLOATS:
            return None
        weight = Weight(dtype, terms, columns)
        return weight, [self.argument(Laid(False, 0, view.axes[0][0] == 1, weight.shape, dtype), constant.value)]

    def argument(self, laid: Laid, tensor: Any) -> Any:
        """The argument for a constant in panels; equal ones are one."""
        key = (laid, tensor)
        if key not in self._known:
            self._known[key] = relax.Var(f"constant_{len(self.arguments)}", relax.TensorType(laid.shape, laid.dtype))
            self.arguments.append(self._known[key])
            self.saved.append([laid.to_text(), tensor])
        return self._known[key]


def _limits(x: Any, zero: Any) -> tuple[int, int]:
    """The least and the greatest of the stored values and zero points."""
    arrays = [v.numpy() for v in (x, zero) if v is not None and str(v.dtype) in ("int8", "uint8")]
    return min(int(a.min(initial=0)) for a in arrays), max(int(a.max(initial=0)) for a in arrays)


def is_large(constant: Any) -> bool:
    """Whether a constant becomes an argument whoever reads it."""
    value = constant.value
    return isinstance(value, tvm.runtime.Tensor) and math.prod(value.shape) * value.dtype.itemsize >= LARGE


def constant_of(value: Any, bindings: Bindings) -> Any:
    """The constant that ``value`` is, or None."""
    while isinstance(value, relax.Var) and value in bindings:
        value = bindings[value]
    return value if isinstance(value, tvm.ir.GenericConst) and isinstance(value.value, tvm.runtime.Tensor) else None


def _swaps(call: Any) -> bool:
    """Whether a transposition is one of a matrix that changes something."""
    axes = call.attrs.axes
    return bool(call.args[0].ty.ndim == 2 and (axes is None or [int(a) % 2 for a in axes] == [1, 0]))


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
