"""Fuse a model and run it in onnxruntime, with the library's kernels where they are there.

python samples/session.py [MODEL.onnx]
"""

import sys
import tempfile
from pathlib import Path

import rmsnorm_deploy
from rmsnorm_deploy.model.load import load_proto
from rmsnorm_deploy.run.inputs import make_inputs

MODEL = Path(__file__).parent / "models" / "t5_encoder_float32.onnx"


def main():
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else MODEL
    with tempfile.TemporaryDirectory() as folder:
        fused, report = rmsnorm_deploy.fuse(path)
        print(report.summary())
        output = Path(folder) / "fused.onnx"
        rmsnorm_deploy.save(fused, output, source=path)

        try:
            session = rmsnorm_deploy.session(output)
        except rmsnorm_deploy.MissingEnvironment as error:
            # the same file runs in any onnxruntime: its norms carry their meaning as function bodies
            import onnxruntime

            print(f"by the function bodies: {error.message}")
            session = onnxruntime.InferenceSession(output, providers=["CPUExecutionProvider"])
        for info, value in zip(session.get_outputs(), session.run(None, make_inputs(load_proto(path))), strict=True):
            print(info.name, value.dtype, list(value.shape))


if __name__ == "__main__":
    main()
