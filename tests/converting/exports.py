"""Tiny exports of transformers' models: ``python -m tests.converting.exports FOLDER [NAME...]``.

Needs PyTorch and transformers. Each model has random weights with means far from zero, and is written by both
exporters, as ``NAME__ts.onnx`` and ``NAME__dynamo.onnx``. ``RMSNORM_DEPLOY_EXPORTS=FOLDER`` has the tests convert them.
"""

import argparse
import sys
from pathlib import Path

import torch
import transformers as t

SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "attn_implementation": "eager"}
WORDS = {"vocab_size": 99, "max_position_embeddings": 32, "use_cache": False}
PICTURES = {"image_size": 32, "patch_size": 8}
SEQ2SEQ = {
    **dict.fromkeys(("encoder_layers", "decoder_layers"), 2),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 4),
    **dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim"), 64),
    **{"vocab_size": 99, "d_model": 32, "use_cache": False, "attn_implementation": "eager"},
}


def text(model, config, **sizes):
    ids = torch.arange(1, 15).reshape(2, 7)
    return model(config(**sizes)), {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def picture(model, config, **sizes):
    return model(config(**sizes)), {"pixel_values": torch.randn(2, 3, 32, 32)}


def whisper():
    return t.WhisperModel(
        t.WhisperConfig(num_mel_bins=16, max_source_positions=30, max_target_positions=32, **SEQ2SEQ, **TOKENS)
    )


def whisper_decoder():
    _, given = text(lambda _: None, dict)
    return whisper().decoder, {**given, "encoder_hidden_states": torch.randn(2, 30, 32)}


TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
GPT2 = {"vocab_size": 99, "n_positions": 32, "n_embd": 32, "n_layer": 2, "n_head": 4, "use_cache": False}
CLIP = {**SMALL, "intermediate_size": 64, "projection_dim": 24}
MODELS = {
    "gpt2": lambda: text(t.GPT2LMHeadModel, t.GPT2Config, attn_implementation="eager", **GPT2),
    "opt": lambda: text(t.OPTForCausalLM, t.OPTConfig, ffn_dim=64, word_embed_proj_dim=32, **SMALL, **WORDS),
    "vit": lambda: picture(t.ViTModel, t.ViTConfig, intermediate_size=64, **SMALL, **PICTURES),
    "clip_text": lambda: text(
        t.CLIPTextModelWithProjection,
        t.CLIPTextConfig,
        **CLIP,
        **{"vocab_size": 99, "max_position_embeddings": 32, "bos_token_id": 1, "eos_token_id": 14},
    ),
    "clip_vision": lambda: picture(t.CLIPVisionModelWithProjection, t.CLIPVisionConfig, **CLIP, **PICTURES),
    "dinov2": lambda: picture(t.Dinov2Model, t.Dinov2Config, **SMALL, **PICTURES),
    "whisper_encoder": lambda: (whisper().encoder, {"input_features": torch.randn(2, 16, 60)}),
    "whisper_decoder": whisper_decoder,
    "phi": lambda: text(t.PhiForCausalLM, t.PhiConfig, intermediate_size=64, **SMALL, **WORDS),
    "neox": lambda: text(t.GPTNeoXForCausalLM, t.GPTNeoXConfig, intermediate_size=64, **SMALL, **WORDS),
    "falcon": lambda: text(t.FalconForCausalLM, t.FalconConfig, **SMALL, vocab_size=99, use_cache=False),
    "stablelm": lambda: text(
        t.StableLmForCausalLM, t.StableLmConfig, intermediate_size=64, num_key_value_heads=4, **SMALL, **WORDS
    ),
    "bert": lambda: text(t.BertModel, t.BertConfig, intermediate_size=64, **SMALL, **WORDS),
    "t5": lambda: text(t.T5EncoderModel, t.T5Config, vocab_size=99, d_model=32, d_kv=8, d_ff=64, num_layers=2),
}


class First(torch.nn.Module):
    """The first output of a model, of inputs in a fixed order."""

    def __init__(self, model, names):
        super().__init__()
        self.model, self.names = model, names

    def forward(self, *given):
        found = self.model(**dict(zip(self.names, given, strict=True)))
        return found.image_embeds if "image_embeds" in found else next(iter(found.values()))


def randomised(model):
    """Weights with means far from zero; scales of norms around one, as they are."""
    seen = set()
    with torch.no_grad():
        for name, p in model.named_parameters():
            if p.data_ptr() in seen:
                continue  # a tied one
            seen.add(p.data_ptr())
            scale = ("norm" in name.lower() or "ln_" in name) and name.endswith("weight")
            spread, mean = (0.3, 1.0) if scale else (0.5, 0.5) if p.dim() < 2 else (0.15, 0.1)
            p.copy_(torch.randn_like(p) * spread + mean)
    return model.eval()


def main(folder, names):
    for name in names or MODELS:
        torch.manual_seed(0)
        model, given = MODELS[name]()
        wrapped = First(randomised(model), list(given)).eval()
        for kind in ("ts", "dynamo"):
            file = folder / f"{name}__{kind}.onnx"
            options = {"opset_version": 17, "dynamo": False, "dynamic_axes": {n: {0: "batch"} for n in given}}
            if kind == "dynamo":
                options = {"opset_version": 18, "dynamo": True, "external_data": False}
            try:
                torch.onnx.export(wrapped, tuple(given.values()), str(file), input_names=list(given), **options)
            except Exception as error:  # an exporter cannot do every model, and the others are wanted
                sys.stderr.write(f"{file.name}: {type(error).__name__}\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", help=", ".join(MODELS))
    main(**vars(parser.parse_args()))
