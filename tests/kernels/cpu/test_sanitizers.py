"""The libraries under AddressSanitizer, UndefinedBehaviorSanitizer, LeakSanitizer and ThreadSanitizer.

Each kind of run is also made to fail, by blocks of memory that are too short or by a fault planted in a copy of the
sources: a run that cannot fail shows nothing.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.native import ROOT, Build, compiler, output_of

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs Linux, for the sanitizers as GCC has them")
CONCURRENT = Path(__file__).with_name("concurrent.cpp")
IN_OUR_CODE = re.compile(r"#[0-3] .*/ops/cpu/")
RACE = "ThreadSanitizer: data race"


@pytest.fixture(scope="module")
def build(tmp_path_factory):
    return Build(tmp_path_factory.mktemp("address"), "address,undefined")


@pytest.fixture(scope="module")
def sanitized(build):
    """The library, with the one that replaces onnxruntime's operators beside it; later builds hold faults."""
    kept = build.folder / "kept"
    kept.mkdir()
    shutil.copy(build.make("rmsnorm_deploy_override"), kept)
    return Path(shutil.copy(build.make("rmsnorm_deploy"), kept))


def python(library, *arguments):
    """A Python program that loads a library built with AddressSanitizer."""
    # An exception of C++ is intercepted only where its library is there from the start.
    names = ("libasan.so", "libstdc++.so.6")
    preloaded = [output_of(*compiler(), f"-print-file-name={name}").strip() for name in names]
    if not all(Path(path).is_absolute() for path in preloaded):
        pytest.skip("needs libasan.so and libstdc++.so.6, as GCC has them; set CXX=g++")
    environment = os.environ | {
        "LD_PRELOAD": " ".join(preloaded),
        "ASAN_OPTIONS": "detect_leaks=0",
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "RMSNORM_DEPLOY_LIBRARY": str(library),
    }
    return subprocess.run(
        [sys.executable, *arguments], env=environment, cwd=ROOT, capture_output=True, text=True, check=False
    )


def clean(done):
    text = done.stdout + done.stderr
    assert done.returncode == 0, text[-6000:]
    assert "Sanitizer" not in text
    assert "runtime error" not in text


def test_the_contract_stays_within_its_blocks(sanitized):
    done = python(sanitized, "-m", "tests.kernels.cpu.exact_blocks", sanitized, "all")
    clean(done)
    assert int(done.stdout.split()[0]) > 5000


def test_one_element_too_few_is_noticed(sanitized):
    """In every tensor; malloc's blocks do not stop the masked accesses of AVX-512, a page behind them does."""
    done = python(sanitized, "-m", "tests.kernels.cpu.exact_blocks", sanitized, "short")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert len(found) >= 12
    for *case, status, report in found:
        assert status != 0, case
        assert "ERROR: AddressSanitizer" in report, (case, report)
        assert IN_OUR_CODE.search(report), (case, report)


@pytest.mark.parametrize(
    ("file", "pattern", "replacement", "message"),
    [
        (
            "cpu/float64.cpp",
            r"(void group\(.*T\* y = .*?i) < (a\.size)",
            r"\1 <= \2",
            "AddressSanitizer: heap-buffer-overflow",
        ),
        (
            "contract/check.cpp",
            r"__builtin_mul_overflow\(result, shape\[i\], &result\)",
            "((result *= shape[i]), false)",
            "runtime error: signed integer overflow",
        ),
    ],
    ids=["one element more", "overflow"],
)
def test_a_planted_fault_is_noticed(build, sanitized, file, pattern, replacement, message):
    with build.planted(file, pattern, replacement):
        faulty = build.make("rmsnorm_deploy")
    done = python(faulty, "-m", "tests.kernels.cpu.exact_blocks", faulty, "all")
    assert done.returncode != 0
    assert message in done.stderr, done.stderr[-4000:]
    assert Path(file).name in done.stderr


@pytest.mark.parametrize(
    ("script", "chosen"),
    [
        # What a tensor takes of memory is another thing with guards around it.
        ("tests/ort/test_onnxruntime.py", "not test_memory_is_reused"),
        # The rest of that file is there for what it computes, and takes its time.
        (
            "tests/ort/test_override.py",
            "(every_type and RMSNorm) or (optional and bias) or threads or refused or not_finite",
        ),
    ],
)
def test_sessions(sanitized, script, chosen):
    pytest_of_its_own = ["-m", "pytest", "-q", "--noconftest", "-c", os.devnull, "-p", "no:cacheprovider", "-k", chosen]
    done = python(sanitized, *pytest_of_its_own, script)
    clean(done)
    assert int(re.search(r"(\d+) passed", done.stdout)[1]) > 20


def run(program, library, **options):
    return subprocess.run([program, library], env=os.environ | options, capture_output=True, text=True, check=False)


def test_nothing_is_left_behind(build, sanitized):
    """Kernels, plans, statuses and refused models, without Python and onnxruntime, which leave much."""
    done = run(build.program(CONCURRENT), sanitized, ASAN_OPTIONS="detect_leaks=1")
    if "LeakSanitizer has encountered a fatal error" in done.stderr:
        pytest.skip("this machine does not let LeakSanitizer trace the program; allow ptrace")
    clean(done)
    with build.planted("ort/custom_op.cpp", r"\{ delete static_cast<Kernel\*>\(data\); \}", "{ (void)data; }"):
        done = run(build.folder / "concurrent", build.make("rmsnorm_deploy"), ASAN_OPTIONS="detect_leaks=1")
    assert done.returncode != 0
    assert "LeakSanitizer: detected memory leaks" in done.stderr, done.stderr


@pytest.fixture(scope="module")
def threads(tmp_path_factory):
    """A build for ThreadSanitizer, with the program that runs it."""
    made = Build(tmp_path_factory.mktemp("thread"), "thread")
    return made, made.program(CONCURRENT)


def test_threads_do_not_race(threads):
    build, program = threads
    done = run(program, build.make("rmsnorm_deploy"))
    clean(done)
    assert "all right" in done.stdout


PLAIN = """struct Plain {
  const KernelTable* table;
  const KernelTable* load(std::memory_order) const { return table; }
  void store(const KernelTable* other, std::memory_order) { table = other; }
};
Plain chosen{nullptr};"""


@pytest.mark.parametrize(
    ("file", "pattern", "replacement"),
    [
        ("cpu/dispatch.cpp", r"std::atomic<const KernelTable\*> chosen\{nullptr\};", PLAIN),
        ("ort/register.cpp", r"const std::lock_guard<std::mutex> lock\(mutex\);", ""),
        (
            "ort/ours/norm_kernel.cpp",
            r"(void NormKernel::compute\(KernelContext\* context\) const \{)",
            r"\1 static int runs = 0; ++runs;",
        ),
        # What one thread has prepared, another reads.
        ("ort/known.cpp", r"each\.load\(std::memory_order_acquire\)", "each.load(std::memory_order_relaxed)"),
    ],
    ids=["the choice of kernels", "registration", "a run", "a norm that is kept"],
)
def test_a_planted_race_is_noticed(threads, file, pattern, replacement):
    build, program = threads
    with build.planted(file, pattern, replacement):
        done = run(program, build.make("rmsnorm_deploy"), TSAN_OPTIONS="halt_on_error=1")
    assert done.returncode != 0
    assert RACE in done.stderr, done.stderr[-3000:]
    assert Path(file).name in done.stderr
