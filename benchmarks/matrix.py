"""Versions that this project works with: one environment for each cell, the same checks in all of them.

    make matrix                                        # builds the wheel once, makes environments in .venvs/matrix
    python -m benchmarks.matrix [--only TEXT] [--json OUT]

A cell is a Python with releases of what this project uses: the newest of everything on every Python that is here, every
onnxruntime of a list, each dependency at the oldest release that pyproject.toml allows, and all of these together. The
bytes of fused files and the bits of our kernels have to be the same in every cell.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx

import rmsnorm_deploy
from rmsnorm_deploy.run.inputs import make_inputs

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / ".venvs" / "matrix"
PYTHONS = ("3.10", "3.11", "3.12", "3.13", "3.14")
ONNXRUNTIMES = ("1.20.1", "1.22.1", "1.24.4", "1.28.0")
"""Beside the newest."""
DEPENDENCIES = ("onnx", "onnx-ir", "numpy", "typer", "rich")
CHILD = Path(__file__).with_name("matrix_child.py")


@dataclasses.dataclass(frozen=True)
class Cell:
    """One environment.

    Attributes:
        python: its version, such as "3.11".
        pins: requirements, such as "onnx==1.19.0"; everything else is the newest.
    """

    python: str
    pins: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return ", ".join((f"Python {self.python}", *(pin.replace("==", " ") for pin in self.pins)))


def oldest(text: str | None = None) -> dict[str, str]:
    """The lower bounds in pyproject.toml, by package."""
    text = (ROOT / "pyproject.toml").read_text() if text is None else text
    found = {}
    for name in (*DEPENDENCIES, "onnxruntime"):
        match = re.search(rf'"{name}>=([0-9.]+)', text)
        if match is None:
            raise ValueError(f"pyproject.toml has no lower bound of {name}")
        found[name] = match[1]
    return found


def cells(pythons: Iterable[str], bounds: dict[str, str]) -> list[Cell]:
    """The matrix, for the Pythons that are here."""
    here = list(pythons)
    usual = "3.11" if "3.11" in here else here[0]
    made = [Cell(python) for python in [usual, *(p for p in here if p != usual)]]
    # releases before 1.23 have no wheel for every Python
    made += [Cell(usual, (f"onnxruntime=={version}",)) for version in ONNXRUNTIMES]
    made += [Cell(usual, (f"{name}=={_full(bounds[name])}",)) for name in DEPENDENCIES]
    together = tuple(f"{name}=={_full(bounds[name])}" for name in DEPENDENCIES)
    return [*made, Cell(here[0], (*together, f"onnxruntime=={ONNXRUNTIMES[0]}"))]


def _full(version: str) -> str:
    return version if version.count(".") >= 2 else f"{version}.0"


def find_pythons() -> dict[str, str]:
    """The interpreters on this machine, by version."""
    found = {}
    roots = [Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"]
    for version in PYTHONS:
        places = [shutil.which(f"python{version}")]
        places += [str(p) for root in roots for p in sorted(root.glob(f"{version}*/bin/python{version}"))]
        for place in (p for p in places if p):
            done = subprocess.run([place, "--version"], capture_output=True, text=True, check=False)
            if done.returncode == 0 and done.stdout.startswith(f"Python {version}."):
                found[version] = place
                break
    return found


def make_models(folder: Path) -> None:
    """What every cell works on."""
    shutil.rmtree(folder, ignore_errors=True)
    for sample in sorted((ROOT / "samples" / "models").glob("*.onnx")):
        (folder / sample.stem).mkdir(parents=True)
        shutil.copy(sample, folder / sample.stem / "model.onnx")
    outside = folder / "external"
    outside.mkdir()
    model = onnx.load(folder / "qwen3_float32" / "model.onnx")
    options: dict[str, Any] = {"all_tensors_to_one_file": True, "location": "model.data", "size_threshold": 1024}
    onnx.save(model, outside / "model.onnx", save_as_external_data=True, **options)
    for name, norm in _norms():
        onnx.save(norm, folder / f"norm-{name}.onnx")
        np.savez(folder / f"norm-{name}.npz", **make_inputs(norm))
    fused, _ = rmsnorm_deploy.fuse(folder / "qwen3_float32" / "model.onnx", form="ort")
    onnx.save(fused, folder / "builtin.onnx")
    np.savez(folder / "builtin.npz", **make_inputs(fused))


_NORM = """<ir_version: 8, opset_import: ["": 17]>
g ({T}[2, 7, 65] x, {T}[2, 7, 65] r, float[65] w, float[65] b) => ({T}[2, 7, 65] y, {T}[2, 7, 65] s)
<float two = {{2.0}}, float e = {{0.00001}}> {{
    s = Add(x, r)  c = Cast<to = 1>({X})  q = Pow(c, two)  m = ReduceMean<axes = [-1]>(q)  i = Add(m, e)
    {ROOT}  n = Div(c, d)  v = Mul(n, w)  {BIAS}  y = Cast<to = {N}>(z)
}}"""


def _norms() -> Iterator[tuple[str, onnx.ModelProto]]:
    """A fused norm of each operator in float32 and float16."""
    plain = ("d = Sqrt(i)", "z = Identity(v)")
    outside = ("f = Sqrt(i)  d = Add(f, e)", "z = Add(v, b)")
    for op, source, (root, bias) in (
        ("RMSNorm", "x", plain),
        ("AddRMSNorm", "s", plain),
        ("GeneralRMSNorm", "x", outside),
    ):
        for dtype, number in (("float", 1), ("float16", 10)):
            text = _NORM.format(T=dtype, X=source, ROOT=root, BIAS=bias, N=number)
            fused, _ = rmsnorm_deploy.fuse(onnx.parser.parse_model(text))
            if op not in {n.op_type for n in fused.graph.node}:
                raise ValueError(f"the model of {op} fuses to {[n.op_type for n in fused.graph.node]}")
            yield f"{op}-{dtype}", fused


def environment(cell: Cell, interpreter: str, wheel: Path) -> tuple[Path, str]:
    """The interpreter of the cell's environment, and why it could not be made."""
    folder = FOLDER / re.sub(r"[^0-9A-Za-z.=]+", "_", f"{cell.python} {' '.join(cell.pins)}".strip())
    python = folder / "bin" / "python"
    if not (folder / "ready").exists():
        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run([interpreter, "-m", "venv", "--without-pip", folder], check=True)
        pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "-q", "--disable-pip-version-check"]
        pins = cell.pins if any(p.startswith("onnxruntime=") for p in cell.pins) else (*cell.pins, "onnxruntime")
        wanted = [f"rmsnorm_deploy @ {wheel.as_uri()}", "ml_dtypes", *pins]
        done = subprocess.run([*pip, "--only-binary", ":all:", *wanted], capture_output=True, text=True, check=False)
        if done.returncode:
            lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
            return python, (lines or [done.stderr.strip()])[0]
        (folder / "ready").touch()
    else:  # another wheel of the same versions
        pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "-q", "--disable-pip-version-check"]
        subprocess.run([*pip, "--no-deps", "--force-reinstall", str(wheel)], check=True)
    return python, ""


def answers_of(python: Path, folder: Path) -> dict[str, Any]:
    """What the checks say in one environment."""
    copy = folder.with_name("work")
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(folder, copy)
    clean = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "RMSNORM_DEPLOY_LIBRARY")}
    # another seed of hashes in every cell
    seed = str(sum(map(ord, str(python))) % 1000)
    done = subprocess.run(
        [python, CHILD, copy],
        cwd=copy,
        env=clean | {"PYTHONHASHSEED": seed},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1]
        return {"start": {"hashes": {}, "fault": last}}
    return dict(json.loads(done.stdout.splitlines()[-1]))


def differences(found: dict[str, str], wanted: dict[str, str]) -> str:
    """What differs between the hashes of two cells, in words; empty where nothing does."""
    differing = sorted(name for name in wanted.keys() | found.keys() if wanted.get(name) != found.get(name))
    return f"other bytes than in the first cell: {', '.join(differing)}" if differing else ""


def judged(answers: dict[str, Any], first: dict[str, Any]) -> dict[str, str]:
    """The fault of each check in a cell, empty where there is none; ``first`` is what the first cell answered."""
    return {
        check: answer["fault"] or differences(answer["hashes"], first.get(check, answer)["hashes"])
        for check, answer in answers.items()
    }


def build(folder: Path) -> Path:
    """The wheel of this checkout."""
    shutil.rmtree(folder, ignore_errors=True)
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "-q",
        "--disable-pip-version-check",
        "--no-deps",
        "-w",
        str(folder),
    ]
    subprocess.run([*command, "--config-settings=cmake.define.RMSNORM_DEPLOY_CUDA=OFF", str(ROOT)], check=True)
    return next(folder.glob("*.whl"))


def main(arguments: list[str] | None = None) -> int:
    """Make and ask every environment; the status is 1 where a cell has a fault."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.matrix", description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--only", default="", help="cells whose names hold this text; the first cell is run in any case"
    )
    parser.add_argument("--json", type=Path, help="write everything to this file")
    parser.add_argument("--keep-wheel", action="store_true", help="use the wheel that an earlier run has built")
    options = parser.parse_args(arguments)
    FOLDER.mkdir(parents=True, exist_ok=True)
    wheel = next((FOLDER / "wheel").glob("*.whl"), None) if options.keep_wheel else None
    wheel = wheel or build(FOLDER / "wheel")
    make_models(FOLDER / "models")
    interpreters = find_pythons()
    for version in (v for v in PYTHONS if v not in interpreters):
        print(f"Python {version} is not on this machine", file=sys.stderr)
    record, failed, first = [], 0, {}
    print("| cell | checks |\n|---|---|")
    for i, cell in enumerate(cells(interpreters, oldest())):
        if i and options.only not in cell.name:
            continue
        python, why_not = environment(cell, interpreters[cell.python], wheel)
        answers = {"install": {"hashes": {}, "fault": why_not}} if why_not else answers_of(python, FOLDER / "models")
        first = first or answers
        faults = {check: fault for check, fault in judged(answers, first).items() if fault}
        failed += bool(faults)
        text = "; ".join(f"{check}: {fault}" for check, fault in faults.items()) or f"{len(answers)} right"
        print(f"| {cell.name} | {text} |", flush=True)
        record.append({"cell": dataclasses.asdict(cell), "faults": faults, "answers": answers})
    if options.json:
        options.json.write_text(json.dumps(record, indent=1))
    return int(failed > 0)


if __name__ == "__main__":
    raise SystemExit(main())
