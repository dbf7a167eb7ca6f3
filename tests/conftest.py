"""Makes the helpers of tests/ importable by plain name in every suite."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
