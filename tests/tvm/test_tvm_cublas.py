"""What cuBLAS is asked for by kernels of compiled models, on a machine without a GPU.

Loops on the host's memory stand in for cuBLAS, and tensors say that they are a GPU's.
"""

import os

import numpy as np
import pytest

pytest.importorskip("tvm.relax", reason="apache-tvm is not installed: pip install '.[tvm]'")

import tvm_ffi

from tests.support.tvm.cublas import CUDA, DEVICE, TYPES
from tests.support.tvm.cublas_cases import CASES, FLOATS, STREAM, built, kernel_for, linked, run

KERNELS = [
    (name, dtype)
    for i, name in enumerate(CASES)
    for dtype in FLOATS
    if dtype == list(FLOATS)[i % 4] or name == "matrix"
]
"""Not every case in every type: only the number of a type depends on it."""


@pytest.fixture(scope="module")
def kernels(tmp_path_factory, fake):
    made = built({f"{name}_{dtype}": kernel_for(CASES[name], dtype) for name, dtype in KERNELS})
    return linked(*made, tmp_path_factory.mktemp("kernels"), fake)


@pytest.fixture(scope="module")
def chosen():
    """The devices that kernels have made the current one; a library looks once for the function that does it."""
    found = []
    name = "__tvm_set_device"
    before = tvm_ffi.get_global_func(name)
    tvm_ffi.register_global_func(name, lambda *device: found.append(device), override=True)
    yield found
    tvm_ffi.register_global_func(name, before, override=True)


def problems(kernel, case, dtype, fake, chosen):
    """What is wrong with a product and with how cuBLAS was asked for it."""
    fake.taken()
    chosen.clear()
    try:
        (x, v, y), got, want = run(kernel, case, dtype)
    except RuntimeError as error:
        return [str(error)]
    calls = fake.taken()
    found = []

    def check(good, problem):
        if not good:
            found.append(problem)

    with np.errstate(invalid="ignore"):
        check((abs(got - want) <= FLOATS[dtype][2] * np.maximum(8, abs(want))).all(), "the result")
    check(all(o.untouched() for o in (x, v, y)), "something around it was written")
    check(chosen == [(CUDA, DEVICE)], "the device")
    check(len(calls) == case.calls, f"{len(calls)} calls")
    for call in calls:
        check(call.batch == case.batch, f"a batch of {call.batch}")
        check({o.type for o in (call.a, call.b, call.c)} == {TYPES[dtype][0]}, "types")
        check(call.sums == (70 if dtype == "float64" else 68), "the type of sums")  # never TF32
        check(call.math == 16, "sums of parts")
        check(call.workspace == 32 << 20, "the workspace")
        check(call.stream == STREAM, "the stream")
        for theirs, ours in ((call.a, v), (call.b, x), (call.c, y)):
            check(ours.address <= theirs.first <= theirs.last <= ours.address + ours.size, "beyond the end")
    return found


@pytest.mark.parametrize(("name", "dtype"), KERNELS)
def test_the_product_is_the_exact_one(kernels, fake, chosen, name, dtype):
    assert problems(kernels[f"{name}_{dtype}"], CASES[name], dtype, fake, chosen) == []


FAULTS = {
    "the order of factors": ("b_turned, a_turned, n, m, k", "a_turned, b_turned, n, m, k"),
    "rows of A": ("if (single) lda = dim.a", "if (false) lda = dim.a"),
    "rows of C": ("&& follow && dim.c == m * ldc", "&& dim.c == m * ldc"),
    "a batch of C": ("c.type(), ldc, batch.c,", "c.type(), ldc, batch.a,"),
    "another place of B": ("at_b += place * dim.b", "at_b += place * dim.a"),
    "matrices that follow": ("b == inner.b * inner.size &&", "true &&"),
    "the largest batch twice": ("if (largest < dims.size()) dims.erase", "if (false) dims.erase"),
    "the type of C": ("c.type(), ldc", "0, ldc"),
    "TF32": ("float_sums = 68", "float_sums = 77"),
    "the stream last": ("if (!status) status = cublas.set_stream", "if (false) status = cublas.set_stream"),
    "no workspace": ("if (!status) status = cublas.set_workspace", "if (false) status = cublas.set_workspace"),
    "sums in 16 bits": ("set_math(*handle, exact_sums)", "set_math(*handle, 0)"),
}
IN_THE_SUITE = ("rows of A", "no workspace")
"""The others are seen as well: each takes a second."""
SEEN_BY = ["matrix", "v", "queries", "grouped", "grouped_turned", "grouped_token", "any_batch"]


@pytest.fixture(scope="module")
def few():
    """Kernels to link again and again."""
    return built({name: kernel_for(CASES[name], "float16") for name in SEEN_BY})


@pytest.mark.parametrize("fault", FAULTS if os.environ.get("RMSNORM_DEPLOY_ALL_FAULTS") else IN_THE_SUITE)
def test_a_fault_is_seen(few, fake, chosen, tmp_path, fault):
    right, wrong = FAULTS[fault]

    def planted(source):
        assert source.count(right) == 1, right
        return source.replace(right, wrong)

    kernels = linked(*few, tmp_path, fake, planted)
    assert any(problems(kernels[name], CASES[name], "float16", fake, chosen) for name in SEEN_BY)


def test_each_stream_has_its_handle_and_its_workspace(kernels, fake, chosen):
    case = CASES["matrix"]
    fake.taken()
    for stream in (11, 12, 11):
        run(kernels["matrix_float32"], case, "float32", stream)
    assert [c.stream for c in fake.taken()] == [11, 12, 11]
    run(kernels["matrix_float32"], case, "float32", 12)
    run(kernels["matrix_float32"], case, "float32", 11)
    second, first = fake.taken()
    assert second.handle != first.handle
    assert {second.workspace, first.workspace} == {32 << 20}


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (("libnone_at_all.so.13", "libnone_at_all.so.12"), "cuBLAS is missing .*: pip install nvidia-cublas"),
        (("libm.so.6",), "cuBLAS or the driver is too old: no cublasCreate_v2"),
    ],
)
def test_the_first_product_says_what_is_missing(fake, chosen, tmp_path, names, said):
    made = built({"matrix": kernel_for(CASES["matrix"], "float32")})
    kernels = linked(*made, tmp_path, fake, names=names)
    for _ in range(2):
        with pytest.raises(RuntimeError, match=said):
            run(kernels["matrix"], CASES["matrix"], "float32")
