"""Pow, ReduceMean, Add, Sqrt, Div, Mul: every norm in one spelling of standard operators, for any runtime."""

# It is the spelling that onnxruntime, OpenVINO and this package find again. Constants are tensors, every node has a
# name, and there are no functions, for many tools read nothing else.

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from rmsnorm_deploy.fusing.draft import Draft, Emission, full, number_in
from rmsnorm_deploy.fusing.form import Needs, OutputForm
from rmsnorm_deploy.op import MIN_OPSET, SILU, Op, formula
from rmsnorm_deploy.recognise.match import Match

_BFLOAT16 = 13
"""The opset in which Cast learned bfloat16."""
_NUMBERS = 12
"""The opset in which Constant learned numbers, which may be attributes of a function."""


class _Standard(OutputForm):
    opset = MIN_OPSET
    carries_references = True

    def suits(self, match: Match) -> Match:
        # what quantises a norm is a node of its own already, unless the norm is a node of ours
        return match.plain if match.quantised is not None and match.plain is not None else match

    def needs(self, match: Match, _: Mapping[str, int]) -> Needs:
        types = (match.parameters.output_type, match.parameters.scale_type)
        if int(ir.DataType.BFLOAT16) in types:
            return Needs(opset=_BFLOAT16)
        return Needs(opset=_NUMBERS if match.references else self.opset)

    def emit(self, match: Match, draft: Draft) -> Emission:
        steps = _Steps(match, draft)
        formula.write(match.parameters.op, steps)
        return steps.done()


class _Steps(formula.Writer[ir.Value]):
    """Every step as a node; those that change nothing are left out."""

    def __init__(self, match: Match, draft: Draft) -> None:
        self._match = match
        self._draft = draft
        self._parameters = match.parameters
        self._wide = ir.DataType(match.parameters.stash_type)
        self._narrow = ir.DataType(match.parameters.scale_type)
        self._x, self._residual, self._sum = draft.operands()
        self._y = self._x
        self._like = draft.like(match.x)
        self._values: tuple[ir.Value, ...] = ()

    def done(self) -> Emission:
        """What was written."""
        return dataclasses.replace(self._draft.written(self._y, self._sum), quantised=self._values)

    def wide(self, operand: str) -> ir.Value:
        return self._operand(operand, self._wide, f"{operand}_wide")

    def total(self) -> ir.Value:
        dtype = self._draft.dtype
        x, residual = (self._operand(name, dtype, name) for name in ("X", "residual"))
        self._sum = self._draft.arithmetic("Add", x, residual, "sum", dtype=dtype, like=self._match.x)
        return self._cast(self._sum, self._wide, "X_wide")

    def first_features(self, x: ir.Value) -> ir.Value:
        size = self._parameters.partial_size
        if size is None:
            return x
        (axis,) = self._parameters.axes
        bounds = [self._integers(name, [v]) for name, v in (("start", 0), ("size", size), ("axes", axis))]
        return self._draft.node("Slice", [x, *bounds], "part", dtype=self._wide)

    def mean_square(self, x: ir.Value) -> ir.Value:
        # onnxruntime takes a Pow for the beginning of a norm, and some norms it gets wrong: see recognise/ending.py
        plain = self._parameters.op is not Op.GENERAL_RMS_NORM
        other = self._draft.constant("rmsnorm_two", full([], 2.0, self._wide)) if plain else x
        square = self._draft.node("Pow" if plain else "Mul", [x, other], "square", dtype=self._wide, like=x)
        axes = list(self._parameters.axes)
        inputs: list[ir.Value] = [square]
        attributes: dict[str, int | float | list[int]] = {"axes": axes, "keepdims": 1}
        if self._draft.opset >= 18:
            inputs.append(self._integers("axes", axes))
            del attributes["axes"]
        return self._draft.node("ReduceMean", inputs, "mean", dtype=self._wide, attributes=attributes)

    def combined(self, op_type: str, value: ir.Value, attribute: str) -> ir.Value:
        number = getattr(self._parameters, attribute)
        # an epsilon of 0 is added, too: runtimes look for the Add
        if number == 0.0 and attribute != "epsilon" and attribute not in self._match.references:
            return value
        return self._with(op_type, value, attribute, number)

    def root(self, value: ir.Value) -> ir.Value:
        return self._draft.node("Sqrt", [value], "rms", dtype=self._wide)

    def divided(self, x: ir.Value, rms: ir.Value) -> ir.Value:
        quotient = self._draft.node("Div", [x, rms], "normalised", dtype=self._wide, like=self._like)
        return self._cast(quotient, self._narrow, "rounded")

    def applied(self, op_type: str, value: ir.Value, operand: str) -> ir.Value:
        if self._is_neutral(operand):
            return value
        other = self._operand(operand, self._narrow, f"{operand}_cast")
        name = f"{operand}_{op_type.lower()}"
        return self._draft.arithmetic(op_type, value, other, name, dtype=self._narrow, like=self._like)

    def gated(self, value: ir.Value, at: int, *, rounded: bool) -> ir.Value:
        if self._parameters.gate_at != at:
            return value
        value = self._cast(value, self._wide, "ungated_wide")
        product = self._draft.node("Mul", [value, self._activated()], "gated", dtype=self._wide, like=self._like)
        return self._cast(product, self._narrow, "gated_rounded") if rounded else product

    def _activated(self) -> ir.Value:
        gate = self._draft.gate()
        dtype = gate.dtype or (self._draft.dtype if self._match.gate_dtype is None else self._match.gate_dtype)
        wide = self._cast(gate, self._wide, "gate_wide", dtype)
        sigmoid = self._draft.node("Sigmoid", [wide], "sigmoid", dtype=self._wide, like=self._like)
        if self._parameters.activation != SILU:
            return sigmoid
        return self._draft.node("Mul", [sigmoid, wide], "silu", dtype=self._wide, like=self._like)

    def finish(self, value: ir.Value) -> None:
        self._y = self._draft.turned_back(self._cast(value, self._draft.dtype, "narrow"))

    def quantise(self, *, dynamic: bool) -> None:
        quantised = self._match.quantised
        assert quantised is not None
        y = self._y
        if not dynamic:
            precision = quantised.precision
            assert quantised.scale is not None
            scale = self._cast(quantised.scale, precision, "y_scale_cast", quantised.scale_dtype)
            inputs = [self._cast(y, precision, "Y_cast"), scale, self._draft.zero_point(quantised)]
        else:
            inputs = [y]
        self._values = self._draft.quantised_outputs(quantised)
        if not y.name:
            y.name = self._draft.unique(f"{self._match.end.name or 'norm'}_Y")
        self._draft.append(f"{'Dynamic' if dynamic else ''}QuantizeLinear", inputs, list(self._values))

    def _is_neutral(self, operand: str) -> bool:
        """Whether an operand changes nothing: no bias, or a scale that is the number 1."""
        if operand == "bias":
            return self._match.bias is None
        scale = self._match.scale
        if scale is None:
            return self._match.factor == 1.0 and self._match.size is None
        number = number_in(scale)
        return number is not None and float(number) == 1.0

    def _operand(self, name: str, to: ir.DataType, label: str) -> ir.Value:
        """An input of the operator in the type ``to``; the file need not say of what type it is."""
        if name == "scale":
            value = self._draft.scale()
            return self._cast(value, to, label, self._draft.scale_type)
        if name == "bias":
            assert self._match.bias is not None
            return self._cast(self._match.bias, to, label, self._match.scale_dtype)
        x = self._x if name == "X" else self._residual
        assert x is not None
        return self._cast(x, to, label, self._draft.dtype)

    def _cast(self, value: ir.Value, to: ir.DataType, name: str, of: ir.DataType | None = None) -> ir.Value:
        return value if (of or value.dtype) == to else self._draft.cast(value, to, name)

    def _with(self, op_type: str, value: ir.Value, name: str, number: float) -> ir.Value:
        if name in self._match.references:
            given = self._draft.node(
                "Constant",
                [],
                f"{name}_given",
                dtype=ir.DataType.FLOAT,
                attributes={"value_float": number},
                parameter=name,
            )
            constant = self._cast(given, self._wide, f"{name}_wide")
        else:
            constant = self._draft.constant(f"rmsnorm_{name}", full([], number, self._wide))
        return self._draft.node(op_type, [value, constant], name, dtype=self._wide)

    def _integers(self, name: str, values: list[int]) -> ir.Value:
        return self._draft.constant(f"rmsnorm_{name}", ir.Tensor(np.array(values, np.int64)))


FORM = _Standard()
