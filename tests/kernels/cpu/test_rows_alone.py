"""A row's result depends neither on its neighbours nor on how it is stored, nor on how many rows there are."""

import ctypes
import os
import shutil

import numpy as np
import pytest

from rmsnorm_deploy.run.library import library_path
from tests.support.contract import BF16, DTYPES, F16, F32, Call, instruction_sets, load, values

SIZES = [16, 32, 63, 64, 96, 128, 200, 256, 896, 1024, 2048, 4096, 4128, 8192]
# The contract can do more in one call than the operators.
OPS = ["RMSNorm", "AddRMSNorm", "GeneralRMSNorm", "AddRMSNorm, partial", "AddRMSNorm, bias"]


@pytest.fixture(scope="module")
def copies(tmp_path_factory):
    """Two copies of the library, each with its own state: one always writes past the caches, one never does."""
    found = {}
    before = os.environ.get("RMSNORM_DEPLOY_STREAMING")
    for name, setting in (("always", "1"), ("never", "0")):
        path = tmp_path_factory.mktemp(name) / "library.so"
        shutil.copy(library_path(), path)
        found[name] = load(path)
        os.environ["RMSNORM_DEPLOY_STREAMING"] = setting
        call = Call(np.ones((1, 16), np.float32), np.ones(16, np.float32))
        call.run(found[name])  # the variable is read at the first use
    if before is None:
        del os.environ["RMSNORM_DEPLOY_STREAMING"]
    else:
        os.environ["RMSNORM_DEPLOY_STREAMING"] = before
    return found


def aligned(shape, dtype, offset=0):
    """An array that begins ``offset`` bytes behind a multiple of 64."""
    count = int(np.prod(shape)) * np.dtype(dtype).itemsize
    memory = np.zeros(count + 128, np.uint8)
    start = -memory.ctypes.data % 64 + offset
    return memory[start : start + count].view(dtype).reshape(shape)


def make_call(op, rows, size, x_type, round_twice, offset=0):
    rng = np.random.default_rng(size)
    dtype = DTYPES[x_type]
    x = aligned((rows, size), dtype, offset)
    x[...] = values(rng, (rows, size), x_type)
    call = Call(x, values(rng, (size,), x_type), x_type, x_type, x_type if round_twice else F32, epsilon=1e-6)
    if op.startswith("AddRMSNorm"):
        call.residual = aligned((rows, size), dtype, offset)
        call.residual[...] = values(rng, (rows, size), x_type)
    if op in ("GeneralRMSNorm", "AddRMSNorm, bias"):
        call.bias = values(rng, (size,), x_type)
    if op in ("GeneralRMSNorm", "AddRMSNorm, partial"):
        call.partial_size = max(1, size // 3)
    return call


def bits(array):
    return array.view(np.uint16 if array.itemsize == 2 else np.uint32)


@pytest.fixture(params=instruction_sets(load(library_path())))
def isa(request, copies):
    for library in copies.values():
        if library.rmsnorm_deploy_cpu_set_isa(request.param.encode()):
            pytest.skip(f"this machine has no {request.param}")
    yield request.param
    for library in copies.values():
        library.rmsnorm_deploy_cpu_set_isa(None)


@pytest.mark.parametrize("x_type", [F32, F16, BF16])
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("offset", [0, 4, 32])
def test_past_the_caches(isa, copies, op, x_type, offset):
    """Stores past the caches need whole aligned lines; where there are none, ordinary ones have to take their place."""
    for size in SIZES:
        for round_twice in (False, True):
            call = make_call(op, 5, size, x_type, round_twice, offset)
            results = []
            for name in ("always", "never"):
                y = aligned(call.x.shape, call.x.dtype, offset)
                total = aligned(call.x.shape, call.x.dtype, offset) if op.startswith("AddRMSNorm") else None
                results.append(call.run(copies[name], y, total))
            np.testing.assert_array_equal(bits(results[0][0]), bits(results[1][0]))
            if op.startswith("AddRMSNorm"):
                np.testing.assert_array_equal(bits(results[0][1]), bits(results[1][1]))


@pytest.mark.parametrize("x_type", [F32, F16, BF16])
@pytest.mark.parametrize("where", ["y is x", "sum is x", "sum is residual"])
def test_past_the_caches_in_place(isa, copies, x_type, where):
    op = "RMSNorm" if where == "y is x" else "AddRMSNorm"
    for size in (64, 896, 8192):
        wanted = make_call(op, 4, size, x_type, False)
        wanted_y, wanted_sum = wanted.run(copies["never"])
        call = make_call(op, 4, size, x_type, False)
        total = {"y is x": None, "sum is x": call.x, "sum is residual": call.residual}[where]
        y = call.x if where == "y is x" else aligned(call.x.shape, call.x.dtype)
        call.run(copies["always"], y, total)
        np.testing.assert_array_equal(bits(y), bits(wanted_y))
        if total is not None:
            np.testing.assert_array_equal(bits(total), bits(wanted_sum))


@pytest.mark.parametrize("x_type", [F32, F16, BF16])
@pytest.mark.parametrize("op", OPS)
def test_neighbours(isa, copies, op, x_type):
    """Rows that need special care (no mean square at all, infinities, NaN) stand among ordinary ones."""
    for size in (1, 5, 16, 64, 100, 128, 256, 300, 896, 2048, 2100):
        for rows in (1, 2, 7, 16, 19, 35):
            call = make_call(op, rows, size, x_type, False)
            call.epsilon = 0.0
            for row, value in ((1, 0.0), (4, np.inf), (9, np.nan), (17, 1e-30), (18, 0.0)):
                if row < rows:
                    call.x[row] = value
                    if call.residual is not None:
                        call.residual[row] = 0
            y, total = call.run(copies["never"])
            for row in range(rows):
                one = Call(
                    np.ascontiguousarray(call.x[row : row + 1]),
                    call.scale,
                    x_type,
                    x_type,
                    F32,
                    epsilon=0.0,
                    residual=None if call.residual is None else np.ascontiguousarray(call.residual[row : row + 1]),
                    bias=call.bias,
                    partial_size=call.partial_size,
                )
                alone, alone_sum = one.run(copies["never"])
                np.testing.assert_array_equal(bits(alone[0]), bits(y[row]), err_msg=f"{rows} rows of {size}, row {row}")
                if total is not None:
                    np.testing.assert_array_equal(bits(alone_sum[0]), bits(total[row]))


def test_what_the_variable_says(tmp_path):
    """0 and a number of bytes are settings; without one the cache's size decides."""
    for setting in ("0", "1", "1000000", "9223372036854775807", ""):
        path = tmp_path / f"library{len(list(tmp_path.iterdir()))}.so"
        shutil.copy(library_path(), path)
        library = ctypes.CDLL(str(path))
        before = os.environ.get("RMSNORM_DEPLOY_STREAMING")
        os.environ["RMSNORM_DEPLOY_STREAMING"] = setting
        try:
            call = make_call("RMSNorm", 3, 128, F32, False)
            y, _ = call.run(library)
        finally:
            del os.environ["RMSNORM_DEPLOY_STREAMING"]
            if before is not None:
                os.environ["RMSNORM_DEPLOY_STREAMING"] = before
        np.testing.assert_allclose(y, call.expected()[0], rtol=2e-6)
