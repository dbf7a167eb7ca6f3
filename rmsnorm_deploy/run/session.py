"""Sessions of fused models in onnxruntime: which library is registered on them. Imports onnxruntime lazily."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rmsnorm_deploy.errors import MissingEnvironment, UsageError
from rmsnorm_deploy.model.external import external_tensors
from rmsnorm_deploy.op import DOMAIN
from rmsnorm_deploy.run.devices import device_of, names_on_devices
from rmsnorm_deploy.run.imports import imported_domains, with_import
from rmsnorm_deploy.run.library import WithoutKernels
from rmsnorm_deploy.run.ort import onnxruntime
from rmsnorm_deploy.run.providers import CPU, CUDA, GPU, IDLE, SERVED, Provider
from rmsnorm_deploy.run.registering import REPLACED, has_entry, is_registered, path_of, register, register_in, replaces
from rmsnorm_deploy.run.traces import traces_in

_RECORD = "session.record_ep_graph_assignment_info"
"""onnxruntime's key for keeping note of which provider got which node; releases before 1.24 ignore it."""


def _loadable(model: Any) -> str | bytes:
    """``model`` as onnxruntime takes it: a path or serialized bytes."""
    if isinstance(model, (bytes, bytearray, memoryview)):
        return bytes(model)
    if isinstance(model, (str, os.PathLike)):
        return str(Path(model))
    import onnx
    import onnx_ir

    try:
        proto = onnx_ir.to_proto(model) if isinstance(model, onnx_ir.Model) else model
        if not isinstance(proto, onnx.ModelProto):
            raise UsageError(
                f"a model must be a path, bytes, a ModelProto or an onnx_ir Model, not {type(model).__name__}",
                "load it with onnx.load or onnx_ir.load first",
            )
        if any(tensor.data_location == onnx.TensorProto.EXTERNAL for tensor in proto.graph.initializer):
            raise UsageError(
                "the model keeps weights in other files, which onnxruntime finds only beside a model file",
                "save the model and pass its path",
            )
        return bytes(proto.SerializeToString())
    except (ValueError, onnx.checker.ValidationError) as error:
        raise UsageError(
            f"the model cannot be serialized: {error}", "save it with external data and pass its path"
        ) from error


def _choose_on_gpu(options: Any, gpu: Provider, where: str, device: int | None, *, override_builtin: bool) -> list[str]:
    """Register the library for a session on a GPU, or leave it out.

    Returns:
        What is left out, and why, in sentences.

    Raises:
        UsageError: the options already hold a library whose kernels would draw the norms to the host.
    """
    try:
        path = path_of(options)
    except MissingEnvironment as error:
        return [f"{error.message}; on {where} fused norms run by their function bodies"]
    reason = gpu.lacks_kernels(path, device)
    if reason and is_registered(options):
        raise UsageError(
            f"the library {path} {reason} and is registered on these options: every fused norm would be "
            f"copied from {where} to the host and back",
            "pass options without it: then the norms stay on the GPU, by their function bodies; or build it with nvcc "
            "for this GPU and its driver",
        )
    if reason:
        return [f"the library {path} {reason}; on {where} fused norms run by their function bodies"]
    register(options)
    if not has_entry(options, _RECORD):
        options.add_session_config_entry(_RECORD, "1")
    return [f"on {where} onnxruntime's own fused norms keep onnxruntime's kernels"] if override_builtin else []


def _refuse_norms_on_the_host(session: Any) -> None:
    """Raise where onnxruntime gave one of our nodes to the CPU although the session has a GPU.

    Raises:
        MissingEnvironment: with the nodes' names.
    """
    ask = getattr(session, "get_provider_graph_assignment_info", None)
    if ask is None:  # before 1.24; there is a kernel for every operator and type, so the GPU's provider takes them all
        return
    on_gpu = {p.name for p in GPU}
    astray = [
        node.name or node.op_type
        for part in ask()
        if part.ep_name not in on_gpu
        for node in part.get_nodes()
        if node.domain == DOMAIN
    ]
    if astray:
        some = ", ".join(astray[:3]) + (" and more" if len(astray) > 3 else "")
        raise MissingEnvironment(
            f"onnxruntime gave {len(astray)} fused norms to the CPU in a session on the GPU: {some}",
            "open the model with onnxruntime.InferenceSession and without the library, where the function bodies run "
            "on the GPU; and please report it",
        )


def session(
    model: Any,
    sess_options: Any = None,
    providers: str | Sequence[str | tuple[str, dict[str, Any]]] | None = None,
    provider_options: Sequence[dict[str, Any]] | None = None,
    *,
    session_options: Any = None,
    override_builtin: bool = False,
    **kwargs: Any,
) -> Any:
    """An onnxruntime session in which fused norms run our kernels, and none of them leaves the session's device.

    * Every provider is the CPU's: the library is registered. Where the package was installed without it (the wheel for
      every machine), fused norms run by their function bodies, and a ``UserWarning`` says how to get it.
    * The CUDA provider, alone or with the CPU's: the library is registered if it was built with CUDA, and afterwards
      onnxruntime is asked where it put each norm (from 1.24 on). A library without CUDA is left out, so that the norms
      stay on the GPU by their function bodies, and a ``UserWarning`` says so.
    * With any other provider the library is left out likewise, since that would draw the norms to the host.

    What counts is what the session has in the end. Where onnxruntime has no such provider, or one does not start on
    this machine, the session is opened for those that are left, and a warning, onnxruntime's or ours, says so.

    Args:
        model: a path, serialized bytes, an ``onnx.ModelProto`` or an ``onnx_ir.Model``. One with weights in other files
            must be given as a path.
        sess_options: an ``onnxruntime.SessionOptions``. It cannot be copied, so the library is registered on
            the object itself (once). None makes new ones.
        providers: as for ``onnxruntime.InferenceSession``; None is what the session options hold (added by
            ``add_provider_for_devices``), or else the CPU.
        provider_options: options of each of ``providers``, as for ``onnxruntime.InferenceSession``, which does not look
            at them without ``providers``.
        session_options: the same as ``sess_options``.
        override_builtin: also run our kernels for onnxruntime's own fused norms, see :func:`register`; on the CPU only,
            and in the domains that the model imports.
        **kwargs: handed on to ``onnxruntime.InferenceSession``.

    Returns:
        The ``onnxruntime.InferenceSession``.

    Raises:
        MissingEnvironment: see :func:`register`; or a norm of a session on the GPU was given to the CPU.
        UsageError: the model is not of such a type, or cannot be handed over in memory; or the options hold a library
            without CUDA kernels, for a session on the GPU; or they replace operators in a domain that the model would
            have to import; or both ``sess_options`` and ``session_options`` are given.
    """
    if sess_options is not None and session_options is not None:
        raise UsageError("both sess_options and session_options are given", "Give sess_options alone.")
    ort = onnxruntime()
    loadable = _loadable(model)
    options = next((o for o in (sess_options, session_options) if o is not None), None)
    if options is None:
        options = ort.SessionOptions()
    chosen: list[Any] | None = [providers] if isinstance(providers, str) else list(providers or [CPU.name])
    if providers is None and getattr(options, "has_providers", bool)():
        chosen = None  # onnxruntime does not tell which they are
    of_each = {} if providers is None or provider_options is None else {"provider_options": provider_options}
    names = [provider if isinstance(provider, str) else provider[0] for provider in chosen or []]
    if chosen is None:
        names = names_on_devices(ort, options)
    there = names if chosen is None else ort.get_available_providers()
    available = [name for name in names if name in there and name not in IDLE]
    others = sorted(set(available) - set(SERVED))
    on_gpu = next((SERVED[name] for name in available if name in SERVED and name != CPU.name), None)
    left_out: list[str] = []
    if others:
        if not is_registered(options, override_builtin=override_builtin):
            left_out = [
                f"rmsnorm_deploy's library has no kernels for {', '.join(others)} and is not registered; fused norms "
                "run by their function bodies"
            ]
    elif chosen is None and (on_gpu is not None or not available):
        where = "the devices of the session options"
        left_out = _choose_on_gpu(options, on_gpu or CUDA, where, None, override_builtin=override_builtin)
    elif chosen is not None and on_gpu is not None:
        device = device_of(on_gpu.name, chosen, provider_options if of_each else None)
        left_out = _choose_on_gpu(options, on_gpu, on_gpu.name, device, override_builtin=override_builtin)
    else:
        try:
            register_in(options, _replaced(loadable) if override_builtin else ())
        except WithoutKernels as error:
            if override_builtin:
                raise
            left_out = [f"{error.message}; fused norms run by their function bodies. {error.hint}"]
    if is_registered(options):
        for sentence in traces_in(loadable):
            warnings.warn(sentence, stacklevel=2)

    opened = _open(ort, loadable, options, chosen, {**of_each, **kwargs})
    asleep = [name for name in available if name not in opened.get_providers()]
    if left_out and asleep:
        rest = [i for i, name in enumerate(names) if name in available and name not in asleep]
        try:
            again = session(
                model,
                options,
                [chosen[i] for i in rest] if chosen and rest else [CPU.name],
                [provider_options[i] for i in rest] if of_each and provider_options and rest else None,
                override_builtin=override_builtin,
                **kwargs,
            )
        except MissingEnvironment:
            pass  # it is the library that is missing
        else:
            _warn_of(asleep, again)
            return again
    for sentence in left_out:
        warnings.warn(sentence, stacklevel=2)
    if not others and is_registered(options) and has_entry(options, _RECORD):
        if any(name not in {CPU.name, *IDLE} for name in opened.get_providers()):
            _refuse_norms_on_the_host(opened)
        elif asleep:
            _warn_of(asleep, opened)
    return opened


def _warn_of(asleep: Sequence[str], opened: Any) -> None:
    started = [name for name in opened.get_providers() if name not in IDLE]
    where = "the whole model runs on the CPU" if started == [CPU.name] else f"the model runs on {' and '.join(started)}"
    warnings.warn(f"onnxruntime did not start {', '.join(asleep)}; {where}, the fused norms too", stacklevel=3)


def _replaced(model: str | bytes) -> list[str]:
    """The domains in which onnxruntime's own operators can be replaced for a model: those that it imports."""
    imported = imported_domains(model)
    return [domain for domain in REPLACED if imported is None or domain in imported]


def _open(ort: Any, model: str | bytes, options: Any, providers: list[Any] | None, more: dict[str, Any]) -> Any:
    """``onnxruntime.InferenceSession``, of a model that imports every domain in which its options replace operators.

    Raises:
        UsageError: the model does not import one, and cannot be given it.
    """
    lacking = [domain for domain in REPLACED if replaces(options, domain) and domain not in _replaced(model)]
    if "com.microsoft" in lacking:
        model = _importing(model, "com.microsoft")
    try:
        return ort.InferenceSession(model, sess_options=options, providers=providers, **more)
    except Exception as error:
        if isinstance(model, str) and lacking and "is not a registered function/op" in str(error):
            raise UsageError(
                f"{model} does not import {lacking[0]}, in which these session options replace operators: {error}",
                "Open it with session options of its own, or add the import to the model.",
            ) from error
        raise


def _importing(model: str | bytes, domain: str) -> str | bytes:
    """The model with one more import; a file that keeps weights in others as it is."""
    if isinstance(model, bytes):
        return with_import(model, domain)
    import onnx

    data = Path(model).read_bytes()
    if next(external_tensors(onnx.ModelProto.FromString(data)), None) is not None:
        return model  # onnxruntime finds them only beside a model file
    return with_import(data, domain)
