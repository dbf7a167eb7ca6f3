"""GPUs with OpenCL. Shuffles are an extension; half and double are too, and TVM's text asks for them."""

from rmsnorm_deploy.tvm.targets.gpu import Gpu

GPU = Gpu(
    kind="opencl",
    name="OpenCL",
    dtypes=("float32", "float16", "bfloat16", "float64"),
    vector_bytes=16,
    vector_lanes=8,
    threads=256,
    runtime="Build TVM with USE_OPENCL: the wheel has no runtime for OpenCL.",
    fleet=True,
)
