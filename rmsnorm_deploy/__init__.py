"""An exported ONNX model goes in, every RMSNorm in it comes out as one op, and nothing else changes.

    report = rmsnorm_deploy.explain("model.onnx")
    fused, report = rmsnorm_deploy.fuse("model.onnx")
    rmsnorm_deploy.save(fused, "fused.onnx")
    rmsnorm_deploy.verify("model.onnx", "fused.onnx").require()
    session = rmsnorm_deploy.session("fused.onnx")

Importing this package loads none of onnxruntime, TVM and torch. onnx and NumPy are loaded when one of its names is
first used, so that the command line can say what Ctrl-C does before anything slow begins.
"""

from __future__ import annotations

TYPE_CHECKING = False  # that of the module typing, whose import takes longer than all of this

if TYPE_CHECKING:
    from typing import Any

    from rmsnorm_deploy.check.bench import bench
    from rmsnorm_deploy.check.verify import verify
    from rmsnorm_deploy.converting.convert import convert
    from rmsnorm_deploy.converting.report import ConversionReport
    from rmsnorm_deploy.errors import MissingEnvironment, ModelError, RmsNormDeployError, UsageError, VerificationFailed
    from rmsnorm_deploy.fusing.forms import Form
    from rmsnorm_deploy.fusing.fuse import explain, fuse
    from rmsnorm_deploy.fusing.pass_ import RmsNormFusionPass
    from rmsnorm_deploy.fusing.report import FusionReport
    from rmsnorm_deploy.fusing.unfuse import unfuse
    from rmsnorm_deploy.model.save import save
    from rmsnorm_deploy.op import register_schemas
    from rmsnorm_deploy.report.write import write_report
    from rmsnorm_deploy.run.library import library_path
    from rmsnorm_deploy.run.registering import register
    from rmsnorm_deploy.run.session import session

__version__ = "0.1.0"

__all__ = [
    "ConversionReport",
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
    "convert",
    "explain",
    "fuse",
    "library_path",
    "register",
    "register_schemas",
    "save",
    "session",
    "unfuse",
    "verify",
    "write_report",
]

_HOMES = {
    "check.bench": ("bench",),
    "check.verify": ("verify",),
    "converting.convert": ("convert",),
    "converting.report": ("ConversionReport",),
    "errors": ("MissingEnvironment", "ModelError", "RmsNormDeployError", "UsageError", "VerificationFailed"),
    "fusing.forms": ("Form",),
    "fusing.fuse": ("explain", "fuse"),
    "fusing.pass_": ("RmsNormFusionPass",),
    "fusing.report": ("FusionReport",),
    "fusing.unfuse": ("unfuse",),
    "model.save": ("save",),
    "op": ("register_schemas",),
    "report.write": ("write_report",),
    "run.library": ("library_path",),
    "run.registering": ("register",),
    "run.session": ("session",),
}
"""Where the names of ``__all__`` are, by module."""


def __getattr__(name: str) -> Any:
    """The first use of a name loads all of them, and with them the modules that they are in."""
    import importlib

    if name in __all__ or name in {home.partition(".")[0] for home in _HOMES}:
        for home, names in _HOMES.items():
            module = importlib.import_module(f"{__name__}.{home}")
            globals().update((n, getattr(module, n)) for n in names)
        return globals()[name]
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
