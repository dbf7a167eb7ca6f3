"""Encoders with convolutions in front: in the shape of Whisper's (tiny) and of a vision transformer (small)."""

from __future__ import annotations

import math

from onnx import ModelProto

from benchmarks.models.writer import Writer

WIDTH, HEADS, FFN = 384, 6, 1536
SIZE = WIDTH // HEADS
WHISPER_LAYERS, MELS, FRAMES = 4, 80, 3000
VIT_LAYERS, IMAGE, PATCH = 6, 224, 16


def whisper(dtype: str, layers: int = WHISPER_LAYERS, frames: int = FRAMES) -> ModelProto:
    """30 s of sound, as the 3,000 frames that Whisper takes, through two Conv1d into 1,500 positions."""
    w = Writer(dtype)
    x = w.input("features", ("batch", MELS, frames))
    x = w.gelu(w.op("Conv", x, w.weight(WIDTH, MELS, 3), w.weight(WIDTH), pads=[1, 1], strides=[1]))
    x = w.gelu(w.op("Conv", x, w.weight(WIDTH, WIDTH, 3), w.weight(WIDTH), pads=[1, 1], strides=[2]))
    x = w.op("Add", w.op("Transpose", x, perm=[0, 2, 1]), w.weight(frames // 2, WIDTH))
    w.output(_layers(w, x, layers), "encoded", ("batch", frames // 2, WIDTH))
    return w.model()


def vit(dtype: str, layers: int = VIT_LAYERS, image: int = IMAGE) -> ModelProto:
    """Images of 224 by 224 in patches of 16, with a class token in front."""
    w = Writer(dtype)
    x = w.input("image", ("batch", 3, image, image))
    x = w.op("Conv", x, w.weight(WIDTH, 3, PATCH, PATCH), w.weight(WIDTH), strides=[PATCH, PATCH])
    patches = (image // PATCH) ** 2
    x = w.op("Transpose", w.op("Reshape", x, w.ints(0, WIDTH, patches)), perm=[0, 2, 1])
    batch = w.op("Slice", w.op("Shape", x), w.ints(0), w.ints(1))
    first = w.op("Expand", w.weight(1, 1, WIDTH), w.op("Concat", batch, w.ints(1, 1), axis=0))
    x = w.op("Add", w.op("Concat", first, x, axis=1), w.weight(1, patches + 1, WIDTH))
    w.output(_layers(w, x, layers), "encoded", ("batch", patches + 1, WIDTH))
    return w.model()


def _layers(w: Writer, x: str, count: int) -> str:
    for _ in range(count):
        n = w.layer_norm(x, WIDTH)
        q, k, v = (w.heads(w.linear(n, WIDTH, WIDTH, bias=True), HEADS, SIZE) for _ in range(3))
        q = w.op("Mul", q, w.constant(1 / math.sqrt(SIZE)))
        scores = w.op("MatMul", q, w.op("Transpose", k, perm=[0, 1, 3, 2]))
        y = w.joined(w.op("MatMul", w.op("Softmax", scores, axis=-1), v), WIDTH)
        x = w.op("Add", x, w.linear(y, WIDTH, WIDTH, bias=True))
        y = w.gelu(w.linear(w.layer_norm(x, WIDTH), WIDTH, FFN, bias=True))
        x = w.op("Add", x, w.linear(y, FFN, WIDTH, bias=True))
    return w.layer_norm(x, WIDTH)
