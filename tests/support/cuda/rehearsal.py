"""A machine with a GPU, made of stand-ins: emulated kernels, a driver, compute-sanitizer, ncu, TVM's machine code."""

import dataclasses
import os
import sys
from pathlib import Path

from benchmarks.gpu.cases import EPSILON
from benchmarks.gpu.tvm_norm import DESCRIPTION, KERNELS, Kernel, describe
from tests.support.cuda import emulator as em

FAKE_CUBLAS = Path(__file__).parent.parent / "tvm" / "fake_cublas.cpp"
SANITIZER = """#!/bin/sh
# stands in for compute-sanitizer: runs what it is given
test "$1 $3 $4" = "--tool --error-exitcode 97" || exit 3
shift 4
"$@" && echo "========= ERROR SUMMARY: 0 errors"
"""
NCU = """#!{python}
# stands in for ncu: runs the program and says the same of each of its launches
import subprocess, sys
metrics = sys.argv[sys.argv.index("--metrics") + 1]
program = sys.argv[sys.argv.index("--metrics") + 2:]
print("==PROF== Connected to process 1", flush=True)
subprocess.run(program, check=True)
print('"ID","Kernel Name","Metric Name","Metric Unit","Metric Value"')
for launch in range(10):
    for number, metric in enumerate(metrics.split(",")):
        value = "n/a" if metric.startswith("dram__bytes") else f"1,{{launch:03}}.5" if number == 0 else str(number)
        print(f'"{{launch}}","rows","{{metric}}","","{{value}}"')
"""
# TVM's machine code of one size, for the stand-in of the driver: x, scale and y are float32, as is the arithmetic.
TVM_SIZE, TVM_ROWS = 64, 4
TVM_CODE = f"""
#include <cmath>
#include <cstdint>
extern "C" void tvm_norm_kernel(unsigned blocks, void** p) {{
  const float* scale = *static_cast<const float**>(p[0]);
  const float* x = *static_cast<const float**>(p[1]);
  float* y = *static_cast<float**>(p[2]);
  const std::int64_t rows = *static_cast<const std::int64_t*>(p[3]);
  for (std::int64_t i = 0; i < std::int64_t(blocks) * {TVM_ROWS} && i < rows; ++i) {{
    float sum = 0;
    for (int j = 0; j < {TVM_SIZE}; ++j) sum += x[i * {TVM_SIZE} + j] * x[i * {TVM_SIZE} + j];
    const float factor = 1 / std::sqrt(sum / {TVM_SIZE} + {EPSILON}f);
    for (int j = 0; j < {TVM_SIZE}; ++j) y[i * {TVM_SIZE} + j] = x[i * {TVM_SIZE} + j] * factor * scale[j];
  }}
}}
"""


def fake_torch(folder):
    """A folder of packages that look like PyTorch, and like a Triton that does not load."""
    folder.mkdir(exist_ok=True)
    (folder / "torch.py").write_text((em.ROOT / "tests" / "support" / "fake_torch" / "torch.py").read_text())
    (folder / "triton.py").write_text("")
    for name in ("torch", "triton"):
        (folder / f"{name}-9.9.dist-info").mkdir(exist_ok=True)
        (folder / f"{name}-9.9.dist-info" / "METADATA").write_text(f"Name: {name}\nVersion: 9.9\n")
    return folder


@dataclasses.dataclass(frozen=True)
class Stage:
    """The stand-ins: variables of the environment, a library of kernels, a folder of TVM's kernels, cuBLAS."""

    environment: dict[str, str]
    library: Path
    tvm: Path
    cublas: Path

    @classmethod
    def at(cls, folder):
        """As it was made in ``folder``."""
        first = {"PATH": folder / "bin", "PYTHONPATH": folder / "packages"}
        paths = {name: os.pathsep.join(filter(None, (str(f), os.environ.get(name)))) for name, f in first.items()}
        environment = {"RMSNORM_DEPLOY_CUDA_DRIVER": str(folder / "driver.so"), **paths}
        return cls(environment, folder / "library.so", folder / "tvm", folder / "cublas.so")

    @classmethod
    def of(cls, objects, folder):
        """Make it in ``folder``, from the object files of the emulated kernels."""
        folder.mkdir(parents=True, exist_ok=True)
        made = cls.at(folder)
        tools = folder / "bin"
        em._run(*em.compiler(), *em.FLAGS, "-shared", em.SHIM / "driver.cpp", "-o", folder / "driver.so", "-ldl")
        em._run(*em.compiler(), "-std=c++17", "-O2", "-fPIC", "-shared", FAKE_CUBLAS, "-o", made.cublas)
        em.Emulator(objects, made.library)
        made.tvm.mkdir(exist_ok=True)
        (folder / "tvm.cpp").write_text(TVM_CODE)
        em._run(*em.compiler(), "-O1", "-fPIC", "-shared", folder / "tvm.cpp", "-o", made.tvm / KERNELS)
        given = ("scale", "x", "y", "rows")
        kernel = Kernel("tvm_norm_kernel", "RMSNorm", "float32", TVM_SIZE, 32, TVM_ROWS, given, EPSILON)
        (made.tvm / DESCRIPTION).write_text(describe([kernel]))
        tools.mkdir(exist_ok=True)
        for name, text in (("compute-sanitizer", SANITIZER), ("ncu", NCU.format(python=sys.executable))):
            (tools / name).write_text(text)
            (tools / name).chmod(0o755)
        fake_torch(folder / "packages")
        return made

    @classmethod
    def in_folder(cls, folder):
        """With kernels built there."""
        ops = em.ROOT / "ops"
        return cls.of(
            [*em.compile_units(ops, em.UNITS, folder / "units"), *em.compile_host(ops, folder / "host")], folder
        )
