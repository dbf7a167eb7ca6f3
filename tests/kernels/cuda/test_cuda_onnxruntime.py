"""The ops of the CUDA provider in onnxruntime, without a GPU: registered for the CPU provider, on the emulator.

The tests are those of the CPU's ops, all models and messages included.
"""

import os
import re
import subprocess
import sys

import pytest

from tests.support.cuda import emulator as em

SCRIPT = "tests/ort/test_onnxruntime.py"
GATED = "tests/ort/test_gated.py"
QUANTISED = "tests/ort/test_quantised.py"
NOT_HERE = {
    "test_threads_change_no_bit": "launches are not divided among onnxruntime's threads",
    "test_one_session_on_several_threads": "the emulator is one device with one queue",
    "test_memory_is_reused": "the emulator takes memory itself",
    "test_an_unknown_instruction_set_is_refused_at_registration": "of the CPU",
}


@pytest.fixture(scope="module")
def library(objects, tmp_path_factory):
    units, host = objects
    folder = tmp_path_factory.mktemp("binding")
    return em.Emulator([*units.values(), *host, *em.compile_binding(em.ROOT / "ops", folder)], folder / "binding.so")


def outcome(library, *arguments, scripts=(SCRIPT, GATED)):
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "--noconftest",
            "-c",
            os.devnull,
            f"--rootdir={em.ROOT}",
            *arguments,
            *scripts,
        ],
        cwd=em.ROOT,
        env=os.environ | {"RMSNORM_DEPLOY_LIBRARY": str(library.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout[-6000:] + done.stderr[-2000:]


def test_norms_quantised_by_a_given_scale_run_in_the_gpus_ops(library):
    """Each byte is that of the CPU's kernels, which is that of QuantizeLinear."""
    names = ("test_scales_from_tiny_to_huge", "test_ties_and_their_neighbours", "test_every_type_by_the_definition")
    code, text = outcome(library, "-k", " or ".join(names), scripts=(QUANTISED,))
    assert code == 0, text
    assert "skipped" not in text


def test_every_model_of_the_cpus_suite_runs_in_the_gpus_ops(library):
    code, text = outcome(library, *(f"--deselect={SCRIPT}::{name}" for name in NOT_HERE))
    assert code == 0, text
    assert int(re.search(r"(\d+) passed", text)[1]) > 100
    assert "skipped" not in text
