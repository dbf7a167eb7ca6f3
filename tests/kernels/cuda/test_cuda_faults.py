"""Faults planted in copies of the CUDA sources, one at a time: each has to be caught by the test that it names."""

import pytest

from tests.support.contract import BF16, F16, F32
from tests.support.cuda import cases as kernel_tests
from tests.support.cuda.faults import PLAN, Fault, caught

FAULTS = [
    Fault(
        "missing barrier",
        *("rows.cuh", "  __syncthreads();\n  total = partial[0];", "  total = partial[0];", "rows_float32"),
        *(kernel_tests.test_every_row_configuration, (F32, F32, False)),
    ),
    Fault(
        "one buffer for the partial sums of all rows",
        "rows.cuh",
        "partial + turn * kMostWarps);\n    turn ^= 1;\n"
        "    const Mean mean = mean_of(sum, a.statistic);\n    const void",
        "partial + turn * kMostWarps);\n    const Mean mean = mean_of(sum, a.statistic);\n    const void",
        *("rows_float32", kernel_tests.test_a_block_goes_on_to_further_rows, (2048,)),
    ),
    Fault(
        "one buffer for the partial sums of all long rows",
        "rows.cuh",
        "partial + turn * kMostWarps);\n    turn ^= 1;\n    const Mean mean = mean_of(sum, a.statistic);\n    Factor",
        "partial + turn * kMostWarps);\n    const Mean mean = mean_of(sum, a.statistic);\n    Factor",
        *("rows_float32", kernel_tests.test_a_block_goes_on_to_further_rows, (4096,)),
    ),
    Fault(
        "wrong lane",
        *("rows.cuh", "for (int step = 4; step >= 0; --step) {", "for (int step = 4; step >= 1; --step) {"),
        *("rows_float32", kernel_tests.test_every_row_configuration, (F32, F32, False)),
    ),
    Fault(
        "wrong lane of a row that is not ordinary",
        *("rows.cuh", ": 16; offset > 0; offset >>= 1) {", ": 16; offset > 1; offset >>= 1) {", "rows_float32"),
        *(kernel_tests.test_odd_rows_do_not_disturb_their_neighbours, (F32, 64)),
    ),
    Fault(
        "all lanes where only those of a row exchange",
        *("rows.cuh", "  if (group_log2 >= 5) return kAllLanes;", "  if (group_log2 >= 0) return kAllLanes;"),
        *("rows_float32", kernel_tests.test_odd_rows_do_not_disturb_their_neighbours, (F32, 16), "divergent"),
    ),
    Fault(
        "missing tail of a row",
        *(
            "rows.cuh",
            "has[p] = row < rows && lane + p * group < chunks;",
            "has[p] = row < rows && lane + p * group < (chunks & ~1);",
        ),
        *("rows_float32", kernel_tests.test_every_row_configuration, (F32, F32, False)),
    ),
    Fault(
        "missing end of a row",
        *("rows.cuh", "has[p] = row < rows && lane + p * group < chunks;", "has[p] = row < rows;", "rows_float32"),
        *(kernel_tests.test_every_row_configuration, (F32, F32, False), "out of bounds"),
    ),
    Fault(
        "rows past the last",
        *(
            "rows.cuh",
            "has[p] = row < rows && lane + p * group < chunks;",
            "has[p] = lane + p * group < chunks;",
            "rows_float32",
        ),
        *(kernel_tests.test_every_row_configuration, (F32, F32, False), "out of bounds"),
    ),
    Fault(
        "row stride in blocks of several rows",
        *("rows.cuh", "row = first + static_cast<Row>(threadIdx.x >> a.group_log2)"),
        *("row = first + static_cast<Row>(threadIdx.x >> 5)", "rows_float32"),
        *(kernel_tests.test_every_row_configuration, (F32, F32, False)),
    ),
    Fault(
        "unaligned vector load",
        "plan.cu",
        "aligned(a.x) && aligned(a.residual) && aligned(a.y) && aligned(a.sum) && aligned(launch.gate.data);\n"
        "  const bool in_rows",
        "true;\n  const bool in_rows",
        PLAN,
        *(kernel_tests.test_one_tensor_off_by_an_element, (F32, (4, 64)), "misaligned: needs a multiple of 16"),
    ),
    Fault(
        "32-bit offset",
        "rows.cuh",
        "std::int64_t start = static_cast<std::int64_t>(first +",
        "std::int32_t start = static_cast<std::int32_t>(first +",
        *("rows_float16", kernel_tests.test_offsets_beyond_32_bits, (F16, (2**31 + 2**10, 8), 256), "out of bounds"),
    ),
    Fault(
        "32-bit offset of ordinary rows",
        "rows.cuh",
        "std::int64_t start = static_cast<std::int64_t>(first +",
        "std::int32_t start = static_cast<std::int32_t>(first +",
        *("rows_float16", kernel_tests.test_offsets_beyond_32_bits, (F16, (2**28 + 2**10, 64), 64), "overflow"),
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
        *(kernel_tests.test_large_float16_values_are_not_lost, (2048,)),
    ),
    Fault(
        "no rounding before the scale",
        "rows.cuh",
        "kForm == kTwoRoundings || (kForm == kAnyForm",
        "(kForm == kAnyForm",
        *("rows_bfloat16", kernel_tests.test_every_row_configuration, (BF16, BF16, False)),
    ),
    Fault(
        "no rounding before the scale where there is a bias",
        "rows.cuh",
        "(kForm == kAnyForm && sizeof(T) == 2 && a.round_type != RMS_NORM_FLOAT32)",
        "false",
        *("rows_bfloat16", kernel_tests.test_every_attribute_in_chunks_of_rows, (BF16, BF16, 16)),
    ),
    Fault(
        "a rounding too many",
        "plan.cu",
        "const bool twice = p.x_type != RMS_NORM_FLOAT32 &&",
        "const bool twice = p.x_type != RMS_NORM_FLOAT32 ||",
        *(PLAN, kernel_tests.test_every_row_configuration, (BF16, BF16, False)),
    ),
    Fault(
        "no rounding of a float32 scale",
        "rows.cuh",
        "      const uint4 y = product(pack(v, static_cast<const T*>(nullptr)), scale.packed(), "
        "static_cast<const T*>(nullptr));\n",
        "      round_all<T>(v);\n      float u[kValues];\n      scale.unpacked(u);\n"
        "      for (int i = 0; i < kValues; ++i) u[i] *= v[i];\n"
        "      const uint4 y = pack(u, static_cast<const T*>(nullptr));\n",
        *("rows_bfloat16", kernel_tests.test_every_attribute_in_chunks_of_rows, (BF16, F32, 16)),
    ),
    Fault(
        "a float32 scale read as one of x's type",
        *("rows.cuh", "if (w.type == RMS_NORM_FLOAT32) {", "if (w.type == RMS_NORM_FLOAT64) {", "rows_float16"),
        *(kernel_tests.test_every_row_configuration, (F16, F32, False)),
    ),
    Fault(
        "no rounding of a float32 bias",
        *("rows.cuh", "if (sizeof(S) != sizeof(T) && twice) round_all<T>(w);", "", "rows_bfloat16"),
        *(kernel_tests.test_every_attribute_in_chunks_of_rows, (BF16, F32, 16)),
    ),
    Fault(
        "an upper half with the bits of the lower one",
        *("device.h", "both & 0xffff0000u", "both", "rows_bfloat16"),
        *(kernel_tests.test_every_row_configuration, (BF16, BF16, False)),
    ),
    Fault(
        "a partly measured row taken for a whole one",
        *("plan.cu", "a.measured == size && !a.bias.data", "size > 0 && !a.bias.data", PLAN),
        *(kernel_tests.test_every_attribute_in_chunks_of_rows, (F32, F32, 7)),
    ),
    Fault(
        "a bias forgotten",
        *("plan.cu", "a.measured == size && !a.bias.data", "a.measured == size", PLAN),
        *(kernel_tests.test_every_attribute_in_chunks_of_rows, (F32, F32, 7)),
    ),
    Fault(
        "another order of additions with four chunks",
        *("rows.cuh", "sums[p % kSums].add", "sums[p / 2].add", "rows_float16"),
        *(kernel_tests.test_a_row_has_the_same_bits_in_both_kernels, (F16, 512)),
    ),
    Fault(
        "no wait for the copy of the row",
        *("rows.cuh", "      wait_for_copies<1>();\n", "", "rows_float32"),
        *(kernel_tests.test_the_next_long_row_is_copied_while_one_is_worked_on, (F32, F32, False)),
    ),
    Fault(
        "a wait for one copy too few",
        *("rows.cuh", "      wait_for_copies<1>();\n", "      wait_for_copies<2>();\n", "rows_float32"),
        *(kernel_tests.test_the_next_long_row_is_copied_while_one_is_worked_on, (F32, F32, True)),
    ),
    Fault(
        "the next row copied over this one",
        *("rows.cuh", "(row / gridDim.x & 1) != 0", "(row & 0) != 0", "rows_float32"),
        *(kernel_tests.test_the_next_long_row_is_copied_while_one_is_worked_on, (F32, F32, False)),
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
        *("rows.cuh", "loaded = kPlain || a.scale.row_stride == 0;", "loaded = true;", "rows_float32"),
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
        *(
            "plan.cu",
            "static_cast<unsigned>(a.buffers * row_bytes)",
            "static_cast<unsigned>(a.buffers * row_bytes - 16)",
            PLAN,
        ),
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
    caught(objects, fault, tmp_path)
