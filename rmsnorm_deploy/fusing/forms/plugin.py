"""Nodes of our own domain with a function body: fast with our library, correct without it."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping

import onnx_ir as ir

from rmsnorm_deploy import op
from rmsnorm_deploy.fusing.draft import Draft, Emission
from rmsnorm_deploy.fusing.form import Needs, OutputForm
from rmsnorm_deploy.op import DOMAIN
from rmsnorm_deploy.recognise.match import Match, Quantised


class _Plugin(OutputForm):
    opset = op.MIN_OPSET
    carries_references = True

    def suits(self, match: Match) -> Match:
        if not match.general_because:
            return match
        note = f"written as GeneralRMSNorm: {match.general_because}"
        return dataclasses.replace(match, notes=(*match.notes, note))

    def needs(self, match: Match, imports: Mapping[str, int]) -> Needs:
        operator, version = match.parameters.op, op.version_of(imports)
        return Needs(
            opset=op.min_opset(match.parameters),
            ir_version=op.MIN_IR_VERSION,
            domains={DOMAIN: version},
            bodies={operator.value: functools.partial(op.function_body, operator, version=version)},
        )

    def emit(self, match: Match, draft: Draft) -> Emission:
        parameters = match.parameters
        if match.quantised is not None:
            return _quantised(match, match.quantised, draft)
        x, residual, total = draft.operands()
        scale = draft.scale()
        inputs = [x, scale]
        outputs = [draft.value(draft.dtype, draft.like(match.output))]
        if "residual" in parameters.op.inputs:
            assert residual is not None
            inputs = [x, residual, scale]
            total = draft.sum_output()  # onnxruntime 1.20 aborts on an output without a name
            outputs.append(total)
        if "gate" in parameters.op.inputs:
            inputs = [x, draft.gate(), scale]
        if "bias" in parameters.op.inputs:
            inputs.append(draft.bias())
        attributes = parameters.to_attributes(op.version_of(draft.imports))
        norm = draft.norm(DOMAIN, parameters.op.value, inputs, attributes, outputs)
        return draft.done(norm, draft.turned_back(outputs[0]), total)


def _quantised(match: Match, quantised: Quantised, draft: Draft) -> Emission:
    """An operator that quantises; its Y has no name where nobody reads it."""
    parameters = match.parameters
    x, residual, total = draft.operands()
    given: dict[str, ir.Value | None] = {"X": x, "residual": residual, "scale": draft.scale()}
    if quantised.scale is not None:
        given |= {"y_scale": quantised.scale, "y_zero_point": draft.zero_point(quantised)}
    values = draft.quantised_outputs(quantised)
    y = draft.value(draft.dtype, match.output) if quantised.keeps_y else ir.Value(name="")
    made = dict(zip(("quantized", "y_scale", "y_zero_point"), values, strict=False)) | {"Y": y}
    if "sum" in parameters.op.outputs:
        made["sum"] = total = draft.sum_output()
    inputs = [value for value in (given[name] for name in parameters.op.inputs) if value is not None]
    outputs = [made[name] for name in parameters.op.outputs]
    attributes = parameters.to_attributes(op.version_of(draft.imports))
    norm = draft.norm(DOMAIN, parameters.op.value, inputs, attributes, outputs)
    return dataclasses.replace(draft.done(norm, y, total), quantised=values)


FORM = _Plugin()
