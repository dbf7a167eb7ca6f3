"""Weights on their way from the model's files to TVM, each once in memory: none of them goes through protobuf."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from onnx import GraphProto, ModelProto, TensorProto, helper, numpy_helper
from onnx.external_data_helper import load_external_data_for_tensor

from rmsnorm_deploy.errors import ModelError, UsageError
from rmsnorm_deploy.model.external import external_reference, external_tensors, open_weights, weight_file
from rmsnorm_deploy.op import DOMAIN

SMALLEST = 4096
"""Bytes from which on an initializer is taken out."""
NODE = "RmsNormDeploy_Weight"
"""The operator of the node that stands for a tensor; its attribute ``index`` is the tensor's place in the list."""
_TYPES: dict[int, str] = {
    TensorProto.FLOAT: "float32",
    TensorProto.FLOAT16: "float16",
    TensorProto.BFLOAT16: "bfloat16",
    TensorProto.DOUBLE: "float64",
    TensorProto.INT8: "int8",
    TensorProto.UINT8: "uint8",
    TensorProto.INT32: "int32",
    TensorProto.INT64: "int64",
}


def taken_out(proto: ModelProto, folder: Path | None) -> tuple[ModelProto, list[Any]]:
    """``proto`` with a node in place of each large initializer of the main graph, and their values as TVM's tensors.

    Args:
        proto: the model; it is changed.
        folder: what its external data are relative to, or None where that is not known.

    Raises:
        ModelError: a weight file is missing, too short, or not safe to read.
        UsageError: weights are in files, and ``folder`` is None.
    """
    external = next(iter(external_tensors(proto)), None)
    if external is not None and folder is None:
        raise UsageError("the model's weights are in files of an unknown folder", "Give the model's path instead.")
    graph = proto.graph
    _four_bits_as_eight(graph, folder)
    values: list[Any] = []
    nodes, kept = [], []
    for tensor in graph.initializer:
        if not _is_large(tensor):
            kept.append(tensor)
            continue
        nodes.append(helper.make_node(NODE, [], [tensor.name], name=tensor.name, domain=DOMAIN, index=len(values)))
        # what the initializer said of its type and shape
        graph.value_info.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
        values.append(_read(tensor, folder))
    names = {n.name for n in nodes}
    inputs, rest = [v for v in graph.input if v.name not in names], list(graph.node)
    slim = ModelProto()  # protobuf frees what a message held only with the message
    for field, content in (("initializer", kept), ("input", inputs), ("node", [*nodes, *rest])):
        getattr(slim.graph, field).extend(content)
        graph.ClearField(field)
    slim.MergeFrom(proto)
    for tensor in external_tensors(slim):
        assert folder is not None  # or there would be none
        location, _, _ = external_reference(tensor)
        weight_file(folder, location, tensor.name)
        load_external_data_for_tensor(tensor, str(folder))
        tensor.data_location = TensorProto.DEFAULT
        del tensor.external_data[:]
    return slim, values


def _four_bits_as_eight(graph: GraphProto, folder: Path | None) -> None:
    """TVM has no tensors of 4 bits; what DequantizeLinear makes of the values is the same whatever holds them."""
    four = {TensorProto.INT4: np.int8, TensorProto.UINT4: np.uint8}
    tensors = {t.name: t for t in graph.initializer if t.data_type in four}
    for node in graph.node:
        if node.op_type != "DequantizeLinear":
            for name in node.input:
                tensors.pop(name, None)
    for name, tensor in tensors.items():
        if tensor.data_location == TensorProto.EXTERNAL:
            assert folder is not None  # see above
            location, _, _ = external_reference(tensor)
            weight_file(folder, location, name)
            load_external_data_for_tensor(tensor, str(folder))
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(four[tensor.data_type]), name))
    for field in (graph.input, graph.value_info):
        for i in reversed(range(len(field))):
            if field[i].name in tensors:
                del field[i]


def _is_large(tensor: TensorProto) -> bool:
    if tensor.data_type not in _TYPES or not tensor.name:
        return False
    if tensor.data_location != TensorProto.EXTERNAL and not tensor.HasField("raw_data"):
        return False
    size: int = math.prod(tensor.dims) * np.dtype(helper.tensor_dtype_to_np_dtype(tensor.data_type)).itemsize
    return size >= SMALLEST


def _read(tensor: TensorProto, folder: Path | None) -> Any:
    """The tensor's values, in memory that TVM has made."""
    made = tvm.runtime.empty(list(tensor.dims), _TYPES[tensor.data_type])
    width = made.dtype.itemsize
    memory = np.from_dlpack(made._create_view((math.prod(made.shape) * width,), "uint8"))
    if tensor.data_location != TensorProto.EXTERNAL:
        data = np.frombuffer(tensor.raw_data, np.uint8)
        if data.size != memory.size:
            raise ModelError(
                f"tensor '{tensor.name}' has {data.size} bytes instead of {memory.size}", "Export the model again."
            )
        memory[:] = data
    else:
        location, offset, _ = external_reference(tensor)
        assert folder is not None
        with open_weights(folder, location) as file:
            file.seek(offset)
            read = file.readinto(memory.data)  # type: ignore[attr-defined]
        if read != memory.size:
            raise ModelError(
                f"the weight file {folder / location} is too short: tensor '{tensor.name}' needs {memory.size} bytes "
                f"from {offset} on",
                "It was cut off or belongs to another export; copy or export it again.",
            )
    if _BIG_ENDIAN:
        memory.view(f"u{width}").byteswap(inplace=True)
    return made


_BIG_ENDIAN = np.dtype("=i2") != np.dtype("<i2")
"""The machine's byte order; ONNX files have the other one."""
