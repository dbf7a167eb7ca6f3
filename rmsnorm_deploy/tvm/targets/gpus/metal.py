"""Apple's GPUs."""

from rmsnorm_deploy.tvm.targets.gpu import Gpu

GPU = Gpu(
    kind="metal",
    name="Metal",
    dtypes=("float32", "float16", "bfloat16"),
    vector_lanes=4,  # of the vectors in TVM's source
    runtime="Run the model on macOS, with a TVM that was built with USE_METAL.",
    warp=16,  # what TVM's target says of a simdgroup; the true 32 of Apple's GPUs hold two such groups
    products_as=(("kind", "opencl"),),
)
