"""The command ``demo``."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from rmsnorm_deploy.cli.options import JsonFlag
from rmsnorm_deploy.cli.printing import add_row, print_json, progress_bar, say, show, table_of

ORDER = 80
"""Its place in the list of commands."""


def command(
    seconds: Annotated[float, typer.Option("--seconds", min=0.01, help="For each comparison.")] = 1.5,
    as_json: JsonFlag = False,
) -> int:
    """Fuse, verify and time four small exported models."""
    from rmsnorm_deploy.check.demo import agreement, demonstrate, model_folder

    started = time.perf_counter()
    folder = model_folder()
    rows = []
    with progress_bar("fusing, verifying and timing", shown=not as_json) as progress:
        count = len(list(folder.glob("*.onnx")))
        for row in demonstrate(folder, seconds=seconds):
            rows.append(row)
            if progress is not None:
                progress("fusing, verifying and timing", len(rows), count)
    same = agreement(next(iter(sorted(folder.glob("*.onnx")))))
    passed = same.agrees and all(r.verification.passed for r in rows)
    if as_json:
        import dataclasses

        print_json({"schema_version": 1, "models": [r.to_dict() for r in rows], "agreement": dataclasses.asdict(same)})
        return 0 if passed else 1
    right = ("norms", "fused", "nodes", "one norm, us", "model, us")
    table = table_of("model", "norms", "fused", "nodes", "verified", "one norm, us", "model, us", right=right)
    for r in rows:
        times = {
            c.what: f"{c.before.median:.1f} -> {c.after.median:.1f} ({c.ratio:.2f}x)" for c in r.timing.comparisons
        }
        add_row(
            table,
            r.name,
            str(len(r.report.fused) + len(r.report.near_misses)),
            str(len(r.report.fused)),
            f"{sum(r.report.ops_before.values())} -> {sum(r.report.ops_after.values())}",
            "yes" if r.verification.passed else "NO",
            times.get("one norm", "-"),
            times.get("model", "-"),
        )
    show(table)
    show("")
    timing = rows[0].timing
    norm = next((c.detail for c in timing.comparisons if c.what == "one norm"), "")
    show(f"before: onnxruntime {timing.onnxruntime} with its optimizer on; medians, in turns, on {timing.machine}")
    show(f"one norm: {norm} ({rows[0].name}); the models are tiny, so most of their time is calls, not arithmetic")
    if same.library:
        show(f"the fused files ran by their function bodies: {same.library}")
    else:
        show(
            f"one fused file, with the library and without: {'both agree' if same.agrees else 'they DIFFER'} "
            f"({same.name}: largest difference {same.ulps:.2g} ULP of the output's largest value)"
        )
    for r in rows:
        if not r.verification.passed:
            show(f"FAILED: {r.name}: {r.verification.summary()}")
    say(f"took {time.perf_counter() - started:.1f} s")
    return 0 if passed else 1
