"""Faults planted in copies of the CUDA sources, one at a time: each has to be caught by the test that it names."""

import dataclasses
import shutil
from collections.abc import Callable

import pytest

from tests.support.contract import BF16, F16, F32
from tests.support.cuda import cases as kernel_tests
from tests.support.cuda import emulator as em

PLAN = "plan"


@dataclasses.dataclass
class Fault:
    name: str
    file: str
    old: str  # occurs exactly once
    new: str
    unit: str  # the only one that is compiled again
    test: Callable  # of tests/support/cuda/cases.py, or of the contract
    arguments: tuple = ()
    message: str | None = None  # what the emulator has to say; None: the result is wrong


FAULTS = [
    Fault(
        "missing barrier",
        *("rows.cuh", "  __syncthreads();\n  A total = partial[0];", "  A total = partial[0];", "rows_float32"),
        *(kernel_tests.test_every_row_configuration, (F32, F32, False)),
    ),
    Fault(
        "one buffer for the partial sums of all rows",
        "rows.cuh",
        "    turn ^= 1;\n    const Mean mean = mean_of(sum, a.statistic);\n"
        "    Factor factor = factor_of(mean, a.statistic, sum);\n"
        "    if (!is_ordinary(mean, a.statistic)) {  // the same",
        "    const Mean mean = mean_of(sum, a.statistic);\n"
        "    Factor factor = factor_of(mean, a.statistic, sum);\n"
        "    if (!is_ordinary(mean, a.statistic)) {  // the same",
        *("rows_float32", kernel_tests.test_a_block_goes_on_to_further_rows, (4096,)),
    ),
    Fault(
        "wrong lane",
        *("rows.cuh", "offset > 0; offset >>= 1) {\n    sum.add", "offset > 1; offset >>= 1) {\n    sum.add"),
        *("rows_float32", kernel_tests.test_every_row_configuration, (F32, F32, False)),
    ),
    Fault(
        "all lanes where only those of a row exchange",
        *("rows.cuh", "  if (group_log2 >= 5) return kAllLanes;", "  if (group_log2 >= 0) return kAllLanes;"),
        *("rows_float32", kernel_tests.test_odd_rows_do_not_disturb_their_neighbours, (F32, 16), "divergent"),
    ),
    Fault(
        "missing tail of a row",
        *("rows.cuh", "has[p] = row < a.outer && index < chunks;", "has[p] = row < a.outer && index < (chunks & ~1);"),
        *("rows_float32", kernel_tests.test_every_row_configuration, (F32, F32, False)),
    ),
    Fault(
        "missing end of a row",
        *("rows.cuh", "has[p] = row < a.outer && index < chunks;", "has[p] = row < a.outer;", "rows_float32"),
        *(kernel_tests.test_every_row_configuration, (F32, F32, False), "out of bounds"),
    ),
    Fault(
        "rows past the last",
        *("rows.cuh", "has[p] = row < a.outer && index < chunks;", "has[p] = index < chunks;", "rows_float32"),
        *(kernel_tests.test_every_row_configuration, (F32, F32, False), "out of bounds"),
    ),
    Fault(
        "row stride in blocks of several rows",
        *("rows.cuh", "first + (threadIdx.x >> a.group_log2)", "first + (threadIdx.x >> 5)", "rows_float32"),
        *(kernel_tests.test_every_row_configuration, (F32, F32, False)),
    ),
    Fault(
        "unaligned vector load",
        "plan.cu",
        "aligned(a.x) && aligned(a.residual) && aligned(a.y) && aligned(a.sum) &&\n                       fit_rows",
        "fit_rows",
        PLAN,
        *(kernel_tests.test_one_tensor_off_by_an_element, (F32, (4, 64)), "misaligned: needs a multiple of 16"),
    ),
    Fault(
        "32-bit offset",
        "rows.cuh",
        "    const std::int64_t start = row * chunks;\n    bool has",
        "    const std::int64_t start = static_cast<std::int32_t>(row * chunks);\n    bool has",
        *("rows_float16", kernel_tests.test_offsets_beyond_32_bits, (F16, (2**31 + 2**10, 8), 256), "out of bounds"),
    ),
    Fault(
        "32-bit offset of strided groups",
        "strided.cuh",
        "    const std::int64_t start = at.outer * a.size * a.inner + at.column;\n    const std::int64_t size = "
        "at.active ? a.size : 0;\n    const std::int64_t measured",
        "    const std::int64_t start = static_cast<std::int32_t>(at.outer * a.size * a.inner + at.column);\n"
        "    const std::int64_t size = at.active ? a.size : 0;\n    const std::int64_t measured",
        *("strided_float32", kernel_tests.test_offsets_beyond_32_bits, (F16, (2**26, 65), 8)),
    ),
    Fault(
        "mean over all where a part is measured",
        *("plan.cu", "statistic_of(p, sizes.measured)", "statistic_of(p, sizes.size)", PLAN),
        *(kernel_tests.test_every_attribute_in_chunks_of_rows, (F32, F32, 7)),
    ),
    Fault(
        "epsilon inside and outside exchanged",
        "statistic.cuh",
        "  s.count = static_cast<double>(measured);",
        "  std::swap(s.epsilon, s.epsilon_outside);\n  s.count = static_cast<double>(measured);",
        *(PLAN, kernel_tests.test_every_attribute_in_chunks_of_rows, (F32, F32, 7)),
    ),
    Fault(
        "accumulation in float16",
        *("statistic.cuh", "{ value += term; }", "{ value = rounded<Half>(value + term); }", "rows_float16"),
        *(kernel_tests.test_large_float16_values_are_not_lost, (4096,)),
    ),
    Fault(
        "no rounding before the scale",
        "rows.cuh",
        "  if (twice) {\n    round_all<T>(v);\n    if (sizeof(S) != sizeof(T)) round_all<T>(w);\n  }\n#pragma",
        "  if (twice) {\n    if (sizeof(S) != sizeof(T)) round_all<T>(w);\n  }\n#pragma",
        *("rows_bfloat16", kernel_tests.test_every_row_configuration, (BF16, BF16, False)),
    ),
    Fault(
        "no rounding of a float32 scale",
        "rows.cuh",
        "  if (twice) {\n    round_all<T>(v);\n    if (sizeof(S) != sizeof(T)) round_all<T>(w);\n  }\n#pragma",
        "  if (twice) {\n    round_all<T>(v);\n  }\n#pragma",
        *("rows_bfloat16", kernel_tests.test_every_row_configuration, (BF16, F32, False)),
    ),
    Fault(
        "stride of a float32 scale",
        *("weights.cuh", "load_constant_chunk(base, index * kParts + i)", "load_constant_chunk(base, index + i)"),
        *("rows_float16", kernel_tests.test_every_row_configuration, (F16, F32, False)),
    ),
    Fault(
        "scale of another row",
        *("rows.cuh", "/ w.repeat % w.period * w.row_stride", "/ w.repeat * w.row_stride", "rows_float32"),
        *(kernel_tests.test_scale_that_differs_from_row_to_row, (F32, F32), "out of bounds"),
    ),
    Fault(
        "scale kept from the first row",
        *("rows.cuh", "loaded = a.scale.row_stride == 0;", "loaded = true;", "rows_float32"),
        *(kernel_tests.test_scale_that_differs_from_row_to_row, (F32, F32)),
    ),
    Fault(
        "shared memory overwritten while it is read",
        *("strided.cuh", "  __syncthreads();  // what was here before has been read\n", "", "strided_float32"),
        *(kernel_tests.test_odd_columns_do_not_disturb_their_neighbours, (F32, 24, 30)),
    ),
    Fault(
        "barrier that some columns skip",
        *("strided.cuh", "if (__syncthreads_or(!ordinary)) {", "if (!ordinary) {", "strided_float32"),
        *(kernel_tests.test_odd_columns_do_not_disturb_their_neighbours, (F32, 24, 30), "divergent"),
    ),
    Fault(
        "slices of another column",
        *("strided.cuh", "thread + half * a.columns + i * stride", "thread + half + i * stride", "strided_float32"),
        *(kernel_tests.test_channel_first_in_chunks, (F32, 24)),
    ),
    Fault(
        "less shared memory than is used",
        *("plan.cu", "a.staged ? chunks * kChunkBytes : 0", "a.staged ? chunks * kChunkBytes - 16 : 0", PLAN),
        *(kernel_tests.test_a_block_goes_on_to_further_rows, (16384,), "behind the shared memory"),
    ),
    Fault(
        "no second way for sums that overflow",
        *("statistic.cuh", "return s.ordinary && mean.value > kLeastMean && mean.value < kLargestMean;"),
        *("return s.ordinary || mean.value >= 0.0f || true;", "rows_float32"),
        *(kernel_tests.test_odd_rows_do_not_disturb_their_neighbours, (F32, 512)),
    ),
]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name.replace(" ", "_"))
def test_a_planted_fault_is_caught(objects, fault, tmp_path):
    units, host = objects
    ops = tmp_path / "ops"
    for folder in ("cuda", "contract", "include"):
        shutil.copytree(em.ROOT / "ops" / folder, ops / folder)
    source = ops / "cuda" / fault.file
    text = source.read_text()
    assert text.count(fault.old) == 1, "the fault no longer fits the source"
    source.write_text(text.replace(fault.old, fault.new))
    if fault.unit == PLAN:
        files = [*units.values(), *em.compile_host(ops, tmp_path / "objects")]
    else:
        changed = em.compile_units(ops, [fault.unit], tmp_path / "objects")
        files = [*changed, *(file for unit, file in units.items() if unit != fault.unit), *host]
    faulty = em.Emulator(files, tmp_path / "faulty.so")
    with pytest.raises(AssertionError) as caught:
        fault.test(faulty, *fault.arguments)
    if fault.message:
        assert isinstance(caught.value, em.EmulatorError)
        assert fault.message in str(caught.value)
