"""What an operator cannot express that knows only a mean square over trailing dimensions, an epsilon and a scale."""

from __future__ import annotations

import dataclasses

from rmsnorm_deploy.fusing.draft import DOUBLE, FLOAT
from rmsnorm_deploy.fusing.form import Unsuited
from rmsnorm_deploy.op import Op
from rmsnorm_deploy.recognise.match import Match


def as_trailing_norm(match: Match, operator: str) -> Match | Unsuited:
    """``match`` as RMSNorm or AddRMSNorm, or why it is neither.

    Args:
        match: the norm.
        operator: the name of the operator that is to be written, for the reason.
    """
    p = match.parameters
    extra = [
        text
        for given, text in (
            (p.partial_size, "statistic over a part of the features"),
            (p.epsilon_outside, "epsilon outside the root"),
            (p.rms_floor, "least RMS"),
            (match.bias, "bias"),
        )
        if given
    ]
    if extra:
        return Unsuited(f"{operator} has no {' and no '.join(extra)}")
    if p.axes[-1] != -1:
        return Unsuited(f"{operator} normalises trailing dimensions, and this norm reduces {list(p.axes)}")
    if p.stash_type != int(FLOAT) and p.output_type != int(DOUBLE):
        return Unsuited(f"onnxruntime computes {operator} in float32, and this norm in float64")
    if p.op is Op.GENERAL_RMS_NORM:
        return dataclasses.replace(match, parameters=dataclasses.replace(p, op=Op.RMS_NORM))
    return match
