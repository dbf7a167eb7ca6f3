"""An exported ONNX model goes in, every RMSNorm in it comes out as one op, and nothing else changes.

    report = rmsnorm_deploy.explain("model.onnx")
    fused, report = rmsnorm_deploy.fuse("model.onnx")
    rmsnorm_deploy.save(fused, "fused.onnx")
    rmsnorm_deploy.verify("model.onnx", "fused.onnx").require()
    session = rmsnorm_deploy.session("fused.onnx")

Importing this package loads none of onnxruntime, TVM and torch.
"""

from rmsnorm_deploy.check.bench import bench
from rmsnorm_deploy.check.verify import verify
from rmsnorm_deploy.errors import MissingEnvironment, ModelError, RmsNormDeployError, UsageError, VerificationFailed
from rmsnorm_deploy.fusing.forms import Form
from rmsnorm_deploy.fusing.fuse import explain, fuse
from rmsnorm_deploy.fusing.pass_ import RmsNormFusionPass
from rmsnorm_deploy.fusing.report import FusionReport
from rmsnorm_deploy.fusing.unfuse import unfuse
from rmsnorm_deploy.model.save import save
from rmsnorm_deploy.op import register_schemas
from rmsnorm_deploy.run.library import library_path
from rmsnorm_deploy.run.registering import register
from rmsnorm_deploy.run.session import session

__version__ = "0.1.0"

__all__ = [
    "Form",
    "FusionReport",
    "MissingEnvironment",
    "ModelError",
    "RmsNormDeployError",
    "RmsNormFusionPass",
    "UsageError",
    "VerificationFailed",
    "__version__",
    "bench",
    "explain",
    "fuse",
    "library_path",
    "register",
    "register_schemas",
    "save",
    "session",
    "unfuse",
    "verify",
]
