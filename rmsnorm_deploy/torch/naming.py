"""What PyTorch calls the operators."""

from __future__ import annotations

import re

from rmsnorm_deploy.op import Op


def snake_case(op: Op) -> str:
    """The name of an operator as PyTorch writes names: ``rms_norm`` of ``RMSNorm``."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", op.value).lower()


OPERATORS = {snake_case(op): op for op in Op if not op.quantises}
"""Those that PyTorch has, by the names that it has them by. What is quantised has no gradients."""
