"""TVM's own GPU schedules for everything in a model but its norms."""

from __future__ import annotations

from typing import Any

import tvm
from tvm.s_tir.dlight import ApplyDefaultSchedule, gpu

_PLAIN = {"cuda": {"kind": "cuda", "arch": "sm_60"}, "metal": {"kind": "opencl"}}
"""For which target a matrix product is scheduled instead, so that no matrix unit is used."""


class _PlainMatmul(gpu.Matmul):  # type: ignore[misc]
    """Matrix products without tensor cores or simdgroup matrices: TVM 0.27 ends the process when it schedules those."""

    def apply(self, function: Any, target: Any, tunable: bool) -> Any:
        plain = _PLAIN.get(str(target.kind.name))
        return super().apply(function, target if plain is None else tvm.target.Target(plain), tunable)


def schedule_rest() -> Any:
    """The pass that schedules each kernel that is not scheduled yet; norms are."""
    rules = [_PlainMatmul(), gpu.GEMV(), gpu.Reduction(), gpu.GeneralReduction(), gpu.Fallback()]
    return ApplyDefaultSchedule(*rules)
