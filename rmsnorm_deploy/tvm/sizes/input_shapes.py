"""The shapes of a model's inputs for TVM, which takes every sign in a dimension's name for arithmetic."""

from __future__ import annotations

import ast
import dataclasses
import re
from typing import Any

from onnx import ModelProto, ValueInfoProto
from tvm import tirx

_OPERATORS = (ast.Add, ast.Sub, ast.Mult, ast.FloorDiv, ast.Div)


@dataclasses.dataclass(frozen=True)
class InputShapes:
    """What the importer is told.

    Attributes:
        shapes: numbers and expressions by the input's name; inputs of unknown rank are not in it.
        labels: a dimension's name in the model by its variable's; ``input[axis]`` where it has none.
    """

    shapes: dict[str, list[Any]]
    labels: dict[str, str]


def inputs_of(proto: ModelProto) -> list[ValueInfoProto]:
    """The inputs that have no value of their own."""
    initialised = {t.name for t in proto.graph.initializer}
    return [v for v in proto.graph.input if v.name not in initialised]


def input_shapes(proto: ModelProto) -> InputShapes:
    """A variable for each name, and for each dimension without one.

    A name such as ``past + sequence`` is their sum if both are dimensions of their own somewhere, else it is a name.
    """
    inputs = [v for v in inputs_of(proto) if v.type.tensor_type.HasField("shape")]
    names = {d.dim_param for v in inputs for d in v.type.tensor_type.shape.dim if d.dim_param}
    plain = {n for n in names if _terms(n) is None}
    atoms = plain | {n for n in names if not (_terms(n) or {""}) <= plain}
    variables: dict[str, Any] = {}
    labels: dict[str, str] = {}

    def variable(label: str) -> Any:
        if label not in variables:
            safe = re.sub(r"\W", "_", label)
            while safe in labels:
                safe += "_"
            variables[label], labels[safe] = tirx.Var(safe, "int64"), label
        return variables[label]

    def size(value: ValueInfoProto, axis: int) -> Any:
        dim = value.type.tensor_type.shape.dim[axis]
        if dim.HasField("dim_value"):
            return dim.dim_value
        name = dim.dim_param
        if not name:
            return variable(f"{value.name}[{axis}]")
        return variable(name) if name in atoms else _evaluated(ast.parse(name, mode="eval").body, variable)

    shapes = {v.name: [size(v, i) for i in range(len(v.type.tensor_type.shape.dim))] for v in inputs}
    return InputShapes(shapes, labels)


def _terms(name: str) -> set[str] | None:
    """The names in an expression, or None for what is no expression."""
    try:
        body = ast.parse(name, mode="eval").body
    except (SyntaxError, ValueError):
        return None
    if not isinstance(body, ast.BinOp) or not all(_simple(node) for node in ast.walk(body)):
        return None
    return {node.id for node in ast.walk(body) if isinstance(node, ast.Name)}


def _simple(node: ast.AST) -> bool:
    if isinstance(node, ast.Constant):
        return isinstance(node.value, int)
    return isinstance(node, (ast.BinOp, ast.Name, ast.Load, *_OPERATORS))


def _evaluated(node: ast.expr, variable: Any) -> Any:
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Name):
        return variable(node.id)
    if not isinstance(node, ast.BinOp):
        raise TypeError(ast.dump(node))
    a, b = _evaluated(node.left, variable), _evaluated(node.right, variable)
    if isinstance(node.op, ast.Add):
        return a + b
    if isinstance(node.op, ast.Sub):
        return a - b
    return a * b if isinstance(node.op, ast.Mult) else tirx.floordiv(a, b)
