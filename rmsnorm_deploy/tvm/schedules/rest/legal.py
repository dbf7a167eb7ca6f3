"""TVM's operators that a CPU computes by polynomials, as TVM's pass from operators to kernels asks for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from tvm import te

from rmsnorm_deploy.tvm.schedules.rest import functions

WIDE = "float32"
NARROW = ("float16", "bfloat16")
POWERS: dict[float, Callable[[Any], Any]] = {2.0: lambda x: x * x, 3.0: lambda x: x * x * x}
"""What a constant exponent stands for; TVM calls libm for each value."""


def by_polynomials() -> dict[str, Any]:
    """By operator, how it becomes a kernel. Types other than float32 and 16 bits stay with libm."""
    names = {"exp": "", "tanh": "", "sigmoid": "", "erf": "", "silu": "nn.", "gelu": "nn.", "gelu_tanh": "nn."}
    made: dict[str, Any] = {f"relax.{room}{name}": _unary(f"relax.{room}{name}", name) for name, room in names.items()}
    made["relax.power"] = _power
    return made


def _unary(operator: str, name: str) -> Any:
    function = getattr(functions, name)

    def legal(bb: Any, call: Any) -> Any:
        if _type(call) not in (WIDE, *NARROW):
            return _usual(operator)(bb, call)
        return bb.call_te(_each(function, name), call.args[0], primfunc_name_hint=name)

    return legal


def _power(bb: Any, call: Any) -> Any:
    exponent = call.args[1]
    value = exponent.value.numpy() if hasattr(exponent, "value") and hasattr(exponent.value, "numpy") else None
    power = None if value is None or value.size != 1 else POWERS.get(float(np.ravel(value)[0]))
    same = value is not None and value.ndim <= call.args[0].ty.ndim
    if power is None or not same or _type(call) not in (WIDE, *NARROW):
        return _usual("relax.power")(bb, call)
    return bb.call_te(_each(power, "power"), call.args[0], primfunc_name_hint="power")


def _each(function: Callable[[Any], Any], name: str) -> Callable[[Any], Any]:
    def compute(x: Any) -> Any:
        def value(*at: Any) -> Any:
            read = x(*at)
            return function(read) if x.dtype == WIDE else function(read.astype(WIDE)).astype(x.dtype)

        return te.compute(x.shape, value, name=name)

    return compute


def _type(call: Any) -> str:
    return str(call.args[0].ty.dtype.dtype)


def _usual(operator: str) -> Any:
    """TVM's own way."""
    import tvm

    return tvm.ir.Op.get(operator).get_attr("FLegalize")
