"""Cases of the contract of rms_norm_gated.h, against float64: tests of a fixture `kernels`.

The bars: the activation as its header says; of a result, 4 ULP of its row's largest value in float32, in 16 bits one
step of the type where it is rounded once, three where it is rounded twice.
"""

import ctypes

import ml_dtypes
import numpy as np
import pytest

from benchmarks.gpu.contract import GATE_VERSION, SIGMOID, SILU, Gate
from rmsnorm_deploy.op.reference import activated, rms_norm
from tests.support.contract import (
    BAD_PARTIAL,
    BAD_POINTER,
    BAD_TYPE,
    BAD_VALUE,
    BAD_VERSION,
    BF16,
    F16,
    F32,
    F64,
    Call,
    ulp,
    values,
)

SIZES = [1, 7, 16, 100, 128, 1000, 4096, 4097, 9000]
TYPES = [  # of X, the gate, rounding
    (F32, F32, F32),
    (F16, F16, F32),
    (F16, F32, F16),
    (BF16, BF16, BF16),
    (BF16, F32, F32),
]


def run(library, call, gate, gate_type, activation, place, y=None, wrong=None):
    y = np.full_like(call.x, 5) if y is None else y
    params, given = call.params(y), Gate(GATE_VERSION, gate_type, activation, place, gate.ctypes.data)
    for name, value in (wrong or {}).items():
        value = params.scale if value == "scale" else value
        setattr(given if hasattr(given, name) else params, name, value)
    return library.rmsnorm_deploy_cpu_run_gated(ctypes.byref(params), ctypes.byref(given)), y


def expected(call, gate, activation, place):
    wanted, _ = rms_norm(
        call.x,
        call.scale,
        axes=call.axes,
        epsilon=float(np.float32(call.epsilon)),
        epsilon_outside=call.epsilon_outside,
        rms_floor=call.rms_floor,
        stash_type=call.stash_type,
        scale_type=call.round_type,
        gate=gate,
        activation=activation,
        gate_at=place,
        exact=True,
    )
    return wanted


def agrees(call, gate, activation, place, y):
    wanted = expected(call, gate, activation, place)
    largest = np.abs(wanted).max(axis=tuple(call.axes), keepdims=True)
    steps = {F32: 4.0, F64: 8.0}.get(call.x_type, 1.0 if call.round_type == F32 else 3.0)
    error = np.abs(
        y.astype(np.float64) - (wanted if call.x_type in (F32, F64) else wanted.astype(y.dtype).astype(float))
    )
    assert (error <= steps * ulp(np.maximum(largest, np.abs(wanted)), call.x_type)).all()


def case(rng, shape, x_type, gate_type, round_type, **more):
    call = Call(
        values(rng, shape, x_type),
        values(rng, shape[-1:], x_type),
        x_type,
        x_type,
        round_type,
        **more,
    )
    return call, values(rng, shape, gate_type, spread=4.0)


@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("activation", [SIGMOID, SILU])
@pytest.mark.parametrize("types", TYPES, ids=str)
def test_rows_of_every_length(kernels, types, activation, place):
    rng = np.random.default_rng(3)
    for size in SIZES:
        call, gate = case(rng, (3, size), *types)
        code, y = run(kernels, call, gate, types[1], activation, place)
        assert code == 0
        agrees(call, gate, activation, place, y)


@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("stash", [F32, F64])
def test_other_axes_and_double_arithmetic(kernels, stash, place):
    rng = np.random.default_rng(4)
    for axes, scale_shape in (((1,), (6, 1)), ((0, 1), (5, 6, 7)), ((-1,), (7,)), ((0,), (7,))):
        for x_type in (F16, F32, F64) if stash == F64 else (F32,):
            x, gate = values(rng, (5, 6, 7), x_type), values(rng, (5, 6, 7), x_type)
            call = Call(x, values(rng, scale_shape, x_type), x_type, x_type, F64 if stash == F64 else F32, stash, axes)
            code, y = run(kernels, call, gate, x_type, SILU, place)
            assert code == 0
            agrees(call, gate, SILU, place, y)


@pytest.mark.parametrize("activation", [SIGMOID, SILU])
def test_the_activation_is_as_exact_as_its_header_says(kernels, activation):
    """A row of one value has the RMS of that value, so place 2 with x = 1 gives the activated gate alone."""
    bits = np.arange(0, 2**32, 65521, dtype=np.uint64).astype(np.uint32)
    gate = np.concatenate([bits.view(np.float32), np.float32([0.0, -0.0, 88.0, -87.0, 104.0, 1e-45, 3e38])])
    gate = gate[np.isfinite(gate)]
    call = Call(np.ones((1, gate.size), np.float32), np.float32([1.0]), epsilon=0.0)
    code, y = run(kernels, call, gate, F32, activation, 2)
    assert code == 0
    wanted = activated(gate, activation)
    normal = (gate >= -87) & (np.abs(wanted) >= 2.0**-126)
    error = np.abs(y[0].astype(np.float64) - wanted)
    assert (error / ulp(np.abs(wanted), F32))[normal].max() <= (3.0 if activation == SILU else 2.5)
    assert (error <= (np.abs(gate.astype(np.float64)) + 1) * 2.0**-148)[~normal].all()


@pytest.mark.parametrize("data_type", [F16, BF16])
@pytest.mark.parametrize("activation", [SIGMOID, SILU])
def test_of_16_bits_the_nearest_value_or_one_that_is_as_near(kernels, activation, data_type):
    """Of every gate: what is exact enough for 16 bits is at most a hundredth of a step farther than the nearest one."""
    bits = np.arange(2**16, dtype=np.uint32).astype(np.uint16)
    gate = bits.view(np.float16 if data_type == F16 else ml_dtypes.bfloat16)
    gate = gate[np.isfinite(gate.astype(np.float32))]
    one = np.ones((1, gate.size), gate.dtype)
    code, y = run(kernels, Call(one, one[0, :1], data_type, data_type, epsilon=0.0), gate, data_type, activation, 2)
    assert code == 0
    wanted = activated(gate.astype(np.float64), activation)
    normal = np.abs(wanted) >= (2.0**-14 if data_type == F16 else 2.0**-126)
    error = np.abs(y[0].astype(np.float64) - wanted) / ulp(np.abs(wanted), data_type)
    assert error[normal].max() <= 0.51


@pytest.mark.parametrize("types", TYPES, ids=str)
@pytest.mark.parametrize("activation", [SIGMOID, SILU])
def test_a_gate_does_not_depend_on_its_neighbours(kernels, activation, types):
    """Behind the norm a value's own gate is all that counts, whatever the gates beside it need."""
    rng = np.random.default_rng(7)
    for size in (16, 37, 128, 301):
        call, gate = case(rng, (4, size), *types)
        for place in (1, 2):
            _, wanted = run(kernels, call, gate, types[1], activation, place)
            for odd in (88.0, -100.0, -np.inf, np.nan):
                other, at = gate.copy(), rng.random(gate.shape) < 0.1
                other[at] = odd
                code, y = run(kernels, call, other, types[1], activation, place)
                assert code == 0
                np.testing.assert_array_equal(y[~at], wanted[~at])


@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("activation", [SIGMOID, SILU])
def test_what_is_not_finite_stays_so_and_in_its_row(kernels, activation, place):
    x, gate = np.ones((40, 37), np.float32), np.ones((40, 37), np.float32)
    gate[0, 5], gate[1, 36], gate[2, 0] = np.nan, -np.inf, np.inf
    call = Call(x, np.float32([1.0]))
    code, y = run(kernels, call, gate, F32, activation, place)
    assert code == 0
    with np.errstate(all="ignore"):
        wanted, _ = rms_norm(x, call.scale, epsilon=1e-6, gate=gate, activation=activation, gate_at=place)
    np.testing.assert_array_equal(np.isnan(y), np.isnan(wanted))
    np.testing.assert_allclose(y[3:], wanted[3:], rtol=1e-6)


@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("over", ["x", "gate"])
def test_y_may_lie_where_x_or_the_gate_does(kernels, over, place):
    rng = np.random.default_rng(6)
    for rows, size in ((3, 100), (40, 24), (3, 5000)):
        call, gate = case(rng, (rows, size), F32, F32, F32)
        _, wanted = run(kernels, call, gate, F32, SILU, place)
        y = call.x if over == "x" else gate
        code, got = run(kernels, call, gate, F32, SILU, place, y=y)
        assert code == 0
        np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        ({"type": F16}, BAD_TYPE),
        ({"activation": 2}, BAD_VALUE),
        ({"place": 3}, BAD_VALUE),
        ({"place": -1}, BAD_VALUE),
        ({"gate": None}, BAD_POINTER),
        ({"bias": "scale"}, BAD_POINTER),
        ({"partial_size": 3}, BAD_PARTIAL),
        ({"y_type": F16}, BAD_TYPE),
        ({"x": None}, BAD_POINTER),
    ],
    ids=str,
)
def test_wrong_calls_are_refused_and_write_nothing(kernels, wrong, code):
    call, gate = case(np.random.default_rng(7), (2, 8), F32, F32, F32)
    y = np.full_like(call.x, 7)
    assert run(kernels, call, gate, F32, SILU, 0, y, wrong)[0] == code
    assert (y == 7).all()


def test_an_unknown_version_is_refused(kernels):
    call, gate = case(np.random.default_rng(7), (2, 8), F32, F32, F32)
    params, given = call.params(np.empty_like(call.x)), Gate(GATE_VERSION + 1, F32, SILU, 0, gate.ctypes.data)
    assert kernels.rmsnorm_deploy_cpu_run_gated(ctypes.byref(params), ctypes.byref(given)) == BAD_VERSION
    assert kernels.rmsnorm_deploy_cpu_run_gated(None, ctypes.byref(given)) == BAD_POINTER
    assert kernels.rmsnorm_deploy_cpu_run_gated(ctypes.byref(params), None) == BAD_POINTER


@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("types", [(F32, F32, F32), (F16, F32, F16)], ids=str)
def test_equal_numbers_whatever_the_division_into_rows(kernels, types, place):
    """Some short rows go through each step together, and there is a last one that is alone."""
    for rows, size in ((6, 100), (37, 7), (17, 128), (3, 2048), (3, 2049)):
        call, gate = case(np.random.default_rng(8), (rows, size), *types)
        _, all_ = run(kernels, call, gate, F32, SILU, place)
        for row in range(rows):
            one = Call(call.x[row : row + 1].copy(), call.scale, types[0], types[0], types[2])
            _, alone = run(kernels, one, gate[row : row + 1].copy(), F32, SILU, place)
            np.testing.assert_array_equal(alone, all_[row : row + 1])


@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("x_type", [F16, BF16])
def test_values_are_rounded_where_the_contract_says(kernels, x_type, place):
    """Nearly all bits are those of the formula with its roundings; without one of them a good part would differ."""
    rng = np.random.default_rng(9)
    for size in (64, 61):
        call, gate = case(rng, (60, size), x_type, F32, x_type)
        code, y = run(kernels, call, gate, F32, SILU, place)
        assert code == 0
        wanted, _ = rms_norm(
            *(call.x, call.scale),
            epsilon=float(np.float32(call.epsilon)),
            **{"scale_type": x_type, "gate": gate, "activation": SILU, "gate_at": place},
        )
        assert (y.astype(np.float64) != wanted.astype(np.float64)).mean() < 0.01
