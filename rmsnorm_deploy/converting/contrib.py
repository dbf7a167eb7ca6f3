"""onnxruntime's LayerNorms with an addition in them, taken apart for as long as it is not known whether they stay."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Sequence

import onnx_ir as ir

from rmsnorm_deploy.converting.writing import take_over
from rmsnorm_deploy.fusing.names import Names
from rmsnorm_deploy.recognise.facts import node_name

_DOMAIN = "com.microsoft"
_EPSILON = 1e-12
"""The default of both operators."""
Inputs = Sequence[ir.Value | None]


@dataclasses.dataclass
class Apart:
    """An operator that was taken apart.

    Attributes:
        op_type, name, attributes: of the operator.
        nodes: what stands for it.
        inputs: gives the operator's inputs as they are now, which may have been replaced.
        y: the number of the node whose output is the normalised value.
        total: the number of the one that gives the sum.
        total_output: which output of the operator the sum is; 0 where it has none.
    """

    op_type: str
    name: str
    attributes: list[ir.Attr]
    nodes: list[ir.Node]
    inputs: Callable[[], Inputs]
    y: int
    total: int
    total_output: int = 0

    @property
    def norm(self) -> ir.Node:
        """The LayerNormalization."""
        return self.nodes[self.y]


def take_apart(nodes: Iterable[ir.Node], names: Names) -> list[Apart]:
    """Write additions, look-ups and a LayerNormalization for every operator among ``nodes`` that has them in one.

    Args:
        nodes: of the main graph and its subgraphs, which are changed.
        names: gives names.
    """
    done = []
    for node in nodes:
        if node.domain == _DOMAIN and node.op_type == "SkipLayerNormalization":
            done.append(_skip(node, names))
    return [apart for apart in done if apart is not None]


def put_together(parts: Iterable[Apart], converted: Collection[ir.Node]) -> None:
    """Write the operators again whose LayerNormalization stays.

    Args:
        parts: what was taken apart.
        converted: the LayerNormalizations that are RMSNorms now.
    """
    for apart in parts:
        if apart.norm in converted:
            continue
        anchor, old = apart.norm, [apart.nodes[apart.y].outputs[0], apart.nodes[apart.total].outputs[0]]
        graph = anchor.graph
        assert graph is not None
        count = 1 + apart.total_output
        node = ir.Node(_DOMAIN, apart.op_type, apart.inputs(), apart.attributes, num_outputs=count, name=apart.name)
        for output in node.outputs[1:]:
            output.name = ""
        # in front of the first reader of the sum, which may stand before the norm
        graph.insert_before(apart.nodes[apart.total], node)
        take_over(old[0], node.outputs[0])
        if apart.total_output:
            take_over(old[1], node.outputs[apart.total_output])
        for part in reversed(apart.nodes):
            graph.remove(part, safe=True)


def _skip(node: ir.Node, names: Names) -> Apart | None:
    inputs = [*node.inputs, *[None] * 5][:5]
    x, skip, gamma, beta, bias = inputs
    unused = [o for o in node.outputs[1:3] if o.uses() or o.is_graph_output()]
    if x is None or skip is None or gamma is None or unused or any(a.is_ref() for a in node.attributes.values()):
        return None
    graph, name = node.graph, node_name(node)
    assert graph is not None
    nodes = [_add(x, skip, f"{name}_sum", names)]
    if bias is not None:
        nodes.append(_add(nodes[-1].outputs[0], bias, f"{name}_biased", names))
    total = nodes[-1].outputs[0]
    epsilon = node.attributes.get("epsilon")
    held = [ir.AttrInt64("axis", -1), ir.AttrFloat32("epsilon", _EPSILON if epsilon is None else float(epsilon.value))]
    given = [total, gamma] if beta is None else [total, gamma, beta]
    y = ir.Value(name=names.unique(f"{name}_normed"), type=x.type, shape=x.shape)
    nodes.append(ir.Node("", "LayerNormalization", given, held, outputs=[y], name=node.name))
    graph.insert_before(node, nodes)
    take_over(node.outputs[0], y)
    visible = len(node.outputs) > 3 and bool(node.outputs[3].name)
    if visible:
        take_over(node.outputs[3], total)
    attributes = list(node.attributes.values())
    graph.remove(node, safe=True)
    first, norm, has_bias = nodes[0], nodes[-1], bias is not None

    def now() -> Inputs:
        found = [*first.inputs, norm.inputs[1], norm.inputs[2] if beta is not None else None]
        found.append(nodes[1].inputs[1] if has_bias else None)
        while found[-1] is None:
            found.pop()
        return found

    return Apart(
        node.op_type, node.name or "", attributes, nodes, now, len(nodes) - 1, len(nodes) - 2, 3 if visible else 0
    )


def _add(left: ir.Value, right: ir.Value, name: str, names: Names) -> ir.Node:
    output = ir.Value(name=names.unique(name), type=left.type, shape=left.shape)
    return ir.Node("", "Add", [left, right], outputs=[output], name=names.unique(f"{output.name}_node"))
