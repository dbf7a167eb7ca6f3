"""One norm alone: the part of a model between some of its values, as a model of its own."""

from __future__ import annotations

import onnx
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper

from rmsnorm_deploy.model.calls import is_bounded
from rmsnorm_deploy.model.graphs import subgraphs


def cut(
    model: ModelProto, inputs: list[tuple[str, int, list[int]]], outputs: list[tuple[str, int]]
) -> tuple[ModelProto, int] | None:
    """The nodes of the main graph that compute ``outputs`` from ``inputs``, and how many they are.

    Args:
        model: with its weights in memory; it is not changed.
        inputs: ``(name, element type, shape)`` of values at which the walk stops.
        outputs: ``(name, element type)`` of the wanted values.

    Returns:
        The model, or None where something else than ``inputs`` and initializers would have to be fed.
    """
    makers = {v: n for n in model.graph.node for v in n.output}
    initializers = {t.name: t for t in model.graph.initializer}
    stop = {name for name, _, _ in inputs}
    wanted, seen, kept = [name for name, _ in outputs], set(stop), set()
    tensors: list[TensorProto] = []
    while wanted:
        name = wanted.pop()
        if not name or name in seen:
            continue
        seen.add(name)
        if name in makers:
            node = makers[name]
            kept.add(id(node))
            wanted += reads(node)
        elif name in initializers:
            tensors.append(initializers[name])
        else:
            return None
    nodes = [n for n in model.graph.node if id(n) in kept]
    graph = helper.make_graph(
        nodes,
        "one_norm",
        [helper.make_tensor_value_info(name, kind, shape) for name, kind, shape in inputs],
        [helper.make_tensor_value_info(name, kind, None) for name, kind in outputs],
        tensors,
    )
    part = helper.make_model(graph, opset_imports=model.opset_import, functions=model.functions)
    part.ir_version = model.ir_version
    constants = sum(n.op_type == "Constant" for n in nodes)
    return part, len(nodes) - constants


def with_outputs(model: ModelProto, names: list[str]) -> ModelProto:
    """A copy whose only outputs are the values ``names``, in their own types.

    Args:
        model: it is not changed.
        names: values of the main graph.
    """
    copy = ModelProto()
    copy.CopyFrom(model)
    types = value_types(model)
    del copy.graph.output[:]
    for name in names:
        copy.graph.output.append(helper.make_tensor_value_info(name, types.get(name, TensorProto.FLOAT), None))
    return copy


def value_types(model: ModelProto) -> dict[str, int]:
    """Element types of the main graph's values, as declared or inferred."""
    graph = model.graph
    types = {t.name: t.data_type for t in graph.initializer}
    types |= _declared(graph)
    if any(o not in types for n in graph.node for o in n.output):
        if not is_bounded(model):
            return types
        try:
            types = _declared(onnx.shape_inference.infer_shapes(model).graph) | types
        except Exception:  # inference raises on models that runtimes accept
            return types
    return types


def _declared(graph: GraphProto) -> dict[str, int]:
    values = [*graph.input, *graph.value_info, *graph.output]
    return {v.name: v.type.tensor_type.elem_type for v in values if v.type.tensor_type.elem_type}


def reads(node: NodeProto) -> list[str]:
    """Names of the values that a node reads, those that its subgraphs capture included."""
    names = list(node.input)
    for _, _, graph in subgraphs(node):
        inner = {v for n in graph.node for v in n.output} | {v.name for v in graph.input}
        inner |= {t.name for t in graph.initializer}
        names += [v for n in graph.node for v in reads(n) if v not in inner]
        names += [o.name for o in graph.output if o.name not in inner]
    return names
