"""Everything that needs a GPU, in one command: build, tests on the device, sanitizers, bandwidth.

    make gpu-check                                   # or, with another interpreter, make gpu-check PYTHON=python3.12
    python -m benchmarks.gpu_check --out build/gpu-check

It takes less than eight minutes and no network, and writes `gpu.json` and `gpu.md`. Needed are a GPU with its driver,
Python with NumPy, and, unless --library names a built library, nvcc, CMake and a C++ compiler. Used where they are
there: pytest, onnx, onnx-ir, ml_dtypes, typer and rich (the kernels' own tests; else a smaller check runs),
compute-sanitizer, PyTorch, Triton, onnxruntime-gpu, FlashInfer, Liger and quack (to compare with).

Exit codes: 0 all is well; 1 a check failed, or a case misses what the kernels have to reach; 2 usage; 4 something is
missing that is needed.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import importlib.util
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SCHEMA_VERSION = 1
MISSING = 4
TESTS_NEED = ("pytest", "onnx", "onnx_ir", "ml_dtypes", "typer", "rich")
PACKAGES = (
    *("numpy", "torch", "triton", "onnxruntime", "onnxruntime-gpu"),
    *("flashinfer-python", "liger-kernel", "quack-kernels", "ml_dtypes", "onnx"),
)
CUDA_FOLDERS = ("/usr/local/cuda/bin", "/opt/cuda/bin")
QUICK = {"rows": "1,16", "sizes": "64,1024"}


class Absent(Exception):
    """Something that is needed is not there: what, and how to get it."""


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def tool(name: str, *folders: str | Path) -> str | None:
    """A program on the PATH or in the usual places."""
    return shutil.which(name) or shutil.which(name, path=os.pathsep.join(map(str, (*folders, *CUDA_FOLDERS))))


def end(process: subprocess.Popen[bytes]) -> None:
    """End a process and all that it started: what stays behind would use the GPU beside the measurement."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


class Check:
    """The steps, in order, and what came of each."""

    def __init__(self, given: argparse.Namespace) -> None:
        self.given = given
        self.begin = time.monotonic()
        self.steps: list[dict[str, Any]] = []
        self.library: Path | None = given.library
        self.measured: dict[str, Any] | None = None
        self.compilers: list[subprocess.Popen[bytes]] = []
        given.out.mkdir(parents=True, exist_ok=True)

    def left(self) -> float:
        return self.given.seconds - (time.monotonic() - self.begin)

    def environment(self) -> dict[str, str]:
        path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH", ""))))
        made = os.environ | {"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
        return made | ({"RMSNORM_DEPLOY_LIBRARY": str(self.library)} if self.library else {})

    def run(self, name: str, command: Sequence[str | Path], limit: float) -> tuple[int | None, str]:
        """Exit status, or None after ``limit`` seconds, and the output, which is also kept in a file."""
        log = self.given.out / f"{name}.log"
        with log.open("wb") as file:
            process = subprocess.Popen(
                [str(part) for part in command],
                stdout=file,
                stderr=subprocess.STDOUT,
                cwd=ROOT,
                env=self.environment(),
                start_new_session=True,
            )
            status: int | None = None
            try:
                status = process.wait(max(limit, 1))
            except subprocess.TimeoutExpired:
                pass
            finally:
                if status is None:
                    end(process)
        return status, log.read_text(errors="replace")

    def step(self, name: str, work: Callable[[], tuple[str, str]]) -> str:
        """Run one step, which answers with its status (passed, failed or skipped) and a sentence."""
        start = time.monotonic()
        status, detail = work()
        seconds = time.monotonic() - start
        self.steps.append({"name": name, "status": status, "seconds": round(seconds, 1), "detail": detail})
        say(f"{status:<8} {name:<12} {seconds:5.1f} s  {detail}")
        return status

    def command(self, name: str, command: Sequence[str | Path], limit: float) -> tuple[str, str]:
        """A step that is one command: it passes where that ends with 0."""
        status, text = self.run(name, command, limit)
        last = (text.strip().splitlines() or [""])[-1]
        if status is None:
            return "failed", f"ran past {limit:.0f} s; see {name}.log"
        if status == 0:
            return "passed", last
        return "failed", f"exit status {status}, see {name}.log: {last}"

    # -- the steps -----------------------------------------------------------------------------------------------------

    def build(self) -> tuple[str, str]:
        folder = self.given.out / "library"
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
        status, text = self.run(
            "configure", [cmake, "-S", ROOT / "ops", "-B", folder, *generator, *options], min(90, self.left())
        )
        if status:
            return "failed", f"cmake failed, see configure.log: {(text.strip().splitlines() or [''])[-1]}"
        jobs = str(os.cpu_count() or 2)
        result = self.command("build", [cmake, "--build", folder, "--parallel", jobs], min(240, self.left()))
        found = sorted(folder.glob("librmsnorm_deploy.*"))
        if result[0] == "passed" and found:
            self.library = found[0].resolve()
            return "passed", str(self.library)
        return result

    def smoke(self) -> tuple[str, str]:
        return self.command(
            "smoke", [sys.executable, "-m", "benchmarks.gpu.smoke", self.library or ""], min(90, self.left())
        )

    def pytest(self, name: str, *arguments: str | Path) -> tuple[str, str]:
        lacking = [package for package in TESTS_NEED if importlib.util.find_spec(package) is None]
        if lacking:
            return "skipped", f"needs {', '.join(lacking)} in this Python"
        options = ["-q", "--tb=short", "--maxfail=20", "-c", os.devnull, f"--rootdir={ROOT}", "-p", "no:cacheprovider"]
        limit = min(150, self.left() - self.given.least)
        if limit < 10:
            return "skipped", "no time left"
        status, detail = self.command(name, [sys.executable, "-m", "pytest", *options, *arguments], limit)
        if status == "passed" and " passed" not in detail:
            return "failed", f"no test ran: {detail}"
        return status, detail

    def device_tests(self) -> tuple[str, str]:
        only = ["-k", "in_place or zero_sizes or graph"] if self.given.quick else []
        return self.pytest("tests", ROOT / "tests" / "kernels" / "device", *only)

    def cpu_tests(self) -> tuple[str, str]:
        folder = ROOT / "tests" / "kernels" / "cpu"
        return self.pytest("cpu", folder / "test_contract.py", folder / "test_accuracy.py")

    def sanitizer(self, which: str, *dtypes: str) -> tuple[str, str]:
        nvcc = tool("nvcc")
        found = tool("compute-sanitizer", *([Path(nvcc).resolve().parent] if nvcc else []))
        if not found:
            return "skipped", "compute-sanitizer is not installed; it comes with the CUDA toolkit"
        smoke = [sys.executable, "-m", "benchmarks.gpu.smoke", self.library or "", *dtypes]
        command = [found, "--tool", which, "--error-exitcode", "97", *smoke]
        limit = min(75, self.left() - self.given.least)
        if limit < 10:
            return "skipped", "no time left"
        status, text = self.run(which, command, limit)
        summary = [line for line in text.splitlines() if "SUMMARY" in line]
        detail = summary[-1].strip("= ") if summary else (text.strip().splitlines() or [""])[-1]
        if status is None:
            return "skipped", f"not done within {limit:.0f} s"
        if "Device not supported" in text:
            return "skipped", "compute-sanitizer says that this device is not supported here"
        return ("passed" if status == 0 else "failed"), detail

    def compile_ahead(self) -> None:
        """Start to compile what torch.compile needs, beside the steps before the measurement."""
        if self.given.quick or not importlib.util.find_spec("torch"):
            return
        count = max(1, min(8, (os.cpu_count() or 2) // 2))
        for part in range(count):
            command = [sys.executable, "-m", "benchmarks.gpu.measure", str(self.library)]
            with (self.given.out / f"compile-{part}.log").open("wb") as log:
                self.compilers.append(
                    subprocess.Popen(
                        [*command, "--compile-only", f"{part}/{count}"],
                        stdout=log,
                        stderr=log,
                        cwd=ROOT,
                        env=self.environment(),
                        start_new_session=True,
                    )
                )

    def end_compilers(self, wait: float) -> None:
        stop = time.monotonic() + wait
        for process in self.compilers:
            try:
                process.wait(max(0.1, stop - time.monotonic()))
            except subprocess.TimeoutExpired:
                end(process)
        self.compilers = []

    def measure(self) -> tuple[str, str]:
        self.end_compilers(max(0, min(45, self.left() - 60)))
        target = self.given.out / "measured.json"
        target.unlink(missing_ok=True)
        seconds = max(20, min(self.left() - 15, 270))
        command = [sys.executable, "-m", "benchmarks.gpu.measure", self.library or "", "--json", target]
        command += ["--seconds", str(seconds)]
        grid = QUICK if self.given.quick else {}
        for name in ("rows", "sizes", "dtype"):
            if value := getattr(self.given, name) or grid.get(name):
                command += [f"--{name}", value]
        status, detail = self.command("measure", command, max(20, min(seconds + 30, self.left())))
        if target.is_file():
            self.measured = json.loads(target.read_text())
            detail = detail if status == "failed" else f"{len(self.measured['records'])} records"
        return status, detail

    def all(self) -> int:
        """Run everything; the exit code."""
        if self.library is None and self.step("build", self.build) == "failed":
            return self.finish()
        try:
            self.compile_ahead()
            # Where few calls are wrong or hang the GPU, nothing behind them would mean anything.
            if self.step("smoke", self.smoke) == "failed":
                return self.finish()
            self.step("tests", self.device_tests)
            if not self.given.quick:
                self.step("cpu", self.cpu_tests)
            self.step("memcheck", lambda: self.sanitizer("memcheck"))
            self.step("racecheck", lambda: self.sanitizer("racecheck", "float16"))
            self.step("measure", self.measure)
        finally:
            self.end_compilers(0)
        return self.finish()

    def finish(self) -> int:
        from benchmarks.gpu import table

        versions: dict[str, str] = {}
        for package in PACKAGES:
            try:
                versions[package] = importlib.metadata.version(package)
            except importlib.metadata.PackageNotFoundError:
                continue
        unmet = table.unmet(self.measured["records"]) if self.measured else []
        result = {
            "schema_version": SCHEMA_VERSION,
            "python": platform.python_version(),
            "versions": versions,
            "seconds": round(time.monotonic() - self.begin, 1),
            "steps": self.steps,
            "unmet": unmet,
            "measured": self.measured,
        }
        (self.given.out / "gpu.json").write_text(json.dumps(result, indent=1) + "\n")
        if self.measured and self.measured["records"]:
            (self.given.out / "gpu.md").write_text(table.text(self.measured, markdown=True))
            print(table.text(self.measured, markdown=False))
        failed = [step["name"] for step in self.steps if step["status"] == "failed"]
        say(f"{self.given.out / 'gpu.json'}: {result['seconds']} s, failed: {', '.join(failed) or 'none'}")
        return 1 if failed or unmet else 0


def arguments(given: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="gpu-check", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "gpu-check", help="folder of the results")
    parser.add_argument("--library", type=Path, help="a library that was built with CUDA, to use in place of building")
    parser.add_argument("--seconds", type=float, default=460, help="for everything together")
    parser.add_argument("--quick", action="store_true", help="few tests and cases, to see that it works")
    for name, what in (("rows", "1,16"), ("sizes", "64,4096"), ("dtype", "float16,float32")):
        parser.add_argument(f"--{name}", help=f"measure these only, as in {what}")
    made = parser.parse_args(given)
    made.out = made.out.resolve()
    made.least = 30 if made.quick else 200  # seconds that are kept for the measurement
    if made.library is not None:
        made.library = made.library.resolve()
        if not made.library.is_file():
            parser.error(f"{made.library} is not a file")
    return made


def main(given: Sequence[str] | None = None) -> int:
    options = arguments(given)
    try:
        if importlib.util.find_spec("numpy") is None:
            raise Absent(f"NumPy is not installed for {sys.executable}; install it, or name another Python: PYTHON=...")
        from benchmarks.gpu.driver import cuda

        if problem := cuda.driver().problem:
            raise Absent(f"there is no GPU to check: {problem}")
        return Check(options).all()
    except Absent as error:
        say(f"gpu-check: {error}")
        return MISSING


if __name__ == "__main__":
    sys.exit(main())
