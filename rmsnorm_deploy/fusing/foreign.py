"""Functions in a file that have the name of an operator of ours and another meaning."""

from __future__ import annotations

from collections.abc import Iterable

import onnx_ir as ir

from rmsnorm_deploy.op import DOMAIN

FOREIGN = f"{DOMAIN}.foreign"
"""The domain to which such a function goes, with the nodes that call it."""

Identifier = tuple[str, str, str]


def move_foreign(model: ir.Model, identifiers: Iterable[Identifier]) -> tuple[list[ir.Node], list[ir.Function]]:
    """Move functions to the domain :data:`FOREIGN`, so that neither a kernel nor a body of ours takes their place.

    Args:
        model: the model; changed.
        identifiers: of the functions.

    Returns:
        The nodes that call them, and the functions that were changed.
    """
    nodes: list[ir.Node] = []
    functions: list[ir.Function] = []
    for identifier in identifiers:
        function = model.functions.pop(identifier)
        roots: list[ir.Graph | ir.Function] = [model.graph, function, *model.functions.values()]
        nodes += [n for root in roots for n in root.all_nodes() if n.op_identifier() == identifier]
        function.domain = FOREIGN
        model.functions[function.identifier()] = function
        functions.append(function)
    for node in nodes:
        node.domain = FOREIGN
    if functions:
        model.opset_imports[FOREIGN] = 1
        for other in model.functions.values():
            if any(n.domain == FOREIGN for n in other.all_nodes()):
                other.opset_imports[FOREIGN] = 1
                functions.append(other)
    return nodes, functions
