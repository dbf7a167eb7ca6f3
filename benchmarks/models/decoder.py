"""A decoder in the shape of Llama and Qwen2: RMSNorm, rotary embedding, grouped-query attention, SwiGLU."""

from __future__ import annotations

import math

import numpy as np
from onnx import ModelProto

from benchmarks.models.writer import Writer

LAYERS, HIDDEN, FFN, HEADS, GROUPS, SIZE, VOCABULARY = 4, 896, 4864, 14, 2, 64, 1024
LONGEST = 2048


def decoder(dtype: str, *, past: bool) -> ModelProto:
    """Of a batch of 1 and any number of tokens; with ``past``, the keys and values of any number before them.

    Keys are hidden by position, as exporters write it. The cache comes and goes as (batch, groups, sequence, size).
    """
    w = Writer(dtype)
    op = w.op
    tokens = w.input("input_ids", (1, "tokens"), "int64")
    positions = w.input("position_ids", (1, "tokens"), "int64")
    x = op("Gather", w.weight(VOCABULARY, HIDDEN), tokens)
    angles = np.outer(np.arange(LONGEST), 1e6 ** (-np.arange(0, SIZE, 2) / SIZE))
    table = np.concatenate([angles, angles], 1)
    cos, sin = (
        op("Unsqueeze", op("Gather", w.constant(values), positions), w.ints(1))
        for values in (np.cos(table), np.sin(table))
    )
    before = [w.input(f"past_{i}_{kind}", (1, GROUPS, "past", SIZE)) for i in range(LAYERS) for kind in "kv" if past]
    total = op("Gather", op("Shape", tokens), w.constant(1, "int64"))
    if past:
        total = op("Add", op("Gather", op("Shape", before[0]), w.constant(2, "int64")), total)
    keys = op("Range", w.constant(0, "int64"), total, w.constant(1, "int64"))
    seen = op("LessOrEqual", keys, op("Unsqueeze", positions, w.ints(1, 3)))
    mask = op("Where", seen, w.constant(0.0), w.constant(-np.inf))

    def rotated(value: str) -> str:
        half = w.ints(SIZE // 2)
        first = op("Slice", value, w.ints(0), half, w.ints(3))
        second = op("Slice", value, half, w.ints(SIZE), w.ints(3))
        turned = op("Concat", op("Neg", second), first, axis=3)
        return op("Add", op("Mul", value, cos), op("Mul", turned, sin))

    def repeated(value: str) -> str:
        many = op("Expand", op("Unsqueeze", value, w.ints(2)), w.ints(1, 1, HEADS // GROUPS, 1, 1))
        return op("Reshape", many, w.ints(1, HEADS, -1, SIZE))

    for i in range(LAYERS):
        n = _norm(w, x)
        q = rotated(w.heads(w.linear(n, HIDDEN, HEADS * SIZE, bias=True), HEADS, SIZE))
        k = rotated(w.heads(w.linear(n, HIDDEN, GROUPS * SIZE, bias=True), GROUPS, SIZE))
        v = w.heads(w.linear(n, HIDDEN, GROUPS * SIZE, bias=True), GROUPS, SIZE)
        if past:
            k, v = (op("Concat", old, new, axis=2) for old, new in zip(before[2 * i : 2 * i + 2], (k, v), strict=True))
        w.output(k, f"present_{i}_k", (1, GROUPS, "total", SIZE))
        w.output(v, f"present_{i}_v", (1, GROUPS, "total", SIZE))
        scores = op("MatMul", q, op("Transpose", repeated(k), perm=[0, 1, 3, 2]))
        scores = op("Add", op("Mul", scores, w.constant(1 / math.sqrt(SIZE))), mask)
        y = w.joined(op("MatMul", op("Softmax", scores, axis=-1), repeated(v)), HEADS * SIZE)
        x = op("Add", x, w.linear(y, HEADS * SIZE, HIDDEN, bias=False))
        n = _norm(w, x)
        gate = w.linear(n, HIDDEN, FFN, bias=False)
        gate = op("Mul", gate, op("Sigmoid", gate))
        x = op("Add", x, w.linear(op("Mul", gate, w.linear(n, HIDDEN, FFN, bias=False)), FFN, HIDDEN, bias=False))
    w.output(w.linear(_norm(w, x), HIDDEN, VOCABULARY, bias=False), "logits", (1, "tokens", VOCABULARY))
    return w.model()


def _norm(w: Writer, x: str) -> str:
    wide = x if w.dtype == "float32" else w.op("Cast", x, to=1)
    two, epsilon = w.constant(2.0, "float32"), w.constant(1e-6, "float32")
    mean = w.op("ReduceMean", w.op("Pow", wide, two), w.ints(-1))
    inverse = w.op("Reciprocal", w.op("Sqrt", w.op("Add", mean, epsilon)))
    value = w.op("Mul", wide, inverse)
    value = value if w.dtype == "float32" else w.op("Cast", value, to=10)
    return w.op("Mul", w.constant(np.ones(HIDDEN)), value)
