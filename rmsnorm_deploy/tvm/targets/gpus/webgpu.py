"""GPUs in a browser. WGSL has neither 16-bit integers, in which TVM keeps bfloat16, nor float64.

TVM's runtime folds a grid of more than 65535 blocks into the third dimension, and its source undoes that.
"""

from rmsnorm_deploy.errors import ModelError
from rmsnorm_deploy.tvm.targets.gpu import Gpu, Meaning

GPU = Gpu(
    kind="webgpu",
    name="WebGPU",
    dtypes=("float32", "float16"),
    vector_lanes=4,
    runtime="Run the model in a browser, with TVM's runtime for JavaScript.",
    meanings=(
        Meaning(
            ("do not support i64",),
            ModelError,
            "WebGPU has no 64-bit integers, and the model computes with some",
            "Export the model with inputs of type int32, or without token numbers.",
        ),
    ),
)
