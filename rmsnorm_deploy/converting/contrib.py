"""onnxruntime's LayerNorms with an addition in them, taken apart for as long as it is not known whether they stay."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Sequence

import numpy as np
import onnx_ir as ir

from rmsnorm_deploy.converting.writing import take_over
from rmsnorm_deploy.fusing.names import Constants, Names
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
        outputs: how many outputs the operator has.
    """

    op_type: str
    name: str
    attributes: list[ir.Attr]
    nodes: list[ir.Node]
    inputs: Callable[[], Inputs]
    y: int
    total: int
    total_output: int = 0
    outputs: int = 1

    @property
    def norm(self) -> ir.Node:
        """The LayerNormalization."""
        return self.nodes[self.y]


def take_apart(nodes: Iterable[ir.Node], names: Names, root: ir.Graph) -> list[Apart]:
    """Write additions, look-ups and a LayerNormalization for every operator among ``nodes`` that has them in one.

    Args:
        nodes: of the main graph and its subgraphs, which are changed.
        names: gives names.
        root: the main graph.
    """
    constants, done = Constants(names), []
    for node in nodes:
        if node.domain != _DOMAIN or any(a.is_ref() for a in node.attributes.values()):
            continue
        if node.op_type == "SkipLayerNormalization":
            done.append(_skip(node, names))
        elif node.op_type == "EmbedLayerNormalization":
            done.append(_embed(node, names, lambda n: constants.value(root, "place", ir.Tensor(np.array([n])))))
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
        node = ir.Node(
            _DOMAIN, apart.op_type, apart.inputs(), apart.attributes, num_outputs=apart.outputs, name=apart.name
        )
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
    x, skip, gamma, beta, bias = [*node.inputs, *[None] * 5][:5]
    if x is None or skip is None or gamma is None or any(_is_used(o) for o in node.outputs[1:3]):
        return None
    name = node_name(node)
    # the bias first, as behind a product: the last addition is then that of a residual, which goes into the norm
    nodes = [] if bias is None else [_node("Add", [skip, bias], f"{name}_biased", names, x)]
    total = _node("Add", [x, nodes[0].outputs[0] if nodes else skip], f"{name}_sum", names, x)
    nodes.append(total)
    apart = _finished(node, names, nodes, gamma, beta, 3)

    def now() -> Inputs:
        norm = apart.norm
        added = [total.inputs[1], None] if bias is None else [*nodes[0].inputs]
        return _given(
            [total.inputs[0], added[0], norm.inputs[1], norm.inputs[2] if beta is not None else None, added[1]]
        )

    apart.inputs = now
    return apart


def _embed(node: ir.Node, names: Names, constant: Callable[[int], ir.Value]) -> Apart | None:
    ids, segments, words, positions, kinds, gamma, beta, _, places = [*node.inputs, *[None] * 9][:9]
    if ids is None or words is None or positions is None or gamma is None or any(map(_is_used, node.outputs[1:2])):
        return None
    if (segments is None) != (kinds is None):
        return None
    name, nodes = node_name(node), [_node("Gather", [words, ids], f"{node_name(node)}_words", names, words)]
    if places is not None:
        nodes.append(_node("Gather", [positions, places], f"{name}_positions", names, words))
    else:
        shape = _node("Shape", [ids], f"{name}_shape", names)
        length = _node("Slice", [shape.outputs[0], constant(1), constant(2)], f"{name}_length", names)
        first = [positions, constant(0), length.outputs[0], constant(0)]
        nodes = [shape, length, *nodes, _node("Slice", first, f"{name}_positions", names, words)]
    nodes.append(_node("Add", [n.outputs[0] for n in nodes[-2:]], f"{name}_sum", names, words))
    if segments is not None and kinds is not None:
        last = nodes[-1].outputs[0]
        nodes.append(_node("Gather", [kinds, segments], f"{name}_segments", names, words))
        nodes.append(_node("Add", [last, nodes[-1].outputs[0]], f"{name}_total", names, words))
    inputs = list(node.inputs)
    apart = _finished(node, names, nodes, gamma, beta, 2)
    apart.inputs = lambda: inputs
    return apart


def _finished(
    node: ir.Node, names: Names, nodes: list[ir.Node], gamma: ir.Value, beta: ir.Value | None, place: int
) -> Apart:
    """Put ``nodes``, the last of which gives the sum, and a LayerNormalization of that in the place of ``node``."""
    total, graph = nodes[-1].outputs[0], node.graph
    assert graph is not None
    epsilon = node.attributes.get("epsilon")
    held = [ir.AttrInt64("axis", -1), ir.AttrFloat32("epsilon", _EPSILON if epsilon is None else float(epsilon.value))]
    y = ir.Value(name=names.unique(f"{node_name(node)}_normed"), type=total.type)
    nodes.append(ir.Node("", "LayerNormalization", _given([total, gamma, beta]), held, outputs=[y], name=node.name))
    graph.insert_before(node, nodes)
    take_over(node.outputs[0], y)
    visible = len(node.outputs) > place and bool(node.outputs[place].name)
    if visible:
        take_over(node.outputs[place], total)
    attributes, outputs = list(node.attributes.values()), len(node.outputs)
    graph.remove(node, safe=True)
    last = len(nodes) - 1
    return Apart(
        node.op_type, node.name or "", attributes, nodes, list, last, last - 1, place if visible else 0, outputs
    )


def _is_used(value: ir.Value) -> bool:
    return bool(value.uses()) or value.is_graph_output()


def _given(inputs: Iterable[ir.Value | None]) -> Inputs:
    """Without those at the end that are left out."""
    found = list(inputs)
    while found and found[-1] is None:
        found.pop()
    return found


def _node(op_type: str, inputs: Inputs, name: str, names: Names, like: ir.Value | None = None) -> ir.Node:
    """A node whose result has the element type of ``like``; of another value it is an integer."""
    kind = ir.TensorType(ir.DataType.INT64) if like is None else like.type
    output = ir.Value(name=names.unique(name), type=kind)
    return ir.Node("", op_type, inputs, outputs=[output], name=names.unique(f"{output.name}_node"))
