"""The whole of `make gpu-check` without a GPU: on the emulated kernels, and stand-ins for the driver and the tools."""

import importlib.util
import json
import os
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks import gpu_check
from benchmarks.gpu import checks
from benchmarks.gpu.steps import Budget, Outcome, Share
from tests.support.cuda import emulator as em

ROOT = Path(__file__).resolve().parents[2]


STEPS = ["smoke", "memcheck", "racecheck", "tests", "measure", "products", "decode", "counters", "cpu"]


def command(*arguments):
    return [sys.executable, "-m", "benchmarks.gpu_check", *map(str, arguments)]


def check(environment, *arguments):
    given = command(*arguments)
    return subprocess.run(given, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


def rehearse(stage, out, *arguments):
    """`gpu-check --rehearse` with the stand-ins that this run has built already."""
    given = ["--rehearse", "--stage", stage.library.parent, "--out", out, "--work", out.parent / "work", *arguments]
    return check(os.environ, *given)


def test_the_rehearsal_walks_all_of_it(stage, tmp_path):
    out = tmp_path / "out"
    done = rehearse(stage, out)
    result = json.loads((out / "gpu.json").read_text())
    log = (out / "gpu.log").read_text()
    assert [(step["name"], step["status"]) for step in result["steps"]] == [(name, "passed") for name in STEPS], (
        done.stderr + log[-6000:]
    )
    steps = {step["name"]: step["detail"] for step in result["steps"]}
    assert "225 calls, 0 wrong" in steps["smoke"]
    assert "0 errors" in steps["memcheck"]
    measured = result["measured"]
    assert measured["complete"]
    assert measured["machine"]["name"] == "emulated GPU"
    assert measured["peers"][:2] == ["TVM, ours", "torch eager (torch 9.9)"]
    # two operators, three types, rows 1 and 16, sizes 64 and 1024; and five variants
    assert measured["cases"] == 2 * 3 * 2 * 2 + 5
    count = {name: 0 for name in ("ours", "copy", "torch eager", "torch.compile", "TVM, ours")}
    for record in measured["records"]:
        count[record["contestant"]] += 1
        assert record["us"] > 0
        assert record["off_units"] <= 3
        assert record["graph"]
    assert count == {"ours": 29, "copy": 29, "torch eager": 24, "torch.compile": 24, "TVM, ours": 2}
    assert measured["host_us"]["ours"] > measured["host_us"]["no rows"] > 0
    assert [r["name"] for r in result["decode"]["records"]] == ["as exported", "our norms"]
    assert result["decode"]["norms"] == 2 * 4 + 1
    products = result["products"]["records"]
    assert len(products) == 3 * (2 * 2 + 2 * 3)
    assert all(r["right"] and r["same_bits"] and 0 <= r["error"] < 1e-2 for r in products)
    assert [r["size"] for r in result["counters"]] == [128, 4096, 16384, 4096, 4096]
    assert all(r["ns"] > 1000 and r["issue_percent"] == 1 and "dram_bytes" not in r for r in result["counters"])
    text = (out / "gpu.md").read_text()
    assert "| RMSNorm | bfloat16 | gemma, float32 scale | 16 | 64 |" in text
    assert "| our norms |" in text
    # What comes back from a machine is counted in files: four, and the build is not among them.
    assert sorted(path.name for path in out.iterdir()) == ["gpu.json", "gpu.log", "gpu.md", "records.jsonl"]
    # Times of the emulator miss what a GPU has to reach, or not; that alone decides between 0 and 1.
    assert done.returncode == (1 if result["unmet"] else 0)
    assert done.stderr.splitlines()[-1].endswith("no time for: none, failed: none")


def test_a_step_without_time_is_not_called_failed(stage, tmp_path):
    done = rehearse(stage, tmp_path / "out", "--seconds", 4)
    result = json.loads((tmp_path / "out" / "gpu.json").read_text())
    status = {step["name"]: step["status"] for step in result["steps"]}
    assert "no time" in status.values()
    assert "failed" not in status.values(), (tmp_path / "out" / "gpu.log").read_text()[-3000:]
    assert result["seconds"] < 12
    assert done.returncode == (1 if result["unmet"] else 0)


def test_results_survive_an_interruption(stage, tmp_path):
    """Killed at some moment and started again: nothing is measured twice, and nothing is lost."""
    out, chance = tmp_path / "out", random.Random(3)
    given = ["--rehearse", "--stage", stage.library.parent, "--out", out, "--work", tmp_path / "work", "--resume"]
    before, killed = [], 0
    for _ in range(2):
        process = subprocess.Popen(command(*given), cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            process.wait(chance.uniform(2, 6))
            break
        except subprocess.TimeoutExpired:
            (process.terminate if killed else process.kill)()
            process.wait()
            killed += 1
        if (out / "gpu.json").exists():
            json.loads((out / "gpu.json").read_text())  # a whole file at any second
        lines = (out / "records.jsonl").read_text() if (out / "records.jsonl").exists() else ""
        whole = lines[: lines.rfind("\n") + 1].splitlines()
        assert whole[: len(before)] == before
        before = whole
    assert killed
    told = check(os.environ, "--report", "--out", out)  # which needs no GPU
    assert told.returncode in (0, 1), told.stderr
    known = json.loads((out / "gpu.json").read_text())["measured"]
    assert len(
        {(r["op"], r["dtype"], r["rows"], r["size"], r["variant"]) for r in known["records"]} if known else ()
    ) == (sum('"records"' in line for line in before))
    done = check(os.environ, *given)
    result = json.loads((out / "gpu.json").read_text())
    assert {step["status"] for step in result["steps"]} == {"passed"}, done.stderr
    assert (out / "records.jsonl").read_text().splitlines()[: len(before)] == before
    ours = [
        (r["op"], r["dtype"], r["rows"], r["size"], r["variant"])
        for r in result["measured"]["records"]
        if r["contestant"] == "ours"
    ]
    assert len(ours) == len(set(ours)) == 29


def test_other_kernels_are_measured_anew(machine, tmp_path):
    _, library = machine
    given = ["--library", str(library), "--out", str(tmp_path), "--work", str(tmp_path), "--resume"]
    known = {"schema_version": gpu_check.SCHEMA_VERSION, "kernels": gpu_check.checksum([library])}
    known["steps"] = [{"name": "smoke", "status": "passed"}, {"name": "cpu", "status": "no time"}]
    for kernels, names in ((known["kernels"], {"smoke"}), ("others", set())):
        (tmp_path / "gpu.json").write_text(json.dumps(known | {"kernels": kernels}))
        (tmp_path / "records.jsonl").write_text("{}\n")
        made = gpu_check.Check(gpu_check.arguments(given))
        assert set(made.steps.known) == names
        assert (tmp_path / "records.jsonl").exists() == bool(names)


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
        "import sys; from benchmarks import gpu_check; from benchmarks.gpu import checks; checks.CUDA_FOLDERS = (); "
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
    assert "step = 4; step >= 0; --step" in text
    source.write_text(text.replace("step = 4; step >= 0; --step", "step = 4; step >= 1; --step"))
    units = em.compile_units(ops, em.UNITS, tmp_path / "objects", em.UNOPTIMISED)
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
    made = gpu_check.Check(
        gpu_check.arguments(["--library", str(library), "--out", str(tmp_path), "--work", str(tmp_path)])
    )
    assert made.device_tests(10) == ("skipped", "needs ml_dtypes in this Python")


@pytest.fixture
def made(tmp_path, machine):
    _, library = machine
    return gpu_check.Check(
        gpu_check.arguments(["--library", str(library), "--out", str(tmp_path), "--work", str(tmp_path)])
    )


def test_what_is_built_is_for_this_gpu(made, machine, monkeypatch):
    environment, _ = machine
    monkeypatch.setenv("RMSNORM_DEPLOY_CUDA_DRIVER", environment["RMSNORM_DEPLOY_CUDA_DRIVER"])
    assert made.architectures() == ["90-real"]
    monkeypatch.setenv("FAKE_CUDA_NO_DEVICE", "1")
    assert made.architectures() == []


def test_a_step_that_takes_too_long_is_ended(made):
    status, detail = made.command("slow", [sys.executable, "-c", "import time; print(7); time.sleep(60)"], 1)
    assert status == "no time"
    assert detail == "not done within 1 s: 7"


def test_a_measurement_without_time_for_a_case_is_not_begun(made):
    assert made.measure(4.5) == ("no time", "4 s are too few for a case")


@pytest.mark.parametrize(
    ("said", "status"),
    [
        ("a.py::one PASSED\na.py::two PASSED", "no time"),
        ("a.py::one PASSED\na.py::two FAILED", "failed"),
        ("a.py::one ERROR", "failed"),
    ],
)
def test_tests_that_run_out_of_time_failed_only_if_one_did(made, monkeypatch, said, status):
    monkeypatch.setattr(made, "run", lambda *_: Outcome(None, said, 0))
    assert made.device_tests(30)[0] == status


@pytest.mark.parametrize(
    ("said", "status"),
    [
        ("RMSNorm float16 3x64", "no time"),
        ("========= Invalid __global__ write of size 2 bytes\n=========     at rows_kernel", "failed"),
    ],
)
def test_a_sanitizer_out_of_time_failed_only_if_it_found_something(made, monkeypatch, said, status):
    monkeypatch.setattr(made, "run", lambda *_: Outcome(None, said, 0))
    monkeypatch.setattr(checks, "tool", lambda *_: "/usr/bin/tool")
    assert made.sanitizer("memcheck", 30)[0] == status


def test_smoke_that_says_nothing_hangs(made, monkeypatch):
    for still, status in ((1, "no time"), (40, "failed")):
        monkeypatch.setattr(made, "run", lambda *_, s=still: Outcome(None, "RMSNorm float16 3x64", s))
        assert made.smoke(60)[0] == status


def test_no_step_takes_the_time_of_those_behind_it():
    shares = {"a": Share(0, 100), "b": Share(30, 50), "c": Share(40, 60)}
    budget = Budget(120, 120, shares)
    assert budget.limit("a") == pytest.approx(50, abs=1)
    assert budget.limit("b") == 50
    budget.end = time.monotonic() + 45
    assert budget.limit("b") == pytest.approx(5, abs=1)
    assert not budget.pays("b")
    assert budget.pays("c")
    assert sum(share.least for share in gpu_check.SHARES.values()) < gpu_check.SECONDS - 120  # what a build may take
    assert gpu_check.SECONDS < 480
