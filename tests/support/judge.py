"""How far a result may be from the float64 truth: the bar that every suite uses."""

import ml_dtypes
import numpy as np

ULP = {
    np.dtype(np.float32): 2.0**-23,
    np.dtype(np.float16): 2.0**-10,
    np.dtype(ml_dtypes.bfloat16): 2.0**-7,
    np.dtype(np.float64): 2.0**-52,
}
TINY = {
    np.dtype(np.float32): 2.0**-149,
    np.dtype(np.float16): 2.0**-24,
    np.dtype(ml_dtypes.bfloat16): 2.0**-133,
    np.dtype(np.float64): 2.0**-1074,
}
"""Spacing of the subnormal numbers: no result is nearer than half of it."""


def units(got, truth, axis=-1):
    """The largest error in units in the last place of the row's largest value; infinite where one is not finite."""
    got, dtype = np.asarray(got), np.asarray(got).dtype
    g, t = got.astype(np.float64), np.asarray(truth).astype(np.float64)
    assert g.shape == t.shape, f"shape {g.shape} instead of {t.shape}"
    if g.size == 0:
        return 0.0
    # what overflows in the result's type is infinite in the truth, too
    with np.errstate(over="ignore"):
        t = np.where(np.isfinite(t.astype(dtype).astype(np.float64)), t, t.astype(dtype).astype(np.float64))
    same = (g == t) | (np.isnan(g) & np.isnan(t))
    known = np.isfinite(t)
    size = np.max(np.where(known, np.abs(t), 0), axis=axis, keepdims=True)
    step = np.maximum(size * ULP[dtype], TINY[dtype])
    with np.errstate(all="ignore"):
        error = np.where(same, 0.0, np.where(known & np.isfinite(g), np.abs(g - t) / step, np.inf))
    return float(error.max())


def rows(shape, dtype, seed=0):
    """Normal data, rows scaled from far below sqrt(epsilon) to where float16 squares overflow; one row of zeros."""
    rng = np.random.default_rng(seed)
    factors = np.resize([1.0, 2.0**-10, 0.0, 2.0**-7, 2.0**8, 2.0**-14], shape[:-1])[..., None]
    return (rng.standard_normal(shape) * factors).astype(dtype)
