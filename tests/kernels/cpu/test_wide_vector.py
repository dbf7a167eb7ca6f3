"""The algorithm on sixteen lanes, emulated so that every machine runs it: all cases of the contract."""

from pathlib import Path

import numpy as np
import pytest

from rmsnorm_deploy.run.library import library_path
from tests.support import contract_cases, gated_cases
from tests.support.contract import BF16, F16, F32, Call, cases, load, values
from tests.support.driver import Driver, build, run
from tests.support.native import compiler
from tests.support.once import once

ROOT = Path(__file__).resolve().parents[3]
CPU = ROOT / "ops" / "cpu"
SOURCES = [
    Path(__file__).with_name("kernels_emulated16.cpp"),
    *sorted((ROOT / "ops" / "contract").glob("*.cpp")),
    *sorted(CPU.glob("*.cpp")),
]
# The rounding that the kernels rely on, and what compiles in seconds. No other file takes or returns a vector, so that
# they are passed differently without AVX-512 does not matter.
OPTIONS = [
    "-std=c++17",
    "-O1",
    "-fno-inline",
    "-ffp-contract=off",
    "-fPIC",
    "-Wall",
    "-Wextra",
    "-Werror",
    "-Wno-psabi",
    "-DRMSNORM_DEPLOY_TABLES=TABLE(emulated16)",
]


def objects(tmp_path_factory):
    """The object file of each source, by its name without ending; a test run compiles them once."""
    compiler()  # outside of make: a test that is skipped has built nothing

    def make(folder):
        folder.mkdir()
        for source in SOURCES:
            run(*compiler(), *OPTIONS, "-c", source, "-o", folder / f"{source.stem}.o")

    folder = once(tmp_path_factory, "emulated16", make)
    return {source.stem: folder / f"{source.stem}.o" for source in SOURCES}


@pytest.fixture(scope="session")
def emulated(tmp_path_factory):
    made = objects(tmp_path_factory)
    folder = tmp_path_factory.mktemp("emulated")
    path = folder / "emulated.so"
    run(*compiler(), "-shared", *made.values(), "-o", path, "-lm")
    with Driver([build(compiler(), folder), path]) as driver:
        yield driver


@pytest.fixture
def kernels(emulated):
    return emulated


globals().update(cases(contract_cases))
globals().update(cases(gated_cases))


def test_the_emulated_kernels_run(emulated):
    assert emulated.rmsnorm_deploy_cpu_isa() == b"emulated16"


@pytest.mark.parametrize("x_type", [F32, F16, BF16])
@pytest.mark.parametrize("inner", [1, 5, 70])
def test_the_bits_are_those_of_avx512(emulated, x_type, inner):
    """So what the cases above show of the emulation is true of the processor's own sixteen lanes."""
    library = load(library_path())
    if library.rmsnorm_deploy_cpu_set_isa(b"avx512"):
        pytest.skip("this machine has no avx512")
    rng = np.random.default_rng(59)
    try:
        for size in (1, 15, 16, 17, 31, 127, 128, 129, 300, 2049):
            for round_type in {F32, x_type}:
                shape = (5, size, inner)
                call = Call(values(rng, shape, x_type), values(rng, (size, 1), x_type), x_type, x_type, round_type)
                call.axes = (1,)
                call.residual = values(rng, shape, x_type)
                call.bias = values(rng, (size, 1), x_type)
                call.partial_size = max(1, size - size // 5)
                for got, wanted in zip(call.run(emulated), call.run(library), strict=True):
                    assert got.tobytes() == wanted.tobytes()
    finally:
        library.rmsnorm_deploy_cpu_set_isa(None)
