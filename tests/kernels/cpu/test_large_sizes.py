"""Tensors of more than 2^32 elements: address ranges without memory behind them, of which only the last rows exist.

The driver is far_end.cpp. It asks for a plan of the kernels by itself, since the contract runs whole tensors only.
"""

import subprocess
import sys
from pathlib import Path

import pytest

from rmsnorm_deploy.run.library import library_path
from tests.support.native import Build, output_of

CASES = [
    "rows",
    "rows float16",
    "rows bfloat16 residual",
    "rows residual bias",
    "rows beyond 2^32",
    "rows scale by outer",
    "columns",
    "columns float16 residual bias",
    "columns scale by outer",
    "columns scale by column",
    "columns beyond 2^32",
    "columns beyond 2^32 by column",
    "double rows",
    "double rows float16",
    "double columns",
    "double columns beyond 2^32",
    "gated rows",
    "gated rows beyond 2^32",
    "gated columns",
    "gated double columns beyond 2^32",
    "converted scale",
]
TRUNCATED = [  # where an offset is cut to 32 bits, and a case that shows it
    ("run", r"(void Plan::run_rows\(.*?)std::int64_t skip", r"\1std::int32_t skip", "rows"),
    ("run", r"(void Plan::run_columns\(.*?)std::int64_t skip", r"\1std::int32_t skip", "columns"),
    ("run", r"(void Plan::run_float64\(.*?)std::int64_t skip", r"\1std::int32_t skip", "double rows"),
    (
        "gated",
        r"a\.x = advance\(params_->x, begin \* size_",
        "a.x = advance(params_->x, int(begin * size_)",
        "gated rows",
    ),
    ("gated", r"(void GatedPlan::run\(.*?)std::int64_t first", r"\1std::int32_t first", "gated columns"),
    ("weights", r"(int64_t Weights::offset\(.*?)std::int64_t result", r"\1std::int32_t result", "rows scale by outer"),
    ("weights", r"(bool Weights::lay_out\(.*?)std::int64_t from = 0", r"\1std::int32_t from = 0", "converted scale"),
]
NO_ROOM = 77

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or sys.maxsize < 2**32, reason="needs 64-bit Linux, to reserve addresses without memory"
)


@pytest.fixture(scope="module")
def build(tmp_path_factory):
    return Build(tmp_path_factory.mktemp("large"), "signed-integer-overflow")


def driver(build):
    objects = []
    for target in ("rmsnorm_deploy_common", "rmsnorm_deploy_offered"):
        build.make(target)
        folder = build.folder / "CMakeFiles" / f"{target}.dir"
        objects += sorted([*folder.glob("cpu/**/*.o"), *folder.glob("contract/*.o")])
    assert objects
    return build.program(Path(__file__).with_name("far_end.cpp"), *objects)


@pytest.fixture(scope="module")
def far_end(build):
    """The driver with the kernels as they are; under a name of its own, since faulty ones are made later."""
    return driver(build).rename(build.folder / "far_end_right")


def run(program, *arguments):
    done = subprocess.run([program, *arguments], capture_output=True, text=True, check=False)
    if done.returncode == NO_ROOM:
        pytest.skip("this machine does not lend addresses without memory (ulimit -v, vm.overcommit_memory)")
    return done


def test_every_case_of_the_driver_is_here(far_end):
    assert output_of(far_end, "--list").splitlines() == CASES


@pytest.mark.parametrize("case", CASES)
def test_the_far_end_of(far_end, case):
    done = run(far_end, case)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "portable: right" in done.stdout


def test_one_row_of_more_than_two_to_the_31_values(far_end):
    done = run(far_end, "whole", library_path())
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(("file", "pattern", "replacement", "case"), TRUNCATED, ids=[case for *_, case in TRUNCATED])
def test_an_offset_of_32_bits_is_noticed(build, far_end, file, pattern, replacement, case):
    with build.planted(f"cpu/{file}.cpp", pattern, replacement):
        done = run(driver(build), case)
    assert done.returncode in (1, 3), done.stdout + done.stderr  # another result, or an address that is not its own
