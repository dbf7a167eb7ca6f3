"""A folder of onnxruntime-genai before and after fusing: which tokens it generates, and where its norms run.

    python -m benchmarks.genai            # needs onnxruntime-genai; `make pipelines` installs it

The decoder is made here: two layers with a cache, under GenAI's names, its norms once written out, as an exporter
leaves them, and once as GenAI's own model builder writes them (`SimplifiedLayerNormalization`,
`SkipSimplifiedLayerNormalization`). Each is run as it is, fused without the library, and fused with it: named as
`custom_ops_library` in `genai_config.json`. The tokens have to be the same.
"""

from __future__ import annotations

import collections
import dataclasses
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import rmsnorm_deploy
from rmsnorm_deploy.op import Op

VOCABULARY, WIDTH, HEADS, LAYERS = 97, 32, 4, 2
PROMPT = (3, 14, 15, 92, 65)
TOKENS = 24
"""Generated, greedily."""
NORMS = 2 * LAYERS + 1


class _Decoder:
    """Builds the graph node by node."""

    def __init__(self, *, contrib: bool) -> None:
        self.contrib = contrib
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[TensorProto] = []
        self._random = np.random.default_rng(0)

    def op(self, op_type: str, *inputs: str, domain: str = "", outputs: int = 1, **attributes: Any) -> Any:
        names = [f"{op_type}_{len(self.nodes)}_{i}" for i in range(outputs)]
        name = f"node_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op_type, list(inputs), names, name=name, domain=domain, **attributes))
        return names if outputs > 1 else names[0]

    def constant(self, value: Any, dtype: Any = np.int64) -> str:
        name = f"constant_{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(value, dtype), name))
        return name

    def weight(self, *shape: int) -> str:
        return self.constant(self._random.standard_normal(shape) / np.sqrt(shape[0]), np.float32)

    def linear(self, x: str, size: int, out: int) -> str:
        return str(self.op("MatMul", x, self.weight(size, out)))

    def norm(self, x: str, residual: str | None = None) -> tuple[str, str]:
        """The norm of x, or of x + residual; and that sum."""
        scale = self.constant(1 + 0.1 * self._random.standard_normal(WIDTH), np.float32)
        if self.contrib and residual is not None:
            skip = "SkipSimplifiedLayerNormalization"
            y, _, _, total = self.op(skip, x, residual, scale, domain="com.microsoft", outputs=4, epsilon=1e-6)
            return y, total
        if self.contrib:
            return self.op("SimplifiedLayerNormalization", x, scale, epsilon=1e-6, axis=-1, stash_type=1), x
        total = x if residual is None else self.op("Add", x, residual)
        square = self.op("Pow", total, self.constant(2.0, np.float32))
        mean = self.op("ReduceMean", square, axes=[-1], keepdims=1)
        root = self.op("Sqrt", self.op("Add", mean, self.constant(1e-6, np.float32)))
        return self.op("Mul", scale, self.op("Div", total, root)), total

    def heads(self, x: str) -> str:
        split = self.op("Reshape", x, self.constant([0, 0, HEADS, WIDTH // HEADS]))
        return str(self.op("Transpose", split, perm=[0, 2, 1, 3]))

    def attention(self, x: str, layer: int) -> str:
        q, k, v = (self.heads(self.linear(x, WIDTH, WIDTH)) for _ in range(3))
        cache = []
        for name, new in (("key", k), ("value", v)):
            whole = self.op("Concat", f"past_key_values.{layer}.{name}", new, axis=2)
            self.nodes.append(helper.make_node("Identity", [whole], [f"present.{layer}.{name}"]))
            cache.append(whole)
        scores = self.op("MatMul", q, self.op("Transpose", cache[0], perm=[0, 1, 3, 2]))
        scores = self.op("Mul", scores, self.constant((WIDTH // HEADS) ** -0.5, np.float32))
        length = [self.op("Gather", self.op("Shape", t), self.constant(2), axis=0) for t in (cache[0], q)]
        columns = self.op("Range", self.constant(0), length[0], self.constant(1))
        rows = self.op("Range", self.op("Sub", length[0], length[1]), length[0], self.constant(1))
        seen = self.op("LessOrEqual", columns, self.op("Unsqueeze", rows, self.constant([1])))
        masked = self.op("Where", seen, scores, self.constant(-1e9, np.float32))
        mixed = self.op("MatMul", self.op("Softmax", masked, axis=-1), cache[1])
        joined = self.op("Reshape", self.op("Transpose", mixed, perm=[0, 2, 1, 3]), self.constant([0, 0, WIDTH]))
        return self.linear(joined, WIDTH, WIDTH)

    def model(self) -> onnx.ModelProto:
        x = self.op("Gather", self.weight(VOCABULARY, WIDTH), "input_ids", axis=0)
        residual: str | None = None
        for layer in range(LAYERS):
            y, total = self.norm(x, residual)
            y, total = self.norm(self.attention(y, layer), total)
            gate = self.linear(y, WIDTH, 2 * WIDTH)
            x = self.linear(self.op("Mul", gate, self.op("Sigmoid", gate)), 2 * WIDTH, WIDTH)
            residual = total
        y, _ = self.norm(x, residual)
        self.nodes.append(helper.make_node("MatMul", [y, self.weight(WIDTH, VOCABULARY)], ["logits"]))
        ids = [helper.make_tensor_value_info(n, TensorProto.INT64, ["b", s]) for n, s in _TOKENS]
        cache = [(f"{layer}.{part}") for layer in range(LAYERS) for part in ("key", "value")]
        inputs = [*ids, *(_cache(f"past_key_values.{name}", "past") for name in cache)]
        logits = helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["b", "s", VOCABULARY])
        outputs = [logits, *(_cache(f"present.{name}", "total") for name in cache)]
        graph = helper.make_graph(self.nodes, "decoder", inputs, outputs, self.weights)
        domains = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(graph, opset_imports=domains, ir_version=9)


_TOKENS = (("input_ids", "s"), ("attention_mask", "total"))


def _cache(name: str, length: str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, ["b", HEADS, length, WIDTH // HEADS])


def decoder(*, contrib: bool) -> onnx.ModelProto:
    """The decoder, with norms as GenAI's model builder writes them (``contrib``) or as an exporter does."""
    return _Decoder(contrib=contrib).model()


def configuration(library: Path | None = None, profile: Path | None = None) -> dict[str, Any]:
    """What stands in ``genai_config.json``; ``library`` is what a user adds for this project's kernels."""
    options: dict[str, Any] = {"log_id": "onnxruntime-genai", "provider_options": []}
    if library is not None:
        options["custom_ops_library"] = str(library)
    if profile is not None:
        options["enable_profiling"] = str(profile)
    names = {"key": "past_key_values.%d.key", "value": "past_key_values.%d.value"}
    return {
        "model": {
            "type": "llama",
            "vocab_size": VOCABULARY,
            "context_length": 128,
            "bos_token_id": 1,
            "eos_token_id": VOCABULARY - 1,
            "pad_token_id": 0,
            "decoder": {
                "filename": "model.onnx",
                "session_options": options,
                "head_size": WIDTH // HEADS,
                "hidden_size": WIDTH,
                "num_attention_heads": HEADS,
                "num_key_value_heads": HEADS,
                "num_hidden_layers": LAYERS,
                "inputs": {
                    "input_ids": "input_ids",
                    "attention_mask": "attention_mask",
                    "past_key_names": names["key"],
                    "past_value_names": names["value"],
                },
                "outputs": {
                    "logits": "logits",
                    "present_key_names": "present.%d.key",
                    "present_value_names": "present.%d.value",
                },
            },
        },
        "search": {"do_sample": False, "max_length": 128, "past_present_share_buffer": False},
    }


@dataclasses.dataclass(frozen=True)
class Generated:
    """What a folder generated.

    Attributes:
        tokens: those after the prompt.
        kernels: how many norms ran in the library's kernels, in each step.
    """

    tokens: tuple[int, ...]
    kernels: float


def generated(model: Path, library: Path | None = None) -> Generated:
    """Generate tokens from a model, in a folder as GenAI wants it.

    Args:
        model: the file.
        library: named in the folder's configuration; None is none.
    """
    import onnxruntime_genai as genai

    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        shutil.copy(model, folder / "model.onnx")
        profile = folder / "profile"
        (folder / "genai_config.json").write_text(json.dumps(configuration(library, profile)))
        loaded = genai.Model(str(folder))
        parameters = genai.GeneratorParams(loaded)
        parameters.set_search_options(max_length=len(PROMPT) + TOKENS)
        generator = genai.Generator(loaded, parameters)
        generator.append_tokens(list(PROMPT))
        for _ in range(TOKENS):
            generator.generate_next_token()
        tokens = tuple(int(t) for t in generator.get_sequence(0))[len(PROMPT) :]
        del generator, parameters, loaded  # the profile is complete when the session is gone
        ran: collections.Counter[str] = collections.Counter()
        for file in folder.glob("profile*"):
            for event in json.loads(file.read_text()):
                if event["name"].endswith("_kernel_time"):
                    ran[event["args"]["op_name"]] += 1
        return Generated(tokens, sum(ran[op.value] for op in Op) / TOKENS)


def compared(folder: Path, *, contrib: bool) -> dict[str, Generated]:
    """The decoder as it is, fused, and fused with the library.

    Args:
        folder: for files.
        contrib: see :func:`decoder`.
    """
    original, output = folder / "original.onnx", folder / "fused.onnx"
    onnx.save(decoder(contrib=contrib), original)
    fused, _ = rmsnorm_deploy.fuse(original)
    rmsnorm_deploy.save(fused, output, overwrite=True)
    return {
        "as it is": generated(original),
        "fused": generated(output),
        "fused, `custom_ops_library`": generated(output, rmsnorm_deploy.library_path()),
    }


def main() -> int:
    """Run both decoders and print a table."""
    print("| GenAI folder | same tokens | norms in the library's kernels |\n|---|---|---|")
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        for contrib in (False, True):
            what = "as GenAI's builder writes them" if contrib else "written out"
            found = compared(Path(folder), contrib=contrib)
            wanted = found["as it is"].tokens
            for label, result in found.items():
                same = result.tokens == wanted
                failed += not same
                print(f"| norms {what}; {label} | {'yes' if same else 'NO'} | {result.kernels:g} of {NORMS} |")
    return failed


if __name__ == "__main__":
    raise SystemExit(main())
