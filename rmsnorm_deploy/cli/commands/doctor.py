"""The command ``doctor``."""

from __future__ import annotations

from rmsnorm_deploy.cli.options import JsonFlag
from rmsnorm_deploy.cli.printing import print_json, say, show

ORDER = 50
"""Its place in the list of commands."""


def command(as_json: JsonFlag = False) -> None:
    """Say what works on this machine, and what to do about the rest."""
    from rmsnorm_deploy.check.doctor import examine

    found = examine()
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
        "library's GPU kernels": ", ".join(library["cuda_architectures"])
        or ("none: built without CUDA" if found["instruction_sets"] else "unknown"),
        "GPU": gpu["problem"] or f"{', '.join(gpu['devices'])}; driver for CUDA {gpu['driver_cuda']}",
        **found["runs"],
    }
    if found["forced_instruction_set"]:
        lines["RMSNORM_DEPLOY_ISA"] = found["forced_instruction_set"]
    width = max(len(name) for name in lines)
    for name, text in lines.items():
        show(f"{name:<{width}}  {text}")
    for advice in found["advice"]:
        say(f"hint: {advice}")
