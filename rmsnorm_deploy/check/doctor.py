"""What works on this machine: versions, the library, what runs where."""

from __future__ import annotations

import collections
import importlib.metadata
import os
import platform
from pathlib import Path
from typing import Any

from rmsnorm_deploy import installed
from rmsnorm_deploy.check.condition import condition_of
from rmsnorm_deploy.check.machine import machine
from rmsnorm_deploy.errors import MissingEnvironment, RmsNormDeployError
from rmsnorm_deploy.model.files import StrPath
from rmsnorm_deploy.model.graphs import nodes_of
from rmsnorm_deploy.model.load import load_proto
from rmsnorm_deploy.op import DOMAIN
from rmsnorm_deploy.run import library, nvidia, toolchain
from rmsnorm_deploy.run.ort import onnxruntime
from rmsnorm_deploy.run.providers import CPU, CUDA, GPU, IDLE, SERVED, Provider
from rmsnorm_deploy.run.registering import register

SCHEMA_VERSION = 1
_PACKAGES = ("rmsnorm-deploy", "onnx", "onnx-ir", "numpy", "onnxruntime", "onnxruntime-gpu", "apache-tvm", "torch")
_TVM = "0.27"


def examine(model: StrPath | None = None) -> dict[str, Any]:
    """Everything that decides how fused models run here, as plain data; nothing is changed.

    The key ``ready`` says whether fused models run in the library's kernels, ``advice`` what to do where they do not.

    Args:
        model: a model to look at as well: the key ``model`` then says which norms of ours it holds, what tools have
            done to them, and what to do.

    Raises:
        ModelError: the model cannot be read.
    """
    looked_at = None if model is None else _look_at(model)
    versions: dict[str, str | None] = {}
    for package in _PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = None
    providers: list[str] = []
    advice: list[str] = []
    problem = ""
    try:
        ort = onnxruntime()
        providers = list(ort.get_available_providers())
        register(ort.SessionOptions())
    except RmsNormDeployError as error:
        problem = error.message
        advice.append(error.hint)
    path: Path | None = None
    try:
        path = library.library_path()
    except MissingEnvironment as error:
        advice.append(error.hint)
    ready = not problem
    architectures = library.cuda_architectures(path) if path else ()
    driver = nvidia.driver()
    sets = library.instruction_sets(path) if path else ()
    if sets and driver.devices and not architectures:
        advice.append("For kernels on the GPU, install the CUDA toolkit (nvcc) and reinstall rmsnorm-deploy.")
    old = installed.too_old()
    advice += [f"{sentence}: pip install '{wanted}'" for wanted, sentence in old.items()]
    advice += installed.newer_than_tried()
    runs: dict[str, str] = {"fuse, explain": f"not here: {next(iter(old.values()))}" if old else "here"}
    if providers:
        for name in sorted(set(providers) - IDLE, key=lambda n: (n != CPU.name, providers.index(n))):
            runs[f"fused models on {name}"] = _on(SERVED.get(name), path if ready else None)
        if not any(gpu.name in providers for gpu in GPU):
            runs[f"fused models on {CUDA.name}"] = "not here: this onnxruntime is built without it"
    else:
        runs["fused models"] = "not here: onnxruntime is not installed"
    runs |= _compiling(versions["apache-tvm"])
    return {
        "schema_version": SCHEMA_VERSION,
        "ready": ready,
        "python": platform.python_version(),
        "machine": machine(),
        "instruction_sets": list(sets),
        "forced_instruction_set": os.environ.get("RMSNORM_DEPLOY_ISA"),
        "versions": versions,
        "providers": providers,
        "library": {
            "path": str(path) if path else None,
            "loads": ready,
            "problem": problem,
            "cuda_architectures": list(architectures),
        },
        "gpu": {"driver_cuda": driver.cuda, "devices": list(driver.devices), "problem": driver.problem},
        "runs": runs,
        "model": looked_at,
        "advice": [a for a in dict.fromkeys(advice) if a],
    }


def _look_at(path: StrPath) -> dict[str, Any]:
    proto = load_proto(path)
    condition = condition_of(proto)
    counts = collections.Counter(n.op_type for n in nodes_of(proto.graph) if n.domain == DOMAIN)
    return {
        "path": str(path),
        "norms": dict(sorted(counts.items())),
        "repairs": list(condition.repairs),
        "warnings": list(condition.warnings),
    }


def _compiling(version: str | None) -> dict[str, str]:
    """What TVM compiles here; TVM is not loaded for that."""
    if version is None:
        return {"compile, tune": "not here: apache-tvm is not installed"}
    if not version.startswith(f"{_TVM}."):
        return {"compile, tune": f"not here: apache-tvm is {version}, and {_TVM} is needed"}
    try:
        toolchain.linker()
    except MissingEnvironment as error:
        return {"compile, tune": f"not here: {error.message}"}
    cuda_too = "here" if nvidia.compiler() else "not here: there is no nvcc"
    return {"compile, tune": "here", "compile --target cuda": cuda_too}


def _on(provider: Provider | None, path: Path | None) -> str:
    """How fused models run on a provider of this onnxruntime.

    Args:
        provider: None for one that no library has kernels for.
        path: of the library; None where there is none to use.
    """
    if provider is None:
        return "function bodies"
    if reason := provider.cannot_run():
        return f"not here: {reason}"
    if path is None:
        return "function bodies"
    reason = provider.lacks_kernels(path)
    return f"function bodies: the library {reason}" if reason else "library's kernels"
