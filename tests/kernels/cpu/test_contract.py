"""The CPU kernels through their C contract: every case of it, what is refused, and how an instruction set is chosen."""

import ctypes
import os
import subprocess
import sys

import numpy as np
import pytest

from rmsnorm_deploy.run.library import library_path
from tests.support import contract_cases
from tests.support.contract import BAD_ISA, BAD_POINTER, BAD_SHAPE, BAD_STREAMING, BAD_STRIDE, WRONG, Call, cases

globals().update(cases(contract_cases))


@pytest.mark.parametrize(("change", "code"), WRONG)
def test_wrong_parameters_are_refused(library, change, code):
    y = np.full((2, 4), 5, np.float32)
    params = Call(np.ones((2, 4), np.float32), np.float32([1])).params(y)
    for name, value in change.items():
        setattr(params, name, value)
    assert library.rmsnorm_deploy_cpu_run(ctypes.byref(params)) == code
    assert len(library.rmsnorm_deploy_error_text(code)) > 20
    assert (y == 5).all()


def test_a_negative_dimension_or_stride_is_refused(library):
    y = np.empty((2, 4), np.float32)
    call = Call(np.ones((2, 4), np.float32), np.float32([1]))
    params = call.params(y)
    params.shape[0] = -2
    assert library.rmsnorm_deploy_cpu_run(ctypes.byref(params)) == BAD_SHAPE
    params = call.params(y)
    params.shape[0] = 2**62
    assert library.rmsnorm_deploy_cpu_run(ctypes.byref(params)) == BAD_SHAPE
    params = call.params(y)
    params.scale_strides[1] = -1
    assert library.rmsnorm_deploy_cpu_run(ctypes.byref(params)) == BAD_STRIDE
    assert library.rmsnorm_deploy_cpu_run(None) == BAD_POINTER


def test_the_best_instruction_set_is_chosen(library):
    usable = ctypes.c_int()
    names = []
    while (name := library.rmsnorm_deploy_cpu_isa_at(len(names), ctypes.byref(usable))) is not None:
        names.append((name.decode(), bool(usable.value)))
    assert names[-1] == ("portable", True)
    assert library.rmsnorm_deploy_cpu_set_isa(b"abacus") == BAD_ISA
    if not os.environ.get("RMSNORM_DEPLOY_ISA"):
        assert library.rmsnorm_deploy_cpu_set_isa(None) == 0
        assert library.rmsnorm_deploy_cpu_isa().decode() == next(name for name, can in names if can)


@pytest.mark.parametrize(("isa", "printed"), [("portable", "b'portable' 4"), ("abacus", "None 8"), ("", "b'")])
def test_the_environment_chooses_the_instruction_set(isa, printed):
    code = (
        "import ctypes, sys\n"
        "lib = ctypes.CDLL(sys.argv[1]); lib.rmsnorm_deploy_cpu_isa.restype = ctypes.c_char_p\n"
        "params = (ctypes.c_uint32 * 200)(1)\n"
        "code = lib.rmsnorm_deploy_cpu_run(params)\n"
        "print(lib.rmsnorm_deploy_cpu_isa(), code if code == 8 else 4)\n"
    )
    environment = os.environ | {"RMSNORM_DEPLOY_ISA": isa}
    done = subprocess.run(
        [sys.executable, "-c", code, str(library_path())], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith(printed)


@pytest.mark.parametrize(("threshold", "code"), [("lots", BAD_STREAMING), ("-1", BAD_STREAMING), ("0", 0), ("64", 0)])
def test_a_malformed_threshold_of_streaming_is_refused(threshold, code):
    program = (
        "import ctypes, sys, numpy as np\n"
        "from tests.support.contract import Call, load\n"
        "lib = load(sys.argv[1]); y = np.full((4, 64), 5, np.float32)\n"
        "code = lib.rmsnorm_deploy_cpu_run(Call(np.ones((4, 64), np.float32), np.float32([1])).params(y))\n"
        "print(code, (y == 5).all(), lib.rmsnorm_deploy_error_text(code).decode())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(library_path())],
        env=os.environ | {"RMSNORM_DEPLOY_STREAMING": threshold},
        capture_output=True,
        text=True,
        check=True,
    )
    refused = "True RMSNORM_DEPLOY_STREAMING holds no number of bytes"
    assert done.stdout.strip() == f"{code} {refused if code else 'False no error'}"
