"""How many norms were fused or converted, or would be, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rmsnorm_deploy.fusing.report import FusionReport

if TYPE_CHECKING:
    from rmsnorm_deploy.converting.report import ConversionReport


def outcome(report: FusionReport | ConversionReport) -> str:
    """The summary of a report, with the norms that were fused before."""
    before = report.already if isinstance(report, FusionReport) and report.task == "fuse" else 0
    return report.summary() + (f" ({before} fused before)" if before else "")
