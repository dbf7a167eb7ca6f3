"""Everything that needs a GPU, in one command: build, sanitizers, tests on the device, times.

    make gpu-check                                   # or, with another interpreter, make gpu-check PYTHON=python3.12
    python -m benchmarks.gpu_check --out build/gpu-check
    python -m benchmarks.gpu_check --out build/gpu-check --resume     # go on where a run was interrupted
    python -m benchmarks.gpu_check --rehearse                         # all of it on stand-ins, without a GPU

It takes less than eight minutes and no network, and leaves four files: `gpu.json`, `gpu.md`, `gpu.log` and
`records.jsonl`. Needed are a GPU with its driver, Python with NumPy, and, unless --library names a built library, nvcc,
CMake and a C++ compiler. Used where they are there: pytest, onnx, onnx-ir, ml_dtypes, typer and rich (the kernels' own
tests), compute-sanitizer, ncu, PyTorch, Triton, onnxruntime-gpu, FlashInfer, Liger and quack (to compare with), and the
kernels that `python -m benchmarks.gpu.tvm_kernels` has made elsewhere.

Exit codes: 0 all is well, as far as there was time; 1 a check failed, or a case misses what the kernels have to reach;
2 usage; 4 something is missing that is needed.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu.steps import FAILED, NO_TIME, PASSED, SKIPPED, Budget, Outcome, Share, Steps, end, run, save, start

ROOT = Path(__file__).resolve().parents[1]
SCHEMA_VERSION = 2
MISSING = 4
TESTS_NEED = ("pytest", "onnx", "onnx_ir", "ml_dtypes", "typer", "rich")
PACKAGES = (
    *("numpy", "torch", "triton", "onnxruntime", "onnxruntime-gpu"),
    *("flashinfer-python", "liger-kernel", "quack-kernels", "ml_dtypes", "onnx", "onnx-ir"),
)
CUDA_FOLDERS = ("/usr/local/cuda/bin", "/opt/cuda/bin")
SECONDS = 460.0
# In their order. What only a GPU can tell comes first, and the CPU, which any machine can tell, last.
SHARES = {
    "build": Share(0, 150),
    "smoke": Share(20, 60),
    "memcheck": Share(35, 70),
    "racecheck": Share(35, 70),
    "tests": Share(45, 90),
    "measure": Share(110, 200),
    "decode": Share(15, 30),
    "counters": Share(20, 40),
    "cpu": Share(15, 120),
}
QUICK = {"rows": "1,16", "sizes": "64,1024"}
STILL = 15  # a check whose calls are small, and that says nothing for so many seconds, hangs


class Absent(Exception):
    """Something that is needed is not there: what, and how to get it."""


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def tool(name: str, *folders: str | Path) -> str | None:
    """A program on the PATH or in the usual places."""
    return shutil.which(name) or shutil.which(name, path=os.pathsep.join(map(str, (*folders, *CUDA_FOLDERS))))


def checksum(paths: Sequence[Path]) -> str:
    found = hashlib.sha256()
    for path in sorted(paths):
        found.update(path.name.encode() + b"\0" + path.read_bytes())
    return found.hexdigest()[:16]


class Check:
    """The steps, in order, and what came of each."""

    def __init__(self, given: argparse.Namespace) -> None:
        self.given = given
        self.begin = time.monotonic()
        self.library: Path | None = given.library
        self.compilers: list[subprocess.Popen[bytes]] = []
        for folder in (given.out, given.work):
            folder.mkdir(parents=True, exist_ok=True)
        self.log, self.records = given.out / "gpu.log", given.out / "records.jsonl"
        # of the kernels that are checked: a run goes on with the results of the same ones only
        sources = [path for path in (ROOT / "ops").rglob("*") if path.is_file()]
        self.kernels = checksum([self.library] if self.library else sources)
        earlier = self.earlier()
        if not earlier:
            for file in (self.log, self.records, given.out / "gpu.json", given.out / "gpu.md"):
                file.unlink(missing_ok=True)
        self.found: dict[str, Any] = {
            name: earlier[name] for name in ("measured", "decode", "counters") if earlier.get(name)
        }
        # A measurement goes on by itself with the cases that have no record.
        known = [s for s in earlier.get("steps", []) if s["status"] == PASSED and s["name"] not in ("build", "measure")]
        self.steps = Steps(Budget(given.seconds, SECONDS, SHARES), known, lambda _: self.write(), say)

    def earlier(self) -> dict[str, Any]:
        """The result of the run that this one continues, if it was of the same kernels."""
        if not self.given.resume:
            return {}
        try:
            found: dict[str, Any] = json.loads((self.given.out / "gpu.json").read_text())
        except (OSError, ValueError):
            return {}
        same = found.get("schema_version") == SCHEMA_VERSION and found.get("kernels") == self.kernels
        return found if same else {}

    def environment(self) -> dict[str, str]:
        path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH", ""))))
        made = os.environ | {"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONUNBUFFERED": "1"}
        made["TORCHINDUCTOR_COMPILE_THREADS"] = "1"  # the processes of compile_ahead are its pool
        return made | ({"RMSNORM_DEPLOY_LIBRARY": str(self.library)} if self.library else {})

    def run(self, name: str, command: Sequence[str | Path], limit: float) -> Outcome:
        environment = self.environment()
        if self.given.rehearse and name in ("cpu", "decode"):  # the stand-in for the library has nothing for a CPU
            del environment["RMSNORM_DEPLOY_LIBRARY"]
        return run(command, limit, self.log, name, cwd=ROOT, env=environment)

    def command(self, name: str, command: Sequence[str | Path], limit: float) -> tuple[str, str]:
        """A step that is one command: it passes where that ends with 0."""
        done = self.run(name, command, limit)
        if done.status is None:
            return NO_TIME, f"not done within {limit:.0f} s: {done.last}"
        return (PASSED, done.last) if done.status == 0 else (FAILED, f"exit status {done.status}: {done.last}")

    def module(self, name: str, *arguments: str | Path) -> list[str | Path]:
        return [sys.executable, "-m", f"benchmarks.gpu.{name}", self.library or "", *arguments]

    # -- the steps -----------------------------------------------------------------------------------------------------

    def build(self, limit: float) -> tuple[str, str]:
        folder = self.given.work / "library"
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
        only = ["-k", "in_place or zero_sizes or graph"] if self.given.quick else []
        return self.pytest("tests", limit, ROOT / "tests" / "kernels" / "device", *only)

    def cpu_tests(self, limit: float) -> tuple[str, str]:
        folder = ROOT / "tests" / "kernels" / "cpu"
        only = ["-k", "zero_sizes"] if self.given.quick else []
        return self.pytest("cpu", limit, folder / "test_contract.py", folder / "test_accuracy.py", *only)

    def grid(self) -> list[str]:
        """Options of the measurement: which cases."""
        usual = QUICK if self.given.quick else {}
        named = {name: getattr(self.given, name) or usual.get(name) for name in ("rows", "sizes", "dtype")}
        return [part for name, value in named.items() if value for part in (f"--{name}", value)]

    def compile_ahead(self) -> None:
        """Start to compile what torch.compile and Triton need, beside the steps before the measurement."""
        if not self.given.rehearse and (self.given.quick or not importlib.util.find_spec("torch")):
            return
        count = max(1, min(6, (os.cpu_count() or 2) // 2 - 1))
        for part in range(count):
            with (self.given.work / f"compile-{part}.log").open("wb") as log:
                command = self.module("measure", "--compile-only", f"{part}/{count}", *self.grid())
                self.compilers.append(start(command, log, cwd=ROOT, env=self.environment()))

    def end_compilers(self) -> None:
        for process in self.compilers:
            end(process)
        self.compilers = []

    def measure(self, limit: float) -> tuple[str, str]:
        self.end_compilers()  # what is compiled is in the compilers' caches; the rest would disturb
        target = self.given.out / "measured.json"
        stop = time.monotonic() + limit
        command = self.module("measure", "--json", target, "--records", self.records, "--kernels", self.kernels)
        command += ["--seconds", f"{max(5, limit - 10):.0f}"]
        if self.given.tvm:
            command += ["--tvm", self.given.tvm]
        command += self.grid()
        status, detail = self.command("measure", command, stop - time.monotonic())
        if target.is_file():
            self.found["measured"] = json.loads(target.read_text())
            target.unlink()
        measured = self.found.get("measured")
        if status != FAILED and measured:
            cases, left = measured["cases"], measured["left"]
            detail = f"{cases - left} of {cases} cases, {len(measured['records'])} records"
            status = NO_TIME if left else PASSED
        return status, detail

    def part(self, name: str, limit: float, *arguments: str | Path) -> tuple[str, str]:
        """A measurement of its own: a program that leaves a JSON file, and ends with 4 where something is missing."""
        target = self.given.work / f"{name}.json"
        target.unlink(missing_ok=True)
        quick = ["--quick"] if self.given.quick else []
        command = self.module(name, "--json", target, "--seconds", f"{max(1, limit - 5):.0f}", *quick, *arguments)
        done = self.run(name, command, limit)
        if target.is_file():
            self.found[name] = json.loads(target.read_text())
        if done.status is None:
            return NO_TIME, f"not done within {limit:.0f} s: {done.last}"
        return {0: PASSED, MISSING: SKIPPED}.get(done.status, FAILED), done.last

    def decode(self, limit: float) -> tuple[str, str]:
        return self.part("decode", limit, *(["--provider", self.given.provider] if self.given.provider else []))

    def counters(self, limit: float) -> tuple[str, str]:
        nvcc = tool("nvcc")
        found = tool("ncu", *([Path(nvcc).resolve().parent] if nvcc else []))
        return self.part("counters", limit, "--ncu", found) if found else (SKIPPED, "ncu is not installed")

    def all(self) -> int:
        """Run everything; the exit code."""
        step = self.steps.step
        if self.library is None and step("build", self.build) != PASSED:
            return self.finish()
        try:
            # Where few calls are wrong or hang the GPU, nothing behind them would mean anything.
            if step("smoke", self.smoke) == FAILED:
                return self.finish()
            self.compile_ahead()
            step("memcheck", lambda limit: self.sanitizer("memcheck", limit))
            step("racecheck", lambda limit: self.sanitizer("racecheck", limit, "float16"))
            step("tests", self.device_tests)
            step("measure", self.measure)
            step("decode", self.decode)
            step("counters", self.counters)
            step("cpu", self.cpu_tests)
        finally:
            self.end_compilers()
        return self.finish()

    # -- what comes of it ----------------------------------------------------------------------------------------------

    def write(self) -> list[str]:
        """Write gpu.json and gpu.md as far as they are known; what the kernels miss."""
        from benchmarks.gpu import table

        versions: dict[str, str] = {}
        for package in PACKAGES:
            try:
                versions[package] = importlib.metadata.version(package)
            except importlib.metadata.PackageNotFoundError:
                continue
        measured = self.found.get("measured")
        unmet = table.unmet(measured["records"]) if measured else []
        result = {
            "schema_version": SCHEMA_VERSION,
            "python": platform.python_version(),
            "versions": versions,
            "seconds": round(time.monotonic() - self.begin, 1),
            "kernels": self.kernels,
            "steps": self.steps.done,
            "unmet": unmet,
            **{name: self.found.get(name) for name in ("measured", "decode", "counters")},
        }
        save(self.given.out / "gpu.json", result)
        (self.given.out / "gpu.md").write_text(table.text(result, markdown=True))
        return unmet

    def finish(self) -> int:
        from benchmarks.gpu import table

        unmet = self.write()
        if self.found.get("measured"):
            print(table.text(json.loads((self.given.out / "gpu.json").read_text()), markdown=False))
        named = {
            status: ", ".join(step["name"] for step in self.steps.done if step["status"] == status) or "none"
            for status in (NO_TIME, FAILED)
        }
        seconds = time.monotonic() - self.begin
        say(f"{self.given.out / 'gpu.json'}: {seconds:.1f} s, no time for: {named[NO_TIME]}, failed: {named[FAILED]}")
        return 1 if named[FAILED] != "none" or unmet else 0


def arguments(given: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="gpu-check", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    build = ROOT / "build"
    parser.add_argument("--out", type=Path, default=build / "gpu-check", help="folder of the results")
    parser.add_argument(
        "--work", type=Path, default=build / "gpu-check-work", help="folder of what is only needed here"
    )
    parser.add_argument("--library", type=Path, help="a library that was built with CUDA, to use in place of building")
    parser.add_argument("--tvm", type=Path, help="folder of benchmarks.gpu.tvm_kernels, to measure TVM's kernels too")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="for everything together")
    parser.add_argument("--resume", action="store_true", help="go on with what an interrupted run has left in --out")
    parser.add_argument("--rehearse", action="store_true", help="on stand-ins for the GPU, its driver and the tools")
    parser.add_argument("--quick", action="store_true", help="few tests and cases, to see that it works")
    parser.add_argument("--stage", type=Path, help=argparse.SUPPRESS)  # stand-ins that are built already
    parser.add_argument("--provider", help=argparse.SUPPRESS)  # of the decode step, in a rehearsal
    for name, what in (("rows", "1,16"), ("sizes", "64,4096"), ("dtype", "float16,float32")):
        parser.add_argument(f"--{name}", help=f"measure these only, as in {what}")
    made = parser.parse_args(given)
    made.out, made.work = made.out.resolve(), made.work.resolve()
    carried = ROOT / "build" / "tvm-kernels"
    made.tvm = made.tvm.resolve() if made.tvm else carried if (carried / "kernels.fatbin").is_file() else None
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
        if options.rehearse:
            from tests.support.cuda import rehearsal

            stage = (
                rehearsal.Stage.at(options.stage)
                if options.stage
                else rehearsal.Stage.in_folder(options.work / "stage")
            )
            os.environ.update(stage.environment)
            options.library, options.tvm, options.quick = options.library or stage.library, stage.tvm, True
            options.provider = "CPUExecutionProvider"
        from benchmarks.gpu.driver import cuda

        if problem := cuda.driver().problem:
            raise Absent(f"there is no GPU to check: {problem}")
        return Check(options).all()
    except Absent as error:
        say(f"gpu-check: {error}")
        return MISSING


if __name__ == "__main__":
    sys.exit(main())
