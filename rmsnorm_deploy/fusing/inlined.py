"""Names that onnxruntime has given while it inlined functions, and would give again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import onnx_ir as ir

from rmsnorm_deploy.fusing.names import Names
from rmsnorm_deploy.fusing.touched import Touched
from rmsnorm_deploy.op.traces import INLINED, inlined_norms
from rmsnorm_deploy.recognise.scopes import Scope


def lost_norms(graphs: Iterable[Scope]) -> int:
    """How many of our nodes onnxruntime has inlined, as far as their names are still there."""
    return inlined_norms(v.name or "" for v in _values(graphs))


def taken_names(graphs: Iterable[Scope]) -> int:
    """How many values and nodes have a name that onnxruntime may give to another one when it inlines a function."""
    graphs = list(graphs)
    nodes = (n for g in graphs if isinstance(g.root, ir.Graph) for n in g.nodes)
    return len(_renamed_values(graphs)) + sum((n.name or "").startswith(INLINED) for n in nodes)


def free_names(graphs: Iterable[Scope], touched: Touched) -> dict[str, str]:
    """Give other names to what onnxruntime has inlined: it does not look whether a name is taken when it inlines again.

    The session would fail with "Duplicate definition of name". Outputs of the model keep their names.

    Args:
        graphs: every graph of the model, which is changed.
        touched: takes note of the changes.

    Returns:
        The new names of values, by the old ones.
    """
    graphs = list(graphs)
    values = _renamed_values(graphs)
    nodes = [n for g in graphs if isinstance(g.root, ir.Graph) for n in g.nodes if (n.name or "").startswith(INLINED)]
    if not values and not nodes:
        return {}
    names = Names(graphs)
    renamed: dict[str, str] = {}
    for value in values:
        old = value.name or ""
        # graphs beside each other may give one name to two values
        new = renamed.setdefault(old, "") or names.unique(old.removeprefix(INLINED))
        renamed[old] = new
        tensor = value.const_value
        if value.is_initializer() and tensor is not None:
            value.const_value = _under(new, tensor)
        value.name = new
        producer = value.producer()
        for node in (*([producer] if producer is not None else []), *(node for node, _ in value.uses())):
            touched.node(node)
    for node in nodes:
        node.name = names.unique((node.name or "").removeprefix(INLINED))
        touched.node(node)
    return renamed


def _values(graphs: Iterable[Scope]) -> Iterator[ir.Value]:
    for scope in graphs:
        if not isinstance(scope.root, ir.Graph):
            continue
        if isinstance(scope.graph, ir.Graph):
            yield from scope.graph.initializers.values()
        for node in scope.nodes:
            yield from node.outputs


def _renamed_values(graphs: Iterable[Scope]) -> list[ir.Value]:
    graphs = list(graphs)
    fixed = {
        id(v) for g in graphs if g.holder is None and g.graph is g.root for v in (*g.graph.inputs, *g.graph.outputs)
    }
    return [v for v in _values(graphs) if (v.name or "").startswith(INLINED) and id(v) not in fixed]


def _under(name: str, tensor: ir.TensorProtocol) -> ir.TensorProtocol:
    """The same tensor with another name; the one that is there may be the caller's."""
    if isinstance(tensor, ir.ExternalTensor):
        return ir.ExternalTensor(
            tensor.location,
            tensor.offset,
            tensor.length,
            tensor.dtype,
            shape=tensor.shape,
            name=name,
            doc_string=tensor.doc_string,
            metadata_props=tensor.metadata_props,
            base_dir=tensor.base_dir,
        )
    shape = ir.Shape([int(d) for d in tensor.shape])  # type: ignore[arg-type]
    if isinstance(tensor, ir.StringTensor):
        return ir.StringTensor(tensor.string_data(), shape=shape, name=name)
    return ir.LazyTensor(lambda: tensor, dtype=tensor.dtype, shape=shape, name=name)
