"""Running a model in onnxruntime on the CPU, from a path or from memory, bfloat16 and external data included."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, TensorProto

from rmsnorm_deploy.run.inputs import Array, Feeds
from rmsnorm_deploy.run.ort import onnxruntime
from rmsnorm_deploy.run.registering import register
from rmsnorm_deploy.run.runnable import Runnable

_FOLDER = "session.model_external_initializers_file_folder_path"


class Runner:
    """One onnxruntime session on the CPU.

    Args:
        model: what to run.
        library: use the library's kernels.
        optimise: onnxruntime's own optimizer, on or off.
        keep: write the optimized model to this file.
        threads: threads within one operator; 0 leaves it to onnxruntime.
        profile: onnxruntime writes what each operator took to a file whose name begins so.

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
        profile: Path | None = None,
    ) -> None:
        ort = onnxruntime()
        options = ort.SessionOptions()
        options.log_severity_level = 4
        options.intra_op_num_threads = threads
        if not optimise:
            options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        if keep is not None:
            options.optimized_model_filepath = str(keep)
        if profile is not None:
            options.enable_profiling = True
            options.profile_file_prefix = str(profile)
        if library:
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

    def end_profile(self) -> str:
        """Write the profile, and return its file."""
        return str(self._session.end_profiling())

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
        outputs = self._session.run_with_ort_values(self._names, values)
        # an output that is an input lies in the caller's memory, which may be gone before it is looked at
        pairs = zip(self._names, outputs, strict=True)
        return [o.numpy().copy() if name in values else o.numpy() for name, o in pairs]

    def _value(self, array: Array) -> Any:
        if array.dtype.name == "bfloat16":
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
