"""Few small calls that reach every kind of kernel, on memory of exactly their size: what compute-sanitizer watches.

Needs NumPy only, so that it is also the check where the tests' packages are missing.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator

import numpy as np

from benchmarks.gpu.contract import BYTES, FLOAT32, TYPES, Kernels, params
from benchmarks.gpu.driver import Gpu
from benchmarks.gpu.values import decode, encode, norm, units

MOST_UNITS = 3.0  # two roundings before the last one, of values of about the row's largest
# One, two and four chunks to a thread, a warp and a block to a row, shared memory, rows read twice; then what does not
# fit chunks, and columns with and without.
SHAPES = [(3, 64), (5, 128), (3, 512), (3, 1024), (2, 4096), (2, 8192), (1, 40000), (1, 300000), (3, 37), (2, 1001)]
COLUMNS = [(2, 24, 64), (2, 24, 7), (1, 600, 40)]
EPSILON = 1e-6


def cases() -> Iterator[tuple[str, int, tuple[int, ...], str]]:
    """Type, its number, shape and operator; "Gemma" is RMSNorm that rounds once, with a float32 scale."""
    for (name, data_type), shape in itertools.product(TYPES.items(), SHAPES + COLUMNS):
        for op in ("RMSNorm", "AddRMSNorm", "GeneralRMSNorm", "Gemma"):
            yield name, data_type, shape, op


def run(gpu: Gpu, kernels: Kernels, data_type: int, shape: tuple[int, ...], op: str) -> str:
    """One call; what is wrong with its result, or nothing."""
    rng = np.random.default_rng(len(shape) + shape[-1])
    axis, size = 1, shape[1]
    scale_type = FLOAT32 if op == "Gemma" else data_type
    stored = {"x": encode(rng.standard_normal(shape), data_type)}
    stored["scale"] = encode(rng.standard_normal(size), scale_type)
    if op == "AddRMSNorm":
        stored["residual"] = encode(rng.standard_normal(shape), data_type)
    if op == "GeneralRMSNorm":
        stored["bias"] = encode(rng.standard_normal(size), data_type)
    p = params(data_type, shape, axis, EPSILON)
    p.scale_type = scale_type
    p.round_type = FLOAT32 if op == "Gemma" else data_type
    bytes_of_x = stored["x"].size * BYTES[data_type]
    memory = {name: gpu.allocate(array.nbytes) for name, array in stored.items()}
    for name, array in stored.items():
        gpu.upload(memory[name], array)
    for name in ("y", "sum") if op == "AddRMSNorm" else ("y",):
        memory[name] = gpu.allocate(bytes_of_x)
    try:
        for name, pointer in memory.items():
            setattr(p, name, pointer)
        if op == "GeneralRMSNorm":
            p.partial_size = max(1, size // 2)
        kernels.launch(p)
        gpu.synchronize()
        got = {
            name: decode(gpu.download(memory[name], bytes_of_x), data_type) for name in memory if name in ("y", "sum")
        }
    finally:
        for pointer in memory.values():
            gpu.free(pointer)
    x = decode(stored["x"], data_type).reshape(shape)
    if op == "AddRMSNorm":
        x = decode(encode(x + decode(stored["residual"], data_type).reshape(shape), data_type), data_type).reshape(
            shape
        )
        if not np.array_equal(got["sum"], x.ravel()):
            return "the sum is wrong"
    place = (size, *(1,) * (len(shape) - 2))
    scale = decode(stored["scale"], scale_type).reshape(place)
    bias = decode(stored["bias"], data_type).reshape(place) if op == "GeneralRMSNorm" else None
    measured = p.partial_size if op == "GeneralRMSNorm" else None
    truth = norm(x, scale, EPSILON, axis=axis, bias=bias, measured=measured)
    off = units(got["y"].reshape(shape), truth, data_type, axis)
    return "" if off <= MOST_UNITS else f"off by {off:.2f} units in the last place"


def main(arguments: list[str]) -> int:
    library, *only = arguments
    gpu, kernels = Gpu(), Kernels(library)
    count = failed = 0
    for name, data_type, shape, op in cases():
        if only and name not in only:
            continue
        count += 1
        print(f"{op} {name} {'x'.join(map(str, shape))}", flush=True)  # the last line says where it hangs
        if wrong := run(gpu, kernels, data_type, shape, op):
            failed += 1
            print(f"{op} {name} {'x'.join(map(str, shape))}: {wrong}")
    print(f"{count} calls, {failed} wrong")
    return 1 if failed or not count else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
