"""The reduction: the node that opens a candidate, and what it says about its output."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

import onnx_ir as ir

from rmsnorm_deploy.op import FLOAT_TYPES
from rmsnorm_deploy.op.dtypes import FLOAT32
from rmsnorm_deploy.recognise import checks
from rmsnorm_deploy.recognise.factor import ONE, Factor
from rmsnorm_deploy.recognise.facts import Facts, int_attribute
from rmsnorm_deploy.recognise.leading import leading_part
from rmsnorm_deploy.recognise.match import Stage
from rmsnorm_deploy.recognise.refusal import Refusal
from rmsnorm_deploy.recognise.sizes import Size, product
from rmsnorm_deploy.recognise.square import Square, square_in_front, square_of
from rmsnorm_deploy.recognise.state import LEAST_RMS, Source, State

_FLOATS = "float32, float16, bfloat16 or float64"


@dataclasses.dataclass(frozen=True)
class Reduced:
    """What one node reduces.

    Attributes:
        square: the square that it adds up.
        axes: over which dimensions.
        restored: the output has these dimensions, as 1.
        path: labels for reports.
    """

    square: Square
    axes: tuple[int, ...]
    restored: bool
    path: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Opening:
    """What a reduction says about its output, which is ``factor * S ** power`` with S the RMS.

    Attributes:
        read: what the node reduces; raises a Refusal where that is not a square.
        power: of the RMS.
        factor: constant factor.
        stage: the stage reached with it.
        zero_stays: a row of zeros stays one, where x / 0 would be NaN.
    """

    read: Callable[[Facts, ir.Node, ir.Value], Reduced]
    power: int
    factor: Factor
    stage: Stage = Stage.MEAN_SQUARE
    zero_stays: bool = False


def open_candidate(facts: Facts, node: ir.Node) -> State:
    """The state after the reduction ``node``.

    Raises:
        Refusal: it reduces something that is not a square.
    """
    opening = OPENINGS[node.op_type]
    value = node.inputs[0]
    if value is None:
        raise Refusal("has no input")
    reduced = opening.read(facts, node, value)
    square = reduced.square
    base = checks.strip(facts, square.value)
    dtype = _float_type(facts, base)
    part = leading_part(facts, base, reduced.axes)
    measured = _measured(facts, square.value, reduced.axes)
    source = Source(
        base,
        square.value,
        reduced.axes,
        None if measured is None else measured.dim,
        None if part is None else checks.strip(facts, part[0]),
        None if part is None else part[1],
        measured,
    )
    types = [facts.dtype(n.outputs[0]) for n in (*square.nodes, node)]
    normalised = opening.stage is Stage.NORMALISED
    state = State(
        stage=opening.stage,
        value=node.outputs[0],
        source=source,
        power=opening.power,
        factor=opening.factor,
        restored=reduced.restored,
        statistics=(facts.dtype(value) or dtype, *(t for t in types if t is not None and t in FLOAT_TYPES)),
        x=square.value if normalised else None,
        roundings=tuple(t for t in types if t is not None) if normalised else (),
        nodes=(*square.signs, *square.nodes, node),
        path=reduced.path,
    )
    if square.epsilon:
        state = state.having("epsilon", square.epsilon)
    return state.having("rms_floor", _least_rms(state, dtype)) if opening.zero_stays else state


def _least_rms(state: State, dtype: ir.DataType) -> float:
    """A floor that makes a row of zeros stay one and changes no row that the arithmetic can measure."""
    if state.statistics[0] != ir.DataType.DOUBLE:
        return LEAST_RMS
    if dtype == ir.DataType.DOUBLE:
        refusal = Refusal(
            "divides float64 rows by their norm and keeps rows of zeros",
            expected="float32 or 16 bits",
            found="DOUBLE: such rows may be smaller than the least RMS that a float32 attribute can hold",
        )
        refusal.stage = Stage.SQUARE
        raise refusal
    return FLOAT32.smallest


def _float_type(facts: Facts, base: ir.Value) -> ir.DataType:
    """The type of what is squared."""
    dtype = facts.dtype(base)
    if dtype is None:
        unknown = Refusal(
            f"the type of '{base.name}' is unknown",
            expected=_FLOATS,
            found="no type in the file, and none could be inferred",
            hint="run onnx.shape_inference.infer_shapes on the model, or export with types",
        )
        unknown.stage = Stage.SQUARE
        raise unknown
    if dtype not in FLOAT_TYPES:
        raise Refusal(f"squares '{base.name}' of type {dtype.name}", expected=_FLOATS, found=dtype.name)
    return dtype


def _measured(facts: Facts, value: ir.Value, axes: tuple[int, ...]) -> Size | None:
    """The number of reduced elements."""
    try:
        return product(facts.sizes.of_axis(value, a) for a in axes)
    except IndexError:
        return None


# ---------------------------------------------------------------------------------------------------------------------
# How each operator says what it reduces


def sum_of_square(facts: Facts, node: ir.Node, value: ir.Value) -> Reduced:
    """The square is a node of its own in front of the reduction."""
    square = square_in_front(facts, value)
    if square is None:
        producer = value.producer()
        raise Refusal(
            "reduces something that is not a square",
            expected="Pow(x, 2) or Mul(x, x) before the reduction",
            found="a graph input" if producer is None else producer.op_type,
        )
    return _reduced(facts, node, square, (square.label, node.op_type))


def squares_itself(facts: Facts, node: ir.Node, value: ir.Value) -> Reduced:
    """The operator squares what it gets."""
    square = square_of(facts, value, value, (), node.op_type)
    assert square is not None
    return _reduced(facts, node, square, (square.label,))


def _reduced(facts: Facts, node: ir.Node, square: Square, path: tuple[str, ...]) -> Reduced:
    try:
        axes = checks.reduction_axes(facts, node)
    except Refusal as refusal:
        refusal.stage = Stage.SQUARE
        raise
    return Reduced(square, axes, bool(int_attribute(facts, node, "keepdims", 1)), path)


def divides_by_norm(facts: Facts, node: ir.Node, value: ir.Value) -> Reduced:
    """LpNormalization: x divided by its norm."""
    p = int_attribute(facts, node, "p", 2)
    if p != 2:
        raise Refusal("divides by a norm other than L2", expected="p = 2", found=f"p = {p}")
    axes = checks.canonical_axes([int_attribute(facts, node, "axis", -1)], facts.rank(value))
    return Reduced(Square(value, (), node.op_type), axes, True, (node.op_type,))


def product_with_itself(facts: Facts, node: ir.Node, value: ir.Value) -> Reduced:
    """Einsum ``...i,...i->...``; the summed dimensions are gone after it."""
    attribute = node.attributes.get("equation")
    if attribute is None or len(node.inputs) != 2 or None in node.inputs:
        raise Refusal("is not a product of a value with itself", expected="Einsum of x with x")
    equation = str(attribute.value).replace(" ", "")
    left, arrow, right = equation.partition("->")
    terms = left.split(",")
    square = square_of(facts, value, node.inputs[1] or value, (), node.op_type)
    if not arrow or len(terms) != 2 or terms[0] != terms[1] or square is None:
        raise Refusal("is not a product of a value with itself", expected="'...i,...i->...'", found=equation)
    term = terms[0]
    letters = term.replace("...", "")
    summed = [c for c in letters if c not in right]
    kept = "".join(c for c in term if c == "." or c not in summed)
    if not summed or len(set(letters)) != len(letters) or kept != right:
        raise Refusal("does not sum over one run of dimensions", expected="'...i,...i->...'", found=equation)
    flat = term.replace("...", ".")
    positions = [flat.index(c) for c in summed]
    if "." in flat:
        dot = flat.index(".")
        positions = [p - len(flat) if p > dot else p for p in positions]
    rank = facts.rank(value)
    if rank is None and "." not in flat:
        rank = len(flat)
    return Reduced(square, checks.canonical_axes(positions, rank), False, (square.label,))


_SUM = Factor(1.0, 1.0)

OPENINGS: Mapping[str, Opening] = {
    "ReduceMean": Opening(sum_of_square, 2, ONE),
    "ReduceSum": Opening(sum_of_square, 2, _SUM),
    "ReduceSumSquare": Opening(squares_itself, 2, _SUM),
    "ReduceL2": Opening(squares_itself, 1, _SUM**0.5, Stage.RMS),
    "LpNormalization": Opening(divides_by_norm, -1, _SUM**-0.5, Stage.NORMALISED, zero_stays=True),
    "Einsum": Opening(product_with_itself, 2, _SUM),
}
"""The operators that can start a norm."""
