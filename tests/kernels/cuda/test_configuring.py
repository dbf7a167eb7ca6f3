"""Where the kernels for GPUs cannot be built, the library is built without them, unless they were asked for."""

import os
import subprocess

import pytest

from tests.support.native import ROOT, needs_cmake


@pytest.fixture
def configure(tmp_path):
    """Configure with an nvcc that says it is of some version; None is a machine without one."""
    needs_cmake()

    def run(release, cuda):
        folder = tmp_path / "bin"
        folder.mkdir(exist_ok=True)
        nvcc = folder / "nvcc"
        nvcc.write_text(f"#!/bin/sh\necho 'Cuda compilation tools, release {release}, V{release}.119'\nexit 1\n")
        nvcc.chmod(0o755)
        environment = {k: v for k, v in os.environ.items() if k not in ("CUDA_HOME", "CUDA_PATH")}
        made = tmp_path / f"build-{release}-{cuda}"
        command = ["cmake", "-S", ROOT / "ops", "-B", made, f"-DRMSNORM_DEPLOY_CUDA={cuda}"]
        return subprocess.run(
            command, env=environment | {"CUDACXX": str(nvcc)}, capture_output=True, text=True, check=False
        )

    return run


@pytest.mark.parametrize(
    ("release", "says"),
    [("11.5", "is of CUDA 11.5, and the kernels need 11.8"), ("12.4", "does not work with this C")],
)
def test_an_nvcc_that_cannot_build_them(configure, release, says):
    done = configure(release, "AUTO")
    said = " ".join(done.stderr.split())
    assert done.returncode == 0, said
    assert says in said
    assert "the library runs on the CPU only" in done.stdout
    done = configure(release, "ON")
    assert done.returncode != 0
    assert says in " ".join(done.stderr.split())
