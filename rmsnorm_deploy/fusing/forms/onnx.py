"""RMSNormalization of ai.onnx opset 23."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import onnx_ir as ir

from rmsnorm_deploy.fusing.draft import FLOAT, SIXTEEN_BIT, Draft, Emission
from rmsnorm_deploy.fusing.form import Needs, OutputForm, Unsuited
from rmsnorm_deploy.fusing.trailing import as_trailing_norm
from rmsnorm_deploy.recognise.match import Match

_NAME = "RMSNormalization"


class _Onnx(OutputForm):
    opset = 23
    carries_references = True
    may_convert = True

    def suits(self, match: Match) -> Match | Unsuited:
        found = as_trailing_norm(match, _NAME)
        if isinstance(found, Match) and found.plain is not None:
            return dataclasses.replace(found.plain, notes=found.notes)
        return found

    def needs(self, _: Match, __: Mapping[str, int]) -> Needs:
        return Needs(opset=self.opset)

    def emit(self, match: Match, draft: Draft) -> Emission:
        """The operator casts to x's type before the scale; where the norm does not, it is done in float32."""
        p = match.parameters
        x, _, total = draft.operands()
        if _multiplies_wide(match, draft.dtype):
            return _scaled_outside(match, draft, x, total)
        scale = draft.scale()
        # a norm without scale rounds once either way, and onnxruntime's CPU provider has no bfloat16 kernel for it
        needs_float = match.scale is not None or draft.dtype == ir.DataType.BFLOAT16
        in_float = draft.dtype in SIXTEEN_BIT and p.scale_type == int(FLOAT) and needs_float
        kind = FLOAT if in_float else draft.dtype
        if in_float:
            x = draft.cast(x, FLOAT, "float")
        scale = draft.as_type(scale, kind)
        attributes = {"axis": p.axes[0], "epsilon": p.epsilon, "stash_type": p.stash_type}
        y = draft.value(kind, match.output)
        norm = draft.norm("", _NAME, [x, scale], attributes, [y])
        return draft.done(norm, draft.narrowed(y), total)


def _multiplies_wide(match: Match, dtype: ir.DataType) -> bool:
    """Whether the original rounds to bfloat16 and then computes the product with the scale in float32.

    Such a model runs where no bfloat16 kernel is, as in onnxruntime's CPU provider, which has none for the operator.
    """
    in_bfloat16 = dtype == ir.DataType.BFLOAT16 and match.parameters.scale_type == int(dtype)
    scaled = match.scale is not None and match.factor == 1.0
    return in_bfloat16 and scaled and match.nodes[-1].op_type == "Cast"


def _scaled_outside(match: Match, draft: Draft, x: ir.Value, total: ir.Value | None) -> Emission:
    """The operator in float32 with a scale of ones, the rounding, and the product as the original has it."""
    p = match.parameters
    attributes = {"axis": p.axes[0], "epsilon": p.epsilon, "stash_type": p.stash_type}
    y = draft.value(FLOAT, match.output)
    norm = draft.norm("", _NAME, [draft.cast(x, FLOAT, "float"), draft.ones(FLOAT)], attributes, [y])
    scale = draft.as_type(draft.scale(), draft.dtype)
    product = draft.arithmetic("Mul", draft.narrowed(y), scale, "scaled", dtype=draft.dtype, like=match.output)
    return draft.done(norm, product, total)


FORM = _Onnx()
