"""How a feature axis goes through operators that act on each feature alike.

Taking the mean over the features away from a value is a linear map. It may be done in front of an operator instead of
behind it where the operator adds, moves, or multiplies by what does not vary along the features. One function for each
operator says which inputs have to be centred, and along which axis, for its output to be.

Axes count from the end. One that is beyond an input's rank means that the input is the same for all features.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence

import onnx_ir as ir

from rmsnorm_deploy.model.graphs import AI_ONNX
from rmsnorm_deploy.op import FLOAT_TYPES
from rmsnorm_deploy.recognise import checks
from rmsnorm_deploy.recognise.facts import Facts, int_attribute
from rmsnorm_deploy.recognise.refusal import Refusal
from rmsnorm_deploy.recognise.size import product


@dataclasses.dataclass(frozen=True)
class Part:
    """An input that has to be centred for the output to be centred.

    Attributes:
        index: which input.
        axis: its feature axis, counted from the end.
        is_weight: it is what a product multiplies by, not a part of the sum.
        scale: the constant that multiplies each feature of it; None without one.
    """

    index: int
    axis: int
    is_weight: bool = False
    scale: ir.Value | None = None


Parts = Sequence[Part]


@dataclasses.dataclass(frozen=True)
class At:
    """A node, asked for its output ``index``, whose feature axis is ``axis``."""

    facts: Facts
    node: ir.Node
    index: int
    axis: int

    def value(self, index: int) -> ir.Value | None:
        """An input; None where it is left out."""
        return self.node.inputs[index] if index < len(self.node.inputs) else None

    def rank(self, index: int) -> int:
        """Of an input.

        Raises:
            Refusal: it is not known.
        """
        rank = self.facts.rank(self.value(index))
        if rank is None:
            raise Refusal("the rank of its input is not known")
        return rank

    @property
    def out_rank(self) -> int:
        """Of the output.

        Raises:
            Refusal: it is not known.
        """
        rank = self.facts.rank(self.node.outputs[self.index])
        if rank is None:
            raise Refusal("the rank of its output is not known")
        return rank

    def flat(self, index: int) -> bool:
        """Whether an input is provably the same for all features."""
        shape = self.facts.shape(self.value(index))
        return shape is not None and (-self.axis > len(shape) or shape[self.axis] == 1)

    def integers(self, index: int, name: str) -> list[int] | None:
        """Constant integers from an input or the attribute ``name``; None where there are none.

        Raises:
            Refusal: they are not constant.
        """
        attribute = self.facts.attribute(self.node, name)
        if attribute is not None and not attribute.is_ref():
            given = attribute.value
            return [int(v) for v in (given if isinstance(given, (list, tuple)) else [given])]
        value = self.value(index)
        if value is None:
            return None
        constant = None if value.is_graph_input() else self.facts.constant(value)
        if constant is None:
            raise Refusal(f"'{value.name}' is not constant")
        return [int(v) for v in constant.reshape(-1)]

    def attribute(self, name: str, default: int) -> int:
        """An integer attribute, or its default."""
        return int_attribute(self.facts, self.node, name, default)


def behind(facts: Facts, node: ir.Node, index: int, axis: int) -> Parts:
    """The inputs of ``node`` that have to be centred for its output ``index`` to be centred along ``axis``.

    Raises:
        Refusal: centring cannot be done in front of this operator.
    """
    if node.domain not in AI_ONNX:
        raise Refusal(f"{node.domain}::{node.op_type} does more than add and move")
    move = _MOVES.get(node.op_type)
    if move is None:
        raise Refusal(f"{node.op_type} does more than add and move")
    if any(a.is_ref() for a in node.attributes.values()):
        raise Refusal("its attributes are those of the function that it stands in")
    try:
        return move(At(facts, node, index, axis))
    except (IndexError, ValueError, TypeError) as error:
        raise Refusal("it is not valid") from error


def ahead(facts: Facts, node: ir.Node, index: int, axis: int) -> list[tuple[int, int]]:
    """The outputs of ``node`` that are centred if its input ``index`` is along ``axis``, each with its own axis.

    The other inputs that :func:`behind` names have to be centred, too. None where some output is not.
    """
    found = []
    for i, output in enumerate(node.outputs):
        if not (output.uses() or output.is_graph_output()):
            continue
        rank = facts.rank(output)
        axes = [axis] if rank is None else [axis, *(a for a in range(-1, -rank - 1, -1) if a != axis)]
        for candidate in axes:
            try:
                parts = behind(facts, node, i, candidate)
            except Refusal:
                continue
            if any((p.index, p.axis, p.scale, p.is_weight) == (index, axis, None, False) for p in parts):
                found.append((i, candidate))
                break
        else:
            return []
    return found


# -- operators that add --------------------------------------------------------------------------------------------


def _all(at: At) -> Parts:
    return [Part(i, at.axis) for i, value in enumerate(at.node.inputs) if value is not None]


def _first(at: At) -> Parts:
    return [Part(0, at.axis)]


def _dropout(at: At) -> Parts:
    if at.index or not checks.passes_unchanged(at.facts, at.node):
        raise Refusal("it may drop features")
    return _first(at)


def _cast(at: At) -> Parts:
    types = {at.facts.dtype(at.node.inputs[0]), at.facts.dtype(at.node.outputs[0])}
    if not types <= set(FLOAT_TYPES):
        raise Refusal("it casts from or to something that is no float")
    return _first(at)


def _product(at: At) -> Parts:
    if at.flat(1):
        return [Part(0, at.axis)]
    if at.node.op_type == "Mul":
        if at.flat(0):
            return [Part(1, at.axis)]
        for scaled, scale in ((0, 1), (1, 0)):
            value = at.value(scale)
            if value is not None and at.facts.is_constant_expression(value) and not at.flat(scaled):
                shape = at.facts.shape(value) or ()
                if math.prod(d for d in shape if isinstance(d, int)) == shape[at.axis]:
                    return [Part(scaled, at.axis, scale=value)]
    raise Refusal("it multiplies features by different numbers")


def _where(at: At) -> Parts:
    if not at.flat(0):
        raise Refusal("it chooses for each feature on its own")
    return [Part(1, at.axis), Part(2, at.axis)]


# -- operators that move -------------------------------------------------------------------------------------------


def _transpose(at: At) -> Parts:
    perm = at.integers(1, "perm")
    rank = at.out_rank if perm is None else len(perm)
    perm = list(range(rank))[::-1] if perm is None else perm
    return [Part(0, perm[rank + at.axis] - rank)]


def _reshape(at: At) -> Parts:
    """The axis stays where as many elements stand behind it, or in front of it, as before."""
    source, target = at.value(0), at.node.outputs[at.index]
    assert source is not None
    ranks = at.rank(0), at.out_rank
    sizes = at.facts.sizes
    into = [sizes.of_axis(target, a) for a in range(-ranks[1], 0)]
    stated = sizes.elements(at.value(1)) if at.node.op_type == "Reshape" else None
    if stated is not None and len(stated) == ranks[1]:
        into = [s if s.whole is None or s.whole > 0 else i for s, i in zip(stated, into, strict=True)]
    before = [sizes.of_axis(source, a) for a in range(-ranks[0], 0)]
    place = ranks[1] + at.axis
    wanted = into[place]
    for a in range(ranks[0]):
        same_behind = product(before[a + 1 :]) == product(into[place + 1 :])
        if before[a] == wanted and (same_behind or product(before[:a]) == product(into[:place])):
            return [Part(0, a - ranks[0])]
    raise Refusal("it does not keep the features together", found=f"{before} to {into}")


def _squeeze(at: At) -> Parts:
    rank, axes = at.rank(0), at.integers(1, "axes")
    if axes is None:
        shape = at.facts.shape(at.value(0)) or ()
        if not all(isinstance(d, int) for d in shape):
            raise Refusal("it squeezes dimensions that are not known")
        axes = [i for i, d in enumerate(shape) if d == 1]
    gone = {a % rank for a in axes}
    kept = [i for i in range(rank) if i not in gone]
    return [Part(0, kept[at.axis] - rank)]


def _unsqueeze(at: At) -> Parts:
    axes = at.integers(1, "axes") or []
    rank = at.rank(0) + len(axes)
    new = {a % rank for a in axes}
    place = rank + at.axis
    if place in new:
        return [Part(0, -at.rank(0) - 1)]  # the same for all features
    return [Part(0, [i for i in range(rank) if i not in new].index(place) - at.rank(0))]


def _concat(at: At) -> Parts:
    axis = at.attribute("axis", 0)
    if (axis if axis < 0 else axis - at.out_rank) == at.axis:
        raise Refusal("it joins features")
    return _all(at)


def _slice(at: At) -> Parts:
    axes = at.integers(3, "axes")
    rank = at.rank(0)
    cut = range(rank) if axes is None else [a % rank for a in axes]
    if rank + at.axis in cut:
        starts, ends, steps = at.integers(1, "starts"), at.integers(2, "ends"), at.integers(4, "steps")
        at_axis = list(cut).index(rank + at.axis)
        whole = starts is not None and ends is not None and starts[at_axis] == 0 and ends[at_axis] >= 2**31 - 1
        if not whole or (steps is not None and steps[at_axis] != 1):
            raise Refusal("it takes some of the features")
    return _first(at)


def _split(at: At) -> Parts:
    if (at.attribute("axis", 0) - at.rank(0)) % at.rank(0) == at.rank(0) + at.axis:
        raise Refusal("it splits the features")
    return _first(at)


def _gather(at: At) -> Parts:
    rank, of_index = at.rank(0), at.rank(1)
    place = rank + of_index - 1 + at.axis
    axis = at.attribute("axis", 0) % rank
    if axis <= place < axis + of_index:
        raise Refusal("it chooses features")
    return [Part(0, (place if place < axis else place - of_index + 1) - rank)]


def _tile(at: At) -> Parts:
    repeats = at.integers(1, "repeats")
    if repeats is None or repeats[at.axis] != 1:
        raise Refusal("it repeats features")
    return _first(at)


def _pad(at: At) -> Parts:
    pads, axes, rank = at.integers(1, "pads") or [], at.integers(3, "axes"), at.rank(0)
    padded = list(range(rank)) if axes is None else [a % rank for a in axes]
    for i, a in enumerate(padded):
        if a == rank + at.axis and (pads[i] or pads[i + len(padded)]):
            raise Refusal("it adds features")
    mode = at.node.attributes.get("mode")
    if mode is not None and str(mode.value) != "constant":
        return _first(at)
    value = at.value(2)
    old = at.node.attributes.get("value")
    number = at.facts.scalar(value) if value is not None else 0.0 if old is None else float(old.value)
    if number != 0.0:
        raise Refusal("it adds numbers other than 0")
    return _first(at)


def _resize(at: At) -> Parts:
    """Every feature is resized alike where their number stays."""
    source, target = at.facts.shape(at.value(0)), at.facts.shape(at.node.outputs[0])
    mode = at.node.attributes.get("coordinate_transformation_mode")
    if mode is not None and str(mode.value) == "tf_crop_and_resize":
        raise Refusal("it puts numbers of its own where it leaves the value")
    if source is None or target is None or len(source) != len(target):
        raise Refusal("its shapes are not known")
    if source[at.axis] != target[at.axis] or not isinstance(source[at.axis], int):
        raise Refusal("it may change the number of features")
    return _first(at)


def _mean(at: At) -> Parts:
    """A mean or a sum over other axes."""
    rank = at.rank(0)
    axes = checks.given_axes(at.facts, at.node)
    if not axes:
        raise Refusal("it reduces every dimension")
    gone = {a % rank for a in axes}
    if at.attribute("keepdims", 1):
        place = rank + at.axis
    else:
        place = [i for i in range(rank) if i not in gone][at.axis]
    if place in gone:
        raise Refusal("it reduces the features")
    return [Part(0, place - rank)]


def _pool(at: At) -> Parts:
    if at.rank(0) + at.axis != 1:
        raise Refusal("it pools features")
    return _first(at)


# -- products with weights -----------------------------------------------------------------------------------------


def _matmul(at: At) -> Parts:
    if at.axis == -1 and at.rank(1) > 1:
        return [Part(1, -1, is_weight=True)]
    if at.axis == -2 and at.rank(0) > 1 and at.rank(1) > 1:
        return [Part(0, -2, is_weight=True)]
    raise Refusal("its features are a batch of products")


def _gemm(at: At) -> Parts:
    of_columns = at.axis == -1
    matrix = Part(1, -2 if at.attribute("transB", 0) else -1, is_weight=True)
    if not of_columns:
        matrix = Part(0, -1 if at.attribute("transA", 0) else -2, is_weight=True)
    return [matrix] if at.value(2) is None else [matrix, Part(2, at.axis)]


def _conv(at: At) -> Parts:
    rank = at.rank(1)
    if at.attribute("group", 1) != 1:
        raise Refusal("each group of its outputs has inputs of its own")
    if at.out_rank + at.axis != 1:
        raise Refusal("the features are not its channels")
    axis = -rank if at.node.op_type == "Conv" else 1 - rank
    weight = Part(1, axis, is_weight=True)
    return [weight] if at.value(2) is None else [weight, Part(2, -1)]


_MOVES: dict[str, Callable[[At], Parts]] = {
    **dict.fromkeys(("Add", "Sub", "Sum", "Mean"), _all),
    **dict.fromkeys(("Neg", "Identity", "Expand"), _first),
    "Dropout": _dropout,
    **dict.fromkeys(("Cast", "CastLike"), _cast),
    **dict.fromkeys(("Mul", "Div"), _product),
    "Where": _where,
    "Transpose": _transpose,
    **dict.fromkeys(("Reshape", "Flatten"), _reshape),
    "Squeeze": _squeeze,
    "Unsqueeze": _unsqueeze,
    "Concat": _concat,
    "Slice": _slice,
    "Split": _split,
    "Gather": _gather,
    "Tile": _tile,
    "Pad": _pad,
    "Resize": _resize,
    **dict.fromkeys(("ReduceMean", "ReduceSum"), _mean),
    **dict.fromkeys(("GlobalAveragePool", "AveragePool"), _pool),
    "MatMul": _matmul,
    "Gemm": _gemm,
    **dict.fromkeys(("Conv", "ConvTranspose"), _conv),
}
