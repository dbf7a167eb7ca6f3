"""The operators in words: for whoever meets one in a file, a viewer or a report."""

from __future__ import annotations

from rmsnorm_deploy.op.definition import OPERANDS, Op, attributes_of

_MEANINGS = {
    Op.RMS_NORM: "Divides X by its root mean square over `axes`, and multiplies by scale: "
    "Y = X / sqrt(mean(X^2) + epsilon) * scale.",
    Op.ADD_RMS_NORM: "Adds a residual to X first, as a block of a transformer does, and gives the sum as well: "
    "sum = X + residual; Y = sum / sqrt(mean(sum^2) + epsilon) * scale.",
    Op.GENERAL_RMS_NORM: "An RMSNorm that needs more than the plain one: a bias, a statistic over part of the features "
    "(pRMSNorm), epsilon outside of the root, a least value of the RMS, or a scale that is more than a vector of "
    "features: Y = X / max(sqrt(mean(X^2) + epsilon) + epsilon_outside, rms_floor) * scale + bias.",
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
