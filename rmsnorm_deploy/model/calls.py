"""Who calls whom among local functions, and how large a model is once every call is written out.

A file of 1,500 bytes with 22 functions, each of which calls the next one twice, is four million nodes written out.
onnx's inference and its inliner do write it out, level by level on the stack.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from typing import TypeVar

from onnx import FunctionProto, GraphProto, ModelProto

from rmsnorm_deploy.errors import ModelError
from rmsnorm_deploy.model.graphs import nodes_of

MOST_NODES = 200_000
"""Written out; a model of more nodes may have ten times as many as its file."""
MOST_LEVELS = 100
"""Of calls within calls."""

Identifier = tuple[str, str, str]
"""Domain, name and overload of a function."""
_K = TypeVar("_K", bound=Hashable)


def callers_first(calls: Mapping[_K, Iterable[_K]]) -> list[_K]:
    """The keys of ``calls``, each after all that call it; where calls go round in circles, in some order."""
    done: dict[_K, None] = {}  # each before all that call it
    for root in calls:
        path = [(root, iter(calls[root]))] if root not in done else []
        entered = {root}
        while path:
            key, rest = path[-1]
            inner = next((k for k in rest if k in calls and k not in done and k not in entered), None)
            if inner is None:
                done[key] = None
                path.pop()
            else:
                entered.add(inner)
                path.append((inner, iter(calls[inner])))
    return list(reversed(done))


class Calls:
    """The calls of local functions in a model, which is not changed.

    Attributes:
        functions: the functions by identifier; those to which a node may refer.
        order: their identifiers, callers first.
    """

    def __init__(self, model: ModelProto) -> None:
        self.functions = {(f.domain, f.name, f.overload): f for f in model.functions}
        self._calls = {identifier: self._called(f) for identifier, f in self.functions.items()}
        self.order = callers_first(self._calls)
        self._nodes: dict[Identifier, int] = {}
        self._levels: dict[Identifier, int] = {}
        for identifier in reversed(self.order):
            nodes, levels = self._written_out(self.functions[identifier], self._calls[identifier])
            self._nodes[identifier] = nodes
            self._levels[identifier] = levels + 1
        own, _ = self._written_out(model.graph, ())
        self._most = max(MOST_NODES, 10 * own)
        self.is_bounded = self._fits(self._written_out(model.graph, self._called(model.graph)))
        """Whether the main graph is of a reasonable size written out."""

    def _called(self, part: GraphProto | FunctionProto) -> list[Identifier]:
        if not self.functions:
            return []
        found = ((n.domain, n.op_type, n.overload) for n in nodes_of(part))
        return [identifier for identifier in found if identifier in self.functions]

    def _written_out(self, part: GraphProto | FunctionProto, called: Iterable[Identifier]) -> tuple[int, int]:
        """Nodes and levels; a function that is not yet counted is called in a circle, which never ends."""
        nodes, levels = sum(1 for _ in nodes_of(part)), 0
        for identifier in called:
            nodes += self._nodes.get(identifier, MOST_NODES + 1)
            levels = max(levels, self._levels.get(identifier, MOST_LEVELS + 1))
        return nodes, levels

    def _fits(self, size: tuple[int, int]) -> bool:
        return size[0] <= self._most and size[1] <= MOST_LEVELS

    def reached(self, identifier: Identifier) -> list[FunctionProto]:
        """The functions that a function calls, and those that they call."""
        found: dict[Identifier, None] = {}
        todo = list(self._calls[identifier])
        while todo:
            inner = todo.pop()
            if inner not in found:
                found[inner] = None
                todo += self._calls[inner]
        return [self.functions[inner] for inner in found]

    @property
    def are_bounded(self) -> bool:
        """Whether all functions, each written out by itself, are of a reasonable size together."""
        return self._fits((sum(self._nodes.values()), max(self._levels.values(), default=0)))


def is_bounded(model: ModelProto) -> bool:
    """Whether the main graph of a model is of a reasonable size written out; a quick look where nothing is called."""
    return not model.functions or Calls(model).is_bounded


def require_bounded(model: ModelProto) -> None:
    """Refuse a model that is too large once its calls are written out.

    Raises:
        ModelError: it is.
    """
    if not is_bounded(model):
        raise ModelError(
            "the model's functions call each other until there are more than "
            f"{MOST_NODES} nodes, or {MOST_LEVELS} levels of calls",
            "Export it again without functions; a file like this is made to exhaust whoever reads it.",
        )
