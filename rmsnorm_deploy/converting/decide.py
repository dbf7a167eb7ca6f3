"""Which streams are converted: those that can be, whose weights are nobody else's, and that win by it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

import onnx_ir as ir

from rmsnorm_deploy.converting.norms import NoNorm, helpers_of, norms_of
from rmsnorm_deploy.converting.stream import Constant, How, Obstacle, Source, Stream
from rmsnorm_deploy.converting.streams import Finder
from rmsnorm_deploy.converting.writers import is_leaf, tensor_of
from rmsnorm_deploy.recognise.facts import Facts, node_name

NORMS_FOR_A_CENTRING = 3
"""An explicit centring passes over memory twice, where a norm without a mean saves less than one pass."""
COPIED_BYTES = 64 * 1024
"""A constant of up to so many bytes that others read as well is copied; a larger one is not doubled."""


@dataclasses.dataclass(frozen=True)
class Decision:
    """What is done to the streams of a model.

    Attributes:
        converted: the streams that are.
        refused: the streams that stay as they are, each with its obstacle.
        others: LayerNorms that no stream is read by.
        copied: the constants that are copied, since others read them, too.
    """

    converted: tuple[Stream, ...]
    refused: tuple[Stream, ...]
    others: tuple[NoNorm, ...]
    copied: frozenset[ir.Value]


def decide(facts: Facts, nodes: Sequence[ir.Node]) -> Decision:
    """What converting does to the graph that ``nodes`` are the nodes of, its subgraphs included."""
    norms, others = norms_of(facts, nodes)
    finder = Finder(facts, norms, helpers_of(facts, norms))
    sources: dict[ir.Value, Source] = {}
    while True:
        streams: list[Stream] = []
        done: set[ir.Node] = set()
        for norm in norms:
            if norm.node in done or facts.is_constant_expression(norm.x):
                continue
            stream = finder.stream(norm, sources)
            if norm not in stream.norms:  # what stands in the way of the first was met before it
                stream.norms.insert(0, norm)
            stream.obstacle = stream.obstacle or _costs_more(stream)
            streams.append(stream)
            done.update(n.node for n in stream.norms)
        _share_norms(streams)
        streams = [s for s in streams if s.norms]
        _leave_post_norm(streams)
        accepted = [s for s in streams if s.obstacle is None]
        copied, shared = _shared(accepted)
        new = {source.value: source for source in shared if source.value not in sources}
        if not new:
            break
        sources.update(new)
    refused = [s for s in streams if s.obstacle is not None]
    return Decision(tuple(accepted), tuple(refused), tuple(others), frozenset(copied))


def _share_norms(streams: Iterable[Stream]) -> None:
    """A LayerNorm of a source belongs to every stream that the source is in: leave it in one, converted if any is."""
    done: set[ir.Node] = set()
    for stream in sorted(streams, key=lambda s: (s.obstacle is not None, -len(s.norms))):
        stream.norms = [norm for norm in stream.norms if norm.node not in done]
        done.update(norm.node for norm in stream.norms)


def _leave_post_norm(streams: Iterable[Stream]) -> None:
    """The one norm in front of post-norm layers stays with them: new tables for one norm of many are no gain."""
    stay = {source: s for s in streams if s.obstacle is not None for source in s.sources}
    for stream in streams:
        layer = stay.get(stream.norms[0].output) if stream.obstacle is None and len(stream.norms) == 1 else None
        if layer is not None:
            name = node_name(layer.norms[0].node)
            stream.obstacle = Obstacle(f"its only norm writes into what '{name}' reads, which stays (post-norm)", name)


def _costs_more(stream: Stream) -> Obstacle | None:
    """Whether the explicit centrings cost more than the norms win."""
    sources = [source for source in stream.sources.values() if not source.is_flat]
    if len(stream.norms) >= NORMS_FOR_A_CENTRING * len(sources):
        return None
    first, *more = sources
    reasons = first.reason + (f", and {len(more)} more such" if more else "")
    count = f"{_number(len(sources), 'centring')} at run time for {_number(len(stream.norms), 'norm')}"
    return Obstacle(f"{reasons}; {count} would not win", first.node)


def _number(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def _shared(streams: Iterable[Stream]) -> tuple[set[ir.Value], list[Source]]:
    """The small constants that are copied, and what is centred in the place of larger ones that others read, too."""
    ways: dict[ir.Value, dict[How, list[Constant]]] = {}
    for stream in streams:
        for (value, how), constant in stream.constants.items():
            ways.setdefault(value, {}).setdefault(how, []).append(constant)
    known: dict[ir.Value, str] = {}
    copied, sources = set(), []
    for value, by_how in ways.items():
        reason = _other_reader(value, ways, known)
        if not reason or not is_leaf(value):
            continue
        tensor = tensor_of(value)
        assert tensor is not None
        if tensor.nbytes <= COPIED_BYTES:
            copied.add(value)
            continue
        for constant in (c for constants in by_how.values() for c in constants):
            sources.append(Source(*constant.cut, f"the weight '{value.name}' is {reason}", value.name or ""))
    return copied, sources


def _other_reader(value: ir.Value, ways: dict[ir.Value, dict[How, list[Constant]]], known: dict[ir.Value, str]) -> str:
    """Why a constant cannot be changed where it is, in a few words; nothing where it can be."""
    if value in known:
        return known[value]
    reason = ""
    edges = {edge for constants in ways[value].values() for c in constants for edge in c.edges}
    foreign = next((node for node, index in value.uses() if (node, index) not in edges), None)
    if len(ways[value]) > 1:
        reason = "centred in more than one way"
    elif foreign is not None:
        reason = f"read by {foreign.op_type} '{node_name(foreign)}', too"
    elif value.is_graph_output():
        reason = "an output of the graph, too"
    else:
        inner = (o for node, _ in edges for o in node.outputs if o in ways)
        reason = next((found for o in inner if (found := _other_reader(o, ways, known))), "")
    known[value] = reason
    return reason
