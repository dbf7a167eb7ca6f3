"""Raising a model's ai.onnx opset, without its weights passing through the converter."""

from __future__ import annotations

import onnx
import onnx_ir as ir


def raised(model: ir.Model, opset: int) -> ir.Model:
    """A copy of ``model`` at ai.onnx ``opset``, converted by onnx's version converter; tensors are shared.

    Raises:
        ValueError: the converter cannot do it; the message says why.
    """
    if model.functions:
        raise ValueError("onnx's version converter does not convert models with local functions")
    try:
        skeleton = model.clone()
    except (RuntimeError, ValueError) as error:
        raise ValueError(f"onnx_ir cannot copy it: {error}") from error
    weights: dict[str, ir.TensorProtocol] = {}
    for name, value in skeleton.graph.initializers.items():
        tensor = value.const_value
        if tensor is None or tensor.size <= 1024 or tensor.dtype == ir.DataType.STRING:
            continue
        weights[name] = tensor
        value.const_value = ir.ExternalTensor(
            "weights",
            0,
            tensor.nbytes,
            tensor.dtype,
            shape=ir.Shape([int(d) for d in tensor.shape]),  # type: ignore[arg-type]
            name=name,
        )
    proto = ir.to_proto(skeleton)
    try:
        converted = onnx.version_converter.convert_version(proto, opset)
    except Exception as error:  # the converter raises RuntimeError and its own types
        raise ValueError(str(error).strip().splitlines()[0]) from error
    if [v.name for v in converted.graph.output] != [v.name for v in proto.graph.output]:
        raise ValueError("onnx's version converter renamed an output")
    converted.ir_version = max(converted.ir_version, 10)
    converted.metadata_props.extend(p for p in proto.metadata_props if p not in converted.metadata_props)
    result = ir.from_proto(converted)
    for name, tensor in weights.items():
        if name not in result.graph.initializers:
            raise ValueError(f"onnx's version converter lost the weight '{name}'")
        result.graph.initializers[name].const_value = tensor
    return result
