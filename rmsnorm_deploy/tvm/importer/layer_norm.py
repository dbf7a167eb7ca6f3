"""LayerNormalization as ONNX has it: a scale of any shape that broadcasts, any axis, and the statistics as outputs.

TVM's own converter takes vectors of the normalised size, and has placeholders for the statistics. Its
InstanceNormalization is written out as nine operators.
"""

from __future__ import annotations

from typing import Any

from tvm import relax

from rmsnorm_deploy.tvm.importer.dtypes import as_dtype, dtype_of
from rmsnorm_deploy.tvm.importer.operator import Operator, shape_expr
from rmsnorm_deploy.tvm.sizes import broadcasting
from rmsnorm_deploy.tvm.sizes.dimensions import is_static


def layer_normalization(o: Operator) -> Any:
    """Y, the mean and the inverse standard deviation; None where TVM's own converter is right.

    Raises:
        ValueError: the rank of the input is not known, it has no such axis, or the scale has more dimensions.
    """
    x, scale, bias = (o.input(i) for i in range(3))
    rank = x.ty.ndim
    if rank < 1:
        raise ValueError("the rank of the input is not known")
    axis = int(o.attr.get("axis", -1))
    if not -rank <= axis < rank:
        raise ValueError(f"axis {axis} of an input of rank {rank}")
    axes = list(range(axis % rank, rank))
    if _is_plain(o, axes):
        return None
    dtype = dtype_of(x)
    inner = "float64" if dtype == "float64" else "float32"
    value = as_dtype(o.bb, x, inner)
    if not _gives_statistics(o):
        scale_of, bias_of = (_of_each_place(o, p, axes, inner) for p in (scale, bias))
        if scale_of is not None and (bias is None or bias_of is not None):
            sizes = o.sizes_of(scale_of)
            shift = o.emit(relax.op.zeros(shape_expr(sizes), inner)) if bias_of is None else bias_of
            y = relax.op.nn.layer_norm(value, scale_of, shift, axes, float(o.attr.get("epsilon", 1e-5)))
            return as_dtype(o.bb, o.emit(y), dtype)
    mean = o.emit(relax.op.mean(value, axes, keepdims=True))
    centred = o.emit(relax.op.subtract(value, mean))
    variance = o.emit(relax.op.mean(o.emit(relax.op.multiply(centred, centred)), axes, keepdims=True))
    epsilon = relax.const(float(o.attr.get("epsilon", 1e-5)), inner)
    inverse = o.emit(relax.op.rsqrt(o.emit(relax.op.add(variance, epsilon))))
    y = o.emit(relax.op.multiply(centred, inverse))
    for operation, factor in ((relax.op.multiply, scale), (relax.op.add, bias)):
        if factor is not None:
            y = o.emit(operation(y, _fitting(o, x, as_dtype(o.bb, factor, inner))))
    stash = "float64" if int(o.attr.get("stash_type", 1)) == _DOUBLE else "float32"
    return relax.Tuple([as_dtype(o.bb, y, dtype), *(as_dtype(o.bb, s, stash) for s in (mean, inverse))])


_DOUBLE = 11


def _is_plain(o: Operator, axes: list[int]) -> bool:
    """Whether it is what TVM's converter takes: one output, and vectors over the last axis."""
    if _gives_statistics(o) or len(axes) > 1:
        return False
    size = o.known_shape(0)[axes[0]] if o.shape(0) is not None else None
    for i in range(1, len(o.inputs)):
        if o.inputs[i] is None:
            continue
        sizes = o.shape(i)
        if sizes is None or len(sizes) != 1 or not is_static(sizes) or size is None or not o.dims.equal(sizes[0], size):
            return False
    return True


def _gives_statistics(o: Operator) -> bool:
    return int(o.attr.get("tvm_custom", {}).get("num_outputs", 1)) > 1


def _of_each_place(o: Operator, factor: Any, axes: list[int], dtype: str) -> Any:
    """A scale or bias with a value for each place that is normalised; None where rows differ or sizes are unknown."""
    if factor is None or o.shape(0) is None or factor.ty.ndim < 0:
        return None
    wanted, sizes = [o.known_shape(0)[a] for a in axes], o.sizes_of(factor)
    if not is_static([*wanted, *sizes]):
        return None
    wanted, sizes = [int(n) for n in wanted], [int(n) for n in sizes]
    while len(sizes) > len(wanted) and sizes[0] == 1:
        del sizes[0]
    if len(sizes) > len(wanted) or any(
        n not in (1, w) for n, w in zip(reversed(sizes), reversed(wanted), strict=False)
    ):
        return None
    factor = as_dtype(o.bb, factor, dtype)
    if len(sizes) != factor.ty.ndim:
        factor = o.emit(relax.op.reshape(factor, shape_expr(sizes)))
    return factor if sizes == wanted else o.emit(relax.op.broadcast_to(factor, shape_expr(wanted)))


def instance_normalization(o: Operator) -> Any:
    """Each channel normalised by itself: a norm of as many groups; None where their number is not known."""
    x, scale, bias = (o.input(i) for i in range(3))
    sizes = o.shape(0)
    if sizes is None or len(sizes) < 3 or not is_static(sizes[1:2]):
        return None
    if any(o.shape(i) is None or not o.dims.equal(o.known_shape(i)[0], sizes[1]) for i in (1, 2)):
        return None
    dtype = dtype_of(x)
    inner = "float64" if dtype == "float64" else "float32"
    x, scale, bias = (as_dtype(o.bb, v, inner) for v in (x, scale, bias))
    axes, epsilon = list(range(2, len(sizes))), float(o.attr.get("epsilon", 1e-5))
    y = relax.op.nn.group_norm(x, scale, bias, int(sizes[1]), channel_axis=1, axes=axes, epsilon=epsilon)
    return as_dtype(o.bb, o.emit(y), dtype)


def _fitting(o: Operator, x: Any, factor: Any) -> Any:
    """``factor`` as it broadcasts to ``x``, never the other way round."""
    if factor.ty.ndim < 0 or factor.ty.ndim > x.ty.ndim:
        raise ValueError(f"a scale or bias of {factor.ty} does not broadcast to {x.ty}")
    sizes, wanted = o.sizes_of(factor), o.sizes_of(x)
    if is_static(sizes) and is_static(wanted):
        for have, want in zip(reversed(sizes), reversed(wanted), strict=False):
            if int(have) not in (1, int(want)):
                raise ValueError(f"a scale or bias of {factor.ty} does not broadcast to {x.ty}")
        return factor
    if broadcasting.agree(o.dims, [wanted, sizes]):
        return factor
    return broadcasting.broadcast(o.bb, o.dims, factor, wanted)
