"""GroupQueryAttention, onnxruntime's own operator: a cache, rotations and causal attention in one.

Its meaning is that of onnxruntime's CPU kernel, https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md
and group_query_attention.cc: of each sequence the keys before the new ones are counted by ``seqlens_k``, except for a
prompt, whose keys are the first of all.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

from tvm import relax, te, tirx

from rmsnorm_deploy.tvm.importer.attention import attention
from rmsnorm_deploy.tvm.importer.dtypes import dtype_of, wide
from rmsnorm_deploy.tvm.importer.operator import Operator, shape_expr
from rmsnorm_deploy.tvm.importer.rotary import rotary_embedding
from rmsnorm_deploy.tvm.sizes import broadcasting
from rmsnorm_deploy.tvm.sizes.dimensions import expression
from rmsnorm_deploy.tvm.sizes.kernel import emit_kernel

_INPUTS = {
    11: "head_sink",
    12: "k_scale",
    13: "v_scale",
    14: "q_norm_weight",
    15: "k_norm_weight",
    16: "query_seqlens",
}
"""Inputs that are not supported."""
_ATTRIBUTES: dict[str, Any] = {
    "smooth_softmax": (0, -1),
    "qk_output": (0,),
    "k_quant_type": (b"NONE", "NONE"),
    "v_quant_type": (b"NONE", "NONE"),
    "kv_cache_bit_width": (0,),
    "sliding_window_cache": (0,),
    "causal": (1,),
}
"""Attributes of which only these values are supported."""


def grouped_query_attention(o: Operator) -> Any:
    """Inputs as onnxruntime's; outputs Y, the present keys and the present values.

    Raises:
        ValueError: it has an input or attribute that is not supported, or sizes are not known.
    """
    _require_supported(o)
    emit, op = o.emit, relax.op
    heads, groups = (int(o.attr[name]) for name in ("num_heads", "kv_num_heads"))
    q, k, v = _factors(o, heads, groups)
    batch, _, length, size = o.sizes_of(q)
    if not isinstance(size, int) or heads % groups:
        raise ValueError("the size of a head is not known, or groups do not fit")
    total = _total(o, length)
    start = _start(o, batch, length, total)
    if o.attr.get("do_rotary", 0):
        q, k = (_rotated(o, value, start, batch, length) for value in (q, k))
    k, v = (_present(o, value, start, i, total) for value, i in ((k, 3), (v, 4)))
    keys = o.sizes_of(k)[2]
    bias = _hidden(o, start, wide(dtype_of(q)), [batch, length, keys])
    attributes = {"softcap": float(o.attr.get("softcap", 0.0))}
    scale = float(o.attr.get("scale", 0.0))
    if scale:
        attributes["scale"] = scale
    y = emit(attention(Operator(o.bb, [q, k, v, bias, None, None, None], attributes, o.dims)).fields[0])
    y = emit(op.permute_dims(y, [0, 2, 1, 3]))
    y = emit(op.reshape(y, shape_expr([batch, length, heads * size])))
    return relax.Tuple([y, k, v])


def _require_supported(o: Operator) -> None:
    for i, name in _INPUTS.items():
        if o.input(i) is not None:
            raise ValueError(f"its input {name} is not supported")
    for name, allowed in _ATTRIBUTES.items():
        if name in o.attr and o.attr[name] not in allowed:
            raise ValueError(f"its attribute {name}={o.attr[name]!r} is not supported")
    if o.attr["tvm_custom"]["num_outputs"] > 3:
        raise ValueError("its output output_qk is not supported")


def _factors(o: Operator, heads: int, groups: int) -> list[Any]:
    """Q, K and V as (batch, heads, sequence, size): of three inputs, or of one that has all of them side by side."""
    emit, op = o.emit, relax.op
    sizes = o.known_shape(0)
    packed = o.input(1) is None
    together = heads + 2 * groups if packed else heads
    size = o.dims.quotient([sizes[2]], [together])
    counts = [together] if packed else [heads, groups, groups]
    found = []
    for i, count in enumerate(counts):
        own = o.known_shape(i)
        value = emit(op.reshape(o.input(i), shape_expr([own[0], own[1], count, size])))
        found.append(emit(op.permute_dims(value, [0, 2, 1, 3])))
    if not packed:
        return found
    ends = (0, heads, heads + groups, together)
    return [
        emit(op.strided_slice(found[0], [1], [a], [b], [1], assume_inbound=True)) for a, b in itertools.pairwise(ends)
    ]


def _total(o: Operator, length: Any) -> Any:
    """How many keys the longest sequence has in the end, as a size."""
    known = o.value(6)
    if known is not None and len(known) == 1:
        return o.dims.simple(known[0])
    if o.input(3) is None:
        return length
    past = o.known_shape(3)[2]
    if isinstance(past, int) and past == 0:
        return length
    raise ValueError("its input total_sequence_length is not known from the shape of another input")


def _start(o: Operator, batch: Any, length: Any, total: Any) -> Any:
    """The place of the first new key of each sequence."""
    lengths = o.emit(relax.op.reshape(o.input(5), shape_expr([batch])))

    def compute(lengths: Any, batch: Any, length: Any, total: Any) -> Any:
        def start(b: Any) -> Any:
            later = lengths(b).astype("int64") + expression(1) - length
            return tirx.if_then_else(tirx.EQ(length, total), expression(0), tirx.max(later, expression(0)))

        return te.compute((batch,), start, name="start")

    return emit_kernel(o.bb, "start", compute, [lengths], [batch, length, total], [batch])


def _rotated(o: Operator, value: Any, start: Any, batch: Any, length: Any) -> Any:
    cos, sin, positions = (o.input(i) for i in (7, 8, 9))
    if cos is None or sin is None:
        raise ValueError("do_rotary needs its inputs cos_cache and sin_cache")
    half = o.known_shape(7)[1]
    if not isinstance(half, int):
        raise ValueError("the size of its input cos_cache is not known")
    if positions is None:

        def compute(start: Any, batch: Any, length: Any) -> Any:
            return te.compute((batch, length), lambda b, i: start(b) + i, name="positions")

        positions = emit_kernel(o.bb, "positions", compute, [start], [batch, length], [batch, length])
    attributes = {"interleaved": o.attr.get("rotary_interleaved", 0), "rotary_embedding_dim": 2 * half}
    return o.emit(rotary_embedding(Operator(o.bb, [value, cos, sin, positions], attributes, o.dims)))


def _present(o: Operator, value: Any, start: Any, past: int, total: Any) -> Any:
    """The cache with the new keys or values in their places."""
    batch, groups, length, size = o.sizes_of(value)
    given = o.input(past)
    before = 0 if given is None else o.known_shape(past)[2]
    keys = total if given is None else o.dims.most(before, total)
    if given is not None:
        given = o.with_sizes(given, [batch, groups, before, size])

    def compute(*arguments: Any) -> Any:
        *tensors, batch, length, before, keys = arguments
        new, start = tensors[:2]

        def element(b: Any, g: Any, j: Any, d: Any) -> Any:
            at = j - start(b)
            kept: Any = tirx.const(0, value.ty.dtype.dtype)
            if len(tensors) > 2:
                kept = tirx.if_then_else(tirx.LT(j, before), tensors[2](b, g, j, d), kept)
            inside = tirx.all(tirx.GE(at, expression(0)), tirx.LT(at, length))
            return tirx.if_then_else(inside, new(b, g, at, d), kept)

        return te.compute((batch, expression(groups), keys, expression(size)), element, name="present")

    tensors = [value, start] if given is None else [value, start, given]
    return emit_kernel(o.bb, "present", compute, tensors, [batch, length, before, keys], [batch, keys])


def _hidden(o: Operator, start: Any, dtype: str, sizes: list[Any]) -> Any:
    """What is added to the scores: minus infinity for keys behind a query, or outside of its window."""
    window = int(o.attr.get("local_window_size", -1))

    def compute(start: Any, batch: Any, length: Any, keys: Any) -> Any:
        def element(b: Any, _: Any, i: Any, j: Any) -> Any:
            distance = start(b) + i - j
            seen = [tirx.GE(distance, expression(0))]
            if window > 0:
                seen.append(tirx.LT(distance, expression(window)))
            return tirx.if_then_else(tirx.all(*seen), tirx.const(0, dtype), tirx.const(-math.inf, dtype))

        return te.compute((batch, expression(1), length, keys), element, name="hidden")

    hidden = emit_kernel(o.bb, "hidden", compute, [start], sizes, sizes)
    bias = o.input(10)
    if bias is None:
        return hidden
    bias = bias if dtype_of(bias) == dtype else o.emit(relax.op.astype(bias, dtype))
    pair = [hidden, bias]
    return o.emit(relax.op.add(*(broadcasting.unified(o.bb, o.dims, pair) or pair)))
