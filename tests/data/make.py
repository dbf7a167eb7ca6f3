"""Writes fused files that every later release must still run: `python -m tests.data.make VERSION`, once a release."""

import sys
from pathlib import Path

import numpy as np

import rmsnorm_deploy
from rmsnorm_deploy.op.reference import rms_norm
from tests.support.judge import rows
from tests.support.spellings.graph import NUMPY
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


def main(version: str) -> None:
    folder = HERE / version
    folder.mkdir(exist_ok=True)
    for name, spelling in SPELLINGS.items():
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


if __name__ == "__main__":
    main(sys.argv[1])
