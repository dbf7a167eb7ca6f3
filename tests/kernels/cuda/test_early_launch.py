"""Programmatic dependent launch, a build option: kernels that begin before what is ahead of them has ended."""

import itertools
import re
import shutil
import subprocess

import numpy as np
import pytest

from benchmarks.gpu.contract import SILU
from tests.support import contract as C
from tests.support.contract import F16, F32, F64
from tests.support.cuda import emulator as em
from tests.support.cuda.cases import call_of
from tests.support.cuda.gated_cases import right
from tests.support.cuda.output_cases import compare, outputs_of

OPTION = "-DRMSNORM_DEPLOY_CUDA_PDL"


@pytest.fixture(scope="module")
def early_units(tmp_path_factory):
    em.compiler()
    return em.compile_units(em.ROOT / "ops", em.UNITS, tmp_path_factory.mktemp("early"), OPTION, em.UNOPTIMISED)


@pytest.fixture
def early(objects, early_units, tmp_path):
    """With the option; its devices are its own, as each is asked only once."""
    return em.Emulator([*early_units, *objects[1]], tmp_path / "early.so")


def calls():
    """One of every kind of kernel, with rows that leave threads without work."""
    rng = np.random.default_rng(91)
    for size, residual in itertools.product((64, 4096, 16384), (False, True)):
        yield call_of(rng, 3, size, F16, residual=residual)
    yield C.Call(C.values(rng, (1, 9, 24), F32), np.float32(1), F32, axes=(1,))
    yield C.Call(C.values(rng, (3, 45), F32), np.float32(1), F32)
    yield C.Call(C.values(rng, (3, 45), F32), np.float32(1), F32, stash_type=F64)


def test_every_kernel_waits_before_it_touches_memory(early):
    for number, call in enumerate(calls()):
        C.agrees(call, *call.run(early))
        assert early.lib.emulator_early() == number + 1
    rng = np.random.default_rng(92)
    for size in (64, 45):
        compare(early, outputs_of(rng, call_of(rng, 3, size, F16, residual=True)), lead=1)
    for size, x_type in ((64, F16), (45, F16), (45, F64)):
        call = C.Call(C.values(rng, (3, size), x_type), np.float32(1), x_type, stash_type=F64 if x_type == F64 else F32)
        right(early, call, C.values(rng, (3, size), F32), F32, SILU, 0)
    assert {name.partition("<")[0] for name in early.kernels} == {
        *("rows_kernel", "long_rows_kernel", "strided_kernel", "float64_strided_kernel"),
        *("output_rows_kernel", "output_values_kernel"),
        *("gated_rows_kernel", "gated_values_kernel", "float64_gated_values_kernel"),
    }


def test_code_without_the_wait_is_not_launched_early(early):
    """Of an older architecture, which a newer GPU runs from PTX."""
    early.lib.emulator_ptx(80)
    for call in calls():
        C.agrees(call, *call.run(early))
    assert early.lib.emulator_early() == 0


def test_without_the_option_nothing_is_launched_early(kernels):
    for call in calls():
        C.agrees(call, *call.run(kernels))
    assert kernels.lib.emulator_early() == 0


@pytest.mark.parametrize(
    "unit", ["rows_float32", "strided_float64", "outputs_values", "gated_rows", "gated_values", "launch"]
)
def test_nvcc_puts_the_wait_before_all_loads(tmp_path, unit):
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        pytest.skip("needs nvcc, to compile the CUDA kernels; install the CUDA toolkit and put nvcc on the PATH")
    code = tmp_path / "code.ptx"
    options = [OPTION, '-DRMSNORM_DEPLOY_CUDA_ARCHITECTURES="90"', "-std=c++17", "-O3", "-Werror=all-warnings"]
    command = [nvcc, *options, "-arch=compute_90", "-ptx", em.ROOT / "ops" / "cuda" / f"{unit}.cu", "-o", code]
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    kernels = code.read_text().split(".entry ")[1:]
    assert (len(kernels) > 0) == (unit != "launch")
    for kernel in kernels:
        before = kernel[: kernel.index("griddepcontrol.wait")]
        assert not re.search(r"\b(ld|st|atom|cp)\.(?!param)", before)
        assert "griddepcontrol.launch_dependents" not in kernel
        assert "ld.global.nc" not in kernel  # for what stays as it is as long as the grid runs


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        ("device.h", "  cudaGridDependencySynchronize();\n", "", "too early"),
        (
            "device.h",
            "  cudaGridDependencySynchronize();\n",
            "  if (threadIdx.x) cudaGridDependencySynchronize();\n",
            "early",
        ),
        (
            "rows.cuh",
            "RowArgs a) {\n  wait_for_earlier_grids();\n  constexpr int kValues = kChunk<T>;\n  constexpr int kSums",
            "RowArgs a) {\n  if (threadIdx.x >> a.group_log2 < a.outer) wait_for_earlier_grids();\n"
            "  constexpr int kValues = kChunk<T>;\n  constexpr int kSums",
            "earl",
        ),
        ("launch.cu", "attributes.ptxVersion >= 90", "true", "too early"),
    ],
    ids=["never", "not in all threads", "not without a row", "whatever the code is"],
)
def test_a_planted_fault_is_caught(objects, early_units, tmp_path, file, old, new, message):
    ops = tmp_path / "ops"
    for folder in ("cuda", "contract", "include"):
        shutil.copytree(em.ROOT / "ops" / folder, ops / folder)
    source = ops / "cuda" / file
    assert source.read_text().count(old) == 1
    source.write_text(source.read_text().replace(old, new))
    unit = "launch" if file == "launch.cu" else "rows_float16"
    changed = em.compile_units(ops, [unit], tmp_path / "units", OPTION, em.UNOPTIMISED)
    files = [*changed, *(u for u in early_units if u.stem != unit), *objects[1]]
    if file == "launch.cu":  # kernels of an older architecture, which have no wait
        files = [*changed, *(u for name, u in objects[0].items() if name != unit), *objects[1]]
    faulty = em.Emulator(files, tmp_path / "faulty.so")
    if file == "launch.cu":
        faulty.lib.emulator_ptx(80)
    with pytest.raises(em.EmulatorError, match=message):
        call_of(np.random.default_rng(93), 3, 64, F16).run(faulty)
