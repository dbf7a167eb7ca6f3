"""Whether a model in memory means anything, before anything is done with it."""

from __future__ import annotations

from onnx import GraphProto, ModelProto, TensorProto

from rmsnorm_deploy.errors import ModelError
from rmsnorm_deploy.model.equations import require_equations
from rmsnorm_deploy.model.graphs import AI_ONNX, graphs_of
from rmsnorm_deploy.model.text import require_text

_OF_CONSTANTS = {
    **dict.fromkeys(("value_float", "value_floats"), TensorProto.FLOAT),
    **dict.fromkeys(("value_int", "value_ints"), TensorProto.INT64),
    **dict.fromkeys(("value_string", "value_strings"), TensorProto.STRING),
}
"""The element types of the attributes of Constant that are no tensors."""


def require_sound(model: ModelProto, what: str) -> None:
    """Refuse a model with names that are no text, equations that are none, an opset or an output that is stated twice.

    Args:
        model: in memory.
        what: the model, for the message.

    Raises:
        ModelError: with what is wrong, and where.
    """
    require_text(model, what)
    require_equations(model, what)
    versions = sorted({i.version for i in model.opset_import if i.domain in AI_ONNX})
    if len(versions) > 1:
        raise ModelError(
            f"{what} is not a valid model: it imports ai.onnx in the versions {' and '.join(map(str, versions))}",
            "Leave the one that its nodes are written for; export the model again.",
        )
    for graph in graphs_of(model):
        _require_one_type(graph, what)


def _require_one_type(graph: GraphProto, what: str) -> None:
    """Runtimes take one of two types that an output has, and not each the same one."""
    types = {value.name: value.type.tensor_type.elem_type for value in graph.input}
    weights = _types_of_weights(graph) if graph.output else {}
    for output in graph.output:
        own = output.type.tensor_type.elem_type
        first = types.setdefault(output.name, own)
        if own and first and own != first:
            raise ModelError(
                f"{what} is not a valid model: its output '{output.name}' is declared twice, of types"
                f" {_names(first, own)}",
                "Give the outputs names of their own; export the model again.",
            )
        held = weights.get(output.name, own)
        if own and held != own:
            raise ModelError(
                f"{what} is not a valid model: its output '{output.name}' is a constant of type {_names(held)}, and"
                f" declared as {_names(own)}",
                "Declare the output as what it is; export the model again.",
            )


def _types_of_weights(graph: GraphProto) -> dict[str, int]:
    """The element types of what the graph holds, by name: of initializers and of what its Constant nodes give."""
    found = {tensor.name: tensor.data_type for tensor in graph.initializer}
    for node in graph.node:
        if node.op_type == "Constant" and node.domain in AI_ONNX and node.output:
            for attribute in node.attribute:
                if attribute.name == "value" and attribute.HasField("t"):
                    found[node.output[0]] = attribute.t.data_type
                elif attribute.name in _OF_CONSTANTS:
                    found[node.output[0]] = _OF_CONSTANTS[attribute.name]
    return found


def _names(*types: int) -> str:
    known = TensorProto.DataType.values()
    return " and ".join(TensorProto.DataType.Name(t) if t in known else str(t) for t in types)
