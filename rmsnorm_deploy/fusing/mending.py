"""What tools have done to norms of ours that a model already holds, put right before anything else is done.

Converters drop function bodies, leave types behind, rename functions with their nodes, and import versions that do not
exist; and a file may hold a function of our name that is none of ours.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import onnx
import onnx_ir as ir

from rmsnorm_deploy.errors import ModelError
from rmsnorm_deploy.fusing.clearing import called_in
from rmsnorm_deploy.fusing.foreign import FOREIGN, Identifier, move_foreign
from rmsnorm_deploy.fusing.inlined import free_names, has_inlined_names, lost_norms
from rmsnorm_deploy.fusing.names import Names
from rmsnorm_deploy.fusing.our_node import OurNode, Repairs
from rmsnorm_deploy.fusing.touched import Touched
from rmsnorm_deploy.model.graphs import opset_of
from rmsnorm_deploy.op import DOMAIN, MIN_IR_VERSION, Op, function_body, newest, version_of
from rmsnorm_deploy.op.known_bodies import is_body_of, spelling_of
from rmsnorm_deploy.op.versions import is_known, is_stated
from rmsnorm_deploy.recognise.engine import candidates, facts_of
from rmsnorm_deploy.recognise.our_nodes import op_of
from rmsnorm_deploy.recognise.scopes import Scope, scopes

NAMES = "names that onnxruntime would give again when it inlines bodies"
"""The one repair that is none of a norm."""
_WORDS = (
    ("body", "bodies"),
    ("name", "names"),
    ("types", "types"),
    ("attributes", "attributes"),
    ("scale", "scales"),
    ("outputs", "outputs"),
)
"""What can be repaired, of one norm and of many."""


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
        inlined: how many norms of ours onnxruntime has inlined, as far as their names tell.
    """

    repaired: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    touched: frozenset[ir.Node] = frozenset()
    functions: frozenset[ir.Function] = frozenset()
    bodies: tuple[onnx.FunctionProto, ...] = ()
    renamed: Mapping[str, str] = dataclasses.field(default_factory=dict)
    declared: tuple[onnx.ValueInfoProto, ...] = ()
    inlined: int = 0

    def __bool__(self) -> bool:
        """Whether anything was changed."""
        return bool(self.repaired)


def repeated_bodies(proto: onnx.ModelProto) -> int:
    """How many functions of our domain a file holds more than once: programs that put models together do that."""
    ours = [(f.name, f.overload) for f in proto.functions if f.domain == DOMAIN]
    return len(ours) - len(set(ours))


def mend(model: ir.Model, declared: Sequence[onnx.ValueInfoProto] = (), repeated: int = 0) -> Mended:
    """Put the norms of ours that ``model`` holds right, in place, so that it runs with the library and without it.

    Args:
        model: the model; changed.
        declared: types and shapes of the main graph's values that ``model`` was made without.
        repeated: how many functions of our domain the file has more than once; ``model`` has the last of each.

    Raises:
        ModelError: the norms are of a version of the domain that this release does not know.
    """
    graphs = scopes(model)
    ours = any(domain == DOMAIN for domain, _, _ in model.functions)
    if ours or any(n.domain == DOMAIN for g in graphs for n in g.nodes) or has_inlined_names(graphs):
        return _Mending(model, declared, repeated).done()
    return Mended(declared=tuple(declared))


class _Mending:
    def __init__(self, model: ir.Model, declared: Sequence[onnx.ValueInfoProto], repeated: int) -> None:
        self._model = model
        self._declared = tuple(declared)
        # as they are in the file
        self._protos = {i: ir.serde.serialize_function(f) for i, f in model.functions.items() if i[0] == DOMAIN}
        self._ours = {i: s.op for i, p in self._protos.items() if (s := spelling_of(p)) is not None}
        self._repaired: list[str] = ["bodies that were there twice"] if repeated else []
        self._bodies: list[onnx.FunctionProto] = []

    def done(self) -> Mended:
        """Mend everything."""
        model = self._model
        names = {op.value for op in Op}
        foreign = [i for i in self._protos if i[1] in names and i not in self._ours]
        moved, changed = move_foreign(model, foreign)
        self._repaired += [
            f"a function {DOMAIN}::{name} of another meaning: now of {FOREIGN}" for _, name, _ in foreign
        ]
        graphs = scopes(model)
        touched = Touched(graphs)
        touched.functions.update(changed)
        for node in moved:
            touched.node(node)
        inlined = lost_norms(graphs)
        renamed: Mapping[str, str] = {}
        if (model.functions or candidates(graphs)) and has_inlined_names(graphs):  # else nothing will ever be inlined
            renamed = free_names(graphs, touched)
            self._declared = tuple(_renamed(info, renamed) for info in self._declared)
            self._repaired.append(NAMES)
        nodes = self._nodes(graphs)
        if not nodes and foreign and not is_known(model.opset_imports.get(DOMAIN, newest())):
            model.opset_imports[DOMAIN] = newest()  # the version was that of the foreign functions
        warnings = self._norms(nodes, graphs, touched) if nodes else []
        return Mended(
            tuple(self._repaired),
            tuple(warnings),
            frozenset(touched.nodes),
            frozenset(touched.functions),
            tuple(self._bodies),
            renamed,
            self._declared,
            inlined,
        )

    def _nodes(self, graphs: Sequence[Scope]) -> list[OurNode]:
        found = []
        for scope in graphs:
            for node in scope.nodes:
                calls = node.op_identifier()
                if node.domain != DOMAIN or (calls in self._protos and calls not in self._ours):
                    continue
                op = self._ours.get(calls) or op_of(node)
                if op is not None:
                    found.append(OurNode(scope, node, op, calls))
        return found

    def _norms(self, nodes: list[OurNode], graphs: Sequence[Scope], touched: Touched) -> list[str]:
        """Mend the nodes of ours and give them bodies. Returns what could not be repaired."""
        opset, unstated = opset_of(self._model), not is_stated(self._model.opset_imports)
        version = self._version(nodes, touched)
        lacking = [n for n in nodes if not self._is_body(n.calls, n.op, opset, version)]
        repairs = Repairs(self._model, opset, version, touched, Names(graphs).unique)
        for n in nodes:
            repairs.name(n)
        facts = facts_of(self._model, None, graphs, self._declared)
        retyped: set[int] = set()
        for _ in nodes:  # what the file says of one norm's output may be all that is known of the next one's input
            wrong = {i for i, n in enumerate(nodes) if repairs.claims(n, facts)}
            if not wrong:
                break
            retyped |= wrong
            types = {o.name: o.dtype for i in wrong for o in nodes[i].node.outputs}
            self._declared = tuple(_retyped(info, types.get(info.name)) for info in self._declared)
            facts = facts_of(self._model, None, graphs, self._declared)
        usable = [n for i, n in enumerate(nodes) if repairs.usable(n, facts, i in retyped)]
        self._supply({n.op for n in usable}, opset, version, touched)
        repairs.counts["bodies"] = sum(n in usable for n in lacking)
        for one, many in _WORDS:
            if count := repairs.counts[many]:
                self._repaired.append(f"{many} of {count} norms" if count > 1 else f"{one} of 1 norm")
        if unstated:
            self._repaired.append(f"the imported version of {DOMAIN}")
        return repairs.warnings

    def _version(self, nodes: list[OurNode], touched: Touched) -> int:
        """Import a version of the domain that there is, and return it."""
        imports = self._model.opset_imports
        try:
            found = {version_of(imports, {a.name: a.value for a in n.node.attributes.values()}) for n in nodes}
        except ValueError as error:
            raise ModelError(str(error), "Use a newer release of rmsnorm_deploy.") from error
        if len(found) > 1:
            raise ModelError(
                f"the model holds norms of versions {sorted(found)} of the domain {DOMAIN}, which no model can import",
                "Fuse the models again that it was made of, with one release of rmsnorm_deploy.",
            )
        (version,) = found
        imports[DOMAIN] = version
        for function in {n.scope.root for n in nodes if isinstance(n.scope.root, ir.Function)}:
            if function.opset_imports.get(DOMAIN) != version:
                function.opset_imports[DOMAIN] = version
                touched.functions.add(function)
        return version

    def _is_body(self, identifier: Identifier, op: Op, opset: int, version: int) -> bool:
        proto = self._protos.get(identifier)
        return proto is not None and is_body_of(proto, op, opset, version)

    def _supply(self, ops: set[Op], opset: int, version: int, touched: Touched) -> None:
        """Give every operator its body, and take away those under other names that nothing calls any more."""
        functions = self._model.functions
        for op in sorted(ops, key=lambda op: op.value):
            identifier = (DOMAIN, op.value, "")
            if self._is_body(identifier, op, opset, version):
                continue
            body = function_body(op, opset, version=version)
            functions[identifier] = ir.serde.deserialize_function(body)
            self._bodies.append(body)
            touched.functions.add(functions[identifier])
        if ops:
            self._model.ir_version = max(self._model.ir_version, MIN_IR_VERSION)
        called = called_in(self._model)
        for identifier, op in self._ours.items():
            if identifier not in called and identifier[1:] != (op.value, ""):
                del functions[identifier]


def _retyped(info: onnx.ValueInfoProto, dtype: ir.DataType | None) -> onnx.ValueInfoProto:
    if dtype is None:
        return info
    copy = onnx.ValueInfoProto()
    copy.CopyFrom(info)
    copy.type.tensor_type.elem_type = int(dtype)
    return copy


def _renamed(info: onnx.ValueInfoProto, names: Mapping[str, str]) -> onnx.ValueInfoProto:
    if info.name not in names:
        return info
    copy = onnx.ValueInfoProto()
    copy.CopyFrom(info)
    copy.name = names[info.name]
    return copy
