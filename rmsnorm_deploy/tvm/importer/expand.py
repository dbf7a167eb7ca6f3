"""Operators that TVM lacks, written out in the operators by which ONNX itself defines them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import onnx
import onnx.inliner
from onnx import FunctionProto, ModelProto, NodeProto, TypeProto, defs

from rmsnorm_deploy.model.graphs import AI_ONNX, forget_negative_sizes, nodes_of, opset_of
from rmsnorm_deploy.model.skeleton import without_weights

_DOMAIN = "rmsnorm_deploy.expanded"


def expanded(proto: ModelProto, convertible: Callable[[NodeProto], bool]) -> ModelProto:
    """``proto`` with every standard operator written out that is not ``convertible`` but is defined by a function."""
    opset = opset_of(proto)
    for _ in range(4):  # a definition may use operators that have one themselves
        wanted = [n for n in nodes_of(proto.graph) if n.domain in AI_ONNX and not convertible(n)]
        types = _types(proto) if wanted else {}
        made = 0
        for node in wanted:
            function = _definition(node, opset, types)
            if function is None:
                continue
            made += 1
            function.domain, function.name = _DOMAIN, f"{node.op_type}_{made}"
            node.domain, node.op_type = function.domain, function.name
            proto.functions.append(function)
        if not made:
            break
        proto.opset_import.append(onnx.helper.make_opsetid(_DOMAIN, 1))
        proto = onnx.inliner.inline_local_functions(proto)
        rest = [o for o in proto.opset_import if o.domain != _DOMAIN]
        del proto.opset_import[:]
        proto.opset_import.extend(rest)
    return proto


def _types(proto: ModelProto) -> dict[str, TypeProto]:
    """Types of the values, as far as they can be inferred; weights are not copied for that."""
    bare = without_weights(proto)
    forget_negative_sizes(bare)
    try:
        graph = onnx.shape_inference.infer_shapes(bare).graph
    except onnx.shape_inference.InferenceError:
        graph = bare.graph
    weights = {t.name: onnx.helper.make_tensor_type_proto(t.data_type, t.dims) for t in graph.initializer}
    return weights | {v.name: v.type for v in (*graph.input, *graph.value_info, *graph.output)}


def _definition(node: NodeProto, opset: int, types: dict[str, TypeProto]) -> FunctionProto | None:
    try:
        schema: Any = defs.get_schema(node.op_type, opset, "")
    except defs.SchemaError:
        return None
    # a function's attributes have no default values of their own
    given = {a.name for a in node.attribute}
    node.attribute.extend(
        a.default_value for n, a in schema.attributes.items() if n not in given and a.default_value.type
    )
    function = FunctionProto()
    if schema.has_function:
        version = max((v for v in schema.function_opset_versions if v <= opset), default=None)
        if version is None:
            return None
        function.ParseFromString(schema.get_function_with_opset_version(version))
    elif schema.has_context_dependent_function:
        versions = [v for v in schema.context_dependent_function_opset_versions if v <= opset]
        if not versions or any(i and i not in types for i in node.input):
            return None
        inputs = [(types[i] if i else TypeProto()).SerializeToString() for i in node.input]
        body = schema.get_context_dependent_function_with_opset_version(max(versions), node.SerializeToString(), inputs)
        if not body:
            return None
        function.ParseFromString(body)
    else:
        return None
    if not all(_unchanged(n, function, opset) for n in function.node):
        return None
    # only functions of the model's own opset are inlined
    del function.opset_import[:]
    function.opset_import.append(onnx.helper.make_opsetid("", opset))
    return function


def _unchanged(node: NodeProto, function: FunctionProto, opset: int) -> bool:
    """Whether the operator has the inputs and attributes in the model's opset that it has in the function's."""
    own = next((o.version for o in function.opset_import if o.domain in AI_ONNX), opset)
    if own == opset or node.domain not in AI_ONNX:
        return True
    then, now = (defs.get_schema(node.op_type, version, "") for version in (own, opset))
    return [i.name for i in then.inputs] == [i.name for i in now.inputs] and set(then.attributes) == set(now.attributes)
