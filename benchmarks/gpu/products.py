"""Products of matrices as compiled TVM models ask cuBLAS for them: against float64, the same bits twice, and timed.

The C++ that is linked into such models (``rmsnorm_deploy/tvm/artefact/cublas.cpp``) runs here without TVM and without a
model. It needs a C++ compiler and cuBLAS of CUDA 12 or 13: the system's, or pip's nvidia-cublas.
"""

from __future__ import annotations

import argparse
import ctypes
import dataclasses
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks.gpu.checks import tool
from benchmarks.gpu.contract import TYPES
from benchmarks.gpu.driver import Gpu
from benchmarks.gpu.package import PACKAGE
from benchmarks.gpu.steps import save
from benchmarks.gpu.values import decode, encode

MISSING = 4
CUDA = 2
SOURCE = PACKAGE / "tvm" / "artefact" / "cublas.cpp"
NAMES = (("libcublas.so.13", "nvidia/cu13/lib"), ("libcublas.so.12", "nvidia/cublas/lib"))
AROUND_IT = """
#include "{source}"
static void* stream;
static std::string error;
extern "C" void* TVMFFIEnvGetStream(int32_t, int32_t) {{ return stream; }}
extern "C" void TVMFFIErrorSetRaisedFromCStr(const char*, const char* message) {{ error = message; }}
extern "C" const char* last_error() {{ return error.c_str(); }}
extern "C" int product_on(void* chosen, const void* given, int32_t count) {{
  stream = chosen;
  return product(nullptr, static_cast<const Any*>(given), count, nullptr);
}}
"""
DLPACK = {"float32": (2, 32), "float16": (2, 16), "bfloat16": (4, 16)}
# Of the largest sum of products without their signs: float32 sums, and the result's last place
LIMITS = {"float32": 2e-6, "float16": 1e-3, "bfloat16": 8e-3}

REPEATED = 1_000_003
"""Values that are made; larger tensors have them again and again, at no distance that a matrix has."""


@dataclasses.dataclass(frozen=True)
class Case:
    """C = A B, where everything lies as a kernel says it.

    Attributes:
        name: what of a model it is.
        sizes: m, n, k.
        turned: whether columns of A, of B lie side by side.
        apart: how far apart their rows, or columns, lie, and those of C.
        batch: of each dimension its size, and how far apart matrices of A, B, C lie.
    """

    name: str
    sizes: tuple[int, int, int]
    turned: tuple[bool, bool]
    apart: tuple[int, int, int]
    batch: tuple[tuple[int, int, int, int], ...] = ()

    def view(self, values: np.ndarray, which: int) -> np.ndarray:
        """Matrix 0 (A), 1 (B) or 2 (C) of each place of the batch."""
        m, n, k = self.sizes
        shape = ((m, k), (k, n), (m, n))[which]
        steps = (self.apart[which], 1)
        if which < 2 and self.turned[which]:
            steps = steps[::-1]
        strides = [s * values.itemsize for s in (*(d[1 + which] for d in self.batch), *steps)]
        return np.lib.stride_tricks.as_strided(values, (*(d[0] for d in self.batch), *shape), strides)

    def values(self, which: int) -> int:
        """How many values a tensor has."""
        m, n, k = self.sizes
        rows, columns = ((m, k), (k, n), (m, n))[which]
        if which < 2 and self.turned[which]:
            rows, columns = columns, rows
        return 1 + sum((d[0] - 1) * d[1 + which] for d in self.batch) + (rows - 1) * self.apart[which] + columns - 1

    @property
    def terms(self) -> int:
        return math.prod(self.sizes) * math.prod(d[0] for d in self.batch)


def cases(*, small: bool) -> Iterator[Case]:
    """The products of a decoder in the shape of a small Llama: one token, a prompt, and attention with shared heads."""
    width, inner, head, heads, groups, past = (64, 96, 16, 4, 2, 24) if small else (4096, 11008, 128, 32, 8, 2048)
    each = heads // groups
    for rows in (1, 5) if small else (1, 32, 2048):
        yield Case(f"{rows} rows up", (rows, inner, width), (False, False), (width, inner, inner))
        yield Case(f"{rows} rows down, weight transposed", (rows, width, inner), (False, True), (inner, inner, width))
    for new in (1, 7) if small else (1, 512):
        # queries (heads, new, head) and keys (groups, past, head), of which ``each`` heads share one
        batch = ((groups, each * new * head, past * head, each * new * past), (each, new * head, 0, new * past))
        yield Case(f"scores of {new}", (new, past, head), (False, True), (head, head, past), batch)
        # queries as a projection leaves them: (new, heads, head)
        batch = ((groups, each * head, past * head, each * new * past), (each, head, 0, new * past))
        yield Case(
            f"scores of {new}, heads inside", (new, past, head), (False, True), (heads * head, head, past), batch
        )
        batch = ((groups, each * new * past, past * head, each * new * head), (each, new * past, 0, new * head))
        yield Case(f"values of {new}", (new, head, past), (False, False), (past, head, head), batch)


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        *((name, ctypes.c_int32) for name in ("device_type", "device_id", "ndim")),
        *(("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)),
        *(("shape", ctypes.c_void_p), ("strides", ctypes.c_void_p), ("byte_offset", ctypes.c_uint64)),
    ]


class _Any(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int32), ("padding", ctypes.c_uint32), ("value", ctypes.c_int64)]


class Products:
    """The C++ for compiled models, with a stand-in for the two functions of TVM's that it calls."""

    def __init__(self, compiler: str, cublas: str, folder: Path) -> None:
        text = f'#define CUBLAS "{cublas}"\n#define FUNCTIONS(one) one(product)\n'
        if driver := os.environ.get("RMSNORM_DEPLOY_CUDA_DRIVER"):
            text += f'#define DRIVER "{driver}"\n'
        source, library = folder / "products.cpp", folder / "products.so"
        source.write_text(text + AROUND_IT.format(source=SOURCE))
        flags = ("-std=c++17", "-O1", "-fPIC", "-shared")
        subprocess.run([compiler, *flags, str(source), "-o", str(library), "-ldl"], check=True)
        self.library = ctypes.CDLL(str(library))
        self.library.last_error.restype = ctypes.c_char_p

    def call(self, case: Case, dtype: str, pointers: list[int], stream: int) -> None:
        code, bits = DLPACK[dtype]
        tensors = [_Tensor(p, CUDA, 0, 1, code, bits, 1, None, None, 0) for p in pointers]
        numbers = [*case.turned, *case.sizes, *case.apart, *(n for dim in case.batch for n in dim)]
        values = [*(ctypes.addressof(t) for t in tensors), *map(int, numbers)]
        given = (_Any * len(values))(*(_Any(0, 0, v) for v in values))
        if self.library.product_on(ctypes.c_void_p(stream), given, len(values)):
            raise RuntimeError(self.library.last_error().decode())


def run(gpu: Gpu, products: Products, case: Case, dtype: str, seconds: float) -> dict[str, object]:
    """One product: how wrong it is, whether its bits are the same again, and how long it takes."""
    random, stored, memory = np.random.default_rng(5), [], []
    number = TYPES[dtype]
    for which in range(2):
        some = encode(random.standard_normal(REPEATED).astype(np.float32), number)
        stored.append(np.resize(some, case.values(which)))
    size = case.values(2) * stored[0].itemsize
    for nbytes in (*(s.nbytes for s in stored), size):
        memory.append(gpu.allocate(nbytes))
    stream = gpu.stream()
    results = []
    try:
        for pointer, values in zip(memory, stored, strict=False):
            gpu.upload(pointer, values)
        for _ in range(2):
            gpu.fill(memory[2], 0xFF, size)
            products.call(case, dtype, memory, stream)
            gpu.synchronize()
            results.append(gpu.download(memory[2], size))
        error = wrong(case, number, stored, results[0])
        us = timed(gpu, lambda: products.call(case, dtype, memory, stream), stream, seconds)
    finally:
        for pointer in memory:
            gpu.free(pointer)
    record = {"name": case.name, "dtype": dtype, "us": us, "tflops": 2 * case.terms / us / 1e6}
    return record | {"error": error, "right": error <= LIMITS[dtype], "same_bits": results[0] == results[1]}


def wrong(case: Case, number: int, stored: list[np.ndarray], result: bytes) -> float:
    """The largest error of some values of each matrix, against the sum of their products without signs."""
    rows, columns = (np.unique(np.linspace(0, size - 1, 16).astype(int)) for size in case.sizes[:2])

    def exact(part: np.ndarray) -> np.ndarray:
        return decode(np.ascontiguousarray(part), number).reshape(part.shape)

    a = exact(case.view(stored[0], 0)[..., rows, :])
    b = exact(case.view(stored[1], 1)[..., columns])
    c = exact(case.view(np.frombuffer(result, stored[0].dtype), 2)[..., rows[:, None], columns])
    error = abs(c - a @ b) / (abs(a) @ abs(b))
    return float(np.nan_to_num(error, nan=np.inf).max())


def timed(gpu: Gpu, call: object, stream: int, seconds: float) -> float:
    """Microseconds of one call, the least of some series."""
    assert callable(call)
    start, end = gpu.event(), gpu.event()
    best, stop, many = math.inf, time.monotonic() + seconds, 1
    while True:
        gpu.record(start, stream)
        for _ in range(many):
            call()
        gpu.record(end, stream)
        us = gpu.microseconds(start, end) / many
        best = min(best, us)
        if time.monotonic() > stop:
            return best
        many = max(1, min(200, int(20_000 / max(us, 1))))


def found(named: str | None) -> str | None:
    """A cuBLAS that can be opened."""
    places = [str(Path(p) / folder / name) for p in sys.path for name, folder in NAMES]
    for path in [named] if named else [*(name for name, _ in NAMES), *places]:
        try:
            ctypes.CDLL(path)
        except OSError:
            continue
        return path
    return None


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library", help="of no account here")
    parser.add_argument("--cublas", help="its path, where the system does not find it")
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=40)
    parser.add_argument("--quick", action="store_true", help="small products")
    given = parser.parse_args(arguments)
    stop = time.monotonic() + given.seconds
    compiler, cublas = tool("g++") or tool("clang++"), found(given.cublas)
    if compiler is None or cublas is None:
        print("no C++ compiler" if compiler is None else "no cuBLAS: pip install nvidia-cublas")
        return MISSING
    chosen = [(case, dtype) for dtype in ("bfloat16", "float16", "float32") for case in cases(small=given.quick)]
    each = min(0.2, given.seconds / len(chosen) / 4) if not given.quick else 0.0
    records: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory() as folder:
        gpu, products = Gpu(), Products(compiler, cublas, Path(folder))
        for case, dtype in chosen:
            if time.monotonic() > stop - 1:
                break
            records.append(run(gpu, products, case, dtype, each))
            save(given.json, {"cublas": cublas, "records": records})
    bad = [f"{r['name']} {r['dtype']}" for r in records if not (r["right"] and r["same_bits"])]
    print(f"{len(records)} of {len(chosen)} products, {len(bad)} wrong or of other bits {', '.join(bad)}".rstrip())
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
