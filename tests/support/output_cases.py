"""Version 2 of the contract: quantised outputs, y of another type, extremes of rows, strides, on any `kernels`."""

import ctypes
import dataclasses
import itertools

import numpy as np
import pytest

from tests.support.contract import F64, Call, agrees, values
from tests.support.outputs import BF16, F16, F32, FLOAT8, INT8, QUANTISED, UINT8, Outputs, quantise_linear

SIZES = [1, 3, 7, 8, 15, 16, 17, 31, 33, 63, 64, 65, 100, 128, 129, 255, 896, 2047, 2048, 2049, 4097, 9001]
Y_TYPES = [(F32, 0), (F16, 0), (BF16, 0), (F32, F16), (F32, BF16), (F16, F32), (BF16, F32)]


def sizes_for(kernels):
    """Numbers of features: those of kernels that are emulated are fewer, and beside the steps of their own tables."""
    return getattr(kernels, "sizes", SIZES)


def bits(array):
    return array.view({1: np.uint8, 2: np.uint16, 4: np.uint32}[array.itemsize])


def same(got, wanted):
    """Equal bits, but for those of a NaN."""
    number = ~np.isnan(wanted.astype(np.float32))
    np.testing.assert_array_equal(np.isnan(got.astype(np.float32)), ~number)
    np.testing.assert_array_equal(bits(np.ascontiguousarray(got))[number], bits(np.ascontiguousarray(wanted))[number])


def zero_points(rng, quantised_type, count):
    if quantised_type == FLOAT8:
        return None
    limits = np.iinfo(QUANTISED[quantised_type])
    return rng.integers(limits.min, limits.max, count, QUANTISED[quantised_type], endpoint=True)


def call_of(rng, shape, x_type, round_type=F32, op="RMSNorm"):
    call = Call(values(rng, shape, x_type), values(rng, shape[-1:], x_type), x_type, x_type, round_type)
    if "Add" in op:
        call.residual = values(rng, shape, x_type)
    if "bias" in op:
        call.bias = values(rng, shape[-1:], x_type)
    return call


@pytest.mark.parametrize("op", ["RMSNorm", "AddRMSNorm", "bias", "Add, bias"])
@pytest.mark.parametrize(("x_type", "y_type"), Y_TYPES)
@pytest.mark.parametrize("quantised_type", [INT8, UINT8, FLOAT8])
def test_quantised_is_what_the_pair_gives(kernels, quantised_type, x_type, y_type, op):
    """Bit by bit: with one scale and one a row, with y beside it and without, whatever the number of features."""
    rng = np.random.default_rng(61)
    for number, size in enumerate(sizes_for(kernels)):
        rows = 19 if size < 300 else 3
        for round_type, by_row in itertools.product({x_type, F32}, (False, True)):
            call = call_of(rng, (rows, size), x_type, round_type, op)
            count = rows if by_row else 1
            scale = rng.uniform(0.004, 0.05, count).astype(np.float32)
            zero = None if (number + by_row) % 3 == 0 else zero_points(rng, quantised_type, count)
            outputs = Outputs(call, y_type, quantised_type, scale, zero_point=zero)
            quantised = np.empty((rows, size), QUANTISED[quantised_type])
            y = np.empty((rows, size), outputs.dtype()) if number % 2 else None
            total = None if call.residual is None else np.empty_like(call.x)
            outputs.run(kernels, y=y, total=total, quantised=quantised)
            wanted_y, wanted_sum, wanted = outputs.pair(kernels)
            if x_type == F32 or y_type == 0 or round_type == x_type:  # else y is rounded less often than the norm alone
                same(quantised, wanted)
                if y is not None:
                    same(y, wanted_y)
            elif y is not None:
                wide = Outputs(dataclasses.replace(call), F32, quantised_type, scale, zero_point=zero)
                exact = call.expected()[0]
                largest = np.abs(exact).max(axis=-1, keepdims=True) + 1e-30
                if call.bias is not None:
                    largest = largest + np.abs(call.bias.astype(np.float64)).max() * 2
                assert (np.abs(y - exact) <= 2.5 * 2.0**-23 * largest).all()
                column = (rows, 1) if by_row else ()
                zero = 0 if zero is None else zero.reshape(column)
                same(quantised, quantise_linear(y, wide.scale.reshape(column), zero, quantised_type))
            if total is not None:
                same(total, wanted_sum)


@pytest.mark.parametrize("quantised_type", [INT8, UINT8, FLOAT8])
def test_ties_ends_and_what_is_no_number(kernels, quantised_type):
    """y is x here: rms_floor is 1 and larger than any other rms."""
    halves = np.arange(-1200, 1200, dtype=np.float32) / 2
    fine = np.arange(-600, 600, dtype=np.float32) * 2.0**-10  # ties of float8's smallest values
    odd = np.float32([0, -0.0, 1e-40, 448, 464, 464.1, 465, -1e30, 1e10, np.inf, -np.inf, np.nan])
    x = np.concatenate([halves, fine, odd])
    call = Call(x[None], np.float32([1]), epsilon=0.0, rms_floor=1.0, partial_size=1)
    call.x = np.concatenate([np.zeros((1, 1), np.float32), call.x], axis=1)
    for zero in (None, -128 if quantised_type == INT8 else 0, 127, 5):
        zero_point = None if zero is None or quantised_type == FLOAT8 else np.array([zero], QUANTISED[quantised_type])
        for scale in (1.0, 0.5, 3.0):
            outputs = Outputs(call, 0, quantised_type, np.float32([scale]), zero_point=zero_point)
            quantised = np.empty(call.x.shape, QUANTISED[quantised_type])
            outputs.run(kernels, quantised=quantised)
            same(quantised, outputs.pair(kernels)[2])
            same(quantised, quantise_linear(call.x, scale, 0 if zero_point is None else zero_point, quantised_type))


def test_quotients_beside_ties(kernels):
    """Where a product with the reciprocal would come out on the other side."""
    rng = np.random.default_rng(70)
    for scale in rng.uniform(0.01, 3, 20).astype(np.float32):
        ties = (np.arange(-127, 127) + 0.5).astype(np.float32) * scale
        x = np.concatenate([[0], ties, np.nextafter(ties, np.float32(0)), np.nextafter(ties, np.float32(1e9))])
        x = x.astype(np.float32)[None]
        call = Call(x, np.float32([1]), epsilon=0.0, rms_floor=1.0, partial_size=1)
        quantised = np.empty(x.shape, np.int8)
        Outputs(call, 0, INT8, scale.reshape(1)).run(kernels, quantised=quantised)
        np.testing.assert_array_equal(quantised, quantise_linear(x, scale, 0, INT8))


def bytes_of(kernels, call, scale, quantised_type, zero, keeps):
    """Quantised values, and those that the pair gives. What is kept of y is where x was."""
    zero_point = np.array([zero], QUANTISED[quantised_type])
    outputs = Outputs(call, 0, quantised_type, np.float32([scale]), zero_point=zero_point)
    quantised = np.empty(call.x.shape, QUANTISED[quantised_type])
    wanted_y, _, wanted = outputs.pair(kernels)
    outputs.run(kernels, y=call.x if keeps else None, quantised=quantised)
    if keeps:
        same(call.x, wanted_y)
    return quantised, wanted


@pytest.mark.parametrize(("quantised_type", "zero"), [(INT8, 0), (INT8, -128), (INT8, 127), (UINT8, 0), (UINT8, 255)])
def test_rows_beside_ties(kernels, quantised_type, zero):
    """Every row is measured whole, and all of its quotients are beside a tie: a few units in the last place, or more.

    What is near is computed anew, with its neighbours; what is a little farther has to be right at once.
    """
    rng = np.random.default_rng(71)
    low = 0 if quantised_type == UINT8 else -128
    for keeps in (False, True):
        for floor, away in itertools.product((1024.0, 700.3, 3.1e-5), (0.0, 2.0**-12, 2.0**-10)):
            scale = np.float32(rng.uniform(0.002, 0.003))  # so that the rms is less than the floor
            weight = rng.uniform(0.8, 2, 640).astype(np.float32)
            ties = rng.integers(low - zero - 2, low - zero + 257, (40, 640)) + 0.5
            if away:  # a row of near ones, so that what is wrong is as far off as its neighbours
                ties = ties[:, :1] // 8 * 8 + rng.integers(0, 8, ties.shape) + 0.5
            ties[:, 0] = 0.25  # so that some rows have quotients near to none
            ties += rng.choice([-away, away], ties.shape)
            x = (ties * np.float64(scale) / weight * floor).astype(np.float32)
            x = (x.view(np.int32) + rng.integers(-4, 5, x.shape, np.int32)).view(np.float32)
            call = Call(x, weight, epsilon=0.0, rms_floor=floor)
            same(*bytes_of(kernels, call, scale, quantised_type, zero, keeps))


@pytest.mark.parametrize("quantised_type", [INT8, UINT8])
@pytest.mark.parametrize("size", [16, 64, 65, 256, 300])
def test_rows_of_any_floats(kernels, quantised_type, size):
    """Of all exponents, in the row, in the scale and in that of the quotient; what is no number among them."""
    rng = np.random.default_rng(72 + size)

    def any_floats(shape, spread):
        made = np.ldexp(rng.standard_normal(shape), rng.integers(-spread, spread + 1, shape))
        return np.clip(made, -3e38, 3e38).astype(np.float32)

    odd = np.float32([0, -0.0, 1e-45, -3e-39, 3e38, -3e38, np.inf, -np.inf, np.nan])
    with np.errstate(all="ignore"):
        for trial in range(60):
            spread = (0, 3, 20, 60, 120)[trial % 5]
            x = any_floats((5, size), spread) * np.ldexp(np.float32(1), rng.integers(-spread, spread + 1, (5, 1)))
            weight = any_floats(size, (0, 1, 10, 40, 100)[trial // 5 % 5])
            if trial % 3 == 0:
                x.flat[rng.integers(0, x.size, 3)] = rng.choice(odd, 3)
            if trial % 7 == 0:
                weight[rng.integers(0, size)] = rng.choice(odd)
            call = Call(x.astype(np.float32), weight, epsilon=float(rng.choice([0.0, 1e-6])))
            y = np.abs(call.run(kernels)[0])
            y = y[np.isfinite(y) & (y > 0)]
            scale = y.max() / 100 if y.size and trial % 2 else abs(any_floats(1, 60)[0])
            zero = int(rng.integers(0, 128))
            same(*bytes_of(kernels, call, max(scale, 1e-38), quantised_type, zero, trial % 4 == 0))


def test_subnormal_quotients_and_huge_scales(kernels):
    """x / rms is rounded to few bits, and then scaled into the range of a byte."""
    rng = np.random.default_rng(73)
    x = (rng.integers(1, 200, (4, 256)) * np.float64(1e-44)).astype(np.float32)
    x[:, 0] = 3.0
    call = Call(x, np.full(256, 2e38, np.float32), epsilon=0.0)
    same(*bytes_of(kernels, call, 2e-6, INT8, 3, False))


@pytest.mark.parametrize("x_type", [F16, BF16])
def test_a_quotient_of_sixteen_bits(kernels, x_type):
    rng = np.random.default_rng(63)
    call = call_of(rng, (40, 500), x_type)
    scale = values(rng, 1, x_type, 0.05)
    results = []
    for quotient_type in (0, x_type):
        outputs = Outputs(call, 0, INT8, np.abs(scale), x_type, quotient_type=quotient_type)
        results.append(np.empty(call.x.shape, np.int8))
        outputs.run(kernels, quantised=results[-1])
        same(results[-1], outputs.pair(kernels)[2])
    assert (results[0] != results[1]).any()


@pytest.mark.parametrize(("x_type", "y_type"), Y_TYPES)
def test_extremes_of_rows(kernels, x_type, y_type):
    """Of y as it is rounded, of no other row, and not of the zeros behind an odd number of features."""
    rng = np.random.default_rng(64)
    for size in sizes_for(kernels):
        call = call_of(rng, (18, size), x_type)
        call.x = np.abs(call.x) + np.array(0.25, call.x.dtype)
        call.x[1::2] = -call.x[1::2]
        call.scale = np.abs(call.scale) + np.array(0.5, call.scale.dtype)
        call.x[4] = np.nan
        if size > 3:
            call.partial_size = size - 1
            call.x[5, -1] = np.nan
        outputs = Outputs(call, y_type)
        y = np.empty(call.x.shape, outputs.dtype())
        least, most = np.empty(18, np.float32), np.empty(18, np.float32)
        outputs.run(kernels, y=y, least=least, most=most)
        wide = y.astype(np.float32)
        wanted = np.where(np.isnan(wide), np.inf, wide).min(axis=1), np.where(np.isnan(wide), -np.inf, wide).max(axis=1)
        np.testing.assert_array_equal(least, wanted[0])
        np.testing.assert_array_equal(most, wanted[1])
        alone = np.empty(18, np.float32)
        outputs.run(kernels, most=alone)
        np.testing.assert_array_equal(alone, most)


def packed(rng, x_type, features=64, heads=(6, 2, 2), batch=2, length=5):
    """Queries, keys and values of several heads in rows of all three, with a gap, and the view of the queries."""
    width = sum(heads) * features + 3
    whole = values(rng, (batch, length, width), x_type)
    return whole, whole[..., : heads[0] * features].reshape(batch, length, heads[0], features)


def view_of(whole, like):
    """The first heads of a packed tensor, without a copy."""
    features = like.shape[-1]
    step = whole.itemsize
    strides = (whole.strides[0], whole.strides[1], features * step, step)
    return np.lib.stride_tricks.as_strided(whole, like.shape, strides)


@pytest.mark.parametrize("x_type", [F32, F16, BF16, F64])
@pytest.mark.parametrize("features", [1, 16, 37, 64, 128])
@pytest.mark.parametrize("add", [False, True])
def test_heads_of_packed_rows(kernels, x_type, features, add):
    rng = np.random.default_rng(65)
    whole, queries = packed(rng, x_type, features)
    x = view_of(whole, queries)
    call = Call(x, values(rng, features, x_type), x_type, x_type, F32, F64 if x_type == F64 else F32)
    y_whole, sum_whole = np.full_like(whole, 3), np.full_like(whole, 5)
    y, total = view_of(y_whole, queries), None
    strided = ["x", "y"]
    if add:
        other, _ = packed(rng, x_type, features)
        call.residual = view_of(other, queries)
        total = view_of(sum_whole, queries)
        strided += ["residual", "sum"]
    outputs = Outputs(call)
    outputs.run(kernels, y=y, total=total, strided=strided)
    wanted_y, wanted_sum, _ = outputs.pair(kernels)
    np.testing.assert_array_equal(y, wanted_y)
    used = queries.shape[2] * features
    assert (y_whole[..., used:] == 3).all()
    if add:
        np.testing.assert_array_equal(total, wanted_sum)
        assert (sum_whole[..., used:] == 5).all()
    else:  # in place
        rest = whole[..., used:].copy()
        outputs.run(kernels, y=x, strided=["x", "y"])
        np.testing.assert_array_equal(x, wanted_y)
        np.testing.assert_array_equal(whole[..., used:], rest)


@pytest.mark.parametrize("x_type", [F32, F16, BF16])
def test_all_tensors_in_layouts_of_their_own(kernels, x_type):
    rng = np.random.default_rng(66)
    for order in itertools.permutations(range(3)):
        shape = (3, 4, 5, 40)
        room = values(rng, (*(shape[i] for i in order), 43), x_type)
        x = room[..., :40].transpose(*np.argsort(order), 3)
        call = Call(x, values(rng, (4, 1, 40), x_type), x_type, x_type, x_type)
        scale = rng.uniform(0.01, 0.02, 60).astype(np.float32)
        outputs = Outputs(call, 0, UINT8, scale, zero_point=rng.integers(0, 255, 60, np.uint8))
        y_room = np.full((5, 4, 3, 41), 3, x.dtype)
        q_room = np.full((4, 3, 5, 47), 9, np.uint8)
        y, quantised = y_room[..., :40].transpose(2, 1, 0, 3), q_room[..., :40].transpose(1, 0, 2, 3)
        least, most = np.empty(60, np.float32), np.empty(60, np.float32)
        outputs.run(kernels, y=y, quantised=quantised, least=least, most=most, strided=["x", "y", "quantised"])
        wanted_y, _, wanted = outputs.pair(kernels)
        same(y, wanted_y)
        same(quantised, wanted)
        np.testing.assert_array_equal(most, wanted_y.reshape(60, 40).max(axis=1).astype(np.float32))
        np.testing.assert_array_equal(least, wanted_y.reshape(60, 40).min(axis=1).astype(np.float32))
        assert (y_room[..., 40:] == 3).all()
        assert (q_room[..., 40:] == 9).all()


def test_strides_that_are_those_of_a_contiguous_tensor(kernels):
    call = call_of(np.random.default_rng(67), (2, 3, 128), F32)
    y = np.empty_like(call.x)
    Outputs(call).run(kernels, y=y, strided=["x", "y"])
    agrees(call, y, None)
    np.testing.assert_array_equal(y, call.run(kernels)[0])


def test_an_older_struct_reads_nothing_of_version_two(kernels):
    call = call_of(np.random.default_rng(68), (3, 40), F32)
    y = np.empty_like(call.x)
    params = call.params(y)
    params.version, params.y_type, params.quantised_type, params.strided = 1, 99, 99, 99
    params.quantised = params.least = 64
    assert kernels.rmsnorm_deploy_cpu_run(ctypes.byref(params)) == 0
    np.testing.assert_array_equal(y, call.run(kernels)[0])
