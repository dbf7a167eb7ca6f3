"""One node of ours, brought into the form in which this package writes it."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable

import onnx_ir as ir
from onnx import AttributeProto

from rmsnorm_deploy.fusing.touched import Touched
from rmsnorm_deploy.op import Op, min_opset
from rmsnorm_deploy.op.definition import ATTRIBUTES
from rmsnorm_deploy.recognise.facts import Facts, node_name
from rmsnorm_deploy.recognise.match import Match, Miss
from rmsnorm_deploy.recognise.our_nodes import read
from rmsnorm_deploy.recognise.scopes import Scope

_LISTS = frozenset(a.name for a in ATTRIBUTES if a.kind == AttributeProto.INTS)


@dataclasses.dataclass(frozen=True)
class OurNode:
    """A node of ours.

    Attributes:
        scope: the graph that it stands in.
        node: the node.
        op: its operator.
        calls: the function that it called in the file, whether that is there or not.
    """

    scope: Scope
    node: ir.Node
    op: Op
    calls: tuple[str, str, str]

    @property
    def label(self) -> str:
        """What messages call it."""
        return f"node '{node_name(self.node)}' ({self.op.value})"


class Repairs:
    """What was repaired so far, and the tools for it.

    Args:
        model: the model.
        opset: its ai.onnx opset.
        version: of our domain, in which its nodes are written.
        touched: takes note of every change.
        unique: gives a name that the model does not use yet, from a wish.

    Attributes:
        counts: how many norms were repaired, by what was wrong with them.
        warnings: what could not be repaired, one sentence each.
    """

    def __init__(
        self, model: ir.Model, opset: int, version: int, touched: Touched, unique: Callable[[str], str]
    ) -> None:
        self.counts: collections.Counter[str] = collections.Counter()
        self.warnings: list[str] = []
        self._imports, self._opset, self._version = model.opset_imports, opset, version
        self._touched, self._unique = touched, unique

    def name(self, n: OurNode) -> None:
        """Give the node its operator's name, where a tool has put a prefix before it."""
        if (n.node.op_type, n.node.overload) != (n.op.value, ""):
            n.node.op_type, n.node.overload = n.op.value, ""
            self._note(n, "names")

    def claims(self, n: OurNode, facts: Facts) -> bool:
        """Make what the file says of the outputs' types that of X. Returns whether anything was wrong."""
        x = n.node.inputs[0] if n.node.inputs else None
        own = facts.dtype(x)
        wrong = [o for o in _of_x(n) if o.name and not o.is_graph_output() and facts.dtype(o) not in (None, own)]
        if own is None or not wrong:
            return False
        for output in wrong:
            output.type = ir.TensorType(own)
            facts.correct(output, own)
        self._touched.node(n.node)
        return True

    def usable(self, n: OurNode, facts: Facts, retyped: bool) -> bool:
        """Repair attributes, operands and outputs of a node; or say why it means nothing, and return False.

        Args:
            n: the node.
            facts: what is known about the model.
            retyped: whether :meth:`claims` has found something wrong with it.
        """
        found = read(facts, n.scope.name, n.node, self._imports)
        if not isinstance(found, Match):
            reason = found.reason if isinstance(found, Miss) else "it is none"
            self.warnings.append(f"{n.label} is not valid: {reason}; fuse the original model again")
            return False
        if (needed := min_opset(found.parameters)) > self._opset:
            self.warnings.append(
                f"{n.label} needs ai.onnx opset {needed}, and the model is of {self._opset}: it runs with the library "
                f"only; convert the model: onnx.version_converter.convert_version(model, {needed})"
            )
            return False
        self._attributes(n, found.parameters.to_attributes(self._version), retyped)
        self._operands(n, facts, ir.DataType(found.parameters.output_type))
        self._outputs(n)
        return True

    def _note(self, n: OurNode, what: str) -> None:
        self.counts[what] += 1
        self._touched.node(n.node)

    def _attributes(self, n: OurNode, meant: dict[str, int | float | list[int]], retyped: bool) -> None:
        if any(a.is_ref() for a in n.node.attributes.values()):
            return  # each call of the function gives another value
        written = {a.name: list(a.value) if a.name in _LISTS else a.value for a in n.node.attributes.values()}
        if written != meant:
            n.node.attributes.clear()
            n.node.attributes.update({name: ir.convenience.convert_attribute(name, v) for name, v in meant.items()})
        if retyped or any(name in written and written[name] != meant[name] for name in meant):
            self._note(n, "types")
        elif written != meant:
            self._note(n, "attributes")

    def _operands(self, n: OurNode, facts: Facts, own: ir.DataType) -> None:
        """Scale and bias are of one type, X's or float32: a converter may have made anything of them."""
        places = [i for i, name in enumerate(n.op.inputs) if name in ("scale", "bias")]
        kinds = [facts.dtype(n.node.inputs[i]) for i in places]
        if None in kinds or (len(set(kinds)) == 1 and kinds[0] in (own, ir.DataType.FLOAT)):
            return
        wanted = ir.DataType.DOUBLE if own == ir.DataType.DOUBLE else ir.DataType.FLOAT
        graph = n.node.graph
        assert graph is not None
        for place, kind in zip(places, kinds, strict=True):
            value = n.node.inputs[place]
            if kind == wanted or value is None:
                continue
            name = self._unique(f"{node_name(n.node)}_{n.op.inputs[place]}_cast")
            cast = ir.Value(name=name, type=ir.TensorType(wanted), shape=value.shape)
            to, label = [ir.AttrInt64("to", int(wanted))], self._unique(f"{name}_node")
            graph.insert_before(n.node, ir.Node("", "Cast", [value], to, outputs=[cast], name=label))
            n.node.replace_input_with(place, cast)
        self._note(n, "scales")

    def _outputs(self, n: OurNode) -> None:
        """Every output but the optional ones has a name.

        onnxruntime 1.20 aborts on one that a tool has taken away since nobody reads it.
        """
        optional = n.op.optional
        if len(n.node.outputs) == len(n.op.outputs) and all(
            o.name or role in optional for o, role in zip(n.node.outputs, n.op.outputs, strict=True)
        ):
            return
        n.node.resize_outputs(len(n.op.outputs))
        for output, role in zip(n.node.outputs, n.op.outputs, strict=True):
            if role in optional:
                output.name = output.name or ""
                continue
            output.name = output.name or self._unique(f"{node_name(n.node)}_{role}")
        self._note(n, "outputs")


def _of_x(n: OurNode) -> list[ir.Value]:
    """The outputs that are of the type of X."""
    return [o for o, role in zip(n.node.outputs, n.op.outputs, strict=False) if role in ("Y", "sum")]
