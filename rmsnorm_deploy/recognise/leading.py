"""The leading features of a value: what the statistic of a pRMSNorm measures."""

from __future__ import annotations

import onnx_ir as ir

from rmsnorm_deploy.recognise.facts import Facts, int_attribute, is_op


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
        if base is not node.outputs[0] or not at_axis(int_attribute(facts, node, "axis", 0)):
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
