"""Named predicates of the grammar: each answers one question about values, or refuses with a sentence."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import onnx_ir as ir

from rmsnorm_deploy.recognise.factor import Factor
from rmsnorm_deploy.recognise.facts import Facts, int_attribute, is_op, node_name
from rmsnorm_deploy.recognise.inference import Shape
from rmsnorm_deploy.recognise.match import Stage
from rmsnorm_deploy.recognise.refusal import Refusal
from rmsnorm_deploy.recognise.state import Source

_EXACT_CASTS = {
    (ir.DataType.FLOAT16, ir.DataType.FLOAT),
    (ir.DataType.BFLOAT16, ir.DataType.FLOAT),
    (ir.DataType.FLOAT16, ir.DataType.DOUBLE),
    (ir.DataType.BFLOAT16, ir.DataType.DOUBLE),
    (ir.DataType.FLOAT, ir.DataType.DOUBLE),
}


def passes_unchanged(facts: Facts, node: ir.Node | None, index: int = 0) -> bool:
    """Whether ``node`` hands its input ``index`` on with neither value nor shape changed.

    Identity, Dropout without training, Cast and CastLike to the same type, multiplication by one, addition of zero.
    """
    if node is None or not node.outputs:
        return False
    if is_op(node, "Identity"):
        return True
    if is_op(node, "Dropout"):
        return index == 0 and _dropout_is_off(facts, node)
    if is_op(node, "Cast", "CastLike"):
        dtype = facts.dtype(node.inputs[0])
        return index == 0 and dtype is not None and dtype == facts.dtype(node.outputs[0])
    neutral = {"Mul": 1.0, "Div": 1.0, "Sub": 0.0}.get(node.op_type) if is_op(node, "Mul", "Div", "Sub") else None
    if neutral is not None and len(node.inputs) == 2 and (index == 0 or node.op_type == "Mul"):
        other = node.inputs[1 - index]
        return facts.scalar(other) == neutral and is_small_shape(facts, other, node.inputs[index])
    return False


def _dropout_is_off(facts: Facts, node: ir.Node) -> bool:
    if len(node.outputs) > 1 and node.outputs[1].uses():
        return False
    training = node.inputs[2] if len(node.inputs) > 2 else None
    if training is None:
        return True
    constant = facts.constant(training)
    return constant is not None and not constant.any()


def is_small_shape(facts: Facts, constant: ir.Value | None, value: ir.Value | None) -> bool:
    """Whether a constant of one element keeps ``value``'s rank when combined with it."""
    rank = facts.rank(constant)
    if rank is None:  # inference may have failed, beside a number that can be read
        number = facts.constant(constant)
        rank = None if number is None else number.ndim
    if rank is None or (rank <= 1 and (rank == 0 or facts.rank(value) != 0)):
        return rank is not None
    of_value = facts.rank(value)
    return of_value is not None and rank <= of_value


def strip(facts: Facts, value: ir.Value, casts: bool = True) -> ir.Value:
    """The value in front of nodes that change nothing and (with ``casts``) of Casts that lose nothing."""
    *_, last = widened(facts, value, casts)
    return last


def widened(facts: Facts, value: ir.Value, casts: bool = True) -> Iterator[ir.Value]:
    """``value``, and what stands in front of each of the nodes that :func:`strip` looks through."""
    yield value
    for _ in range(64):
        node = value.producer()
        if node is None or not node.inputs or value.index() != 0:
            return
        index = next((i for i in range(len(node.inputs)) if passes_unchanged(facts, node, i)), None)
        if index is None and casts and is_op(node, "Cast", "CastLike") and is_exact_cast(facts, node):
            index = 0
        source = None if index is None else node.inputs[index]
        if source is None:
            return
        value = source
        yield value


def is_exact_cast(facts: Facts, node: ir.Node) -> bool:
    """Whether a Cast only widens."""
    before, after = facts.dtype(node.inputs[0]), facts.dtype(node.outputs[0])
    return before is not None and after is not None and loses_nothing(before, after)


def loses_nothing(before: ir.DataType, after: ir.DataType) -> bool:
    """Whether every number of the one float type is one of the other."""
    return before == after or (before, after) in _EXACT_CASTS


def scalar_constant(facts: Facts, value: ir.Value | None, beside: ir.Value) -> float:
    """The one number that ``value`` holds.

    Raises:
        Refusal: it is not constant, can be overridden, has several values, or would change the shape of ``beside``.
    """
    if value is not None and value.is_graph_input():
        raise Refusal(
            f"'{value.name}' is a graph input, so a caller can change it",
            expected="a constant",
            found="a graph input" + (" with a default" if value.is_initializer() else ""),
            hint="make it a constant: remove it from the graph inputs",
        )
    constant = facts.constant(value)
    if constant is None or value is None:
        raise Refusal(
            f"'{value.name if value else ''}' is not a constant",
            expected="a constant number",
            found=lambda: _describe(facts, value),
        )
    if constant.size != 1 or constant.dtype.kind in "OSUbc":
        raise Refusal(
            f"'{value.name}' holds {constant.size} values",
            expected="one number",
            found=f"shape {list(constant.shape)}",
        )
    if not is_small_shape(facts, value, beside):
        raise Refusal(
            f"'{value.name}' has more dimensions than the value beside it",
            expected="a scalar",
            found=f"shape {list(constant.shape)}",
        )
    return float(constant.reshape(-1)[0])


def constant_factor(facts: Facts, value: ir.Value | None, beside: ir.Value, source: Source) -> Factor:
    """A constant factor: a number, or the measured size taken from Shapes, a root of it or its inverse.

    Raises:
        Refusal: it is neither.
    """
    if value is not None and facts.constant(value) is None:
        size, rank = facts.sizes.scalar(value), facts.rank(value)
        relation = None if size is None or source.measured is None else size.in_terms_of(source.measured)
        if relation is not None and (rank in (None, 0, 1) or is_small_shape(facts, value, beside)):
            return Factor(*relation)
    return Factor(scalar_constant(facts, value, beside))


def exponent_is(facts: Facts, value: ir.Value | None, wanted: float) -> bool:
    """Whether every element of a constant exponent is exactly ``wanted``, compared in its own type."""
    constant = facts.constant(value)
    if constant is None or constant.size == 0 or constant.dtype.kind in "OSUbc" or (value and value.is_graph_input()):
        return False
    return bool(np.all(constant == np.asarray(wanted).astype(constant.dtype))) and bool(
        np.all(constant.astype(np.float64) == wanted)
    )


def reduction_axes(facts: Facts, node: ir.Node) -> tuple[int, ...]:
    """The reduced dimensions of a Reduce node: attribute or input, default all.

    The result is sorted; negative from the end where it reaches the last dimension or the rank is unknown, else counted
    from the front.

    Raises:
        Refusal: the axes are not constant, or their place cannot be known without the rank.
    """
    rank = facts.rank(node.inputs[0])
    axes = given_axes(facts, node)
    if not axes:
        if int_attribute(facts, node, "noop_with_empty_axes", 0):
            raise Refusal("has no axes and noop_with_empty_axes=1: it reduces nothing", expected="at least one axis")
        if rank is None:
            raise Refusal("reduces all dimensions of a value of unknown rank", expected="a known rank")
        axes = list(range(rank))
    return canonical_axes(axes, rank)


def given_axes(facts: Facts, node: ir.Node) -> list[int]:
    """The axes that a node names, by attribute or input; none where it names none.

    Raises:
        Refusal: they are not constant.
    """
    attribute = facts.attribute(node, "axes")
    if attribute is not None:
        if attribute.is_ref():
            raise Refusal("the axes are an attribute of the function that holds it", expected="constant axes")
        return [int(a) for a in attribute.value]
    given = node.inputs[1] if len(node.inputs) > 1 else None
    if given is None:
        return []
    constant = None if given.is_graph_input() else facts.constant(given)
    if constant is None:
        raise Refusal(
            f"the axes '{given.name}' are not constant",
            expected="constant axes",
            found="a graph input" if given.is_graph_input() else _describe(facts, given),
        )
    return [int(a) for a in constant.reshape(-1)]


def canonical_axes(axes: Sequence[int], rank: int | None) -> tuple[int, ...]:
    """Sorted axes: negative where they reach the last dimension, else counted from the front.

    Raises:
        Refusal: they are not one contiguous run, or cannot be placed without the rank.
    """
    try:
        return _run_of(axes, rank)
    except Refusal as refusal:
        refusal.stage = Stage.SQUARE  # what is asked for its axes is a square
        raise


def _run_of(axes: Sequence[int], rank: int | None) -> tuple[int, ...]:
    if rank is None:
        if any(a >= 0 for a in axes):
            raise Refusal(
                f"axis {max(axes)} of a value of unknown rank may or may not be the last one",
                expected="a negative axis, or a known rank",
                found=f"axes {sorted(axes)}",
                hint="run shape inference, or export with shapes",
            )
        ordered = sorted(set(axes))
    else:
        if any(not -rank <= a < rank for a in axes):
            raise Refusal("an axis is outside the value's rank", found=f"axes {sorted(axes)} of rank {rank}")
        ordered = sorted({a % rank for a in axes})
    if not ordered:
        raise Refusal("reduces no dimension", expected="at least one axis")
    if ordered != list(range(ordered[0], ordered[-1] + 1)):
        raise Refusal("the axes are not next to each other", expected="one contiguous run", found=f"axes {ordered}")
    if rank is not None and ordered[-1] == rank - 1:
        ordered = [a - rank for a in ordered]
    return tuple(ordered)


def enlarges(shape: Shape | None, x: Shape | None) -> str:
    """In what ``shape`` does not broadcast into X, which is of shape ``x``; empty where it does, as far as is known."""
    if shape is None or x is None:
        return ""
    if len(shape) > len(x):
        return f"{len(shape)} dimensions, and X has {len(x)}"
    for own, size in zip(reversed(shape), reversed(x), strict=False):
        if isinstance(own, int) and isinstance(size, int) and own not in (1, size):
            return f"{own} elements along a dimension of which X has {size}"
    return ""


def scale_broadcasts(facts: Facts, scale: ir.Value, x: ir.Value, axes: tuple[int, ...]) -> None:
    """Whether ``scale`` may be the scale of a norm of ``x``: a parameter, not an activation, that never enlarges x.

    Raises:
        Refusal: it is not provably so.
    """
    shape = facts.shape(scale)
    if shape is None:
        raise Refusal(f"the rank of '{scale.name}' is unknown", expected="a scale that broadcasts into x")
    if not facts.broadcasts_into(scale, x):
        raise Refusal(
            f"'{scale.name}' may enlarge the normalised value",
            expected="a scale that broadcasts into x",
            found=f"scale {_shape_text(shape)} beside x {_shape_text(facts.shape(x))}",
        )
    if facts.is_constant_expression(scale) or (scale.producer() is None and len(shape) <= len(axes)):
        return
    rank = facts.rank(x)
    inside = {a if a < 0 else a - (rank or 0) for a in axes}
    if any(d != 1 and i - len(shape) not in inside for i, d in enumerate(shape)):
        raise Refusal(
            f"'{scale.name}' varies along dimensions that are not normalised: a gate or a modulation, not a scale",
            expected="a scale along the normalised dimensions",
            found=f"shape {_shape_text(shape)}",
        )


def _shape_text(shape: Sequence[object] | None) -> str:
    return "of unknown rank" if shape is None else "[" + ", ".join("?" if d is None else str(d) for d in shape) + "]"


def _describe(facts: Facts, value: ir.Value | None) -> str:
    if value is None:
        return "nothing"
    node = value.producer()
    shape = _shape_text(facts.shape(value))
    return f"a value of shape {shape}" + (f" from {node.op_type} '{node_name(node)}'" if node is not None else "")
