"""CUDA kernels as machine code beside the library: where they run, a driver is enough, and no compiler is looked for.

TVM by itself puts CUDA source into the library, which is compiled when it is loaded. Here the source is taken out while
the model is built, compiled by nvcc for each GPU asked for, and the result is handed to TVM's CUDA runtime on loading.
"""

from __future__ import annotations

import contextlib
import dataclasses
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import tvm
import tvm_ffi
from tvm_ffi.registry import remove_global_func

from rmsnorm_deploy.errors import MissingEnvironment, ModelError
from rmsnorm_deploy.run import nvidia

KERNELS = "kernels.fatbin"
"""Machine code for each GPU, and PTX of the newest of them, which the driver compiles for GPUs that are newer."""
FUNCTIONS = "kernels.json"
"""What TVM has to know of each kernel: types of arguments, and which are the extents of its threads."""
_CREATE = "ffi.Module.create.cuda"
_FLAGS = ("-O3", "-std=c++17", "--fatbin")


@dataclasses.dataclass(frozen=True)
class Source:
    """What TVM generated for the GPU.

    Attributes:
        text: CUDA source of all kernels.
        functions: TVM's description of each, by name.
    """

    text: str
    functions: Any
    stand_in: Any


@contextlib.contextmanager
def taken_out() -> Iterator[list[Source]]:
    """While this lasts, TVM's CUDA code generator gives its source to the list, and leaves an empty module behind."""
    found: list[Source] = []

    def create(code: Any, form: str, functions: Any, _sources: Any) -> Any:
        assert form == "cuda", form
        stand_in = tvm_ffi.get_global_func("runtime.CSourceModuleCreate")("", "c", [], [])
        found.append(Source(bytes(code).decode(), functions, stand_in))
        return stand_in

    before = tvm_ffi.get_global_func(_CREATE, allow_missing=True)
    tvm_ffi.register_global_func(_CREATE, create, override=True)
    try:
        yield found
    finally:
        if before is None:
            remove_global_func(_CREATE)
        else:
            tvm_ffi.register_global_func(_CREATE, before, override=True)


def detach(module: Any, sources: Sequence[Source]) -> None:
    """Take what :func:`taken_out` left behind out of the modules that ``module`` imports, directly or not."""
    imported = list(module.imports)
    kept = [m for m in imported if not any(m.same_as(s.stand_in) for s in sources)]
    if len(kept) < len(imported):
        module.clear_imports()
        for other in kept:
            module.import_module(other)
    for other in kept:
        detach(other, sources)


def find_nvcc() -> str:
    """The CUDA compiler.

    Raises:
        MissingEnvironment: it is not found.
    """
    found = nvidia.compiler()
    if found is not None:
        return found
    raise MissingEnvironment(
        "there is no nvcc to compile the CUDA kernels with", "Install the CUDA toolkit, or set CUDA_HOME."
    )


def compiled(source: str, architectures: Sequence[str]) -> bytes:
    """A fat binary with machine code for each of ``architectures``, such as ``sm_90``.

    Raises:
        MissingEnvironment: there is no nvcc, or it does not know one of the GPUs.
        ModelError: nvcc refuses the source.
    """
    nvcc = find_nvcc()
    listed = subprocess.run([nvcc, "--list-gpu-code"], capture_output=True, text=True, check=False).stdout.split()
    for name in architectures:
        if listed and name not in listed:
            raise MissingEnvironment(f"{nvcc} cannot compile for {name}", f"It knows: {', '.join(listed)}.")
    numbers = sorted(int(name.removeprefix("sm_")) for name in architectures)
    targets = [f"-gencode=arch=compute_{n},code=sm_{n}" for n in numbers]
    targets.append(f"-gencode=arch=compute_{numbers[-1]},code=compute_{numbers[-1]}")
    with tempfile.TemporaryDirectory() as folder:
        text, result = Path(folder) / "kernels.cu", Path(folder) / KERNELS
        text.write_text(source, encoding="utf-8")
        command = [nvcc, *_FLAGS, *targets, "-o", str(result), str(text)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            first = next((line for line in done.stderr.splitlines() if "error" in line), "no message")
            raise ModelError(f"nvcc cannot compile the kernels: {first}", "--dump-ir DIR shows where they come from.")
        return result.read_bytes()


def save(sources: Sequence[Source], architectures: Sequence[str], folder: Path) -> None:
    """Write machine code and descriptions of all kernels into ``folder``."""
    (source,) = sources
    (folder / KERNELS).write_bytes(compiled(source.text, architectures))
    (folder / FUNCTIONS).write_text(tvm.ir.save_json(source.functions), encoding="utf-8")


def attach(module: Any, folder: Path) -> None:
    """Give the kernels in ``folder`` to ``module``, the library that launches them.

    Raises:
        ModelError: they are not there, or are none.
    """
    try:
        code = (folder / KERNELS).read_bytes()
        functions = tvm.ir.load_json((folder / FUNCTIONS).read_text(encoding="utf-8"))
    except OSError as error:
        raise ModelError(f"{folder} lacks {Path(error.filename).name}", "Compile it again.") from error
    except Exception as error:  # TVM raises whatever comes
        raise ModelError(f"{folder / FUNCTIONS} describes no kernels", "Compile it again.") from error
    module.import_module(tvm_ffi.get_global_func(_CREATE)(code, "fatbin", functions, {}))
