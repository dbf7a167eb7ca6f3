"""Every test here needs TVM; those of the kernels share the judge of tests/kernels."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "kernels"))
NEEDS_TVM = "apache-tvm is not installed: pip install 'rmsnorm-deploy[tvm]'"
