"""TVM: fused models compiled for the CPU.

    rmsnorm_deploy.tvm.compile("model.onnx", output="compiled")
    f = rmsnorm_deploy.tvm.load("compiled")        # in another process, without the model
    outputs = f({"x": array})

    rmsnorm_deploy.tvm.tune("model.onnx", log="tuning.json")      # then compile(..., tuned="tuning.json")

Needs the extra ``tvm``; nothing else in this package imports it.
"""

from rmsnorm_deploy.errors import MissingEnvironment

try:
    from tvm import relax as _relax  # noqa: F401
except ImportError as error:
    raise MissingEnvironment("apache-tvm is not installed", "pip install 'rmsnorm-deploy[tvm]'") from error

from rmsnorm_deploy.tvm.artefact.load import CompiledModel, load
from rmsnorm_deploy.tvm.compiling import Compiled, compile
from rmsnorm_deploy.tvm.importer.convert import import_onnx
from rmsnorm_deploy.tvm.tuning.search import Tuning, tune

__all__ = ["Compiled", "CompiledModel", "Tuning", "compile", "import_onnx", "load", "tune"]
