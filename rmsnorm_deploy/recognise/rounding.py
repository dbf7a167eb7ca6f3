"""Which of the original's roundings the operator keeps. It never rounds more often."""

from __future__ import annotations

import onnx_ir as ir

from rmsnorm_deploy.op import SIXTEEN_BIT
from rmsnorm_deploy.recognise import checks
from rmsnorm_deploy.recognise.facts import Facts
from rmsnorm_deploy.recognise.refusal import Refusal
from rmsnorm_deploy.recognise.state import State

FLOAT, DOUBLE = ir.DataType.FLOAT, ir.DataType.DOUBLE


def kept_rounding(facts: Facts, state: State, out_type: ir.DataType) -> tuple[ir.DataType, bool]:
    """The type to which the normalised value is rounded before the scale, and whether the original rounds more often.

    Raises:
        Refusal: the original rounds in an order that the operator does not have.
    """
    marks = list(state.roundings)
    at = marks.index("scale") if "scale" in marks else len(marks)
    before = [t for t in marks[:at] if isinstance(t, ir.DataType)]
    after = [t for t in marks[at + 1 :] if isinstance(t, ir.DataType)]
    scaled_in = after[0] if after else before[-1]
    narrow_before = [t for t in before if t in SIXTEEN_BIT]
    narrow = [t for t in (*before, *after) if t in SIXTEEN_BIT]
    coarse_statistics = any(t in SIXTEEN_BIT for t in state.statistics)
    if out_type not in SIXTEEN_BIT:
        if narrow:
            raise Refusal("is rounded to 16 bits on the way to a wider type", expected="no narrowing before the end")
        return (
            DOUBLE if out_type == DOUBLE or (scaled_in == DOUBLE and state.statistics[0] == DOUBLE) else FLOAT
        ), coarse_statistics
    if coarse_statistics:
        return (out_type if scaled_in == out_type and state.scale is not None else FLOAT), True
    if before[0] not in SIXTEEN_BIT and set(narrow) == {out_type}:
        if state.scale is None or not narrow_before:
            if len(narrow) == 1:
                return FLOAT, False  # one rounding, at the end
        elif len(narrow) == 2 and scaled_in == out_type and state.bias is None:
            return out_type, False  # rounded, scaled, rounded
        elif len(narrow) == 2 and facts.dtype(checks.strip(facts, state.scale)) == out_type and state.bias is None:
            return out_type, False  # scaled in float32, of values that are both 16 bits wide
        elif len(narrow) == 3 and state.bias is not None and "bias" in marks:
            if scaled_in == out_type:
                return out_type, False
            between = marks[at + 1 : marks.index("bias")]
            operands = (checks.strip(facts, v) for v in (state.scale, state.bias))
            if out_type in between and all(facts.dtype(v) == out_type for v in operands):
                return out_type, False  # as above, in float32
    raise Refusal(
        "rounds to 16 bits in an order that the operator does not have",
        expected="one rounding at the end, or one before and one after the scale",
        found=" > ".join(t if isinstance(t, str) else t.name for t in state.roundings),
    )
