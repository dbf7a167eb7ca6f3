"""Fusing as a pass of an Olive workflow, between other passes.

python samples/olive_pass.py [MODEL.onnx [OUTPUT.onnx]]

``RmsNormFusion`` below is the pass; ``PACKAGE`` tells Olive of it, as the file does that ``olive run
--package-config FILE`` takes.
"""

import json
import shutil
import sys
import tempfile
from pathlib import Path

from olive.model import ONNXModelHandler
from olive.package_config import OlivePackageConfig
from olive.passes import Pass
from olive.passes.pass_config import PassConfigParam
from olive.workflows import run

import rmsnorm_deploy

MODEL = Path(__file__).parent / "models" / "qwen3_float32.onnx"


class RmsNormFusion(Pass):
    """Every RMSNorm as one operator."""

    @classmethod
    def _default_config(cls, accelerator_spec):
        del accelerator_spec
        return {"form": PassConfigParam(type_=str, default_value="plugin", description="What norms are written as.")}

    def _run_for_config(self, model, config, output_model_path):
        output = Path(output_model_path)
        output = output if output.suffix == ".onnx" else output / "model.onnx"
        output.parent.mkdir(parents=True, exist_ok=True)
        fused, report = rmsnorm_deploy.fuse(model.model_path, form=config.form)
        rmsnorm_deploy.save(fused, output, source=model.model_path, overwrite=True)
        print(report.summary())
        return ONNXModelHandler(output.parent, onnx_file_name=output.name)


def package():
    """Olive's own list of passes, with this one."""
    known = json.loads(Path(OlivePackageConfig.get_default_config_path()).read_text())
    known["passes"]["RmsNormFusion"] = {"module_path": f"{RmsNormFusion.__module__}.RmsNormFusion"}
    return known


def main():
    source = Path(sys.argv[1]) if len(sys.argv) > 1 else MODEL
    with tempfile.TemporaryDirectory() as folder:
        run(
            {
                "input_model": {"type": "ONNXModel", "model_path": str(source)},
                # the order that keeps everything: other passes first, fusing last
                "passes": {
                    "optimize": {"type": "OnnxPeepholeOptimizer"},
                    "quantize": {"type": "OnnxBlockWiseRtnQuantization"},
                    "fuse": {"type": "RmsNormFusion"},
                },
                "output_dir": f"{folder}/out",
                "cache_dir": f"{folder}/cache",
                "log_severity_level": 4,
                "evaluate_input_model": False,
            },
            package_config=package(),
        )
        made = next(Path(folder, "out").rglob("*.onnx"))
        if len(sys.argv) > 2:
            shutil.copy(made, sys.argv[2])
        print(rmsnorm_deploy.explain(made).already, "norms of ours")


if __name__ == "__main__":
    main()
