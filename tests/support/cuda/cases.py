"""Cases of the CUDA kernels, beyond the contract's: tests of a fixture `kernels`, emulated or a device's."""

import ctypes
import dataclasses
import itertools

import numpy as np
import pytest

from tests.support import contract as C

F32, F16, F64, BF16 = C.F32, C.F16, C.F64, C.BF16
PAIRS = [(F32, F32), (F16, F16), (F16, F32), (BF16, BF16), (BF16, F32)]
NAMES = {F32: "float", F16: "__half", F64: "double", BF16: "__nv_bfloat16"}
CHUNK = {F32: 4, F16: 8, BF16: 8}
ANY_FORM, ONE_ROUNDING, TWO_ROUNDINGS = range(3)  # of the kernels for rows in registers
# Chunks of a row at and beside every step of the table in ops/cuda/plan.cu.
ROW_CHUNKS = [1, 2, 3, 4, 5, 8, 9, 16, 17, 32, 33, 64, 65, 127, 128, 129, 256, 257, 511, 512, 513, 1024, 1025, 2049]


def expected_kernel(x_type, scale_type, chunks, *, residual=False, form=None, many=False):
    """The kernel of a row. ``form``: as in ops/cuda/kernels.h; ``many``: more rows than multiprocessors."""
    added = str(residual).lower()
    scale_type = scale_type or x_type
    if chunks > 512:
        return f"long_rows_kernel<{NAMES[x_type]}, {NAMES[scale_type]}, {added}>"
    if form == TWO_ROUNDINGS:
        scale_type = x_type
    four = chunks > 64 and many and form != ANY_FORM and not residual and scale_type == x_type
    return f"rows_kernel<{NAMES[x_type]}, {NAMES[scale_type]}, {4 if four else 2}, {added}, {form}>"


def call_of(rng, rows, size, x_type, scale_type=None, round_type=F32, *, residual=False, **attributes):
    scale_type = scale_type or x_type
    call = C.Call(
        *(C.values(rng, (rows, size), x_type), C.values(rng, (size,), scale_type)),
        *(x_type, scale_type, round_type, F64 if x_type == F64 else F32),
        **attributes,
    )
    if residual:
        call.residual = C.values(rng, (rows, size), x_type)
    return call


def same_bits(first, second):
    np.testing.assert_array_equal(first.view(np.uint8), second.view(np.uint8))


@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize(("x_type", "scale_type"), PAIRS)
def test_every_row_configuration(kernels, x_type, scale_type, residual):
    rng = np.random.default_rng(1)
    kernels.device(multiprocessors=4)
    for chunks, rows in [*((chunks, 3) for chunks in ROW_CHUNKS), *((c, 5) for c in ROW_CHUNKS if 64 < c <= 512)]:
        for round_type in {F32, x_type}:
            call = call_of(rng, rows, chunks * CHUNK[x_type], x_type, scale_type, round_type, residual=residual)
            C.agrees(call, *call.run(kernels))
            form = ONE_ROUNDING if round_type == F32 else TWO_ROUNDINGS
            assert kernels.kernel == expected_kernel(
                *(x_type, scale_type, chunks), residual=residual, form=form, many=rows > 4
            )


@pytest.mark.parametrize("x_type", [F32, F16, BF16])
@pytest.mark.parametrize("chunks", [65, 128, 200, 256, 509, 512])
def test_a_row_has_the_same_bits_in_both_kernels(kernels, x_type, chunks):
    """With two chunks to a thread and with four: so a result does not depend on how many rows there are."""
    rng = np.random.default_rng(15)
    rows = 5
    size = chunks * CHUNK[x_type]
    for round_type in {F32, x_type}:
        call = call_of(rng, rows, size, x_type, None, round_type)
        call.x[1] *= np.float32(1e-30) if x_type != F16 else 0  # a row that is not ordinary
        call.epsilon = 0.0
        kernels.device(multiprocessors=rows - 1)
        four = call.run(kernels)[0]
        form = ONE_ROUNDING if round_type == F32 else TWO_ROUNDINGS
        assert kernels.kernel == expected_kernel(x_type, x_type, chunks, form=form, many=True)
        kernels.device(multiprocessors=rows)
        same_bits(call.run(kernels)[0], four)
        assert kernels.kernel == expected_kernel(x_type, x_type, chunks, form=form)
        # With a bias of negative zeros, which change nothing: the third form, which adds up in the same order.
        call.bias = np.full(size, -0.0, call.x.dtype)
        same_bits(call.run(kernels)[0], four)
        assert kernels.kernel == expected_kernel(x_type, x_type, chunks, form=ANY_FORM)


@pytest.mark.parametrize(("x_type", "scale_type"), PAIRS)
@pytest.mark.parametrize("residual", [False, True])
def test_the_next_long_row_is_copied_while_one_is_worked_on(kernels, x_type, scale_type, residual):
    """In shared memory with room for two rows, for one, and for none; several rows to a block, in place too."""
    rng = np.random.default_rng(16)
    size = 515 * CHUNK[x_type]
    row_bytes = 515 * 16 * (2 if residual else 1)
    results = []
    call = call_of(rng, 9, size, x_type, scale_type, x_type, residual=residual)
    call.x[2], call.x[6] = 0, np.nan
    for rows_of_room in (4.5, 2.5, 1.5, 0.5):
        kernels.device(multiprocessors=2, shared_bytes=1024 + int(rows_of_room * row_bytes))
        y, total = call.run(kernels)
        results.append(y)
        same_as_reference(call, y)
        assert kernels.kernel == expected_kernel(x_type, scale_type, 515, residual=residual)
        if residual:
            np.testing.assert_array_equal(total[:2], call.x[:2] + call.residual[:2])
        x = call.x.copy()
        same_bits(dataclasses.replace(call, x=x).run(kernels, x)[0], y)
    for other in results[1:]:
        same_bits(other, results[0])


@pytest.mark.parametrize(("x_type", "scale_type"), PAIRS)
@pytest.mark.parametrize("chunks", [1, 7, 16, 40, 100, 200, 500, 1300])
def test_every_attribute_in_chunks_of_rows(kernels, x_type, scale_type, chunks):
    rng = np.random.default_rng(2)
    size = chunks * CHUNK[x_type]
    for partial, outside, floor, bias, round_type in itertools.product(
        (C.ALL, 1, CHUNK[x_type] + 1, size - 1), (0.0, 0.25), (0.0, 1.25), (False, True), {F32, x_type}
    ):
        call = call_of(rng, 2, size, x_type, scale_type, round_type)
        call.partial_size, call.epsilon_outside, call.rms_floor = partial, outside, floor
        if bias:
            call.bias = C.values(rng, (size,), scale_type)
        C.agrees(call, *call.run(kernels))
        assert "rows_kernel" in kernels.kernel


@pytest.mark.parametrize("size", [16, 128, 1024, 4096, 16384])
def test_a_block_goes_on_to_further_rows(kernels, size):
    """More rows than the grid has room for, a number that leaves the last block half empty."""
    kernels.device(multiprocessors=1)
    rng = np.random.default_rng(3)
    group = min(32, size // 4)
    rows = 2 * 32 * max(1, 256 // group) + 5 if size <= 512 else 2 * 32 + 5
    if size == 1024:
        rows = 32 + 5
    call = call_of(rng, rows, size, F32, residual=size <= 1024)
    C.agrees(call, *call.run(kernels))


@pytest.mark.parametrize(("x_type", "scale_type"), PAIRS)
def test_scale_that_differs_from_row_to_row(kernels, x_type, scale_type):
    """[batch, heads, length, features], with a scale for each head, for each batch, for each row."""
    kernels.device(multiprocessors=1)
    rng = np.random.default_rng(4)
    shape = (3, 5, 80, 64)
    x = C.values(rng, shape, x_type)
    for scale_shape in [(5, 1, 64), (3, 1, 1, 64), (3, 5, 1, 64), (80, 64), (5, 80, 64), shape, (5, 1, 1), (80, 1)]:
        call = C.Call(x, C.values(rng, scale_shape, scale_type), x_type, scale_type, x_type)
        call.bias = C.values(rng, scale_shape[-2:], scale_type)
        C.agrees(call, *call.run(kernels))
        assert kernels.kernel.startswith("rows_kernel")
    call.scale = C.values(rng, (3, 1, 80, 64), scale_type)  # differs along two dimensions that are not neighbours
    C.agrees(call, *call.run(kernels))
    assert kernels.kernel == f"strided_kernel<{NAMES[x_type]}, 1, 0>"


@pytest.mark.parametrize("x_type", [F32, F16, BF16])
@pytest.mark.parametrize("inner", [8, 24, 64, 200, 1024])
def test_channel_first_in_chunks(kernels, x_type, inner):
    rng = np.random.default_rng(5)
    for size, add, bias, scale_type in itertools.product(
        (1, 3, 8, 9, 96, 384, 512, 513), (False, True), (False, True), {x_type, F32}
    ):
        if size * inner > 100_000:
            continue
        shape = (2, size, inner)
        scale = C.values(rng, (size, 1), scale_type)
        call = C.Call(C.values(rng, shape, x_type), scale, x_type, scale_type, x_type, axes=(1,))
        if add:
            call.residual = C.values(rng, shape, x_type)
        if bias:
            call.bias = C.values(rng, (size, 1), scale_type)
            call.partial_size = max(1, size // 2)
            call.rms_floor = 0.5
        C.agrees(call, *call.run(kernels))
        kept = 8 if size <= 512 else 0
        assert kernels.kernel == f"strided_kernel<{NAMES[x_type]}, {CHUNK[x_type]}, {kept}>"


@pytest.mark.parametrize("x_type", [F32, F16, BF16, F64])
def test_what_does_not_fit_chunks_is_done_one_by_one(kernels, x_type):
    rng = np.random.default_rng(6)
    for shape, axes in [((3, 1023), (1,)), ((2, 64, 7), (1,)), ((2, 64, 9), (1,)), ((1, 65, 33), (1,))]:
        call = C.Call(C.values(rng, shape, x_type), np.float32(1), x_type, F32, F32, axes=axes)
        call.stash_type = F64 if x_type == F64 else F32
        C.agrees(call, *call.run(kernels))
        name = NAMES[x_type]
        assert kernels.kernel == (
            f"float64_strided_kernel<{name}>" if x_type == F64 else f"strided_kernel<{name}, 1, 0>"
        )


def special_rows(rng, rows, size, x_type):
    """Ordinary rows among rows of zeros, tiny and huge values, NaN and infinity."""
    x = C.values(rng, (rows, size), x_type)
    limits = np.finfo(np.float32) if x_type != F16 else np.finfo(np.float16)
    with np.errstate(over="ignore"):
        x[1::7] = 0
        x[2::7] = C.values(rng, x[2::7].shape, F32, 4 * float(limits.tiny)).astype(x.dtype)
        x[3::7] = np.clip(C.values(rng, x[3::7].shape, F32, 0.2), -1, 1).astype(np.float64) * 6e4
        if x_type != F16:
            x[3::7] = (C.values(rng, x[3::7].shape, F32).astype(np.float64) * 3e18).astype(x.dtype)
    x[4::7, size // 2] = np.nan
    x[5::7, size // 3] = np.inf
    x[6::7, 0] = -np.inf
    return x


def same_as_reference(call, y, units=2):
    """Equal where the reference is NaN or infinite, and close elsewhere, row by row."""
    wanted = call.expected()[0]
    with np.errstate(over="ignore"):
        rounded = wanted.astype(y.dtype).astype(np.float64)
    got = y.astype(np.float64)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(rounded))
    np.testing.assert_array_equal(np.isposinf(got), np.isposinf(rounded))
    np.testing.assert_array_equal(np.isneginf(got), np.isneginf(rounded))
    finite = np.isfinite(rounded)
    axis = call.axes[0]
    largest = np.where(finite, np.abs(rounded), 0).max(axis=axis, keepdims=True) + np.zeros_like(rounded)
    error = np.where(finite, np.abs(got - np.where(finite, wanted, 0)), 0)
    assert (error <= units * C.ulp(largest, call.x_type)).all()


@pytest.mark.parametrize("x_type", [F32, F16, BF16])
@pytest.mark.parametrize("size", [8, 16, 64, 192, 512, 4096, 16384, 40000, 45])
def test_odd_rows_do_not_disturb_their_neighbours(kernels, x_type, size):
    rng = np.random.default_rng(7)
    kernels.device(shared_bytes=65536)  # so that the longest rows are read twice
    rows = 24 if size <= 512 else 8
    for epsilon, outside, floor in [
        (0.0, 0, 0),
        (1e-6, 0, 0),
        (1e-30, 0, 0),
        (0.0, 1e-6, 0),
        (0.0, 0, 1e-6),
        (0, 0, 1e30),
    ]:
        x = special_rows(rng, rows, size, x_type)
        call = C.Call(x, np.float32(1), x_type, F32, F32, epsilon=epsilon, epsilon_outside=outside, rms_floor=floor)
        same_as_reference(call, call.run(kernels)[0])


@pytest.mark.parametrize("x_type", [F32, F16, BF16])
@pytest.mark.parametrize("size", [30, 600])
@pytest.mark.parametrize("inner", [24, 7])
def test_odd_columns_do_not_disturb_their_neighbours(kernels, x_type, size, inner):
    rng = np.random.default_rng(8)
    for epsilon, floor in [(0.0, 0), (1e-6, 0), (0.0, 1e-6)]:
        x = np.ascontiguousarray(special_rows(rng, inner, size, x_type).T)[None]
        call = C.Call(x, np.float32(1), x_type, F32, F32, axes=(1,), epsilon=epsilon, rms_floor=floor)
        same_as_reference(call, call.run(kernels)[0])


@pytest.mark.parametrize("size", [2048, 4096, 2050])
def test_large_float16_values_are_not_lost(kernels, size):
    """The inputs of onnxruntime #29034 (large rows came out as zeros) and #28442 (growing residuals, as NaN)."""
    rng = np.random.default_rng(9)
    for largest in (180.0, 7600.0, 20000.0, 65000.0):
        x = (rng.uniform(-1, 1, (4, size)) * largest / 2).astype(np.float16)
        residual = (rng.uniform(-1, 1, (4, size)) * largest / 2).astype(np.float16)
        x[0, 0], residual[0, 0] = largest / 2, largest / 2
        x[1], residual[1] = largest / 2, largest / 2  # a row of one value, whose norm is 1
        call = C.Call(x, C.values(rng, (size,), F16), F16, F16, F16, residual=residual, epsilon=1e-6)
        y, total = call.run(kernels)
        C.agrees(call, y, total)
        assert (y[1] == call.scale).all()
    call.x[2, 5], call.residual[2, 5] = 60000, 60000  # the sum is infinite, as it is in the reference
    same_as_reference(call, call.run(kernels)[0])


# More than 2^31 chunks, chunks in fewer rows, elements, elements. A block of 256 threads has so many rows, or tiles:
# 256 of one chunk; 64 of 8 chunks; 8 of 32 slices; 8 of 2 slices of 16 chunks side by side.
@pytest.mark.parametrize(
    ("x_type", "shape", "units_per_block"),
    [
        (F16, (2**31 + 2**10, 8), 256),
        (F16, (2**28 + 2**10, 64), 64),
        (F16, (2**26, 65), 8),
        (F32, (2**21 + 2**10, 16, 64), 8),
    ],
)
def test_offsets_beyond_32_bits(kernels, x_type, shape, units_per_block):
    """The last row of a huge tensor; all the others stay untouched and take no memory."""
    rng = np.random.default_rng(10)
    elements = int(np.prod(shape, dtype=np.int64))
    size = elements * C.DTYPES[x_type]().itemsize
    kernels.device(multiprocessors=2**20)
    last = C.values(rng, (1, *shape[1:]), x_type)
    call = C.Call(last, np.float32(1), x_type, F32, F32, axes=(1,))
    wanted, _ = call.run(kernels)
    with kernels.memory(size) as x, kernels.memory(size) as y:
        end = (ctypes.c_uint8 * last.nbytes).from_address(x + size - last.nbytes)
        ctypes.memmove(end, last.ctypes.data, last.nbytes)
        params = call.params(last)
        params.x, params.y = x, y
        params.shape[0] = shape[0]
        kernels.lib.emulator_blocks(shape[0] // units_per_block - 1, 1)
        try:
            assert kernels.launch(params) == 0
        finally:
            kernels.lib.emulator_blocks(0, -1)
        got = np.frombuffer(ctypes.string_at(y + size - last.nbytes, last.nbytes), last.dtype).reshape(last.shape)
        np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("x_type", [F32, F16, BF16])
@pytest.mark.parametrize("shape", [(4, 64), (2, 16, 64)])
def test_one_tensor_off_by_an_element(kernels, x_type, shape):
    """Sizes that fit chunks, and all addresses but one."""
    rng = np.random.default_rng(14)
    size = int(np.prod(shape))
    for off in range(7):
        rooms = [np.zeros(size + 16, C.DTYPES[x_type]) for _ in range(6)]
        start = [(-room.ctypes.data % 16) // room.itemsize for room in rooms]
        x, residual, y, total, scale, bias = (
            room[begin + (i == off) :][:size] for i, (room, begin) in enumerate(zip(rooms, start, strict=True))
        )
        for tensor in (x, residual, scale, bias):
            tensor[...] = C.values(rng, size, x_type)
        weights = (shape[1],) + (1,) * (len(shape) - 2)
        call = C.Call(x.reshape(shape), scale[: shape[1]].reshape(weights), x_type, x_type, F32, axes=(1,))
        call.residual, call.bias = residual.reshape(shape), bias[: shape[1]].reshape(weights)
        C.agrees(call, *call.run(kernels, y.reshape(shape), total.reshape(shape)))
        # Columns take scale and bias value by value.
        in_chunks = off == 6 or (len(shape) == 3 and off >= 4)
        assert kernels.kernel.endswith(", 1, 0>") != in_chunks


def test_the_order_of_threads_does_not_matter(kernels):
    rng = np.random.default_rng(12)
    for size in (128, 4096, 16384):
        call = call_of(rng, 5, size, F32, residual=True)
        first, _ = call.run(kernels)
        for _ in range(3):
            np.testing.assert_array_equal(call.run(kernels)[0], first)
