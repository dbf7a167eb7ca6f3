"""What a model is compiled for. TVM takes an unknown processor for a generic one without a word; here it is refused."""

from __future__ import annotations

import difflib
from typing import Any

import tvm
from tvm.target import codegen

from rmsnorm_deploy.errors import MissingEnvironment, ModelError, UsageError
from rmsnorm_deploy.tvm.targets.machines import MACHINES, machine_of, this_machine

TARGETS = ("llvm", "cuda", "rocm", "opencl", "metal", "webgpu")
"""Targets for which there are schedules."""
CUDA_ARCHITECTURES = (
    *("sm_75", "sm_80", "sm_86", "sm_87", "sm_89", "sm_90"),
    *("sm_100", "sm_103", "sm_110", "sm_120", "sm_121"),
)
"""GPUs from Turing on, which nvcc 13 can compile for."""
CUDA_DEFAULT = ("sm_80", "sm_90")
ROCM_ARCHITECTURES = ("gfx900", "gfx906", "gfx908", "gfx90a", "gfx942", "gfx1030", "gfx1100", "gfx1101", "gfx1102")
ROCM_DEFAULT = ("gfx90a",)


def is_gpu(target: Any) -> bool:
    """Whether a ``tvm.target.Target`` is one of a GPU."""
    return "gpu" in target.keys


def this_cpu() -> str:
    """LLVM's name of this machine's CPU."""
    return str(codegen.llvm_get_system_cpu())


def architectures(target: str, arch: str | None = None) -> tuple[str, ...]:
    """The GPUs to compile for, of a target that has more than one instruction set: else none.

    Args:
        target: one of :data:`TARGETS`.
        arch: names with commas between them, such as ``sm_80,sm_90``, or None for the usual ones.

    Raises:
        UsageError: a GPU is unknown, or the target has no choice of GPUs.
    """
    tables = {"cuda": (CUDA_ARCHITECTURES, CUDA_DEFAULT), "rocm": (ROCM_ARCHITECTURES, ROCM_DEFAULT)}
    if target not in tables:
        if arch is not None:
            raise UsageError(f"target '{target}' has no GPU architectures to choose from", "Leave --arch out.")
        return ()
    known, usual = tables[target]
    chosen = usual if arch is None else tuple(dict.fromkeys(name.strip() for name in arch.split(",")))
    for name in chosen:
        if name not in known:
            raise UsageError(f"'{name}' is no GPU that is known for target '{target}'", f"Known: {', '.join(known)}.")
    if target == "rocm" and len(chosen) > 1:
        raise UsageError("target 'rocm' takes one GPU at a time", "Compile once for each.")
    return chosen


def resolve(target: str, mcpu: str | None = None, arch: str | None = None, mtriple: str | None = None) -> Any:
    """The ``tvm.target.Target`` for ``target``, with the CPU as its host where it is a GPU.

    Args:
        target: one of :data:`TARGETS`.
        mcpu: an LLVM name of a CPU or of a level such as ``x86-64-v3``; this machine's CPU by default, or ``generic``
            where ``mtriple`` is of another architecture.
        arch: see :func:`architectures`. TVM is told the first; its text for CUDA is the same for all.
        mtriple: LLVM's triple of the machine, such as ``aarch64-linux-gnu``; this one's by default.

    Raises:
        UsageError: the target, the CPU, the GPU or the triple is unknown.
        MissingEnvironment: TVM was built without the architecture of the triple.
    """
    if target not in TARGETS:
        raise UsageError(f"there are no schedules for target '{target}'", f"Targets: {', '.join(TARGETS)}.")
    if mtriple is not None:
        _check_triple(mtriple)
    cpu = _cpu(_checked_cpu(mcpu, mtriple), mtriple)
    chosen = architectures(target, arch)
    if target == "llvm":
        return cpu
    if target == "cuda":
        return tvm.target.Target({"kind": "cuda", "arch": min(chosen, key=lambda name: int(name[3:]))}, host=cpu)
    if target == "rocm":
        return tvm.target.Target({"kind": "rocm", "mcpu": chosen[0]}, host=cpu)
    return tvm.target.Target({"kind": target}, host=cpu)


def cpu_of(target: Any) -> str:
    """LLVM's name of the CPU that a target is for, or that drives its GPU."""
    return str(_cpu_part(target).attrs["mcpu"])


def triple_of(target: Any) -> str:
    """LLVM's triple of the machine that a target is for."""
    return str(_cpu_part(target).attrs.get("mtriple") or codegen.llvm_get_system_triple())


def _cpu_part(target: Any) -> Any:
    return target.host if is_gpu(target) else target


def explain(error: Exception, target: str) -> None:
    """Raise an error that says what is the matter, where TVM's own ``error`` on compiling for ``target`` does not.

    Raises:
        MissingEnvironment: TVM lacks something for this target.
        ModelError: the model has what the target has not.
    """
    text = str(error)
    if target == "rocm" and ("ROCm path" in text or "ld.lld" in text):
        raise MissingEnvironment(
            "TVM needs an installation of ROCm to compile for target 'rocm', and finds none",
            "Install ROCm with its device libraries and ld.lld, and set ROCM_PATH.",
        ) from error
    if target == "webgpu" and "do not support i64" in text:
        raise ModelError(
            "WebGPU has no 64-bit integers, and the model computes with some",
            "Export the model with inputs of type int32, or without token numbers.",
        ) from error


def _cpu(mcpu: str, mtriple: str | None) -> Any:
    return tvm.target.Target({"kind": "llvm", "mcpu": mcpu} | ({} if mtriple is None else {"mtriple": mtriple}))


def _check_triple(mtriple: str) -> None:
    """TVM ends the process over a triple that LLVM does not know."""
    machine = machine_of(mtriple)
    if machine not in MACHINES or "-linux" not in mtriple:
        known = " or ".join(f"{name}-linux-gnu" for name in MACHINES)
        raise UsageError(f"'{mtriple}' is no triple that models can be compiled for", f"For instance {known}.")
    if machine not in {machine_of(str(name)) for name in codegen.llvm_get_targets()}:
        raise MissingEnvironment(
            f"this TVM cannot compile for {machine}", "Use one whose LLVM was built with that architecture."
        )


def _checked_cpu(mcpu: str | None, mtriple: str | None) -> str:
    known = sorted(str(name) for name in codegen.llvm_get_cpu_archlist(_cpu("generic", mtriple)))
    here = mtriple is None or machine_of(mtriple) == this_machine()
    cpu = mcpu or (this_cpu() if here else "generic")
    if cpu not in known:
        near = difflib.get_close_matches(cpu, known, 3)
        hint = f"Perhaps {' or '.join(near)}." if near else "'generic' is one that it knows."
        raise UsageError(f"LLVM knows no CPU '{cpu}' for {mtriple or 'the architecture of this machine'}", hint)
    return cpu
