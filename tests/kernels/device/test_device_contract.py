"""The contract's cases and those of the emulator, on a GPU; skipped where there is none."""

from tests.support import contract_cases, output_cases
from tests.support.contract import cases
from tests.support.cuda import cases as more
from tests.support.cuda import output_cases as more_outputs

globals().update(cases(contract_cases))
globals().update(cases(output_cases))

for _name in (
    "every_row_configuration",
    "every_attribute_in_chunks_of_rows",
    "the_next_long_row_is_copied_while_one_is_worked_on",
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

for _name in (
    "outputs_of_every_row_configuration",
    "every_attribute_beside_outputs",
    "outputs_of_rows_that_are_not_ordinary",
    "outputs_of_more_rows_than_a_grid_has",
    "one_tensor_of_outputs_off_by_an_element",
):
    globals()[f"test_{_name}"] = getattr(more_outputs, f"test_{_name}")
