"""What is probably wrong with a norm that differs from its original: by its node, else by the way in which it differs."""

from __future__ import annotations

import numpy as np
from onnx import ModelProto, NodeProto, numpy_helper
from onnx.helper import get_attribute_value

from rmsnorm_deploy.check.sites import Site
from rmsnorm_deploy.op import DOMAIN
from rmsnorm_deploy.run.inputs import Array

_ATTRIBUTES = {
    "axes": "axis",
    "partial_size": "partial size",
    "epsilon": "epsilon",
    "epsilon_outside": "epsilon",
    "rms_floor": "epsilon",
    "scale_type": "rounding order",
    "stash_type": "rounding",
    "output_type": "output type",
}


def guess(
    site: Site,
    twin: Site | None,
    original: ModelProto,
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
        original: the original.
        fused: the model in question.
        fresh: what the fuser makes of the original.
        rows: the truth and what was found, set by set.
        rounding: it differs by its roundings only.
    """
    node = _ours(site)
    due = _ours(twin) if twin is not None else None
    if node is not None and due is not None:
        found = _by_operands(node, due) or _by_attributes(node, due) or _by_scale(node, fused, fresh)
        if found:
            return found
    if rounding:
        return "rounding: a cast is missing, or one too many"
    if node is None and due is not None and site.fused.reads == twin.fused.reads if twin else False:
        return _by_numbers(rows) or "rounding: the statistics are computed in a narrower type"
    return _by_numbers(rows)


def _ours(site: Site) -> NodeProto | None:
    ours = [n for n in site.fused.nodes if n.domain == DOMAIN]
    return ours[-1] if ours else None


def _operands(node: NodeProto) -> dict[str, str]:
    names = {"RMSNorm": ("X", "scale"), "AddRMSNorm": ("X", "residual", "scale")}
    return dict(zip(names.get(node.op_type, ("X", "scale", "bias")), node.input, strict=False))


def _by_operands(node: NodeProto, due: NodeProto) -> str:
    got, want = _operands(node), _operands(due)
    if ("residual" in got) != ("residual" in want):
        return "residual: missing" if "residual" in want else "residual: added, and the original has none here"
    if "residual" in want and {got["X"], got["residual"]} != {want["X"], want["residual"]}:
        return f"residual: '{got['residual']}' and '{got['X']}', expected '{want['residual']}' and '{want['X']}'"
    if got["X"] != want["X"] and "residual" not in want:
        return f"input: '{got['X']}', expected '{want['X']}'"
    if got["scale"] != want["scale"]:
        return f"scale: '{got['scale']}', expected '{want['scale']}'"
    if got.get("bias") != want.get("bias"):
        return "bias: missing" if "bias" in want else "bias: added, and the original has none here"
    return ""


def _by_attributes(node: NodeProto, due: NodeProto) -> str:
    got, want = ({a.name: get_attribute_value(a) for a in n.attribute} for n in (node, due))
    for name, word in _ATTRIBUTES.items():
        a, b = got.get(name), want.get(name)
        if a != b and (a or b):
            return f"{word}: {name} is {a}, expected {b}"
    return ""


def _by_scale(node: NodeProto, fused: ModelProto, fresh: ModelProto) -> str:
    tensors = [{t.name: t for t in m.graph.initializer} for m in (fused, fresh)]
    for operand, name in _operands(node).items():
        if all(name in t for t in tensors):
            a, b = (t[name] for t in tensors)
            if not a.external_data and not b.external_data and a.raw_data != b.raw_data:
                return f"{operand}: other values in '{name}'" + _rolled(numpy_helper.to_array(a), numpy_helper.to_array(b))
    return ""


def _rolled(a: Array, b: Array) -> str:
    for by in (1, -1):
        if a.shape == b.shape and np.array_equal(a, np.roll(b, by, axis=-1)):
            return f", moved by {by}"
    return ""


def _by_numbers(rows: list[tuple[Array, Array]]) -> str:
    exact = [e.astype(np.float64).reshape(-1, e.shape[-1]) for e, _ in rows if e.ndim]
    found = [g.astype(np.float64).reshape(-1, g.shape[-1]) for e, g in rows if e.ndim and g.shape == e.shape]
    if not exact or len(exact) != len(found):
        return "shape"
    truth, got = np.concatenate(exact), np.concatenate(found)
    zero = np.all(truth == 0, axis=1)
    if zero.any() and not np.all(np.isfinite(got[zero])):
        return "epsilon: missing, zero rows give NaN"
    if zero.any() and np.any(np.abs(got[zero]) > 1e-5):
        return "bias"
    with np.errstate(all="ignore"):
        size = np.sqrt(np.mean(truth**2, axis=1))
        known = (size > 0) & np.all(np.isfinite(truth) & np.isfinite(got), axis=1)
        if not known.any():
            return "overflow"
        ratio = np.where(np.abs(truth) > size[:, None] / 8, got / truth, np.nan)[known]
        by_row = np.nanmedian(ratio, axis=1)
        spread = np.nanmedian(np.abs(ratio - by_row[:, None]), axis=1)
        off = np.abs(by_row - 1)
    if np.all(spread <= np.maximum(off / 4, 1e-3)) and off.max() > 1e-4:
        normal = size[known] > np.median(size[known]) / 2
        return "epsilon" if off[normal].max(initial=0) < off.max() / 10 else "statistic: axis, partial size or divisor"
    by_feature = np.nanmedian(ratio, axis=0)
    if np.nanmedian(np.abs(ratio - by_feature)) < np.nanmedian(np.abs(by_feature - 1)) / 4:
        return "scale"
    return "input, residual or axis" if np.nanmedian(np.abs(ratio - 1)) > 0.05 else "rounding"
