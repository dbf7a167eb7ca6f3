"""A quantised tensor while it has not become float: which scale and zero point a stored value has."""

from __future__ import annotations

import dataclasses
import json

MARKER = "rmsnorm_deploy.dequantize"
"""What is called, with the stored values, scales, zero points (as far as there are) and a :class:`Stored`, as text."""


@dataclasses.dataclass(frozen=True)
class Stored:
    """(stored value - zero point) * scale.

    Attributes:
        dtype: of the result.
        axis: along which scales differ, where they do.
        block: neighbours along it that share one; 0 where all have their own.
        scaled: whether there are scales.
        zeroed: whether there are zero points.
        bits: where rows of blocks are packed, lowest bits first, as MatMulNBits has them: of a value; else 0.
        terms: then the values of a row.
    """

    dtype: str
    axis: int = 0
    block: int = 0
    scaled: bool = True
    zeroed: bool = False
    bits: int = 0
    terms: int = 0

    @property
    def offset(self) -> int:
        """What packed values without zero points are relative to."""
        return 1 << self.bits - 1 if self.bits and not self.zeroed else 0

    def to_text(self) -> str:
        """As it stands in a module."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_text(cls, text: str) -> Stored:
        """The inverse of :meth:`to_text`."""
        return cls(**json.loads(text))
