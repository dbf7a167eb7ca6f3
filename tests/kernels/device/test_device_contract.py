"""The contract's cases and those of the emulator, on a GPU; skipped where there is none."""

from tests.support import contract_cases
from tests.support.contract import cases
from tests.support.cuda import cases as more

globals().update(cases(contract_cases))

for _name in (
    "every_row_configuration",
    "every_attribute_in_chunks_of_rows",
    "a_block_goes_on_to_further_rows",
    "scale_that_differs_from_row_to_row",
    "channel_first_in_chunks",
    "what_does_not_fit_chunks_is_done_one_by_one",
    "odd_rows_do_not_disturb_their_neighbours",
    "odd_columns_do_not_disturb_their_neighbours",
    "large_float16_values_are_not_lost",
    "the_order_of_threads_does_not_matter",
):
    globals()[f"test_{_name}"] = getattr(more, f"test_{_name}")
