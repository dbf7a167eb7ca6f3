"""The command ``explain``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rmsnorm_deploy.cli.options import AlsoOption, FormOption, JsonFlag, OldFormOption
from rmsnorm_deploy.cli.outcome import outcome
from rmsnorm_deploy.cli.printing import print_json, say, show
from rmsnorm_deploy.cli.reporting import Report, ReportFile, ReportForce
from rmsnorm_deploy.errors import UsageError
from rmsnorm_deploy.fusing.forms import DEFAULT

ORDER = 20
"""Its place in the list of commands."""


def command(
    context: typer.Context,
    model: Annotated[Path, typer.Argument(metavar="MODEL")],
    site: Annotated[str | None, typer.Option("--site", metavar="NAME", help="Only this candidate, by node.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Also reductions that are not a mean square.")] = False,
    form: FormOption = DEFAULT,
    op: OldFormOption = None,
    also: AlsoOption = None,
    report_file: Report = None,
    force: ReportForce = False,
    as_json: JsonFlag = False,
) -> None:
    """Say what would be fused, and what not and why."""
    page = ReportFile(report_file, model, context, force=force)
    from rmsnorm_deploy.fusing.fuse import fuse
    from rmsnorm_deploy.op import Op
    from rmsnorm_deploy.op.words import meaning

    _, report = fuse(model, form=op or form, dry_run=True, also=also or ())
    fused, missed = list(report.fused), list(report.missed)
    if site is not None:
        fused = [f for f in fused if site in (f.node, f.output, *f.removed, *f.kept)]
        missed = [m for m in missed if site in (m.site.node, str(m.site), m.node)]
        if not fused and not missed:
            raise UsageError(
                f"there is no candidate '{site}' in {model}", "'rmsnorm-deploy explain MODEL --all' lists them."
            )
    elif not everything:
        missed = list(report.near_misses)
    page.write(report)
    if as_json:
        import dataclasses

        print_json(dataclasses.replace(report, fused=tuple(fused), missed=tuple(missed)).to_dict())
        return
    for f in fused:
        where = f"{f.scope}/{f.node}" if f.scope else f.node
        show(f"fused   {where}: {f.op} {f.type.lower()}, axes {list(f.axes)}, epsilon {f.epsilon:g}")
        show(f"        spelling: {f.spelling}")
        if f.rounding != "same":
            show(f"        rounding: {f.rounding}")
        if f.kept:
            show(f"        kept {len(f.kept)} nodes that others use: {', '.join(f.kept)}")
        for note in f.notes:
            show(f"        note: {note}")
    for m in missed:
        show(f"left    {m.site} ({m.site.op_type}): got as far as {m.stage.label}; {m.reason}")
        if m.expected or m.found:
            show(f"        at {m.node or m.site.node}: expected {m.expected or '-'}, found {m.found or '-'}")
        if m.hint:
            show(f"        hint: {m.hint}")
    hidden = len(report.missed) - len(missed)
    if hidden and site is None:
        others = "1 other reduction is" if hidden == 1 else f"{hidden} other reductions are"
        show(f"{others} no RMSNorm (--all says why)")
    if any(f.op == Op.GENERAL_RMS_NORM.value for f in fused):
        show(f"{Op.GENERAL_RMS_NORM.value}: {meaning(Op.GENERAL_RMS_NORM)}")
    show(outcome(report).replace(" (run explain)", ""))
    for warning in report.warnings:
        say(f"warning: {warning}")
