"""The gate: an activated value that multiplies what is normalised, the normalised value or the scaled one.

What is matched already is the norm alone. From there this looks for a product in front of it, perhaps behind a Reshape
into groups of features, and then follows what becomes of the norm's output: Casts, the Reshape back, the scale, and a
product with an activated gate.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Collection, Iterable, Iterator

import onnx_ir as ir

from rmsnorm_deploy.op import FLOAT_TYPES, GATED_FIRST, GATED_LAST, GATED_NORMALISED, SIXTEEN_BIT, Op
from rmsnorm_deploy.recognise import checks
from rmsnorm_deploy.recognise.activation import Activated, activated
from rmsnorm_deploy.recognise.facts import Facts, int_attribute, is_op
from rmsnorm_deploy.recognise.match import Grouping, Match

FLOAT, DOUBLE = ir.DataType.FLOAT, ir.DataType.DOUBLE
_MOST_STEPS = 16
"""Most nodes behind a norm that are looked at."""


@dataclasses.dataclass(frozen=True)
class _Gated:
    """A norm and its gate, as far as it was followed.

    Attributes:
        value: where it ends so far.
        x: what is normalised, before the gate; in its widest type.
        act: the gate.
        at: what it multiplies; meaningless without ``act``.
        scale: the scale, or None.
        types: what each step gave, from the normalised value on: "" or "scale" or "gate", and the element type.
        before: nodes in front of the norm, first to last.
        behind: nodes behind it, likewise.
        path: what was found in front and behind, as in a spelling.
        into: the Reshape in front of the norm.
        back: the one behind it, which turns that back.
        product: what ``into`` takes; None where X is as it gives it, and the gate as ``back`` does.
        shapes: Shape nodes that read the product of x and the gate.
        coarse: the original rounds the gate or a product with it to 16 bits.
    """

    value: ir.Value
    x: ir.Value
    act: Activated | None = None
    at: int = GATED_FIRST
    scale: ir.Value | None = None
    scaled_back: bool = False
    types: tuple[tuple[str, ir.DataType], ...] = ()
    before: tuple[ir.Node, ...] = ()
    behind: tuple[ir.Node, ...] = ()
    path: tuple[str, ...] = ()
    into: ir.Node | None = None
    back: ir.Node | None = None
    product: ir.Value | None = None
    shapes: tuple[ir.Node, ...] = ()
    coarse: bool = False


def with_gate(facts: Facts, match: Match) -> Match:
    """The match with the gate around it taken in, where GatedRMSNorm has what it needs.

    That is an RMSNorm over the last axis, with or without a residual, which is then left to a node of its own.
    """
    alone = match.plain if match.parameters.op is Op.ADD_RMS_NORM else match
    if alone is None or not _is_simple(alone):
        return match
    for start in _starts(facts, alone):
        ends = [found for end in _followed(facts, alone, start) if (found := _finished(facts, match, alone, end))]
        if ends:
            return ends[-1]
    return match


def _is_simple(match: Match) -> bool:
    p = match.parameters
    general = p.op is Op.GENERAL_RMS_NORM and (
        match.bias is not None or p.epsilon_outside != 0.0 or p.rms_floor != 0.0 or p.partial_size is not None
    )
    plain = p.op in (Op.RMS_NORM, Op.GENERAL_RMS_NORM) and not general
    return plain and p.axes == (-1,) and not match.cast_x


def _starts(facts: Facts, match: Match) -> Iterator[_Gated]:
    """The norm with a gate in front of it, in each way to read the product there; then without one."""
    rounding, result = (ir.DataType(t) for t in (match.parameters.scale_type, match.parameters.output_type))
    types = (("", result),) if match.scale is None else (("", rounding), ("scale", result))
    alone = _Gated(match.output, match.x, scale=match.scale, types=types)
    graph = match.nodes[-1].graph
    chain = list(checks.widened(facts, match.x))
    passed = [p for v in reversed(chain[:-1]) if (p := v.producer()) is not None]
    into = chain[-1].producer()
    if into is not None and is_op(into, "Reshape") and into.inputs[0] is not None:
        more = list(checks.widened(facts, into.inputs[0]))
        passed = [*(p for v in reversed(more[:-1]) if (p := v.producer()) is not None), into, *passed]
        chain += more
    else:
        into = None
    product = chain[-1]
    node = product.producer()
    if node is not None and is_op(node, "Mul") and node.graph is graph:
        known = {*match.nodes, *passed}
        readers = [user for v in chain for user, _ in v.uses() if not _is_only_for(facts, user, known)]
        shapes = tuple(user for user, _ in product.uses() if is_op(user, "Shape"))
        if all(user in shapes for user in readers) and not any(v.is_graph_output() for v in chain):
            for x, gate in ((node.inputs[0], node.inputs[1]), (node.inputs[1], node.inputs[0])):
                act = None if x is None else activated(facts, gate)
                if act is not None and x is not None and _fits(facts, act, x):
                    yield dataclasses.replace(
                        alone,
                        x=x,
                        act=act,
                        before=(*act.nodes, node, *passed),
                        path=("gate",),
                        into=into,
                        product=product,
                        shapes=shapes,
                        coarse=act.coarse or facts.dtype(product) in SIXTEEN_BIT,
                    )
    if into is not None and product is not match.x:
        # the gate may follow the Reshape back, and then has the shape that was there before
        yield dataclasses.replace(alone, x=product, into=into, product=product)
        if _is_absolute(facts, into):
            yield dataclasses.replace(alone, into=into)
    yield alone


def _is_only_for(facts: Facts, node: ir.Node, known: Collection[ir.Node]) -> bool:
    """Whether a node is one of ``known``, or widens for those alone: a match begins behind the Cast of its X."""
    if node in known or not is_op(node, "Cast") or not checks.is_exact_cast(facts, node):
        return node in known
    output = node.outputs[0]
    return not output.is_graph_output() and all(user in known for user, _ in output.uses())


def _fits(facts: Facts, act: Activated, x: ir.Value) -> bool:
    """Whether there is one value of the gate for each of ``x``."""
    return _alike(facts, act.gates[-1], x)


def _alike(facts: Facts, a: ir.Value, b: ir.Value) -> bool:
    """Whether two values are of one shape: as far as shapes are known, or because both were reshaped alike."""
    if facts.same_shape(a, b):
        return True
    left, right = (checks.strip(facts, v).producer() for v in (a, b))
    if left is None or right is None or not is_op(left, "Reshape") or not is_op(right, "Reshape"):
        return False
    if left.inputs[0] is None or right.inputs[0] is None or not facts.same(left.inputs[1], right.inputs[1]):
        return False
    same = int_attribute(facts, left, "allowzero", 0) == int_attribute(facts, right, "allowzero", 0)
    return same and _alike(facts, left.inputs[0], right.inputs[0])


def _is_absolute(facts: Facts, node: ir.Node) -> bool:
    """Whether a Reshape gives any value of as many elements the same shape."""
    shape = facts.constant(node.inputs[1])
    return shape is not None and (0 not in shape or int_attribute(facts, node, "allowzero", 0) == 1)


def _turned_back(facts: Facts, node: ir.Node, flat: ir.Value) -> bool:
    """Whether a Reshape gives the shape of ``flat``."""
    sizes = facts.sizes.elements(node.inputs[1])
    by_sizes = sizes is not None and len(sizes) == facts.rank(flat) and facts.has_shape_of(node.inputs[1], flat)
    return by_sizes or facts.same_shape(node.outputs[0], flat)


def _followed(facts: Facts, match: Match, state: _Gated) -> Iterator[_Gated]:
    """Everything that the norm may end as, from near to far; each value on the way is read by one node alone."""
    graph = match.nodes[-1].graph
    for _ in range(_MOST_STEPS):
        if state.act is not None:
            yield state
        uses = list(state.value.uses())
        if len(uses) != 1 or state.value.is_graph_output() or uses[0][0].graph is not graph:
            return
        node, index = uses[0]
        following = _step(facts, match, state, node, index)
        if following is None:
            return
        state = dataclasses.replace(following, value=node.outputs[0], behind=(*following.behind, node))


def _step(facts: Facts, match: Match, state: _Gated, node: ir.Node, index: int) -> _Gated | None:
    """What one node makes of the norm; None where it is no part of it."""
    dtype = facts.dtype(node.outputs[0]) if node.outputs else None
    if checks.passes_unchanged(facts, node, index):
        return state
    if dtype is None or dtype not in FLOAT_TYPES:
        return None
    if is_op(node, "Cast", "CastLike"):
        return dataclasses.replace(state, types=(*state.types, ("", dtype))) if index == 0 else None
    if is_op(node, "Reshape"):
        if index != 0 or state.back is not None or state.into is None:
            return None
        if state.product is not None and not _turned_back(facts, node, state.product):
            return None
        return dataclasses.replace(state, back=node, path=(*state.path, "Reshape"))
    other = node.inputs[1 - index] if is_op(node, "Mul") else None
    if other is None:
        return None
    if state.act is None and (state.into is None or state.back is not None):
        act = activated(facts, other)
        # the norm has the shape of x, which is known more often
        beside = match.x if state.back is None else state.back.outputs[0] if state.product is None else state.product
        if act is not None and _fits(facts, act, beside):
            return dataclasses.replace(
                state,
                act=act,
                at=GATED_NORMALISED if state.scale is None else GATED_LAST,
                types=(*state.types, ("gate", dtype)),
                before=act.nodes,
                path=(*state.path, "gate"),
                coarse=act.coarse,
            )
    if state.scale is not None or match.factor != 1.0 or not facts.is_constant_expression(other):
        return None
    beside_scale = match.x if state.back is None else state.product
    if beside_scale is None or not facts.broadcasts_into(other, beside_scale):
        return None
    return dataclasses.replace(
        state,
        scale=other,
        scaled_back=state.back is not None,
        types=(*state.types, ("scale", dtype)),
        path=(*state.path, "Mul(.,W)"),
    )


def _finished(facts: Facts, match: Match, alone: Match, state: _Gated) -> Match | None:
    """The norm that ends at ``state.value``; None where the operator cannot express it."""
    out_type = facts.dtype(state.value)
    act, p = state.act, alone.parameters
    if out_type is None or act is None:
        return None
    x = next((v for v in reversed([*checks.widened(facts, state.x)]) if facts.dtype(v) == out_type), None)
    gate = act.gate(facts, out_type)
    rounding = _rounding(facts, p.scale_type, out_type, state)
    if x is None or gate is None or rounding is None:
        return None
    if out_type == DOUBLE and p.stash_type != int(DOUBLE):
        return None
    scale_type, fewer = rounding
    first = int(state.at == GATED_FIRST)
    scale = None if state.scale is None else _parameter(facts, state.scale, out_type)
    if state.scale is not None and scale is None:
        return None
    scale_dtype = (facts.dtype(scale) if scale is not None else None) or out_type
    scale_rank = facts.rank(scale)
    grouping: Grouping | None = None
    if state.into is not None:
        size = facts.size(alone.x, (-1,))
        all_ = facts.size(state.product, (-1,)) if state.product is not None else None
        if state.product is None:
            grouping = Grouping(state.into, state.back, of_x=False)
        elif state.back is None or size is None or size != all_:
            shape = _scale_of_groups(facts, alone.x, state) if state.scaled_back else None
            if state.scaled_back and shape is None:
                return None
            grouping = Grouping(state.into, state.back, shape)
            scale_rank = 2 if shape is not None else scale_rank
        elif scale is not None and not state.scaled_back and not facts.broadcasts_into(scale, x):
            grouping = Grouping(state.into, state.back)
    graph = alone.nodes[-1].graph
    passed = (*_between(x, checks.widened(facts, state.x)), *_between(gate, act.gates))
    if scale is not None and state.scale is not None:
        passed = (*_between(scale, checks.widened(facts, state.scale)), *passed)
    nodes = dict.fromkeys((*passed, *state.before, *alone.nodes, *state.behind))
    return dataclasses.replace(
        alone,
        parameters=dataclasses.replace(
            p,
            op=Op.GATED_RMS_NORM,
            output_type=int(out_type),
            scale_type=int(scale_type),
            activation=act.activation,
            gate_at=state.at,
        ),
        x=x,
        gate=gate,
        gate_dtype=facts.dtype(gate),
        output=state.value,
        scale=scale,
        scale_dtype=scale_dtype,
        scale_rank=scale_rank,
        rank=facts.rank(x) if grouping is None else alone.rank,
        nodes=tuple(node for node in nodes if node.graph is graph),
        spelling=" > ".join((*state.path[:first], alone.spelling, *state.path[first:])),
        fewer_roundings=alone.fewer_roundings or fewer or state.coarse,
        same=() if state.behind else alone.same,
        general_because="",
        plain=match,
        grouping=grouping,
        shapes=state.shapes,
    )


def _between(first: ir.Value, chain: Iterable[ir.Value]) -> tuple[ir.Node, ...]:
    """The nodes behind ``first``, first to last, in a chain that goes back to it or beyond."""
    wider = itertools.takewhile(lambda v: v is not first, chain)
    return tuple(reversed([node for v in wider if (node := v.producer()) is not None]))


def _parameter(facts: Facts, value: ir.Value, out_type: ir.DataType) -> ir.Value | None:
    """A scale in a type that the operator takes, the narrowest first: x's or float32."""
    chain = list(checks.widened(facts, value))
    for wanted in (out_type, FLOAT):
        for found in reversed(chain):
            if facts.dtype(found) == wanted:
                return found
    return None


def _scale_of_groups(facts: Facts, x: ir.Value, state: _Gated) -> tuple[int, ...] | None:
    """The shape that a scale of all features needs beside groups of them; None where that is not known to be right."""
    shape, flat, scale = facts.shape(x), facts.shape(state.product), facts.shape(state.scale)
    if shape is None or flat is None or scale is None or len(shape) != len(flat) + 1:
        return None
    groups, size, features = shape[-2], shape[-1], flat[-1]
    sizes = facts.sizes.elements(state.into.inputs[1]) if state.into is not None else None
    if sizes is not None and len(sizes) == len(shape):
        groups = sizes[-2].whole
    if not isinstance(groups, int) or not isinstance(size, int) or groups * size != features:
        return None
    if not scale or scale[-1] != features or any(d != 1 for d in scale[:-1]):
        return None
    return (groups, size)


def _rounding(facts: Facts, scale_type: int, out_type: ir.DataType, state: _Gated) -> tuple[ir.DataType, bool] | None:
    """The type to which the operator rounds, and whether the original rounds more often; None where it has no such."""
    narrow = {t for _, t in state.types if t in SIXTEEN_BIT}
    if out_type not in SIXTEEN_BIT:
        return None if narrow else (ir.DataType(scale_type), False)
    if narrow - {out_type}:
        return None
    parts: list[list[ir.DataType]] = [[]]
    for mark, t in state.types:
        if mark:
            parts.append([])
        parts[-1].append(t)
    rounded = [out_type in part for part in parts]
    if not any(rounded[:-1]):
        return FLOAT, False
    if not all(rounded):
        return FLOAT, True  # the operator rounds at the end alone: never more often than the original
    marks = [mark for mark, _ in state.types]
    wide = "scale" in marks and state.types[marks.index("scale")][1] != out_type
    if wide and (state.scale is None or facts.dtype(checks.strip(facts, state.scale)) != out_type):
        return None  # the scale has more bits than the rounded value that it meets
    return (out_type if state.scale is not None or state.at == GATED_NORMALISED else FLOAT), False
