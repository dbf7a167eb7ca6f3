"""Language models with LayerNorm: in the shape of GPT-2, and one of gated recurrent units as in the paper's tests."""

from __future__ import annotations

import numpy as np
from onnx import ModelProto

from benchmarks.models.writer import Writer

VOCABULARY = 1024


def gpt2(dtype: str, layers: int = 4, width: int = 768, *, count: int, skip: bool = False) -> ModelProto:
    """Pre-norm layers with causal attention; the last product is with the table of the words, as in GPT-2.

    Args:
        dtype: of everything.
        layers: how many.
        width: features; heads have 64 each.
        count: tokens, the same in every run.
        skip: additions and norms are one SkipLayerNormalization, as onnxruntime's tools for transformers write them.
    """
    w, heads = Writer(dtype), width // 64
    table = w.weight(VOCABULARY, width)
    x = w.op("Add", w.op("Gather", table, w.input("tokens", (1, count), "int64")), w.weight(count, width))
    mask = w.constant(np.triu(np.full((count, count), -1e4), 1))
    n = w.layer_norm(x, width)
    for _ in range(layers):
        q, k, v = (w.heads(w.linear(n, width, width, bias=True), heads, 64) for _ in range(3))
        scores = w.op("MatMul", w.op("Mul", q, w.constant(1 / 8)), w.op("Transpose", k, perm=[0, 1, 3, 2]))
        weights = w.op("Softmax", w.op("Add", scores, mask), axis=-1)
        x, n = _added(w, x, w.joined(w.op("MatMul", weights, v), width), width, width, skip=skip)
        inner = w.gelu(w.linear(n, width, 4 * width, bias=True))
        x, n = _added(w, x, inner, 4 * width, width, skip=skip)
    w.output(w.op("MatMul", n, w.op("Transpose", table, perm=[1, 0])), "logits", (1, count, VOCABULARY))
    return w.model()


def _added(w: Writer, x: str, y: str, inputs: int, width: int, *, skip: bool) -> tuple[str, str]:
    """The stream ``x`` with a layer's last product, and the norm of that."""
    if not skip:
        x = w.op("Add", x, w.linear(y, inputs, width, bias=True))
        return x, w.layer_norm(x, width)
    product = w.op("MatMul", y, w.weight(inputs, width))
    bias = w.constant(np.random.default_rng(9).standard_normal(width) / 10)
    return w.skip_layer_norm(x, product, bias, width)


def gru(dtype: str, steps: int = 16, width: int = 512) -> ModelProto:
    """Words one after the other through one layer of gated recurrent units, unrolled.

    What comes from the word and what comes from the state are normalised on their own in front of the gates, as layer
    normalisation was first used.
    """
    w = Writer(dtype)
    tokens = w.input("tokens", ("batch", steps), "int64")
    words = w.op("Gather", w.weight(VOCABULARY, width), tokens)
    state = w.op("Mul", w.op("Gather", words, w.constant(0, "int64"), axis=1), w.constant(0.0))
    size = 2 * width
    of_word, of_state, last = (w.weight(width, size) for _ in range(3))
    of_word_new, of_state_new = w.weight(width, width), w.weight(width, width)
    vectors = [(w.constant(np.ones(s)), w.constant(np.zeros(s))) for s in (size, size, width, width)]

    def norm(x: str, which: int) -> str:
        return w.op("LayerNormalization", x, *vectors[which], axis=-1, epsilon=1e-5)

    for step in range(steps):
        word = w.op("Gather", words, w.constant(step, "int64"), axis=1)
        both = w.op("Add", norm(w.op("MatMul", word, of_word), 0), norm(w.op("MatMul", state, of_state), 1))
        gates = w.op("Sigmoid", both)
        reset = w.op("Slice", gates, w.ints(0), w.ints(width), w.ints(1))
        update = w.op("Slice", gates, w.ints(width), w.ints(size), w.ints(1))
        old = w.op("Mul", reset, norm(w.op("MatMul", state, of_state_new), 3))
        new = w.op("Tanh", w.op("Add", norm(w.op("MatMul", word, of_word_new), 2), old))
        kept = w.op("Mul", update, w.op("Sub", state, new))
        state = w.op("Add", new, kept)
    w.output(w.op("MatMul", state, last), "logits", ("batch", size))
    return w.model()
