"""What a family of schedules has to answer for one target."""

from __future__ import annotations

import dataclasses
from typing import Any, Protocol, TypeVar

from rmsnorm_deploy.tvm.schedules.norm import Norm
from rmsnorm_deploy.tvm.schedules.script import kernel_of

Schedule = TypeVar("Schedule")
"""A frozen dataclass of integers: what can be chosen without changing the result by more than rounding."""


@dataclasses.dataclass(frozen=True)
class Refusal:
    """Why a norm cannot have a kernel.

    Attributes:
        reason: what is wrong, with the norm's name.
        hint: what to do about it.
    """

    reason: str
    hint: str


class Schedules(Protocol[Schedule]):
    """The schedules of norms for one target. Equal by value: it travels to other processes."""

    def __hash__(self) -> int:
        """A frozen dataclass has a better one."""
        return hash(type(self))

    def refusal(self, norm: Norm) -> Refusal | None:
        """Why the target cannot have a kernel of ``norm``; None where it can, and only then ask for the rest."""

    def default(self, norm: Norm) -> Schedule:
        """The schedule that is taken when nothing was tuned."""

    def candidates(self, norm: Norm) -> list[Schedule]:
        """The schedules that tuning tries, the default first."""

    def trimmed(self, norm: Norm, schedule: Schedule, most_values: int | None) -> Schedule:
        """``schedule`` without what tensors of at most ``most_values`` values do not need; None: of any size."""

    def source(self, norm: Norm, schedule: Schedule) -> str:
        """The kernel's TVMScript."""

    def kernel(self, norm: Norm, schedule: Schedule) -> Any:
        """``norm`` as a scheduled ``tvm.tirx.PrimFunc`` with a symbolic number of rows.

        Its arguments are X, residual (AddRMSNorm), scale, bias (GeneralRMSNorm), Y, sum (AddRMSNorm); X has shape
        (outer..., size), or (outer..., size, inner...) where ``norm.columns``.
        """
        return kernel_of(self.source(norm, schedule))
