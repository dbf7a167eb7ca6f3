"""The statistic's shape: how the reduced dimensions are put back, so that it broadcasts against x.

A spelling is one function and its row in the table at the end, as in statistic.py.
"""

from __future__ import annotations

from rmsnorm_deploy.recognise import checks
from rmsnorm_deploy.recognise.refusal import Refusal
from rmsnorm_deploy.recognise.size import Size
from rmsnorm_deploy.recognise.state import State
from rmsnorm_deploy.recognise.step import STATISTIC, Alternative, Step


def unsqueezed(step: Step) -> State:
    """The reduced dimension put back (keepdims=0 before), by Unsqueeze."""
    state = step.state
    if step.index != 0 or state.restored:
        raise Refusal("adds a dimension to the statistic", expected="the reduced dimension put back where it was")
    axes = checks.given_axes(step.facts, step.node)
    if not _are_the_reduced(step, axes):
        raise Refusal(
            "the reduced dimension is put back in another place",
            expected=f"axes {list(state.source.axes)}",
            found=f"axes {axes}",
        )
    return state.moved(restored=True)


def squeezed(step: Step) -> State:
    """The reduced dimension taken out, by Squeeze; it has to come back."""
    state = step.state
    if step.index != 0 or not state.restored:
        raise Refusal("removes a dimension of the statistic")
    axes = checks.given_axes(step.facts, step.node)
    if not _are_the_reduced(step, axes):
        raise Refusal("removes a dimension other than the reduced one", found=f"axes {axes}")
    return state.moved(restored=False)


def _are_the_reduced(step: Step, axes: list[int]) -> bool:
    """Whether these axes, of a value of x's rank, are those that were reduced."""
    source = step.state.source
    return bool(axes) and checks.canonical_axes(axes, step.facts.rank(source.cast)) == source.axes


def reshaped(step: Step) -> State:
    """The reduced dimension put back, by Reshape."""
    state, facts = step.state, step.facts
    if step.index != 0 or state.restored:
        raise Refusal("reshapes the statistic")
    shape, out = facts.shape(state.source.cast), facts.shape(step.output)
    if shape is None:
        raise Refusal("the shape of the reshaped statistic is unknown")
    axes = {a % len(shape) for a in state.source.axes}
    if not _is_asked_for(step, axes, len(shape)):
        if out is None or len(out) != len(shape):
            raise Refusal("the shape of the reshaped statistic is unknown")
        pairs = enumerate(zip(out, shape, strict=True))
        if any((o != 1) if i in axes else (o is None or o != s) for i, (o, s) in pairs):
            raise Refusal("the reduced dimension is put back in another place", found=f"shape {list(out)}")
    return state.moved(restored=True)


def _is_asked_for(step: Step, axes: set[int], rank: int) -> bool:
    """Whether the sizes that a Reshape asks for are those of x, with 1 at ``axes``; one may be left to it."""
    sizes = step.facts.sizes
    asked = sizes.elements(step.node.inputs[1]) if len(step.node.inputs) > 1 else None
    if asked is None or len(asked) != rank:
        return False
    x = step.state.source.cast
    wanted = [Size(1) if i in axes else sizes.of_axis(x, i) for i in range(rank)]
    # a zero takes the size that stands at the same place in front
    same = [a == w or (a.whole == 0 and i < min(axes)) for i, (a, w) in enumerate(zip(asked, wanted, strict=True))]
    left = [a.whole for a, s in zip(asked, same, strict=True) if not s]
    return not left or left == [-1]


def expanded(step: Step) -> State:
    """F.normalize expands the norm to x's shape; broadcasting does the same."""
    state, facts = step.state, step.facts
    if step.index != 0 or not state.restored:
        raise Refusal("expands the statistic")
    xs = [x for x in (state.source.cast, state.source.base, state.source.partial_base) if x is not None]
    if not any(facts.has_shape_of(step.node.inputs[1], x) or facts.broadcasts_into(step.output, x) for x in xs):
        raise Refusal("expands the statistic to a shape other than x's", found="an Expand whose shape is not x's")
    return state


def tiled(step: Step) -> State:
    """The statistic repeated along the reduced dimensions, as often as x has elements there; broadcasting does that."""
    state, sizes = step.state, step.facts.sizes
    if step.index != 0 or not state.restored:
        raise Refusal("repeats the statistic")
    repeats = sizes.elements(step.node.inputs[1]) if len(step.node.inputs) == 2 else None
    if repeats is None:
        raise Refusal("repeats the statistic an unknown number of times", expected="repeats that x's shape gives")
    rank = len(repeats)  # there is one number for each dimension
    if step.facts.rank(state.source.cast) not in (None, rank):
        raise Refusal("repeats the statistic along more or fewer dimensions than it has")
    axes = {a % rank for a in state.source.axes if -rank <= a < rank}
    xs = [x for x in (state.source.cast, state.source.base, state.source.partial_base) if x is not None]
    for i, repeat in enumerate(repeats):
        if repeat.whole == 1 or (i in axes and any(repeat == sizes.of_axis(x, i - rank) for x in xs)):
            continue
        raise Refusal(
            "repeats the statistic another number of times than x has elements", found=f"{repeat.dim} along axis {i}"
        )
    return state


ALTERNATIVES = (
    Alternative("Unsqueeze", STATISTIC, ("Unsqueeze",), unsqueezed),
    Alternative("Squeeze", STATISTIC, ("Squeeze",), squeezed),
    Alternative("Reshape", STATISTIC, ("Reshape",), reshaped),
    Alternative("Expand", STATISTIC, ("Expand",), expanded),
    Alternative("Tile", STATISTIC, ("Tile",), tiled),
)
"""In the order in which they are tried."""
