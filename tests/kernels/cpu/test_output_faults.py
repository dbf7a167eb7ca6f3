"""Faults planted in what version 2 of the contract added: the cases of tests/support/output_cases.py find each."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from tests.kernels.cpu.test_wide_vector import OPTIONS, objects
from tests.support import output_cases as cases
from tests.support.contract import F32, load
from tests.support.driver import run
from tests.support.native import ROOT, compiler
from tests.support.outputs import INT8, UINT8

EMULATED = Path(__file__).with_name("kernels_emulated16.cpp")
FAULTS = {
    "half away from zero": (EMULATED.name, "std::nearbyint(v.lanes[i])) + more", "std::round(v.lanes[i])) + more"),
    "not saturated": ("isa/quantise.h", "return at_most(at_least(v, low), high)", "return v"),
    "a reciprocal": ("isa/quantise.h", "(v / set1(scale), low", "(v * set1(1.0f / scale), low"),
    "ties not looked at": ("isa/quantise.h", "return exceeds(r, 0.5f - 0x1p-13f);", "return false;"),
    "y not rounded": (
        "isa/bytes.h",
        "        return blocks.put(v, set1(multiplier), to + from);",
        "        return blocks.put(v, set1(multiplier), to + from), set1(0.0f);",
    ),
    "half of the factor": (
        "isa/bytes.h",
        "+ static_cast<double>(factor.low)",
        "+ 1e-5 * static_cast<double>(factor.high)",
    ),
    "a scale beyond the moderate": ("plan.cpp", "<= kMostModerate", "<= 3e38f"),
    "zero point forgotten": ("quantise.cpp", "*at<std::int8_t>(zero_point, first + i)", "0"),
    "the first row's scale": ("isa/outputs.h", "a.by_row ? row : 0", "0"),
    "another stride": ("run.cpp", "a.y_step = rows_.step[kRowsOfY]", "a.y_step = size_"),
    "a padded lane": ("isa/quantise.h", "k < count - i; ++k", "k < kLanes; ++k"),
    "the extremes of the last piece": ("isa/outputs.h", "if (at) {", "if (false) {"),
}


def ties(kernels):
    cases.test_ties_ends_and_what_is_no_number(kernels, INT8)


def pairs(kernels):
    cases.test_quantised_is_what_the_pair_gives(kernels, INT8, F32, 0, "RMSNorm")


def beside_ties(kernels):
    cases.test_rows_beside_ties(kernels, INT8, 0)


def extremes(kernels):
    cases.test_extremes_of_rows(kernels, F32, 0)


def layouts(kernels):
    cases.test_all_tensors_in_layouts_of_their_own(kernels, F32)


CHECKS = {
    "half away from zero": ties,
    "not saturated": ties,
    "a reciprocal": cases.test_quotients_beside_ties,
    "ties not looked at": cases.test_quotients_beside_ties,
    "y not rounded": beside_ties,
    "half of the factor": beside_ties,
    "a scale beyond the moderate": cases.test_subnormal_quotients_and_huge_scales,
    "zero point forgotten": pairs,
    "the first row's scale": pairs,
    "another stride": layouts,
    "a padded lane": extremes,
    "the extremes of the last piece": extremes,
}


class Copy:
    """The kernels on sixteen emulated lanes, and copies of the sources for faults in one of them."""

    def __init__(self, folder, objects):
        self.folder, self.objects = folder, objects
        self.cpu = folder / "ops" / "cpu"
        self.tests = folder / "tests" / "kernels" / "cpu"
        shutil.copytree(ROOT / "ops", folder / "ops")
        self.tests.mkdir(parents=True)
        shutil.copy(EMULATED, self.tests)

    def compile(self, source, name, *options):
        target = self.folder / f"{name}{source.stem}.o"
        run(*compiler(), *OPTIONS, *options, "-c", source, "-o", target)
        return target

    def link(self, name, **instead):
        path = self.folder / name
        run(*compiler(), "-shared", *(self.objects | instead).values(), "-o", path, "-lm")
        return load(path)

    def faulty(self, file, old, new, name):
        path = self.tests / file if file == EMULATED.name else self.cpu / file
        text = path.read_text()
        assert text.count(old) == 1, f"say anew where the fault is to be planted in {file}"
        path.write_text(text.replace(old, new))
        source = path if path.suffix == ".cpp" else self.tests / EMULATED.name
        try:
            # Quickly, and without a word about what a fault leaves unused.
            return self.link(f"{name}.so", **{source.stem: self.compile(source, name, "-O0", "-w")})
        finally:
            path.write_text(text)


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    return Copy(tmp_path_factory.mktemp("faults"), objects(tmp_path_factory))


@pytest.fixture(scope="module")
def right(copy):
    return copy.link("right.so")


@pytest.mark.parametrize("check", [ties, pairs, extremes, layouts, cases.test_quotients_beside_ties])
def test_the_checks_pass_without_a_fault(right, check):
    check(right)


@pytest.mark.parametrize("quantised_type", [INT8, UINT8, cases.FLOAT8])
@pytest.mark.parametrize("x_type", [F32, cases.F16, cases.BF16])
def test_sixteen_lanes_with_masks(right, quantised_type, x_type):
    cases.test_quantised_is_what_the_pair_gives(right, quantised_type, x_type, 0, "AddRMSNorm")
    cases.test_ties_ends_and_what_is_no_number(right, quantised_type)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(copy, right, fault):
    number = list(FAULTS).index(fault)
    kernels = copy.faulty(*FAULTS[fault], f"fault{number}-")
    with pytest.raises(AssertionError), np.errstate(all="ignore"):
        CHECKS[fault](kernels)
