"""Sessions that come and go, as in a server that loads models on demand: nothing of them stays."""

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc")
@pytest.mark.parametrize(
    ("count", "library", "threads", "most"),
    # a page now and then is the allocator's; the memory of threads that end is reused, but not at once
    [(3000, "ours", "alone", 2048), (3000, "override", "alone", 2048), (800, "override", "threads", 4096)],
)
def test_a_session_leaves_nothing_behind(count, library, threads, most):
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.sessions", str(count), library, threads],
        cwd=Path(__file__).resolve().parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert float(done.stdout.split()[0]) < most
