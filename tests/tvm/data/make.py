"""Makes the dynamic exports in this folder; they are kept, since the suite has no PyTorch.

    pip install torch==2.13.0 transformers==5.24.0 onnxscript
    python tests/tvm/data/make.py

Weights are random; what the exporter says about where each node comes from is removed, to keep the files small.
"""

import io
from pathlib import Path

import onnx
import torch
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

HERE = Path(__file__).parent
SIZES = {
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 4,
    "vocab_size": 24,
    "max_position_embeddings": 64,
    "tie_word_embeddings": True,
}
ANY = torch.export.Dim.DYNAMIC


class Plain(torch.nn.Module):
    """The logits of a sequence."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, input_ids):
        return self.model(input_ids=input_ids, use_cache=False).logits


class Cached(Plain):
    """The logits of what follows a sequence whose keys and values are there already, and all keys and values."""

    def forward(self, input_ids, attention_mask, position_ids, past):
        cache = DynamicCache()
        for i in range(0, len(past), 2):
            cache.update(past[i], past[i + 1], i // 2)
        made = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            past_key_values=cache,
            use_cache=True,
        )
        kept = [t for layer in made.past_key_values.layers for t in (layer.keys, layer.values)]
        return (made.logits, *kept)


class Scripted(Cached):
    """The same for the exporter of TorchScript, which takes no lists."""

    def forward(self, input_ids, attention_mask, position_ids, *past):
        return super().forward(input_ids, attention_mask, position_ids, list(past))


def write(name, module, arguments, dynamic, opset):
    program = torch.onnx.export(
        module.eval(), arguments, dynamo=True, dynamic_shapes=dynamic, opset_version=opset, verbose=False
    )
    keep(program.model_proto, name)


def write_script(name, module, arguments, opset):
    *rest, past = arguments
    kinds = [f"{i}_{kind}" for i in range(len(past) // 2) for kind in ("key", "value")]
    sizes = {"input_ids": "sequence", "attention_mask": "total", "position_ids": "sequence"}
    axes = {name: {0: "batch", 1: length} for name, length in sizes.items()}
    axes |= {f"past_{kind}": {0: "batch", 2: "past"} for kind in kinds}
    axes |= {f"present_{kind}": {0: "batch", 2: "total"} for kind in kinds}
    inputs, outputs = [*sizes, *(f"past_{k}" for k in kinds)], ["logits", *(f"present_{k}" for k in kinds)]
    made = io.BytesIO()
    torch.onnx.export(
        module.eval(),
        (*rest, *past),
        made,
        dynamo=False,
        input_names=inputs,
        output_names=outputs,
        dynamic_axes=axes,
        opset_version=opset,
    )
    keep(onnx.load_from_string(made.getvalue()), name)


def keep(model, name):
    for node in model.graph.node:
        node.ClearField("metadata_props")
        node.ClearField("doc_string")
    for value in (*model.graph.input, *model.graph.output, *model.graph.initializer):
        value.ClearField("metadata_props")
    for message in (model, model.graph):
        message.ClearField("metadata_props")
    del model.graph.value_info[:]
    onnx.save(model, HERE / name)


def main():
    torch.manual_seed(0)
    ids = torch.randint(0, SIZES["vocab_size"], (2, 7))
    qwen3 = Qwen3ForCausalLM(Qwen3Config(**SIZES))
    write("qwen3_op23.onnx", Plain(qwen3), (ids,), ({0: ANY, 1: ANY},), 23)
    llama = LlamaForCausalLM(LlamaConfig(**SIZES))
    past = [torch.randn(2, SIZES["num_key_value_heads"], 5, SIZES["head_dim"]) for _ in range(4)]
    arguments = (ids, torch.ones(2, 12, dtype=torch.int64), torch.arange(5, 12).expand(2, 7).contiguous(), past)
    both = {0: ANY, 1: ANY}
    dynamic = (both, both, both, [{0: ANY, 2: ANY}] * 4)
    write("llama_past_op18.onnx", Cached(llama), arguments, dynamic, 18)
    write("qwen3_past_op23.onnx", Cached(qwen3), arguments, dynamic, 23)
    write_script("llama_past_script_op18.onnx", Scripted(llama), arguments, 18)
    half = (*arguments[:3], [t.half() for t in past])
    # far apart, so that no two logits are equal in float16
    qwen3 = Qwen3ForCausalLM(Qwen3Config(**SIZES, initializer_range=0.3)).half()
    llama = LlamaForCausalLM(LlamaConfig(**SIZES, initializer_range=0.3)).half()
    write("qwen3_past_op23_float16.onnx", Cached(qwen3), half, dynamic, 23)
    write_script("llama_past_script_op18_float16.onnx", Scripted(llama), half, 18)


if __name__ == "__main__":
    main()
