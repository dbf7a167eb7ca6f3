"""Attention of opsets 23 to 25, which TVM lacks: it has onnxruntime's operator of that name, with other inputs.

The formulas are those of https://onnx.ai/onnx/operators/onnx__Attention.html.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from onnx import helper
from tvm import relax, te, tirx

from rmsnorm_deploy.tvm.importer.dtypes import as_dtype, dtype_of, wide
from rmsnorm_deploy.tvm.importer.operator import Operator, shape_expr
from rmsnorm_deploy.tvm.sizes import broadcasting
from rmsnorm_deploy.tvm.sizes.dimensions import expression, is_static
from rmsnorm_deploy.tvm.sizes.kernel import emit_kernel


def attention(o: Operator) -> Any:
    """Inputs Q, K, V, attn_mask, past_key, past_value, nonpad_kv_seqlen; outputs Y, present key and value, and scores.

    Raises:
        ValueError: the sizes of heads are not known.
    """
    emit, op = o.emit, relax.op
    dtype = dtype_of(o.input(0))
    flat = len(o.known_shape(0)) == 3
    q = _heads(o, 0, "q_num_heads")
    k, v = (_with_past(o, _heads(o, i, "kv_num_heads"), i + 3) for i in (1, 2))
    (batch, heads, queries, size), (_, groups, keys, _), (_, _, _, value_size) = (o.sizes_of(t) for t in (q, k, v))
    if not is_static([heads, groups, size, value_size]) or heads % groups:
        raise ValueError("the number of heads or their size is not known, or does not fit")
    scale = float(o.attr.get("scale", 1 / math.sqrt(size)))
    # no rounding to 16 bits between the two products; each factor takes the root of the scale, so that none overflows
    inner = wide(dtype)
    root = relax.const(np.asarray(math.sqrt(scale), inner))
    q32, k32 = (emit(op.multiply(as_dtype(o.bb, t, inner), root)) for t in (q, k))
    # heads that share keys are rows of one product: no copies of the keys
    rows = o.dims.product([heads // groups, queries])
    q32 = emit(op.reshape(q32, shape_expr([batch, groups, rows, size])))
    k32 = o.with_sizes(k32, [batch, groups, keys, size])
    scores = emit(op.matmul(q32, emit(op.permute_dims(k32, [0, 1, 3, 2]))))
    scores = emit(op.reshape(scores, shape_expr([batch, heads, queries, keys])))
    exposed = {0: scores}
    softcap = float(o.attr.get("softcap", 0.0))
    if softcap > 0:
        cap = relax.const(np.asarray(softcap, inner))
        scores = emit(op.multiply(emit(op.tanh(emit(op.divide(scores, cap)))), cap))
    exposed[1] = scores
    bias = _bias(o, inner, [batch, heads, queries, keys])
    if bias is not None:
        scores, bias = broadcasting.unified(o.bb, o.dims, [scores, bias]) or (scores, bias)
        scores = emit(op.add(scores, bias))
    exposed[2] = scores
    precision = o.attr.get("softmax_precision", 0)
    chosen = str(helper.tensor_dtype_to_np_dtype(precision)) if precision else inner
    probabilities = emit(op.nn.softmax(as_dtype(o.bb, scores, wide(chosen)), -1))
    probabilities = as_dtype(o.bb, probabilities, inner)
    if bias is not None:
        # a query that may attend to nothing: softmax makes 0 / 0 of it. TVM's max of -infinities is a finite number
        one, zero = (relax.const(np.asarray(x, inner)) for x in (1, 0))
        never = emit(op.equal(bias, relax.const(np.asarray(-np.inf, inner))))
        some = emit(op.max(emit(op.where(never, zero, one)), -1, keepdims=True))
        probabilities = emit(op.where(emit(op.equal(some, one)), probabilities, zero))
    exposed[3] = probabilities
    # By the sizes that it has, which a mask of unknown sizes makes the larger of two: where TVM cannot prove that a
    # reshape keeps the number of values, it makes a kernel whose index takes minutes to compile.
    own = o.sizes_of(probabilities)
    split = [own[0], groups, o.dims.product([heads // groups, own[2]]), own[3]]
    grouped = o.with_sizes(emit(op.reshape(probabilities, shape_expr(split))), [batch, groups, rows, keys])
    v32 = o.with_sizes(as_dtype(o.bb, v, inner), [batch, groups, keys, value_size])
    y = emit(op.reshape(emit(op.matmul(grouped, v32)), shape_expr([batch, heads, queries, value_size])))
    if flat:
        y = emit(op.permute_dims(y, [0, 2, 1, 3]))
        y = emit(op.reshape(y, shape_expr([batch, queries, heads * value_size])))
    mode = o.attr.get("qk_matmul_output_mode", 0)
    return relax.Tuple([as_dtype(o.bb, y, dtype), k, v, as_dtype(o.bb, exposed[mode], dtype)])


def _heads(o: Operator, i: int, number: str) -> Any:
    """Input ``i`` as (batch, heads, sequence, size)."""
    sizes = o.known_shape(i)
    if len(sizes) == 4:
        return o.input(i)
    heads = int(o.attr[number])
    split = [sizes[0], sizes[1], heads, o.dims.quotient([sizes[2]], [heads])]
    return o.emit(relax.op.permute_dims(o.emit(relax.op.reshape(o.input(i), shape_expr(split))), [0, 2, 1, 3]))


def _with_past(o: Operator, value: Any, past: int) -> Any:
    if o.input(past) is None:
        return value
    own, before = o.sizes_of(value), o.known_shape(past)
    fitting = o.with_sizes(o.input(past), [own[0], own[1], before[2], own[3]])
    return o.emit(relax.op.concat([fitting, value], 2))


def _bias(o: Operator, dtype: str, shape: list[Any]) -> Any:
    """What is added to the scores: 0 or minus infinity for a mask of truth values, or None."""
    mask, found = o.input(3), []
    if mask is not None:
        sizes, keys = o.known_shape(3), shape[3]
        if dtype_of(mask) == "bool":
            zero, never = (relax.const(np.asarray(x, dtype)) for x in (0, -np.inf))
            mask = o.emit(relax.op.where(mask, zero, never))
        mask = as_dtype(o.bb, mask, dtype)
        if is_static([sizes[-1], keys]) and 1 < sizes[-1] < keys:
            mask = o.emit(
                relax.op.nn.pad(mask, [0] * (2 * len(sizes) - 1) + [keys - sizes[-1]], "constant", float("-inf"))
            )
        found.append(mask)
    window = _window(o, dtype, shape)
    if window is not None:
        found.append(window)
    if len(found) == 2:
        found = broadcasting.unified(o.bb, o.dims, found) or found
        return o.emit(relax.op.add(*found))
    return found[0] if found else None


def _window(o: Operator, dtype: str, shape: list[Any]) -> Any:
    """Minus infinity for keys behind a query, outside of its window, or behind the end; None where no key is hidden."""
    causal = bool(o.attr.get("is_causal", 0))
    left, right = (int(o.attr.get(f"{side}_window_size", -1)) for side in ("left", "right"))
    lengths, past = o.input(6), o.input(4)
    if not causal and left < 0 and right < 0 and lengths is None:
        return None
    batch, _, queries, keys = shape
    before = 0 if past is None else o.known_shape(4)[2]

    def compute(*arguments: Any) -> Any:
        *given, batch, queries, keys, before = arguments

        def element(b: Any, _: Any, i: Any, j: Any) -> Any:
            start = given[0](b).astype("int64") - queries if given and past is None else before
            distance = i + start - j
            kept = []
            if causal:
                kept.append(tirx.GE(distance, expression(0)))
            if left >= 0:
                kept.append(tirx.LE(distance, expression(left)))
            if right >= 0:
                kept.append(tirx.GE(distance, expression(-right)))
            if given:
                kept.append(tirx.LT(j, given[0](b).astype("int64")))
            return tirx.if_then_else(tirx.all(*kept), tirx.const(0, dtype), tirx.const(-math.inf, dtype))

        return te.compute((batch if given else expression(1), expression(1), queries, keys), element, name="window")

    given = [] if lengths is None else [lengths]
    return emit_kernel(o.bb, "window", compute, given, [batch, queries, keys, before], [batch, queries, keys])
