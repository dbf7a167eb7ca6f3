"""How many norms were fused, or would be, in words."""

from __future__ import annotations

from rmsnorm_deploy.fusing.report import FusionReport


def outcome(report: FusionReport, *, dry_run: bool) -> str:
    """The summary of a report, with the norms that were fused before.

    Args:
        report: of the fusion.
        dry_run: nothing was done.
    """
    summary = report.summary()
    if dry_run:
        summary = summary.replace(f"{report.task}d", f"would {report.task}", 1).replace("repaired: ", "would repair: ")
    return summary + (f" ({report.already} fused before)" if report.already and report.task == "fuse" else "")
