"""TVM's table of ONNX converters, with ours in it for a while: the only place that touches a private name of TVM."""

from __future__ import annotations

import contextlib
import io
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
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


Convert = Callable[[Any, Any, dict[str, Any]], Any]
"""A function of (block builder, inputs, attributes). TVM adds an attribute ``tvm_custom``: the node's name, the number
of its outputs."""
Around = Callable[[str, Convert], Convert]
"""What makes the converter to use from an operator's name and the converter that there is."""


@contextlib.contextmanager
def extended(converters: Mapping[str, Convert], around: Around, opset: int) -> Iterator[io.StringIO]:
    """Have TVM's importer know ``converters``, by operator name; one thread at a time, and never for longer.

    Meanwhile TVM's importer neither warns nor prints: what it would have printed is in the buffer that is yielded.

    Args:
        converters: beside TVM's own, or in place of them.
        around: applied to every converter, TVM's and these.
        opset: of the model.
    """
    with _LOCK:
        original = _original()
        table = {name: _converter_class(around, name, cls, opset) for name, cls in original().items()}
        for name, convert in converters.items():
            table[name] = _converter_class(around, name, convert, opset)
        setattr(onnx_frontend, _NAME, lambda: table)
        try:
            with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()) as printed:
                warnings.simplefilter("ignore")
                yield printed
        finally:
            setattr(onnx_frontend, _NAME, original)


def _converter_class(around: Around, name: str, found: Any, opset: int) -> type[Any]:
    def impl(bb: Any, inputs: Any, attr: dict[str, Any], params: Any) -> Any:
        def there_is(bb: Any, inputs: Any, attr: dict[str, Any]) -> Any:
            if isinstance(found, type):
                # TVM's converters ask for inputs that are not there, and its own list answers None
                return found.get_converter(opset)(bb, onnx_frontend.onnx_input(inputs), attr, params)  # type: ignore[attr-defined]
            return found(bb, inputs, attr)

        return around(name, there_is)(bb, inputs, attr)

    def get_converter(_cls: Any, _opset: int) -> Any:
        return impl

    return type("Converter", (onnx_frontend.OnnxOpConverter,), {"get_converter": classmethod(get_converter)})


def _original() -> Any:
    table = getattr(onnx_frontend, _NAME, None)
    if not callable(table) or not hasattr(onnx_frontend, "OnnxOpConverter"):
        raise MissingEnvironment(
            "this release of TVM keeps its ONNX converters somewhere else", "Install apache-tvm>=0.27,<0.28."
        )
    return table
