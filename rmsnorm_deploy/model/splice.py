"""The changed parts of a model put into its proto: what did not change is not even rewritten."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import onnx
import onnx_ir as ir

from rmsnorm_deploy.model.graphs import subgraphs


def splice(
    proto: onnx.ModelProto,
    model: ir.Model,
    before: Sequence[ir.Node],
    rewritten: set[ir.Node],
    functions: Iterable[ir.Function],
    bodies: Iterable[onnx.FunctionProto],
    renamed: Mapping[str, str],
) -> None:
    """Give ``proto`` the nodes, initializers, functions, versions and metadata of ``model``, in place.

    Nodes that are still there stay byte for byte, so that fields which onnx_ir has no place for survive.

    Args:
        proto: the proto that ``model`` was made from.
        model: the same model, changed.
        before: the nodes of the main graph before the change, in order.
        rewritten: nodes of the main graph that were changed or carry a changed subgraph.
        functions: local functions that were changed or added.
        bodies: those of them that are to stand in the file exactly so.
        renamed: values that have another name now, by the old one.
    """
    _agree(proto.metadata_props, model.metadata_props, "key", "value")
    _rename(proto.graph, renamed)
    known = dict(zip(before, proto.graph.node, strict=True))
    outputs_before = {o for n in proto.graph.node for o in n.output}
    nodes = []
    made: dict[str, ir.DataType | None] = {}
    for node in model.graph:
        old = known.get(node)
        if old is None or node in rewritten:
            made.update((v.name or "", v.dtype) for v in node.outputs)
            new = ir.serde.serialize_node(node)
            if old is not None:
                _carry_over(old, new)
            nodes.append(new)
        else:
            nodes.append(old)
    del proto.graph.node[:]
    proto.graph.node.extend(nodes)
    _initializers(proto.graph, model.graph)
    _value_info(proto.graph, outputs_before.difference(o.name or "" for n in model.graph for o in n.outputs), made)
    _functions(proto, model, {f.identifier() for f in functions}, bodies)
    proto.ir_version = model.ir_version
    _agree(proto.opset_import, model.opset_imports, "domain", "version")


def _agree(entries: Any, wanted: Mapping[str, Any], key: str, value: str) -> None:
    """Make ``entries`` say what ``wanted`` does; those that do not differ stay where they are.

    Args:
        entries: a repeated field of a proto.
        wanted: what every entry is to hold, by its key.
        key: the field of an entry that holds the key.
        value: the one that holds the rest.
    """
    for i in reversed(range(len(entries))):
        if getattr(entries[i], key) not in wanted:
            del entries[i]
    known = {getattr(entry, key): entry for entry in entries}
    for name, held in wanted.items():
        if name not in known:
            entries.add(**{key: name, value: held})
        elif getattr(known[name], value) != held:
            setattr(known[name], value, held)


def _carry_over(old: onnx.NodeProto, new: onnx.NodeProto) -> None:
    """What onnx_ir has no place for in the subgraphs of a node that was written anew."""
    graphs = {(name, i): graph for name, i, graph in subgraphs(old)}
    for name, i, graph in subgraphs(new):
        before = graphs.get((name, i))
        if before is None:
            continue
        graph.sparse_initializer.extend(before.sparse_initializer)
        known = {a.tensor_name for a in graph.quantization_annotation}
        names = {o for n in graph.node for o in n.output} | {t.name for t in graph.initializer}
        graph.quantization_annotation.extend(
            a for a in before.quantization_annotation if a.tensor_name not in known and a.tensor_name in names
        )
        holders = {tuple(n.output): n for n in before.node if n.attribute}
        for node in graph.node:
            if node.attribute and tuple(node.output) in holders:
                _carry_over(holders[tuple(node.output)], node)


def _initializers(proto: onnx.GraphProto, graph: ir.Graph) -> None:
    there = {t.name for t in proto.initializer}
    for i in reversed(range(len(proto.initializer))):
        if proto.initializer[i].name not in graph.initializers:
            del proto.initializer[i]
    for name, value in graph.initializers.items():
        if name not in there and value.const_value is not None:
            proto.initializer.append(ir.serde.serialize_tensor(value.const_value))


def _rename(graph: onnx.GraphProto, renamed: Mapping[str, str]) -> None:
    """Move what is said about a value to its new name."""
    if not renamed:
        return
    for info in graph.value_info:
        info.name = renamed.get(info.name, info.name)
    for annotation in graph.quantization_annotation:
        annotation.tensor_name = renamed.get(annotation.tensor_name, annotation.tensor_name)
        for parameter in annotation.quant_parameter_tensor_names:
            parameter.value = renamed.get(parameter.value, parameter.value)


def _value_info(proto: onnx.GraphProto, gone: set[str], made: Mapping[str, ir.DataType | None]) -> None:
    """Take away what is said about values that are ``gone``; the type of those that are ``made`` is their node's."""
    for i in reversed(range(len(proto.value_info))):
        info = proto.value_info[i]
        if info.name in gone:
            del proto.value_info[i]
        elif (dtype := made.get(info.name)) is not None and info.type.HasField("tensor_type"):
            # some exporters write the type of the input where the operator's rule gives that of the scale
            info.type.tensor_type.elem_type = int(dtype)


def _functions(
    proto: onnx.ModelProto,
    model: ir.Model,
    changed: set[tuple[str, str, str]],
    bodies: Iterable[onnx.FunctionProto],
) -> None:
    known = {(f.domain, f.name, f.overload): f for f in proto.functions}
    if not changed and len(proto.functions) == len(known) and known.keys() == model.functions.keys():
        return
    exact = {(f.domain, f.name, f.overload): f for f in bodies}
    functions = []
    for identifier, function in model.functions.items():
        if identifier in exact:
            functions.append(exact[identifier])
        elif identifier in known and identifier not in changed:
            functions.append(known[identifier])
        else:
            functions.append(ir.serde.serialize_function(function))
    del proto.functions[:]
    proto.functions.extend(functions)
