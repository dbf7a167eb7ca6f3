"""Whether a model in memory means anything, before anything is done with it."""

from __future__ import annotations

from onnx import GraphProto, ModelProto, TensorProto

from rmsnorm_deploy.errors import ModelError
from rmsnorm_deploy.model.equations import require_equations
from rmsnorm_deploy.model.graphs import AI_ONNX, graphs_of
from rmsnorm_deploy.model.text import require_text


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
    for output in graph.output:
        own = output.type.tensor_type.elem_type
        first = types.setdefault(output.name, own)
        if own and first and own != first:
            names = " and ".join(
                TensorProto.DataType.Name(t) if t in TensorProto.DataType.values() else str(t) for t in (first, own)
            )
            raise ModelError(
                f"{what} is not a valid model: its output '{output.name}' is declared twice, of types {names}",
                "Give the outputs names of their own; export the model again.",
            )
