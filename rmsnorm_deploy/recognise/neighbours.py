"""What stands beside a norm and goes into its operator only where that is asked for."""

from __future__ import annotations

import enum


class Neighbour(str, enum.Enum):
    """A kind of neighbour of a norm.

    The operators that take neighbours in are others than RMSNorm, AddRMSNorm and GeneralRMSNorm, which a tool behind
    this one may look for.
    """

    GATES = "gates"
    """An activated gate that multiplies the norm, or what is normed: GatedRMSNorm."""
    QUANTIZERS = "quantizers"
    """QuantizeLinear or DynamicQuantizeLinear of the norm's result: RMSNormQuantizeLinear and its like."""
