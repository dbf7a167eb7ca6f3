"""Cases of version 2 of the contract that the CUDA kernels need beyond those of all: tests of a fixture `kernels`."""

import ctypes
import itertools

import numpy as np
import pytest

from tests.support import contract as C
from tests.support.cuda.cases import CHUNK, F16, F32, NAMES, PAIRS, ROW_CHUNKS, call_of, special_rows
from tests.support.output_cases import same
from tests.support.outputs import BF16, FLOAT8, INT8, QUANTISED, UINT8, Outputs

NARROW = {F32: F16, F16: 0, BF16: 0}


def compare(kernels, outputs, *, lead=0):
    """Run with everything that can be asked for, rows of all tensors apart by ``lead`` elements more than their size;
    each result is, bit for bit, what the norm alone gives and QuantizeLinear makes of it."""
    call = outputs.call
    rows, size = call.x.shape
    strided = ["x", "y", "quantised"]

    def apart(dtype, fill=None):
        room = np.full((rows, size + lead), 0 if fill is None else fill, dtype)
        return room, room[:, :size]

    _, x = apart(call.x.dtype)
    x[...] = call.x
    wanted = outputs.pair(kernels)
    y_room, y = apart(outputs.dtype(), 3)
    q_room, quantised = apart(QUANTISED[outputs.quantised_type], 3)
    total = None
    residual = call.residual
    if residual is not None:
        _, apart_residual = apart(call.x.dtype)
        apart_residual[...] = residual
        call.residual = apart_residual
        sum_room, total = apart(call.x.dtype, 3)
        strided += ["residual", "sum"]
    given, call.x = call.x, x
    least, most = np.empty(rows, np.float32), np.empty(rows, np.float32)
    outputs.run(kernels, y=y, total=total, quantised=quantised, least=least, most=most, strided=strided)
    call.x, call.residual = given, residual
    same(y, wanted[0])
    same(quantised, wanted[2])
    wide = wanted[0].astype(np.float32)
    np.testing.assert_array_equal(least, np.where(np.isnan(wide), np.inf, wide).min(axis=1))
    np.testing.assert_array_equal(most, np.where(np.isnan(wide), -np.inf, wide).max(axis=1))
    for room in (y_room, q_room):
        assert (room[:, size:] == 3).all()
    if residual is not None:
        same(total, wanted[1])
        assert (sum_room[:, size:] == 3).all()


def outputs_of(rng, call, quantised_type=INT8, *, y_type=0):
    """With a scale and a zero point for each row."""
    rows = call.x.shape[0]
    scale = rng.uniform(0.004, 0.05, rows).astype(np.float32)
    zero = None
    if quantised_type != FLOAT8:
        zero = rng.integers(0, 100, rows).astype(QUANTISED[quantised_type])
    return Outputs(call, y_type, quantised_type, scale, zero_point=zero)


@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize(("x_type", "scale_type"), PAIRS)
def test_outputs_of_every_row_configuration(kernels, x_type, scale_type, residual):
    """Contiguous; at multiples of a chunk; and wherever rows begin."""
    rng = np.random.default_rng(81)
    for number, chunks in enumerate(ROW_CHUNKS):
        round_type = (F32, x_type)[number % 2]
        call = call_of(rng, 3, chunks * CHUNK[x_type], x_type, scale_type, round_type, residual=residual)
        outputs = outputs_of(rng, call, (INT8, UINT8, FLOAT8)[number % 3], y_type=NARROW[x_type] if number % 4 else 0)
        for lead in (0, CHUNK[x_type], 1):
            compare(kernels, outputs, lead=lead)
            assert kernels.kernel == f"output_rows_kernel<{NAMES[x_type]}>"


@pytest.mark.parametrize(("x_type", "scale_type"), PAIRS)
@pytest.mark.parametrize("size", [8, 56, 90, 1600])
def test_every_attribute_beside_outputs(kernels, x_type, scale_type, size):
    rng = np.random.default_rng(82)
    for partial, outside, floor, bias, round_type in itertools.product(
        (C.ALL, 1, size - 1), (0.0, 0.25), (0.0, 1.25), (False, True), {F32, x_type}
    ):
        call = call_of(rng, 2, size, x_type, scale_type, round_type)
        call.partial_size, call.epsilon_outside, call.rms_floor = partial, outside, floor
        if bias:
            call.bias = C.values(rng, (size,), scale_type)
        compare(kernels, outputs_of(rng, call), lead=0 if bias else 3)


@pytest.mark.parametrize("x_type", [F32, F16, BF16])
@pytest.mark.parametrize("size", [8, 64, 45, 512, 4096, 9000])
def test_outputs_of_rows_that_are_not_ordinary(kernels, x_type, size):
    rng = np.random.default_rng(83)
    call = call_of(rng, 24 if size <= 512 else 8, size, x_type)
    for epsilon in (0.0, 1e-6):
        call.x = special_rows(rng, *call.x.shape, x_type)
        call.epsilon = epsilon
        compare(kernels, outputs_of(rng, call, FLOAT8))
        compare(kernels, outputs_of(rng, call, UINT8), lead=5)


@pytest.mark.parametrize(
    ("size", "rows"), [(16, 2 * 32 * 64 + 5), (128, 2 * 32 * 16 + 5), (1024, 70), (4096, 70), (33, 600)]
)
def test_outputs_of_more_rows_than_a_grid_has(kernels, size, rows):
    kernels.device(multiprocessors=1)
    rng = np.random.default_rng(84)
    compare(kernels, outputs_of(rng, call_of(rng, rows, size, F32), FLOAT8), lead=4)


@pytest.mark.parametrize("x_type", [F32, F16])
def test_one_tensor_of_outputs_off_by_an_element(kernels, x_type):
    """Sizes that fit chunks, and all addresses but one."""
    rng = np.random.default_rng(85)
    shape = (4, 64)
    names = ("x", "residual", "y", "sum", "quantised", "scale", "none")
    for off, y_type in itertools.product(names, (0, F32 if x_type == F16 else F16)):
        outputs = outputs_of(rng, call_of(rng, *shape, x_type, None, x_type, residual=True), y_type=y_type)
        wanted = outputs.pair(kernels)
        dtypes = dict.fromkeys(names, call_dtype := outputs.call.x.dtype)
        dtypes |= {"y": outputs.dtype(), "quantised": np.dtype(np.int8)}
        arrays = {}
        for name in names:
            room = np.zeros(4 * 64 + 32, dtypes[name])
            begin = (-room.ctypes.data % 16) // room.itemsize + (name == off)
            arrays[name] = room[begin:][: 64 if name == "scale" else 4 * 64].reshape(
                (64,) if name == "scale" else shape
            )
        for name in ("x", "residual", "scale"):
            arrays[name][...] = getattr(outputs.call, name)
            setattr(outputs.call, name, arrays[name])
        assert arrays["x"].dtype == call_dtype
        outputs.run(kernels, y=arrays["y"], total=arrays["sum"], quantised=arrays["quantised"])
        if off == "scale":  # read value by value, and added up in another order
            assert kernels.kernel == f"output_values_kernel<{NAMES[x_type]}>"
            wanted = outputs.pair(kernels)
        for name, right in zip(("y", "sum", "quantised"), wanted, strict=True):
            same(arrays[name], right)


def test_rows_further_apart_than_32_bits(kernels):
    rng = np.random.default_rng(86)
    apart = 2**31 + 8
    for size in (64, 63):
        call = call_of(rng, 3, size, F16)
        wanted = call.run(kernels)[0]
        params = call.params(wanted)
        nbytes = 2 * (2 * apart + size)
        with kernels.memory(nbytes) as x, kernels.memory(nbytes) as y:
            for row in range(3):
                ctypes.memmove(x + 2 * row * apart, call.x[row].ctypes.data, 2 * size)
            params.x, params.y, params.strided = x, y, 5
            params.x_strides[:2] = params.y_strides[:2] = [apart, 1]
            assert kernels.launch(params) == 0
            for row in range(3):
                got = np.frombuffer(ctypes.string_at(y + 2 * row * apart, 2 * size), np.float16)
                np.testing.assert_array_equal(got, wanted[row])
