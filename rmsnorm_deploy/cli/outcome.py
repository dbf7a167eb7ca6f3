"""How many norms were fused, or would be, in words."""

from __future__ import annotations

from rmsnorm_deploy.fusing.report import FusionReport


def outcome(report: FusionReport) -> str:
    """The summary of a report, with the norms that were fused before."""
    return report.summary() + (f" ({report.already} fused before)" if report.already and report.task == "fuse" else "")
