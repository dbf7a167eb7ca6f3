"""The whole of `make gpu-check` without a GPU: on the emulated kernels, and a stand-in for the driver."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import gpu_check
from benchmarks.gpu import contract, table
from tests.support.contract import BF16, F16, F32
from tests.support.cuda import emulator as em

ROOT = Path(__file__).resolve().parents[2]
SANITIZER = """#!/bin/sh
# stands in for compute-sanitizer: runs what it is given
test "$1 $3 $4" = "--tool --error-exitcode 97" || exit 3
shift 4
"$@" && echo "========= ERROR SUMMARY: 0 errors"
"""


@pytest.fixture(scope="module")
def machine(tmp_path_factory):
    """The environment of a machine with a GPU, and a library that was built with CUDA."""
    units, host = em.objects(tmp_path_factory)
    folder = tmp_path_factory.mktemp("machine")
    driver = folder / "driver.so"
    em._run(*em.compiler(), *em.FLAGS, "-shared", em.SHIM / "driver.cpp", "-o", driver)
    library = em.Emulator([*units.values(), *host], folder / "library.so").path
    tools = folder / "bin"
    tools.mkdir()
    (tools / "compute-sanitizer").write_text(SANITIZER)
    (tools / "compute-sanitizer").chmod(0o755)
    environment = os.environ | {
        "RMSNORM_DEPLOY_CUDA_DRIVER": str(driver),
        "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}",
    }
    return environment, library


def check(environment, *arguments):
    command = [sys.executable, "-m", "benchmarks.gpu_check", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


def test_everything_runs_from_end_to_end(machine, tmp_path):
    environment, library = machine
    done = check(environment, "--quick", "--library", library, "--out", tmp_path, "--seconds", 100)
    result = json.loads((tmp_path / "gpu.json").read_text())
    steps = {step["name"]: step for step in result["steps"]}
    logs = "\n".join(path.read_text()[-2000:] for path in tmp_path.glob("*.log"))
    assert {name: step["status"] for name, step in steps.items()} == {
        name: "passed" for name in ("smoke", "tests", "memcheck", "racecheck", "measure")
    }, done.stderr + logs
    assert "117 calls, 0 wrong" in steps["smoke"]["detail"]
    assert "0 errors" in steps["memcheck"]["detail"]
    measured = result["measured"]
    assert measured["complete"]
    assert measured["machine"]["name"] == "emulated GPU"
    # two operators, three types, rows 1 and 16, sizes 64 and 1024, ours and the copy
    assert len(measured["records"]) == 2 * 3 * 2 * 2 * 2
    for record in measured["records"]:
        assert record["us"] > 0
        assert record["off_units"] <= 3
        assert record["graph"]
    assert "| RMSNorm | float16 | 16 |" in (tmp_path / "gpu.md").read_text()
    # Times of the emulator miss what a GPU has to reach, or not; that alone decides between 0 and 1.
    assert done.returncode == (1 if result["unmet"] else 0)
    assert done.stderr.splitlines()[-1].endswith("failed: none")


@pytest.fixture
def with_torch(machine, tmp_path):
    """The environment with packages that look like PyTorch, and like a Triton that does not load."""
    environment, _ = machine
    packages = tmp_path / "packages"
    packages.mkdir()
    (packages / "torch.py").write_text((ROOT / "tests" / "support" / "fake_torch" / "torch.py").read_text())
    (packages / "triton.py").write_text("")
    for name in ("torch", "triton"):
        (packages / f"{name}-9.9.dist-info").mkdir()
        (packages / f"{name}-9.9.dist-info" / "METADATA").write_text(f"Name: {name}\nVersion: 9.9\n")
    return environment | {"PYTHONPATH": os.pathsep.join((str(ROOT), str(packages)))}


def measure(environment, library, *arguments):
    command = [sys.executable, "-m", "benchmarks.gpu.measure", str(library), "--rows", "1,16", "--sizes", "64"]
    return subprocess.run(
        [*command, *arguments], env=environment, cwd=ROOT, capture_output=True, text=True, check=False
    )


def test_peers_take_part(machine, with_torch, tmp_path):
    _, library = machine
    target = tmp_path / "measured.json"
    done = measure(with_torch, library, "--json", str(target), "--seconds", "20")
    assert done.returncode == 0, done.stderr
    measured = json.loads(target.read_text())
    assert measured["peers"] == ["torch eager (torch 9.9)", "torch.compile (torch 9.9)"]
    assert [line.split(":")[0] for line in measured["lacking"]] == [
        *("Triton", "FlashInfer", "Liger", "quack", "onnxruntime")
    ]
    assert measured["notes"] == []
    for name in ("ours", "copy", "torch eager", "torch.compile"):
        members = [r for r in measured["records"] if r["contestant"] == name]
        assert len(members) == 2 * 3 * 2
        assert all(r["off_units"] <= 3 and r["graph"] for r in members)


def test_a_peer_that_fails_is_noted_and_the_others_go_on(machine, with_torch, tmp_path):
    _, library = machine
    target, fake = tmp_path / "measured.json", tmp_path / "packages" / "torch.py"
    fake.write_text(fake.read_text().replace("return function", 'raise ValueError("cannot compile")'))
    assert measure(with_torch, library, "--json", str(target), "--seconds", "20").returncode == 0
    measured = json.loads(target.read_text())
    assert {r["contestant"] for r in measured["records"]} == {"ours", "copy", "torch eager"}
    assert len(measured["notes"]) == 2 * 3 * 2
    assert "torch.compile: ValueError: cannot compile" in measured["notes"][0]


def test_compiling_ahead_measures_nothing(machine, with_torch):
    _, library = machine
    for part in ("0/2", "1/2"):
        done = measure(with_torch, library, "--compile-only", part)
        assert done.returncode == 0, done.stderr
        assert done.stdout == ""


def test_without_a_gpu_one_sentence_says_so(machine, tmp_path):
    environment, _ = machine
    for changes in ({"RMSNORM_DEPLOY_CUDA_DRIVER": "/nowhere/libcuda.so"}, {"FAKE_CUDA_NO_DEVICE": "1"}):
        done = check(environment | changes, "--out", tmp_path / "out")
        assert done.returncode == 4
        assert done.stdout == ""
        assert len(done.stderr.splitlines()) == 1
        assert "there is no GPU to check" in done.stderr
        assert not (tmp_path / "out").exists()


def test_without_nvcc_that_is_said(machine, tmp_path, monkeypatch):
    environment, _ = machine
    nothing = tmp_path / "bin"
    nothing.mkdir()
    environment = {name: value for name, value in environment.items() if name not in ("CUDACXX", "CXX")}
    code = (
        "import sys; from benchmarks import gpu_check; gpu_check.CUDA_FOLDERS = (); "
        f"sys.exit(gpu_check.main(['--out', {str(tmp_path / 'out')!r}]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env=environment | {"PATH": str(nothing)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 4
    assert "nvcc" in done.stderr
    assert "a C++ compiler not found: install the CUDA toolkit" in done.stderr


def test_wrong_kernels_stop_the_check(machine, tmp_path):
    """A library whose row kernels forget the end of a row: smoke fails, the rest does not run, exit status 1."""
    environment, _ = machine
    ops = tmp_path / "ops"
    shutil.copytree(ROOT / "ops", ops)
    source = ops / "cuda" / "rows.cuh"
    text = source.read_text()
    assert "offset > 0; offset >>= 1) {\n    sum.add" in text
    source.write_text(
        text.replace("offset > 0; offset >>= 1) {\n    sum.add", "offset > 1; offset >>= 1) {\n    sum.add")
    )
    units = em.compile_units(ops, em.UNITS, tmp_path / "objects")
    faulty = em.Emulator([*units, *em.compile_host(ops, tmp_path / "objects")], tmp_path / "faulty.so").path
    done = check(environment, "--quick", "--library", faulty, "--out", tmp_path / "out")
    result = json.loads((tmp_path / "out" / "gpu.json").read_text())
    assert done.returncode == 1
    assert [(step["name"], step["status"]) for step in result["steps"]] == [("smoke", "failed")]
    assert "wrong" in result["steps"][0]["detail"]


def test_packages_that_are_not_there_are_named(machine, tmp_path, monkeypatch):
    _, library = machine
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "ml_dtypes" else real(name))
    made = gpu_check.Check(gpu_check.arguments(["--library", str(library), "--out", str(tmp_path)]))
    assert made.device_tests() == ("skipped", "needs ml_dtypes in this Python")


def test_a_step_that_hangs_is_ended(tmp_path, machine):
    _, library = machine
    made = gpu_check.Check(gpu_check.arguments(["--library", str(library), "--out", str(tmp_path)]))
    status, detail = made.command("slow", [sys.executable, "-c", "import time; time.sleep(60)"], 1)
    assert status == "failed"
    assert "ran past 1 s" in detail


def test_the_types_are_those_of_the_contract():
    assert contract.TYPES == {"float32": F32, "float16": F16, "bfloat16": BF16}


def record(**changes):
    values = {"op": "RMSNorm", "dtype": "float16", "rows": 32768, "size": 4096, "contestant": "ours", "us": 10.0}
    values |= {"of_copy": 0.95, "over_ours": 1.0, "beyond_l2": True, "off_units": 0.5}
    return values | changes


def test_what_the_kernels_have_to_reach():
    assert table.unmet([record()]) == []
    assert table.unmet([record(of_copy=0.89)]) == ["RMSNorm float16 32768x4096: 89% of the copy's speed"]
    assert table.unmet([record(of_copy=0.89, beyond_l2=False)]) == []
    assert table.unmet([record(size=128, of_copy=0.81)]) == []
    assert len(table.unmet([record(size=128, of_copy=0.79)])) == 1
    peer = record(contestant="Triton", over_ours=0.97)
    assert table.unmet([record(), peer]) == ["RMSNorm float16 32768x4096: 0.97 times as fast as Triton"]
    measured = {
        "machine": {"name": "A GPU", "capability": "9.0", "driver_cuda": "13.0"},
        "peers": ["Triton"],
        "records": [record(), peer, record(rows=1, us=2.0), record(contestant="Triton", rows=1, over_ours=1.5)],
    }
    text = table.text(measured, markdown=True)
    assert "| RMSNorm | float16 | 32768 | 10.0 (95%) |" in text
    assert "| RMSNorm | Triton | 2 | 1.21 | 0.97 (float16 32768x4096) | 1 |" in text
    assert text.rstrip().endswith("* RMSNorm float16 32768x4096: 0.97 times as fast as Triton")
