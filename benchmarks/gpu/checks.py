"""The checks of gpu-check that say right or wrong: build, smoke, sanitizers, the kernels' own tests."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.gpu.steps import FAILED, NO_TIME, PASSED, SKIPPED, Outcome, run

ROOT = Path(__file__).resolve().parents[2]
TESTS_NEED = ("pytest", "onnx", "onnx_ir", "ml_dtypes", "typer", "rich")
CUDA_FOLDERS = ("/usr/local/cuda/bin", "/opt/cuda/bin")
STILL = 15  # a check whose calls are small, and that says nothing for so many seconds, hangs


class Absent(Exception):
    """Something that is needed is not there: what, and how to get it."""


def tool(name: str, *folders: str | Path) -> str | None:
    """A program on the PATH or in the usual places."""
    return shutil.which(name) or shutil.which(name, path=os.pathsep.join(map(str, (*folders, *CUDA_FOLDERS))))


class Checks:
    """Commands that run with one library, and what came of them.

    Attributes:
        library: the kernels that are checked; None before they are built.
        work: folder of what is only needed here.
        log: file of everything that the commands say.
        quick: whether few tests are enough.
        rehearse: whether the library is a stand-in, which has kernels for the GPU only.
    """

    def __init__(self, library: Path | None, work: Path, log: Path, *, quick: bool, rehearse: bool) -> None:
        self.library, self.work, self.log, self.quick, self.rehearse = library, work, log, quick, rehearse

    def environment(self) -> dict[str, str]:
        path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH", ""))))
        made = os.environ | {"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONUNBUFFERED": "1"}
        made["TORCHINDUCTOR_COMPILE_THREADS"] = "1"  # the processes of compile_ahead are its pool
        return made | ({"RMSNORM_DEPLOY_LIBRARY": str(self.library)} if self.library else {})

    def run(self, name: str, command: Sequence[str | Path], limit: float) -> Outcome:
        environment = self.environment()
        if self.rehearse and name in ("cpu", "decode"):  # the stand-in for the library has nothing for a CPU
            del environment["RMSNORM_DEPLOY_LIBRARY"]
            named = os.environ.get("RMSNORM_DEPLOY_LIBRARY")
            environment |= {"RMSNORM_DEPLOY_LIBRARY": named} if named else {}
        return run(command, limit, self.log, name, cwd=ROOT, env=environment)

    def command(self, name: str, command: Sequence[str | Path], limit: float) -> tuple[str, str]:
        """A step that is one command: it passes where that ends with 0."""
        done = self.run(name, command, limit)
        if done.status is None:
            return NO_TIME, f"not done within {limit:.0f} s: {done.last}"
        return (PASSED, done.last) if done.status == 0 else (FAILED, f"exit status {done.status}: {done.last}")

    def module(self, name: str, *arguments: str | Path) -> list[str | Path]:
        return [sys.executable, "-m", f"benchmarks.gpu.{name}", self.library or "", *arguments]

    def architectures(self) -> list[str]:
        """This GPU's, as CMake calls it; nothing if it does not say. The others would only take their time here."""
        ask = "from benchmarks.gpu.driver import Gpu; print(Gpu().capability.replace('.', ''))"
        # in a process of its own, so that this one holds none of the GPU's memory
        done = self.run("capability", [sys.executable, "-c", ask], 20)
        return [f"{done.last}-real"] if done.status == 0 and done.last.isdigit() else []

    def build(self, limit: float) -> tuple[str, str]:
        folder = self.work / "library"
        nvcc = os.environ.get("CUDACXX") or tool("nvcc")
        cmake = tool("cmake", Path(sys.executable).parent)
        lacking = [name for name, path in (("nvcc", nvcc), ("cmake", cmake)) if not path]
        # not run/toolchain.py, which needs more of the package: this runs where only NumPy is installed
        if not (tool("c++") or tool("g++") or os.environ.get("CXX")):
            lacking.append("a C++ compiler")
        if lacking or not nvcc or not cmake:
            raise Absent(
                f"{', '.join(lacking)} not found: install the CUDA toolkit, CMake and g++, or name a --library"
            )
        generator = ["-G", "Ninja"] if tool("ninja", Path(sys.executable).parent) else []
        if generator and not shutil.which("ninja"):
            generator.append(f"-DCMAKE_MAKE_PROGRAM={tool('ninja', Path(sys.executable).parent)}")
        options = [f"-DCMAKE_CUDA_COMPILER={nvcc}", "-DRMSNORM_DEPLOY_CUDA=ON", "-DCMAKE_BUILD_TYPE=Release"]
        options += [f"-DCMAKE_CUDA_ARCHITECTURES={arch}" for arch in self.architectures()]
        stop = time.monotonic() + limit
        made = self.command("configure", [cmake, "-S", ROOT / "ops", "-B", folder, *generator, *options], limit)
        if made[0] != PASSED:
            return made
        build = [cmake, "--build", folder, "--parallel", str(os.cpu_count() or 2)]
        made = self.command("build", build, stop - time.monotonic())
        found = sorted(folder.glob("librmsnorm_deploy.*"))
        if made[0] == PASSED and found:
            self.library = found[0].resolve()
            return PASSED, str(self.library)
        return made

    def smoke(self, limit: float) -> tuple[str, str]:
        done = self.run("smoke", self.module("smoke"), limit)
        if done.status is None:
            hangs = done.still > min(STILL, 0.5 * limit)
            return (
                FAILED if hangs else NO_TIME
            ), f"{'hangs' if hangs else 'not done'} after {limit:.0f} s: {done.last}"
        return (PASSED if done.status == 0 else FAILED), done.last

    def sanitizer(self, which: str, limit: float, *dtypes: str) -> tuple[str, str]:
        nvcc = tool("nvcc")
        found = tool("compute-sanitizer", *([Path(nvcc).resolve().parent] if nvcc else []))
        if not found:
            return SKIPPED, "compute-sanitizer is not installed; it comes with the CUDA toolkit"
        done = self.run(
            which, [found, "--tool", which, "--error-exitcode", "97", *self.module("smoke", *dtypes)], limit
        )
        summary = [line.strip("= ") for line in done.text.splitlines() if "SUMMARY" in line]
        if "Device not supported" in done.text:
            return SKIPPED, "compute-sanitizer says that this device is not supported here"
        if done.status is None:
            # what it says of a fault is there at once, before it ends
            wrong = re.search(r"^=+ (Invalid|Error:|Program hit|Race reported).*", done.text, re.MULTILINE)
            if wrong:
                return FAILED, wrong[0].strip("= ")
            return NO_TIME, f"not done within {limit:.0f} s, nothing wrong so far: {done.last}"
        return (PASSED if done.status == 0 else FAILED), summary[-1] if summary else done.last

    def pytest(self, name: str, limit: float, *arguments: str | Path) -> tuple[str, str]:
        lacking = [package for package in TESTS_NEED if importlib.util.find_spec(package) is None]
        if lacking:
            return SKIPPED, f"needs {', '.join(lacking)} in this Python"
        options = ["-v", "--tb=short", "--maxfail=20", "-c", os.devnull, f"--rootdir={ROOT}", "-p", "no:cacheprovider"]
        done = self.run(name, [sys.executable, "-m", "pytest", *options, *arguments], limit)
        if done.status is None:
            # one line for each test, as long as it is not done
            count = {word: len(re.findall(rf" {word}\b", done.text)) for word in ("PASSED", "FAILED", "ERROR")}
            wrong = count["FAILED"] + count["ERROR"]
            text = f"not done within {limit:.0f} s: {count['PASSED']} passed and {wrong} failed so far"
            return (FAILED if wrong else NO_TIME), text
        detail = done.last.strip("= ")
        if done.status:
            return FAILED, f"exit status {done.status}: {detail}"
        return (PASSED, detail) if " passed" in detail else (FAILED, f"no test ran: {detail}")

    def device_tests(self, limit: float) -> tuple[str, str]:
        only = ["-k", "in_place or zero_sizes or graph"] if self.quick else []
        return self.pytest("tests", limit, ROOT / "tests" / "kernels" / "device", *only)

    def cpu_tests(self, limit: float) -> tuple[str, str]:
        folder = ROOT / "tests" / "kernels" / "cpu"
        only = ["-k", "zero_sizes"] if self.quick else []
        return self.pytest("cpu", limit, folder / "test_contract.py", folder / "test_accuracy.py", *only)
