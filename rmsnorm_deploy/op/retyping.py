"""What a node means whose values have another type than its attributes say.

Converters of types (float16, mixed precision) change values and weights, and leave the attributes of operators that
they do not know. The kernels go by the type of X, and so does everything else.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from onnx import TensorProto

from rmsnorm_deploy.op.dtypes import SIXTEEN_BIT


def following(values: Mapping[str, Any], x_type: int | None) -> dict[str, Any]:
    """The attributes of a node as they are meant for an X of type ``x_type``.

    Args:
        values: the attributes that the node has.
        x_type: data type of X; None where it is not known, which changes nothing.

    Returns:
        The attributes, with ``output_type`` and what depends on it changed where ``output_type`` is another type.
    """
    meant = dict(values)
    before = meant.get("output_type")
    if x_type is None or before in (None, x_type):
        return meant
    meant["output_type"] = x_type
    scale_type = meant.get("scale_type", int(TensorProto.FLOAT))
    if x_type == TensorProto.DOUBLE:
        meant["stash_type"] = x_type  # a float64 norm has no other arithmetic
    if scale_type == before and (scale_type in SIXTEEN_BIT or x_type == TensorProto.DOUBLE):
        meant["scale_type"] = x_type  # it rounded to the type of X before, and does so now
    if before in SIXTEEN_BIT and meant.get("precision") == before:
        meant["precision"] = x_type
    return meant
