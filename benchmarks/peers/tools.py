"""The tools that fuse norms, each at the setting that finds most of them.

A tool is a factory: a function that imports what it needs and returns a call ``(source, target)``, which reads the
model at ``source`` and writes its result to ``target``. The factory runs in the tool's own process, so that an import
can fail there, and this module imports none of them.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.metadata
from collections.abc import Callable
from pathlib import Path

Transform = Callable[[str, str], None]


class Refused(Exception):
    """The tool cannot take the model in any setting, for a reason that has nothing to do with norms."""


@dataclasses.dataclass(frozen=True)
class Tool:
    """A tool to compare.

    Attributes:
        name: in the table and on the command line.
        factory: "module:function" of the factory.
        distributions: what has to be installed, the one that gives the tool its version first.
        setting: how it is called, in words.
        library: whether its results are also run with this project's library of kernels.
    """

    name: str
    factory: str
    distributions: tuple[str, ...] = ()
    setting: str = ""
    library: bool = False

    @property
    def version(self) -> str:
        """The installed version; empty where none is known."""
        if self.library:
            import rmsnorm_deploy

            return rmsnorm_deploy.__version__
        try:
            versions = [importlib.metadata.version(d) for d in self.distributions]
        except importlib.metadata.PackageNotFoundError:
            return ""
        return versions[0] if versions else "plugged in"

    @property
    def advice(self) -> str:
        """How to make it available."""
        if not self.distributions:
            return "put its module on PYTHONPATH"
        return f"pip install {' '.join(self.distributions)}"


def ours() -> Transform:
    """``rmsnorm_deploy.fuse``, written as the peers write: without the checks of ``rmsnorm_deploy.save``."""
    import onnx

    import rmsnorm_deploy

    def transform(source: str, target: str) -> None:
        fused, _ = rmsnorm_deploy.fuse(source)
        onnx.save(fused, target)

    return transform


def onnxruntime_session() -> Transform:
    """The optimizer that runs in every onnxruntime session, all levels."""
    import onnxruntime as ort

    def load(source: str, level: ort.GraphOptimizationLevel, target: str = "") -> None:
        options = ort.SessionOptions()
        options.log_severity_level = 4
        options.intra_op_num_threads = 1
        options.graph_optimization_level = level
        options.optimized_model_filepath = target
        ort.InferenceSession(source, options, providers=["CPUExecutionProvider"])

    def transform(source: str, target: str) -> None:
        try:
            load(source, ort.GraphOptimizationLevel.ORT_ENABLE_ALL, target)
        except Exception as error:
            # a kernel that the CPU provider lacks is not the optimizer's fault
            try:
                load(source, ort.GraphOptimizationLevel.ORT_DISABLE_ALL)
            except Exception:
                raise Refused(str(error)) from error
            raise

    return transform


def onnxruntime_transformers() -> Transform:
    """The offline optimizer in Python. Of all its model types this finds most norms, with most results that run."""
    import onnx
    from onnxruntime.transformers import optimizer

    def transform(source: str, target: str) -> None:
        # opt_level 0 leaves onnxruntime's session out: it is measured by itself
        result = optimizer.optimize_model(source, model_type=TRANSFORMERS_TYPE, opt_level=0, only_onnxruntime=False)
        onnx.save(result.model, target)

    return transform


def onnxscript_ort_fusions() -> Transform:
    """The fusions for onnxruntime that come with onnxscript."""
    import onnx_ir as ir
    from onnxscript.rewriter.ort_fusions import optimize_for_ort

    def transform(source: str, target: str) -> None:
        model, _ = optimize_for_ort(ir.load(source))
        ir.save(model, target)

    return transform


def onnxsim_simplify() -> Transform:
    """The model is raised to the first opset that has ``RMSNormalization``: below it, its rule for norms is off."""
    import onnx
    import onnxsim

    def transform(source: str, target: str) -> None:
        model = onnx.load(source)
        opset = next((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), 0)
        simplified, _ = onnxsim.simplify(model, target_opset_version=max(opset, RMS_NORMALIZATION_OPSET))
        onnx.save(simplified, target)

    return transform


def onnxslim_slim() -> Transform:
    """As it comes: onnxslim has no setting for norms."""
    import onnx
    import onnxslim

    def transform(source: str, target: str) -> None:
        slimmed = onnxslim.slim(source)
        onnx.save(slimmed, target)

    return transform


TRANSFORMERS_TYPE = "mmdit"
RMS_NORMALIZATION_OPSET = 23

OURS = Tool("rmsnorm_deploy", f"{__name__}:ours", setting="fuse(path), onnx.save(fused, path)", library=True)
PEERS = {
    tool.name: tool
    for tool in (
        Tool(
            "onnxruntime",
            f"{__name__}:onnxruntime_session",
            ("onnxruntime",),
            "session with ORT_ENABLE_ALL, optimized_model_filepath",
        ),
        Tool(
            "ort-transformers",
            f"{__name__}:onnxruntime_transformers",
            ("onnxruntime",),
            f"onnxruntime.transformers.optimizer.optimize_model(model_type={TRANSFORMERS_TYPE!r}, opt_level=0)",
        ),
        Tool(
            "onnxscript",
            f"{__name__}:onnxscript_ort_fusions",
            ("onnxscript", "onnx-ir"),
            "onnxscript.rewriter.ort_fusions.optimize_for_ort(model)",
        ),
        Tool(
            "onnxsim",
            f"{__name__}:onnxsim_simplify",
            ("onnxsim",),
            f"simplify(model, target_opset_version={RMS_NORMALIZATION_OPSET} or the model's own)",
        ),
        Tool("onnxslim", f"{__name__}:onnxslim_slim", ("onnxslim",), "slim(path)"),
    )
}


def named(name: str) -> Tool:
    """The peer of that name, or a tool plugged in as "module:factory".

    Raises:
        ValueError: there is no such peer.
    """
    if ":" in name:
        return Tool(name.partition(":")[2], name, setting=name)
    if name not in PEERS:
        raise ValueError(f"there is no peer '{name}'; there are {', '.join(PEERS)}, and any 'module:factory'")
    return PEERS[name]


def worker(factory: str) -> Callable[..., dict[str, object]]:
    """The handler of a tool's process: see :mod:`benchmarks.peers.worker`."""
    module, _, function = factory.partition(":")
    transform: Transform = getattr(importlib.import_module(module), function)()

    def handle(source: str, target: str) -> dict[str, object]:
        try:
            transform(source, target)
        except Refused as error:
            return {"refused": str(error)}
        if not Path(target).is_file():
            raise FileNotFoundError("it wrote no model")
        return {}

    return handle
