"""Faults planted in what version 2 of the contract added to the CUDA kernels: each has to be caught."""

import pytest

from tests.support import output_cases as shared
from tests.support.contract import BF16, F16, F32, F64
from tests.support.cuda import output_cases as own
from tests.support.cuda.faults import PLAN, Fault, caught
from tests.support.outputs import FLOAT8, INT8, UINT8

ROWS, VALUES = "outputs_rows", "outputs_values"
TIES = (shared.test_ties_ends_and_what_is_no_number, (INT8,))
CONFIGURATIONS = (own.test_outputs_of_every_row_configuration, (F32, F32, False))
FAULTS = [
    Fault("half away from zero", "outputs.cuh", "__float2int_rn(", "std::lround(", VALUES, *TIES),
    Fault("not held to the range", "outputs.cuh", "fminf(fmaxf(quotient, q.low), q.high)", "quotient", VALUES, *TIES),
    Fault(
        "a NaN that becomes the greatest value",
        *("outputs.cuh", "fminf(fmaxf(quotient, q.low), q.high)", "fmaxf(fminf(quotient, q.high), q.low)"),
        *(VALUES, *TIES),
    ),
    Fault(
        "the zero point before the rounding",
        *("outputs.cuh", "fminf(fmaxf(quotient, q.low), q.high)) + q.zero_point"),
        *("fminf(fmaxf(quotient, q.low), q.high) + q.zero_point)", VALUES, *TIES),
    ),
    Fault(
        "a reciprocal",
        *("outputs.cuh", "value / q.scale", "value * (1.0f / q.scale)", VALUES, shared.test_quotients_beside_ties),
    ),
    Fault(
        "a zero point without a sign",
        *("outputs.cuh", "static_cast<const signed char*>(out.zero_point)[at]"),
        *("static_cast<const unsigned char*>(out.zero_point)[at]", VALUES, *TIES),
    ),
    Fault(
        "the quotient is not rounded",
        *("outputs.cuh", "if (out.quotient_type != RMS_NORM_FLOAT32) quotient", "if (false) quotient", VALUES),
        *(shared.test_a_quotient_of_sixteen_bits, (F16,)),
    ),
    Fault(
        "the first row's scale",
        "outputs.cuh",
        "out.by_row ? row : 0",
        "out.by_row && row < 0 ? row : 0",
        ROWS,
        *CONFIGURATIONS,
    ),
    Fault(
        "float8 that is cut off",
        *("outputs.cuh", "0x7ffffu + (bits >> 20 & 1u)", "0u", VALUES),
        *(shared.test_ties_ends_and_what_is_no_number, (FLOAT8,)),
    ),
    Fault(
        "float8 whose ties go up",
        *("outputs.cuh", "0x7ffffu + (bits >> 20 & 1u)", "0x80000u", VALUES),
        *(shared.test_ties_ends_and_what_is_no_number, (FLOAT8,)),
    ),
    Fault(
        "float8 without its smallest values",
        *("outputs.cuh", "magnitude < 0x1p-6f", "magnitude < 0x1p-9f", VALUES),
        *(shared.test_ties_ends_and_what_is_no_number, (FLOAT8,)),
    ),
    Fault(
        "bytes in another order",
        *("outputs_rows.cuh", "out, q) << 8 * i", "out, q) << 8 * (3 - i)", ROWS, *CONFIGURATIONS),
    ),
    Fault(
        "the other half of eight bytes",
        *("outputs_rows.cuh", "make_uint2(words[0], words[1])", "make_uint2(words[1], words[0])", ROWS),
        *(own.test_outputs_of_every_row_configuration, (F16, F16, False)),
    ),
    Fault(
        "rows of y as far apart as those of x",
        *("outputs_rows.cuh", "a.y, at.of[kRowsOfY] +", "a.y, at.of[kRowsOfX] +", ROWS),
        *(shared.test_all_tensors_in_layouts_of_their_own, (F32,)),
    ),
    Fault(
        "x read again where there is a sum",
        *("outputs_rows.cuh", "return a.residual ? load_anywhere<T>(a.sum", "return false ? load_anywhere<T>(a.sum"),
        *(ROWS, own.test_outputs_of_every_row_configuration, (F32, F32, True)),
    ),
    Fault(
        "dimensions merged that lie apart in all but x",
        *("layout.cu", "merges && out.stride[t][out.dimensions - 1] == step[t] * p.shape[i];"),
        *("merges && (t > 0 || out.stride[t][out.dimensions - 1] == step[t] * p.shape[i]);", PLAN),
        *(shared.test_all_tensors_in_layouts_of_their_own, (F32,)),
    ),
    Fault(
        "a tensor that begins anywhere read in chunks",
        *("layout.cu", "% static_cast<std::uintptr_t>(bytes) == 0;", "% 1 == 0;", PLAN),
        *(own.test_one_tensor_of_outputs_off_by_an_element, (F32,), "misaligned"),
    ),
    Fault(
        "rows that begin anywhere read in chunks",
        *("layout.cu", "stride[tensor][i] * element % bytes == 0;", "stride[tensor][i] * element % bytes >= 0;", PLAN),
        *(own.test_outputs_of_every_row_configuration, (F16, F16, False), "misaligned"),
    ),
    Fault(
        "32-bit offset of a row",
        *("outputs.cuh", "at.of[t] += place * out.stride[t][i];"),
        *("at.of[t] += static_cast<std::int32_t>(place * out.stride[t][i]);", ROWS),
        *(own.test_rows_further_apart_than_32_bits, (), "out of bounds"),
    ),
    Fault(
        "a greatest value of no row",
        *("outputs.cuh", "most = fmaxf(most, other.most);", "take(other.least);", VALUES),
        *(shared.test_extremes_of_rows, (F32, 0)),
    ),
    Fault(
        "extremes where sums are still read",
        *("outputs_rows.cuh", "(shared_memory + kReduceBytes / 16)", "(shared_memory)", ROWS),
        *(own.test_outputs_of_more_rows_than_a_grid_has, (4096, 70)),
    ),
    Fault(
        "less shared memory than extremes take",
        *("plan.cu", "kReduceBytes + kExtremeBytes;", "kReduceBytes;", PLAN),
        *(own.test_outputs_of_more_rows_than_a_grid_has, (4096, 70), "behind the shared memory"),
    ),
    Fault(
        "another number of threads to a row",
        *("plan.cu", "a.chunks > 2 << a.group_log2", "a.chunks > 1 << a.group_log2", PLAN),
        *(own.test_outputs_of_every_row_configuration, (F16, F16, False)),
    ),
    Fault(
        "no second way for rows that are not ordinary",
        *("outputs_rows.cuh", "if (!is_ordinary(mean, a.statistic)) {", "if (false) {", ROWS),
        *(own.test_outputs_of_rows_that_are_not_ordinary, (F32, 512)),
    ),
    Fault(
        "no rounding behind a bias",
        *("outputs_rows.cuh", "    if (twice) round_all<T>(v);\n", "", ROWS),
        *(shared.test_quantised_is_what_the_pair_gives, (INT8, F16, F32, "bias")),
    ),
    Fault(
        "no rounding before the scale",
        *("outputs_values.cuh", "if (twice) v = rounded<T>(v);\n      v *= weight", "v *= weight", VALUES),
        *(own.test_every_attribute_beside_outputs, (BF16, F32, 90)),
    ),
    Fault(
        "the mean of all where a part is measured",
        *("outputs_values.cuh", "if (i < measured) sums", "if (i < size) sums", VALUES),
        *(own.test_every_attribute_beside_outputs, (F32, F32, 90)),
    ),
    Fault(
        "8 bits of a y that is not rounded",
        *("outputs_values.cuh", "v = round_to(v, out.y_type);", "", VALUES),
        *(shared.test_quantised_is_what_the_pair_gives, (UINT8, F32, F16, "RMSNorm")),
    ),
    Fault(
        "all float64 rows where the first is",
        *("outputs_values.cuh", "starts_of(all.out, place.active ? place.outer : 0)", "starts_of(all.out, 0)", VALUES),
        *(shared.test_heads_of_packed_rows, (F64, 64, False)),
    ),
]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name.replace(" ", "_"))
def test_a_planted_fault_is_caught(objects, fault, tmp_path):
    caught(objects, fault, tmp_path)
