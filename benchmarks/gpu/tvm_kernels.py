"""Makes what `benchmarks.gpu.tvm_norm` launches: TVM's CUDA kernels as machine code, where TVM and nvcc are.

    python -m benchmarks.gpu.tvm_kernels                  # into build/tvm-kernels, which gpu-check looks for
    python -m benchmarks.gpu.tvm_kernels --output FOLDER --arch sm_90,sm_100 --sizes 128,4096

The folder is about 0.5 MB and can be carried to a machine without TVM.
"""

from __future__ import annotations

import argparse
import itertools
import json
import re
import sys
from pathlib import Path

import tvm

from benchmarks.gpu.cases import DTYPES, EPSILON, OPS, SIZES
from benchmarks.gpu.contract import TYPES
from benchmarks.gpu.tvm_norm import DESCRIPTION, KERNELS, Kernel, describe
from rmsnorm_deploy.op import NormParameters, Op
from rmsnorm_deploy.tvm.artefact import cubin
from rmsnorm_deploy.tvm.schedules.gpu.choose import GpuSchedules
from rmsnorm_deploy.tvm.schedules.gpu.vectors import VIEW
from rmsnorm_deploy.tvm.schedules.norm import Norm
from rmsnorm_deploy.tvm.targets.registry import GPUS
from rmsnorm_deploy.tvm.targets.resolve import resolve

ROOT = Path(__file__).resolve().parents[2]
NAMES = {"X": "x", "R": "residual", "W": "scale", "Y": "y", "S": "sum", "n": "rows"}


def parameters(text: str, symbol: str) -> tuple[str, ...]:
    """What the parameters of a kernel are, in the order of its CUDA text."""
    found = re.search(rf"\b{symbol}\(([^)]*)\)\s*{{", text)
    assert found, symbol
    names = [part.rsplit(" ", 1)[1].removesuffix("_ptr").removesuffix(VIEW) for part in found[1].split(", ")]
    return tuple(NAMES[name] for name in names)


def made(dtypes: list[str], sizes: list[int], arch: str) -> tuple[str, list[Kernel]]:
    """The CUDA text of all kernels, and what they are."""
    schedules = GpuSchedules(GPUS["cuda"])
    functions, chosen = {}, {}
    for dtype, size, op in itertools.product(dtypes, sizes, OPS):
        norm = Norm(NormParameters(Op(op), TYPES[dtype], epsilon=EPSILON), dtype, size)
        schedule = schedules.default(norm)
        symbol = f"{op.lower()}_{dtype}_{size}"
        functions[symbol] = schedules.kernel(norm, schedule).with_attr("global_symbol", symbol)
        chosen[symbol] = op, dtype, size, schedule
    with cubin.taken_out() as sources:
        tvm.compile(tvm.IRModule(functions), target=resolve("cuda", None, arch, None))
    (source,) = sources
    kernels = []
    for symbol, (op, dtype, size, schedule) in chosen.items():
        name = f"{symbol}_kernel"
        threads = schedule.threads * schedule.rows
        given = parameters(source.text, name)
        kernels.append(Kernel(name, op, dtype, size, threads, schedule.rows, given, EPSILON))
    return source.text, kernels


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=ROOT / "build" / "tvm-kernels")
    parser.add_argument("--arch", default="sm_90", help="GPUs, as in sm_90,sm_100")
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)))
    parser.add_argument("--dtype", default=",".join(DTYPES[:2]))
    given = parser.parse_args(arguments)
    text, kernels = made(given.dtype.split(","), [int(n) for n in given.sizes.split(",")], given.arch.split(",")[0])
    given.output.mkdir(parents=True, exist_ok=True)
    (given.output / KERNELS).write_bytes(cubin.compiled(text, given.arch.split(",")))
    (given.output / DESCRIPTION).write_text(describe(kernels) + "\n")
    print(json.dumps({"kernels": len(kernels), "bytes": (given.output / KERNELS).stat().st_size}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
