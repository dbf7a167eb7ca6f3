"""Weights that are computed when they are written: one at a time, whatever they are in all."""

from __future__ import annotations

from collections.abc import Mapping

import onnx
import onnx_ir as ir
from onnx import TensorProto

from rmsnorm_deploy.model.external import external_tensors
from rmsnorm_deploy.model.skeleton import reference

OUTSIDE = "rmsnorm_deploy.outside"
"""In a tensor's ``meta``: that it is to be written into a weight file, as what it is made of lies in one."""
_PREFIX = "rmsnorm_deploy.made/"
"""What the weight files are called that stand for them; nobody opens one."""

Made = Mapping[str, ir.TensorProtocol]
"""By the name of the weight file that stands for them."""


def set_aside(model: ir.Model) -> tuple[onnx.ModelProto, Made]:
    """``model`` as a proto that refers to what is still to be computed, and that.

    For a moment the model itself lacks those weights.

    Raises:
        RuntimeError: the model contradicts itself; so do other types, and an error of this package that a weight cannot
            be read.
    """
    made: dict[str, ir.TensorProtocol] = {}
    left: list[tuple[ir.Value, ir.TensorProtocol]] = []
    try:
        for graph in model.graphs():
            for value in graph.initializers.values():
                tensor = value.const_value
                if isinstance(tensor, ir.LazyTensor):
                    location = f"{_PREFIX}{len(made)}"
                    left.append((value, tensor))
                    made[location] = tensor
                    value.const_value = ir.ExternalTensor(
                        location, 0, tensor.nbytes, tensor.dtype, shape=tensor.shape, name=value.name or "", base_dir=""
                    )
        return ir.to_proto(model), made
    finally:
        for value, tensor in left:
            value.const_value = tensor


def location_of(tensor: TensorProto) -> str:
    """The name of the weight file that stands for a tensor which is to be computed; empty for every other tensor."""
    entries = tensor.external_data
    return next((e.value for e in entries if e.key == "location" and e.value.startswith(_PREFIX)), "")


def put_inside(proto: onnx.ModelProto, made: Made) -> None:
    """Compute everything that is to be computed, and put it into the message, which is changed."""
    for tensor in [t for t in external_tensors(proto) if location_of(t)]:
        held = made[location_of(tensor)]
        whole = reference(tensor.name, tensor.data_type, list(tensor.dims))
        whole.doc_string = tensor.doc_string
        whole.metadata_props.extend(tensor.metadata_props)
        whole.ClearField("data_location")
        del whole.external_data[:]
        whole.raw_data = held.tobytes()
        tensor.CopyFrom(whole)
