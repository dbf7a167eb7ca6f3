"""How far a result may be from the float64 truth: the bar that every suite uses."""

import numpy as np

from rmsnorm_deploy.check import ulp
from rmsnorm_deploy.op.dtypes import float_type


def units(got, truth, axis=-1):
    """The largest error in units in the last place of the row's largest value; infinite where one is not finite."""
    got, dtype = np.asarray(got), np.asarray(got).dtype
    t = np.asarray(truth).astype(np.float64)
    assert got.shape == t.shape, f"shape {got.shape} instead of {t.shape}"
    # what overflows in the result's type is infinite in the truth, too
    with np.errstate(over="ignore"):
        t = np.where(np.isfinite(t.astype(dtype).astype(np.float64)), t, t.astype(dtype).astype(np.float64))
    return ulp.units(got, t, float_type(dtype), axis)


def rows(shape, dtype, seed=0):
    """Normal data, rows scaled from far below sqrt(epsilon) to where float16 squares overflow; one row of zeros."""
    rng = np.random.default_rng(seed)
    factors = np.resize([1.0, 2.0**-10, 0.0, 2.0**-7, 2.0**8, 2.0**-14], shape[:-1])[..., None]
    return (rng.standard_normal(shape) * factors).astype(dtype)
