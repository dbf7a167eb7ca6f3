"""Whether the equations of Einsum nodes are equations: onnx's shape inference does not end on many that are not."""

from __future__ import annotations

import re
from collections.abc import Iterable

from onnx import ModelProto, NodeProto

from rmsnorm_deploy.errors import ModelError
from rmsnorm_deploy.model.graphs import nodes_of

_TERM = rb"[A-Za-z]*(?:\.\.\.)?[A-Za-z]*"
_EQUATION = re.compile(rb"%b(?:,%b)*(?:->%b)?" % (_TERM, _TERM, _TERM))


def malformed_equation(nodes: Iterable[NodeProto]) -> NodeProto | None:
    """The first Einsum of ``nodes`` whose equation is none."""
    for node in nodes:
        if node.op_type == "Einsum":
            for attribute in node.attribute:
                if attribute.name == "equation" and not _EQUATION.fullmatch(attribute.s.replace(b" ", b"")):
                    return node
    return None


def require_equations(model: ModelProto, what: str) -> None:
    """Refuse a model with an Einsum whose equation is none.

    Args:
        model: in memory.
        what: the model, for the message.

    Raises:
        ModelError: with the node.
    """
    node = malformed_equation(nodes_of(model))
    if node is not None:
        equation = next(a.s for a in node.attribute if a.name == "equation")
        name = node.name or (node.output[0] if node.output else "without a name")
        raise ModelError(
            f"{what} is not a valid model: the equation {equation!r} of Einsum '{name}' is malformed",
            "It is damaged, or whoever wrote it made a mistake; download or export it again.",
        )
