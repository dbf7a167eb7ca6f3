"""The unit of every error: the spacing of a type's numbers."""

import numpy as np
import pytest

from rmsnorm_deploy.check.ulp import row_ulp, ulp, units
from rmsnorm_deploy.op.dtypes import BFLOAT16, FLOAT16, FLOAT32, FLOAT64, TYPES


@pytest.mark.parametrize("kind", [FLOAT16, FLOAT32, FLOAT64], ids=lambda t: t.name)
def test_it_is_the_distance_to_the_next_number(kind):
    rng = np.random.default_rng(0)
    limits = np.finfo(kind.dtype)
    exponents = np.arange(limits.minexp - kind.mantissa_bits, limits.maxexp - 1)
    values = (np.ldexp(1.0, exponents) * rng.uniform(1, 2, exponents.shape)).astype(kind.dtype)
    values = np.concatenate([values, np.ldexp(1.0, exponents).astype(kind.dtype), -values])
    np.testing.assert_array_equal(ulp(values, kind), np.spacing(np.abs(values)).astype(np.float64))


def test_bfloat16_is_the_upper_half_of_float32():
    values = np.array([1.0, 1.5, 2.0, 3e-39, 1e38], np.float32)
    steps = (values.view(np.uint32) & 0xFFFF0000).view(np.float32)
    following = (steps.view(np.uint32) + 0x10000).view(np.float32)
    np.testing.assert_array_equal(ulp(steps, BFLOAT16), following.astype(np.float64) - steps.astype(np.float64))


@pytest.mark.parametrize("kind", TYPES, ids=lambda t: t.name)
def test_zero_infinity_and_nan(kind):
    assert ulp(0.0, kind) == ulp(kind.smallest, kind) == kind.smallest
    assert ulp(-np.inf, kind) == np.inf
    assert np.isnan(ulp(np.nan, kind))


def test_rows_are_measured_by_their_largest_finite_value():
    rows = np.array([[1.0, -3.0, np.inf], [0.0, 0.0, 0.0]])
    np.testing.assert_array_equal(row_ulp(rows, FLOAT16), [[2.0**-9], [2.0**-24]])
    assert row_ulp(rows, FLOAT16, axis=None).shape == (1, 1)
    np.testing.assert_array_equal(row_ulp(rows, FLOAT16, known=rows == 1), [[2.0**-10], [2.0**-24]])


def test_errors_in_these_units():
    truth = np.array([[1.0, 3.0], [np.inf, np.nan]])
    assert units(truth, truth, FLOAT16) == 0
    assert units(truth + np.array([[2.0**-10, 0], [0, 0]]), truth, FLOAT16) == 0.5
    assert units([[1.0, np.nan]], [[1.0, 3.0]], FLOAT16) == np.inf
    assert units([[1.0, 3.0]], [[1.0, np.inf]], FLOAT16) == np.inf
    assert units(np.empty((0, 4)), np.empty((0, 4)), FLOAT16) == 0
