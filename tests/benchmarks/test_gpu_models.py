"""The benchmark of whole models on GPUs: what it says without one, and all of it on a CPU with a small model."""

import json
import math
import shutil

import numpy as np
import pytest

pytest.importorskip("tvm.relax", reason="apache-tvm is not installed: pip install '.[tvm]'")

from benchmarks import tvm_models
from benchmarks.gpu import models
from benchmarks.models.writer import Writer


@pytest.mark.skipif(shutil.which("nvidia-smi") is not None, reason="there may be a GPU")
def test_without_a_gpu(capsys):
    assert models.main([]) == models.MISSING
    assert "no runtime for target 'cuda'" in capsys.readouterr().err


def product(dtype):
    w = Writer(dtype)
    w.output(w.op("MatMul", w.input("x", (3, 8)), w.weight(8, 4)), "y", (3, 4))
    return w.model()


def test_a_small_model_on_a_cpu(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(tvm_models, "models", lambda dtype, _: {"product": (lambda: product(dtype), ["product"])})
    monkeypatch.setattr(tvm_models, "feeds_of", lambda _, dtype: {"x": np.ones((3, 8), dtype)})
    given = ["--target", "llvm", "--dtype", "float32", "--seconds", "0", "--json", str(tmp_path / "records.json")]
    assert models.main(given) == 0
    first, second = json.loads((tmp_path / "records.json").read_text())
    assert "openblas" in first["products"]
    assert second["products"] == "none: --blas none"
    assert all(r["ms"] > 0 and r["difference"] < 1e-4 for r in (first, second))
    assert capsys.readouterr().out.count("product float32") == 2


def test_what_is_no_number_is_infinitely_far_off():
    right, wrong = np.ones(2, np.float32), np.array([1, np.nan], np.float32)
    assert models.difference([right, right], [right, right]) == 0
    assert models.difference([right, wrong], [right, right]) == math.inf
