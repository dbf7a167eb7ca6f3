"""Version 2 of the contract on the emulated CUDA kernels."""

from tests.support import output_cases
from tests.support.contract import cases
from tests.support.cuda import output_cases as cuda_cases

globals().update(cases(output_cases))
globals().update(cases(cuda_cases))
