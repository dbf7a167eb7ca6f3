"""The library of the wheel for Linux on 64-bit ARM, run by an emulator: all cases of the contract."""

import platform
import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest

from tests.support import contract_cases
from tests.support.contract import cases
from tests.support.driver import Driver, build

ROOT = Path(__file__).resolve().parents[2]
COMPILER, EMULATOR = "aarch64-linux-gnu-g++", "qemu-aarch64"

if platform.machine() in ("aarch64", "arm64"):
    pytest.skip("the other tests run the kernels on this machine itself", allow_module_level=True)
if missing := [name for name in (COMPILER, EMULATOR) if not shutil.which(name)]:
    pytest.skip(
        f"needs {', '.join(missing)}; on Debian: apt-get install g++-aarch64-linux-gnu qemu-user",
        allow_module_level=True,
    )
WHEELS = sorted((ROOT / "dist").glob("*-manylinux2014_aarch64.whl"))
if not WHEELS:
    pytest.skip("dist/ has no wheel for manylinux2014_aarch64: make wheels", allow_module_level=True)


@pytest.fixture(scope="session")
def library(tmp_path_factory):
    folder = tmp_path_factory.mktemp("arm64")
    with zipfile.ZipFile(WHEELS[-1]) as file:
        path = file.extract("rmsnorm_deploy/lib/librmsnorm_deploy.so", folder)
    found = subprocess.run(
        [COMPILER, "-print-file-name=ld-linux-aarch64.so.1"], capture_output=True, text=True, check=True
    )
    system = Path(found.stdout.strip()).resolve().parents[1]  # libraries of that architecture are in its lib/
    with Driver([EMULATOR, "-L", system, build([COMPILER], folder), path]) as driver:
        assert driver.rmsnorm_deploy_cpu_isa() == b"neon"
        yield driver


@pytest.fixture
def kernels(library):
    assert library.rmsnorm_deploy_cpu_set_isa(b"neon") == 0
    return library


globals().update(cases(contract_cases))
