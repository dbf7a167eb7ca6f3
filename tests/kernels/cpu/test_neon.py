"""The kernels on 64-bit ARM, run by an emulator where this machine is another: all cases of the contract."""

import ctypes
import platform
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support import contract_cases, gated_cases
from tests.support.contract import BAD_ISA, cases
from tests.support.driver import Driver, build, run
from tests.support.native import unoptimised

ROOT = Path(__file__).resolve().parents[3]
COMPILER = "aarch64-linux-gnu-g++"
EMULATOR = "qemu-aarch64"

if platform.machine() in ("aarch64", "arm64"):
    pytest.skip("test_contract.py runs these kernels on this machine itself", allow_module_level=True)
if missing := [name for name in ("cmake", COMPILER, EMULATOR) if not shutil.which(name)]:
    pytest.skip(
        f"needs {', '.join(missing)}; on Debian: apt-get install cmake g++-aarch64-linux-gnu qemu-user",
        allow_module_level=True,
    )


@pytest.fixture(scope="session")
def command(tmp_path_factory):
    """Starts a driver over the library as CMake builds it for 64-bit ARM."""
    folder = tmp_path_factory.mktemp("arm64")
    options = {
        "CMAKE_SYSTEM_NAME": "Linux",
        "CMAKE_SYSTEM_PROCESSOR": "aarch64",
        "CMAKE_CXX_COMPILER": COMPILER,
        # What is there for other architectures too is optimised where other tests run it.
        "CMAKE_CXX_COMPILER_LAUNCHER": unoptimised(but="/isa/neon.cpp"),
        "RMSNORM_DEPLOY_WERROR": "ON",
    }
    run("cmake", "-S", ROOT / "ops", "-B", folder, *(f"-D{name}={value}" for name, value in options.items()))
    run("cmake", "--build", folder, "--parallel", "2", "--target", "rmsnorm_deploy")
    found = subprocess.run(
        [COMPILER, "-print-file-name=ld-linux-aarch64.so.1"], capture_output=True, text=True, check=True
    )
    system = Path(found.stdout.strip()).resolve().parents[1]  # libraries of that architecture are in its lib/
    return [EMULATOR, "-L", system, build([COMPILER], folder), folder / "librmsnorm_deploy.so"]


@pytest.fixture(scope="session")
def library(command):
    with Driver(command) as driver:
        yield driver


@pytest.fixture(params=["neon", "portable"])
def kernels(library, request):
    assert library.rmsnorm_deploy_cpu_set_isa(request.param.encode()) == 0
    return library


globals().update(cases(contract_cases))
globals().update(cases(gated_cases))


def test_neon_is_found_and_chosen(library):
    usable = ctypes.c_int()
    for number, name in enumerate((b"neon", b"portable")):
        assert library.rmsnorm_deploy_cpu_isa_at(number, ctypes.byref(usable)) == name
        assert usable.value == 1
    assert library.rmsnorm_deploy_cpu_isa_at(2, ctypes.byref(usable)) is None
    assert library.rmsnorm_deploy_cpu_set_isa(None) == 0
    assert library.rmsnorm_deploy_cpu_isa() == b"neon"
    assert library.rmsnorm_deploy_cpu_set_isa(b"avx2") == BAD_ISA


@pytest.mark.parametrize(("name", "found"), [("portable", b"portable"), ("neon", b"neon"), ("avx2", None)])
def test_the_environment_chooses(command, name, found):
    with Driver(command, isa=name) as driver:
        assert driver.rmsnorm_deploy_cpu_isa() == found
