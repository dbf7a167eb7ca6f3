"""Pow, ReduceMean, Add, Sqrt, Div, Mul: every norm in one spelling of standard operators, for any runtime."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from rmsnorm_deploy.fusing.draft import Draft, Emission, full
from rmsnorm_deploy.fusing.form import Needs, OutputForm
from rmsnorm_deploy.op import MIN_OPSET, Op
from rmsnorm_deploy.recognise.match import Match

_BFLOAT16 = 13
"""The opset in which Cast learned bfloat16."""
_AXES_AS_INPUT = 18
"""The opset in which the axes of ReduceMean became an input."""


class _Standard(OutputForm):
    """The spelling that onnxruntime, OpenVINO and this package find again.

    Constants are tensors, every node has a name and there are no functions, for many tools read nothing else.
    """

    opset = MIN_OPSET

    def suits(self, match: Match) -> Match:
        return match.plain or match

    def needs(self, match: Match, _: Mapping[str, int]) -> Needs:
        types = (match.parameters.output_type, match.parameters.scale_type)
        return Needs(opset=_BFLOAT16 if int(ir.DataType.BFLOAT16) in types else self.opset)

    def emit(self, match: Match, draft: Draft) -> Emission:
        """What :mod:`rmsnorm_deploy.op.body` computes, without the Casts that change nothing here."""
        p = match.parameters
        wide, kind = ir.DataType(p.stash_type), ir.DataType(p.scale_type)
        x, _, total = draft.operands()
        if draft.dtype != wide:
            x = draft.cast(x, wide, "wide")
        y = draft.node("Div", [x, _rms(match, draft, x, wide)], "normalised", dtype=wide, like=x)
        if kind != wide:
            y = draft.cast(y, kind, "rounded")
        # a product or sum of two 16-bit numbers is exact in float32, so that it is rounded once here as there
        y = draft.arithmetic("Mul", y, draft.as_type(draft.scale(), kind), "scaled", dtype=kind, like=match.output)
        if match.bias is not None:
            draft.scale_type = match.scale_dtype
            y = draft.arithmetic("Add", y, draft.as_type(match.bias, kind), "biased", dtype=kind, like=match.output)
        if kind != draft.dtype:
            y = draft.cast(y, draft.dtype, "narrow")
        return draft.done(draft.named_norm(), y, total)


def _rms(match: Match, draft: Draft, x: ir.Value, wide: ir.DataType) -> ir.Value:
    """The root of the mean square, with all that is added to it."""
    p = match.parameters
    opset = draft.imports.get("", draft.imports.get("ai.onnx", 0))

    def number(value: float, name: str) -> ir.Value:
        return draft.constant(f"rmsnorm_{name}", full([], value, wide))

    def integers(values: tuple[int, ...], name: str) -> ir.Value:
        return draft.constant(f"rmsnorm_{name}", ir.Tensor(np.array(values, np.int64)))

    measured = x
    if p.partial_size is not None:
        ends = integers((p.partial_size,), "partial_size")
        inputs = [x, integers((0,), "start"), ends, integers(p.axes, "axes")]
        measured = draft.node("Slice", inputs, "measured", dtype=wide)
    # onnxruntime takes a Pow for the beginning of a norm, and some norms it gets wrong: see recognise/ending.py
    plain = p.op is not Op.GENERAL_RMS_NORM
    pair = [measured, number(2.0, "two") if plain else measured]
    square = draft.node("Pow" if plain else "Mul", pair, "square", dtype=wide, like=measured)
    inputs, attributes = [square], dict[str, int | float | list[int]](keepdims=1)
    if opset >= _AXES_AS_INPUT:
        inputs.append(integers(p.axes, "axes"))
    else:
        attributes["axes"] = list(p.axes)
    mean = draft.node("ReduceMean", inputs, "mean", dtype=wide, attributes=attributes)
    inside = draft.node("Add", [mean, number(p.epsilon, "epsilon")], "inside", dtype=wide)
    rms = draft.node("Sqrt", [inside], "rms", dtype=wide)
    if p.epsilon_outside:
        rms = draft.node("Add", [rms, number(p.epsilon_outside, "epsilon_outside")], "outside", dtype=wide)
    if p.rms_floor:
        rms = draft.node("Max", [rms, number(p.rms_floor, "rms_floor")], "floored", dtype=wide)
    return rms


FORM = _Standard()
