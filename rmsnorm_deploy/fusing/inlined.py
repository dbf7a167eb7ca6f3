"""Names that onnxruntime has given while it inlined functions, and would give again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import onnx_ir as ir

from rmsnorm_deploy.fusing.names import Names
from rmsnorm_deploy.fusing.touched import Touched
from rmsnorm_deploy.op.traces import INLINED, inlined_norms
from rmsnorm_deploy.recognise.scopes import Scope


def lost_norms(graphs: Iterable[Scope]) -> int:
    """How many of our nodes onnxruntime has inlined, as far as their names are still there."""
    return sum(inlined_norms(v.name or "" for v in _values([scope])) for scope in graphs)


def free_names(graphs: Sequence[Scope], touched: Touched) -> dict[str, str]:
    """Give other names to what onnxruntime has inlined: it does not look whether a name is taken when it inlines again.

    The session would fail with "Duplicate definition of name". It also gives one name to values of several subgraphs,
    which shape inference confuses. Inputs and outputs of the model keep their names.

    Args:
        graphs: every graph of the model, which is changed.
        touched: takes note of the changes.

    Returns:
        The new names of values of the main graph, by the old ones.
    """
    main = next(g.graph for g in graphs if g.holder is None and g.graph is g.root)
    fixed = {id(v) for v in (*main.inputs, *main.outputs)}
    values = [v for v in _values(graphs) if _is_inlined(v.name) and id(v) not in fixed]
    nodes = [n for g in graphs if isinstance(g.root, ir.Graph) for n in g.nodes if _is_inlined(n.name)]
    if not values and not nodes:
        return {}
    names = Names(graphs)
    renamed: dict[str, str] = {}
    for value in values:
        old, producer, tensor = value.name or "", value.producer(), value.const_value
        new = names.unique(old.removeprefix(INLINED))
        if (producer.graph if producer is not None else value.graph) is main:
            renamed[old] = new
        if value.is_initializer() and tensor is not None:
            value.const_value = _under(new, tensor)
        value.name = new
        for node in (*([producer] if producer is not None else []), *(node for node, _ in value.uses())):
            touched.node(node)
    for node in nodes:
        node.name = names.unique((node.name or "").removeprefix(INLINED))
        touched.node(node)
    return renamed


def has_inlined_names(graphs: Sequence[Scope]) -> bool:
    """Whether anything in the main graph or its subgraphs has such a name."""
    for graph in graphs:
        if not isinstance(graph.root, ir.Graph):
            continue
        if isinstance(graph.graph, ir.Graph) and any(_is_inlined(name) for name in graph.graph.initializers):
            return True
        # every node of every model passes here
        if any(_is_inlined(node.name) or any(_is_inlined(o.name) for o in node.outputs) for node in graph.nodes):
            return True
    return False


def _is_inlined(name: str | None) -> bool:
    return name is not None and name.startswith(INLINED)


def _values(graphs: Iterable[Scope]) -> Iterator[ir.Value]:
    for scope in graphs:
        if not isinstance(scope.root, ir.Graph):
            continue
        if isinstance(scope.graph, ir.Graph):
            yield from tuple(scope.graph.initializers.values())
        for node in scope.nodes:
            yield from node.outputs


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
