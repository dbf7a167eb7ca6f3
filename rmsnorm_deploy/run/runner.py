"""Running a model in onnxruntime, from a path or from memory, bfloat16 and external data included."""

from __future__ import annotations

import dataclasses
import os
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir
from onnx import ModelProto, TensorProto

from rmsnorm_deploy.errors import MissingEnvironment, RmsNormDeployError, UsageError
from rmsnorm_deploy.model.external import external_reference, external_tensors
from rmsnorm_deploy.model.load import load_proto
from rmsnorm_deploy.op import DOMAIN
from rmsnorm_deploy.run.inputs import Array, Feeds

Model = str | os.PathLike[str] | ModelProto | ir.Model
_FOLDER = "session.model_external_initializers_file_folder_path"


@dataclasses.dataclass(frozen=True)
class Runnable:
    """A model and where its weights are.

    Attributes:
        proto: without external data, which stay in their files.
        path: the file, or None for a model that exists in memory only.
        folder: the folder to which external data are relative.
        weights: bytes of all weights, inside and outside.
    """

    proto: ModelProto
    path: Path | None
    folder: Path | None
    weights: int

    @classmethod
    def of(cls, model: Model, folder: Path | None = None) -> Runnable:
        """``model`` in whatever form; external data of one in memory are relative to ``folder``.

        Raises:
            ModelError: the file cannot be read.
            UsageError: the model is of another type, or its weights are in files of an unknown folder.
        """
        path = None
        if isinstance(model, ModelProto):
            proto = model
        elif isinstance(model, ir.Model):
            proto = ir.to_proto(model)
            folder = folder or _ir_folder(model)
        elif isinstance(model, (str, os.PathLike)):
            path = Path(model)
            proto, folder = load_proto(path), path.parent
        else:
            raise UsageError(
                f"cannot run a {type(model).__name__}", "Give a path, an onnx.ModelProto or an onnx_ir.Model."
            )
        outside = sum(external_reference(t)[2] for t in external_tensors(proto))
        if outside and folder is None:
            raise UsageError("the model's weights are in files of an unknown folder", "Give the model's path instead.")
        inside = sum(len(t.raw_data) for t in proto.graph.initializer)
        return cls(proto, path, folder if outside else None, inside + outside)

    def loaded(self) -> ModelProto:
        """A copy with all weights in memory."""
        copy = ModelProto()
        copy.CopyFrom(self.proto)
        if self.folder is not None:
            onnx.external_data_helper.load_external_data_for_model(copy, str(self.folder))
        return copy


def _ir_folder(model: ir.Model) -> Path | None:
    for value in model.graph.initializers.values():
        if isinstance(value.const_value, ir.ExternalTensor):
            return Path(value.const_value.base_dir or ".")
    return None


class Runner:
    """One onnxruntime session on the CPU.

    Args:
        model: what to run.
        library: use the library's kernels.
        optimise: onnxruntime's own optimizer, on or off.
        keep: write the optimized model to this file.
        threads: threads within one operator; 0 leaves it to onnxruntime.

    Raises:
        MissingEnvironment: onnxruntime, or the library that was asked for, is not there.
    """

    def __init__(
        self,
        model: Runnable,
        *,
        library: bool = False,
        optimise: bool = True,
        keep: Path | None = None,
        threads: int = 0,
    ) -> None:
        ort = onnxruntime()
        options = ort.SessionOptions()
        options.log_severity_level = 4
        options.intra_op_num_threads = threads
        if not optimise:
            options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        if keep is not None:
            options.optimized_model_filepath = str(keep)
        if library:
            from rmsnorm_deploy.run.session import register

            register(options)
        source: Any
        proto, self._names = _float_outputs(model.proto)
        if model.path is not None and proto is model.proto:
            source = str(model.path)
        else:
            if model.folder is not None:
                options.add_session_config_entry(_FOLDER, str(model.folder.absolute()))
            source = proto.SerializeToString()
        self._session = ort.InferenceSession(source, options, providers=["CPUExecutionProvider"])
        self._values = ort.OrtValue

    def timed(self, feeds: Feeds) -> Callable[[], None]:
        """A call that runs the model on ``feeds`` and does little else: inputs and outputs are bound beforehand."""
        binding = self._session.io_binding()
        for name, array in feeds.items():
            binding.bind_ortvalue_input(name, self._value(array))
        for name in self._names:
            binding.bind_output(name)
        return lambda: self._session.run_with_iobinding(binding)

    def __call__(self, feeds: Feeds) -> list[Array]:
        """Run; bfloat16 outputs come back as float32."""
        values = {k: self._value(v) for k, v in feeds.items()}
        return [o.numpy() for o in self._session.run_with_ort_values(self._names, values)]

    def _value(self, array: Array) -> Any:
        if array.dtype.name == "bfloat16":
            import numpy as np

            return self._values.ortvalue_from_numpy_with_onnx_type(array.view(np.uint16), int(TensorProto.BFLOAT16))
        return self._values.ortvalue_from_numpy(array)


def _float_outputs(proto: ModelProto) -> tuple[ModelProto, list[str]]:
    """The model with bfloat16 outputs cast to float32, which NumPy can hold; and the names of its outputs."""
    narrow = [o for o in proto.graph.output if o.type.tensor_type.elem_type == TensorProto.BFLOAT16]
    if narrow:
        copy = ModelProto()
        copy.CopyFrom(proto)
        proto = copy
        taken = {v for n in proto.graph.node for v in n.output}
        for output in proto.graph.output:
            if output.type.tensor_type.elem_type != TensorProto.BFLOAT16:
                continue
            wide = f"{output.name}_float32"
            while wide in taken:
                wide += "_"
            proto.graph.node.append(onnx.helper.make_node("Cast", [output.name], [wide], to=TensorProto.FLOAT))
            output.name = wide
            output.type.tensor_type.elem_type = TensorProto.FLOAT
    return proto, [o.name for o in proto.graph.output]


def onnxruntime() -> Any:
    """The onnxruntime module.

    Raises:
        MissingEnvironment: it is not installed.
    """
    try:
        import onnxruntime as ort
    except ImportError as error:
        raise MissingEnvironment(
            "onnxruntime is not installed", "Install it: pip install 'rmsnorm-deploy[ort]'."
        ) from error
    return ort


def library_problem() -> str:
    """Why the library of kernels cannot be used here; empty where it can."""
    try:
        from rmsnorm_deploy.run.session import register

        register(onnxruntime().SessionOptions())
    except RmsNormDeployError as error:
        return error.message
    except Exception as error:  # onnxruntime raises its own types for a library that does not load
        return first_line(error)
    return ""


def machine() -> str:
    """The processor, in words."""
    name = platform.processor() or platform.machine()
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:  # noqa: PTH123  (not a path of ours)
            name = next((line.split(":", 1)[1].strip() for line in file if line.startswith("model name")), name)
    except OSError:
        pass
    return f"{name}, {os.cpu_count()} cores"


def count_ours(proto: ModelProto) -> int:
    """Nodes of our domain in the graph and its subgraphs; function bodies are not counted."""

    def count(graph: onnx.GraphProto) -> int:
        total = 0
        for node in graph.node:
            total += node.domain == DOMAIN
            for attribute in node.attribute:
                if attribute.HasField("g"):
                    total += count(attribute.g)
                total += sum(count(g) for g in attribute.graphs)
        return total

    return count(proto.graph)


def first_line(error: BaseException | str) -> str:
    """The first line of an error, shortened."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
