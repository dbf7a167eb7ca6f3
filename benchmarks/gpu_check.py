"""Everything that needs a GPU, in one command: build, sanitizers, tests on the device, times.

    make gpu-check                                   # or, with another interpreter, make gpu-check PYTHON=python3.12
    python -m benchmarks.gpu_check --out build/gpu-check
    python -m benchmarks.gpu_check --out build/gpu-check --resume     # go on where a run was interrupted
    python -m benchmarks.gpu_check --out build/gpu-check --report     # only put together what is there
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
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu.checks import ROOT, Absent, Checks, tool
from benchmarks.gpu.records import Records
from benchmarks.gpu.steps import FAILED, NO_TIME, PASSED, SKIPPED, Budget, Share, Steps, end, save, start

SCHEMA_VERSION = 2
MISSING = 4
PACKAGES = (
    *("numpy", "torch", "triton", "onnxruntime", "onnxruntime-gpu"),
    *("flashinfer-python", "liger-kernel", "quack-kernels", "ml_dtypes", "onnx", "onnx-ir"),
)
SECONDS = 460.0
# In their order. What only a GPU can tell comes first, and the CPU, which any machine can tell, last.
SHARES = {
    "build": Share(0, 165),
    "smoke": Share(20, 60),
    "memcheck": Share(35, 70),
    "racecheck": Share(35, 70),
    "tests": Share(45, 90),
    "measure": Share(110, 200),
    "products": Share(15, 40),
    "decode": Share(15, 30),
    "counters": Share(20, 40),
    "cpu": Share(15, 120),
}
PARTS = ("products", "decode", "counters")
"""Steps that leave a file of their own."""
QUICK = {"rows": "1,16", "sizes": "64,1024"}


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def checksum(paths: Sequence[Path]) -> str:
    found = hashlib.sha256()
    for path in sorted(paths):
        found.update(path.name.encode() + b"\0" + path.read_bytes())
    return found.hexdigest()[:16]


class Check(Checks):
    """The steps, in order, and what came of each."""

    def __init__(self, given: argparse.Namespace) -> None:
        self.given = given
        self.begin = time.monotonic()
        self.compilers: list[subprocess.Popen[bytes]] = []
        for folder in (given.out, given.work):
            folder.mkdir(parents=True, exist_ok=True)
        super().__init__(given.library, given.work, given.out / "gpu.log", quick=given.quick, rehearse=given.rehearse)
        self.records = given.out / "records.jsonl"
        # of the kernels that are checked: a run goes on with the results of the same ones only
        sources = [path for path in (ROOT / "ops").rglob("*") if path.is_file()]
        self.kernels = checksum([self.library] if self.library else sources)
        earlier = self.earlier()
        if not earlier:
            for file in (self.log, self.records, given.out / "gpu.json", given.out / "gpu.md"):
                file.unlink(missing_ok=True)
        self.found: dict[str, Any] = {name: earlier[name] for name in PARTS if earlier.get(name)}
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
        stop = time.monotonic() + limit
        if limit <= 5:
            return NO_TIME, f"{limit:.0f} s are too few for a case"
        status, detail, done = FAILED, "", -1
        # A case that takes the GPU's context down costs the process; the others are measured by the next one.
        while status == FAILED and stop - time.monotonic() > 5 and self.measured_cases() > done:
            done = self.measured_cases()
            command = self.module("measure", "--records", self.records, "--kernels", self.kernels, *self.grid())
            command += ["--seconds", f"{max(5, stop - time.monotonic() - 10):.0f}"]
            if self.given.tvm:
                command += ["--tvm", self.given.tvm]
            status, detail = self.command("measure", command, stop - time.monotonic())
        measured = self.measured()
        if measured and measured["failed"]:
            return FAILED, "; ".join(measured["failed"])
        if measured and status != FAILED:
            cases, left = measured["cases"], measured["left"]
            return (NO_TIME if left else PASSED), f"{cases - left} of {cases} cases, {len(measured['records'])} records"
        return status, detail

    def measured(self) -> dict[str, Any] | None:
        """What stands in the records, if anything does."""
        found = Records.read(self.records)
        return found.result() if found else None

    def measured_cases(self) -> int:
        found = Records.read(self.records)
        return len(found.of("case")) if found else 0

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

    def products(self, limit: float) -> tuple[str, str]:
        return self.part("products", limit, *(["--cublas", self.given.cublas] if self.given.cublas else []))

    def decode(self, limit: float) -> tuple[str, str]:
        return self.part("decode", limit, *(["--provider", self.given.provider] if self.given.provider else []))

    def counters(self, limit: float) -> tuple[str, str]:
        nvcc = tool("nvcc")
        found = tool("ncu", *([Path(nvcc).resolve().parent] if nvcc else []))
        return self.part("counters", limit, "--ncu", found) if found else (SKIPPED, "ncu is not installed")

    def all(self) -> int:
        """Run everything; the exit code."""
        self.write()  # so that there is a result from the first second on
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
            step("products", self.products)
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
        measured = self.measured()
        unmet = table.unmet(measured["records"]) if measured else []
        result = {
            "schema_version": SCHEMA_VERSION,
            "python": platform.python_version(),
            "versions": versions,
            "seconds": round(time.monotonic() - self.begin, 1),
            "kernels": self.kernels,
            "steps": self.steps.done,
            "unmet": unmet,
            "measured": measured,
            **{name: self.found.get(name) for name in PARTS},
        }
        save(self.given.out / "gpu.json", result)
        (self.given.out / "gpu.md").write_text(table.text(result, markdown=True))
        return unmet

    def finish(self) -> int:
        from benchmarks.gpu import table

        unmet = self.write()
        if self.measured():
            print(table.text(json.loads((self.given.out / "gpu.json").read_text()), markdown=False))
        named = {
            status: ", ".join(step["name"] for step in self.steps.done if step["status"] == status) or "none"
            for status in (NO_TIME, FAILED)
        }
        seconds = time.monotonic() - self.begin
        say(f"{self.given.out / 'gpu.json'}: {seconds:.1f} s, no time for: {named[NO_TIME]}, failed: {named[FAILED]}")
        return 1 if named[FAILED] != "none" or unmet else 0


def report(out: Path) -> int:
    """What an interrupted run has left, with the cases that it had measured; needs no GPU."""
    from benchmarks.gpu import table

    found = Records.read(out / "records.jsonl")
    try:
        result: dict[str, Any] = json.loads((out / "gpu.json").read_text())
    except (OSError, ValueError) as error:
        raise Absent(f"there is no result in {out}: {error}") from error
    result["measured"] = found.result() if found else None
    result["unmet"] = table.unmet(result["measured"]["records"]) if found else []
    save(out / "gpu.json", result)
    (out / "gpu.md").write_text(table.text(result, markdown=True))
    print(table.text(result, markdown=False))
    return 1 if result["unmet"] or any(step["status"] == FAILED for step in result["steps"]) else 0


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
    parser.add_argument("--report", action="store_true", help="run nothing: gpu.json and gpu.md of what is in --out")
    parser.add_argument("--rehearse", action="store_true", help="on stand-ins for the GPU, its driver and the tools")
    parser.add_argument("--quick", action="store_true", help="few tests and cases, to see that it works")
    parser.add_argument("--stage", type=Path, help=argparse.SUPPRESS)  # stand-ins that are built already
    parser.add_argument("--cublas", help="the path of cuBLAS, where the system does not find it")
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
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # what was started is ended on the way
    try:
        if importlib.util.find_spec("numpy") is None:
            raise Absent(f"NumPy is not installed for {sys.executable}; install it, or name another Python: PYTHON=...")
        if options.report:
            return report(options.out)
        if options.rehearse:
            from tests.support.cuda import rehearsal

            stage = (
                rehearsal.Stage.at(options.stage)
                if options.stage
                else rehearsal.Stage.in_folder(options.work / "stage")
            )
            os.environ.update(stage.environment)
            options.library, options.tvm, options.quick = options.library or stage.library, stage.tvm, True
            options.provider, options.cublas = "CPUExecutionProvider", str(stage.cublas)
        from benchmarks.gpu.driver import cuda

        if problem := cuda.driver().problem:
            raise Absent(f"there is no GPU to check: {problem}")
        return Check(options).all()
    except Absent as error:
        say(f"gpu-check: {error}")
        return MISSING


if __name__ == "__main__":
    sys.exit(main())
