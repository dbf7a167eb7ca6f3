"""The cases of the kernels' C contract, against float64: tests of a fixture `kernels`, on whatever it runs.

A test file takes them all with ``globals().update(cases(contract_cases))``, or some of them by name.
"""

import dataclasses
import itertools

import numpy as np
import pytest

from tests.support.contract import (
    BF16,
    COMBINATIONS,
    DTYPES,
    F16,
    F32,
    F64,
    LAYOUTS,
    Call,
    agrees,
    scale_shapes,
    values,
)


@pytest.mark.parametrize(("op", "x_type", "scale_type", "stash_type", "round_type"), COMBINATIONS)
def test_types_and_layouts(kernels, op, x_type, scale_type, stash_type, round_type):
    rng = np.random.default_rng(7)
    for shape, axes in LAYOUTS:
        for scale_shape in scale_shapes(shape, axes):
            call = Call(
                values(rng, shape, x_type),
                values(rng, scale_shape, scale_type),
                x_type,
                scale_type,
                round_type,
                stash_type,
                axes,
                epsilon=1e-3,
            )
            if op == "AddRMSNorm":
                call.residual = values(rng, shape, x_type)
            if op == "GeneralRMSNorm":
                call.bias = values(rng, scale_shape if rng.random() < 0.5 else shape[-1:], scale_type)
                call.epsilon_outside = 0.125
                call.rms_floor = float(rng.choice([0.0, 1.1]))
                if len(axes) == 1:
                    call.partial_size = int(rng.integers(1, shape[axes[0]] + 3))
            agrees(call, *call.run(kernels))


@pytest.mark.parametrize("size", [1, 16, 64, 128, 896, 4096])
def test_where_squares_overflow(kernels, size):
    """Where the contract says that they do not yet, and where they have to."""
    ones = np.ones(size, np.float32)
    y, _ = Call(np.full((3, size), 2.2e18, np.float32), ones).run(kernels)
    np.testing.assert_allclose(y, 1.0, rtol=3e-7)
    x = np.zeros((1, size), np.float32)
    x[0, size // 2] = 1.8e19
    y, _ = Call(x, ones).run(kernels)
    np.testing.assert_allclose(y.max(), np.sqrt(size), rtol=3e-7)
    x[0, size // 2] = 1.9e19
    y, _ = Call(x, ones).run(kernels)
    np.testing.assert_array_equal(y, 0.0)


@pytest.mark.parametrize("x_type", [F32, F16, BF16])
@pytest.mark.parametrize("round_twice", [False, True])
@pytest.mark.parametrize("op", ["RMSNorm", "AddRMSNorm", "GeneralRMSNorm"])
def test_every_row_length(kernels, op, x_type, round_twice):
    rng = np.random.default_rng(11)
    round_type = x_type if round_twice else F32
    for size in [
        *range(1, 71),
        95,
        96,
        97,
        127,
        128,
        129,
        255,
        256,
        257,
        896,
        4095,
        4096,
        4097,
        8191,
        8192,
        8193,
        9001,
    ]:
        rows = 3 if size < 1000 else 2
        call = Call(values(rng, (rows, size), x_type), values(rng, (size,), x_type), x_type, x_type, round_type)
        if op == "AddRMSNorm":
            call.residual = values(rng, (rows, size), x_type)
        if op == "GeneralRMSNorm":
            call.bias = values(rng, (size,), x_type)
            call.partial_size = max(1, size * 2 // 3)
        agrees(call, *call.run(kernels))


@pytest.mark.parametrize("x_type", [F32, F16, BF16])
@pytest.mark.parametrize(("size", "partial"), [(64, 4), (64, 16), (128, 8), (128, 32), (64, 8), (128, 16)])
def test_parts_of_an_attention_head(kernels, x_type, size, partial):
    """Some of them have kernels of their own; what is not measured must not count."""
    rng = np.random.default_rng(12)
    for rows, round_type, bias in itertools.product((1, 2, 19), (F32, x_type), (False, True)):
        x = values(rng, (rows, size), x_type)
        x[:, partial:] *= DTYPES[x_type](100)
        call = Call(x, values(rng, (size,), x_type), x_type, x_type, round_type)
        call.partial_size = partial
        if bias:
            call.bias = values(rng, (size,), x_type)
        agrees(call, *call.run(kernels))


@pytest.mark.parametrize("x_type", [F32, F16, BF16])
@pytest.mark.parametrize("inner", [1, 2, 3, 7, 8, 9, 15, 31, 32, 33, 63, 64, 65, 100, 196])
def test_every_column_count(kernels, x_type, inner):
    rng = np.random.default_rng(13)
    for size, add, bias in itertools.product((1, 15, 16, 17, 40), (False, True), (False, True)):
        shape = (2, size, inner)
        call = Call(values(rng, shape, x_type), values(rng, (size, 1), x_type), x_type, x_type, x_type, axes=(1,))
        if add:
            call.residual = values(rng, shape, x_type)
        if bias:
            call.bias = values(rng, (size, 1), x_type)
        agrees(call, *call.run(kernels))


def test_a_long_row_stays_exact(kernels):
    rng = np.random.default_rng(17)
    call = Call(np.abs(values(rng, (2, 1_000_003), F32)) + np.float32(1), values(rng, (), F32))
    agrees(call, *call.run(kernels))


def test_long_columns_stay_exact(kernels):
    rng = np.random.default_rng(19)
    call = Call(np.abs(values(rng, (1, 20_011, 40), F32)) + np.float32(1), np.float32([2.0]), axes=(1,))
    agrees(call, *call.run(kernels))


@pytest.mark.parametrize("x_type", [F32, F16, BF16, F64])
@pytest.mark.parametrize("shape", [(4, 77), (2, 9, 70)])
@pytest.mark.parametrize("place", ["y is x", "sum is residual", "both", "y is residual, sum is x"])
def test_in_place(kernels, x_type, shape, place):
    rng = np.random.default_rng(23)
    axes = (1,)
    scale = values(rng, (shape[1],) + (1,) * (len(shape) - 2), x_type)
    stash_type = F64 if x_type == F64 else F32
    adds = place != "y is x"
    call = Call(values(rng, shape, x_type), scale, x_type, x_type, x_type, stash_type, axes)
    call.residual = values(rng, shape, x_type) if adds else None
    y, total = call.run(kernels)
    x2 = call.x.copy()
    other = dataclasses.replace(call, x=x2, residual=call.residual.copy() if adds else None)
    if place == "y is x":
        got = other.run(kernels, y=x2)
    elif place == "sum is residual":
        got = other.run(kernels, total=other.residual)
    elif place == "both":
        got = other.run(kernels, y=x2, total=other.residual)
    else:
        got = other.run(kernels, y=other.residual, total=x2)
    np.testing.assert_array_equal(got[0], y)
    if adds:
        np.testing.assert_array_equal(got[1], total)


@pytest.mark.parametrize("x_type", [F32, F16, BF16, F64])
@pytest.mark.parametrize("shape", [(3, 45), (2, 9, 37)])
def test_unaligned_and_within_bounds(kernels, x_type, shape):
    """Addresses that are aligned to the element only, and not one byte written outside y and sum."""
    rng = np.random.default_rng(29)
    size = int(np.prod(shape))

    def shifted(by, data=None):
        room = np.full(size + 64, 3, dtype=DTYPES[x_type])
        view = room[by : by + size].reshape(shape)
        if data is not None:
            view[...] = data
        return room, view

    for offsets in [(1, 2, 3, 5), (3, 1, 7, 2)]:
        _, x = shifted(offsets[0], values(rng, shape, x_type))
        _, residual = shifted(offsets[1], values(rng, shape, x_type))
        y_room, y = shifted(offsets[2])
        sum_room, total = shifted(offsets[3])
        scale = values(rng, (shape[1] + 1,) + (1,) * (len(shape) - 2), x_type)[1:]
        call = Call(x, scale, x_type, x_type, F32, F64 if x_type == F64 else F32, (1,), residual=residual)
        agrees(call, *call.run(kernels, y, total))
        for room, by in ((y_room, offsets[2]), (sum_room, offsets[3])):
            assert (room[:by] == 3).all()
            assert (room[by + size :] == 3).all()


@pytest.mark.parametrize("shape", [(2, 40), (1, 40, 9)])
@pytest.mark.parametrize("spread", [1e-3, 1e-12, 1e-18, 1e15, 1e18])
def test_small_and_large_values(kernels, shape, spread):
    rng = np.random.default_rng(31)
    call = Call(values(rng, shape, F32, spread), values(rng, (), F32), axes=(1,), epsilon=1e-6)
    agrees(call, *call.run(kernels))
    if spread >= 1e-12:  # below, the squares are subnormal floats, which have fewer digits
        call.epsilon = 0.0
        agrees(call, *call.run(kernels))


@pytest.mark.parametrize("shape", [(1, 40), (1, 40, 9)])
@pytest.mark.parametrize(("value", "floor"), [(1e-39, 1e-39), (1e-42, 3e-42), (0.0, 1e-44), (1e18, 3e38)])
def test_an_rms_without_a_reciprocal(kernels, shape, value, floor):
    floor = float(np.float32(floor))
    call = Call(np.full(shape, value, np.float32), np.float32(1), axes=(1,), epsilon=0.0, rms_floor=floor)
    call.bias = np.array(-0.0, np.float32)
    y, _ = call.run(kernels)
    np.testing.assert_array_equal(y, call.x / np.float32(floor))


@pytest.mark.parametrize("x_type", [F32, F16, BF16, F64])
@pytest.mark.parametrize("shape", [(4, 40), (4, 40, 9)])
def test_nan_infinity_and_zero(kernels, x_type, shape):
    """NaN and infinity spoil their own row and no other; a NaN also survives the floor."""
    x = np.ones(shape, DTYPES[x_type])
    x[0].flat[5] = np.nan
    x[1].flat[7] = np.inf
    x[2] = 0
    one, zero = np.array(1, DTYPES[x_type]), np.array(-0.0, DTYPES[x_type])
    stash_type = F64 if x_type == F64 else F32
    for epsilon, floor in itertools.product((0.0, 0.25), (0.0, 4.0)):
        call = Call(x, one, x_type, x_type, x_type, stash_type, (1,), epsilon, bias=zero, rms_floor=floor)
        y, _ = call.run(kernels)
        wanted, _ = call.expected(exact=False)
        with np.errstate(invalid="ignore"):
            np.testing.assert_allclose(y.astype(float), wanted.astype(float), rtol=0.01)
    assert np.isnan(y[0].astype(float)).any()


@pytest.mark.parametrize("x_type", [F32, F16, BF16, F64])
@pytest.mark.parametrize("shape", [(3, 40), (3, 40, 9)])
def test_infinity_behind_the_measured_features_stays_infinity(kernels, x_type, shape):
    rng = np.random.default_rng(47)
    for _ in range(20):
        x = values(rng, shape, x_type)
        x[0, 30], x[1, 31] = np.inf, -np.inf
        call = Call(x, np.array(2, DTYPES[x_type]), x_type, x_type, F32, F64 if x_type == F64 else F32, (1,))
        call.partial_size = 7
        y = call.run(kernels)[0].astype(float)
        assert (y[0, 30] == np.inf).all()
        assert (y[1, 31] == -np.inf).all()
        assert np.isinf(y).sum() == 2 * np.prod(shape[2:])
        assert not np.isnan(y).any()


@pytest.mark.parametrize("x_type", [F16, BF16])
@pytest.mark.parametrize("stash_type", [F32, F64])
@pytest.mark.parametrize("shape", [(2, 40), (2, 40, 9)])
def test_a_nan_with_every_bit_set_is_rounded_to_a_nan(kernels, x_type, stash_type, shape):
    """Such a NaN in a float32 scale would become a zero if it were rounded as numbers are."""
    scale = np.ones((40, *(1,) * (len(shape) - 2)), np.float32)
    scale[[3, 39]] = np.array([0x7FFFFFFF, 0xFFFFFFFF], np.uint32).view(np.float32).reshape(2, *scale.shape[1:])
    for round_type in (F32, x_type):
        call = Call(np.ones(shape, DTYPES[x_type]), scale, x_type, F32, round_type, stash_type, (1,))
        y = call.run(kernels)[0].astype(float)
        assert np.isnan(y[:, [3, 39]]).all()
        assert np.isfinite(np.delete(y, [3, 39], axis=1)).all()


def test_squares_beyond_float32_become_infinite(kernels):
    call = Call(np.full((2, 40), 1e30, np.float32), np.float32(1))
    y, _ = call.run(kernels)
    np.testing.assert_array_equal(y, np.zeros_like(y))
    call.stash_type = F64
    y, _ = call.run(kernels)
    np.testing.assert_allclose(y, np.ones_like(y), rtol=1e-6)


@pytest.mark.parametrize(("data_type", "integer"), [(F16, np.uint16), (BF16, np.uint16)])
@pytest.mark.parametrize("inner", [1, 3])
def test_every_sixteen_bit_value(kernels, data_type, integer, inner):
    """All 65,536 bit patterns go through widening, rounding and the sum unharmed."""
    patterns = np.arange(65536, dtype=integer).view(DTYPES[data_type])
    x = np.repeat(patterns[:, None, None], inner, axis=2)
    call = Call(x, np.float32(1), data_type, F32, data_type, axes=(1,), epsilon=0.0)
    call.residual = np.zeros_like(x)
    y, total = call.run(kernels)
    with np.errstate(invalid="ignore"):
        x = x + np.zeros_like(x)  # -0 + 0 is 0
    np.testing.assert_array_equal(total.astype(np.float32), x.astype(np.float32))
    finite = np.isfinite(x.astype(np.float32)) & (np.abs(x.astype(np.float32)) > 1e-18)
    finite &= np.abs(x.astype(np.float32)) < 1e18
    np.testing.assert_array_equal(y[finite].astype(np.float32), np.sign(x[finite].astype(np.float32)))


@pytest.mark.parametrize("data_type", [F16, BF16])
def test_rounding_to_sixteen_bits_is_to_nearest_even(kernels, data_type):
    """float32 values around every tie: the sum of two 16-bit values is a float32 that is then rounded."""
    rng = np.random.default_rng(37)
    x = rng.integers(0, 65536, 200_000, dtype=np.uint16).view(DTYPES[data_type]).reshape(100, 2000)
    residual = rng.integers(0, 65536, 200_000, dtype=np.uint16).view(DTYPES[data_type]).reshape(100, 2000)
    with np.errstate(all="ignore"):
        residual[:50] = (x[:50].astype(np.float32) * rng.choice([2.0**-9, 2.0**-12, 1.0], (50, 2000))).astype(x.dtype)
    call = Call(x, np.float32(1), data_type, F32, F32, residual=residual)
    _, total = call.run(kernels)
    with np.errstate(all="ignore"):
        wanted = (x.astype(np.float32) + residual.astype(np.float32)).astype(x.dtype)
    np.testing.assert_array_equal(total.astype(np.float32), wanted.astype(np.float32))


@pytest.mark.parametrize("data_type", [F16, BF16])
def test_the_two_rounding_orders_differ(kernels, data_type):
    rng = np.random.default_rng(41)
    call = Call(values(rng, (20, 500), data_type), values(rng, (500,), data_type), data_type, data_type, data_type)
    twice, _ = call.run(kernels)
    once, _ = dataclasses.replace(call, round_type=F32).run(kernels)
    assert 0.1 < (twice != once).mean() < 0.5


@pytest.mark.parametrize("round_type", [F16, F64])
def test_float64_arithmetic_is_rounded_to_float16_once(kernels, round_type):
    """By way of float32 some sixty of these million values would be rounded twice, to the wrong side of a tie."""
    rng = np.random.default_rng(53)
    call = Call(values(rng, (1000, 1000), F16), np.array(1, np.float32), F16, F32, round_type, F64)
    np.testing.assert_array_equal(call.run(kernels)[0], call.expected(exact=False)[0])


def test_zero_sizes(kernels):
    for shape, axes in [((0, 5), (1,)), ((3, 0), (1,)), ((0, 4, 6), (1,)), ((2, 0, 6), (1,)), ((2, 4, 0), (1,))]:
        Call(np.zeros(shape, np.float32), np.float32(1), axes=axes).run(kernels)


def test_the_same_bytes_every_time_and_beside_any_rows(kernels):
    """A row's result depends on nothing but the row."""
    rng = np.random.default_rng(43)
    call = Call(values(rng, (9, 333), F16), values(rng, (333,), F16), F16, F16, F16)
    whole, _ = call.run(kernels)
    for row in range(9):
        alone, _ = dataclasses.replace(call, x=call.x[row : row + 1]).run(kernels)
        np.testing.assert_array_equal(alone[0], whole[row])
