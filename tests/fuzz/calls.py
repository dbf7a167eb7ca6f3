"""Fuzzing the native code under the sanitizers: the kernels' C contract and both libraries' bindings to onnxruntime.

The programs are ``calls.cpp`` and ``bindings.cpp``.
"""

import os
import subprocess
from pathlib import Path

from tests.support.native import Build

PROGRAM = Path(__file__).with_name("calls.cpp")
BINDINGS = Path(__file__).with_name("bindings.cpp")
SANITIZERS = {"address,undefined": 1, "thread": 4}
"""Each, and the number of threads that call at once."""


def run(program, library, seed, first, count, threads=1):
    """What the program says of ``count`` calls, and its status: 0 where all are right."""
    options = {"ASAN_OPTIONS": "detect_leaks=0", "UBSAN_OPTIONS": "print_stacktrace=1"}
    command = [program, library, *map(str, (seed, first, count, threads))]
    done = subprocess.run(command, env=os.environ | options, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr[-6000:]


def campaign(seed, first, count, folder, report):
    """Build the library and the program with each choice of sanitizers, and run; how many of them found faults."""
    faults = 0
    for sanitize, threads in SANITIZERS.items():
        here = Path(folder) / f"native-{sanitize.replace(',', '-')}"
        build = kept_build(here, sanitize)
        for source, library in (
            (PROGRAM, "rmsnorm_deploy"),
            (BINDINGS, "rmsnorm_deploy"),
            (BINDINGS, "rmsnorm_deploy_override"),
        ):
            status, said = run(build.program(source), build.make(library), seed, first, count, threads)
            report(f"{sanitize}, {library}, {source.stem}: {said}")
            faults += status != 0
    return faults


def kept_build(folder, sanitize):
    """A build in a folder of its own; what an earlier run left there is no longer the sources."""
    import shutil

    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return Build(folder, sanitize)
