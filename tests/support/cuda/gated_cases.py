"""Cases of norms with a gate that the CUDA kernels need beyond those of all: tests of a fixture `kernels`."""

import ctypes
import itertools
import types

import numpy as np
import pytest

from benchmarks.gpu.contract import GATE_VERSION, SIGMOID, SILU, Gate
from tests.support import contract as C
from tests.support.cuda.cases import CHUNK, NAMES, PAIRS, ROW_CHUNKS, call_of, same_as_reference, special_rows
from tests.support.gated_cases import BF16, F16, F32, F64, agrees, expected, run

PLACES = (0, 1, 2)


def right(kernels, call, gate, gate_type, activation, place):
    code, y = run(kernels, call, gate, gate_type, activation, place)
    assert code == 0
    agrees(call, gate, activation, place, y)
    return y


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize(("x_type", "scale_type"), PAIRS)
def test_every_row_configuration_with_a_gate(kernels, x_type, scale_type, wide):
    rng = np.random.default_rng(31)
    gate_type = F32 if wide else x_type
    for number, (chunks, place) in enumerate(itertools.product(ROW_CHUNKS, PLACES)):
        size = chunks * CHUNK[x_type]
        call = call_of(rng, 3, size, x_type, scale_type, (F32, x_type)[number // 3 % 2])
        right(kernels, call, C.values(rng, (3, size), gate_type, 4.0), gate_type, number % 2, place)
        assert kernels.kernel == f"gated_rows_kernel<{NAMES[x_type]}>"


@pytest.mark.parametrize(("x_type", "scale_type"), PAIRS)
@pytest.mark.parametrize("size", [8, 56, 90, 1600])
def test_every_attribute_beside_a_gate(kernels, x_type, scale_type, size):
    rng = np.random.default_rng(32)
    for place, outside, floor, round_type in itertools.product(PLACES, (0.0, 0.25), (0.0, 1.25), {F32, x_type}):
        call = call_of(rng, 2, size, x_type, scale_type, round_type, epsilon_outside=outside, rms_floor=floor)
        right(kernels, call, C.values(rng, (2, size), F32), F32, SILU, place)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("x_type", [F32, F16, BF16])
@pytest.mark.parametrize("size", [8, 64, 45, 512, 4096, 9000])
def test_gated_rows_that_are_not_ordinary(kernels, x_type, size, place):
    """Zeros, tiny and huge values, NaN and infinity among ordinary rows."""
    rng = np.random.default_rng(33)
    rows = 24 if size <= 512 else 8
    for epsilon in (0.0, 1e-6):
        call = call_of(rng, rows, size, x_type)
        call.x, call.epsilon = special_rows(rng, rows, size, x_type), epsilon
        gate = C.values(rng, (rows, size), F32)
        code, y = run(kernels, call, gate, F32, SIGMOID, place)
        assert code == 0
        with np.errstate(all="ignore"):
            wanted = expected(call, gate, SIGMOID, place)
        norm = types.SimpleNamespace(expected=lambda w=wanted: (w, None), axes=(1,), x_type=x_type)
        same_as_reference(norm, y, units=4)


@pytest.mark.parametrize("size", [64, 37])
def test_products_far_below_and_above_one(kernels, size):
    """x and the gate are ordinary, and only their product is not."""
    rng = np.random.default_rng(34)
    call = call_of(rng, 3, size, F32)
    call.epsilon = 0.0
    gate = C.values(rng, (3, size), F32)
    gate[0] -= np.float32(60.0)
    call.x[1] *= np.float32(1e9)
    gate[1] = np.abs(gate[1]) * np.float32(1e9) + 1
    right(kernels, call, gate, F32, SILU, 0)


@pytest.mark.parametrize(
    ("size", "rows"), [(16, 2 * 32 * 64 + 5), (128, 2 * 32 * 16 + 5), (1024, 70), (4096, 70), (33, 600)]
)
def test_more_gated_rows_than_a_grid_has(kernels, size, rows):
    kernels.device(multiprocessors=1)
    rng = np.random.default_rng(35)
    right(kernels, call_of(rng, rows, size, F32), C.values(rng, (rows, size), F32), F32, SILU, 0)


@pytest.mark.parametrize(("x_type", "scale_type"), PAIRS)
def test_groups_have_scales_of_their_own(kernels, x_type, scale_type):
    """[batch, length, groups, features], with a scale for each group."""
    rng = np.random.default_rng(36)
    kernels.device(multiprocessors=1)
    shape = (2, 7, 3, 64)
    for scale_shape in ((3, 64), (3, 1), (2, 1, 1, 64)):
        call = C.Call(C.values(rng, shape, x_type), C.values(rng, scale_shape, scale_type), x_type, scale_type, x_type)
        right(kernels, call, C.values(rng, shape, x_type), x_type, SILU, 0)
        assert kernels.kernel == f"gated_rows_kernel<{NAMES[x_type]}>"


@pytest.mark.parametrize("x_type", [F32, F16])
def test_one_tensor_of_a_gated_norm_off_by_an_element(kernels, x_type):
    """Sizes that fit chunks, and all addresses but one."""
    rng = np.random.default_rng(37)
    for off, place in itertools.product(range(5), PLACES):
        rooms = [np.zeros(4 * 64 + 16, C.DTYPES[x_type]) for _ in range(4)]
        x, gate, y, scale = (
            room[(-room.ctypes.data % 16) // room.itemsize + (i == off) :][: 4 * 64] for i, room in enumerate(rooms)
        )
        for tensor in (x, gate, scale):
            tensor[...] = C.values(rng, 4 * 64, x_type)
        call = C.Call(x.reshape(4, 64), scale[:64], x_type, x_type, F32)
        gate = gate.reshape(4, 64)
        code, y = run(kernels, call, gate, x_type, SILU, place, y=y.reshape(4, 64))
        assert code == 0
        agrees(call, gate, SILU, place, y)
        name = "gated_rows_kernel" if off == 4 else "gated_values_kernel"
        assert kernels.kernel == f"{name}<{NAMES[x_type]}>"


@pytest.mark.parametrize("x_type", [F32, F16, BF16, F64])
def test_gated_columns_and_float64_are_done_one_by_one(kernels, x_type):
    rng = np.random.default_rng(38)
    for shape, place in itertools.product([(3, 1023), (2, 64, 8), (2, 600, 9), (1, 65, 33)], PLACES):
        scale = C.values(rng, (shape[1], *(1,) * (len(shape) - 2)), x_type)
        call = C.Call(C.values(rng, shape, x_type), scale, x_type, x_type, F32, axes=(1,))
        call.stash_type = F64 if x_type == F64 else F32
        right(kernels, call, C.values(rng, shape, F32), F32, SILU, place)
        name = "float64_gated_values_kernel" if x_type == F64 else "gated_values_kernel"
        assert kernels.kernel == f"{name}<{NAMES[x_type]}>"


# More than 2^31 chunks, chunks in fewer rows, elements; a block has so many rows.
@pytest.mark.parametrize(
    ("shape", "rows_of_block"), [((2**31 + 2**10, 8), 256), ((2**28 + 2**10, 64), 64), ((2**26, 65), 8)]
)
def test_gated_offsets_beyond_32_bits(kernels, shape, rows_of_block):
    """The last row of huge tensors; all the others stay untouched and take no memory."""
    rng = np.random.default_rng(39)
    elements = int(np.prod(shape, dtype=np.int64))
    kernels.device(multiprocessors=2**20)
    last = C.values(rng, (1, shape[1]), F16)
    z = C.values(rng, (1, shape[1]), F32)
    call = C.Call(last, np.float32(1), F16, F32, F32)
    wanted = right(kernels, call, z, F32, SILU, 0)
    size = 2 * elements
    with kernels.memory(size) as x, kernels.memory(size) as y, kernels.memory(2 * size) as gate:
        ctypes.memmove(x + size - last.nbytes, last.ctypes.data, last.nbytes)
        ctypes.memmove(gate + 2 * size - z.nbytes, z.ctypes.data, z.nbytes)
        params = call.params(last)
        params.x, params.y = x, y
        params.shape[0] = shape[0]
        kernels.lib.emulator_blocks(shape[0] // rows_of_block - 1, 1)
        try:
            assert kernels.launch(params, Gate(GATE_VERSION, F32, SILU, 0, gate)) == 0
        finally:
            kernels.lib.emulator_blocks(0, -1)
        got = np.frombuffer(ctypes.string_at(y + size - last.nbytes, last.nbytes), np.float16)
        np.testing.assert_array_equal(got, wanted[0])


def test_the_order_of_threads_does_not_matter_to_gated_rows(kernels):
    rng = np.random.default_rng(40)
    for size in (128, 4096, 9000, 45):
        call, gate = call_of(rng, 5, size, F32), C.values(rng, (5, size), F32)
        first = right(kernels, call, gate, F32, SILU, 0)
        for _ in range(3):
            np.testing.assert_array_equal(run(kernels, call, gate, F32, SILU, 0)[1], first)
