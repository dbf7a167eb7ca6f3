"""Norms with a gate on every instruction set."""

from tests.support import gated_cases
from tests.support.contract import cases

globals().update(cases(gated_cases))
