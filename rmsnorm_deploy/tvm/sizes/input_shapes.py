"""The shapes of a model's inputs for TVM, which takes every sign in a dimension's name for arithmetic."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

from onnx import ModelProto, ValueInfoProto
from tvm import sym, tirx

from rmsnorm_deploy.model.dims import evaluated, names_in


@dataclasses.dataclass(frozen=True)
class InputShapes:
    """What the importer is told.

    Attributes:
        shapes: numbers and expressions by the input's name; inputs of unknown rank are not in it.
        labels: a dimension's name in the model by its variable's; ``input[axis]`` where it has none.
        variables: by the dimension's name in the model.
    """

    shapes: dict[str, list[Any]]
    labels: dict[str, str]
    variables: dict[str, Any]

    def fixed(self, size: int) -> dict[str, list[Any]]:
        """The shapes where each variable is ``size``."""
        analyzer = sym.Analyzer()
        for variable in self.variables.values():
            analyzer.bind(variable, tirx.IntImm("int64", size))

        def number(dim: Any) -> int:
            return dim if isinstance(dim, int) else int(analyzer.simplify(dim))

        return {name: [number(d) for d in shape] for name, shape in self.shapes.items()}


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
    plain = {n for n in names if names_in(n) is None}
    calculated = {n for n in names if (found := names_in(n)) is not None and found <= plain}
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
        if name not in calculated:
            return variable(name)
        try:
            return evaluated(name, variable, {"Max": tirx.max, "Min": tirx.min})
        except ValueError:  # a root, for instance
            return variable(name)

    shapes = {v.name: [size(v, i) for i in range(len(v.type.tensor_type.shape.dim))] for v in inputs}
    return InputShapes(shapes, labels, variables)
