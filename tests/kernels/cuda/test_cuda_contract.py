"""The CPU kernels' own tests of the contract, run on the emulated CUDA kernels: every type, attribute and layout."""

from tests.support import contract_cases

for _name in (
    "types_and_layouts",
    "every_row_length",
    "every_column_count",
    "in_place",
    "unaligned_and_within_bounds",
    "small_and_large_values",
    "an_rms_without_a_reciprocal",
    "nan_infinity_and_zero",
    "infinity_behind_the_measured_features_stays_infinity",
    "a_nan_with_every_bit_set_is_rounded_to_a_nan",
    "squares_beyond_float32_become_infinite",
    "every_sixteen_bit_value",
    "rounding_to_sixteen_bits_is_to_nearest_even",
    "the_two_rounding_orders_differ",
    "float64_arithmetic_is_rounded_to_float16_once",
    "a_long_row_stays_exact",
    "long_columns_stay_exact",
    "zero_sizes",
    "the_same_bytes_every_time_and_beside_any_rows",
):
    globals()[f"test_{_name}"] = getattr(contract_cases, f"test_{_name}")
