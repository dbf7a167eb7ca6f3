"""The operators in words: for whoever meets one in a file, a viewer or a report."""

from __future__ import annotations

from rmsnorm_deploy.op.definition import OPERANDS, Op, attributes_of

_GIVEN = "quantized = saturated(round(Y / y_scale) + y_zero_point)"
_OWN = "8 bits, by a scale and zero point made of the range of all of Y"
_MEANINGS = {
    Op.RMS_NORM: "Divides X by its root mean square over `axes`, and multiplies by scale: "
    "Y = X / sqrt(mean(X^2) + epsilon) * scale.",
    Op.ADD_RMS_NORM: "Adds a residual to X first, as a block of a transformer does, and gives the sum as well: "
    "sum = X + residual; Y = sum / sqrt(mean(sum^2) + epsilon) * scale.",
    Op.GENERAL_RMS_NORM: "An RMSNorm that needs more than the plain one: a bias, a statistic over part of the features "
    "(pRMSNorm), epsilon outside of the root, a least value of the RMS, or a scale that is more than a vector of "
    "features: Y = X / max(sqrt(mean(X^2) + epsilon) + epsilon_outside, rms_floor) * scale + bias.",
    Op.GATED_RMS_NORM: "An RMSNorm with a gate, as state-space and linear-attention models have it: with g = "
    "act(gate), SiLU or sigmoid, Y is the RMSNorm of X * g, or X's with g in front of the scale or behind it.",
    **{
        op: f"{op.norm.value}, then {name} of Y: {given}. Y itself has no name where nobody reads it."
        for op, name, given in (
            (Op.RMS_NORM_QUANTIZE, "QuantizeLinear", _GIVEN),
            (Op.ADD_RMS_NORM_QUANTIZE, "QuantizeLinear", _GIVEN),
            (Op.RMS_NORM_DYNAMIC_QUANTIZE, "DynamicQuantizeLinear", _OWN),
            (Op.ADD_RMS_NORM_DYNAMIC_QUANTIZE, "DynamicQuantizeLinear", _OWN),
        )
    },
}


def meaning(op: Op) -> str:
    """What ``op`` computes, in a sentence and a formula."""
    return _MEANINGS.get(op, f"{op.value} of the family RMSNorm.")


def documentation(op: Op, version: int | None = None) -> str:
    """What ``op`` is, with its inputs, outputs and attributes, as the ``doc_string`` of its function body.

    Viewers show it beside a node. It names no release: a body is the same file for ever.

    Args:
        op: the operator.
        version: of the domain; None is the newest.
    """
    lines = [
        meaning(op),
        "",
        "RMSNorm, arXiv:1910.07467. This function is the whole meaning, in standard operators; a runtime with a kernel "
        "for it skips them.",
        "",
        "Inputs:",
        *(f"- `{name}`: {OPERANDS[name][1]}" for name in op.inputs),
        "",
        "Outputs:",
        *(f"- `{name}`: {OPERANDS[name][1]}" for name in op.outputs),
        "",
        "Attributes:",
        *(f"- `{a.name}`: {a.doc}" for a in attributes_of(op, version)),
    ]
    return "\n".join(lines)
