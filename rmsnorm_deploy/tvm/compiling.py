"""A model compiled into a folder that runs elsewhere."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import onnx_ir as ir
import tvm
from onnx import ModelProto, ValueInfoProto, helper

from rmsnorm_deploy.errors import ModelError, RmsNormDeployError, UsageError, last_line
from rmsnorm_deploy.model.atomic import staging
from rmsnorm_deploy.model.files import StrPath, output_path
from rmsnorm_deploy.model.leftovers import temporary_folder
from rmsnorm_deploy.op import DOMAIN
from rmsnorm_deploy.tvm.artefact import carried, cubin, linking, weights
from rmsnorm_deploy.tvm.artefact import description as describing
from rmsnorm_deploy.tvm.artefact.arrays import numpy_of
from rmsnorm_deploy.tvm.artefact.description import LIBRARY, SCHEMA_VERSION, WEIGHTS
from rmsnorm_deploy.tvm.importer.convert import POSITIVE, import_prepared
from rmsnorm_deploy.tvm.importer.prepare import NORMS, PREFIX, prepared
from rmsnorm_deploy.tvm.passes import by_cublas, constants, pipeline
from rmsnorm_deploy.tvm.schedules.products.weight import Laid
from rmsnorm_deploy.tvm.sizes.input_shapes import inputs_of
from rmsnorm_deploy.tvm.steps import Steps, Told
from rmsnorm_deploy.tvm.targets import blas as libraries
from rmsnorm_deploy.tvm.targets import cublas
from rmsnorm_deploy.tvm.targets.cublas import Cublas
from rmsnorm_deploy.tvm.targets.registry import CPU, GPUS
from rmsnorm_deploy.tvm.targets.resolve import architectures, cpu_of, explain, resolve, triple_of
from rmsnorm_deploy.tvm.tuning.log import TunedSchedules


@dataclasses.dataclass(frozen=True)
class Compiled:
    """What a compilation made.

    Attributes:
        path: the folder.
        target: TVM's name of the target.
        mcpu: the CPU it is for.
        mtriple: LLVM's triple of the machine it is for.
        norms: norms in the model.
        kernels: kernels that they share.
        tuned: kernels whose schedule is from a log of tuning; None without one.
        blas: the library that computes products of matrices, or ``none`` and why.
        seconds: time taken.
        timings: of that, in each step, in their order.
    """

    path: Path
    target: str
    mcpu: str
    mtriple: str
    norms: int
    kernels: int
    tuned: int | None
    blas: str
    seconds: float
    timings: dict[str, float]

    def to_dict(self) -> dict[str, Any]:
        """The same for JSON."""
        timings = {name: round(seconds, 3) for name, seconds in self.timings.items()}
        return dataclasses.asdict(self) | {
            "path": str(self.path),
            "seconds": round(self.seconds, 3),
            "timings": timings,
        }


def compile(
    model: StrPath | ModelProto | ir.Model,
    target: str = "llvm",
    mcpu: str | None = None,
    *,
    output: StrPath,
    dump_ir: StrPath | None = None,
    tuned: StrPath | None = None,
    arch: str | None = None,
    mtriple: str | None = None,
    blas: str | None = None,
    told: Callable[[Compiled], None] | None = None,
    progress: Told | None = None,
    overwrite: bool = False,
) -> Compiled:
    """Compile ``model``, fused or not, into the folder ``output``: a shared library, the weights, and a JSON.

    Args:
        model: a path, an ``onnx.ModelProto`` or an ``onnx_ir.Model``.
        target: ``llvm``, the CPU, or another of :data:`~rmsnorm_deploy.tvm.targets.registry.TARGETS`.
        mcpu: LLVM's name of the CPU, for a GPU of its host; this machine's by default, ``generic`` for another
            architecture.
        output: a folder that is not there yet; nothing appears there when something fails.
        dump_ir: write the module there before the first pass and after each.
        tuned: a log of :func:`rmsnorm_deploy.tvm.tune`; a norm that it lacks gets the default schedule.
        arch: the GPUs, with commas between them; ``sm_80,sm_90`` by default for ``cuda``.
        mtriple: LLVM's triple of a machine of another architecture, such as ``aarch64-linux-gnu``; the library is
            linked with the C++ compiler for it, or the one that the environment variable ``CXX`` names.
        blas: what computes products of matrices. For a CPU: ``openblas``, the library of the package scipy-openblas32,
            which goes into the folder, and the default; ``none``, loops of TVM's; or the path of a library with CBLAS's
            interface, which the system has to find where the model runs. Without the package, or for a machine that it
            is not for, ``openblas`` is ``none``, and the result says so. For ``cuda``: ``cublas``, the default, which
            has to be installed where the model runs, not here; ``none``, kernels of TVM's without tensor cores; or
            cuBLAS's path there and here. Other targets have none.
        told: called with the result when the folder is in place; what it raises takes the folder away again.
        progress: called when each step begins, with its name, how many are done, and how many there are; at the end
            the name is empty.
        overwrite: replace ``output`` where it is a compiled model or an empty folder, once the new one is complete.

    Raises:
        UsageError: the target, CPU, GPU or triple is unknown or not that of the log, ``blas`` is no such library,
            ``output`` exists, or a folder cannot be made.
        ModelError: the model or the log cannot be read, or TVM cannot import or compile it.
        MissingEnvironment: there is no C++ compiler to link the library or it fails, no nvcc for ``cuda``, no ROCm for
            ``rocm``, or no space.
    """
    started = time.perf_counter()
    resolved = resolve(target, mcpu, arch, mtriple)
    gpus = architectures(target, arch)
    triple = triple_of(resolved)
    if target in GPUS and GPUS[target].kernels_beside:
        cubin.find_nvcc()
    linking.compiler(triple)
    library, without = _library_for(target, blas, triple)
    if tuned is not None and len(gpus) > 1:
        raise UsageError(f"a log of tuning is about one GPU, and this is for {', '.join(gpus)}", "Add '--arch GPU'.")
    folder = output_path(output, folder=True)
    _check_free(folder, overwrite)
    schedules = None if tuned is None else TunedSchedules(tuned, resolved)
    prefix = library.prefix if isinstance(library, libraries.Blas) else None
    passes = pipeline.passes(resolved, schedules, prefix, cublas=isinstance(library, Cublas))
    steps = Steps((_READ, _IMPORT, *(name for name, _ in passes), *_AFTER_PASSES), progress)
    steps.begin(_READ)
    ready = prepared(model)
    steps.begin(_IMPORT)
    proto, imported = ready.proto, import_prepared(ready)
    del ready
    norms = sum(n.domain == DOMAIN and n.op_type.removeprefix(PREFIX) in NORMS.values() for n in proto.graph.node)
    try:
        dump = None if dump_ir is None else Path(dump_ir)
        module = pipeline.through(passes, imported, resolved, dump, steps.begin)
        steps.begin(_BUILD)
        module = weights.as_arguments(module)
        with cubin.taken_out() as cuda_sources:
            executable = tvm.relax.build(module, target=resolved, relax_pipeline=None, exec_mode=_mode(module))
    except RmsNormDeployError:
        raise
    except Exception as error:  # TVM's passes raise whatever comes
        explain(error, target)
        raise ModelError(
            f"TVM cannot compile the model: {last_line(error)}", "--dump-ir DIR shows how far it came."
        ) from error
    kernels = sum("rms_norm_" in v.name_hint for v in module.get_global_vars())
    description = {
        "schema_version": SCHEMA_VERSION,
        "target": target,
        "mcpu": cpu_of(resolved),
        "mtriple": triple,
        "architectures": list(gpus),
        "tvm": tvm.__version__,
        "norms": norms,
        "kernels": kernels,
        "inputs": [_value(v) for v in inputs_of(proto)],
        "outputs": [_value(v) for v in proto.graph.output],
        "not_empty": [str(label) for label in imported.attrs[POSITIVE]],
    }
    values = [
        *(tensor if laid is None else _InPanels(laid, tensor) for laid, tensor in constants.arguments_of(module)),
        *weights.of(module),
    ]
    # LLVM and the linker need neither the interpreter nor the disk while weights are laid out and written
    with staging(folder) as stage, ThreadPoolExecutor(1) as beside:
        made = stage.folder / "made"
        made.mkdir()
        steps.begin(_LINK)
        saved = beside.submit(weights.save, values, made / WEIGHTS)
        if cuda_sources:
            cubin.detach(executable.mod, cuda_sources)
            cubin.save(cuda_sources, gpus, made)
        called = library if library is not None and _calls(module) else None
        linking.export(executable, made / LIBRARY, triple, called, by_cublas.functions_of(module))
        steps.begin(_WRITE)
        description["blas"] = None if called is None else carried.save(called, made)
        description["library"] = describing.part(made / LIBRARY)
        description["weights"] = saved.result()
        files = (cubin.KERNELS, cubin.FUNCTIONS) if cuda_sources else ()
        description["kernel_files"] = {name: describing.part(made / name) for name in files}
        describing.write(made, description)
        stage.publish(made, folder, overwrite=overwrite)
        steps.finish()
        used = None if schedules is None else schedules.used
        result = Compiled(
            *(folder, target, description["mcpu"], triple, norms, kernels, used),
            blas=f"none: {without}" if library is None else str(library),
            seconds=time.perf_counter() - started,
            timings=steps.seconds,
        )
        stage.settled = True
        if told is not None:
            told(result)
    return result


def _library_for(target: str, choice: str | None, triple: str) -> tuple[libraries.Blas | Cublas | None, str]:
    """What computes products, and why nothing does."""
    if target == CPU:
        return libraries.find(libraries.OPENBLAS if choice is None else choice, triple)
    if target == cublas.TARGET:
        return cublas.find(cublas.CUBLAS if choice is None else choice), "--blas none"
    if choice not in (None, libraries.NONE):
        raise UsageError(f"there is no library of products for target '{target}'", "Leave --blas out.")
    return None, "a GPU computes them"


_MOST_COMPILED = 256
"""Steps of a model up to which their order is machine code, too.

That saves 30 ns for each kernel, which many small ones notice. A model with more steps takes milliseconds, and LLVM
takes seconds for them.
"""


def _mode(module: Any) -> str:
    """How TVM's virtual machine runs ``main``."""
    main = module[module.get_global_var("main")]
    steps = sum(len(block.bindings) for block in main.body.blocks)
    return "compiled" if steps <= _MOST_COMPILED else "bytecode"


@dataclasses.dataclass(frozen=True)
class _InPanels:
    """A weight that is laid out when it is written."""

    laid: Laid
    tensor: Any

    @property
    def shape(self) -> tuple[int, ...]:
        return self.laid.shape

    @property
    def dtype(self) -> str:
        return self.laid.dtype

    def array(self) -> Any:
        return self.laid.of(numpy_of(self.tensor))


def _calls(module: Any) -> bool:
    """Whether a kernel calls BLAS."""
    return any(v.name_hint.startswith("product_") for v in module.get_global_vars())


_READ, _IMPORT, _BUILD, _LINK, _WRITE = "read_and_fuse", "import", "compile_kernels", "write_library", "write_weights"
_AFTER_PASSES = (_BUILD, _LINK, _WRITE)


def _check_free(folder: Path, overwrite: bool) -> None:
    """Refuse a folder that cannot be made, before the time for compiling is spent."""
    if folder.is_symlink() or (folder.exists() and not overwrite):
        raise UsageError(f"{folder} exists already", "Pass --force (overwrite=True in Python) to replace it.")
    if folder.exists() and not describing.may_be_replaced(folder):
        raise UsageError(f"{folder} is not a compiled model, so it is not replaced", "Name another folder.")
    parent = folder.absolute().parent
    if not parent.is_dir():
        raise UsageError(f"the folder {parent} is not there", "Make it first.")
    try:
        temporary_folder(parent).rmdir()
    except OSError as error:
        raise UsageError(f"no folder can be made in {parent}: {error.strerror}", "Name another one.") from error


def _value(value: ValueInfoProto) -> dict[str, Any]:
    tensor = value.type.tensor_type
    shape = [d.dim_param or (d.dim_value if d.HasField("dim_value") else "?") for d in tensor.shape.dim]
    return {
        "name": value.name,
        "type": str(helper.tensor_dtype_to_np_dtype(tensor.elem_type)),
        "shape": shape if tensor.HasField("shape") else None,
    }
