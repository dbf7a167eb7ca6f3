"""What tools have done to norms of ours that a model already holds, put right before anything else is done.

Converters drop function bodies, leave types behind, rename functions with their nodes, and import versions that do not
exist; and a file may hold a function of our name that is none of ours.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Mapping, Sequence

import onnx
import onnx_ir as ir

from rmsnorm_deploy.errors import ModelError
from rmsnorm_deploy.fusing.inlined import free_names, has_inlined_names
from rmsnorm_deploy.fusing.touched import Touched
from rmsnorm_deploy.model.graphs import opset_of
from rmsnorm_deploy.op import DOMAIN, MIN_IR_VERSION, Op, function_body, min_opset, newest, version_of
from rmsnorm_deploy.op.definition import ATTRIBUTES
from rmsnorm_deploy.op.known_bodies import is_body_of, spelling_of
from rmsnorm_deploy.op.versions import is_known, is_stated
from rmsnorm_deploy.recognise.engine import candidates, facts_of
from rmsnorm_deploy.recognise.facts import Facts, node_name
from rmsnorm_deploy.recognise.match import Match, Miss
from rmsnorm_deploy.recognise.our_nodes import op_of, read
from rmsnorm_deploy.recognise.scopes import Scope, scopes

FOREIGN = f"{DOMAIN}.foreign"
"""The domain to which a function of our name goes that is none of ours."""

Identifier = tuple[str, str, str]
_WORDS = (
    ("body", "bodies"),
    ("name", "names"),
    ("types", "types"),
    ("attributes", "attributes"),
    ("scale", "scales"),
    ("outputs", "outputs"),
)
"""What can be repaired, of one norm and of many."""
_LISTS = frozenset(a.name for a in ATTRIBUTES if a.kind == onnx.AttributeProto.INTS)


@dataclasses.dataclass(frozen=True)
class Mended:
    """What :func:`mend` has done to a model.

    Attributes:
        repaired: what was put right, such as "bodies of 9 norms".
        warnings: what could not be, one sentence each, with what to do.
        touched: nodes that were changed or carry a changed subgraph.
        functions: local functions that were changed or are new.
        bodies: function bodies that are new, as they are to stand in the file.
        renamed: new names of values of the main graph, by the old ones.
        declared: types and shapes of the main graph's values that the model was made without, under the new names.
    """

    repaired: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    touched: frozenset[ir.Node] = frozenset()
    functions: frozenset[ir.Function] = frozenset()
    bodies: tuple[onnx.FunctionProto, ...] = ()
    renamed: Mapping[str, str] = dataclasses.field(default_factory=dict)
    declared: tuple[onnx.ValueInfoProto, ...] = ()

    def __bool__(self) -> bool:
        """Whether anything was changed."""
        return bool(self.repaired)


def mend(model: ir.Model, declared: Sequence[onnx.ValueInfoProto] = ()) -> Mended:
    """Put the norms of ours that ``model`` holds right, in place, so that it runs with the library and without it.

    Args:
        model: the model; changed.
        declared: types and shapes of the main graph's values that ``model`` was made without.

    Raises:
        ModelError: the norms are of a version of the domain that this release does not know.
    """
    graphs = scopes(model)
    ours = any(domain == DOMAIN for domain, _, _ in model.functions)
    if ours or any(n.domain == DOMAIN for g in graphs for n in g.nodes) or has_inlined_names(graphs):
        return _Mending(model, declared).done()
    return Mended(declared=tuple(declared))


@dataclasses.dataclass(frozen=True)
class _Node:
    """A node of ours, as it stands."""

    scope: Scope
    node: ir.Node
    op: Op
    calls: Identifier


class _Mending:
    def __init__(self, model: ir.Model, declared: Sequence[onnx.ValueInfoProto]) -> None:
        self._model = model
        self._declared = list(declared)
        self._protos = {
            i: ir.serde.serialize_function(f) for i, f in model.functions.items() if i[0] == DOMAIN
        }  # as they were
        self._ours = {i: s.op for i, p in self._protos.items() if (s := spelling_of(p)) is not None}
        self._counts: collections.Counter[str] = collections.Counter()
        self._repaired: list[str] = []
        self._warnings: list[str] = []
        self._bodies: list[onnx.FunctionProto] = []
        self._new: list[ir.Function] = []
        self._move_foreign()
        self._graphs = scopes(model)
        self._touched = Touched(self._graphs)
        for node in self._moved:
            self._touched.node(node)
        self._renamed: dict[str, str] = {}
        if model.functions or candidates(self._graphs):  # else nothing will ever be inlined
            self._free_names()

    def _free_names(self) -> None:
        before = len(self._touched.nodes)
        self._renamed = free_names(self._graphs, self._touched)
        self._declared = [_renamed(info, self._renamed) for info in self._declared]
        if len(self._touched.nodes) > before:
            self._repaired.append("names that onnxruntime would give again when it inlines bodies")

    def done(self) -> Mended:
        """Mend everything."""
        nodes = self._nodes()
        opset = opset_of(self._model)
        version = self._version(nodes)
        # who lacks a body is asked before names change
        lacking = [n for n in nodes if not self._has_body(n, opset, version)]
        for n in nodes:
            self._name(n)
        facts = facts_of(self._model, None, self._graphs, self._declared) if nodes else None
        usable = [n for n in nodes if facts is not None and self._attributes(n, facts, opset, version)]
        self._supply({n.op for n in usable}, opset, version)
        self._counts["bodies"] = sum(n in usable for n in lacking)
        for one, many in _WORDS:
            if count := self._counts[many]:
                self._repaired.append(f"{many} of {count} norms" if count > 1 else f"{one} of 1 norm")
        if self._counts["import"]:
            self._repaired.append(f"the imported version of {DOMAIN}")
        return Mended(
            tuple(self._repaired),
            tuple(self._warnings),
            frozenset(self._touched.nodes),
            frozenset((*self._touched.functions, *self._new)),
            tuple(self._bodies),
            self._renamed,
            tuple(self._declared),
        )

    # -- functions of our name that are none of ours ------------------------------------------------------------------

    def _move_foreign(self) -> None:
        """Move functions of our names that mean something else, and the nodes that call them, to another domain."""
        self._foreign, self._moved = False, list[ir.Node]()
        names = {op.value for op in Op}
        for identifier in [i for i in self._protos if i[1] in names and i not in self._ours]:
            function = self._model.functions.pop(identifier)
            calls = [n for root in self._roots() for n in root.all_nodes() if n.op_identifier() == identifier]
            calls += [n for n in function.all_nodes() if n.op_identifier() == identifier]
            function.domain = FOREIGN
            self._model.functions[function.identifier()] = function
            self._new.append(function)
            for node in calls:
                node.domain = FOREIGN
            self._moved += calls
            self._model.opset_imports[FOREIGN] = 1
            for other in self._model.functions.values():
                if any(n.domain == FOREIGN for n in other.all_nodes()):
                    other.opset_imports[FOREIGN] = 1
            self._foreign = True
            self._repaired.append(f"a function {DOMAIN}::{identifier[1]} of another meaning is now of domain {FOREIGN}")

    def _roots(self) -> list[ir.Graph | ir.Function]:
        return [self._model.graph, *self._model.functions.values()]

    # -- nodes --------------------------------------------------------------------------------------------------------

    def _nodes(self) -> list[_Node]:
        found = []
        for scope in self._graphs:
            for node in scope.nodes:
                calls = node.op_identifier()
                if node.domain != DOMAIN or (calls in self._protos and calls not in self._ours):
                    continue
                op = self._ours.get(calls) or op_of(node)
                if op is not None:
                    found.append(_Node(scope, node, op, calls))
        return found

    def _name(self, n: _Node) -> None:
        if (n.node.op_type, n.node.overload) == (n.op.value, ""):
            return
        n.node.op_type, n.node.overload = n.op.value, ""
        self._counts["names"] += 1
        self._touched.node(n.node)

    def _attributes(self, n: _Node, facts: Facts, opset: int, version: int) -> bool:
        """Make a node's attributes, operands and outputs what its types ask for; False where it means nothing."""
        found = read(facts, n.scope.name, n.node, self._model.opset_imports)
        if not isinstance(found, Match):
            reason = found.reason if isinstance(found, Miss) else "it is none"
            self._warnings.append(
                f"node '{node_name(n.node)}' ({n.op.value}) is not valid: {reason}; fuse the original model again"
            )
            return False
        if (needed := min_opset(found.parameters)) > opset:
            self._warnings.append(
                f"node '{node_name(n.node)}' ({n.op.value}) needs ai.onnx opset {needed}, and the model is of {opset}: "
                "it runs with the library only; convert the model to a newer opset"
            )
            return False
        meant = found.parameters.to_attributes(version)
        written = {a.name: list(a.value) if a.name in _LISTS else a.value for a in n.node.attributes.values()}
        if written != meant:
            retyped = any(name in written and written[name] != meant[name] for name in meant)
            n.node.attributes.clear()
            n.node.attributes.update({name: ir.convenience.convert_attribute(name, v) for name, v in meant.items()})
            self._counts["types" if retyped else "attributes"] += 1
            self._touched.node(n.node)
        self._operands(n, facts, found)
        self._outputs(n)
        return True

    def _operands(self, n: _Node, facts: Facts, match: Match) -> None:
        """Scale and bias are of one type, X's or float32: a converter may have made anything of them."""
        places = [i for i, name in enumerate(n.op.inputs) if name in ("scale", "bias")]
        kinds = [facts.dtype(n.node.inputs[i]) for i in places]
        own = ir.DataType(match.parameters.output_type)
        if None in kinds or (len(set(kinds)) == 1 and kinds[0] in (own, ir.DataType.FLOAT)):
            return
        wanted = ir.DataType.DOUBLE if own == ir.DataType.DOUBLE else ir.DataType.FLOAT
        graph = n.node.graph
        assert graph is not None
        for place, kind in zip(places, kinds, strict=True):
            value = n.node.inputs[place]
            if kind == wanted or value is None:
                continue
            name = f"{n.node.outputs[0].name}_{n.op.inputs[place]}_cast"
            cast = ir.Value(name=name, type=ir.TensorType(wanted), shape=value.shape)
            to = [ir.AttrInt64("to", int(wanted))]
            graph.insert_before(n.node, ir.Node("", "Cast", [value], to, outputs=[cast], name=f"{name}_node"))
            n.node.replace_input_with(place, cast)
        self._counts["scales"] += 1
        self._touched.node(n.node)

    def _outputs(self, n: _Node) -> None:
        """Every output has a name: onnxruntime 1.20 aborts on one that a tool has taken away since nobody reads it."""
        if len(n.node.outputs) == len(n.op.outputs) and all(o.name for o in n.node.outputs):
            return
        n.node.resize_outputs(len(n.op.outputs))
        for output, role in zip(n.node.outputs, n.op.outputs, strict=True):
            output.name = output.name or f"{node_name(n.node)}_{role}"
        self._counts["outputs"] += 1
        self._touched.node(n.node)

    # -- bodies and imports -------------------------------------------------------------------------------------------

    def _version(self, nodes: list[_Node]) -> int:
        """Import a version of the domain that there is, and return it."""
        imports = self._model.opset_imports
        if not nodes and self._foreign and not is_known(imports.get(DOMAIN, newest())):
            imports[DOMAIN] = newest()  # the version was that of the foreign functions
        try:
            found = {version_of(imports, {a.name: a.value for a in n.node.attributes.values()}) for n in nodes}
            found = found or {version_of(imports)}
        except ValueError as error:
            raise ModelError(str(error), "Use a newer release of rmsnorm_deploy.") from error
        if len(found) > 1:
            raise ModelError(
                f"the model holds norms of versions {sorted(found)} of the domain {DOMAIN}, which no model can import",
                "Fuse the models again that it was made of, with one release of rmsnorm_deploy.",
            )
        (version,) = found
        if nodes and not is_stated(imports):
            imports[DOMAIN] = version
            self._counts["import"] += 1
        for function in {n.scope.root for n in nodes if isinstance(n.scope.root, ir.Function)}:
            if function.opset_imports.get(DOMAIN) != version:
                function.opset_imports[DOMAIN] = version
                self._touched.functions.add(function)
        return version

    def _has_body(self, n: _Node, opset: int, version: int) -> bool:
        proto = self._protos.get(n.calls)
        return proto is not None and is_body_of(proto, n.op, opset, version)

    def _supply(self, ops: set[Op], opset: int, version: int) -> None:
        """Give every operator its body, and take away those under other names that nothing calls any more."""
        functions = self._model.functions
        for op in sorted(ops, key=lambda op: op.value):
            identifier = (DOMAIN, op.value, "")
            there = self._protos.get(identifier)
            if identifier in functions and there is not None and is_body_of(there, op, opset, version):
                continue
            body = function_body(op, opset, version=version)
            functions[identifier] = ir.serde.deserialize_function(body)
            self._bodies.append(body)
            self._new.append(functions[identifier])
        if ops:
            self._model.ir_version = max(self._model.ir_version, MIN_IR_VERSION)
        called = {n.op_identifier() for root in self._roots() for n in root.all_nodes()}
        for identifier in self._ours:
            if identifier not in called and identifier[1:] != (self._ours[identifier].value, ""):
                del functions[identifier]


def _renamed(info: onnx.ValueInfoProto, names: Mapping[str, str]) -> onnx.ValueInfoProto:
    if info.name not in names:
        return info
    copy = onnx.ValueInfoProto()
    copy.CopyFrom(info)
    copy.name = names[info.name]
    return copy
