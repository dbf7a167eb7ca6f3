"""Run fused models in onnxruntime: find the native library, register it, open sessions. Imports onnxruntime lazily."""

from __future__ import annotations

import importlib
import os
import sys
import threading
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rmsnorm_deploy.errors import MissingEnvironment, UsageError
from rmsnorm_deploy.run import nvidia

LIBRARY_VARIABLE = "RMSNORM_DEPLOY_LIBRARY"
"""Environment variable that names a library file to use in place of the installed one."""

_CPU = "CPUExecutionProvider"
_REGISTERED = "rmsnorm_deploy.library"
"""Session configuration key under which options remember that they have the library, and from where."""
_OVERRIDDEN = "rmsnorm_deploy.override"
"""The same for the library that replaces onnxruntime's own operators."""
_RECORD = "session.record_ep_graph_assignment_info"
"""onnxruntime's key for keeping note of which provider got which node; releases before 1.24 ignore it."""
_ONE_AT_A_TIME = threading.Lock()  # two threads that register on one options object would both find it unmarked


def _library_name(*, override: bool = False) -> str:
    # CMake calls a loadable module .so on macOS too.
    stem = "rmsnorm_deploy_override" if override else "rmsnorm_deploy"
    return f"{stem}.dll" if sys.platform == "win32" else f"lib{stem}.so"


def _candidates() -> Iterator[Path]:
    # An editable install has the modules in the source tree and the library in site-packages: then __path__ has both.
    package = importlib.import_module("rmsnorm_deploy")
    for folder in package.__path__:
        yield Path(folder) / "lib" / _library_name()
    for folder in sys.path:
        yield Path(folder) / "rmsnorm_deploy" / "lib" / _library_name()


def library_path(*, override: bool = False) -> Path:
    """The native library with the custom operators, as an absolute path.

    It is the file named by the environment variable RMSNORM_DEPLOY_LIBRARY, else the one installed with the package.

    Args:
        override: the library that replaces onnxruntime's own operators instead, which lies beside that one.

    Raises:
        MissingEnvironment: there is no such file: the variable names none, or the package was installed without its
            native part.
    """
    if override:
        path = library_path().with_name(_library_name(override=True))
        if path.is_file():
            return path
        raise MissingEnvironment(
            f"there is no {path.name} beside {library_path()}",
            f"reinstall rmsnorm-deploy; where {LIBRARY_VARIABLE} names a library, put both files into its folder",
        )
    named = os.environ.get(LIBRARY_VARIABLE)
    if named:
        path = Path(named)
        if not path.is_file():
            raise MissingEnvironment(
                f"{LIBRARY_VARIABLE} names '{named}', which is not a file",
                "unset it to use the installed library, or name a built one",
            )
        return path.resolve()
    for path in _candidates():
        if path.is_file():
            return path.resolve()
    raise MissingEnvironment(
        f"the native library {_library_name()} is not installed",
        f"reinstall rmsnorm-deploy with a C++ compiler at hand, or set {LIBRARY_VARIABLE} to a built library",
    )


def _onnxruntime() -> Any:
    try:
        return importlib.import_module("onnxruntime")
    except ImportError as error:
        raise MissingEnvironment(
            f"onnxruntime cannot be imported: {error}", "install it: pip install 'rmsnorm-deploy[ort]'"
        ) from error


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
    _onnxruntime()
    lacks = "the sentence above says what it lacks"
    with _ONE_AT_A_TIME:
        if not _has(session_options, _REGISTERED):
            hint = f"{lacks}; without the library, fused models run by their function bodies"
            _add_library(session_options, _REGISTERED, library_path(), hint)
        if override_builtin and not _has(session_options, _OVERRIDDEN):
            hint = f"{lacks}; without override_builtin, onnxruntime runs its own kernels"
            _add_library(session_options, _OVERRIDDEN, library_path(override=True), hint)


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


def _names(providers: Sequence[str | tuple[str, dict[str, Any]]]) -> list[str]:
    return [provider if isinstance(provider, str) else provider[0] for provider in providers]


def _path_of(session_options: Any) -> Path:
    """The library that is, or would be, registered on session options."""
    if _has(session_options, _REGISTERED):
        return Path(session_options.get_session_config_entry(_REGISTERED))
    return library_path()


def _choose_on_gpu(options: Any, gpu: str, *, override_builtin: bool) -> None:
    """Register the library for a session on a GPU, or leave it out and say so.

    Raises:
        UsageError: the options already hold a library whose kernels would draw the norms to the host.
    """
    try:
        path = _path_of(options)
        able = bool(nvidia.architectures(path))
    except MissingEnvironment as error:
        warnings.warn(f"{error.message}; on {gpu} fused norms run by their function bodies", stacklevel=3)
        return
    if is_registered(options) and not able:
        raise UsageError(
            f"the library {path} was built without CUDA and is registered on these options: every fused norm would be "
            f"copied from {gpu} to the host and back",
            "pass options without it: then the norms stay on the GPU, by their function bodies; or build it with nvcc",
        )
    if not able:
        warnings.warn(
            f"the library {path} was built without CUDA; on {gpu} fused norms run by their function bodies",
            stacklevel=3,
        )
        return
    if override_builtin:
        warnings.warn(f"on {gpu} onnxruntime's own fused norms keep onnxruntime's kernels", stacklevel=3)
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
    astray = [
        node.name or node.op_type
        for part in ask()
        if part.ep_name not in nvidia.PROVIDERS
        for node in part.get_nodes()
        if node.domain == "rmsnorm_deploy"
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
    *,
    providers: str | Sequence[str | tuple[str, dict[str, Any]]] | None = None,
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
        providers: as for ``onnxruntime.InferenceSession``; None is what the session options hold (added by
            ``add_provider_for_devices``), or else the CPU.
        session_options: an ``onnxruntime.SessionOptions``. It cannot be copied, so the library is registered on
            the object itself (once). None makes new ones.
        override_builtin: also run our kernels for onnxruntime's own fused norms, see :func:`register`; on the CPU only.
        **kwargs: handed on to ``onnxruntime.InferenceSession``.

    Returns:
        The ``onnxruntime.InferenceSession``.

    Raises:
        MissingEnvironment: see :func:`register`; or a norm of a session on the GPU was given to the CPU.
        UsageError: the model is of no such type, or cannot be handed over in memory; or the options hold a library
            without CUDA kernels, for a session on the GPU.
    """
    ort = _onnxruntime()
    loadable = _loadable(model)
    options = ort.SessionOptions() if session_options is None else session_options
    chosen: list[Any] | None = [providers] if isinstance(providers, str) else list(providers or [_CPU])
    if providers is None and getattr(options, "has_providers", bool)():
        chosen = None  # onnxruntime does not tell which they are
    names = _names(chosen or [])
    others = sorted({name for name in names if name != _CPU and name not in nvidia.PROVIDERS})
    on_gpu = [name for name in names if name in nvidia.PROVIDERS]
    available = ort.get_available_providers()
    if others:
        if not is_registered(options, override_builtin=override_builtin):
            warnings.warn(
                f"rmsnorm_deploy's library has no kernels for {', '.join(others)} and is not registered; fused norms "
                "run by their function bodies",
                stacklevel=2,
            )
    elif chosen is None:
        _choose_on_gpu(options, "the devices of the session options", override_builtin=override_builtin)
    elif any(name in available for name in on_gpu):
        _choose_on_gpu(options, next(name for name in on_gpu if name in available), override_builtin=override_builtin)
    else:
        register(options, override_builtin=override_builtin)
    opened = ort.InferenceSession(loadable, sess_options=options, providers=chosen, **kwargs)
    if not others and is_registered(options) and _has(options, _RECORD):
        running = opened.get_providers()
        if any(name != _CPU for name in running):
            _refuse_norms_on_the_host(opened)
        elif on_gpu:
            warnings.warn(
                f"onnxruntime did not start {on_gpu[0]}; the whole model runs on the CPU, the fused norms too",
                stacklevel=2,
            )
    return opened
