"""A model without its weights: what the checker, shape inference and the version converter need of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import onnx
import onnx_ir as ir
from onnx import TensorProto

_LARGEST = 4096
"""Bytes of the largest tensor that is kept; what shape inference reads (axes, shapes) is smaller."""
_NOWHERE = "rmsnorm_deploy.left_out"
"""The weight file that the copies name; nobody opens it."""


def reference(name: str, data_type: int, dims: list[int]) -> TensorProto:
    """A tensor of this element type and shape that names data which are not there."""
    tensor = TensorProto(name=name, data_type=data_type, dims=dims, data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value=_NOWHERE)
    return tensor


def is_large(tensor: TensorProto) -> bool:
    """Whether :func:`without_weights` leaves a tensor out."""
    return int(tensor.ByteSize()) > _LARGEST


def is_left_out(tensor: TensorProto) -> bool:
    """Whether :func:`without_weights` has put a reference in the place of the tensor's data."""
    return any(e.key == "location" and e.value == _NOWHERE for e in tensor.external_data)


def without_weights(proto: onnx.ModelProto, leave_out: Callable[[TensorProto], bool] = is_large) -> onnx.ModelProto:
    """A copy whose large initializers are references to data that are not there.

    Args:
        proto: the model; it is not changed, and its weights are not copied.
        leave_out: whether the data of an initializer of the main graph are left out.
    """
    copy = onnx.ModelProto()
    _copy_fields(proto, copy, "graph")
    _copy_fields(proto.graph, copy.graph, "initializer")
    for tensor in proto.graph.initializer:
        if not leave_out(tensor):
            copy.graph.initializer.append(tensor)
            continue
        left = copy.graph.initializer.add()
        left.CopyFrom(reference(tensor.name, tensor.data_type, list(tensor.dims)))
        left.doc_string = tensor.doc_string
        left.metadata_props.extend(tensor.metadata_props)
    return copy


def _copy_fields(source: Any, target: Any, but: str) -> None:
    for field, value in source.ListFields():
        if field.name == but:
            continue
        if field.is_repeated:
            getattr(target, field.name).MergeFrom(value)
        elif field.message_type is not None:
            getattr(target, field.name).CopyFrom(value)
        else:
            setattr(target, field.name, value)


def ir_without_weights(model: ir.Model) -> tuple[ir.Model, dict[str, ir.TensorProtocol]]:
    """A copy of ``model`` without the data of its large initializers, and what was left out, by location.

    Raises:
        RuntimeError: onnx_ir cannot copy the model; so does ValueError.
    """
    copy = model.clone()
    left: dict[str, ir.TensorProtocol] = {}
    for value, tensor in _large(copy):
        location = f"{_NOWHERE}/{len(left)}"
        left[location] = tensor
        value.const_value = _ir_reference(value, tensor, location)
    return copy, left


def ir_skeleton(model: ir.Model) -> onnx.ModelProto:
    """``model`` as a proto whose large initializers are references to data that are not there.

    Nothing is copied, and nodes need not stand in order. For a moment the model itself lacks its weights.
    """
    left: list[tuple[ir.Value, ir.TensorProtocol]] = []
    try:
        for value, tensor in _large(model):
            left.append((value, tensor))
            value.const_value = _ir_reference(value, tensor, _NOWHERE)
        return ir.to_proto(model)
    finally:
        for value, tensor in left:
            value.const_value = tensor


def _large(model: ir.Model) -> Iterator[tuple[ir.Value, ir.TensorProtocol]]:
    """The initializers of a model that its copies leave out, with their data."""
    for graph in model.graphs():
        for value in graph.initializers.values():
            tensor = value.const_value
            if tensor is not None and tensor.dtype != ir.DataType.STRING and tensor.nbytes > _LARGEST:
                yield value, tensor


def _ir_reference(value: ir.Value, tensor: ir.TensorProtocol, location: str) -> ir.ExternalTensor:
    """As :func:`reference`, of an initializer of onnx_ir."""
    shape = ir.Shape([int(d) for d in tensor.shape])  # type: ignore[arg-type]
    return ir.ExternalTensor(location, 0, tensor.nbytes, tensor.dtype, shape=shape, name=value.name or "")


def put_back(model: ir.Model, left: dict[str, ir.TensorProtocol]) -> int:
    """Give a model made from such a copy the tensors that were left out. Returns how many it took."""
    taken = set()
    for graph in model.graphs():
        for value in graph.initializers.values():
            tensor = value.const_value
            if isinstance(tensor, ir.ExternalTensor) and tensor.location in left:
                value.const_value = left[tensor.location]
                taken.add(tensor.location)
    return len(taken)
