"""An exported ONNX model goes in, every RMSNorm in it comes out as one op, and nothing else changes.

    fused, report = rmsnorm_deploy.fuse("model.onnx")
    rmsnorm_deploy.save(fused, "fused.onnx")
    session = rmsnorm_deploy.session("fused.onnx")

Importing this package loads none of onnxruntime, TVM and torch.
"""

from rmsnorm_deploy.errors import MissingEnvironment, ModelError, RmsNormDeployError, UsageError, VerificationFailed
from rmsnorm_deploy.fusing.fuse import RmsNormFusionPass, fuse
from rmsnorm_deploy.fusing.report import FusionReport
from rmsnorm_deploy.model.save import save
from rmsnorm_deploy.run.library import library_path
from rmsnorm_deploy.run.session import register, session

__version__ = "0.1.0"

__all__ = [
    "FusionReport",
    "MissingEnvironment",
    "ModelError",
    "RmsNormDeployError",
    "RmsNormFusionPass",
    "UsageError",
    "VerificationFailed",
    "__version__",
    "fuse",
    "library_path",
    "register",
    "save",
    "session",
]
