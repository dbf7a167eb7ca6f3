"""SimplifiedLayerNormalization and SkipSimplifiedLayerNormalization, which onnxruntime alone knows."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import onnx_ir as ir

from rmsnorm_deploy.fusing.draft import FLOAT, SIXTEEN_BIT, Draft, Emission
from rmsnorm_deploy.fusing.form import Needs, OutputForm, Unsuited
from rmsnorm_deploy.fusing.trailing import as_trailing_norm
from rmsnorm_deploy.recognise.match import Match

_NAME = "SimplifiedLayerNormalization"
_CONTRIB = "com.microsoft"


class _Ort(OutputForm):
    carries_references = True

    def suits(self, match: Match) -> Match | Unsuited:
        found = as_trailing_norm(match, _NAME)
        if isinstance(found, Unsuited):
            return found
        if found.plain is not None and not _has_skip_kernel(found):
            found = found.plain
        if found.parameters.scale_type in SIXTEEN_BIT and found.scale is not None:
            note = f"{_NAME} rounds once, behind the scale; the original twice"
            return dataclasses.replace(found, fewer_roundings=True, notes=(*found.notes, note))
        return found

    def needs(self, match: Match, _: Mapping[str, int]) -> Needs:
        return Needs(domains={_CONTRIB: 1} if "residual" in match.parameters.op.inputs else {})

    def emit(self, match: Match, draft: Draft) -> Emission:
        """Only pairs of types that have a kernel: x and scale alike, or float16 beside float32."""
        p = match.parameters
        x, residual, total = draft.operands()
        scale = draft.scale()
        if residual is not None:
            y, total = draft.value(draft.dtype, match.output), draft.sum_output()
            outputs = [y, ir.Value(name=""), ir.Value(name=""), total]
            inputs = [x, residual, scale]
            norm = draft.norm(_CONTRIB, f"Skip{_NAME}", inputs, {"epsilon": p.epsilon}, outputs)
            return draft.done(norm, y, total)
        kind = draft.scale_type
        if kind != draft.dtype and (draft.dtype, kind) != (ir.DataType.FLOAT16, FLOAT):
            x = draft.cast(x, kind, "float")
        y = draft.value(kind, match.output)
        norm = draft.norm("", _NAME, [x, scale], {"axis": p.axes[0], "epsilon": p.epsilon, "stash_type": 1}, [y])
        return draft.done(norm, draft.narrowed(y), total)


def _has_skip_kernel(match: Match) -> bool:
    """Whether onnxruntime's residual norm takes it: float32, rank 2 or 3, a scale vector.

    In 16 bits its CUDA kernel adds up in 16 bits and gives zeros or NaN (microsoft/onnxruntime issue 29034).
    """
    # one number is written as a vector where its length is known
    scale_rank = int(match.size is not None) if match.scale is None else match.scale_rank
    return (
        match.parameters.output_type == int(FLOAT)
        and match.rank in (2, 3)
        and scale_rank == 1
        and match.parameters.axes == (-1,)
        and match.size is not None
    )


FORM = _Ort()
