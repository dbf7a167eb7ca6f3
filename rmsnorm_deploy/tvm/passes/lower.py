"""Each call that stands for a norm becomes a call of a kernel; equal norms share one."""

from __future__ import annotations

import dataclasses
import functools
import math
import operator
from collections.abc import Callable
from typing import Any

import tvm
import tvm_ffi
from tvm import relax, tirx

from rmsnorm_deploy.errors import ModelError
from rmsnorm_deploy.op import NormParameters
from rmsnorm_deploy.tvm.schedules.norm import MARKER, Norm, from_text


def lowered(module: Any, kernel: Callable[[Norm, int | None], Any]) -> Any:
    """``module`` with every norm lowered.

    Args:
        module: from :func:`rmsnorm_deploy.tvm.importer.convert.import_onnx`.
        kernel: the schedule: a norm's ``PrimFunc``, given the norm and how many values X has at most, or None where
            that is known at run time only.

    Raises:
        ModelError: the shape of a norm's input is not known well enough.
    """
    return _Lowering(module, kernel).run()


@relax.expr_functor.mutator
class _Lowering(relax.PyExprMutator):  # type: ignore[misc]
    def __init__(self, module: Any, kernel: Callable[[Norm, int | None], Any]) -> None:
        super().__init__(module)
        self.most_values = _most_values(module)
        self.module = module
        self.kernel = kernel
        self.made: dict[Norm, Any] = {}

    def run(self) -> Any:
        for name, function in self.module.functions_items():
            if isinstance(function, relax.Function):
                self.builder_.update_func(name, self.visit_expr(function))
        return self.builder_.get()

    def visit_call_(self, call: Any) -> Any:
        call = super().visit_call_(call)
        if not _is_norm(call):
            return call
        *inputs, text = call.args[1:]
        return self.lower(from_text(text.value), inputs)

    def lower(self, parameters: NormParameters, inputs: list[Any]) -> Any:
        emit = self.builder_.emit
        x = inputs[0]
        shape = _shape(x)
        if any(_is(dim, 0) for dim in shape):  # where TVM's reshape takes a 0 for "as it was"
            empty = relax.op.zeros(relax.ShapeExpr(shape), x.ty.dtype.dtype)
            results = [emit(empty) for _ in parameters.op.outputs]
            return relax.Tuple(results) if len(results) > 1 else results[0]
        first = min(a % len(shape) for a in parameters.axes)
        last = first + len(parameters.axes)
        outer, middle, inner = (_product(part) for part in (shape[:first], shape[first:last], shape[last:]))
        columns = not _is(inner, 1)
        size = int(middle) if isinstance(middle, tirx.IntImm) else None
        # a reshape is a call at run time, and for a result of the model a copy
        as_it_is = first > 0 and last == first + 1 and columns == (last < len(shape))
        flat = shape if as_it_is else [outer, middle, inner] if columns else [outer, middle]

        def reshaped(value: Any, dims: list[Any]) -> Any:
            """A reshape is not a copy, but it is a call: only where something changes."""
            return value if _equal(_shape(value), dims) else emit(relax.op.reshape(value, relax.ShapeExpr(dims)))

        def parameter(value: Any) -> tuple[Any, bool]:
            """A scale or bias as a vector of features or, if it varies elsewhere too, in X's shape."""
            dims = [tirx.IntImm("int64", 1)] * (len(shape) - value.ty.ndim) + _shape(value)
            if not all(_is(d, 1) for i, d in enumerate(dims) if not first <= i < last):
                return reshaped(emit(relax.op.broadcast_to(value, relax.ShapeExpr(shape))), flat), True
            value = reshaped(value, dims[first:last])
            if not _equal(dims[first:last], shape[first:last]):
                value = emit(relax.op.broadcast_to(value, relax.ShapeExpr(shape[first:last])))
            return reshaped(value, [middle]), False

        arguments = [reshaped(value, flat) for value in inputs[: 2 if parameters.op.inputs[1] == "residual" else 1]]
        parameterised = [parameter(value) for value in inputs[len(arguments) :]]
        norm = Norm(
            parameters=dataclasses.replace(parameters, axes=(-1,)),
            scale_dtype=str(inputs[len(arguments)].ty.dtype.dtype),
            size=size,
            columns=columns,
            full_scale=parameterised[0][1],
            full_bias=len(parameterised) > 1 and parameterised[1][1],
            outer_rank=first if as_it_is else 1,
            inner_rank=len(shape) - last if as_it_is and columns else 1,
        )
        if norm not in self.made:
            taken = sum(other.name == norm.name for other in self.made)
            name = norm.name + (f"_{taken + 1}" if taken else "")
            # the symbol of the library, too, which the schedule has named after the norm
            kernel = self.kernel(norm, self.most_values).with_attr("global_symbol", name)
            self.made[norm] = self.builder_.add_func(kernel, name)
        arguments += [value for value, _ in parameterised]
        out = [relax.TensorType(flat, norm.dtype)] * len(parameters.op.outputs)
        result = emit(relax.op.call_tir(self.made[norm], relax.Tuple(arguments), out if len(out) > 1 else out[0]))
        if len(out) == 1:
            return reshaped(result, shape)
        return relax.Tuple([reshaped(emit(relax.TupleGetItem(result, i)), shape) for i in range(len(out))])


def _is_norm(call: Any) -> bool:
    """Whether a call stands for a norm."""
    return bool(call.op == tvm.ir.Op.get("relax.call_pure_packed")) and call.args[0].global_symbol == MARKER


def _most_values(module: Any) -> int | None:
    """Values in the largest X of all norms, or None where one is known at run time only."""
    found: list[int | None] = [0]

    def look(expression: Any) -> None:
        if isinstance(expression, relax.Call) and _is_norm(expression):
            shape = expression.args[1].ty.shape
            count = _product(list(shape.values)) if isinstance(shape, relax.ShapeExpr) else None
            found.append(int(count) if isinstance(count, tirx.IntImm) else None)

    for _, function in module.functions_items():
        if isinstance(function, relax.Function):
            relax.analysis.post_order_visit(function, look)
    return None if None in found else max(v for v in found if v is not None)


def _shape(value: Any) -> list[Any]:
    if value.ty.shape is None or not isinstance(value.ty.shape, relax.ShapeExpr):
        raise ModelError(f"the shape of a norm's input, {value.ty}, is not known", "Export the model with shapes.")
    return list(value.ty.shape.values)


def _is(dim: Any, number: int) -> bool:
    return isinstance(dim, tirx.IntImm) and int(dim) == number


def _equal(a: list[Any], b: list[Any]) -> bool:
    return bool(tvm_ffi.structural_equal(relax.ShapeExpr(a), relax.ShapeExpr(b)))


def _product(dims: list[Any]) -> Any:
    known = math.prod(int(d) for d in dims if isinstance(d, tirx.IntImm))
    symbolic = [d for d in dims if not isinstance(d, tirx.IntImm)]
    if not symbolic:
        return tirx.IntImm("int64", known)
    product = functools.reduce(operator.mul, symbolic)
    return product if known == 1 else product * tirx.IntImm("int64", known)
