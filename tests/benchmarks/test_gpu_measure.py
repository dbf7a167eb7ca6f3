"""What gpu-check measures, without a GPU: who takes part, in which order, and that no record is lost."""

import dataclasses
import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks import gpu_check
from benchmarks.gpu import contract
from benchmarks.gpu.cases import SIZES, grid
from benchmarks.gpu.records import Records
from tests.support.contract import BF16, F16, F32
from tests.support.cuda import rehearsal

ROOT = Path(__file__).resolve().parents[2]


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


def test_what_others_offer_is_called_as_it_has_to_be(machine, with_torch, tmp_path):
    """FlashInfer, Liger and quack, each as a module with the function that is used of it."""
    _, library = machine
    packages, norm = tmp_path / "packages", "return torch.rms_norm(x, x.shape[-1:], w, eps)\n"
    for distribution, module, text in (
        ("flashinfer_python", "flashinfer/norm", f"def rmsnorm(x, w, eps): {norm}"),
        ("quack_kernels", "quack/rmsnorm", f"def rmsnorm(x, w, *, eps): {norm}"),
        (
            *("liger_kernel", "liger_kernel/ops/rms_norm"),
            f"class LigerRMSNormFunction:\n    @staticmethod\n    def apply(x, w, eps): {norm}",
        ),
    ):
        (packages / module).parent.mkdir(parents=True)
        (packages / f"{module}.py").write_text(f"import torch\n{text}")
        metadata = packages / f"{distribution}-1.0.dist-info" / "METADATA"
        metadata.parent.mkdir()
        metadata.write_text(f"Name: {distribution}\nVersion: 1.0\n")
    target = tmp_path / "measured.json"
    done = measure(with_torch, library, "--json", str(target), "--seconds", "20", "--dtype", "float16,float32")
    assert done.returncode == 0, done.stderr
    measured = json.loads(target.read_text())
    assert measured["notes"] == []
    names = [r["contestant"] for r in measured["records"] if r["off_units"] <= 3]
    # two numbers of rows of one size, without a residual
    assert [names.count(name) for name in ("FlashInfer", "quack", "Liger")] == [2, 4, 4]


def test_the_kernels_of_tvm_are_launched_as_they_have_to_be(machine, tmp_path):
    """Their CUDA text on the emulator, in the place of machine code: arguments, blocks and threads are right."""
    pytest.importorskip("tvm.relax", reason="apache-tvm is not installed: pip install '.[tvm]'")
    from benchmarks.gpu import tvm_kernels
    from benchmarks.gpu.tvm_norm import DESCRIPTION, KERNELS, describe
    from tests.support.tvm.cuda_runner import Cuda, host_text

    environment, library = machine
    text, kernels = tvm_kernels.made(["bfloat16"], [128, 4096], "sm_90")
    assert [(k.op, k.size) for k in kernels] == [(op, size) for size in (128, 4096) for op in ("RMSNorm", "AddRMSNorm")]
    launches = []
    for k in kernels:
        types = ["std::int64_t" if name == "rows" else "uint*" for name in k.arguments]
        given = ", ".join(f"*({kind}*)p[{i}]" for i, kind in enumerate(types))
        launches.append(
            f'extern "C" void {k.symbol}_launch(unsigned blocks, void** p) {{ emulator::run((const void*){k.symbol}, '
            f"dim3(blocks), dim3({k.threads}), 0, false, [&] {{ {k.symbol}({given}); }}); }}"
        )
    body = host_text(text)
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
