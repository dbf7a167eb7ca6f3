"""What is probably wrong with a norm that differs from its original: by its node, else by how it differs."""

from __future__ import annotations

from collections import Counter

import numpy as np
from onnx import ModelProto, NodeProto, numpy_helper
from onnx.helper import get_attribute_value

from rmsnorm_deploy.check.sites import Site
from rmsnorm_deploy.op import DOMAIN, Op
from rmsnorm_deploy.op.definition import ALL_FEATURES
from rmsnorm_deploy.op.dtypes import TYPES, float_type
from rmsnorm_deploy.run.inputs import Array

_FLOATS = frozenset(t.name for t in TYPES)
_ATTRIBUTES = {
    "axes": "axis",
    "partial_size": "partial size",
    "epsilon_outside": "epsilon",
    "rms_floor": "epsilon",
    "epsilon": "epsilon",
    "scale_type": "rounding order",
    "stash_type": "rounding",
    "output_type": "output type",
}


def guess(
    site: Site,
    twin: Site | None,
    fused: ModelProto,
    fresh: ModelProto,
    rows: list[tuple[Array, Array]],
    *,
    rounding: bool,
) -> str:
    """The kind of fault in a few words, such as "epsilon: 2e-06, expected 1e-06"; empty where nothing is likely.

    Args:
        site: the place.
        twin: the same place in what the fuser makes of the original.
        fused: the model in question.
        fresh: what the fuser makes of the original.
        rows: the truth and what was found, set by set.
        rounding: it differs by its roundings only.
    """
    node = _ours(site)
    due = _ours(twin) if twin is not None else None
    if node is not None and due is not None and twin is not None:
        found = _by_operands(node, due, site, twin, fused) or _by_attributes(node, due) or _by_scale(node, fused, fresh)
        if found:
            return found
    if rounding:
        return "rounding: a cast is missing, or one too many"
    if node is not None and site.fused.nodes[-1].op_type == "Cast":
        return "output type: a cast behind the norm"
    return _by_numbers(rows)


def _ours(site: Site) -> NodeProto | None:
    ours = [n for n in site.fused.nodes if n.domain == DOMAIN]
    return ours[-1] if ours else None


def _operands(node: NodeProto) -> dict[str, str]:
    return dict(zip(Op(node.op_type).inputs, node.input, strict=True))


def _summands(site: Site, node: NodeProto) -> Counter[str]:
    """What is added up to make the normalised value, by nodes of the place and by the norm itself."""
    makers = {o: n for n in site.fused.nodes for o in n.output}
    operands = _operands(node)
    wanted, found = [operands["X"], operands.get("residual", "")], Counter[str]()
    while wanted:
        name = wanted.pop()
        maker = makers.get(name)
        if maker is not None and maker.op_type == "Add" and name not in site.fused.reads:
            wanted += maker.input
        elif name:
            found[name] += 1
    return found


def _by_operands(node: NodeProto, due: NodeProto, site: Site, twin: Site, fused: ModelProto) -> str:
    got, want = _summands(site, node), _summands(twin, due)
    less, more = want - got, got - want
    named = ", ".join(f"'{v}'" for v in (more or less))
    if less and more:
        return f"input: {named}, expected {', '.join(repr(v) for v in less)}"
    if less or more:
        return f"residual: {'missing' if less else 'one too many'}, {named}"
    mine, theirs = _operands(node), _operands(due)
    if mine["scale"] != theirs["scale"]:
        return f"scale: '{mine['scale']}', expected '{theirs['scale']}'"
    a, b = (o.get("bias", "") for o in (mine, theirs))
    if a == b or (not b and _is_zero(a, fused)):
        return ""
    return f"bias: '{a}', expected {repr(b) if b else 'none'}" if a else f"bias: missing, expected '{b}'"


def _is_zero(name: str, model: ModelProto) -> bool:
    tensor = next((t for t in model.graph.initializer if t.name == name), None)
    return tensor is not None and not tensor.external_data and not numpy_helper.to_array(tensor).any()


def _by_attributes(node: NodeProto, due: NodeProto) -> str:
    got, want = ({a.name: get_attribute_value(a) for a in n.attribute} for n in (node, due))
    for name, word in _ATTRIBUTES.items():
        a, b = (None if v in (0.0, [ALL_FEATURES]) else v for v in (got.get(name), want.get(name)))
        if a != b:
            return f"{word}: {name} is {got.get(name)}, expected {want.get(name, 'none')}"
    return ""


def _by_scale(node: NodeProto, fused: ModelProto, fresh: ModelProto) -> str:
    tensors = [{t.name: t for t in m.graph.initializer} for m in (fused, fresh)]
    for operand, name in _operands(node).items():
        if all(name in t for t in tensors):
            a, b = (t[name] for t in tensors)
            if not a.external_data and not b.external_data and a.raw_data != b.raw_data:
                return f"{operand}: other values in '{name}'" + _rolled(
                    numpy_helper.to_array(a), numpy_helper.to_array(b)
                )
    return ""


def _rolled(a: Array, b: Array) -> str:
    for by in (1, -1):
        if a.ndim and a.shape == b.shape and np.array_equal(a, np.roll(b, by, axis=-1)):
            return f", moved by {by}"
    return ""


def _is_shifted(truth: Array, got: Array) -> bool:
    """Whether every row differs by the same vector."""
    finite = np.all(np.isfinite(truth) & np.isfinite(got), axis=1)
    if finite.sum() < 3:
        return False
    off = (got - truth)[finite]
    shift = np.median(off, axis=0)
    return bool(np.max(np.abs(off - shift)) < np.max(np.abs(shift)) / 16)


def _by_numbers(rows: list[tuple[Array, Array]]) -> str:
    exact = [e.astype(np.float64).reshape(-1, e.shape[-1]) for e, _ in rows if e.ndim]
    found = [g.astype(np.float64).reshape(-1, g.shape[-1]) for e, g in rows if e.ndim and g.shape == e.shape]
    if not exact or len(exact) != len(found):
        return "shape"
    truth, got = np.concatenate(exact), np.concatenate(found)
    noise = 2.0 ** -(float_type(rows[0][1].dtype).mantissa_bits) if rows[0][1].dtype.name in _FLOATS else 1e-6
    if _is_shifted(truth, got):
        return "bias: missing, or another one"
    zero = np.all(truth == 0, axis=1)
    if zero.any() and not np.all(np.isfinite(got[zero])):
        return "epsilon: missing, zero rows give NaN"
    if zero.any() and np.any(np.abs(got[zero]) > 1e-5):
        return "bias"
    with np.errstate(all="ignore"):
        size = np.sqrt(np.mean(truth**2, axis=1))
        lost = (size > 0) & np.all((got == 0) | ~np.isfinite(got), axis=1) & np.all(np.isfinite(truth), axis=1)
        known = ~lost & (size > 0) & np.all(np.isfinite(truth) & np.isfinite(got), axis=1)
        if not known.any():
            return "overflow"
        ratio = np.where(np.abs(truth) > size[:, None] / 8, got / truth, np.nan)[known]
        by_row = np.nanmedian(ratio, axis=1)
        spread = np.nanmedian(np.abs(ratio - by_row[:, None]), axis=1)
        off = np.abs(by_row - 1)
    if lost.any() and np.median(off) < 2.0**-6:
        return "rounding: the statistics are computed in a narrower type, where large rows overflow"
    if np.all(spread <= np.maximum(off / 4, noise)) and off.max() > 4 * noise:
        normal = size[known] > np.median(size[known]) / 2
        return "epsilon" if off[normal].max(initial=0) < off.max() / 10 else "statistic: axis, partial size or divisor"
    by_feature = np.nanmedian(ratio, axis=0)
    if np.nanmedian(np.abs(ratio - by_feature)) < np.nanmedian(np.abs(by_feature - 1)) / 4:
        return "scale"
    return "input, residual or axis" if np.nanmedian(np.abs(ratio - 1)) > 0.05 else "rounding"
