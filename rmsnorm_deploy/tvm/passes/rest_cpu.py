"""CPU schedules for what is neither a norm nor a product; a kernel that none of them is for stays as TVM makes it."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import tirx
from tvm.s_tir.schedule import ScheduleError

from rmsnorm_deploy.tvm.schedules.rest import elementwise


def schedule_elementwise(module: Any) -> Any:
    """``module`` with a schedule for each kernel whose values are computed one by one."""
    functions = dict(module.functions_items())
    for name, function in functions.items():
        if not isinstance(function, tirx.PrimFunc) or "tirx.is_scheduled" in (function.attrs or {}):
            continue
        try:
            functions[name] = elementwise.scheduled(function) or function
        except ScheduleError:
            continue
    return tvm.IRModule(functions, attrs=module.attrs)
