"""Attributes of local functions: what their calls give for them, and norms whose parameters are such attributes."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import onnx
import onnx_ir as ir

from rmsnorm_deploy.model.calls import callers_first
from rmsnorm_deploy.model.graphs import nodes_of
from rmsnorm_deploy.op.definition import ATTRIBUTES, as_float32
from rmsnorm_deploy.recognise.match import Match, Miss, Site, Stage
from rmsnorm_deploy.recognise.scopes import Scope

Binding = Mapping[str, ir.Attr]
"""The attributes of a function at one call, by name."""
Bindings = Mapping[ir.Graph | ir.Function | None, Binding]
"""For graphs that belong to a function, one binding of it."""

MOST_CALLS = 4
"""With how many different sets of attributes a function is looked at."""
_MOST_BINDINGS = 256
"""Functions that pass attributes on may multiply their sets. Of a function with more, nothing is known."""
_FLOATS = tuple(a.name for a in ATTRIBUTES if a.kind == onnx.AttributeProto.FLOAT)


def bindings_of(graphs: Sequence[Scope]) -> dict[ir.Function, list[Binding]]:
    """For each function that refers to its attributes, every set of them that its calls give; attributes have defaults.

    A function that nobody calls, or that calls itself, has its defaults alone.
    """
    used: dict[ir.Function, set[str]] = {}
    for scope in graphs:
        if isinstance(scope.root, ir.Function) and scope.root.attributes:
            names = {a.ref_attr_name for n in scope.nodes for a in n.attributes.values() if a.is_ref()}
            used.setdefault(scope.root, set()).update(name for name in names if name is not None)
    used = {function: names for function, names in used.items() if names}
    if not used:
        return {}
    calls: dict[ir.OperatorIdentifier, list[tuple[ir.Node, ir.Graph | ir.Function]]] = {}
    for scope in graphs:
        for node in scope.nodes:
            calls.setdefault(node.op_identifier(), []).append((node, scope.root))
    callees: dict[ir.Function, list[ir.Function]] = {function: [] for function in used}
    for function in used:
        for _, root in calls.get(function.identifier(), ()):
            if isinstance(root, ir.Function) and root in used:
                callees[root].append(function)
    defaults = {function: _defaults(function, names) for function, names in used.items()}
    found: dict[ir.Function, list[Binding]] = {}
    for function in callers_first(callees):
        given: list[Binding] = []
        for node, root in calls.get(function.identifier(), ()):
            # a function that calls itself is called with its defaults
            outer = found.get(root, [defaults[root]]) if isinstance(root, ir.Function) and root in used else [{}]
            for binding in (_at(node, used[function], defaults[function], o) for o in outer):
                if len(given) <= _MOST_BINDINGS and not any(equal_bindings(binding, other) for other in given):
                    given.append(binding)
        found[function] = [{}] if len(given) > _MOST_BINDINGS else given or [defaults[function]]
    return {function: found[function] for function in used}


def given_at(node: ir.Node, function: ir.Function, names: Iterable[str]) -> Binding:
    """The attributes ``names`` of ``function`` at one call that states them itself."""
    return _at(node, names, _defaults(function, names), {})


def _defaults(function: ir.Function, names: Iterable[str]) -> Binding:
    """The attributes ``names`` of ``function`` that have a default."""
    return {n: a for n, a in function.attributes.items() if n in names and a.value is not None}


def _at(node: ir.Node, names: Iterable[str], defaults: Binding, outer: Binding) -> Binding:
    """The attributes ``names`` at one call, made in a function whose own are ``outer``."""
    binding = dict(defaults)
    for name in names:
        given = node.attributes.get(name)
        if given is not None and given.is_ref():
            given = outer.get(given.ref_attr_name or "")
            if given is None:
                binding.pop(name, None)  # not known: not its default either
        if given is not None:
            binding[name] = given
    return binding


def equal_bindings(a: Binding, b: Binding) -> bool:
    """Whether two calls give the same attributes."""
    return a.keys() == b.keys() and all(_same_attribute(a[name], b[name]) for name in a)


def _same_attribute(a: ir.Attr, b: ir.Attr) -> bool:
    if a.type != b.type:
        return False
    if a.type == ir.AttributeType.TENSOR:
        return _tensor(a) == _tensor(b)
    return bool(a.value == b.value)


def _tensor(attribute: ir.Attr) -> bytes:
    return bytes(ir.serde.serialize_tensor(attribute.value).SerializeToString())


def by_graph(graphs: Iterable[Scope], chosen: Mapping[ir.Function, Binding]) -> Bindings:
    """The same for every graph of these functions, as nodes name the graph that they stand in."""
    found: dict[ir.Graph | ir.Function | None, Binding] = {}
    for scope in graphs:
        if isinstance(scope.root, ir.Function) and scope.root in chosen and scope.nodes:
            found[scope.nodes[0].graph] = chosen[scope.root]
    return found


def bind(graph: onnx.GraphProto, binding: Binding) -> None:
    """Put attributes of a function in the place of what refers to them in its body, in place."""
    if not binding:
        return
    for node in nodes_of(graph):
        for attribute in node.attribute:
            given = binding.get(attribute.ref_attr_name) if attribute.ref_attr_name else None
            if given is not None:
                name = attribute.name
                attribute.CopyFrom(ir.serde.serialize_attribute(given))
                attribute.name = name


# ---------------------------------------------------------------------------------------------------------------------
# A norm that is another one at each call


def agreed(results: Sequence[Sequence[Match | Miss]], bindings: Sequence[Binding], site: Site) -> list[Match | Miss]:
    """What a candidate is at every call of the function that it stands in.

    Args:
        results: what it is with each of ``bindings``.
        bindings: sets of attributes of the function, all that differ.
        site: the candidate.
    """
    for result in results:
        if any(isinstance(found, Miss) for found in result):
            return list(result)
    first, *others = ([found for found in result if isinstance(found, Match)] for result in results)
    if any(len(other) != len(first) for other in others):
        return [_differs(site)]
    merged: list[Match | Miss] = []
    for matches in zip(first, *others, strict=True):
        references = _references(matches, bindings)
        if references is None:
            return [_differs(site)]
        merged.append(_with_references(matches[0], references))
    return merged


def _references(matches: Sequence[Match], bindings: Sequence[Binding]) -> dict[str, str] | None:
    """Which parameters are which attributes of the function; None where the norms differ in anything else."""
    first = matches[0]
    if any(_but_numbers(m) != _but_numbers(first) for m in matches[1:]):
        return None
    references = {}
    for name in _FLOATS:
        values = [getattr(m.parameters, name) for m in matches]
        if len(set(values)) > 1:
            attribute = next((a for a in bindings[0] if _gives(a, bindings, values)), None)
            if attribute is None:
                return None
            references[name] = attribute
    return references


def _but_numbers(match: Match) -> Match:
    """The match without what may differ: numbers that are attributes of the operator, and what is said about them."""
    numbers: dict[str, Any] = dict.fromkeys(_FLOATS, 0.0)
    parameters = dataclasses.replace(match.parameters, **numbers)
    plain = None if match.plain is None else _but_numbers(match.plain)
    return dataclasses.replace(match, parameters=parameters, notes=(), plain=plain)


def _gives(attribute: str, bindings: Sequence[Binding], values: Sequence[float]) -> bool:
    """Whether the number is the function's float attribute at every call."""
    for binding, value in zip(bindings, values, strict=False):
        given = binding.get(attribute)
        if given is None or given.type != ir.AttributeType.FLOAT or as_float32(given.value) != value:
            return False
    # calls beyond those that were looked at give a number, too, and one that the operator takes
    rest = [binding.get(attribute) for binding in bindings[len(values) :]]
    return all(a is not None and a.type == ir.AttributeType.FLOAT and 0.0 < a.value < float("inf") for a in rest)


def _with_references(match: Match, references: Mapping[str, str]) -> Match:
    if not references:
        return match
    notes = [f"{name} is the attribute '{a}' of the function, which every call gives" for name, a in references.items()]
    plain = None if match.plain is None else _with_references(match.plain, references)
    return dataclasses.replace(match, references=references, notes=(*match.notes, *notes), plain=plain)


def _differs(site: Site) -> Miss:
    return Miss(
        site,
        Stage.OUTPUT,
        "is another norm at each call of the function that it stands in",
        site.node,
        expected="calls that give equal attributes, or that differ in an epsilon only",
        hint="inline the function first: onnx.inliner.inline_local_functions(model)",
    )
