"""TVM's own GPU schedules for everything in a model but its norms."""

from __future__ import annotations

from typing import Any

import tvm
from tvm.s_tir import dlight

from rmsnorm_deploy.tvm.targets.gpu import Gpu


class _PlainMatmul(dlight.gpu.Matmul):  # type: ignore[misc]
    """Matrix products without tensor cores or simdgroup matrices: TVM 0.27 ends the process when it schedules those."""

    def __init__(self, gpu: Gpu) -> None:
        super().__init__()
        self.plain = tvm.target.Target(dict(gpu.products_as)) if gpu.products_as else None

    def apply(self, function: Any, target: Any, tunable: bool) -> Any:
        return super().apply(function, target if self.plain is None else self.plain, tunable)


def schedule_rest(gpu: Gpu) -> Any:
    """The pass that schedules each kernel that is not scheduled yet; norms are."""
    rules = [_PlainMatmul(gpu), dlight.gpu.GEMV(), dlight.gpu.Reduction(), dlight.gpu.GeneralReduction()]
    return dlight.ApplyDefaultSchedule(*rules, dlight.gpu.Fallback())
