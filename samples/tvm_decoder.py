"""Compile a small decoder with TVM and let it write tokens; its cache goes from each call to the next without a copy.

python samples/tvm_decoder.py [--type float16] [--opset 18] [--steps 32]

The model is made here, with random weights: two layers of RMSNorm, rotary embedding, grouped-query attention and
SwiGLU. Where onnxruntime is installed it writes the same tokens from the same file.
"""

import argparse
import importlib.util
import tempfile
from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper

from rmsnorm_deploy import tvm

LAYERS, HIDDEN, FFN, HEADS, GROUPS, SIZE, VOCABULARY, LONGEST = 2, 64, 128, 4, 2, 16, 200, 256


class Decoder:
    """The graph, node by node, as exporters write it: any batch, number of tokens, and number of tokens before them."""

    def __init__(self, dtype, opset):
        self.dtype, self.opset = np.dtype(dtype), opset
        self.nodes, self.weights, self.inputs, self.outputs = [], [], [], []
        self.random = np.random.default_rng(3)

    def op(self, kind, *inputs, outputs=None, **attributes):
        outputs = outputs or [f"{kind}_{len(self.nodes)}"]
        self.nodes.append(helper.make_node(kind, inputs, outputs, name=f"node_{len(self.nodes)}", **attributes))
        return outputs[0]

    def constant(self, value, dtype=None):
        name = f"constant_{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(value, dtype or self.dtype), name))
        return name

    def linear(self, x, inputs, outputs):
        return self.op("MatMul", x, self.constant(self.random.standard_normal((inputs, outputs)) / np.sqrt(inputs)))

    def value(self, kind, name, shape, dtype=None):
        number = helper.np_dtype_to_tensor_dtype(np.dtype(dtype or self.dtype))
        getattr(self, kind).append(helper.make_tensor_value_info(name, number, shape))
        return name

    def norm(self, x):
        scale = self.constant(self.random.uniform(0.5, 1.5, HIDDEN))
        if self.opset >= 23:
            return self.op("RMSNormalization", x, scale, epsilon=1e-6)
        wide = self.op("Cast", x, to=onnx.TensorProto.FLOAT)
        two, epsilon, axis = (self.constant(*v) for v in ((2, "f4"), (1e-6, "f4"), ([-1], "i8")))
        mean = self.op("ReduceMean", self.op("Pow", wide, two), axis)
        inverse = self.op("Reciprocal", self.op("Sqrt", self.op("Add", mean, epsilon)))
        rounded = self.op("Cast", self.op("Mul", wide, inverse), to=helper.np_dtype_to_tensor_dtype(self.dtype))
        return self.op("Mul", scale, rounded)

    def heads(self, x, count):
        split = self.op("Reshape", x, self.constant([0, 0, count, SIZE], "i8"))
        return self.op("Transpose", split, perm=[0, 2, 1, 3])

    def rotated(self, x, cos, sin, positions):
        if self.opset >= 23:
            return self.op("RotaryEmbedding", x, cos, sin, positions)
        half, axis = self.constant([SIZE // 2], "i8"), self.constant([3], "i8")
        first = self.op("Slice", x, self.constant([0], "i8"), half, axis)
        second = self.op("Slice", x, half, self.constant([SIZE], "i8"), axis)
        one = self.constant([1], "i8")
        tables = [
            self.op("Unsqueeze", self.op("Concat", *[self.op("Gather", t, positions)] * 2, axis=-1), one)
            for t in (cos, sin)
        ]
        turned = self.op("Concat", self.op("Neg", second), first, axis=3)
        return self.op("Add", self.op("Mul", x, tables[0]), self.op("Mul", turned, tables[1]))

    def attention(self, q, k, v, past, present, mask):
        if self.opset >= 23:
            made = [f"attended_{present[0]}", *present]
            return self.op("Attention", q, k, v, mask, *past, outputs=made)
        k, v = (
            self.op("Concat", old, new, outputs=[n], axis=2) for old, new, n in zip(past, (k, v), present, strict=True)
        )
        two, many = self.constant([2], "i8"), self.constant([1, 1, HEADS // GROUPS, 1, 1], "i8")
        all_heads = self.constant([0, HEADS, -1, SIZE], "i8")
        # the keys and values of a group are those of several heads
        k, v = (self.op("Reshape", self.op("Expand", self.op("Unsqueeze", t, two), many), all_heads) for t in (k, v))
        scores = self.op("MatMul", q, self.op("Transpose", k, perm=[0, 1, 3, 2]))
        scores = self.op("Mul", scores, self.constant(SIZE**-0.5))
        scores = self.op("Where", mask, scores, self.constant(-np.inf))
        return self.op("MatMul", self.op("Softmax", scores, axis=-1), v)

    def model(self):
        tokens = self.value("inputs", "input_ids", ("batch", "tokens"), "i8")
        positions = self.value("inputs", "position_ids", ("batch", "tokens"), "i8")
        x = self.op("Gather", self.constant(self.random.standard_normal((VOCABULARY, HIDDEN))), tokens)
        angles = np.outer(np.arange(LONGEST), 1e4 ** (-np.arange(0, SIZE, 2) / SIZE))
        cos, sin = self.constant(np.cos(angles)), self.constant(np.sin(angles))
        shape = ("batch", GROUPS, "past", SIZE)
        past = [[self.value("inputs", f"past_{i}_{kind}", shape) for kind in "kv"] for i in range(LAYERS)]
        # a token sees those before it: their number is the past's and its own
        zero, one, two = (self.constant(v, "i8") for v in (0, 1, 2))
        before = self.op("Gather", self.op("Shape", past[0][0]), two)
        total = self.op("Add", before, self.op("Gather", self.op("Shape", tokens), one))
        axes = self.constant([1, 3], "i8")
        mask = self.op("LessOrEqual", self.op("Range", zero, total, one), self.op("Unsqueeze", positions, axes))
        for i in range(LAYERS):
            n = self.norm(x)
            q, k = (
                self.rotated(self.heads(self.linear(n, HIDDEN, count * SIZE), count), cos, sin, positions)
                for count in (HEADS, GROUPS)
            )
            v = self.heads(self.linear(n, HIDDEN, GROUPS * SIZE), GROUPS)
            present = [f"present_{i}_{kind}" for kind in "kv"]
            y = self.attention(q, k, v, past[i], present, mask)
            for name in present:
                self.value("outputs", name, ("batch", GROUPS, "past + tokens", SIZE))
            flat = self.op("Transpose", y, perm=[0, 2, 1, 3])
            y = self.op("Reshape", flat, self.constant([0, 0, HEADS * SIZE], "i8"))
            x = self.op("Add", x, self.linear(y, HEADS * SIZE, HIDDEN))
            n = self.norm(x)
            gate = self.linear(n, HIDDEN, FFN)
            gate = self.op("Mul", gate, self.op("Sigmoid", gate))
            x = self.op("Add", x, self.linear(self.op("Mul", gate, self.linear(n, HIDDEN, FFN)), FFN, HIDDEN))
        logits = self.linear(self.norm(x), HIDDEN, VOCABULARY)
        self.op("Identity", logits, outputs=["logits"])
        self.value("outputs", "logits", ("batch", "tokens", VOCABULARY))
        graph = helper.make_graph(self.nodes, "decoder", self.inputs, self.outputs, self.weights)
        ir_version = 11 if self.opset >= 23 else 9
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=ir_version)


def greedy(call, prompt, steps, dtype):
    """The likeliest token, ``steps`` times. ``call`` takes and gives values by name, arrays or tensors.

    The first call gets a cache of no tokens, and each further one what the call before it gave.
    """
    batch = len(prompt)
    empty = np.zeros((batch, GROUPS, 0, SIZE), dtype)
    cache = {f"past_{i}_{kind}": empty for i in range(LAYERS) for kind in "kv"}
    tokens, first, written = prompt, 0, []
    for _ in range(steps):
        positions = np.tile(np.arange(first, first + tokens.shape[1]), (batch, 1))
        given = call({"input_ids": tokens, "position_ids": positions, **cache})
        first += tokens.shape[1]
        tokens = np.from_dlpack(given["logits"])[:, -1].argmax(-1)[:, None]
        cache = {name: given[name.replace("past", "present")] for name in cache}
        written.append(tokens)
    return np.concatenate(written, 1)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--type", choices=["float32", "float16"], default="float32")
    parser.add_argument("--opset", type=int, choices=[18, 23], default=23)
    parser.add_argument("--steps", type=int, default=32)
    arguments = parser.parse_args()
    prompt = np.arange(10).reshape(2, 5) * 7 % VOCABULARY
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "decoder.onnx"
        onnx.save(Decoder(arguments.type, arguments.opset).model(), path)
        made = tvm.compile(path, output=Path(folder) / "compiled")
        print(f"{made.norms} norms, {made.seconds:.1f} s")
        decoder = tvm.load(made.path)
        # tensors, and not a call: nothing leaves TVM's memory, and on a GPU nothing leaves the device
        written = greedy(decoder.tensors, prompt, arguments.steps, arguments.type)
        print(written)
        if importlib.util.find_spec("onnxruntime") is None:
            return
        import onnxruntime

        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        names = [o.name for o in session.get_outputs()]
        wanted = greedy(
            lambda feeds: dict(zip(names, session.run(None, feeds), strict=True)),
            prompt,
            arguments.steps,
            arguments.type,
        )
        if not np.array_equal(written, wanted):
            raise SystemExit(f"onnxruntime writes other tokens:\n{wanted}")
        print("onnxruntime writes the same tokens")


if __name__ == "__main__":
    main()
