"""Which of our libraries session options hold: registering them, and asking. Imports onnxruntime lazily."""

from __future__ import annotations

import threading
from collections.abc import Collection
from pathlib import Path
from typing import Any

from rmsnorm_deploy.errors import MissingEnvironment, RmsNormDeployError, first_line
from rmsnorm_deploy.run.library import library_path, opened
from rmsnorm_deploy.run.ort import onnxruntime

_REGISTERED = "rmsnorm_deploy.library"
"""Session configuration key under which options remember that they have the library, and from where."""
_OVERRIDDEN = "rmsnorm_deploy.override"
"""The same for the library that replaces onnxruntime's own operators."""
REPLACED = ("", "com.microsoft")
"""The domains in which that library replaces operators."""
_ONE_AT_A_TIME = threading.Lock()  # two threads that register on one options object would both find it unmarked


def has_entry(session_options: Any, key: str) -> bool:
    """Whether session options have a configuration entry that is not empty."""
    try:
        return bool(session_options.get_session_config_entry(key))
    except RuntimeError:  # onnxruntime's way to say that there is no such entry
        return False


def is_registered(session_options: Any, *, override_builtin: bool = False) -> bool:
    """Whether :func:`register` has been called on these session options, with ``override_builtin`` if that is given."""
    return has_entry(session_options, _REGISTERED) and (not override_builtin or has_entry(session_options, _OVERRIDDEN))


def replaces(session_options: Any, domain: str) -> bool:
    """Whether the operators of one of :data:`REPLACED` are replaced in sessions of these options."""
    return has_entry(session_options, f"rmsnorm_deploy.has_domain.{domain}")  # the library's own mark


def path_of(session_options: Any) -> Path:
    """The library that is, or would be, registered on session options.

    Raises:
        MissingEnvironment: there is none.
    """
    if has_entry(session_options, _REGISTERED):
        return Path(session_options.get_session_config_entry(_REGISTERED))
    return library_path()


def _add_library(session_options: Any, key: str, path: Path, hint: str) -> None:
    opened(path, override=key == _OVERRIDDEN)
    try:
        session_options.register_custom_ops_library(str(path))
    except Exception as error:  # onnxruntime's exceptions share no base of their own
        raise MissingEnvironment(f"onnxruntime does not take the library {path}: {error}", hint) from error
    if not has_entry(session_options, key):
        session_options.add_session_config_entry(key, str(path))


def register(session_options: Any, *, override_builtin: bool = False) -> None:
    """Register the native library on session options; sessions made from them run our CPU kernels.

    A second call on the same options does nothing: the first leaves a mark in their configuration entries. onnxruntime
    knows the domain ``rmsnorm_deploy`` for the rest of the process then, and writes it, as version 1000, into the
    imports of every model that it saves there. Nothing that loads such a model minds.

    For sessions on the CPU, and on the CUDA provider where the library was built with CUDA (``rmsnorm-deploy doctor``
    says so). Elsewhere a CPU kernel would make onnxruntime copy the node's data to the host and back; there, leave the
    library out, and the function bodies in the model run. :func:`session` decides that by itself.

    With ``override_builtin``, models that hold onnxruntime's own fused norms run our kernels as they are:
    ``SimplifiedLayerNormalization``, ``RMSNormalization`` and ``com.microsoft.SkipSimplifiedLayerNormalization``,
    whether they stand in the file or onnxruntime's optimizer makes them. A second library then replaces these
    operators for the session, schemas included; it takes every type and every optional input and output that the
    built-in kernels take, and computes the same, within a unit in the last place. Messages about these nodes are ours,
    a negative or infinite epsilon is refused, and a tensor may have at most 16 dimensions.

    Every model of such options has to import ``com.microsoft``: onnxruntime gives the domain of replaced operators the
    version 1000 in any other model, and then finds no operator of ``com.microsoft`` that its optimizer makes, such as
    ``QuickGelu`` ("is not a registered function/op"). :func:`session` looks at the model, and replaces operators only
    in domains that it imports. A file in onnxruntime's own format (.ort) keeps the operators with which it was saved.

    Args:
        session_options: an ``onnxruntime.SessionOptions``; changed.
        override_builtin: also replace onnxruntime's own operators. Without it none of them is touched.

    Raises:
        MissingEnvironment: onnxruntime or the library is missing, or they do not go together: onnxruntime is too old,
            or RMSNORM_DEPLOY_ISA names an instruction set that this machine lacks.
    """
    register_in(session_options, REPLACED if override_builtin else ())


def register_in(session_options: Any, domains: Collection[str]) -> None:
    """As :func:`register`, replacing onnxruntime's own operators in some of the domains in :data:`REPLACED` only.

    Raises:
        MissingEnvironment: as :func:`register`.
    """
    onnxruntime()
    lacks = "the sentence above says what it lacks"
    with _ONE_AT_A_TIME:
        if not has_entry(session_options, _REGISTERED):
            hint = f"{lacks}; without the library, fused models run by their function bodies"
            _add_library(session_options, _REGISTERED, library_path(), hint)
        if not all(replaces(session_options, domain) for domain in domains):
            for domain in REPLACED:
                _switch(session_options, domain, on=domain in domains)
            hint = f"{lacks}; without override_builtin, onnxruntime runs its own kernels"
            _add_library(session_options, _OVERRIDDEN, library_path(override=True), hint)


def _switch(session_options: Any, domain: str, *, on: bool) -> None:
    """Say whether the library that is registered next replaces the operators of a domain; by default it does."""
    key = f"rmsnorm_deploy.override.{domain or 'ai.onnx'}"
    is_on = not has_entry(session_options, key) or session_options.get_session_config_entry(key) != "0"
    if is_on != on:  # onnxruntime complains of an entry that is set again
        session_options.add_session_config_entry(key, "1" if on else "0")


def library_problem() -> str:
    """Why the library of kernels cannot be used here; empty where it can."""
    try:
        register(onnxruntime().SessionOptions())
    except RmsNormDeployError as error:
        return error.message
    except Exception as error:  # onnxruntime raises its own types for a library that does not load
        return first_line(error)
    return ""
