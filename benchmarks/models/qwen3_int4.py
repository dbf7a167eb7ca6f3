"""A decoder in the shape of Qwen3-0.6B with 4-bit weights, as quantisers for onnxruntime write it, to be timed whole.

    python -m benchmarks.models.qwen3_int4 decoder.onnx [--layers 28]

Products are MatMulNBits, attention is GroupQueryAttention with its rotary embedding, and norms are written out, those
of the heads of queries and keys as well. It takes embeddings instead of tokens: looking them up takes no time. The
weights are random.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, TensorProto, helper, numpy_helper

from benchmarks.models.writer import Writer

LAYERS, HIDDEN, FFN, HEADS, GROUPS, SIZE, VOCABULARY = 28, 1024, 3072, 16, 8, 128, 151936
LONGEST, BLOCK, MICROSOFT = 4096, 32, "com.microsoft"


class QuantisedWriter(Writer):
    """A writer that also knows onnxruntime's operators."""

    accuracy_level = 4
    """Of products: 4 rounds what they multiply to 8 bits, as deployed models do; 0 keeps float32."""

    def raw(self, value: np.ndarray[Any, Any]) -> str:
        """A constant of its own type."""
        name = f"quantised_{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(value, name))
        return name

    def product(self, x: str, inputs: int, outputs: int) -> str:
        """X W with W in 4 bits, in blocks of 32 along the inputs, as MatMulNBitsQuantizer packs it."""
        blocks = inputs // BLOCK
        packed = self._random.integers(0, 256, (outputs, blocks, BLOCK // 2), np.uint8)
        scales = np.full(outputs * blocks, 0.2 / np.sqrt(inputs), np.float32)
        sizes = {"K": inputs, "N": outputs, "bits": 4, "block_size": BLOCK, "accuracy_level": self.accuracy_level}
        return self.op("MatMulNBits", x, self.raw(packed), self.raw(scales), domain=MICROSOFT, **sizes)

    def norm(self, x: str, size: int) -> str:
        """As PyTorch's exporter writes it."""
        mean = self.op("ReduceMean", self.op("Pow", x, self.constant(2.0)), self.ints(-1), keepdims=1)
        inverse = self.op("Reciprocal", self.op("Sqrt", self.op("Add", mean, self.constant(1e-6))))
        return self.op("Mul", self.constant(np.ones(size)), self.op("Mul", x, inverse))

    def of_heads(self, x: str, count: int) -> str:
        """The norm of each head."""
        split = self.op("Reshape", x, self.ints(0, 0, count, SIZE))
        return self.op("Reshape", self.norm(split, SIZE), self.ints(0, 0, count * SIZE))


def qwen3_int4(layers: int = LAYERS, vocabulary: int = VOCABULARY, accuracy_level: int = 4) -> ModelProto:
    """A batch of 1, any number of tokens, and a cache of any number before them."""
    w = QuantisedWriter("float32")
    w.accuracy_level = accuracy_level
    op = w.op
    x = w.input("inputs_embeds", (1, "tokens", HIDDEN))
    shape = (1, GROUPS, "past", SIZE)
    past = [[w.input(f"past_key_values.{i}.{kind}", shape) for kind in ("key", "value")] for i in range(layers)]
    angles = np.outer(np.arange(LONGEST), 1e6 ** (-np.arange(0, SIZE, 2) / SIZE))
    cos, sin = w.constant(np.cos(angles)), w.constant(np.sin(angles))
    before = op("Gather", op("Shape", past[0][0]), w.constant(2, "int64"))
    total = op("Cast", op("Add", before, op("Gather", op("Shape", x), w.constant(1, "int64"))), to=TensorProto.INT32)
    last = op("Reshape", op("Sub", total, w.raw(np.array(1, np.int32))), w.ints(1))
    for i in range(layers):
        n = w.norm(x, HIDDEN)
        q = w.of_heads(w.product(n, HIDDEN, HEADS * SIZE), HEADS)
        k = w.of_heads(w.product(n, HIDDEN, GROUPS * SIZE), GROUPS)
        v = w.product(n, HIDDEN, GROUPS * SIZE)
        made = [f"attended_{i}", f"present.{i}.key", f"present.{i}.value"]
        heads = {"num_heads": HEADS, "kv_num_heads": GROUPS, "do_rotary": 1, "scale": SIZE**-0.5}
        given = [q, k, v, *past[i], last, total, cos, sin]
        w.nodes.append(
            helper.make_node("GroupQueryAttention", given, made, f"attention_{i}", domain=MICROSOFT, **heads)
        )
        for name in made[1:]:
            w.outputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, (1, GROUPS, "total", SIZE)))
        x = op("Add", x, w.product(made[0], HEADS * SIZE, HIDDEN))
        n = w.norm(x, HIDDEN)
        gate = w.product(n, HIDDEN, FFN)
        inner = op("Mul", op("Mul", gate, op("Sigmoid", gate)), w.product(n, HIDDEN, FFN))
        x = op("Add", x, w.product(inner, FFN, HIDDEN))
    w.output(w.product(w.norm(x, HIDDEN), HIDDEN, vocabulary), "logits", (1, "tokens", vocabulary))
    return w.model()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("output", type=Path)
    parser.add_argument("--layers", type=int, default=LAYERS)
    arguments = parser.parse_args()
    onnx.save(qwen3_int4(arguments.layers), arguments.output)


if __name__ == "__main__":
    main()
