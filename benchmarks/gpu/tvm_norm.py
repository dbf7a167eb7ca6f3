"""The kernels that TVM made elsewhere, launched through the driver: TVM is not needed where they run."""

from __future__ import annotations

import ctypes
import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

from benchmarks.gpu.cases import Case
from benchmarks.gpu.driver import Gpu
from benchmarks.gpu.peers import Buffers

KERNELS, DESCRIPTION = "kernels.fatbin", "norms.json"
SCHEMA_VERSION = 1


@dataclasses.dataclass(frozen=True)
class Kernel:
    """One kernel, for one size and any number of rows.

    Attributes:
        symbol: its name in the machine code.
        op, dtype, size: the norm, as in a :class:`Case` whose variant is plain.
        threads: of a block.
        rows: of a block.
        arguments: what each parameter is: x, residual, scale, y, sum (pointers) or rows (a 64-bit number).
        epsilon: which is part of the code.
    """

    symbol: str
    op: str
    dtype: str
    size: int
    threads: int
    rows: int
    arguments: tuple[str, ...]
    epsilon: float


def describe(kernels: list[Kernel]) -> str:
    return json.dumps({"schema_version": SCHEMA_VERSION, "kernels": [dataclasses.asdict(k) for k in kernels]}, indent=1)


class TvmKernels:
    """A folder of `python -m benchmarks.gpu.tvm_kernels`, loaded."""

    name = "TVM, ours"

    def __init__(self, gpu: Gpu, folder: Path) -> None:
        self.gpu = gpu
        known = json.loads((folder / DESCRIPTION).read_text())
        if known["schema_version"] != SCHEMA_VERSION:
            raise ValueError(f"{folder} is of another version; make it again")
        self.module = gpu.load_module((folder / KERNELS).read_bytes())
        kernels = [Kernel(**k | {"arguments": tuple(k["arguments"])}) for k in known["kernels"]]
        self.kernels = {(k.op, k.dtype, k.size): k for k in kernels}

    def takes(self, case: Case) -> bool:
        return case.variant == "plain" and (case.op, case.dtype, case.size) in self.kernels

    def prepare(self, case: Case, buffers: list[Buffers], stream: int) -> Callable[[int], None]:
        kernel = self.kernels[case.op, case.dtype, case.size]
        function = self.gpu.function(self.module, kernel.symbol)
        blocks = -(-case.rows // kernel.rows)
        calls = []
        for b in buffers:
            given = {
                **{name: ctypes.c_uint64(pointer or 0) for name, pointer in dataclasses.asdict(b).items()},
                "rows": ctypes.c_int64(case.rows),
            }
            calls.append([given[name] for name in kernel.arguments])

        def run(index: int) -> None:
            self.gpu.launch(function, blocks, kernel.threads, calls[index], stream)

        return run
