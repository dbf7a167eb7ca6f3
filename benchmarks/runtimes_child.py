"""Models run in one runtime, inside the environment that :mod:`benchmarks.runtimes` makes; nothing of ours is imported.

Reads lines of JSON with ``model`` (a path) and ``folder`` (``NAME.npy`` for each input, ``outputs.json``) and answers
each with a line: the outputs' worst error, relative to their largest value, the layers that are norms, or the error.
"""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

Feeds = dict[str, Any]
Answer = tuple[list[Any] | None, str]
"""The outputs, None where a tool only converts; and what it says of norms."""


def onnxruntime(path: Path, feeds: Feeds) -> Answer:
    import onnx
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 4
    with tempfile.TemporaryDirectory() as folder:
        options.optimized_model_filepath = f"{folder}/optimised.onnx"
        session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        nodes = onnx.load(f"{folder}/optimised.onnx").graph.node
    kernels = sum(n.op_type.endswith(("SimplifiedLayerNormalization", "RMSNormalization")) for n in nodes)
    return session.run(None, feeds), f"{kernels} norms"


def reference_evaluator(path: Path, feeds: Feeds) -> Answer:
    from onnx.reference import ReferenceEvaluator

    return ReferenceEvaluator(str(path)).run(None, feeds), ""


def openvino(path: Path, feeds: Feeds) -> Answer:
    import openvino as ov

    core = ov.Core()
    compiled = core.compile_model(core.read_model(path), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    kernels = sum(n.get_rt_info()["layerType"].value == "RMS" for n in compiled.get_runtime_model().get_ops())
    results = compiled(feeds)
    return [results[o] for o in compiled.outputs], f"{kernels} norms"


def tract(path: Path, feeds: Feeds) -> Answer:
    import tract as t

    model = t.onnx().load(str(path))
    names = [model.input_name(i) for i in range(model.input_count())]
    for i, name in enumerate(names):
        model.set_input_fact(i, f"{','.join(map(str, feeds[name].shape))},{_short(feeds[name])}")
    model.analyse()
    runnable = model.into_model().into_runnable()
    return [o.to_numpy() for o in runnable.run([feeds[name] for name in names])], ""


def _short(array: Any) -> str:
    return f"{array.dtype.kind}{array.dtype.itemsize * 8}"


def iree(path: Path, feeds: Feeds) -> Answer:
    """Imported, compiled for the CPU and run by IREE's own programs."""
    bin_ = Path(sys.executable).parent
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder)
        _call(bin_ / "iree-import-onnx", path, "-o", here / "m.mlir")
        target = ["--iree-hal-target-device=local", "--iree-hal-local-target-device-backends=llvm-cpu"]
        _call(bin_ / "iree-compile", here / "m.mlir", *target, "--iree-llvmcpu-target-cpu=host", "-o", here / "m.vmfb")
        given = []
        for i, array in enumerate(feeds.values()):
            np.save(here / f"{i}.npy", array)
            given.append(f"--input=@{here}/{i}.npy")
        outputs = json.loads((path.parent / "outputs.json").read_text())
        wanted = [f"--output=@{here}/o{i}.npy" for i in range(len(outputs))]
        _call(bin_ / "iree-run-module", f"--module={here}/m.vmfb", "--device=local-task", *given, *wanted)
        return [np.load(here / f"o{i}.npy") for i in range(len(outputs))], ""


def mnn(path: Path, feeds: Feeds) -> Answer:
    import MNN

    names = json.loads((path.parent / "outputs.json").read_text())
    with tempfile.TemporaryDirectory() as folder:
        file = f"{folder}/m.mnn"
        program = Path(sys.executable).parent / "mnnconvert"
        _call(program, "-f", "ONNX", "--modelFile", path, "--MNNModel", file, "--bizCode", "x")
        module = MNN.nn.load_module_from_file(file, list(feeds), names)
        inputs = []
        for array in feeds.values():
            kind = MNN.expr.int if array.dtype.kind == "i" else MNN.expr.float
            value = array.astype(np.int32 if array.dtype.kind == "i" else np.float32)
            var = MNN.expr.placeholder(list(array.shape), MNN.expr.NCHW, kind)
            var.write(value.reshape(-1).tolist())
            inputs.append(var)
        return [np.array(o.read()) for o in module.forward(inputs)], ""


def pnnx(path: Path, feeds: Feeds) -> Answer:
    """Converts only: what it writes runs in PyTorch or ncnn. An operator that it does not know stays under its name."""
    import shutil

    with tempfile.TemporaryDirectory() as folder:
        copy = Path(shutil.copy(path, folder))
        shapes = ",".join(f"[{','.join(map(str, a.shape))}]{_short(a)}" for a in feeds.values())
        _call(Path(sysconfig.get_path("purelib")) / "pnnx" / "pnnx", copy, f"inputshape={shapes}", cwd=folder)
        text = copy.with_suffix(".pnnx.param").read_text()
    if "rmsnorm_deploy" in text or "RMSNorm " in text:
        raise ValueError("our operator stays, which nothing else knows")
    return None, f"{text.count('F.rms_norm') + text.count('nn.RMSNorm')} norms"


def _call(*command: object, cwd: str | None = None) -> None:
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, check=False, cwd=cwd)
    if done.returncode:
        lines = [line for line in (done.stderr + done.stdout).splitlines() if line.strip()]
        wrong = [line for line in lines if "rror" in line or "nsupport" in line] or lines or ["it failed"]
        raise RuntimeError(wrong[-1].strip())


RUNTIMES: dict[str, Callable[[Path, Feeds], Answer]] = {
    "onnxruntime": onnxruntime,
    "onnx reference evaluator": reference_evaluator,
    "OpenVINO": openvino,
    "tract": tract,
    "IREE": iree,
    "MNN": mnn,
    "pnnx": pnnx,
}


def answer(runtime: str, model: Path) -> dict[str, Any]:
    """One model in one runtime."""
    folder = model.parent
    feeds = {p.name.removeprefix("in.").removesuffix(".npy"): np.load(p) for p in sorted(folder.glob("in.*.npy"))}
    try:
        outputs, note = RUNTIMES[runtime](model, feeds)
    except Exception as error:  # whatever a runtime raises
        return {"error": " ".join(f"{type(error).__name__}: {error}".split())[:300]}
    worst = 0.0
    for i, got in enumerate(outputs or []):
        want = np.load(folder / f"out.{i}.npy").astype(np.float64)
        got = np.asarray(got).astype(np.float64).reshape(want.shape)
        worst = max(worst, float(np.abs(got - want).max() / max(np.abs(want).max(), 1e-30)))
    return {"error": "", "worst": worst, "note": note}


if __name__ == "__main__":
    for line in sys.stdin:
        sys.stdout.write("\n@" + json.dumps(answer(sys.argv[1], Path(line.strip()))) + "\n")
        sys.stdout.flush()
