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
    types = [t for t in state.roundings if isinstance(t, ir.DataType)]
    narrow = {t for t in types if t in SIXTEEN_BIT}
    coarse = any(t in SIXTEEN_BIT for t in state.statistics)
    casts = [(t, power) for t, power in state.casts if t in SIXTEEN_BIT]
    if types[0] in SIXTEEN_BIT and not coarse and [power for _, power in casts] == [-1]:
        # DeepSeek-V4 and timm ask for this one rounding; without it one element in five would have other bits
        raise Refusal(
            f"rounds the inverse of the RMS to {types[0].name} and nothing before it: the operator lacks that order",
            expected="a product with the inverse as it was computed",
            found=f"a Cast to {casts[0][0].name} in front of the product",
        )
    # a product in 16 bits has a factor in 16 bits: the RMS or its inverse, or x times a scale
    coarse = coarse or types[0] in SIXTEEN_BIT or bool(casts)
    if out_type not in SIXTEEN_BIT:
        if narrow:
            raise Refusal("is rounded to 16 bits on the way to a wider type", expected="no narrowing before the end")
        double = out_type == DOUBLE or (_scaled_in(state) == DOUBLE and state.statistics[0] == DOUBLE)
        return (DOUBLE if double else FLOAT), coarse
    if coarse:
        return (out_type if _scaled_in(state) == out_type and state.scale is not None else FLOAT), True
    if narrow != {out_type}:
        other = next(t for t in types if t in narrow - {out_type})
        raise Refusal(
            f"is rounded to {other.name} on the way to {out_type.name}",
            expected="one 16-bit type",
            found=_written(state),
        )
    rounded = [out_type in part for part in _parts(state)]
    steps = 1 + (state.scale is not None) + (state.bias is not None)
    if not any(rounded[:-1]):
        return FLOAT, False  # one rounding, at the end
    if not all(rounded) or len(rounded) > steps:
        raise Refusal(
            f"is rounded to {out_type.name} where the operator does not round",
            expected="a rounding at the end alone, or one after each step from x / rms on",
            found=_written(state),
        )
    for parameter, mark in ((state.scale, "scale"), (state.bias, "bias")):
        if parameter is None or state.roundings[state.roundings.index(mark) + 1] == out_type:
            continue
        if facts.dtype(checks.strip(facts, parameter)) != out_type:
            raise Refusal(
                f"the {mark} '{parameter.name}' has more bits than the rounded value that it meets",
                expected=f"a {mark} of {out_type.name}",
                found=_written(state),
            )
    return out_type, False


def _scaled_in(state: State) -> ir.DataType:
    """The type of the product with the scale; of the value before it where that is the last one."""
    marks = list(state.roundings)
    at = marks.index("scale") if "scale" in marks else len(marks)
    types = [t for t in marks[at:] if isinstance(t, ir.DataType)]
    return types[0] if types else [t for t in marks[:at] if isinstance(t, ir.DataType)][-1]


def _parts(state: State) -> list[list[ir.DataType]]:
    """The types of x / rms and of what becomes of it; scale, bias and a factor of a rounded value begin a new part."""
    parts: list[list[ir.DataType]] = [[]]
    for t in state.roundings:
        if isinstance(t, ir.DataType):
            parts[-1].append(t)
        elif t != "factor" or any(p in SIXTEEN_BIT for p in parts[-1]):
            parts.append([])
    return [p for p in parts if p]


def _written(state: State) -> str:
    return " > ".join(t if isinstance(t, str) else t.name for t in state.roundings)
