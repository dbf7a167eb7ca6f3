"""The fuser as one pass among those of onnx_ir, and behind onnxscript's optimizer where that is installed.

python samples/pass_list.py [MODEL.onnx [OUTPUT.onnx]]
"""

import importlib.util
import sys
import tempfile
from pathlib import Path

import onnx_ir as ir
from onnx_ir.passes import common

import rmsnorm_deploy

MODEL = Path(__file__).parent / "models" / "llama_float16.onnx"


def main():
    source = Path(sys.argv[1]) if len(sys.argv) > 1 else MODEL
    model = ir.load(source)
    if importlib.util.find_spec("onnxscript") is not None:
        from onnxscript import optimizer

        optimizer.optimize(model)  # first: it would write the function bodies out

    fusion = rmsnorm_deploy.RmsNormFusionPass()
    passes = ir.passes.Sequential(
        common.IdentityEliminationPass(),
        common.CommonSubexpressionEliminationPass(),
        common.RemoveUnusedNodesPass(),
        fusion,
        common.RemoveUnusedNodesPass(),
    )
    result = passes(model)
    print(fusion.report.summary())
    with tempfile.TemporaryDirectory() as folder:
        output = Path(sys.argv[2]) if len(sys.argv) > 2 else Path(folder) / "fused.onnx"
        rmsnorm_deploy.save(result.model, output, overwrite=True)
        print(rmsnorm_deploy.verify(source, output).summary())


if __name__ == "__main__":
    main()
