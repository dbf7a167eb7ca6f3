"""Models compiled for CPUs of another architecture: what the folder is, and its kernels under an emulator."""

import json
import platform
import shutil
import struct
import subprocess
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

pytest.importorskip("tvm.relax", reason="apache-tvm is not installed: pip install '.[tvm]'")

import tvm_ffi.libinfo

from rmsnorm_deploy import tvm
from rmsnorm_deploy.cli.app import main
from rmsnorm_deploy.errors import MissingEnvironment, UsageError
from rmsnorm_deploy.op import NormParameters, Op
from rmsnorm_deploy.op.reference import rms_norm
from rmsnorm_deploy.tvm.artefact import linking
from rmsnorm_deploy.tvm.schedules.norm import Norm
from rmsnorm_deploy.tvm.schedules.registry import schedules_for
from rmsnorm_deploy.tvm.targets.resolve import cpu_of, resolve, this_cpu, triple_of
from rmsnorm_deploy.tvm.tuning import measure

TRIPLE = "aarch64-linux-gnu"
COMPILER, EMULATOR = f"{TRIPLE}-g++", "qemu-aarch64"
MACHINES = {183: "aarch64"}
"""By the number in an ELF file."""
SIZE, EPSILON = 128, 1e-3

if platform.machine() not in ("x86_64", "AMD64"):
    pytest.skip("these tests compile on x86-64 for 64-bit ARM", allow_module_level=True)
needs_compiler = pytest.mark.skipif(
    shutil.which(COMPILER) is None, reason=f"needs {COMPILER}; on Debian: apt-get install g++-aarch64-linux-gnu"
)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A norm in float32, and one in float16."""
    info, node = helper.make_tensor_value_info, helper.make_node
    types = {"s": TensorProto.FLOAT, "h": TensorProto.FLOAT16}
    graph = helper.make_graph(
        [node("RMSNormalization", [f"x{t}", f"w{t}"], [f"y{t}"], epsilon=EPSILON) for t in types],
        "g",
        [info(f"x{t}", dtype, ("rows", SIZE)) for t, dtype in types.items()]
        + [info(f"w{t}", dtype, (SIZE,)) for t, dtype in types.items()],
        [info(f"y{t}", dtype, ("rows", SIZE)) for t, dtype in types.items()],
    )
    path = tmp_path_factory.mktemp("model") / "m.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=11), path)
    return path


@pytest.fixture(scope="module")
def folder(model, tmp_path_factory):
    path = tmp_path_factory.mktemp("arm") / "c"
    command = ["compile", str(model), "-o", str(path), "--mtriple", TRIPLE, "--mcpu", "cortex-a72"]
    assert main(command) == 0
    return path


@needs_compiler
def test_the_library_is_one_of_that_machine_and_the_folder_says_so(folder):
    library = (folder / "model.so").read_bytes()
    assert library[:6] == b"\x7fELF\x02\x01"
    assert MACHINES[struct.unpack_from("<H", library, 18)[0]] == "aarch64"
    said = json.loads((folder / "model.json").read_text())
    assert (said["target"], said["mtriple"], said["mcpu"]) == ("llvm", TRIPLE, "cortex-a72")
    with pytest.raises(MissingEnvironment, match="was compiled for aarch64, and this machine is x86_64") as raised:
        tvm.load(folder)
    assert "without --mtriple" in raised.value.hint


@pytest.fixture(scope="module")
def called(tmp_path_factory):
    """Starts the program that calls a kernel."""
    if shutil.which(EMULATOR) is None:
        pytest.skip(f"needs {EMULATOR}; on Debian: apt-get install qemu-user")
    program = tmp_path_factory.mktemp("caller") / "call"
    include = [f"-I{tvm_ffi.libinfo.find_include_path()}", f"-I{tvm_ffi.libinfo.find_dlpack_include_path()}"]
    source = Path(__file__).parent / "call_norm.cpp"
    command = [COMPILER, "-std=c++17", "-O1", "-Wall", "-Wextra", "-rdynamic", *include, source, "-o", program, "-ldl"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = subprocess.run(
        [COMPILER, "-print-file-name=ld-linux-aarch64.so.1"], capture_output=True, text=True, check=True
    )
    return [EMULATOR, "-L", Path(found.stdout.strip()).resolve().parents[1], program]


@needs_compiler
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("rows", [5, 1200, 40_000])  # one task; several; stored past the caches
def test_its_kernels_are_right_under_an_emulator(folder, called, dtype, rows):
    rng = np.random.default_rng(rows)
    x = rng.standard_normal((rows, SIZE)).astype(dtype)
    x[1], x[2, 7] = 0, np.nan
    w = rng.standard_normal(SIZE).astype(dtype)
    name = f"__tvm_ffi_rms_norm_rows_{SIZE}_{np.dtype(dtype).name}"
    arguments = [folder / "model.so", name, x.itemsize * 8, rows, SIZE]
    done = subprocess.run(
        [*called, *map(str, arguments)], input=x.tobytes() + w.tobytes(), capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr.decode()
    got = np.frombuffer(done.stdout, dtype).reshape(x.shape).astype(float)
    truth, _ = rms_norm(x, w, epsilon=float(np.float32(EPSILON)), exact=True)
    assert np.isnan(got[2]).all()
    assert (got[1] == 0).all()
    error = np.abs(got - truth) / np.maximum(np.abs(truth).max(1, keepdims=True), 1e-30) / np.finfo(dtype).eps
    assert np.delete(error, 2, 0).max() < 1.5  # three roundings


def test_vectors_have_the_width_that_suits():
    """Eight values: a register of float16, two of float32. 64-bit ARM has 32 registers, so that nothing is spilled."""
    norm = Norm(NormParameters(Op.RMS_NORM, TensorProto.FLOAT16, epsilon=1e-6), "float16", 1024)
    assert schedules_for(resolve("llvm", mtriple=TRIPLE)).default(norm).lanes == 8


def test_the_cpu_is_one_of_that_architecture(model, tmp_path):
    assert cpu_of(resolve("llvm", mtriple=TRIPLE)) == "generic"
    assert cpu_of(resolve("llvm", mtriple="x86_64-linux-gnu")) == this_cpu()
    gpu = resolve("cuda", None, "sm_87", TRIPLE)
    assert (cpu_of(gpu), triple_of(gpu)) == ("generic", TRIPLE)
    for mcpu, hint in (("znver3", "'generic' is one"), ("cortex-a77x", "Perhaps cortex-a77")):
        with pytest.raises(UsageError, match=f"knows no CPU '{mcpu}' for {TRIPLE}") as raised:
            tvm.compile(model, mcpu=mcpu, mtriple=TRIPLE, output=tmp_path / "c")
        assert hint in raised.value.hint
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("triple", ["toaster-linux-gnu", "aarch64", "riscv64-linux-gnu", "aarch64-apple-darwin", ""])
def test_triples_that_are_unknown_are_refused(model, tmp_path, capfd, triple):
    assert main(["compile", str(model), "-o", str(tmp_path / "c"), "--mtriple", triple]) == 2
    said = capfd.readouterr().err.splitlines()
    assert said[0] == f"error: '{triple}' is not a triple that models can be compiled for"
    assert TRIPLE in said[1]


def test_the_compiler_that_links(model, tmp_path, monkeypatch, capfd):
    compilers = tmp_path / "compilers"
    compilers.mkdir()
    monkeypatch.setenv("PATH", str(compilers))
    monkeypatch.delenv("CXX", raising=False)
    command = ["compile", str(model), "-o", str(tmp_path / "c"), "--mtriple", "aarch64-unknown-linux-gnu"]
    assert main(command) == 4
    said = capfd.readouterr().err.splitlines()
    assert said[0] == "error: there is no C++ compiler to link a library for aarch64-unknown-linux-gnu with"
    assert f"Install {COMPILER}" in said[1]
    for name in (COMPILER, "other"):
        (compilers / name).write_text("#!/bin/sh\nexit 1\n")
        (compilers / name).chmod(0o755)
    assert linking.compiler("aarch64-unknown-linux-gnu") == [str(compilers / COMPILER)]
    monkeypatch.setenv("CXX", "other")
    assert linking.compiler(TRIPLE) == [str(compilers / "other")]
    assert main(command) == 4
    assert "other cannot link a library for aarch64-unknown-linux-gnu" in capfd.readouterr().err
    assert sorted(p.name for p in tmp_path.iterdir()) == ["compilers"]


@needs_compiler
def test_tuning_on_a_fleet_of_that_architecture_links_for_it():
    norm = Norm(NormParameters(Op.RMS_NORM, TensorProto.FLOAT, epsilon=1e-6), "float32", 24)
    target = resolve("llvm", "cortex-a72", mtriple=TRIPLE)
    schedules = schedules_for(target)
    path = measure._library(norm, schedules, str(target), schedules.default(norm))
    assert MACHINES[struct.unpack_from("<H", path.read_bytes(), 18)[0]] == "aarch64"
