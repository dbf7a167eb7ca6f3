"""Whether a kernel is correct: its arguments, and a run of the reference in float64 beside its results."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from rmsnorm_deploy.check.ulp import units
from rmsnorm_deploy.op import reference
from rmsnorm_deploy.op.dtypes import float_type
from rmsnorm_deploy.tvm.schedules.norm import Norm

ANY_SIZE = 1024
"""Features to measure a norm with where their number is known at run time only."""
BAR = 8.0
"""A result is wrong that is further off than so many ULP of the row's largest value."""

Array = NDArray[Any]


def inputs_of(norm: Norm, rows: int) -> list[Array]:
    """Random arguments, in the kernel's order."""
    generator = np.random.default_rng(0)
    size = ANY_SIZE if norm.size is None else norm.size
    outer, inner = (1,) * (norm.outer_rank - 1), (1,) * (norm.inner_rank - 1)
    shape = (1, *outer, size, *inner, rows) if norm.columns else (*outer, rows, size)

    def array(dims: tuple[int, ...], dtype: str) -> Array:
        return generator.standard_normal(dims).astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)

    arrays = [array(shape, norm.dtype)] + ([array(shape, norm.dtype)] if norm.adds else [])
    arrays += [array(shape if norm.full_scale else (size,), norm.scale_dtype)]
    return arrays + ([array(shape if norm.full_bias else (size,), norm.scale_dtype)] if norm.biased else [])


def error_of(norm: Norm, inputs: list[Array], results: list[Array]) -> str:
    """What is wrong with ``results``, beside a float64 run of the reference; empty where they are correct."""
    p = norm.parameters

    def parameter(value: Array) -> Array:
        return value.reshape(-1, *(1,) * norm.inner_rank) if norm.columns and value.ndim == 1 else value

    x, *rest = inputs
    y, total = reference.rms_norm(
        x,
        parameter(rest[1 if norm.adds else 0]),
        residual=rest[0] if norm.adds else None,
        bias=parameter(rest[1]) if norm.biased else None,
        exact=True,
        **(reference.norm_attributes(p) | {"axes": (norm.outer_rank,)}),
    )
    for name, result, truth in zip(p.op.outputs, results, (y, total), strict=False):
        error = units(result, truth, float_type(result.dtype), axis=norm.outer_rank)
        if not error <= BAR:
            return f"{name} is {error:.3g} ULP off"
    return ""
