"""Operators that add, move, or multiply by what does not vary along the features, one function for each.

Each says which inputs have to be centred for the output to be, or raises Refusal.
"""

from __future__ import annotations

import math

from rmsnorm_deploy.converting.at import At, Part, Parts
from rmsnorm_deploy.op import FLOAT_TYPES
from rmsnorm_deploy.recognise import checks
from rmsnorm_deploy.recognise.refusal import Refusal
from rmsnorm_deploy.recognise.size import product as product_of

# -- operators that add --------------------------------------------------------------------------------------------


def all_parts(at: At) -> Parts:
    """Every input is centred."""
    return [Part(i, at.axis) for i, value in enumerate(at.node.inputs) if value is not None]


def first(at: At) -> Parts:
    """The first input is."""
    return [Part(0, at.axis)]


def dropout(at: At) -> Parts:
    """Nothing is dropped."""
    if at.index or not checks.passes_unchanged(at.facts, at.node):
        raise Refusal("it may drop features")
    return first(at)


def cast(at: At) -> Parts:
    """Between float types."""
    types = {at.facts.dtype(at.node.inputs[0]), at.facts.dtype(at.node.outputs[0])}
    if not types <= set(FLOAT_TYPES):
        raise Refusal("it casts from or to something that is no float")
    return first(at)


def product(at: At) -> Parts:
    """By a number, by what is one for all features, or by a constant for each of them."""
    if at.flat(1):
        return [Part(0, at.axis)]
    if at.node.op_type == "Mul":
        if at.flat(0):
            return [Part(1, at.axis)]
        for scaled, scale in ((0, 1), (1, 0)):
            value = at.value(scale)
            if value is not None and at.facts.is_constant_expression(value) and not at.flat(scaled):
                shape = at.facts.shape(value) or ()
                # one of a higher rank gives the product dimensions that are missing once it is folded
                if (
                    len(shape) <= at.rank(scaled)
                    and math.prod(d for d in shape if isinstance(d, int)) == shape[at.axis]
                ):
                    return [Part(scaled, at.axis, scale=value)]
    raise Refusal("it multiplies features by different numbers")


def where(at: At) -> Parts:
    """The condition is the same for all features."""
    if not at.flat(0):
        raise Refusal("it chooses for each feature on its own")
    return [Part(1, at.axis), Part(2, at.axis)]


# -- operators that move -------------------------------------------------------------------------------------------


def transpose(at: At) -> Parts:
    """The axis moves."""
    perm = at.integers(1, "perm")
    rank = at.out_rank if perm is None else len(perm)
    perm = list(range(rank))[::-1] if perm is None else perm
    return [Part(0, perm[rank + at.axis] - rank)]


def reshape(at: At) -> Parts:
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
        same_behind = product_of(before[a + 1 :]) == product_of(into[place + 1 :])
        if before[a] == wanted and (same_behind or product_of(before[:a]) == product_of(into[:place])):
            return [Part(0, a - ranks[0])]
    raise Refusal("it does not keep the features together", found=f"{before} to {into}")


def squeeze(at: At) -> Parts:
    """Other dimensions go."""
    rank, axes = at.rank(0), at.integers(1, "axes")
    if axes is None:
        shape = at.facts.shape(at.value(0)) or ()
        if not all(isinstance(d, int) for d in shape):
            raise Refusal("it squeezes dimensions that are not known")
        axes = [i for i, d in enumerate(shape) if d == 1]
    gone = {a % rank for a in axes}
    kept = [i for i in range(rank) if i not in gone]
    return [Part(0, kept[at.axis] - rank)]


def unsqueeze(at: At) -> Parts:
    """Other dimensions come."""
    axes = at.integers(1, "axes") or []
    rank = at.rank(0) + len(axes)
    new = {a % rank for a in axes}
    place = rank + at.axis
    if place in new:
        return [Part(0, -at.rank(0) - 1)]  # the same for all features
    return [Part(0, [i for i in range(rank) if i not in new].index(place) - at.rank(0))]


def concat(at: At) -> Parts:
    """Along another axis."""
    axis = at.attribute("axis", 0)
    if (axis if axis < 0 else axis - at.out_rank) == at.axis:
        raise Refusal("it joins features")
    return all_parts(at)


def slice_parts(at: At) -> Parts:
    """Of another axis."""
    axes = at.integers(3, "axes")
    rank = at.rank(0)
    cut = range(rank) if axes is None else [a % rank for a in axes]
    if rank + at.axis in cut:
        starts, ends, steps = at.integers(1, "starts"), at.integers(2, "ends"), at.integers(4, "steps")
        at_axis = list(cut).index(rank + at.axis)
        whole = starts is not None and ends is not None and starts[at_axis] == 0 and ends[at_axis] >= 2**31 - 1
        if not whole or (steps is not None and steps[at_axis] != 1):
            raise Refusal("it takes some of the features")
    return first(at)


def split(at: At) -> Parts:
    """Along another axis."""
    if (at.attribute("axis", 0) - at.rank(0)) % at.rank(0) == at.rank(0) + at.axis:
        raise Refusal("it splits the features")
    return first(at)


def gather(at: At) -> Parts:
    """Along another axis: rows of a table, too."""
    rank, of_index = at.rank(0), at.rank(1)
    place = rank + of_index - 1 + at.axis
    axis = at.attribute("axis", 0) % rank
    if axis <= place < axis + of_index:
        raise Refusal("it chooses features")
    return [Part(0, (place if place < axis else place - of_index + 1) - rank)]


def tile(at: At) -> Parts:
    """Along other axes."""
    repeats = at.integers(1, "repeats")
    if repeats is None or repeats[at.axis] != 1:
        raise Refusal("it repeats features")
    return first(at)


def pad(at: At) -> Parts:
    """Along other axes, with zeros."""
    pads, axes, rank = at.integers(1, "pads") or [], at.integers(3, "axes"), at.rank(0)
    padded = list(range(rank)) if axes is None else [a % rank for a in axes]
    for i, a in enumerate(padded):
        if a == rank + at.axis and (pads[i] or pads[i + len(padded)]):
            raise Refusal("it adds features")
    mode = at.node.attributes.get("mode")
    if mode is not None and str(mode.value) != "constant":
        return first(at)
    value = at.value(2)
    old = at.node.attributes.get("value")
    number = at.facts.scalar(value) if value is not None else 0.0 if old is None else float(old.value)
    if number != 0.0:
        raise Refusal("it adds numbers other than 0")
    return first(at)


def resize(at: At) -> Parts:
    """Every feature is resized alike where their number stays."""
    source, target = at.facts.shape(at.value(0)), at.facts.shape(at.node.outputs[0])
    mode = at.node.attributes.get("coordinate_transformation_mode")
    if mode is not None and str(mode.value) == "tf_crop_and_resize":
        raise Refusal("it puts numbers of its own where it leaves the value")
    if source is None or target is None or len(source) != len(target):
        raise Refusal("its shapes are not known")
    if source[at.axis] != target[at.axis] or not isinstance(source[at.axis], int):
        raise Refusal("it may change the number of features")
    if not _keeps_in_place(at, len(source)):
        raise Refusal("it may move features between their places")
    return first(at)


def _keeps_in_place(at: At, rank: int) -> bool:
    """Whether a Resize leaves the feature axis alone: a factor such as 1.05 keeps the number, but no feature."""
    axes = at.integers(len(at.node.inputs), "axes")
    resized = list(range(rank)) if axes is None else [a % rank for a in axes]
    if rank + at.axis not in resized:
        return True
    policy = at.node.attributes.get("keep_aspect_ratio_policy")
    if policy is not None and str(policy.value) != "stretch":
        return False
    factors = at.value(2)
    if factors is None or 0 in (at.facts.shape(factors) or ()):
        return at.value(3) is not None  # sizes: the factor is the quotient, which is 1
    constant = None if factors.is_graph_input() else at.facts.constant(factors)
    return constant is not None and float(constant.reshape(-1)[resized.index(rank + at.axis)]) == 1.0


def mean(at: At) -> Parts:
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


def pool(at: At) -> Parts:
    """Over other axes than the channels."""
    if at.rank(0) + at.axis != 1:
        raise Refusal("it pools features")
    return first(at)
