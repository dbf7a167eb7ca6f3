"""How RMSNorms are spelled: for each stage a list of alternatives, each one small function.

An alternative is declared with the stages at which it applies, the operators it reads, and a name. It gets a
:class:`Step` and returns the next :class:`Partial`, or refuses with a sentence. Operand order, Casts that lose nothing,
Identity and other noise, Constant nodes and initializers are the engine's business and appear in no alternative.

To add a spelling: one alternative here, one builder in ``tests/spellings/``.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable

import numpy as np
import onnx_ir as ir

from rmsnorm_deploy.recognise import checks
from rmsnorm_deploy.recognise.facts import AI_ONNX, Facts, int_attribute, is_op
from rmsnorm_deploy.recognise.inference import Dim
from rmsnorm_deploy.recognise.match import Stage
from rmsnorm_deploy.recognise.partial import Factor, Partial, Refusal, Source

# ---------------------------------------------------------------------------------------------------------------------
# The shape of an alternative


@dataclasses.dataclass(frozen=True)
class Step:
    """One node that uses the value reached so far.

    Attributes:
        facts: what is known about the model.
        state: what has been recognised.
        node: the node.
        index: which of its inputs is the value reached.
    """

    facts: Facts
    state: Partial
    node: ir.Node
    index: int

    @property
    def other(self) -> ir.Value:
        """The other operand of a node of two.

        Raises:
            Refusal: there is none, or it is the value itself.
        """
        values = [v for i, v in enumerate(self.node.inputs) if i != self.index and v is not None]
        if len(values) != 1 or len(self.node.inputs) != 2:
            raise Refusal(f"{self.node.op_type} does not have two operands here", expected="two operands")
        if values[0] is self.state.value:
            raise Refusal("multiplies or adds the value to itself", expected="another operand")
        return values[0]

    @property
    def output(self) -> ir.Value:
        """What the node makes of it."""
        return self.node.outputs[0]

    def constant(self) -> float:
        """The other operand as one constant number."""
        return checks.scalar_constant(self.facts, self.other, self.state.value)

    def factor(self) -> Factor:
        """The other operand as a constant factor, perhaps a size taken from a Shape."""
        return checks.constant_factor(self.facts, self.other, self.state.value, self.state.source)


Apply = Callable[[Step], Partial]


@dataclasses.dataclass(frozen=True)
class Alternative:
    """One way to get from a value to the next."""

    name: str
    stages: frozenset[Stage]
    ops: frozenset[str]
    apply: Apply


ALTERNATIVES: list[Alternative] = []
"""Every alternative behind the reduction, in the order in which they are tried."""


def alternative(name: str, stages: Iterable[Stage], ops: Iterable[str]) -> Callable[[Apply], Apply]:
    """Declare the decorated function as an alternative."""

    def declare(apply: Apply) -> Apply:
        ALTERNATIVES.append(Alternative(name, frozenset(stages), frozenset(ops), apply))
        return apply

    return declare


STATISTIC = (Stage.MEAN_SQUARE, Stage.RMS)
PRODUCT = (Stage.NORMALISED, Stage.OUTPUT)

# ---------------------------------------------------------------------------------------------------------------------
# Stage 1: the square. What is reduced, seen from the reduction upwards.


@dataclasses.dataclass(frozen=True)
class Square:
    """What a reduction reduces: the squared value, epsilon where it was added before the mean, nodes, spelling."""

    value: ir.Value
    nodes: tuple[ir.Node, ...]
    name: str
    epsilon: float = 0.0


def squared_operand(facts: Facts, value: ir.Value) -> Square | None:
    """The square that ``value`` is, or None."""
    nodes: list[ir.Node] = []
    epsilon = 0.0
    here = value
    for _ in range(16):  # Casts and noise between the square and the reduction
        node = here.producer()
        if node is None or node.domain not in AI_ONNX:
            return None
        if is_op(node, "Pow") and node.inputs[0] is not None:
            if not checks.exponent_is(facts, node.inputs[1], 2.0):
                return None
            exponent = node.inputs[1]
            assert exponent is not None
            if facts.rank(exponent) != 0 and not facts.broadcasts_into(exponent, node.inputs[0]):
                constant = facts.constant(exponent)
                if constant is None or constant.size != 1 or not checks.is_small_shape(facts, exponent, node.inputs[0]):
                    return None
            return _without_abs(facts, node.inputs[0], (node, *nodes), epsilon)
        if is_op(node, "Mul") and node.inputs[0] is not None and node.inputs[1] is not None:
            left, right = (checks.strip(facts, v) for v in node.inputs if v is not None)
            if left is right:
                return Square(node.inputs[0], (node, *nodes), "Mul(x,x)", epsilon)
        added = _added_constant(facts, node)
        if added is not None:
            epsilon += added[1]
            nodes.insert(0, node)
            here = added[0]
            continue
        index = next((i for i in range(len(node.inputs)) if checks.passes_unchanged(facts, node, i)), None)
        if index is None and is_op(node, "Cast") and facts.dtype(node.inputs[0]) in checks.FLOATS:
            index = 0
        following = None if index is None else node.inputs[index]
        if following is None:
            return None
        nodes.insert(0, node)
        here = following
    return None


def _added_constant(facts: Facts, node: ir.Node) -> tuple[ir.Value, float] | None:
    """The operand and the number of an addition: the mean of x^2 + epsilon is the mean square plus epsilon."""
    if not is_op(node, "Add") or len(node.inputs) != 2:
        return None
    for value, other in (node.inputs, node.inputs[::-1]):
        number = None if other is None or other.is_graph_input() else facts.scalar(other)
        if value is not None and number is not None and number >= 0 and checks.is_small_shape(facts, other, value):
            return value, number
    return None


def _without_abs(facts: Facts, value: ir.Value, nodes: tuple[ir.Node, ...], epsilon: float) -> Square:
    """|x|^2 is x^2."""
    node = checks.strip(facts, value).producer()
    if is_op(node, "Abs") and node is not None and node.inputs[0] is not None:
        return Square(node.inputs[0], (node, *nodes), "Abs > Pow(x,2)", epsilon)
    return Square(value, nodes, "Pow(x,2)", epsilon)


def leading_part(facts: Facts, base: ir.Value, axes: tuple[int, ...]) -> tuple[ir.Value, int] | None:
    """If ``base`` is the first k features of a value along the one reduced axis: that value and k (a pRMSNorm)."""
    node = base.producer()
    if len(axes) != 1 or node is None or not node.inputs or node.inputs[0] is None:
        return None
    whole = node.inputs[0]
    rank = facts.rank(whole)
    size = facts.shape(whole)

    def at_axis(axis: int) -> bool:
        return axis == axes[0] or (rank is not None and axis % rank == axes[0] % rank)

    if is_op(node, "Split"):
        if base is not node.outputs[0] or not at_axis(int_attribute(node, "axis", 0)):
            return None
        shape = facts.shape(base)
        length = None if shape is None else shape[axes[0]]
        return (whole, length) if isinstance(length, int) and length > 0 else None
    if not is_op(node, "Slice"):
        return None
    starts, ends, given, steps = _slice_parameters(facts, node)
    if starts is None or ends is None or len(starts) != 1 or starts != [0] or steps not in (None, [1]):
        return None
    if given is None or len(given) != 1 or not at_axis(given[0]):
        return None
    k = ends[0]
    length = None if size is None else size[axes[0]]
    if isinstance(length, int):
        k = len(range(*slice(0, k).indices(length)))
    return (whole, k) if k > 0 else None


def _slice_parameters(facts: Facts, node: ir.Node) -> tuple[list[int] | None, ...]:
    """Starts, ends, axes and steps of a Slice, from inputs (opset 10 on) or attributes."""

    def read(index: int, name: str) -> list[int] | None:
        if name in node.attributes and not node.attributes[name].is_ref():
            return [int(v) for v in node.attributes[name].value]
        value = node.inputs[index] if len(node.inputs) > index else None
        constant = None if value is None or value.is_graph_input() else facts.constant(value)
        return None if constant is None else [int(v) for v in constant.reshape(-1)]

    starts, ends = read(1, "starts"), read(2, "ends")
    axes, steps = read(3, "axes"), read(4, "steps")
    if axes is None and starts is not None and len(node.inputs) <= 3:
        axes = list(range(len(starts)))
    if steps is None and len(node.inputs) > 4 and node.inputs[4] is not None:
        steps = [0]  # not constant: matches no accepted step
    return starts, ends, axes, steps


# ---------------------------------------------------------------------------------------------------------------------
# Stage 2: the reductions. Each opens a candidate.


@dataclasses.dataclass(frozen=True)
class Opening:
    """What a reduction says about the value behind it: ``factor * S ** power``."""

    name: str
    power: int
    factor: Factor
    square_inside: bool
    stage: Stage = Stage.MEAN_SQUARE


OPENINGS: dict[str, Opening] = {
    "ReduceMean": Opening("ReduceMean", 2, Factor(), square_inside=False),
    "ReduceSum": Opening("ReduceSum", 2, Factor(1.0, 1.0), square_inside=False),
    "ReduceSumSquare": Opening("ReduceSumSquare", 2, Factor(1.0, 1.0), square_inside=True),
    "ReduceL2": Opening("ReduceL2", 1, Factor(1.0, 0.5), square_inside=True, stage=Stage.RMS),
    "LpNormalization": Opening("LpNormalization", -1, Factor(1.0, -0.5), square_inside=True, stage=Stage.NORMALISED),
    "Einsum": Opening("Einsum", 2, Factor(1.0, 1.0), square_inside=True),
}
"""The reductions that can start a norm. ``square_inside``: the operator squares by itself."""


def open_candidate(facts: Facts, node: ir.Node) -> Partial:
    """The state behind the reduction ``node``.

    Raises:
        Refusal: it reduces something else than a square.
    """
    opening = OPENINGS[node.op_type]
    reduced = node.inputs[0]
    if reduced is None:
        raise Refusal("has no input")
    restored = True
    if opening.name == "LpNormalization":
        if int_attribute(node, "p", 2) != 2:
            raise Refusal(
                "divides by another norm than L2", expected="p = 2", found=f"p = {int_attribute(node, 'p', 2)}"
            )
        axes = checks.canonical_axes([int_attribute(node, "axis", -1)], facts.rank(reduced))
        square = Square(reduced, (), opening.name)
    elif opening.name == "Einsum":
        axes, restored = _einsum_axes(facts, node)
        square = Square(reduced, (), opening.name)
    else:
        found = Square(reduced, (), opening.name) if opening.square_inside else squared_operand(facts, reduced)
        if found is None:
            producer = reduced.producer()
            raise Refusal(
                "reduces something that is not a square",
                expected="Pow(x, 2) or Mul(x, x) before the reduction",
                found="a graph input" if producer is None else producer.op_type,
            )
        square = found
        try:
            axes = checks.reduction_axes(facts, node)
        except Refusal as refusal:
            refusal.stage = Stage.SQUARE
            raise
        restored = checks.keeps_dimensions(node)
    base = checks.strip(facts, square.value)
    dtype = facts.dtype(base)
    if dtype is None:
        raise Refusal(
            f"the type of '{base.name}' is unknown",
            expected="float32, float16, bfloat16 or float64",
            found="no type in the file, and none could be inferred",
            hint="run onnx.shape_inference.infer_shapes on the model, or export with types",
        )
    if dtype not in checks.FLOATS:
        raise Refusal(
            f"squares '{base.name}' of type {dtype.name}",
            expected="float32, float16, bfloat16 or float64",
            found=dtype.name,
        )
    part = leading_part(facts, base, axes)
    source = Source(
        base,
        square.value,
        axes,
        _measured_size(facts, square.value, axes),
        None if part is None else checks.strip(facts, part[0]),
        None if part is None else part[1],
    )
    floor, x = 0.0, None
    roundings: tuple[ir.DataType | str, ...] = ()
    if opening.stage is Stage.NORMALISED:
        # A zero vector stays zero here, where x / 0 would be NaN: the least normal number as the floor does that.
        floor, x = float(np.finfo(np.float32).tiny), square.value
        roundings = tuple(t for t in (facts.dtype(node.outputs[0]),) if t is not None)
    statistics = tuple(t for n in [*square.nodes, node] for t in (facts.dtype(n.outputs[0]),) if t in checks.FLOATS)
    reduction_type = facts.dtype(reduced) or dtype
    return Partial(
        stage=opening.stage,
        value=node.outputs[0],
        source=source,
        power=opening.power,
        factor=opening.factor,
        floor=floor,
        restored=restored,
        statistics=(reduction_type, *(t for t in statistics if t is not None)),
        x=x,
        roundings=roundings,
        nodes=(*square.nodes, node),
        path=(square.name,) if opening.square_inside else (square.name, opening.name),
        epsilon=square.epsilon,
    )


def _measured_size(facts: Facts, value: ir.Value, axes: tuple[int, ...]) -> Dim:
    shape = facts.shape(value)
    if shape is None or any(not -len(shape) <= a < len(shape) for a in axes):
        return None
    dims = [shape[a] for a in axes]
    if len(dims) == 1:
        return dims[0]
    return math.prod(d for d in dims if isinstance(d, int)) if all(isinstance(d, int) for d in dims) else None


def _einsum_axes(facts: Facts, node: ir.Node) -> tuple[tuple[int, ...], bool]:
    """The summed dimensions of ``...i,...i->...``, and whether they stay in place (never)."""
    attribute = node.attributes.get("equation")
    if attribute is None or len(node.inputs) != 2 or None in node.inputs:
        raise Refusal("is not a product of a value with itself", expected="Einsum of x with x")
    equation = str(attribute.value).replace(" ", "")
    left, arrow, right = equation.partition("->")
    terms = left.split(",")
    bases = {checks.strip(facts, v) for v in node.inputs if v is not None}
    if not arrow or len(terms) != 2 or terms[0] != terms[1] or len(bases) != 1:
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
    rank = facts.rank(node.inputs[0])
    if rank is None and "." not in flat:
        rank = len(flat)
    return checks.canonical_axes(positions, rank), False


# ---------------------------------------------------------------------------------------------------------------------
# Stages 2 and 3: from the mean square to the RMS or its inverse


@alternative("Mul const", STATISTIC, ["Mul"])
def _(step: Step) -> Partial:
    return step.state.moved(factor=step.state.factor * step.factor())


@alternative("Div const", STATISTIC, ["Div"])
def _(step: Step) -> Partial:
    if step.index != 0:
        raise Refusal("divides a constant by the value")
    return step.state.moved(factor=step.state.factor / step.factor())


def _offset(step: Step, offset: float) -> Partial:
    """``offset`` added to the value: epsilon inside or outside the root."""
    state = step.state
    factor = state.factor.value(state.source.size)
    if offset and factor is None:
        raise Refusal(
            "adds epsilon to a sum over an unknown number of elements",
            expected="a mean, or a known size",
            hint="export with a fixed hidden size",
        )
    offset = offset / (factor or 1.0)
    if not 0.0 <= offset < math.inf:
        raise Refusal("epsilon is negative or not finite", expected="epsilon >= 0", found=f"{offset:g}")
    if state.power == 2:
        if state.floor:
            raise Refusal("adds epsilon behind a clamp of the mean square")
        return state.moved(epsilon=state.epsilon + offset)
    if state.power == 1:
        if state.floor:
            raise Refusal("adds epsilon behind a clamp of the RMS")
        return state.moved(outside=state.outside + offset)
    raise Refusal("adds a constant to the inverse of the RMS")


@alternative("Add eps", STATISTIC, ["Add", "Sum"])
def _(step: Step) -> Partial:
    return _offset(step, step.constant())


@alternative("Sub -eps", STATISTIC, ["Sub"])
def _(step: Step) -> Partial:
    if step.index != 0:
        raise Refusal("subtracts the value from a constant")
    return _offset(step, -step.constant())


def _clamp(step: Step, least: float) -> Partial:
    """The value is at least ``least``."""
    state = step.state
    if state.power not in (1, 2):
        raise Refusal("clamps the inverse of the RMS")
    factor = state.factor.value(state.source.size)
    if factor is None:
        raise Refusal("clamps a sum over an unknown number of elements", expected="a mean, or a known size")
    if not math.isfinite(least):
        raise Refusal("clamps at a bound that is not finite", found=f"{least:g}")
    # below zero a clamp does nothing to a square or a root
    floor = max(least, 0.0) / factor
    return state.moved(floor=max(state.floor, floor if state.power == 1 else math.sqrt(floor)))


@alternative("Max eps", STATISTIC, ["Max"])
def _(step: Step) -> Partial:
    return _clamp(step, step.constant())


@alternative("Clip", STATISTIC, ["Clip"])
def _(step: Step) -> Partial:
    node, facts = step.node, step.facts
    if step.index != 0:
        raise Refusal("is the bound of a Clip")
    bounds: list[float | None] = []
    for i, name in ((1, "min"), (2, "max")):
        attribute = node.attributes.get(name)
        value = node.inputs[i] if len(node.inputs) > i else None
        if attribute is not None and not attribute.is_ref():
            bounds.append(float(attribute.value))
        elif value is not None:
            bounds.append(checks.scalar_constant(facts, value, step.state.value))
        else:
            bounds.append(None)
    low, high = bounds
    dtype = facts.dtype(step.state.value)
    greatest = {ir.DataType.FLOAT16: 65504.0}.get(dtype, float(np.finfo(np.float32).max) * 0.99)  # type: ignore[arg-type]
    if high is not None and high < greatest:
        raise Refusal("the RMS has an upper bound", expected="no upper bound", found=f"{high:g}")
    return step.state if low is None else _clamp(step, low)


@alternative("Sqrt", STATISTIC, ["Sqrt"])
def _(step: Step) -> Partial:
    state = step.state
    if abs(state.power) != 2:
        raise Refusal("takes the root of a root", expected="the mean square")
    return state.moved(stage=Stage.RMS, power=state.power // 2, factor=state.factor**0.5)


@alternative("Reciprocal", STATISTIC, ["Reciprocal"])
def _(step: Step) -> Partial:
    return step.state.moved(power=-step.state.power, factor=Factor() / step.state.factor)


@alternative("Div(c,.)", STATISTIC, ["Div"])
def _(step: Step) -> Partial:
    if step.index != 1:
        raise Refusal("is not the divisor")
    return step.state.moved(power=-step.state.power, factor=step.factor() / step.state.factor)


@alternative("Pow", STATISTIC, ["Pow"])
def _(step: Step) -> Partial:
    if step.index != 0:
        raise Refusal("is the exponent")
    for exponent in (0.5, -0.5, -1.0):
        if checks.exponent_is(step.facts, step.node.inputs[1], exponent):
            break
    else:
        raise Refusal(
            "is raised to another power", expected="0.5, -0.5 or -1", found=f"{step.facts.scalar(step.node.inputs[1])}"
        )
    checks.scalar_constant(step.facts, step.node.inputs[1], step.state.value)
    power = step.state.power * exponent
    if power not in (1.0, -1.0, 2.0, -2.0):
        raise Refusal("takes the root of a root", expected="the mean square")
    stage = Stage.RMS if abs(power) == 1 else step.state.stage
    return step.state.moved(stage=stage, power=int(power), factor=step.state.factor**exponent)


@alternative("Cast", STATISTIC, ["Cast", "CastLike"])
def _(step: Step) -> Partial:
    if step.index != 0 or step.facts.dtype(step.output) not in checks.FLOATS:
        raise Refusal("casts the statistic to something that is not a float")
    return step.state


def _axes_of(facts: Facts, node: ir.Node) -> list[int]:
    """The constant axes of a Squeeze or Unsqueeze, from its attribute or its input."""
    attribute = node.attributes.get("axes")
    if attribute is not None and not attribute.is_ref():
        return [int(a) for a in attribute.value]
    given = node.inputs[1] if len(node.inputs) > 1 else None
    constant = None if given is None or given.is_graph_input() else facts.constant(given)
    if constant is None:
        raise Refusal("the axes are not constant", expected="constant axes")
    return [int(a) for a in constant.reshape(-1)]


@alternative("Unsqueeze", STATISTIC, ["Unsqueeze"])
def _(step: Step) -> Partial:
    state, facts, node = step.state, step.facts, step.node
    if step.index != 0 or state.restored:
        raise Refusal("adds a dimension to the statistic", expected="the reduced dimension put back where it was")
    axes = _axes_of(facts, node)
    rank = facts.rank(state.source.cast)
    if checks.canonical_axes(axes, rank) != state.source.axes:
        raise Refusal(
            "the reduced dimension is put back in another place",
            expected=f"axes {list(state.source.axes)}",
            found=f"axes {axes}",
        )
    return state.moved(restored=True)


@alternative("Squeeze", STATISTIC, ["Squeeze"])
def _(step: Step) -> Partial:
    state, facts, node = step.state, step.facts, step.node
    if step.index != 0 or not state.restored:
        raise Refusal("removes a dimension of the statistic")
    axes = _axes_of(facts, node)
    if checks.canonical_axes(axes, facts.rank(state.source.cast)) != state.source.axes:
        raise Refusal("removes another dimension than the reduced one", found=f"axes {axes}")
    return state.moved(restored=False)


@alternative("Reshape", STATISTIC, ["Reshape"])
def _(step: Step) -> Partial:
    state, facts = step.state, step.facts
    shape, out = facts.shape(state.source.cast), facts.shape(step.output)
    if step.index != 0 or state.restored:
        raise Refusal("reshapes the statistic")
    if shape is None or out is None or len(out) != len(shape):
        raise Refusal("the shape of the reshaped statistic is unknown")
    axes = {a % len(shape) for a in state.source.axes}
    if any((o != 1) if i in axes else (o is None or o != s) for i, (o, s) in enumerate(zip(out, shape, strict=True))):
        raise Refusal("the reduced dimension is put back in another place", found=f"shape {list(out)}")
    return state.moved(restored=True)


@alternative("Expand", STATISTIC, ["Expand"])
def _(step: Step) -> Partial:
    """F.normalize expands the norm to x's shape; broadcasting does the same."""
    state, facts = step.state, step.facts
    if step.index != 0 or not state.restored:
        raise Refusal("expands the statistic")
    xs = [x for x in (state.source.cast, state.source.base, state.source.partial_base) if x is not None]
    if not any(facts.has_shape_of(step.node.inputs[1], x) or facts.broadcasts_into(step.output, x) for x in xs):
        raise Refusal("expands the statistic to another shape than x's", found="an Expand whose shape is not x's")
    return state


# ---------------------------------------------------------------------------------------------------------------------
# Stage 4: the normalised value


def _numerator(
    step: Step, value: ir.Value
) -> tuple[ir.Value, bool, ir.Value | None, Factor, tuple[ir.Node, ...]] | None:
    """What ``value`` is made of, if it is x, perhaps times a scale or a constant.

    x as it enters, whether it is the whole of which a part was measured, scale, constant, and the nodes in between.
    """
    facts, source = step.facts, step.state.source

    def which(v: ir.Value) -> bool | None:
        base = checks.strip(facts, v)
        if base is source.base:
            return False
        return True if source.partial_base is not None and base is source.partial_base else None

    whole = which(value)
    if whole is not None:
        return value, whole, None, Factor(), ()
    scaled = _constant_multiple(facts, source)
    if scaled is not None and checks.strip(facts, value) is scaled[0]:
        return source.cast, False, None, Factor() / scaled[1], ()
    inner = checks.strip(facts, value)
    node = inner.producer()
    if not is_op(node, "Mul", "Div") or node is None or len(node.inputs) != 2:
        return None
    for i in (0, 1) if node.op_type == "Mul" else (0,):
        x, other = node.inputs[i], node.inputs[1 - i]
        if x is None or other is None:
            continue
        whole = which(x)
        if whole is None or which(other) is not None:
            continue
        try:
            factor = checks.constant_factor(facts, other, x, source)
            return x, whole, None, (factor if node.op_type == "Mul" else Factor() / factor), (node,)
        except Refusal:
            if node.op_type == "Mul":
                return x, whole, other, Factor(), (node,)
    return None


def _constant_multiple(facts: Facts, source: Source) -> tuple[ir.Value, Factor] | None:
    """If what was squared is a constant times another value: that value and the constant (a guard against overflow)."""
    node = source.base.producer()
    if not is_op(node, "Mul", "Div") or node is None or len(node.inputs) != 2:
        return None
    for value, other in (node.inputs, node.inputs[::-1])[: 2 if node.op_type == "Mul" else 1]:
        number = None if other is None or other.is_graph_input() else facts.scalar(other)
        if value is not None and number is not None and number > 0:
            return checks.strip(facts, value), Factor(number if node.op_type == "Mul" else 1.0 / number)
    return None


def _normalise(step: Step, other: ir.Value, factor: Factor) -> Partial:
    state, facts = step.state, step.facts
    if state.stage is not Stage.RMS:
        raise Refusal("is applied to x before the root", expected="Sqrt, or Pow with 0.5 or -0.5")
    found = _numerator(step, other)
    if found is None:
        raise Refusal(
            "is applied to another value than the one that was squared",
            expected=f"'{(state.source.partial_base or state.source.base).name}'",
            found=f"'{checks.strip(facts, other).name}'",
            weight=2,
        )
    x, whole, scale, constant, nodes = found
    if not state.restored:
        raise Refusal(
            "the reduced dimension is gone (keepdims=0), so that the statistic meets other rows",
            expected="keepdims=1, or an Unsqueeze behind the reduction",
            found="keepdims=0",
            weight=2,
        )
    if state.scale is not None and scale is not None:
        raise Refusal("has two scales")
    types = tuple(t for n in nodes for t in (facts.dtype(n.outputs[0]),) if t is not None)
    dtype = facts.dtype(step.output)
    if dtype not in checks.FLOATS or dtype is None:
        raise Refusal(f"the type of '{step.output.name}' is unknown", expected="a float type")
    for early in (scale, state.scale):
        if early is not None:
            checks.scale_broadcasts(facts, early, x, state.source.axes)
    return state.moved(
        stage=Stage.NORMALISED,
        x=x,
        whole=whole,
        scale=scale if scale is not None else state.scale,
        factor=factor * constant,
        roundings=(*types, dtype, *(("scale",) if scale is not None or state.scale is not None else ())),
        nodes=(*nodes, *state.nodes),
        path=(*state.path, "Mul(x,W)") if scale is not None else state.path,
    )


@alternative("Div(x,rms)", STATISTIC, ["Div"])
def _(step: Step) -> Partial:
    if step.index != 1 or step.state.power != 1:
        raise Refusal("is not x divided by the RMS", expected="Div(x, rms)")
    return _normalise(step, step.other, Factor() / step.state.factor)


@alternative("Mul(x,1/rms)", STATISTIC, ["Mul"])
def _(step: Step) -> Partial:
    if step.state.power != -1:
        raise Refusal(
            "is multiplied by the RMS itself, not by its inverse",
            expected="x / rms, or x * (1 / rms)",
            found=f"a product with '{step.other.name}'",
            weight=2 if step.state.stage is Stage.RMS and step.facts.constant(step.other) is None else 0,
        )
    return _normalise(step, step.other, step.state.factor)


@alternative("Mul(W,1/rms)", [Stage.RMS], ["Mul"])
def _(step: Step) -> Partial:
    """X * (W * (1 / rms)): the scale meets the factor before x does."""
    state, facts = step.state, step.facts
    if state.power != -1 or state.scale is not None:
        raise Refusal("is not a scale times the inverse of the RMS")
    scale = step.other
    if checks.strip(facts, scale) in (state.source.base, state.source.partial_base):
        raise Refusal("is x itself")
    if not state.restored:
        raise Refusal("the reduced dimension is gone (keepdims=0), so that the statistic meets other rows")
    # of a partial norm the whole x comes later: what fits there is looked at again then
    checks.scale_broadcasts(facts, scale, state.source.partial_base or state.source.cast, state.source.axes)
    return state.moved(scale=scale)


# ---------------------------------------------------------------------------------------------------------------------
# Stage 5: Casts, scale, bias


@alternative("Cast", PRODUCT, ["Cast", "CastLike"])
def _(step: Step) -> Partial:
    dtype = step.facts.dtype(step.output)
    if step.index != 0 or dtype is None or dtype not in checks.FLOATS:
        raise Refusal("casts the norm to something that is not a float")
    return step.state.moved(roundings=(*step.state.roundings, dtype))


def _completes(step: Step, constant: Factor) -> Factor | None:
    """The factor times ``constant``, where that makes a factor of one out of another: sqrt(n) behind an L2 norm."""
    state = step.state
    before, after = state.factor.value(state.source.size), (state.factor * constant).value(state.source.size)
    tolerance = 2 * checks.HALF_ULP.get(step.facts.dtype(step.output) or ir.DataType.FLOAT, 0.0)
    if after is None or (before is not None and abs(before - 1.0) <= tolerance) or abs(after - 1.0) > tolerance:
        return None
    return Factor(1.0, 0.0)


@alternative("Mul const", PRODUCT, ["Mul"])
def _(step: Step) -> Partial:
    factor = _completes(step, step.factor())
    if factor is None:
        raise Refusal("is a constant that stays outside")
    return step.state.moved(factor=factor, roundings=_then(step))


@alternative("Div const", PRODUCT, ["Div"])
def _(step: Step) -> Partial:
    if step.index != 0:
        raise Refusal("divides by the norm")
    factor = _completes(step, Factor() / step.factor())
    if factor is None:
        raise Refusal("is a constant that stays outside")
    return step.state.moved(factor=factor, roundings=_then(step))


def _then(step: Step, mark: str = "") -> tuple[ir.DataType | str, ...]:
    dtype = step.facts.dtype(step.output)
    assert dtype is not None
    return (*step.state.roundings, *((mark,) if mark else ()), dtype)


@alternative("Mul(.,W)", [Stage.NORMALISED], ["Mul"])
def _(step: Step) -> Partial:
    state, facts = step.state, step.facts
    if state.scale is not None:
        raise Refusal("has a scale already")
    scale = step.other
    base = checks.strip(facts, scale)
    if base.producer() in state.nodes or base in (state.source.base, state.source.partial_base):
        raise Refusal("is multiplied by a value of its own chain", expected="a scale from elsewhere")
    if facts.dtype(step.output) not in checks.FLOATS:
        raise Refusal("the type behind the scale is unknown")
    assert state.x is not None
    scale = _without_expand(facts, scale, state.x)
    checks.scale_broadcasts(facts, scale, state.x, state.source.axes)
    return state.moved(stage=Stage.OUTPUT, scale=scale, roundings=_then(step, "scale"))


def _without_expand(facts: Facts, scale: ir.Value, x: ir.Value) -> ir.Value:
    """The scale before an Expand that does no more than broadcasting does."""
    node = checks.strip(facts, scale, casts=False).producer()
    if not is_op(node, "Expand") or node is None or node.inputs[0] is None:
        return scale
    idle = facts.has_shape_of(node.inputs[1], x) or facts.broadcasts_into(node.outputs[0], x)
    return node.inputs[0] if idle else scale


@alternative("Add bias", PRODUCT, ["Add"])
def _(step: Step) -> Partial:
    state, facts = step.state, step.facts
    if not state.needs_general:
        raise Refusal("a bias alone stays an Add behind the norm")
    if state.bias is not None:
        raise Refusal("has a bias already")
    bias = step.other
    if checks.strip(facts, bias).producer() in state.nodes or state.x is None:
        raise Refusal("adds a value of its own chain")
    if not facts.is_constant_expression(bias):
        raise Refusal("adds a value that is not a parameter: a residual, not a bias")
    checks.scale_broadcasts(facts, bias, state.x, state.source.axes)
    if state.scale is not None and facts.dtype(bias) != facts.dtype(state.scale):
        raise Refusal("bias and scale are of different types")
    return state.moved(stage=Stage.OUTPUT, bias=bias, roundings=_then(step, "bias"))
