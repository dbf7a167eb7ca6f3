"""Which form of a fused file runs where: every form of sample models in every runtime, against the original's numbers.

    python -m benchmarks.runtimes [--runtime NAME] [--verbose]

It makes an environment of its own in .venvs/runtimes and installs the runtimes there. A runtime that cannot be
installed is left out with a message. Models: the four samples, an AddRMSNorm and a GeneralRMSNorm in float32.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser

import rmsnorm_deploy
from benchmarks.runtimes_child import RUNTIMES
from rmsnorm_deploy.fusing.forms import NAMES
from rmsnorm_deploy.run.inputs import make_inputs

ROOT = Path(__file__).parents[1]
VENV = ROOT / ".venvs" / "runtimes"
PACKAGES = {
    "onnxruntime": ["onnxruntime", "onnx"],
    "onnx reference evaluator": ["onnx", "ml_dtypes"],
    "OpenVINO": ["openvino==2026.4.1"],
    "tract": ["tract==0.23.9"],
    "IREE": ["iree-base-compiler[onnx]==3.13.0", "iree-base-runtime==3.13.0"],
    "MNN": ["MNN==3.6.1"],
    "pnnx": ["--no-deps", "pnnx"],  # it asks for PyTorch, which its converter does not need
}
FORMS = ("original", *NAMES)
LIMITS = {"float32": 1e-3, "float16": 3e-2}
"""Largest error of an output, relative to its largest value: runtimes add up in other orders, and many layers deep."""

RESIDUAL = """<ir_version: 8, opset_import: ["": 17]>
g (float[1, 5, 64] x, float[1, 5, 64] r) => (float[1, 5, 64] y, float[1, 5, 64] s)
<float two = {2.0}, float e = {0.00001}, float[64] w = {WEIGHTS}> {
    s = Add(x, r)  q = Pow(s, two)  m = ReduceMean<axes = [-1]>(q)  i = Add(m, e)  d = Sqrt(i)
    n = Div(s, d)  y = Mul(n, w)
}"""
PARTIAL = """<ir_version: 8, opset_import: ["": 17]>
g (float[1, 5, 64] x) => (float[1, 5, 64] y)
<float two = {2.0}, float e = {0.00001}, float[64] w = {WEIGHTS}, int64[1] z = {0}, int64[1] k = {16},
 int64[1] a = {-1}> {
    p = Slice(x, z, k, a)  q = Pow(p, two)  m = ReduceMean<axes = [-1]>(q)  d = Sqrt(m)  o = Add(d, e)
    n = Div(x, o)  y = Mul(n, w)
}"""


def models() -> dict[str, onnx.ModelProto]:
    """The originals, by name."""
    found = {p.stem: onnx.load(p) for p in sorted((ROOT / "samples" / "models").glob("*.onnx"))}
    for name, text in (("residual_float32", RESIDUAL), ("partial_float32", PARTIAL)):
        weights = ", ".join(f"{1 + i / 64:.4f}" for i in range(64))
        model = onnx.parser.parse_model(text.replace("WEIGHTS", weights))
        for i, node in enumerate(model.graph.node):
            node.name = f"node_{i}"
        found[name] = model
    return found


def write(folder: Path) -> list[tuple[str, str, Path]]:
    """Every form of every model, with inputs and the original's outputs. Returns (model, form, file)."""
    import onnxruntime as ort

    written = []
    for name, original in models().items():
        here = folder / name
        here.mkdir()
        feeds = make_inputs(original)
        for key, value in feeds.items():
            np.save(here / f"in.{key}.npy", value)
        options = ort.SessionOptions()
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        session = ort.InferenceSession(original.SerializeToString(), options, providers=["CPUExecutionProvider"])
        for i, output in enumerate(session.run(None, feeds)):
            np.save(here / f"out.{i}.npy", output)
        (here / "outputs.json").write_text(json.dumps([o.name for o in original.graph.output]))
        for form in FORMS:
            model = original if form == "original" else rmsnorm_deploy.fuse(original, form=form)[0]
            onnx.save(model, here / f"{form}.onnx")
            written.append((name, form, here / f"{form}.onnx"))
    return written


def ask(python: Path, runtime: str, files: list[Path], seconds: float = 300) -> list[dict[str, Any]]:
    """What a runtime says of each file. One that takes the process down is asked about the files behind it again."""
    answers: list[dict[str, Any]] = []
    while len(answers) < len(files):
        rest = "\n".join(map(str, files[len(answers) :]))
        command = [str(python), str(Path(__file__).with_name("runtimes_child.py")), runtime]
        try:
            done = subprocess.run(command, input=rest, capture_output=True, text=True, check=False, timeout=seconds)
            output, ended = done.stdout, f"the process ended with {done.returncode}"
        except subprocess.TimeoutExpired as error:
            output, ended = (error.stdout or b"").decode(errors="replace"), f"took longer than {seconds:.0f} s"
        answers += [json.loads(line[1:]) for line in output.splitlines() if line.startswith("@{")]
        if len(answers) < len(files):
            answers.append({"error": ended})
    return answers


def environment(runtimes: list[str]) -> tuple[Path, list[str]]:
    """The Python of .venvs/runtimes, and those runtimes that it has."""
    python = VENV / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(VENV)], check=True)
    there = []
    for runtime in runtimes:
        install = [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check", "numpy"]
        done = subprocess.run([*install, *PACKAGES[runtime]], capture_output=True, text=True, check=False)
        if done.returncode:
            sys.stderr.write(f"{runtime} is left out: {done.stderr.strip().splitlines()[-1]}\n")
        else:
            there.append(runtime)
    return python, there


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runtime", action="append", choices=list(RUNTIMES), help="only this one; may be repeated")
    parser.add_argument("--verbose", action="store_true", help="say what each refusal says")
    arguments = parser.parse_args()
    python, runtimes = environment(arguments.runtime or list(RUNTIMES))
    print(f"| runtime | {' | '.join(f'`{f}`' if f != 'original' else f for f in FORMS)} |")
    print(f"|---|{'---|' * len(FORMS)}")
    with tempfile.TemporaryDirectory() as folder:
        written = write(Path(folder))
        for runtime in runtimes:
            answers = ask(python, runtime, [file for _, _, file in written])
            cells = []
            for form in FORMS:
                of_form = [(m, a) for (m, f, _), a in zip(written, answers, strict=True) if f == form]
                right = [m for m, a in of_form if not a["error"] and a["worst"] <= LIMITS[m.rpartition("_")[2]]]
                norms = sum(int(a["note"].split()[0]) for _, a in of_form if not a["error"] and a["note"])
                cells.append(f"{len(right)} of {len(of_form)}" + (f", {norms} norms" if norms else ""))
                for model, a in of_form if arguments.verbose else ():
                    if model not in right:
                        said = a["error"] or f"error {a['worst']:.2g}"
                        sys.stderr.write(f"{runtime}, {form}, {model}: {said}\n")
            print(f"| {runtime} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
