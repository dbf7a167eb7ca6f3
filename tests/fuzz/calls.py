"""Fuzzing the kernels' C contract under the sanitizers, by the program of ``calls.cpp``."""

import os
import subprocess
from pathlib import Path

from tests.support.native import Build

PROGRAM = Path(__file__).with_name("calls.cpp")
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
        status, said = run(build.program(PROGRAM), build.make("rmsnorm_deploy"), seed, first, count, threads)
        report(f"{sanitize}: {said}")
        faults += status != 0
    return faults


def kept_build(folder, sanitize):
    """A build in a folder of its own; what an earlier run left there is no longer the sources."""
    import shutil

    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return Build(folder, sanitize)
