"""Hand-written schedules of a norm, a module for each kind of processor; :func:`family` says which is a target's.

Each module has
    ``default(norm, target)``      the schedule that is taken when nothing was tuned: a frozen dataclass of integers,
    ``candidates(norm, target)``   the schedules that tuning tries, the default first,
    ``trimmed(norm, schedule, most_values)``  the schedule without what tensors of so many values do not need,
    ``kernel(norm, schedule)``     the scheduled ``tvm.tirx.PrimFunc``.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from rmsnorm_deploy.tvm.schedules import cpu, gpu
from rmsnorm_deploy.tvm.targets.limits import LIMITS


def family(target: Any) -> ModuleType:
    """The module with the schedules for ``target``, a ``tvm.target.Target``."""
    return {"llvm": cpu, **dict.fromkeys(LIMITS, gpu)}[str(target.kind.name)]
