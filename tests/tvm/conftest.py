"""The kernels' tests share the judge of tests/kernels."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "kernels"))
