"""What a model holds of ours and needs no longer: function bodies, and imports of our domain."""

from __future__ import annotations

import onnx_ir as ir

from rmsnorm_deploy.op import DOMAIN
from rmsnorm_deploy.op.naming import is_ours


def clear(model: ir.Model) -> None:
    """Take away our function bodies that nothing calls, and our domain where nothing is of it.

    Args:
        model: the model; changed.
    """
    functions, called = model.functions, called_in(model)
    for identifier in [i for i in functions if is_ours(i[0], i[1]) and i not in called]:
        del functions[identifier]
    for function in functions.values():
        if not is_ours(function.domain, function.name) and not _calls_us(function):
            function.opset_imports.pop(DOMAIN, None)
    if not _calls_us(model.graph) and not any(domain == DOMAIN for domain, _, _ in functions):
        model.opset_imports.pop(DOMAIN, None)


def called_in(model: ir.Model) -> set[ir.OperatorIdentifier]:
    """The operators and functions that nodes of a model call, those of subgraphs and functions included."""
    roots: list[ir.Graph | ir.Function] = [model.graph, *model.functions.values()]
    return {n.op_identifier() for root in roots for n in root.all_nodes()}


def holds_ours(model: ir.Model) -> bool:
    """Whether any node of a model is of our domain, those of subgraphs and other functions included."""
    others = (f for f in model.functions.values() if not is_ours(f.domain, f.name))
    return _calls_us(model.graph) or any(map(_calls_us, others))


def _calls_us(root: ir.Graph | ir.Function) -> bool:
    return any(n.domain == DOMAIN for n in root.all_nodes())
