"""Sessions of fused models in onnxruntime: which library is registered on them. Imports onnxruntime lazily."""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rmsnorm_deploy.errors import MissingEnvironment, RmsNormDeployError, UsageError, first_line
from rmsnorm_deploy.op import DOMAIN
from rmsnorm_deploy.run.library import library_path
from rmsnorm_deploy.run.ort import onnxruntime
from rmsnorm_deploy.run.providers import CPU, CUDA, GPU, SERVED, Provider
from rmsnorm_deploy.run.traces import traces_in

_REGISTERED = "rmsnorm_deploy.library"
"""Session configuration key under which options remember that they have the library, and from where."""
_OVERRIDDEN = "rmsnorm_deploy.override"
"""The same for the library that replaces onnxruntime's own operators."""
_RECORD = "session.record_ep_graph_assignment_info"
"""onnxruntime's key for keeping note of which provider got which node; releases before 1.24 ignore it."""
_ONE_AT_A_TIME = threading.Lock()  # two threads that register on one options object would both find it unmarked


def _has(session_options: Any, key: str) -> bool:
    try:
        return bool(session_options.get_session_config_entry(key))
    except RuntimeError:  # onnxruntime's way to say that there is no such entry
        return False


def is_registered(session_options: Any, *, override_builtin: bool = False) -> bool:
    """Whether :func:`register` has been called on these session options, with ``override_builtin`` if that is given."""
    return _has(session_options, _REGISTERED) and (not override_builtin or _has(session_options, _OVERRIDDEN))


def _add_library(session_options: Any, key: str, path: Path, hint: str) -> None:
    try:
        session_options.register_custom_ops_library(str(path))
    except Exception as error:  # onnxruntime's exceptions share no base of their own
        raise MissingEnvironment(f"onnxruntime does not take the library {path}: {error}", hint) from error
    session_options.add_session_config_entry(key, str(path))


def register(session_options: Any, *, override_builtin: bool = False) -> None:
    """Register the native library on session options; sessions made from them run our CPU kernels.

    A second call on the same options does nothing: the first leaves a mark in their configuration entries.

    For sessions on the CPU, and on the CUDA provider where the library was built with CUDA (``rmsnorm-deploy doctor``
    says so). Elsewhere a CPU kernel would make onnxruntime copy the node's data to the host and back; there, leave the
    library out, and the function bodies in the model run. :func:`session` decides that by itself.

    With ``override_builtin``, models that hold onnxruntime's own fused norms run our kernels as they are:
    ``SimplifiedLayerNormalization``, ``RMSNormalization`` and ``com.microsoft.SkipSimplifiedLayerNormalization``,
    whether they stand in the file or onnxruntime's optimizer makes them. A second library then replaces these
    operators for the session, schemas included; it takes every type and every optional input and output that the
    built-in kernels take, and computes the same, within a unit in the last place. Messages about these nodes are ours,
    a negative or infinite epsilon is refused, and a tensor may have at most 16 dimensions.

    Args:
        session_options: an ``onnxruntime.SessionOptions``; changed.
        override_builtin: also replace onnxruntime's own operators. Without it none of them is touched.

    Raises:
        MissingEnvironment: onnxruntime or the library is missing, or they do not go together: onnxruntime is too old,
            or RMSNORM_DEPLOY_ISA names an instruction set that this machine lacks.
    """
    onnxruntime()
    lacks = "the sentence above says what it lacks"
    with _ONE_AT_A_TIME:
        if not _has(session_options, _REGISTERED):
            hint = f"{lacks}; without the library, fused models run by their function bodies"
            _add_library(session_options, _REGISTERED, library_path(), hint)
        if override_builtin and not _has(session_options, _OVERRIDDEN):
            hint = f"{lacks}; without override_builtin, onnxruntime runs its own kernels"
            _add_library(session_options, _OVERRIDDEN, library_path(override=True), hint)


def library_problem() -> str:
    """Why the library of kernels cannot be used here; empty where it can."""
    try:
        register(onnxruntime().SessionOptions())
    except RmsNormDeployError as error:
        return error.message
    except Exception as error:  # onnxruntime raises its own types for a library that does not load
        return first_line(error)
    return ""


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


def _path_of(session_options: Any) -> Path:
    """The library that is, or would be, registered on session options."""
    if _has(session_options, _REGISTERED):
        return Path(session_options.get_session_config_entry(_REGISTERED))
    return library_path()


def _choose_on_gpu(options: Any, gpu: Provider, where: str, *, override_builtin: bool) -> None:
    """Register the library for a session on a GPU, or leave it out and say so.

    Raises:
        UsageError: the options already hold a library whose kernels would draw the norms to the host.
    """
    try:
        path = _path_of(options)
    except MissingEnvironment as error:
        warnings.warn(f"{error.message}; on {where} fused norms run by their function bodies", stacklevel=3)
        return
    reason = gpu.lacks_kernels(path)
    if reason and is_registered(options):
        raise UsageError(
            f"the library {path} {reason} and is registered on these options: every fused norm would be "
            f"copied from {where} to the host and back",
            "pass options without it: then the norms stay on the GPU, by their function bodies; or build it with nvcc",
        )
    if reason:
        warnings.warn(f"the library {path} {reason}; on {where} fused norms run by their function bodies", stacklevel=3)
        return
    if override_builtin:
        warnings.warn(f"on {where} onnxruntime's own fused norms keep onnxruntime's kernels", stacklevel=3)
    register(options)
    if not _has(options, _RECORD):
        options.add_session_config_entry(_RECORD, "1")


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

    * Every provider is the CPU's: the library is registered.
    * The CUDA provider, alone or with the CPU's: the library is registered if it was built with CUDA, and afterwards
      onnxruntime is asked where it put each norm (from 1.24 on). A library without CUDA is left out, so that the norms
      stay on the GPU by their function bodies, and a ``UserWarning`` says so.
    * With any other provider the library is left out likewise, since that would draw the norms to the host.

    Where this onnxruntime has no CUDA provider, it warns by itself and runs everything on the CPU; so do the norms.

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
        override_builtin: also run our kernels for onnxruntime's own fused norms, see :func:`register`; on the CPU only.
        **kwargs: handed on to ``onnxruntime.InferenceSession``.

    Returns:
        The ``onnxruntime.InferenceSession``.

    Raises:
        MissingEnvironment: see :func:`register`; or a norm of a session on the GPU was given to the CPU.
        UsageError: the model is not of such a type, or cannot be handed over in memory; or the options hold a library
            without CUDA kernels, for a session on the GPU; or both ``sess_options`` and ``session_options`` are given.
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
    if providers is not None and provider_options is not None:
        kwargs["provider_options"] = provider_options
    names = [provider if isinstance(provider, str) else provider[0] for provider in chosen or []]
    others = sorted(set(names) - set(SERVED))
    on_gpu = [SERVED[name] for name in names if name in SERVED and name != CPU.name]
    here = next((p for p in on_gpu if p.name in ort.get_available_providers()), None)
    if others:
        if not is_registered(options, override_builtin=override_builtin):
            warnings.warn(
                f"rmsnorm_deploy's library has no kernels for {', '.join(others)} and is not registered; fused norms "
                "run by their function bodies",
                stacklevel=2,
            )
    elif chosen is None:
        _choose_on_gpu(options, CUDA, "the devices of the session options", override_builtin=override_builtin)
    elif here is not None:
        _choose_on_gpu(options, here, here.name, override_builtin=override_builtin)
    else:
        register(options, override_builtin=override_builtin)
    if is_registered(options):
        for sentence in traces_in(loadable):
            warnings.warn(sentence, stacklevel=2)
    opened = ort.InferenceSession(loadable, sess_options=options, providers=chosen, **kwargs)
    if not others and is_registered(options) and _has(options, _RECORD):
        if any(name != CPU.name for name in opened.get_providers()):
            _refuse_norms_on_the_host(opened)
        elif on_gpu:
            warnings.warn(
                f"onnxruntime did not start {on_gpu[0].name}; the whole model runs on the CPU, the fused norms too",
                stacklevel=2,
            )
    return opened
