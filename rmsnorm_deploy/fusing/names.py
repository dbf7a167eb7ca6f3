"""New names and shared constants for a model that is being fused."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import onnx_ir as ir

from rmsnorm_deploy.recognise.scopes import Scope


class Names:
    """Gives names that a model does not use yet.

    Args:
        graphs: every graph of the model.
    """

    def __init__(self, graphs: Iterable[Scope]) -> None:
        self._taken = _all_names(graphs)
        self._numbers: dict[str, int] = {}

    def unique(self, wish: str) -> str:
        """``wish``, followed by a number where it is taken."""
        name, i = wish, self._numbers.get(wish, 1)
        while name in self._taken:
            name, i = f"{wish}_{i}", i + 1
        self._numbers[wish] = i  # where many nodes share a name, counting from 1 each time would take for ever
        self._taken.add(name)
        return name


class Constants:
    """Puts arrays into a model, each once.

    Args:
        names: gives the names.
    """

    def __init__(self, names: Names) -> None:
        self._names = names
        self._known: dict[tuple[Any, ...], ir.Value] = {}

    def value(self, root: ir.Graph | ir.Function, name: str, tensor: ir.Tensor[Any]) -> ir.Value:
        """An initializer of the main graph, visible in every subgraph; inside a local function, a Constant node.

        Args:
            root: the main graph or the local function, in which or in whose subgraphs the value is read.
            name: a wish.
            tensor: the array.
        """
        key = (id(root), tensor.dtype, tuple(tensor.shape), tensor.tobytes())
        if key in self._known:
            return self._known[key]
        value = ir.Value(
            name=self._names.unique(name), type=ir.TensorType(tensor.dtype), shape=tensor.shape, const_value=tensor
        )
        tensor.name = value.name
        if isinstance(root, ir.Graph):
            root.register_initializer(value)
        else:
            value.const_value = None
            held = [ir.AttrTensor("value", tensor)]
            node = ir.Node("", "Constant", [], held, outputs=[value], name=self._names.unique(f"{name}_node"))
            root.insert_before(next(iter(root)), node)
        self._known[key] = value
        return value


def _all_names(graphs: Iterable[Scope]) -> set[str]:
    names: set[str] = set()
    for scope in graphs:
        names.update(v.name for v in scope.graph.inputs if v.name)
        if isinstance(scope.graph, ir.Graph):
            names.update(scope.graph.initializers)
        for node in scope.nodes:
            if node.name:
                names.add(node.name)
            names.update(o.name for o in node.outputs if o.name)
    return names
