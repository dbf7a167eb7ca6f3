"""AMD's GPUs."""

from rmsnorm_deploy.errors import MissingEnvironment
from rmsnorm_deploy.tvm.targets.gpu import Gpu, Meaning

GPU = Gpu(
    kind="rocm",
    name="ROCm",
    threads=256,  # what the runtime of TVM's target launches
    runtime="Build TVM with USE_ROCM: the wheel has no runtime for ROCm.",
    warp=32,  # so many exchange values on cards with wavefronts of 32 and of 64
    architectures=("gfx900", "gfx906", "gfx908", "gfx90a", "gfx942", "gfx1030", "gfx1100", "gfx1101", "gfx1102"),
    usual=("gfx90a",),
    architecture_attribute="mcpu",
    fleet=True,
    meanings=(
        Meaning(
            ("ROCm path", "ld.lld"),
            MissingEnvironment,
            "TVM needs an installation of ROCm to compile for target 'rocm', and finds none",
            "Install ROCm with its device libraries and ld.lld, and set ROCM_PATH.",
        ),
    ),
)
