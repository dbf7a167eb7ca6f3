"""What an operator cannot express that knows only a mean square over trailing dimensions, an epsilon and a scale."""

from __future__ import annotations

import dataclasses

from rmsnorm_deploy.fusing.draft import DOUBLE, FLOAT
from rmsnorm_deploy.fusing.form import Unsuited
from rmsnorm_deploy.op import Op
from rmsnorm_deploy.recognise.match import Match

_EXPRESSED = ("op", "output_type", "axes", "epsilon", "stash_type", "scale_type")
"""The parameters that are looked at one by one; any other has to have its default, which changes nothing."""
_WORDS = {
    "partial_size": "statistic over a part of the features",
    "epsilon_outside": "epsilon outside the root",
    "rms_floor": "least RMS",
}


def as_trailing_norm(match: Match, operator: str) -> Match | Unsuited:
    """``match`` as RMSNorm or AddRMSNorm, if need be without what stands in front of it, or why it is neither.

    Args:
        match: the norm.
        operator: the name of the operator that is to be written, for the reason.
    """
    if match.quantised is not None and match.plain is not None:
        note = f"{operator} does not quantise: {match.nodes[-1].op_type} stays a node of its own"
        return as_trailing_norm(dataclasses.replace(match.plain, notes=(*match.plain.notes, note)), operator)
    p = match.parameters
    if p.op is Op.GATED_RMS_NORM:
        if match.plain is None:
            return Unsuited(f"{operator} has no gate")
        note = f"{operator} has no gate, which stays in nodes of its own"
        return as_trailing_norm(dataclasses.replace(match.plain, notes=(*match.plain.notes, note)), operator)
    extra = [
        _WORDS.get(f.name, f.name)
        for f in dataclasses.fields(p)
        if f.name not in _EXPRESSED and getattr(p, f.name) != f.default
    ]
    extra += ["bias"] if match.bias is not None else []
    if extra and match.plain is not None:
        return as_trailing_norm(match.plain, operator)
    if extra:
        return Unsuited(f"{operator} has no {' and no '.join(extra)}")
    if p.axes[-1] != -1:
        return Unsuited(f"{operator} normalises trailing dimensions, and this norm reduces {list(p.axes)}")
    if p.stash_type != int(FLOAT) and p.output_type != int(DOUBLE):
        return Unsuited(f"onnxruntime computes {operator} in float32, and this norm in float64")
    if p.op is Op.GENERAL_RMS_NORM:
        return dataclasses.replace(match, parameters=dataclasses.replace(p, op=Op.RMS_NORM))
    return match
