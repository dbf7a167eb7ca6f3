"""What a drawing says of a value: its number where it is a small constant, else its name, type and shape."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from rmsnorm_deploy.report.text import visible

NAME = 30
"""Characters of a name in a drawing."""
_MOST = 4
"""Numbers of a constant that are shown."""


def constant(value: ir.Value | None) -> str | None:
    """The number, or few numbers, that a value is whatever goes in; None where it is more, or no constant."""
    if value is None:
        return None
    tensor, producer = value.const_value, value.producer()
    if value.is_graph_input():
        return None
    if tensor is None and producer is not None and producer.op_type == "Constant":
        attribute = next(iter(producer.attributes.values()), None)
        if attribute is None or attribute.is_ref():
            return None
        if not isinstance(attribute.value, ir.TensorProtocol):
            return _numbers(attribute.value)
        tensor = attribute.value
    if tensor is None or isinstance(tensor, ir.ExternalTensor) or tensor.size > _MOST:
        return None
    try:
        return _numbers(tensor.numpy())
    except Exception:  # data that do not fit the type, of whatever library reads them
        return None


def _numbers(value: Any) -> str | None:
    try:
        array = np.asarray(value)
        if array.size > _MOST or array.dtype.kind in "OSU":
            return None
        shown = [f"{v:.6g}" for v in array.astype(np.float64).ravel().tolist()]
    except (TypeError, ValueError):
        return None
    return shown[0] if array.ndim == 0 or len(shown) == 1 else f"[{', '.join(shown)}]"


def named(value: ir.Value) -> str:
    """The name of a value."""
    return visible(value.name or "(no name)", NAME)


def kind(value: ir.Value) -> str:
    """Type and shape of a value, as far as the file says; empty where it says nothing."""
    dtype = "" if value.dtype in (None, ir.DataType.UNDEFINED) else value.dtype.name.lower()
    if value.shape is None:
        return dtype
    dims = [str(d) if isinstance(d, int) else visible(str(getattr(d, "value", d) or "?"), 12) for d in value.shape]
    shown = f"{dtype}[{', '.join(dims[:6])}{', ...' if len(dims) > 6 else ''}]"
    return visible(shown, NAME + 8)


def attributes(node: ir.Node) -> list[str]:
    """The attributes of a node that are numbers, a line each."""
    lines = []
    for attribute in list(node.attributes.values())[:8]:
        if attribute.is_ref():
            shown: str | None = f"@{attribute.ref_attr_name}"
        elif attribute.type in (ir.AttributeType.INT, ir.AttributeType.INTS, ir.AttributeType.FLOAT):
            shown = _name_of_type(attribute.name, attribute.value) or _numbers(attribute.value)
        else:
            shown = None
        if shown is not None:
            lines.append(visible(f"{attribute.name} = {shown}", NAME + 4))
    return lines


def _name_of_type(name: str, value: Any) -> str | None:
    """The name of an element type that an attribute gives by its number."""
    if name not in ("to", "stash_type", "scale_type", "output_type") or not isinstance(value, int):
        return None
    try:
        return ir.DataType(value).name.lower()
    except ValueError:
        return None
