"""The kernels give the same bits from run to run, from process to process, and with any number of threads."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = """
import hashlib, sys
import onnxruntime as ort
import rmsnorm_deploy
from tests.support.judge import rows
from tests.support.run import run
from tests.support.spellings.graph import NUMPY
from tests.support.spellings.norms import Spelling, build

threads = int(sys.argv[1])


def hook(override):
    def register(options):
        options.intra_op_num_threads = threads
        rmsnorm_deploy.register(options, override_builtin=override)
    return register


# wide enough that the work is divided: one long row, many short ones, rows across memory, all of a tensor
LAYOUTS = {(1, 100_003): (-1,), (700, 96): (-1,), (33, 2, 1000): (-1,), (3, 500, 70): (1,), (40, 30, 50): (1, 2)}
KINDS = [
    {}, {"residual": True}, {"outside": 1e-3, "bias": True}, {"layout": "llama16"}, {"layout": "gemma16"},
    {"layout": "llamabf16"}, {"layout": "float64"}, {"layout": "llama16", "residual": True},
]
for kind in KINDS:
    for shape, axes in LAYOUTS.items():
        s = Spelling(shape=shape, axes=axes, scale="right", **kind)
        fused, report = rmsnorm_deploy.fuse(build(s).model)
        feeds = {name: rows(shape, NUMPY[s.io_type], seed) for seed, name in enumerate("xr" if s.residual else "x")}
        first = [value.tobytes() for value in run(fused, feeds, True, hook(False))]
        again = [value.tobytes() for value in run(fused, feeds, True, hook(False))]
        print(len(report.fused), first == again, hashlib.sha256(b"".join(first)).hexdigest())
        plain, report = rmsnorm_deploy.fuse(build(s).model, form="ort")
        if report.fused and axes == (-1,):
            first = [value.tobytes() for value in run(plain, feeds, True, hook(True))]
            print(len(report.fused), True, hashlib.sha256(b"".join(first)).hexdigest())
"""


def lines(threads, hash_seed="0"):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(threads)],
        cwd=ROOT,
        env=os.environ | {"PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [line.split() for line in done.stdout.splitlines()]


@pytest.fixture(scope="module")
def one_thread():
    return lines(1)


def test_from_run_to_run(one_thread):
    assert all(norms == "1" and same == "True" for norms, same, _ in one_thread)
    assert len({digest for _, _, digest in one_thread}) > 45


@pytest.mark.parametrize("threads", [1, 2, 3, 8, 17, 64])
def test_from_process_to_process_with_any_number_of_threads(one_thread, threads):
    assert lines(threads, hash_seed="random") == one_thread
