"""What is known about the values of a model: types, shapes, constants. Nothing here knows what a norm is."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import onnx
import onnx_ir as ir
from numpy.typing import NDArray

from rmsnorm_deploy.model.graphs import AI_ONNX
from rmsnorm_deploy.recognise import folding
from rmsnorm_deploy.recognise.bindings import Bindings
from rmsnorm_deploy.recognise.element_types import ElementTypes
from rmsnorm_deploy.recognise.inference import Dim, Inferred, Known, Shape, dim, read_value_info
from rmsnorm_deploy.recognise.match import Stage
from rmsnorm_deploy.recognise.refusal import Refusal
from rmsnorm_deploy.recognise.sameness import Sameness
from rmsnorm_deploy.recognise.sizes import Sizes

Array = NDArray[Any]

_MAX_CONSTANT = 4096
"""Constants with more elements are weights: they are never read."""
_MAX_EXTERNAL_CONSTANT = 64
"""In an external file even small tensors cost a read; a parameter of a norm has a handful of elements."""
_MAX_DEPTH = 24
"""Longest chain of constant expressions that is followed."""


def is_op(node: ir.Node | None, *op_types: str) -> bool:
    """Whether ``node`` is one of these standard operators."""
    return node is not None and node.domain in AI_ONNX and node.op_type in op_types


def node_name(node: ir.Node) -> str:
    """The node's name, or that of its first output where it has none."""
    if node.name:
        return node.name
    return next((o.name for o in node.outputs if o.name), node.op_type)


class Facts:
    """Types, shapes and constants of every value of one model.

    The model is not changed.

    Args:
        model: the model.
        inferred: what shape inference says of it.
        declared: the value_info of the main graph, where ``model`` was made without it.
        bindings: attributes of the local functions, for each graph of theirs.

    Attributes:
        sizes: what values hold that are made of Shapes.
    """

    def __init__(
        self,
        model: ir.Model,
        inferred: Inferred,
        declared: Iterable[onnx.ValueInfoProto] = (),
        bindings: Bindings | None = None,
    ) -> None:
        self._graph = model.graph
        self._bindings = bindings or {}
        self._inferred = inferred
        self._declared = {info.name: info for info in declared}
        self._known: dict[ir.Value, Known] = {}
        self._others: dict[ir.Value, Shape] = {}
        self._constants: dict[ir.Value, Array | None] = {}
        self._expressions: dict[ir.Value, bool] = {}
        self._sameness = Sameness(self.constant, self.dtype)
        self._types = ElementTypes(lambda value: self._of(value)[0])
        self.sizes = Sizes(self)

    # -- types and shapes ---------------------------------------------------------------------------------------------

    def dtype(self, value: ir.Value | None) -> ir.DataType | None:
        """Element type, or None where it is unknown."""
        if value is None:
            return None
        if value not in self._known and value.const_value is None:
            declared, _ = self._in_file(value)
            if declared is not None:
                return declared  # what the shape may need is not asked for
        stated = self._of(value)[0]
        return self._types.of(value) if stated is None else stated

    def correct(self, value: ir.Value, dtype: ir.DataType) -> None:
        """Take note that the element type of a value is another one than the file says."""
        self._known[value] = dtype, self._of(value)[1]

    def shape(self, value: ir.Value | None) -> Shape | None:
        """Dimensions, or None where even the rank is unknown."""
        return None if value is None else self._of(value)[1]

    def _of(self, value: ir.Value) -> Known:
        known = self._known.get(value)
        if known is None:
            known = self._known[value] = self._look_up(value)
        return known

    def _look_up(self, value: ir.Value) -> Known:
        """What the tensor says, else the file, else inference."""
        if value.const_value is not None:
            tensor = value.const_value
            return tensor.dtype, tuple(int(d) for d in tensor.shape)  # type: ignore[arg-type]
        declared_type, declared = self._in_file(value)
        if declared_type is not None and declared is not None and all(isinstance(d, int) for d in declared):
            return declared_type, declared  # nothing is left to infer
        inferred_type, inferred = self._inferred.of(value)
        dtype = declared_type if declared_type is not None else inferred_type
        if declared is None or inferred is None or len(declared) != len(inferred):
            return dtype, declared if declared is not None else inferred
        # each of the two may know a dimension that the other does not
        pairs = [self._known_dim(d, i) for d, i in zip(declared, inferred, strict=True)]
        shape, other = (tuple(pair[k] for pair in pairs) for k in (0, 1))
        if other != shape:
            self._others[value] = other
        return dtype, shape

    def _known_dim(self, declared: Dim, inferred: Dim) -> tuple[Dim, Dim]:
        """What is known of a dimension, and the other name that it has.

        A tool that ran before may have made up a name (``unk__0``) where more can be proven, so that two names are no
        proof of a difference.
        """
        if isinstance(declared, int) or inferred is None:
            return declared, declared
        if declared is None or isinstance(inferred, int):
            return inferred, inferred
        if declared in self._inferred.symbols:
            return declared, declared
        return (inferred, inferred) if inferred in self._inferred.symbols else (declared, inferred)

    def _in_file(self, value: ir.Value) -> Known:
        if value.type is not None and not isinstance(value.type, ir.TensorType):
            return None, None  # said to be sparse, or a sequence
        dtype = None if value.dtype is ir.DataType.UNDEFINED else value.dtype
        shape = None if value.shape is None else tuple(dim(d) for d in value.shape)
        if self._declared and value.name in self._declared:
            producer = value.producer()
            if producer is not None and producer.graph is self._graph:
                declared = read_value_info(self._declared[value.name])
                if not value.is_graph_output():
                    return declared
                # an output is declared a second time, and what it says there counts, as where onnx_ir reads both
                return declared[0] if dtype is None else dtype, declared[1] if shape is None else shape
        return dtype, shape

    def rank(self, value: ir.Value | None) -> int | None:
        """Number of dimensions, or None."""
        shape = self.shape(value)
        return None if shape is None else len(shape)

    def size(self, value: ir.Value | None, axes: Iterable[int]) -> int | None:
        """Number of elements in some dimensions of ``value``, or None where one of them is not known."""
        shape = self.shape(value)
        if shape is None:
            return None
        sizes = [shape[axis] if -len(shape) <= axis < len(shape) else None for axis in axes]
        return math.prod(s for s in sizes if isinstance(s, int)) if all(isinstance(s, int) for s in sizes) else None

    def shapes(self, value: ir.Value) -> tuple[Shape, ...]:
        """The dimensions under every set of names that they have; none where even the rank is unknown."""
        shape = self.shape(value)
        if shape is None:
            return ()
        other = self._others.get(value)
        return (shape,) if other is None else (shape, other)

    def same_shape(self, a: ir.Value | None, b: ir.Value | None) -> bool:
        """Whether both shapes are known and equal, dimension by dimension."""
        if a is b:
            return True
        if a is None or b is None or self.rank(a) is None or self.rank(a) != self.rank(b):
            return False
        return all(equal_dims(x, y) for x, y in self._pairs(a, b))

    def broadcasts_into(self, small: ir.Value, large: ir.Value) -> bool:
        """Whether ``small`` provably broadcasts into ``large`` without enlarging it."""
        inner, outer = self.shape(small), self.shape(large)
        if inner is None:
            return False
        if outer is None:
            return len(inner) == 0
        if len(inner) > len(outer):
            return False
        # rank 0 and 1 with one element broadcast into anything; so does a dimension of 1
        return all(1 in x or equal_dims(x, y) for x, y in self._pairs(small, large))

    def _pairs(self, a: ir.Value, b: ir.Value) -> Iterator[tuple[tuple[Dim, ...], tuple[Dim, ...]]]:
        """The names of the dimensions that two values meet at, from the last one on."""
        left, right = (zip(*(shape[::-1] for shape in self.shapes(v)), strict=True) for v in (a, b))
        return zip(left, right, strict=False)

    # -- constants ----------------------------------------------------------------------------------------------------

    def constant(self, value: ir.Value | None, depth: int = 0) -> Array | None:
        """The value of a small constant expression in its own type, or None.

        Followed are initializers that no caller can override, Constant nodes, and arithmetic on those. Never weights.
        """
        if value is None:
            return None
        if value not in self._constants:
            self._constants[value] = None  # guards against cycles in broken graphs
            found = self._evaluate(value, depth)
            self._constants[value] = self.sizes.integers(value) if found is None else found
        return self._constants[value]

    def scalar(self, value: ir.Value | None) -> float | None:
        """A constant with one element, as a Python float; None for anything else."""
        found = self.constant(value)
        if found is None or found.size != 1 or found.dtype.kind in "OSUbc":
            return None
        return float(found.reshape(-1)[0])

    def is_constant_expression(self, value: ir.Value | None, depth: int = 0) -> bool:
        """Whether the value is made of initializers and Constant nodes alone, however large."""
        if value is None or depth > _MAX_DEPTH:
            return False
        known = self._expressions.get(value)
        if known is None:
            known = self._expressions[value] = self._is_constant_expression(value, depth)
        return known

    def _is_constant_expression(self, value: ir.Value, depth: int) -> bool:
        if value.is_initializer():
            return True
        node = value.producer()
        if node is None:
            return False
        # nearly every value ends here, at what the model computes from its inputs
        if not all(i is None or self.is_constant_expression(i, depth + 1) for i in node.inputs):
            return False
        if not node.inputs and not is_op(node, "Constant"):
            return False
        if node.op_type.startswith("Random") or node.op_type in ("Bernoulli", "Multinomial"):
            return False
        return not any(isinstance(a, ir.Attr) and a.type in _GRAPH_TYPES for a in node.attributes.values())

    def _evaluate(self, value: ir.Value, depth: int) -> Array | None:
        if depth > _MAX_DEPTH:
            return None
        if value.is_initializer():
            return None if value.is_graph_input() else _small(value.const_value)
        node = value.producer()
        if node is None or node.domain not in AI_ONNX or node.graph is None:
            return None
        if node.op_type == "Constant":
            return folding.constant_node(self._attributes(node), _small)
        arrays = []
        for i, argument in enumerate(node.inputs):
            if node.op_type == "CastLike" and i == 1:
                continue
            folded = self.constant(argument, depth + 1)
            if folded is None:
                return None
            arrays.append(folded)
        like = self.dtype(node.inputs[1]) if node.op_type == "CastLike" else None
        result = folding.fold(folding.Operands(node.op_type, self._attributes(node), arrays, like))
        return None if result is None or result.size > _MAX_CONSTANT else result

    def attribute(self, node: ir.Node, name: str) -> ir.Attr | None:
        """An attribute of a node, or None; of a node in a function the one that its calls give.

        It is a reference where calls give different ones, or where nobody knows what they give.
        """
        attribute = node.attributes.get(name)
        if attribute is None or not attribute.is_ref() or not self._bindings:
            return attribute
        return self._bindings.get(node.graph, {}).get(attribute.ref_attr_name or "", attribute)

    def _attributes(self, node: ir.Node) -> Mapping[str, ir.Attr]:
        if not self._bindings or not any(a.is_ref() for a in node.attributes.values()):
            return node.attributes
        return {name: self.attribute(node, name) or a for name, a in node.attributes.items()}

    # -- sizes and equal values ---------------------------------------------------------------------------------------

    def has_shape_of(self, shape_value: ir.Value | None, target: ir.Value) -> bool:
        """Whether the shape held by ``shape_value`` broadcasts into ``target``'s, so that an Expand changes nothing."""
        node = None if shape_value is None else shape_value.producer()
        source = node.inputs[0] if is_op(node, "Shape") and node is not None and not node.attributes else None
        if source is not None and (self.same(source, target) or self.broadcasts_into(source, target)):
            return True
        sizes, rank = self.sizes.elements(shape_value), self.rank(target)
        if sizes is None or (rank is None and sizes) or len(sizes) > (rank or 0):
            return False
        return all(
            size.whole == 1 or size == self.sizes.of_axis(target, -1 - i) for i, size in enumerate(reversed(sizes))
        )

    def same(self, a: ir.Value | None, b: ir.Value | None) -> bool:
        """Whether two values are one, or are computed by equal operators from equal values."""
        return self._sameness.same(a, b)


def equal_dims(a: tuple[Dim, ...], b: tuple[Dim, ...]) -> bool:
    """Whether a dimension with the names ``a`` is provably the one with the names ``b``."""
    return any(d is not None and d in b for d in a)


def int_attribute(facts: Facts, node: ir.Node, name: str, default: int) -> int:
    """An integer attribute, or its default where the node does not carry it.

    Raises:
        Refusal: it is an attribute of the function that the node stands in, and calls give different ones.
    """
    attribute = facts.attribute(node, name)
    if attribute is None:
        return default
    if attribute.is_ref():
        refusal = Refusal(f"{name} is an attribute of the function that holds it", expected=f"a constant {name}")
        refusal.stage = Stage.SQUARE
        raise refusal
    return int(attribute.value)


_GRAPH_TYPES = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)


def _small(tensor: ir.TensorProtocol | None) -> Array | None:
    if tensor is None or tensor.dtype in (ir.DataType.STRING, ir.DataType.UNDEFINED):
        return None
    if isinstance(tensor, ir.ExternalTensor):
        if tensor.size > _MAX_EXTERNAL_CONSTANT or not str(tensor.base_dir):
            return None  # a model without a path has no folder: the current one may hold another model's file
    elif tensor.size > _MAX_CONSTANT:
        return None
    try:
        return tensor.numpy()
    except (OSError, ValueError, TypeError):  # not there, or not what the model says
        return None
