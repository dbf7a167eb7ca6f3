"""RMSNormalization of ai.onnx opset 23."""

from __future__ import annotations

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
            return found.plain
        return found

    def needs(self, _: Match, __: Mapping[str, int]) -> Needs:
        return Needs(opset=self.opset)

    def emit(self, match: Match, draft: Draft) -> Emission:
        """The operator casts to x's type before the scale; where the norm does not, it is done in float32."""
        p = match.parameters
        x, _, total = draft.operands()
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


FORM = _Onnx()
