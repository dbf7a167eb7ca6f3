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

LIBRARY_VARIABLE = "RMSNORM_DEPLOY_LIBRARY"
"""Environment variable that names a library file to use in place of the installed one."""

_CPU = "CPUExecutionProvider"
_REGISTERED = "rmsnorm_deploy.library"
"""Session configuration key under which options remember that they have the library, and from where."""
_OVERRIDDEN = "rmsnorm_deploy.override"
"""The same for the library that replaces onnxruntime's own operators."""
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

    Only for sessions on the CPU. Elsewhere a CPU kernel would make onnxruntime copy the node's data to the host and
    back; there, leave the library out, and the function bodies in the model run.

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


def session(
    model: Any,
    *,
    providers: str | Sequence[str | tuple[str, dict[str, Any]]] | None = None,
    session_options: Any = None,
    override_builtin: bool = False,
    **kwargs: Any,
) -> Any:
    """An onnxruntime session in which fused norms run our kernels.

    The library is registered when every provider is the CPU's. With any other provider it is not, since its operators
    would draw their nodes from that device to the host; the function bodies in the model run there, and a
    ``UserWarning`` says so.

    Args:
        model: a path, serialized bytes, an ``onnx.ModelProto`` or an ``onnx_ir.Model``. One with weights in other files
            must be given as a path.
        providers: as for ``onnxruntime.InferenceSession``; None is the CPU.
        session_options: an ``onnxruntime.SessionOptions``. It cannot be copied, so the library is registered on
            the object itself (once). None makes new ones.
        override_builtin: also run our kernels for onnxruntime's own fused norms, see :func:`register`.
        **kwargs: handed on to ``onnxruntime.InferenceSession``.

    Returns:
        The ``onnxruntime.InferenceSession``.

    Raises:
        MissingEnvironment: see :func:`register`.
        UsageError: the model is of no such type, or cannot be handed over in memory.
    """
    ort = _onnxruntime()
    loadable = _loadable(model)
    chosen = [_CPU] if providers is None else [providers] if isinstance(providers, str) else list(providers)
    names = [provider if isinstance(provider, str) else provider[0] for provider in chosen]
    options = ort.SessionOptions() if session_options is None else session_options
    others = sorted({name for name in names if name != _CPU})
    if not others:
        register(options, override_builtin=override_builtin)
    elif not is_registered(options, override_builtin=override_builtin):
        warnings.warn(
            f"rmsnorm_deploy's library has kernels for the CPU only and is not registered beside {', '.join(others)}; "
            "fused norms run by their function bodies",
            stacklevel=2,
        )
    return ort.InferenceSession(loadable, sess_options=options, providers=chosen, **kwargs)
