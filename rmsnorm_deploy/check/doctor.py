"""What works on this machine: versions, the library, what runs where."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
from pathlib import Path
from typing import Any

from rmsnorm_deploy.errors import RmsNormDeployError
from rmsnorm_deploy.run import nvidia
from rmsnorm_deploy.run.runner import library_problem, machine, onnxruntime

SCHEMA_VERSION = 1
_PACKAGES = ("rmsnorm-deploy", "onnx", "onnx-ir", "numpy", "onnxruntime", "onnxruntime-gpu", "apache-tvm", "torch")
_TVM = "0.27"
_INSTRUCTION_SETS = ("avx512_bf16", "avx512_fp16", "avx512f", "avx2", "fma", "f16c", "sve", "asimd")


def examine() -> dict[str, Any]:
    """Everything that decides how fused models run here, as plain data; nothing is changed.

    The key ``ready`` says whether fused models run in the library's kernels, ``advice`` what to do where they do not.
    """
    versions: dict[str, str | None] = {}
    for package in _PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = None
    providers: list[str] = []
    advice: list[str] = []
    try:
        providers = list(onnxruntime().get_available_providers())
        problem = library_problem()
    except RmsNormDeployError as error:
        problem = error.message
        advice.append(error.hint)
    path, hint = _library()
    if hint:
        advice.append(hint)
    ready = not problem
    architectures = nvidia.architectures(Path(path)) if path else ()
    driver = nvidia.driver()
    if path and driver.devices and not architectures:
        advice.append("For kernels on the GPU, install the CUDA toolkit (nvcc) and reinstall rmsnorm-deploy.")
    runs: dict[str, str] = {"fuse, explain": "here"}
    if providers:
        runs["fused models on CPUExecutionProvider"] = "library's kernels" if ready else "function bodies"
        for provider in providers:
            if provider in nvidia.PROVIDERS:
                runs[f"fused models on {provider}"] = _on_gpu(ready, architectures, driver)
            elif provider not in ("CPUExecutionProvider", "AzureExecutionProvider"):
                runs[f"fused models on {provider}"] = "function bodies"
        if not any(provider in nvidia.PROVIDERS for provider in providers):
            runs[f"fused models on {nvidia.PROVIDERS[0]}"] = "not here: this onnxruntime is built without it"
    else:
        runs["fused models"] = "not here: onnxruntime is not installed"
    runs |= _compiling(versions["apache-tvm"])
    return {
        "schema_version": SCHEMA_VERSION,
        "ready": ready,
        "python": platform.python_version(),
        "machine": machine(),
        "instruction_sets": _instruction_sets(),
        "forced_instruction_set": os.environ.get("RMSNORM_DEPLOY_ISA"),
        "versions": versions,
        "providers": providers,
        "library": {
            "path": path,
            "loads": ready,
            "problem": problem,
            "cuda_architectures": list(architectures),
        },
        "gpu": {"driver_cuda": driver.cuda, "devices": list(driver.devices), "problem": driver.problem},
        "runs": runs,
        "advice": [a for a in dict.fromkeys(advice) if a],
    }


def _compiling(version: str | None) -> dict[str, str]:
    """What TVM compiles here; TVM is not loaded for that."""
    if version is None:
        return {"compile, tune": "not here: apache-tvm is not installed"}
    if not version.startswith(f"{_TVM}."):
        return {"compile, tune": f"not here: apache-tvm is {version}, and {_TVM} is needed"}
    if shutil.which(os.environ.get("CXX", "g++")) is None:
        return {"compile, tune": "not here: there is no C++ compiler to link with"}
    cuda_too = "here" if nvidia.compiler() else "not here: there is no nvcc"
    return {"compile, tune": "here", "compile --target cuda": cuda_too}


def _on_gpu(ready: bool, architectures: tuple[str, ...], driver: nvidia.Driver) -> str:
    if driver.problem:
        return f"not here: {driver.problem}"
    if ready and architectures:
        return "library's kernels"
    return "function bodies" + (": the library was built without CUDA" if ready else "")


def _library() -> tuple[str | None, str]:
    """Where the library is, and what to do where it is not."""
    try:
        from rmsnorm_deploy.run.session import library_path

        return str(library_path()), ""
    except RmsNormDeployError as error:
        return None, error.hint


def _instruction_sets() -> list[str]:
    """Those that the kernels can use, of what the processor says it has; empty where it cannot be asked."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:  # noqa: PTH123  (not a path of ours)
            line = next((text for text in file if text.startswith(("flags", "Features"))), "")
    except OSError:
        return []
    present = set(line.split(":", 1)[-1].split())
    return [name for name in _INSTRUCTION_SETS if name in present]
