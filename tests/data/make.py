"""Writes fused files that every later release must still run: `python -m tests.data.make VERSION`, once a release.

An operator that comes later has its files written alone, by their names behind the version: what is there stays.
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np

import rmsnorm_deploy
from rmsnorm_deploy.op import GATED_FIRST, GATED_LAST
from rmsnorm_deploy.op.reference import rms_norm
from tests.support.judge import rows
from tests.support.quantised import DYNAMIC, I8, U8, pair
from tests.support.run import run
from tests.support.spellings.graph import NUMPY, F, Graph, H
from tests.support.spellings.norms import Spelling, build

HERE = Path(__file__).parent
SPELLINGS = {
    "plain_float32_opset11": Spelling(opset=11),
    "plain_float32_opset13": Spelling(opset=13),
    "residual_float16_opset18": Spelling(layout="llama16", residual=True),
    "gemma_float16_opset17": Spelling(layout="gemma16", opset=17),
    "gemma_bfloat16_opset18": Spelling(layout="gemmabf16"),
    "channel_first_float32_opset21": Spelling(axes=(1,), shape=(2, 8, 3, 5), opset=21),
    "partial_bias_float32_opset18": Spelling(partial=3, bias=True),
    "outside_float32_opset20": Spelling(mean="l2", inside="none", outside=1e-8, opset=20),
    "clamped_float32_opset18": Spelling(mean="l2", inside="none", clamp="clip", floor=1e-12),
    "plain_float64_opset18": Spelling(layout="float64"),
}
GATED = {
    "gated_first_float32_opset18": (F, F, 18, GATED_FIRST),
    "gated_last_float16_opset17": (H, F, 17, GATED_LAST),
}
"""Norms with a gate: the types of x and of the gate, the opset, and where the gate comes in."""

QUANTISED = {
    "quantised_uint8_float32_opset13": {"quantised": U8, "opset": 13},
    "quantised_residual_int8_float32_opset19": {"quantised": I8, "residual": True, "opset": 19},
    "quantised_by_range_float32_opset11": {"quantised": DYNAMIC, "opset": 11},
    "quantised_by_range_residual_float32_opset18": {"quantised": DYNAMIC, "residual": True, "opset": 18},
}
"""Norms that quantise: what :func:`pair` takes."""


def main(version: str, *names: str) -> None:
    folder = HERE / version
    folder.mkdir(exist_ok=True)
    for name, (dtype, gate_dtype, opset, at) in GATED.items():
        if not names or name in names:
            write_gated(folder / f"{name}.onnx", dtype, gate_dtype, opset, at)
    for name, taken in QUANTISED.items():
        if not names or name in names:
            write_quantised(folder / f"{name}.onnx", **taken)
    for name, spelling in SPELLINGS.items():
        if names and name not in names:
            continue
        built = build(spelling)
        fused, report = rmsnorm_deploy.fuse(built.model)
        attributes = report.fused[0].attributes
        feeds = {"x": rows(spelling.shape, NUMPY[spelling.io_type])}
        if spelling.residual:
            feeds["r"] = rows(spelling.shape, NUMPY[spelling.io_type], seed=1)
        meaning = built.meaning | {k: attributes[k] for k in ("epsilon", "scale_type")}
        for k in ("epsilon_outside", "rms_floor"):
            meaning[k] = attributes.get(k, 0.0)
        truth, _ = rms_norm(feeds["x"], built.scale, residual=feeds.get("r"), bias=built.bias, exact=True, **meaning)
        (folder / f"{name}.onnx").write_bytes(fused.SerializeToString(deterministic=True))
        # float64 holds every type exactly, and NumPy files know no bfloat16
        np.savez(folder / f"{name}.npz", truth=truth, **{k: v.astype(np.float64) for k, v in feeds.items()})


def write_gated(path: Path, dtype: int, gate_dtype: int, opset: int, at: int) -> None:
    shape, scale = (6, 64), np.linspace(0.5, 2, 64).astype(NUMPY[dtype])
    g = Graph(opset)
    x, z, w = g.input("x", dtype, shape), g.input("z", gate_dtype, shape), g.weight(scale, dtype, "w")
    wide, gate = g.cast(x, F) if dtype != F else x, z * g.op("Sigmoid", z)
    wide = wide * gate if at == GATED_FIRST else wide
    y = wide / g.op("Sqrt", g.reduce("ReduceMean", wide * wide, (-1,)) + 1e-5)
    y = (g.cast(y, dtype) if dtype != F else y) * w
    if at != GATED_FIRST:
        y = g.cast(g.cast(y, F) * gate, dtype)
    g.output(y, "y", shape)
    fused, report = rmsnorm_deploy.fuse(g.model(), also=["gates"])
    (norm,) = report.fused
    feeds = {"x": rows(shape, NUMPY[dtype]), "z": rows(shape, NUMPY[gate_dtype], seed=1)}
    meaning = {k: norm.attributes[k] for k in ("epsilon", "scale_type", "activation", "gate_at")}
    truth, _ = rms_norm(feeds["x"], scale, gate=feeds["z"], exact=True, **meaning)
    path.write_bytes(fused.SerializeToString(deterministic=True))
    np.savez(path.with_suffix(".npz"), truth=truth, **{k: v.astype(np.float64) for k, v in feeds.items()})


def write_quantised(path: Path, **taken: Any) -> None:
    shape = (6, 64)
    apart = pair(shape, **taken)
    fused, _ = rmsnorm_deploy.fuse(apart, also=["quantizers"])
    kinds = {i.name: i.type.tensor_type.elem_type for i in apart.graph.input}
    feeds = {name: rows(shape, NUMPY[kind], seed=i) for i, (name, kind) in enumerate(kinds.items())}
    truth = run(apart, feeds, False)[0]
    path.write_bytes(fused.SerializeToString(deterministic=True))
    given = {"truth": truth, **feeds}
    np.savez(path.with_suffix(".npz"), **{k: v.astype(np.float64) for k, v in given.items()})


if __name__ == "__main__":
    main(*sys.argv[1:])
