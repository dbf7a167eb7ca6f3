"""The library of the wheel for Windows on x86-64, run by Wine: the contract, and a fused model in onnxruntime's DLL.

Beside the wheel this needs zig, which compiles what calls the library, and Wine; the model needs onnxruntime for
Windows in `.venvs/windows`. Each test that is left out says how to get what it needs.
"""

import ctypes
import shutil
import subprocess
import zipfile
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from rmsnorm_deploy import op
from rmsnorm_deploy.run.library import instruction_sets, library_path
from rmsnorm_deploy.run.session import session
from tests.support import contract_cases
from tests.support.contract import cases
from tests.support.driver import Driver, build, run

ROOT = Path(__file__).resolve().parents[2]
WINE = next((p for p in ("wine64", "/usr/lib/wine/wine64", "wine") if shutil.which(p)), None)
ZIG = next(iter((ROOT / ".venvs" / "wheels").glob("lib/*/site-packages/ziglang/zig")), None)
RUNTIME = ROOT / ".venvs" / "windows" / "onnxruntime" / "capi" / "onnxruntime.dll"
WHEELS = sorted((ROOT / "dist").glob("*-win_amd64.whl"))
SETS = ("avx512", "avx2", "portable")

if not WINE:
    pytest.skip("needs Wine; on Debian: apt-get install wine64", allow_module_level=True)
if not ZIG or not WHEELS:
    pytest.skip("dist/ has no wheel for win_amd64, or .venvs/wheels no zig: make wheels", allow_module_level=True)
COMPILER = [ZIG, "c++", "-target", "x86_64-windows-gnu"]


@pytest.fixture(scope="module", autouse=True)
def wine():
    """A prefix of its own, which takes some seconds to make and stays."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WINEPREFIX", str(ROOT / "build" / "wine"))
        patch.setenv("WINEDEBUG", "-all")
        patch.delenv("DISPLAY", raising=False)
        (ROOT / "build").mkdir(exist_ok=True)
        # prints the version after the prefix has been made
        subprocess.run([WINE, "cmd", "/c", "ver"], capture_output=True, check=False, timeout=300)
        yield


@pytest.fixture(scope="module")
def dll(tmp_path_factory):
    with zipfile.ZipFile(WHEELS[-1]) as file:
        return Path(file.extract("rmsnorm_deploy/lib/rmsnorm_deploy.dll", tmp_path_factory.mktemp("windows")))


@pytest.fixture(scope="module")
def library(wine, dll, tmp_path_factory):
    program = build(COMPILER, tmp_path_factory.mktemp("driver"), name="driver.exe", libraries=())
    with Driver([WINE, program, windows_path(dll)]) as driver:
        yield driver


@pytest.fixture(params=SETS)
def kernels(library, request):
    if library.rmsnorm_deploy_cpu_set_isa(request.param.encode()):
        pytest.skip(f"this processor does not have {request.param}")
    return library


def windows_path(path):
    """As Wine shows the files of this machine."""
    return "Z:" + str(path).replace("/", "\\")


globals().update(cases(contract_cases))


def test_it_finds_the_instruction_sets_of_this_processor(library):
    found, usable = [], ctypes.c_int()
    for index, name in enumerate(SETS):
        assert library.rmsnorm_deploy_cpu_isa_at(index, ctypes.byref(usable)) == name.encode()
        found += [name] if usable.value else []
    assert found == list(instruction_sets(library_path()))


ROWS, COLUMNS = 6, 40


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    made = tmp_path_factory.mktemp("sample") / "run_model.exe"
    source = ROOT / "samples" / "cpp" / "run_model.cpp"
    options = ["-std=c++17", "-O2", "-Wall", "-Wextra", "-Werror", f"-I{ROOT / 'ops'}"]
    run(*COMPILER, *options, source, "-o", made)
    return made


def fused_model():
    """Without a body, so that only the library can run it."""
    parameters = op.NormParameters(op.Op.ADD_RMS_NORM, TensorProto.FLOAT, epsilon=1e-5)
    norm = helper.make_node(
        "AddRMSNorm", ["X", "X", "scale"], ["Y", "sum"], domain=op.DOMAIN, **parameters.to_attributes()
    )
    scale = np.linspace(0.5, 2.0, COLUMNS, dtype=np.float32)
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", COLUMNS]) for name in "XY")
    graph = helper.make_graph([norm], "g", [x], [y], [helper.make_tensor("scale", TensorProto.FLOAT, [COLUMNS], scale)])
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid(op.DOMAIN, op.VERSION)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def test_a_fused_model_in_onnxruntime_for_windows(program, dll, tmp_path):
    if not RUNTIME.exists():
        pytest.skip(
            "needs onnxruntime for Windows: pip install --target .venvs/windows --platform win_amd64 "
            "--only-binary :all: --no-deps onnxruntime"
        )
    model = fused_model()
    onnx.save(model, tmp_path / "fused.onnx")
    paths = [windows_path(p) for p in (RUNTIME, dll, tmp_path / "fused.onnx")]
    command = [WINE, program, *paths, str(ROWS), str(COLUMNS)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    got = np.array(done.stdout.split(), np.float32).reshape(ROWS, COLUMNS)
    pattern = np.arange(ROWS * COLUMNS) * 37 % 101
    x = ((pattern.astype(np.float32) - np.float32(50)) / np.float32(25)).reshape(ROWS, COLUMNS)
    (wanted,) = session(model).run(["Y"], {"X": x})
    assert np.abs(wanted).max() > 1
    np.testing.assert_array_max_ulp(got, wanted, maxulp=1)
