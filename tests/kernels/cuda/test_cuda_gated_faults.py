"""Faults planted in the CUDA kernels for norms with a gate: each has to be caught."""

import pytest

from tests.support import gated_cases as shared
from tests.support.contract import BF16, F16, F32
from tests.support.cuda import gated_cases as own
from tests.support.cuda.faults import PLAN, Fault, caught

ROWS, VALUES = "gated_rows", "gated_values"
CONFIGURATIONS = (own.test_every_row_configuration_with_a_gate, (F32, F32, False))
ACTIVATION = (shared.test_the_activation_is_as_exact_as_its_header_says, (1,))
FAULTS = [
    Fault("one wrong coefficient", "gate.cuh", "4.1665795894e-2f", "4.17e-2f", VALUES, *ACTIVATION),
    Fault(
        "no Newton step",
        "gate.cuh",
        "return fmaf(estimate, fmaf(-d,",
        "return fmaf(0.0f, fmaf(-d,",
        VALUES,
        *ACTIVATION,
    ),
    Fault("SiLU without z", "gate.cuh", "silu ? z * numerator", "silu ? numerator", ROWS, *CONFIGURATIONS),
    Fault(
        "the exponential of a large gate",
        *("gate.cuh", "a > 104.0f ? -104.0f : -a", "-a", VALUES, *ACTIVATION),
    ),
    Fault(
        "a wide gate of the first row",
        *("gated_rows.cuh", "load_chunk(gate.data, 2 * (start + index))", "load_chunk(gate.data, 2 * index)", ROWS),
        *(own.test_every_row_configuration_with_a_gate, (F16, F16, True)),
    ),
    Fault(
        "statistics without the gate",
        *(
            "gated_rows.cuh",
            "for (int i = 0; i < kChunk<T>; ++i) x[i] *= g[i];",
            "for (int i = 0; i < 0; ++i) {}",
            ROWS,
        ),
        *CONFIGURATIONS,
    ),
    Fault(
        "the gate behind the scale where it belongs in front",
        *("gated_rows.cuh", "gate.place == RMS_NORM_GATED_NORMALISED", "gate.place == RMS_NORM_GATED_LAST", ROWS),
        *CONFIGURATIONS,
    ),
    Fault(
        "no second way for rows that are not ordinary",
        *("gated_rows.cuh", "if (!is_ordinary(mean, a.statistic)) {", "if (false) {", ROWS),
        *(own.test_gated_rows_that_are_not_ordinary, (F32, 512, 0)),
    ),
    Fault(
        "sums of the row before",
        *("gated_rows.cuh", "    turn ^= 1;\n", "", ROWS, own.test_more_gated_rows_than_a_grid_has, (4096, 70)),
    ),
    Fault(
        "32-bit offset of a row",
        *("gated_rows.cuh", "start = row * a.chunks;", "start = static_cast<std::int32_t>(row * a.chunks);", ROWS),
        *(own.test_gated_offsets_beyond_32_bits, ((2**31 + 2**10, 8), 256), "out of bounds"),
    ),
    Fault(
        "a value that is not rounded before the gate",
        *("gated_values.cuh", "float v = round(normalised", "float v = (normalised", VALUES),
        *(shared.test_values_are_rounded_where_the_contract_says, (F16, 1)),
    ),
    Fault(
        "no rounding behind the gate",
        *("gated_values.cuh", "v = round(v * gate_at<T, float>", "v = (v * gate_at<T, float>", VALUES),
        *(shared.test_values_are_rounded_where_the_contract_says, (BF16, 1)),
    ),
    Fault(
        "no rounding between scale and gate",
        *("gated_values.cuh", "v = round(v * weight_of", "v = (v * weight_of", VALUES),
        *(shared.test_values_are_rounded_where_the_contract_says, (F16, 2)),
    ),
    Fault(
        "no rounding before a gate in chunks",
        *("gated_rows.cuh", "    if (twice) round_all<T>(v);\n    if (gate.place", "    if (gate.place", ROWS),
        *(shared.test_values_are_rounded_where_the_contract_says, (F16, 1)),
    ),
    Fault(
        "a gate that begins anywhere read in chunks",
        *("plan.cu", "aligned(launch.gate.data)", "aligned(nullptr)", PLAN),
        *(own.test_one_tensor_of_a_gated_norm_off_by_an_element, (F32,), "misaligned"),
    ),
    Fault(
        "columns of a gated norm in chunks",
        *(
            "plan.cu",
            "!one_by_one && ",
            "(one_by_one || true) && ",
            PLAN,
            own.test_gated_columns_and_float64_are_done_one_by_one,
            (F32,),
        ),
    ),
]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name.replace(" ", "_"))
def test_a_planted_fault_is_caught(objects, fault, tmp_path):
    caught(objects, fault, tmp_path)
