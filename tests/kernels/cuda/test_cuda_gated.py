"""Norms with a gate on the emulated CUDA kernels."""

from tests.support import gated_cases
from tests.support.contract import cases
from tests.support.cuda import gated_cases as cuda_cases

globals().update(cases(gated_cases))
globals().update(cases(cuda_cases))
