"""A fused decoder behind optimum's ORTModelForCausalLM: the library goes in with the session options.

python samples/optimum_session.py

It exports a small Llama with random weights, fuses it in its folder, and generates with both.
"""

import sys
import tempfile
from pathlib import Path

import onnxruntime
import torch
from optimum.exporters.onnx import onnx_export_from_model
from optimum.onnxruntime import ORTModelForCausalLM
from transformers import LlamaConfig, LlamaForCausalLM

import rmsnorm_deploy


def small_llama():
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    return LlamaForCausalLM(config).eval()


def main():
    prompt = torch.tensor([[1, 5, 9, 13]])
    with tempfile.TemporaryDirectory() as folder:
        onnx_export_from_model(small_llama(), Path(folder), task="text-generation-with-past", do_validation=False)
        options = {"max_new_tokens": 12, "do_sample": False, "use_cache": True}
        before = ORTModelForCausalLM.from_pretrained(folder).generate(prompt, **options)

        path = Path(folder) / "model.onnx"
        fused, report = rmsnorm_deploy.fuse(path)
        print(report.summary())
        rmsnorm_deploy.save(fused, path.with_name("fused.onnx"), source=path)

        session_options = onnxruntime.SessionOptions()
        rmsnorm_deploy.register(session_options)
        model = ORTModelForCausalLM.from_pretrained(folder, file_name="fused.onnx", session_options=session_options)
        after = model.generate(prompt, **options)
    print(after[0].tolist())
    print("the same tokens" if torch.equal(before, after) else f"other tokens than before: {before[0].tolist()}")
    return 0 if torch.equal(before, after) else 1


if __name__ == "__main__":
    sys.exit(main())
