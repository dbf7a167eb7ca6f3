"""What a model is compiled for. TVM takes an unknown processor for a generic one without a word; here it is refused."""

from __future__ import annotations

import difflib
from typing import Any

import tvm
from tvm.target import codegen

from rmsnorm_deploy.errors import MissingEnvironment, UsageError
from rmsnorm_deploy.tvm.targets.machines import MACHINES, machine_of, this_machine
from rmsnorm_deploy.tvm.targets.registry import CPU, GPUS, TARGETS


def this_cpu() -> str:
    """LLVM's name of this machine's CPU."""
    return str(codegen.llvm_get_system_cpu())


def architectures(target: str, arch: str | None = None) -> tuple[str, ...]:
    """The GPUs to compile for; empty where the target has only one instruction set.

    Args:
        target: one of :data:`~rmsnorm_deploy.tvm.targets.registry.TARGETS`.
        arch: names with commas between them, such as ``sm_80,sm_90``, or None for the usual ones.

    Raises:
        UsageError: a GPU is unknown, or the target has no choice of GPUs.
    """
    gpu = GPUS.get(target)
    if gpu is None or not gpu.architectures:
        if arch is not None:
            raise UsageError(f"target '{target}' has no GPU architectures to choose from", "Leave --arch out.")
        return ()
    chosen = gpu.usual if arch is None else tuple(dict.fromkeys(name.strip() for name in arch.split(",")))
    for name in chosen:
        if name not in gpu.architectures:
            raise UsageError(
                f"'{name}' is not a GPU that is known for target '{target}'", f"Known: {', '.join(gpu.architectures)}."
            )
    if len(chosen) > 1 and not gpu.several:
        raise UsageError(f"target '{target}' takes one GPU at a time", "Compile once for each.")
    return chosen


def resolve(target: str, mcpu: str | None = None, arch: str | None = None, mtriple: str | None = None) -> Any:
    """The ``tvm.target.Target`` for ``target``, with the CPU as its host where it is a GPU.

    Args:
        target: one of :data:`~rmsnorm_deploy.tvm.targets.registry.TARGETS`.
        mcpu: an LLVM name of a CPU or of a level such as ``x86-64-v3``; this machine's CPU by default, or ``generic``
            where ``mtriple`` is of another architecture.
        arch: see :func:`architectures`. TVM is told the oldest; its text is the same for all.
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
    if target == CPU:
        return cpu
    gpu = GPUS[target]
    oldest = {gpu.architecture_attribute: min(chosen, key=gpu.architectures.index)} if chosen else {}
    return tvm.target.Target({"kind": target, **oldest}, host=cpu)


def cpu_of(target: Any) -> str:
    """LLVM's name of the CPU that a target is for, or that drives its GPU."""
    return str(_cpu_part(target).attrs["mcpu"])


def triple_of(target: Any) -> str:
    """LLVM's triple of the machine that a target is for."""
    return str(_cpu_part(target).attrs.get("mtriple") or codegen.llvm_get_system_triple())


def _cpu_part(target: Any) -> Any:
    return target if target.host is None else target.host


def explain(error: Exception, target: str) -> None:
    """Raise an error that says what is wrong, where TVM's own ``error`` on compiling for ``target`` does not.

    Raises:
        MissingEnvironment: TVM lacks something for this target.
        ModelError: the model needs what the target does not have.
    """
    for meaning in GPUS[target].meanings if target in GPUS else ():
        if any(words in str(error) for words in meaning.words):
            raise meaning.error(meaning.message, meaning.hint) from error


def _cpu(mcpu: str, mtriple: str | None) -> Any:
    return tvm.target.Target({"kind": "llvm", "mcpu": mcpu} | ({} if mtriple is None else {"mtriple": mtriple}))


def _check_triple(mtriple: str) -> None:
    """TVM ends the process over a triple that LLVM does not know."""
    machine = machine_of(mtriple)
    if machine not in MACHINES or "-linux" not in mtriple:
        known = " or ".join(f"{name}-linux-gnu" for name in MACHINES)
        raise UsageError(f"'{mtriple}' is not a triple that models can be compiled for", f"For instance {known}.")
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
