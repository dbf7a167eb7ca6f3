"""Few small calls that reach every kind of kernel, on memory of exactly their size: what compute-sanitizer watches.

Needs NumPy only, so that it is also the check where the tests' packages are missing.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator

import numpy as np

from benchmarks.gpu.contract import BYTES, FLOAT32, GATE_VERSION, INT8, SILU, TYPES, Gate, Kernels, params
from benchmarks.gpu.driver import Gpu
from benchmarks.gpu.values import decode, encode, norm, units

MOST_UNITS = 3.0  # two roundings before the last one, of values of about the row's largest
# Two and four chunks to a thread, a part of a warp, a warp and a block to a row, long rows with the next one copied
# ahead and without, rows read twice; then what does not fit chunks, and columns with and without.
SHAPES = [(3, 64), (5, 128), (3, 512), (3, 1024), (2, 4096), (2, 8192), (1, 40000), (1, 300000), (3, 37), (2, 1001)]
COLUMNS = [(2, 24, 64), (2, 24, 7), (1, 600, 40)]
EPSILON = 1e-6
ZERO_POINT = 3


def cases() -> Iterator[tuple[str, int, tuple[int, ...], str]]:
    """Type, its number, shape and operator.

    "Gemma" is RMSNorm that rounds once, with a float32 scale; "Gated" has a SiLU in front of the norm; "Quantised" is
    with int8 values and the extremes of rows.
    """
    for (name, data_type), shape in itertools.product(TYPES.items(), SHAPES + COLUMNS):
        for op in ("RMSNorm", "AddRMSNorm", "GeneralRMSNorm", "Gemma", "Gated", "Quantised"):
            if op != "Quantised" or shape not in COLUMNS:
                yield name, data_type, shape, op


def outputs_are_right(got: dict[str, bytes], y: np.ndarray, scale: np.ndarray) -> bool:
    """Whether the 8-bit values and extremes are those of y as it was written: bit by bit."""
    quotient = y.astype(np.float32) / scale[:, None]
    quantised = np.clip(np.rint(quotient) + ZERO_POINT, -128, 127).astype(np.int8)
    ends = {"least": y.min(axis=1), "most": y.max(axis=1)}
    return got["quantised"] == quantised.tobytes() and all(
        np.array_equal(np.frombuffer(got[name], np.float32), end) for name, end in ends.items()
    )


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
    if op == "Gated":
        stored["gate"] = encode(rng.standard_normal(shape), data_type)
    p = params(data_type, shape, axis, EPSILON)
    p.scale_type = scale_type
    p.round_type = FLOAT32 if op == "Gemma" else data_type
    bytes_of_x = stored["x"].size * BYTES[data_type]
    memory = {name: gpu.allocate(array.nbytes) for name, array in stored.items()}
    for name, array in stored.items():
        gpu.upload(memory[name], array)
    for name in ("y", "sum") if op == "AddRMSNorm" else ("y",):
        memory[name] = gpu.allocate(bytes_of_x)
    rows, beside = shape[0], {}
    if op == "Quantised":
        step = rng.uniform(0.01, 0.05, rows).astype(np.float32)
        zero = np.full(rows, ZERO_POINT, np.int8)
        for name, array in (("quantised_scale", step), ("zero_point", zero)):
            memory[name] = gpu.allocate(array.nbytes)
            gpu.upload(memory[name], array)
        beside = {"quantised": stored["x"].size, "least": 4 * rows, "most": 4 * rows}
        memory |= {name: gpu.allocate(size_in_bytes) for name, size_in_bytes in beside.items()}
        p.quantised_type, p.quantised_scale_type, p.quantised_by_row = INT8, FLOAT32, 1
    try:
        for name, pointer in memory.items():
            if name != "gate":
                setattr(p, name, pointer)
        gate = Gate(GATE_VERSION, data_type, SILU, 0, memory["gate"]) if op == "Gated" else None
        if op == "GeneralRMSNorm":
            p.partial_size = max(1, size // 2)
        kernels.launch(p, gate=gate)
        gpu.synchronize()
        more = {name: gpu.download(memory[name], size_in_bytes) for name, size_in_bytes in beside.items()}
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
    if op == "Gated":
        z = decode(stored["gate"], data_type).reshape(shape).astype(np.float64)
        x = x * (z / (1 + np.exp(-z)))
    place = (size, *(1,) * (len(shape) - 2))
    scale = decode(stored["scale"], scale_type).reshape(place)
    bias = decode(stored["bias"], data_type).reshape(place) if op == "GeneralRMSNorm" else None
    measured = p.partial_size if op == "GeneralRMSNorm" else None
    truth = norm(x, scale, EPSILON, axis=axis, bias=bias, measured=measured)
    if beside and not outputs_are_right(more, got["y"].reshape(shape), step):
        return "what is made of y is wrong"
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
