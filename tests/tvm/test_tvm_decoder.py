"""A decoder writes token after token from a cache that it is given back: as in onnxruntime, and nothing is copied."""

import runpy
from pathlib import Path

import numpy as np
import onnx
import pytest

pytest.importorskip("tvm.relax", reason="apache-tvm is not installed: pip install '.[tvm]'")
pytest.importorskip("onnxruntime")

import onnxruntime as ort

from rmsnorm_deploy import tvm

ROOT = Path(__file__).parents[2]
SAMPLE = runpy.run_path(str(ROOT / "samples" / "tvm_decoder.py"))
STEPS = 32


def compiled(path, folder):
    tvm.compile(path, output=folder)
    return tvm.load(folder)


def in_onnxruntime(path):
    session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [o.name for o in session.get_outputs()]
    return lambda feeds: dict(zip(names, session.run(None, feeds), strict=True))


@pytest.fixture(scope="module")
def sample(tmp_path_factory):
    """The sample's model and its compilation, by type and opset."""
    made = {}

    def of(dtype, opset):
        if (dtype, opset) not in made:
            folder = tmp_path_factory.mktemp("sample")
            onnx.save(SAMPLE["Decoder"](dtype, opset).model(), folder / "m.onnx")
            made[dtype, opset] = folder / "m.onnx", compiled(folder / "m.onnx", folder / "c")
        return made[dtype, opset]

    return of


@pytest.mark.parametrize("opset", [18, 23])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_the_sample_writes_the_tokens_that_onnxruntime_writes(dtype, opset, sample):
    path, decoder = sample(dtype, opset)
    prompt = np.array([[3, 1, 4, 1], [5, 9, 2, 6]])
    wanted = SAMPLE["greedy"](in_onnxruntime(path), prompt, STEPS, dtype)
    assert len(set(wanted.ravel())) > 6
    for call in (decoder, decoder.tensors):
        np.testing.assert_array_equal(SAMPLE["greedy"](call, prompt, STEPS, dtype), wanted)


def test_a_cache_goes_from_call_to_call_without_a_copy(sample, monkeypatch):
    _, decoder = sample("float32", 23)
    run, given = decoder.run_tensors, []

    def watched(*inputs):
        results = run(*inputs)
        given.append([[tensor.data_ptr() for tensor in tensors] for tensors in (inputs[2:], results[:-1])])
        return results

    monkeypatch.setattr(decoder, "run_tensors", watched)
    names = [i["name"] for i in decoder.description["inputs"]], [o["name"] for o in decoder.description["outputs"]]
    assert names[0][2:] == [n.replace("present", "past") for n in names[1][:-1]]
    SAMPLE["greedy"](decoder.tensors, np.array([[3, 1, 4]]), 5, "float32")
    assert [g[0] for g in given[1:]] == [g[1] for g in given[:-1]]
    assert all(past != present for past, present in given)


EXPORTS = sorted(path.stem for path in (Path(__file__).parent / "data").glob("*_past_*.onnx"))
"""Of both exporters: names with ``script`` are TorchScript's."""


@pytest.mark.parametrize("name", EXPORTS)
def test_exports_write_the_tokens_that_onnxruntime_writes(name, tmp_path):
    path = Path(__file__).parent / "data" / f"{name}.onnx"
    decoder = compiled(path, tmp_path / "c")
    assert not [n for n in decoder.description["not_empty"] if "past" in n]
    wanted, found = (written(call, decoder.description) for call in (in_onnxruntime(path), decoder.tensors))
    bar = 3e-2 if "float16" in name else 1e-5
    if "float16" in name:
        best = np.sort(wanted[1], -1)
        assert (best[..., -1] - best[..., -2]).min() > bar  # or rounding would choose
    assert max(abs(a - b).max() for a, b in zip(wanted[1], found[1], strict=True)) <= bar
    np.testing.assert_array_equal(found[0], wanted[0])


def written(call, description):
    """The likeliest tokens, and the logits that they were taken for."""
    inputs, outputs = ([v["name"] for v in description[kind]] for kind in ("inputs", "outputs"))
    dtype = description["inputs"][3]["type"]
    cache = {name: np.zeros((2, 2, 0, 4), dtype) for name in inputs[3:]}
    tokens, total, made, scores = np.array([[17, 10, 4], [21, 2, 12]]), 0, [], []
    for _ in range(STEPS):
        total += tokens.shape[1]
        feeds = {"input_ids": tokens, "attention_mask": np.ones((2, total), np.int64)}
        feeds["position_ids"] = np.tile(np.arange(total - tokens.shape[1], total), (2, 1))
        given = call(feeds | cache)
        scores.append(np.from_dlpack(given[outputs[0]])[:, -1].astype(float))
        tokens = scores[-1].argmax(-1)[:, None]
        cache = dict(zip(cache, (given[n] for n in outputs[1:]), strict=True))
        made.append(tokens)
    return np.concatenate(made, 1), scores
