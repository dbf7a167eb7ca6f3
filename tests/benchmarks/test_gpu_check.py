"""The whole of `make gpu-check` without a GPU: on the emulated kernels, and a stand-in for the driver."""

import dataclasses
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
from benchmarks.gpu import checks, contract, counters, predictions, profiled, table
from benchmarks.gpu.cases import SIZES, grid
from benchmarks.gpu.records import Records
from benchmarks.gpu.steps import Budget, Outcome, Share
from tests.support.contract import BF16, F16, F32
from tests.support.cuda import emulator as em
from tests.support.cuda import rehearsal

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def stage(tmp_path_factory):
    units, host = em.objects(tmp_path_factory)
    return rehearsal.Stage.of([*units.values(), *host], tmp_path_factory.mktemp("stage"))


@pytest.fixture(scope="module")
def machine(stage):
    """The environment of a machine with a GPU, and a library that was built with CUDA."""
    environment = os.environ | stage.environment
    del environment["PYTHONPATH"]  # without PyTorch
    return environment, stage.library


STEPS = ["smoke", "memcheck", "racecheck", "tests", "measure", "decode", "counters", "cpu"]


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
    assert "156 calls, 0 wrong" in steps["smoke"]
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
            process.kill()
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


def test_a_measurement_survives_being_killed(machine, tmp_path):
    """At some moments between its start and its end, each time going on with what is there."""
    environment, library = machine
    records, target, chance = tmp_path / "records.jsonl", tmp_path / "measured.json", random.Random(5)
    given = [sys.executable, "-m", "benchmarks.gpu.measure", library, "--rows", "1,16", "--sizes", "64,1024"]
    given += ["--records", records, "--json", target, "--seconds", "20"]
    before, moments = [], set()
    for _ in range(5):
        process = subprocess.Popen([*map(str, given)], env=environment, cwd=ROOT, stderr=subprocess.DEVNULL)
        grown = records.stat().st_size if records.exists() else 0
        while process.poll() is None and not (records.exists() and records.stat().st_size > grown):
            time.sleep(0.001)
        time.sleep(chance.uniform(0, 0.03))
        process.kill()
        process.wait()
        lines = records.read_text()
        whole = lines[: lines.rfind("\n") + 1].splitlines()
        assert whole[: len(before)] == before
        before = whole
        moments.add(len(whole))
    assert len(moments) > 2  # else the moments say nothing
    done = subprocess.run([*map(str, given)], env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert records.read_text().splitlines()[: len(before)] == before
    ours = [r for r in json.loads(target.read_text())["records"] if r["contestant"] == "ours"]
    assert len(ours) == 29
    assert len({(r["op"], r["dtype"], r["rows"], r["size"], r["variant"]) for r in ours}) == 29


def test_a_case_that_takes_the_gpu_down_leaves_the_others(machine, tmp_path):
    """The process that measured it is lost, and the next one goes on behind it."""
    environment, library = machine
    options = ["--library", str(library), "--out", str(tmp_path), "--work", str(tmp_path), "--quick"]
    made = gpu_check.Check(
        gpu_check.arguments([*options, "--rows", "3,5", "--sizes", "64", "--dtype", "float16,float32"])
    )
    broken = environment | {"FAKE_CUDA_REFUSED_COPY": str(3 * 64 * 2)}
    made.environment = lambda: broken | {"PYTHONPATH": str(ROOT)}
    status, detail = made.measure(60)
    assert status == "failed"
    assert detail == "RMSNorm float16 3x64: CudaError: cuMemcpyDtoDAsync_v2: CUDA_ERROR_INVALID_VALUE (700)"
    measured = made.measured()
    assert measured["left"] == 0
    # two types, two operators, two numbers of rows and five variants, but for the one
    assert len([r for r in measured["records"] if r["contestant"] == "ours"]) == 2 * 2 * 2 + 5 - 1


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


def test_a_line_that_was_cut_is_measured_again(tmp_path):
    file = tmp_path / "records.jsonl"
    first = Records(file, {"machine": "A"})
    first.add(case="one")
    first.add(case="two")
    file.write_bytes(file.read_bytes()[:-5])
    again = Records(file, {"machine": "A"})
    assert again.of("case") == ["one"]
    again.add(case="two")
    assert Records(file, {"machine": "A"}).of("case") == ["one", "two"]
    assert Records(file, {"machine": "B"}).of("case") == []
    assert file.read_text().count("\n") == 1


@pytest.fixture
def with_torch(machine, tmp_path):
    """The environment with packages that look like PyTorch, and like a Triton that does not load."""
    environment, _ = machine
    packages = rehearsal.fake_torch(tmp_path / "packages")
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
        members = [r for r in measured["records"] if r["contestant"] == name and r["variant"] == "plain"]
        assert len(members) == 2 * 3 * 2
        assert all(r["off_units"] <= 3 and r["graph"] for r in members)


def test_the_kernels_of_tvm_are_launched_as_they_have_to_be(machine, tmp_path):
    """Their CUDA text on the emulator, in the place of machine code: arguments, blocks and threads are right."""
    pytest.importorskip("tvm.relax", reason="apache-tvm is not installed: pip install 'rmsnorm-deploy[tvm]'")
    from benchmarks.gpu import tvm_kernels
    from benchmarks.gpu.tvm_norm import DESCRIPTION, KERNELS, describe
    from tests.support.tvm.cuda_runner import Cuda

    environment, library = machine
    text, kernels = tvm_kernels.made(["bfloat16"], [128, 4096], "sm_90")
    assert [(k.op, k.size) for k in kernels] == [(op, size) for size in (128, 4096) for op in ("RMSNorm", "AddRMSNorm")]
    launches = []
    for k in kernels:
        types = ["std::int64_t" if name == "rows" else "nv_bfloat16*" for name in k.arguments]
        given = ", ".join(f"*({kind}*)p[{i}]" for i, kind in enumerate(types))
        launches.append(
            f'extern "C" void {k.symbol}_launch(unsigned blocks, void** p) {{ emulator::run((const void*){k.symbol}, '
            f"dim3(blocks), dim3({k.threads}), 0, [&] {{ {k.symbol}({given}); }}); }}"
        )
    body = text[text.index('extern "C" __global__') :].replace("__shared__ alignas(64)", "alignas(64) __shared__")
    cuda = Cuda()
    (tmp_path / "kernels.cpp").write_text("\n".join(['#include "cuda_text.h"', body, *launches]))
    cuda.build("-shared", "-o", tmp_path / KERNELS, tmp_path / "kernels.cpp", cuda.folder / "emulator.o")
    (tmp_path / DESCRIPTION).write_text(
        describe([dataclasses.replace(k, symbol=f"{k.symbol}_launch") for k in kernels])
    )
    target = tmp_path / "measured.json"
    command = [sys.executable, "-m", "benchmarks.gpu.measure", library, "--rows", "1,17", "--sizes", "128,4096"]
    command += ["--dtype", "bfloat16", "--tvm", tmp_path, "--json", target, "--seconds", "20"]
    done = subprocess.run([*map(str, command)], env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr + done.stdout
    records = [r for r in json.loads(target.read_text())["records"] if r["contestant"] == "TVM, ours"]
    assert len(records) == 2 * 2 * 2
    assert all(0 < r["off_units"] <= 3 for r in records)


def test_a_peer_that_fails_is_noted_and_the_others_go_on(machine, with_torch, tmp_path):
    _, library = machine
    target, fake = tmp_path / "measured.json", tmp_path / "packages" / "torch.py"
    fake.write_text(fake.read_text().replace("return function", 'raise ValueError("cannot compile")'))
    assert measure(with_torch, library, "--json", str(target), "--seconds", "20").returncode == 0
    measured = json.loads(target.read_text())
    assert {r["contestant"] for r in measured["records"]} == {"ours", "copy", "torch eager"}
    assert len(measured["notes"]) == 1 + 2 * 3 * 2  # and where the host's time is taken
    assert all("torch.compile: ValueError: cannot compile" in note for note in measured["notes"])


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


def test_the_first_cases_give_the_picture():
    """The first thirty-one: bfloat16, decoding and prefill, heads, long rows, and every variant."""
    cases = grid()
    assert len(cases) == len({case.name for case in cases})
    first = cases[:31]
    assert {case.dtype for case in first} == {"bfloat16"}
    assert {128, 2880, 4096, 5120, 8192, 16384} <= {case.size for case in first}
    assert {1, 16, 64} < {case.rows for case in first}
    assert {case.variant for case in first} == {case.variant for case in cases}
    order = [case.dtype for case in cases]
    assert order.index("float16") < order.index("float32")
    for dtype in contract.TYPES:
        assert {case.size for case in cases if case.dtype == dtype} >= set(SIZES)


def test_the_types_are_those_of_the_contract():
    assert contract.TYPES == {"float32": F32, "float16": F16, "bfloat16": BF16}


def record(**changes):
    values = {"op": "RMSNorm", "dtype": "float16", "rows": 32768, "size": 4096, "contestant": "ours", "us": 10.0}
    values |= {"variant": "plain", "of_copy": 0.95, "over_ours": 1.0, "beyond_l2": True, "off_units": 0.5}
    return values | changes


def test_what_the_kernels_have_to_reach():
    assert table.unmet([record()]) == []
    assert table.unmet([record(of_copy=0.89)]) == ["RMSNorm float16 32768x4096: 89% of the copy's speed"]
    assert table.unmet([record(of_copy=0.89, beyond_l2=False)]) == []
    assert table.unmet([record(size=128, of_copy=0.81)]) == []
    assert len(table.unmet([record(size=128, of_copy=0.79)])) == 1
    peer = record(contestant="Triton", over_ours=0.97)
    assert table.unmet([record(), peer]) == ["RMSNorm float16 32768x4096: 0.97 times as fast as Triton"]
    assert table.unmet([record(of_copy=0.5, size=4097)]) == []
    assert len(table.unmet([record(of_copy=0.5, variant="gemma")])) == 1
    assert table.unmet([record(), record(contestant="TVM, ours", over_ours=0.5)]) == []
    measured = {
        "machine": {"name": "A GPU", "capability": "9.0", "driver_cuda": "13.0"},
        "peers": ["Triton"],
        "records": [record(), peer, record(rows=1, us=2.0), record(contestant="Triton", rows=1, over_ours=1.5)],
        "host_us": {"ours": 3.25},
    }
    result = {"steps": [], "measured": measured, "decode": None, "counters": None}
    text = table.text(result, markdown=True)
    assert "| RMSNorm | float16 |  | 32768 | 4096 | 10.0 (95%) | - |" in text
    assert "| RMSNorm | Triton | 2 | 1.21 | 0.97 (float16 32768x4096) | 1 |" in text
    assert "* RMSNorm float16 32768x4096: 0.97 times as fast as Triton" in text
    assert "| ours | 3.25 |" in text


def test_what_ncu_says():
    text = '==PROF== begins\n"ID","Kernel Name","Metric Name","Metric Value"\n'
    for number, value in (("0", "1,024"), ("1", "n/a"), ("10", "7")):
        text += f'"{number}","k(int, float)","gpu__time_duration.sum","{value}"\n'
    assert counters.parsed(text + "==PROF== ends\n") == [{"ns": 1024.0}, {"ns": 7.0}]
    assert counters.parsed("==ERROR== ERR_NVGPUCTRPERM") == []


def test_the_readme_has_the_predictions():
    text = (ROOT / "benchmarks" / "README.md").read_text()
    begin, end = "predictions: begin; python -m benchmarks.gpu.predictions -->\n\n", "\n\n<!-- gpu predictions: end"
    assert text[text.index(begin) + len(begin) : text.index(end)] == predictions.text(None, markdown=True)


def test_a_prediction_is_replaced_by_what_was_measured():
    """Every claim is about something that gpu-check measures, and finds its value there."""
    cases = {(c.op, c.dtype, c.rows, c.size, c.variant) for c in grid()}
    counted = {(c.op, c.dtype, c.rows, c.size, c.variant) for c in profiled.cases(small=False)}
    records, watched = [], []
    for p in predictions.PREDICTIONS:
        assert p.h100[0] < p.h100[1]
        assert p.h200[0] < p.h200[1]
        if p.place is not None:
            assert p.place in (counted if p.of == "counters" else cases), p
            named = dict(zip(("op", "dtype", "rows", "size", "variant"), p.place, strict=True))
            if p.of == "records":
                records.append(named | {"contestant": p.name, p.field: p.h200[0]})
            else:
                watched.append({k: v for k, v in named.items() if k != "variant"} | {p.field: p.h200[0]})
    compiled = {p.place for p in predictions.PREDICTIONS if p.name == "torch.compile"}
    assert compiled <= {(c.op, c.dtype, c.rows, c.size, c.variant) for c in grid() if c.telling}
    result = {
        "measured": {"machine": {"name": "NVIDIA H200"}, "records": records, "host_us": {"ours": 9.0, "no rows": 1.0}},
        "decode": {"records": [{"name": n, "us": 1.0} for n in ("as exported", "our norms", "our norms, CUDA graph")]},
        "counters": watched,
    }
    verdicts = {line[0]: line[4] for line in predictions.rows(result)}
    assert "not yet" not in verdicts.values()
    assert verdicts["RMSNorm 1x4096"] == "2.5, held"
    assert verdicts["host time of a launch: ours"] == "9, more"
    assert verdicts["decoding step: our norms over our norms, CUDA graph"] == "1, less"
    assert {line[4] for line in predictions.rows(None)} == {"not yet"}
