"""The command ``doctor``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rmsnorm_deploy.cli.options import JsonFlag
from rmsnorm_deploy.cli.printing import print_json, say, show

ORDER = 50
"""Its place in the list of commands."""


def command(
    model: Annotated[Path | None, typer.Argument(metavar="[MODEL]", help="A fused model to look at.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Say what works on this machine, and what to do about the rest.

    With MODEL, also whether its fused norms are as they were written, or a tool has damaged them.
    """
    from rmsnorm_deploy.check.doctor import examine

    found = examine(model)
    if as_json:
        print_json(found)
        return
    library, gpu = found["library"], found["gpu"]
    lines = {
        "python": found["python"],
        "machine": found["machine"],
        "instruction sets": ", ".join(found["instruction_sets"]) or "unknown",
        **{name: version or "not installed" for name, version in found["versions"].items()},
        "providers": ", ".join(found["providers"]) or "none",
        "library": f"{library['path'] or 'not found'}" + (", loads" if library["loads"] else f"; {library['problem']}"),
        "library's GPU kernels": ", ".join(library["cuda_architectures"]) or "none: built without CUDA",
        "GPU": gpu["problem"] or f"{', '.join(gpu['devices'])}; driver for CUDA {gpu['driver_cuda']}",
        **found["runs"],
    }
    if found["forced_instruction_set"]:
        lines["RMSNORM_DEPLOY_ISA"] = found["forced_instruction_set"]
    looked_at = found["model"]
    if looked_at:
        norms = ", ".join(f"{count} {name}" for name, count in looked_at["norms"].items()) or "no fused norms"
        damage = "; ".join(looked_at["repairs"])
        lines[looked_at["path"]] = norms + (f"; damaged: {damage}" if damage else "")
    width = max(len(name) for name in lines)
    for name, text in lines.items():
        show(f"{name:<{width}}  {text}")
    if looked_at and looked_at["repairs"]:
        say(f"hint: repair it: rmsnorm-deploy fuse {looked_at['path']} -o repaired.onnx")
    for warning in looked_at["warnings"] if looked_at else ():
        say(f"warning: {warning}")
    for advice in found["advice"]:
        say(f"hint: {advice}")
