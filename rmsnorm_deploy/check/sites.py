"""The places at which a fused model differs from its original: each cut out of both, all of them in one small model.

The names of values survive fusing, so a place is known by the values that it computes.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Mapping

from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, helper

from rmsnorm_deploy.fusing.report import FusedNorm
from rmsnorm_deploy.model.cut import reads
from rmsnorm_deploy.model.graphs import subgraphs
from rmsnorm_deploy.op import DOMAIN


@dataclasses.dataclass(frozen=True)
class Side:
    """The part of one model that computes the outputs of a place.

    Attributes:
        nodes: in the model's order.
        initializers: names of those that the nodes read.
        reads: names of the values at which it was cut.
    """

    nodes: tuple[NodeProto, ...]
    initializers: frozenset[str]
    reads: frozenset[str]


@dataclasses.dataclass(frozen=True)
class Site:
    """One norm in both models.

    Attributes:
        name: what people know it by: the module that the scale belongs to, the node in reports where norms share a
            scale, else the output.
        outputs: values that both models compute, by name.
        norm: as the fuser finds it in the original; None where it does not.
        original: the part of the original.
        fused: the part of the fused model.
        bordered: the cut is at the norm's own operands, which may then have any values.
        x: the value at the border that is normalised; "" where none is known.
    """

    name: str
    outputs: tuple[str, ...]
    norm: FusedNorm | None
    original: Side
    fused: Side
    bordered: bool
    x: str

    @property
    def border(self) -> list[str]:
        """Every value that has to be fed to one of the two."""
        return sorted(self.original.reads | self.fused.reads)


class Graph:
    """The main graph of a model, by the names of its values."""

    def __init__(self, model: ModelProto) -> None:
        graph = model.graph
        self.nodes = list(graph.node)
        self.makers = {v: i for i, n in enumerate(self.nodes) for v in n.output if v}
        self.initializers = {t.name: t for t in graph.initializer}
        self.inputs = {v.name for v in graph.input} - set(self.initializers)
        self._fixed = set(self.initializers)
        self._read = [reads(n) for n in self.nodes]
        for node, read in zip(self.nodes, self._read, strict=True):
            if not node.op_type.startswith("Random") and all(not v or v in self._fixed for v in read):
                self._fixed |= set(node.output)
        self.values = self.inputs | set(self.makers)

    def is_fixed(self, name: str) -> bool:
        """Whether the value depends on no input."""
        return name in self._fixed

    def up(self, outputs: Iterable[str], stop: frozenset[str]) -> Side:
        """What computes ``outputs`` from values in ``stop``; a value that nothing computes stops it as well."""
        wanted, kept, tensors, border, seen = list(outputs), set(), set(), set(), set()
        first = set(wanted)
        while wanted:
            name = wanted.pop()
            if not name or name in seen:
                continue
            seen.add(name)
            if name in self.initializers:
                tensors.add(name)
            elif name in stop and name not in first and not self.is_fixed(name):
                border.add(name)
            elif name in self.makers:
                kept.add(self.makers[name])
                wanted += self._read[self.makers[name]]
            else:
                border.add(name)
        return Side(tuple(self.nodes[i] for i in sorted(kept)), frozenset(tensors), frozenset(border))

    def down(self, name: str, shared: frozenset[str]) -> list[str]:
        """The first values behind ``name``, itself included, that are in ``shared``."""
        found, wanted, seen = [], [name], set()
        while wanted:
            value = wanted.pop()
            if value in seen:
                continue
            seen.add(value)
            if value in shared:
                found.append(value)
                continue
            wanted += [o for n, r in zip(self.nodes, self._read, strict=True) if value in r for o in n.output]
        return found


def find_sites(original: ModelProto, fused: ModelProto, norms: Iterable[FusedNorm]) -> list[Site]:
    """Every place where ``fused`` has a node of ours, or anything else in place of one of ``norms``, in graph order.

    Args:
        original: its main graph is looked at.
        fused: the same.
        norms: what the fuser finds in the original.
    """
    before, after = Graph(original), Graph(fused)
    shared = frozenset(before.values & after.values)
    found_in = [n for n in norms if not n.scope]
    by_output = {n.result: n for n in found_in} | {n.output: n for n in found_in}
    places: dict[str, list[str]] = {}
    for node in after.nodes:
        if node.domain == DOMAIN:
            outputs = [v for o in node.output if o for v in after.down(o, shared)]
        else:
            outputs = [
                o
                for o in node.output
                if o in by_output and o in before.makers and not _same(node, before.nodes[before.makers[o]])
            ]
        first = next((o for o in outputs if o in by_output), outputs[0] if outputs else "")
        if outputs:
            places.setdefault(first, []).extend([first, *outputs])
    sites = [_site(before, after, shared, tuple(dict.fromkeys(found)), by_output) for found in places.values()]
    # exporters merge equal scales, as those of norms that were never trained: then they name no module
    named = Counter(s.name for s in sites)
    return [dataclasses.replace(s, name=s.norm.node) if s.norm and named[s.name] > 1 else s for s in sites]


def _site(
    before: Graph,
    after: Graph,
    shared: frozenset[str],
    outputs: tuple[str, ...],
    by_output: Mapping[str, FusedNorm],
) -> Site:
    norm = next((by_output[o] for o in outputs if o in by_output), None)
    own = frozenset(outputs)
    bordered = False
    others = shared - own
    side = before.up(outputs, others)
    if norm is None:
        # what stands for a norm and for what follows it, such as a bias that was lost
        inside = [by_output[o] for n in side.nodes for o in n.output if o in by_output]
        norm = inside[0] if len(inside) == 1 else None
    if norm is not None:
        operands = frozenset(v for v in (norm.x, norm.residual, norm.scale) if v in before.values) - own
        narrow = before.up(outputs, operands)
        if narrow.reads <= operands and (norm.x in narrow.reads):
            side, bordered = narrow, True
    # a sum that one model computes by a node of its own, and the other inside its norm, is no border
    within = frozenset(v for n in side.nodes for v in n.output)
    other = after.up(outputs, (others - within) | side.reads)
    x = norm.x if norm is not None else ""
    if bordered and not other.reads <= side.reads:
        # the fused norm may read what the original only makes of its X, by a cast to the same type
        near = after.up(outputs, others)
        again = before.up(outputs, near.reads)
        own_x = next((n.input[0] for n in reversed(near.nodes) if n.domain == DOMAIN), "")
        if again.reads <= near.reads and own_x in again.reads:
            side, other, x = again, near, own_x
    label = _label(norm.scale) if norm is not None else ""
    return Site(label or outputs[0], outputs, norm, side, other, bordered, x)


def _label(scale: str) -> str:
    """The module of a scale: "model.layers.3.norm.weight" becomes "model.layers.3.norm"; "" for other names."""
    module, dot, leaf = scale.rpartition(".")
    return module if dot and leaf in ("weight", "scale", "gamma", "g") else ""


def _same(a: NodeProto, b: NodeProto) -> bool:
    return (a.op_type, a.domain, list(a.input)) == (b.op_type, b.domain, list(b.input)) and list(a.attribute) == list(
        b.attribute
    )


def batch(
    model: ModelProto, parts: Mapping[str, Side], feeds: Mapping[str, tuple[int, int]], outputs: Mapping[str, str]
) -> ModelProto:
    """Parts of a model side by side in one model, so that one session runs them all.

    Args:
        model: where they come from; its weights may be outside.
        parts: by a prefix that their values get.
        feeds: element type and rank of each value to feed, by its prefixed name.
        outputs: the prefixed name of each wanted value, and the name of the value itself.
    """
    tensors = {t.name: t for t in model.graph.initializer}
    used: dict[str, TensorProto] = {}
    nodes = []
    for prefix, side in parts.items():
        used |= {name: tensors[name] for name in side.initializers}
        names = {v: prefix + v for n in side.nodes for v in n.output if v} | {v: prefix + v for v in side.reads}
        for node in side.nodes:
            copy = NodeProto()
            copy.CopyFrom(node)
            copy.name = prefix + node.name if node.name else ""
            _rename(copy, names)
            nodes.append(copy)
    graph = helper.make_graph(
        nodes,
        "norms",
        [
            helper.make_tensor_value_info(name, kind, [f"{name}_{d}" for d in range(rank)])
            for name, (kind, rank) in feeds.items()
        ],
        [ValueInfoProto(name=name) for name in outputs],
        list(used.values()),
    )
    made = helper.make_model(graph, opset_imports=model.opset_import, functions=model.functions)
    made.ir_version = model.ir_version
    return made


def _rename(node: NodeProto, names: Mapping[str, str]) -> None:
    for field in (node.input, node.output):
        for i, name in enumerate(field):
            field[i] = names.get(name, name)
    for _, _, graph in subgraphs(node):
        for inner in graph.node:
            _rename(inner, names)
        for output in graph.output:
            output.name = names.get(output.name, output.name)
