"""Without TVM: one sentence, and the rest of the package as ever."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize("module", ["tvm", "tvm.relax"])
def test_compile_says_what_to_install(module):
    code = (
        f"import sys; sys.modules[{module!r}] = None; from rmsnorm_deploy.cli.app import main; "
        "sys.exit(main(['compile', 'm.onnx', '-o', 'c']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 4
    assert done.stderr.splitlines() == [
        "error: apache-tvm is not installed",
        "hint: Install the extra 'tvm': pip install '.[tvm]' in the repository, or, with a wheel, "
        "pip install 'FILE.whl[tvm]'.",
    ]
