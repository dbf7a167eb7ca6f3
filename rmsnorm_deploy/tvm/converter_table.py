"""TVM's table of ONNX converters, with ours in it for a while: the only place that touches a private name of TVM."""

from __future__ import annotations

import contextlib
import io
import threading
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

from tvm.relax.frontend.onnx import onnx_frontend

from rmsnorm_deploy.errors import MissingEnvironment

_LOCK = threading.RLock()
_NAME = "_get_convert_map"


def names() -> frozenset[str]:
    """Operators that the installed TVM converts; it looks at the operator's name only, never at its domain.

    Raises:
        MissingEnvironment: this TVM has no such table.
    """
    # Constant and If are built into the importer
    return frozenset(_original()()) | {"If", "Constant"}


def converter(convert: Any) -> type[Any]:
    """A converter class of TVM's from a function of (block builder, inputs, attributes)."""

    def _impl_v1(_cls: Any, bb: Any, inputs: Any, attr: Any, _params: Any) -> Any:
        return convert(bb, inputs, {k: v for k, v in attr.items() if k != "tvm_custom"})

    return type("Converter", (onnx_frontend.OnnxOpConverter,), {"_impl_v1": classmethod(_impl_v1)})


@contextlib.contextmanager
def extended(converters: Mapping[str, type[Any]]) -> Iterator[io.StringIO]:
    """Have TVM's importer know ``converters``, by operator name; one thread at a time, and never for longer.

    Meanwhile TVM's importer neither warns nor prints: what it would have printed is in the buffer that is yielded.
    """
    with _LOCK:
        original = _original()

        def table() -> dict[str, Any]:
            return {**original(), **converters}

        setattr(onnx_frontend, _NAME, table)
        try:
            with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()) as printed:
                warnings.simplefilter("ignore")
                yield printed
        finally:
            setattr(onnx_frontend, _NAME, original)


def _original() -> Any:
    table = getattr(onnx_frontend, _NAME, None)
    if not callable(table) or not hasattr(onnx_frontend, "OnnxOpConverter"):
        raise MissingEnvironment(
            "this release of TVM keeps its ONNX converters somewhere else", "Install apache-tvm>=0.27,<0.28."
        )
    return table
