"""GPUs with OpenCL. Shuffles are an extension; half and double are too, and TVM's text asks for them."""

from rmsnorm_deploy.tvm.targets.gpu import Gpu

GPU = Gpu(
    kind="opencl",
    name="OpenCL",
    runtime="Build TVM with USE_OPENCL: the wheel has no runtime for OpenCL.",
    fleet=True,
)
