"""Copies of local functions: a norm whose epsilon is an attribute of its function becomes one norm for each epsilon."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

import onnx_ir as ir

from rmsnorm_deploy.op import as_float32
from rmsnorm_deploy.recognise.bindings import Binding, bindings_of, equal_bindings, given_at
from rmsnorm_deploy.recognise.match import Match
from rmsnorm_deploy.recognise.scopes import Scope

MOST_COPIES = 16
"""A function whose calls give more different attributes stays one, with an epsilon that is its attribute."""

Copies = Mapping[ir.Function, Sequence[Binding]]
"""For functions that will be copied, the attributes of each copy; the first stays under the function's name."""


def copies_for(graphs: Sequence[Scope], matches: Iterable[Match]) -> Copies:
    """The functions that hold norms with such parameters, where every call states its attributes itself."""
    wanted = {match.nodes[-1].graph for match in matches if match.references}
    if not wanted:
        return {}
    roots = {scope.root for scope in graphs if scope.nodes and scope.nodes[0].graph in wanted}
    found = {f: bindings for f, bindings in bindings_of(graphs).items() if f in roots and len(bindings) <= MOST_COPIES}
    handed_on = {
        function
        for function, bindings in found.items()
        for node in _calls(graphs, function)
        if any(a.is_ref() and a.name in bindings[0] for a in node.attributes.values())
    }
    return {function: bindings for function, bindings in found.items() if function not in handed_on}


def parameters_of(match: Match, binding: Binding) -> Match:
    """The norm in the copy with these attributes."""
    numbers: dict[str, float] = {name: as_float32(binding[a].value) for name, a in match.references.items()}
    notes = tuple(note for note in match.notes if not any(f"'{a}'" in note for a in match.references.values()))
    parameters = dataclasses.replace(match.parameters, **numbers)  # type: ignore[arg-type]
    return dataclasses.replace(match, parameters=parameters, references={}, notes=notes)


def make_copies(model: ir.Model, graphs: Sequence[Scope], copies: Copies) -> tuple[list[ir.Function], list[ir.Node]]:
    """Copy functions of ``model``, in place, and let each call call the copy with its attributes.

    Returns:
        The copies, and the calls that changed.
    """
    made: list[ir.Function] = []
    changed: list[ir.Node] = []
    for function, bindings in copies.items():
        calls = _calls(graphs, function)
        functions = [function]
        for _ in bindings[1:]:
            proto = ir.serde.serialize_function(function)
            number = len(functions) + 1
            while (function.domain, f"{function.name}_{number}", function.overload) in model.functions:
                number += 1
            proto.name = f"{function.name}_{number}"
            copy = ir.serde.deserialize_function(proto)
            model.functions[copy.identifier()] = copy
            functions.append(copy)
        given = [given_at(node, function, bindings[0]) for node in calls]
        for copy, binding in zip(functions, bindings, strict=True):
            _bind(copy, binding)
        for node, attributes in zip(calls, given, strict=True):
            index = next(i for i, binding in enumerate(bindings) if equal_bindings(binding, attributes))
            if index:
                node.op_type = functions[index].name
                changed.append(node)
        made += functions[1:]
    return made, changed


def _calls(graphs: Iterable[Scope], function: ir.Function) -> list[ir.Node]:
    nodes = (node for scope in graphs for node in scope.nodes if node.graph is not None)
    return [node for node in nodes if node.op_identifier() == function.identifier()]


def _bind(function: ir.Function, binding: Binding) -> None:
    for node in function.all_nodes():
        for name, attribute in list(node.attributes.items()):
            given = binding.get(attribute.ref_attr_name or "") if attribute.is_ref() else None
            if given is not None:
                node.attributes[name] = ir.Attr(name, given.type, given.value)
