"""A decision carried out on a model that is ours to change."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator

import numpy as np
import onnx_ir as ir

from rmsnorm_deploy.converting.bias import Product, products_behind
from rmsnorm_deploy.converting.centring import Array
from rmsnorm_deploy.converting.contents import edited, lazy, looked_up
from rmsnorm_deploy.converting.decide import Decision
from rmsnorm_deploy.converting.norms import Norm
from rmsnorm_deploy.converting.stream import How, Stream
from rmsnorm_deploy.converting.writers import is_leaf, read, require_place, stored, tensor_of, vector_behind
from rmsnorm_deploy.converting.writing import Writer, take_over
from rmsnorm_deploy.fusing.names import Names
from rmsnorm_deploy.model.dead import remove_dead
from rmsnorm_deploy.recognise.facts import Facts, is_op, node_name


@dataclasses.dataclass(frozen=True)
class Biases:
    """What becomes of the biases behind the norms.

    Attributes:
        folded: the products that take each of them in, by norm.
        absent: the norms whose bias is zero.
    """

    folded: dict[ir.Node, list[Product]]
    absent: frozenset[ir.Node]


def biases(facts: Facts, decision: Decision) -> Biases:
    """What is to become of the biases. The biases themselves are read, and nothing is changed.

    Raises:
        ModelError: the data of one are not there.
    """
    edited = {value for stream in decision.converted for value, _ in stream.constants}
    for value in edited:
        tensor = tensor_of(stored(value)) if is_leaf(value) else None
        if tensor is not None:
            require_place(tensor, value.name)
    norms = [n for stream in decision.converted for n in stream.norms if n.is_operator and n.bias is not None]
    absent = frozenset(n.node for n in norms if _is_zero(n.bias))
    folded: dict[ir.Node, list[Product]] = {}
    for norm in norms:
        products = None if norm.node in absent else products_behind(facts, norm, edited)
        if products:
            folded[norm.node] = products
    return Biases(folded, absent)


def _is_zero(value: ir.Value | None) -> bool:
    leaf = None if value is None else vector_behind(value)
    tensor = None if leaf is None else tensor_of(leaf)
    return tensor is not None and leaf is not None and not np.any(read(tensor, leaf.name))


class Applier:
    """Changes a model.

    Args:
        decision: what is to be done.
        found: what becomes of biases.
        writer: writes nodes.
        names: gives names.
        facts: what is known of the model before it is changed.

    Attributes:
        rest: what is left of LayerNorms that were spelled out: the readers of the value without a mean.
    """

    def __init__(self, decision: Decision, found: Biases, writer: Writer, names: Names, facts: Facts) -> None:
        self._decision, self._biases, self._writer, self._names = decision, found, writer, names
        self._facts = facts
        self.rest: set[ir.Node] = set()
        self._made: dict[tuple[ir.Value, How], ir.Value] = {}
        self._centred: dict[tuple[ir.Value, int], ir.Value] = {}
        self._means: dict[tuple[ir.Value, ir.DataType], ir.Value] = {}
        self._copied: dict[ir.Value, bool] = {}
        self._loose: list[ir.Node] = []

    def run(self) -> None:
        """Do it."""
        streams = self._decision.converted
        self._products()
        ways = {key for stream in streams for key in stream.constants}
        by_value: dict[ir.Value, set[tuple[ir.Node, int]]] = {}
        for stream in streams:
            for (value, _), constant in stream.constants.items():
                by_value.setdefault(value, set()).update(constant.edges)
        for value in by_value:
            self._copied[value] = self._is_copied(value, by_value)
        self._constants(streams, by_value)
        for value, how in ways:
            if is_leaf(value) and not self._copied[value]:
                self._edit(value, how)
        for stream in streams:
            self._sources(stream)
        for stream in streams:
            self._unscale(stream)
        for stream in streams:
            for norm in stream.norms:
                self._norm(norm)
        remove_dead(self._loose)

    # -- constants ------------------------------------------------------------------------------------------------

    def _is_copied(self, value: ir.Value, edges: dict[ir.Value, set[tuple[ir.Node, int]]]) -> bool:
        """Whether a constant or anything that it is made of stays for others."""
        if value in self._decision.copied:
            return True
        if is_leaf(value):
            return False
        node = value.producer()
        return node is not None and any(v in edges and self._is_copied(v, edges) for v in node.inputs if v is not None)

    def _constants(self, streams: Iterable[Stream], by_value: dict[ir.Value, set[tuple[ir.Node, int]]]) -> None:
        """Give the readers of what is copied the copy."""
        for stream in streams:
            for (value, how), constant in stream.constants.items():
                if not self._copied[value]:
                    continue
                for node, index in constant.edges:
                    if not any(o in by_value for o in node.outputs):  # else its own copy reads the copy
                        node.replace_input_with(index, self._copy(stream, value, how))
                        self._loose_behind(value)

    def _copy(self, stream: Stream, value: ir.Value, how: How) -> ir.Value:
        made = self._made.get((value, how))
        if made is None:
            made = self._new_leaf(value, how) if is_leaf(value) else self._new_node(stream, value, how)
            self._made[value, how] = made
        return made

    def _new_leaf(self, value: ir.Value, how: How) -> ir.Value:
        tensor = tensor_of(value)
        assert tensor is not None
        name = self._names.unique(f"{value.name}_centred")
        return self._register(value, lazy(tensor, name, edited(tensor, value.name, how)), name)

    def _register(self, beside: ir.Value, tensor: ir.LazyTensor, name: str) -> ir.Value:
        """A new initializer of the graph that ``beside`` is in."""
        new = ir.Value(name=name, type=ir.TensorType(tensor.dtype), shape=tensor.shape, const_value=tensor)
        producer = beside.producer()
        graph = beside.graph if producer is None else producer.graph
        assert isinstance(graph, ir.Graph)
        graph.register_initializer(new)
        return new

    def _new_node(self, stream: Stream, value: ir.Value, how: How) -> ir.Value:
        """A copy of the node that a constant comes from, of the copies of what that reads."""
        node = value.producer()
        assert node is not None
        assert node.graph is not None
        inputs = list(node.inputs)
        for index, part in stream.constants[value, how].parts.items():
            inner = node.inputs[index]
            if inner is not None and self._copied.get(inner):
                inputs[index] = self._copy(stream, inner, part)
        if value in stream.scaled:
            scaled = inputs[stream.scaled[value]]
            assert scaled is not None
            return scaled
        output = ir.Value(name=self._names.unique(f"{value.name}_centred"), type=value.type, shape=value.shape)
        copy = ir.Node(node.domain, node.op_type, inputs, node.attributes.values(), outputs=[output])
        copy.name = self._names.unique(f"{output.name}_node")
        node.graph.insert_after(node, copy)
        return output

    def _edit(self, value: ir.Value, how: How) -> None:
        """Change a constant where it is: nobody else reads it."""
        tensor = tensor_of(value)
        assert tensor is not None
        self._replace(value, lazy(tensor, value.name, edited(tensor, value.name, how)))

    def _replace(self, value: ir.Value, tensor: ir.LazyTensor) -> None:
        """``value`` holds another tensor from now on."""
        producer = value.producer()
        if producer is None:
            value.const_value = tensor
            return
        new = self._register(value, tensor, self._names.unique(f"{value.name}_new"))
        ir.convenience.replace_all_uses_with(value, new)
        self._loose.append(producer)

    # -- what is centred while the model runs ----------------------------------------------------------------------

    def _sources(self, stream: Stream) -> None:
        for value, source in stream.sources.items():
            made = self._centred.get((value, source.axis))
            if made is None:
                nodes = self._writer.zero(value) if source.is_flat else self._centring(value, source.axis)
                _insert_behind(value, nodes)
                made = self._centred[value, source.axis] = nodes[-1].outputs[0]
            for node, index in stream.edges.get(value, ()):
                node.replace_input_with(index, made)

    def _centring(self, value: ir.Value, axis: int) -> list[ir.Node]:
        table = _table_behind(value) if axis == -1 else None
        if table is None:
            return self._writer.centring(value, axis)
        leaf, rows = table
        wide = self._writer.wide(value)
        means = self._means.get((leaf, wide))
        if means is None:
            tensor = tensor_of(leaf)
            assert tensor is not None
            name = self._names.unique(f"{leaf.name}_means")
            means = self._register(leaf, looked_up(tensor, leaf.name, name, wide), name)
            self._means[leaf, wide] = means
        return self._writer.looking_up(value, means, rows)

    def _unscale(self, stream: Stream) -> None:
        """Take out the products with what was folded into the weights in front of them."""
        for value, index in stream.scaled.items():
            node = value.producer()
            if node is None or self._copied.get(value):
                continue
            if any(value in other.sources for other in self._decision.converted):
                continue
            inner = node.inputs[index]
            assert inner is not None
            ir.convenience.replace_all_uses_with(value, inner)
            self._loose.append(node)

    # -- norms -----------------------------------------------------------------------------------------------------

    def _norm(self, norm: Norm) -> None:
        node = norm.node
        if not norm.is_operator:
            self.rest.update(_readers(norm.output))
            self._drop(node, norm.index)
            # what is made of squares or products of a source is made of a value with its mean
            if not self._reads_source(norm):
                for difference in norm.differences:
                    self._drop(difference, 0)
            return
        gone = node in self._biases.absent or node in self._biases.folded
        x = node.inputs[0]  # the value that is centred by now
        assert x is not None
        bias = None if gone else norm.bias
        nodes = self._writer.norm(node_name(node), x, norm.epsilon, norm.scale, bias, output=self._output_type(norm, x))
        assert node.graph is not None
        node.graph.insert_before(node, nodes)
        take_over(norm.output, nodes[-1].outputs[0])
        self._loose.append(node)

    def _reads_source(self, norm: Norm) -> bool:
        """Whether a norm reads what is centred for it alone, and others read as it is."""
        edge = norm.node, norm.index
        return any(
            norm.x in stream.sources and edge in stream.edges.get(norm.x, ()) for stream in self._decision.converted
        )

    def _output_type(self, norm: Norm, x: ir.Value) -> ir.DataType:
        """That of onnxruntime's own LayerNormalization, which is older than the standard's, is its scale's."""
        known = norm.output.dtype or self._facts.dtype(norm.scale) or self._facts.dtype(x)
        return known or ir.DataType.FLOAT

    def _drop(self, node: ir.Node, index: int) -> None:
        """Let an input of a node stand for its result."""
        value = node.inputs[index]
        assert value is not None
        ir.convenience.replace_all_uses_with(node.outputs[0], value)
        self._loose.append(node)

    def _products(self) -> None:
        for norm, products in self._biases.folded.items():
            vector = vector_behind(norm.inputs[2]) if norm.inputs[2] is not None else None
            tensor = None if vector is None else tensor_of(vector)
            assert vector is not None
            assert tensor is not None
            for product in products:
                self._fold(product, tensor, vector.name)

    def _fold(self, product: Product, vector: ir.TensorProtocol, name: str | None) -> None:
        bias = product.bias
        old, matrix = tensor_of(bias), tensor_of(product.matrix)
        assert old is not None
        assert matrix is not None

        def new() -> Array:
            return product.new_bias(read(vector, name), read(old, bias.name), read(matrix, product.matrix.name))

        if len(bias.uses()) == 1 and not bias.is_graph_output():
            self._replace(bias, lazy(old, bias.name, new))
            return
        copy = self._names.unique(f"{bias.name}_folded")
        product.holder.replace_input_with(product.index, self._register(bias, lazy(old, copy, new), copy))

    def _loose_behind(self, value: ir.Value) -> None:
        node = value.producer()
        if node is not None:
            self._loose.append(node)


def _readers(value: ir.Value) -> Iterator[ir.Node]:
    """What reads a value, also in another type."""
    for node, _ in value.uses():
        yield node
        if is_op(node, "Cast", "Identity"):
            yield from _readers(node.outputs[0])


def _table_behind(value: ir.Value) -> tuple[ir.Value, ir.Value] | None:
    """The constant matrix that ``value`` is rows of, which others read as well, and which rows; None if it is not."""
    node = value.producer()
    if node is None or not is_op(node, "Gather") or len(node.inputs) != 2:
        return None
    table, rows = node.inputs
    axis = node.attributes.get("axis")
    if table is None or rows is None or not is_leaf(table) or table.is_graph_input() or (axis and axis.is_ref()):
        return None
    tensor = tensor_of(table)
    is_rows = tensor is not None and len(tensor.shape) == 2 and (axis is None or axis.value in (0, -2))
    return (table, rows) if is_rows else None


def _insert_behind(value: ir.Value, nodes: list[ir.Node]) -> None:
    producer = value.producer()
    if producer is not None:
        assert producer.graph is not None
        producer.graph.insert_after(producer, nodes)
        return
    graph = value.graph
    assert isinstance(graph, ir.Graph)
    graph.insert_before(next(iter(graph)), nodes)
