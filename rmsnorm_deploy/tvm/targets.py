"""What a model is compiled for. TVM takes an unknown CPU for a generic one without a word; here it is refused."""

from __future__ import annotations

import difflib
from typing import Any

import tvm
from tvm.target import codegen

from rmsnorm_deploy.errors import UsageError

TARGETS = ("llvm",)
"""Targets for which there are schedules."""


def this_cpu() -> str:
    """LLVM's name of this machine's CPU."""
    return str(codegen.llvm_get_system_cpu())


def resolve(target: str, mcpu: str | None = None) -> Any:
    """The ``tvm.target.Target`` for ``target``.

    Args:
        target: ``llvm``.
        mcpu: an LLVM name of a CPU or of a level such as ``x86-64-v3``; this machine's CPU by default.

    Raises:
        UsageError: the target or the CPU is unknown.
    """
    if target not in TARGETS:
        raise UsageError(f"there are no schedules for target '{target}'", f"Targets: {', '.join(TARGETS)}.")
    known = sorted(str(name) for name in codegen.llvm_get_cpu_archlist(tvm.target.Target({"kind": "llvm"})))
    cpu = this_cpu() if mcpu is None else mcpu
    if cpu not in known:
        near = difflib.get_close_matches(cpu, known, 3)
        hint = f"Perhaps {' or '.join(near)}." if near else "'x86-64-v3' and 'generic' are among those it knows."
        raise UsageError(f"LLVM knows no CPU '{cpu}' for this machine's architecture", hint)
    return tvm.target.Target({"kind": "llvm", "mcpu": cpu})
