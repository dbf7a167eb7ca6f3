"""The passes between an imported model and machine code: one list, in order, each of which can be looked at."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import tvm
from tvm import relax
from tvm.target import codegen

from rmsnorm_deploy.errors import ModelError, UsageError
from rmsnorm_deploy.tvm.passes.by_cublas import lower_products_by_cublas
from rmsnorm_deploy.tvm.passes.constants import large_as_arguments
from rmsnorm_deploy.tvm.passes.convolutions import lower_convolutions
from rmsnorm_deploy.tvm.passes.dequantise import dequantise
from rmsnorm_deploy.tvm.passes.folds import fold_constants
from rmsnorm_deploy.tvm.passes.lower import lowered
from rmsnorm_deploy.tvm.passes.patches import convolutions_as_products
from rmsnorm_deploy.tvm.passes.placing import arguments_anywhere, own_results
from rmsnorm_deploy.tvm.passes.products import lower_products
from rmsnorm_deploy.tvm.passes.reductions import lower_reductions
from rmsnorm_deploy.tvm.passes.rest import schedule_rest
from rmsnorm_deploy.tvm.passes.rest_cpu import schedule_elementwise
from rmsnorm_deploy.tvm.passes.tidy import shared_tensors, without_unread_tuples
from rmsnorm_deploy.tvm.schedules.norm import Norm
from rmsnorm_deploy.tvm.schedules.registry import schedules_for
from rmsnorm_deploy.tvm.schedules.rest.legal import by_polynomials
from rmsnorm_deploy.tvm.targets.registry import GPUS

Tuned = Callable[[Norm], Any]
"""A norm's tuned schedule, or None."""
Pass = tuple[str, Callable[[Any], Any]]


def lower_norms(target: Any, tuned: Tuned | None = None) -> Callable[[Any], Any]:
    """The pass that makes kernels of norms, with the schedule that was tuned or else the default for ``target``."""
    schedules = schedules_for(target)

    def lower(module: Any) -> Any:
        refused: list[ModelError] = []

        def make(norm: Norm, most_values: int | None) -> Any:
            refusal = schedules.refusal(norm)
            if refusal is not None:
                refused.append(ModelError(refusal.reason, refusal.hint))
                raise refused[0]
            schedule = None if tuned is None else tuned(norm)
            schedule = schedules.default(norm) if schedule is None else schedule
            return schedules.kernel(norm, schedules.trimmed(norm, schedule, most_values))

        try:
            return lowered(module, make)
        except Exception:
            if refused:  # TVM has made another error of it
                raise refused[0] from None
            raise

    return lower


def passes(target: Any, tuned: Tuned | None = None, blas: str | None = None, *, cublas: bool = False) -> list[Pass]:
    """Every pass for ``target``, in the order in which they run.

    Args:
        target: from :func:`rmsnorm_deploy.tvm.targets.resolve.resolve`.
        tuned: a norm's tuned schedule, or None for the default.
        blas: what stands before the names of the BLAS library's functions; None without a library.
        cublas: whether cuBLAS computes products.
    """
    t = relax.transform
    small = bool(codegen.llvm_cpu_has_features("avx512f", target)) if blas is not None else False
    gpu = GPUS.get(str(target.kind.name))
    return [
        ("lower_norms", lower_norms(target, tuned)),
        *([] if blas is None else [("products_by_blas", lower_products(blas, small=small))]),
        *(_BY_CUBLAS if cublas else []),
        *([] if gpu else _on_cpus(target, blas)),
        ("dequantise", dequantise),
        *([] if blas is None else [("large_constants_as_arguments", large_as_arguments)]),
        ("dispatch_sampling", relax.backend.DispatchSampling()),
        ("dispatch_sort_scan", relax.backend.DispatchSortScan()),
        ("legalize_operators", t.LegalizeOps(by_polynomials() if gpu is None else None)),
        ("annotate_patterns", t.AnnotateTIROpPattern()),
        ("fold_constants", fold_constants),
        ("fuse_operators", t.FuseOps()),
        ("fuse_kernels", t.FuseTIR()),
        ("reshapes_without_copies", t.RewriteDataflowReshape()),
        ("drop_unused_functions", t.DeadCodeElimination(["main"])),
        ("to_non_dataflow", t.ToNonDataflow()),
        ("own_results", own_results),
        *(
            [("schedule_elementwise", schedule_elementwise), ("arguments_anywhere", arguments_anywhere)]
            if gpu is None
            else [("schedule_rest", schedule_rest(gpu))]
        ),
        ("remove_purity_checking", t.RemovePurityChecking()),
        ("call_kernels", t.CallTIRRewrite()),
        ("plan_memory", t.StaticPlanBlockMemory()),
        ("share_tensors", shared_tensors),
        ("lower_allocations", t.LowerAllocTensor()),
        ("free_after_last_use", t.KillAfterLastUse()),
        ("drop_unread_tuples", without_unread_tuples),
        ("lower_builtins", t.LowerRuntimeBuiltin()),
        ("compute_sizes", t.ComputePrimValue()),
        ("lower_shapes", t.VMShapeLower()),
        ("name_functions", t.AttachGlobalSymbol()),
    ]


_BY_CUBLAS: list[Pass] = [
    ("convolutions_as_products", convolutions_as_products),
    ("products_by_cublas", lower_products_by_cublas),
    ("drop_unused_products", relax.transform.DeadCodeElimination(["main"])),
]


def _on_cpus(target: Any, blas: str | None) -> list[Pass]:
    return [
        ("convolutions", lower_convolutions(target, blas)),
        ("reductions", lower_reductions(target)),
        ("drop_unused_values", relax.transform.DeadCodeElimination(["main"])),
    ]


def run(module: Any, target: Any, dump: Path | None = None, tuned: Tuned | None = None, blas: str | None = None) -> Any:
    """``module`` through every pass; see :func:`passes` and :func:`through`."""
    return through(passes(target, tuned, blas), module, target, dump)


def through(
    chosen: Sequence[Pass],
    module: Any,
    target: Any,
    dump: Path | None = None,
    step_begins: Callable[[str], None] = lambda _name: None,
) -> Any:
    """``module`` through some passes, one after the other.

    Args:
        chosen: from :func:`passes`.
        module: from :func:`rmsnorm_deploy.tvm.importer.convert.import_onnx`.
        target: from :func:`rmsnorm_deploy.tvm.targets.resolve.resolve`.
        dump: write the module there as TVMScript, before the first pass and after each.
        step_begins: called with the name of each pass before it runs.

    Raises:
        UsageError: ``dump`` cannot be written.
    """
    if dump is not None:
        _write(module, dump / "00_imported.py")
    with target, tvm.transform.PassContext(opt_level=3):
        for number, (name, step) in enumerate(chosen, 1):
            step_begins(name)
            module = step(module)
            if dump is not None:
                _write(module, dump / f"{number:02}_{name}.py")
    return module


def _write(module: Any, path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(module.script(show_meta=False), encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}", "Name another folder for --dump-ir.") from error
