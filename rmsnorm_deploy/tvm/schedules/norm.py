"""One norm as a kernel sees it: types, attributes and layout, everything that makes two kernels differ."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from rmsnorm_deploy.op import NormParameters, Op
from rmsnorm_deploy.op.dtypes import float_type

MARKER = "rmsnorm_deploy.norm"
"""Name of the call that stands for a norm in an imported module, until a schedule takes its place."""


@dataclasses.dataclass(frozen=True)
class Norm:
    """The norm of a tensor of shape (outer..., size, inner...) over ``size``.

    Attributes:
        parameters: of the operator, except for ``axes``, which the layout replaces.
        scale_dtype: type of scale and bias.
        size: number of features, or None where it is known at run time only.
        columns: whether there are dimensions behind; else the tensor is (outer..., size).
        full_scale: whether scale has the tensor's own shape instead of (size,).
        full_bias: the same for the bias.
        outer_rank: number of dimensions in front, at least 1.
        inner_rank: number of dimensions behind, where there are any.
    """

    parameters: NormParameters
    scale_dtype: str
    size: int | None
    columns: bool = False
    full_scale: bool = False
    full_bias: bool = False
    outer_rank: int = 1
    inner_rank: int = 1

    @property
    def dtype(self) -> str:
        """Type of X, the residual and the results."""
        return float_type(self.parameters.output_type).name

    @property
    def stash(self) -> str:
        """Type of the arithmetic."""
        return float_type(self.parameters.stash_type).name

    @property
    def rounding(self) -> str:
        """Type to which the normalised value is rounded before the scale."""
        return float_type(self.parameters.rounding).name

    @property
    def adds(self) -> bool:
        """Whether a residual comes in and the sum goes out."""
        return "residual" in self.parameters.op.inputs

    @property
    def bytes_moved(self) -> int:
        """Bytes of all large tensors together, for each value of X."""
        return float_type(self.dtype).itemsize * (4 if self.adds else 2)

    @property
    def biased(self) -> bool:
        """Whether a bias is added."""
        return "bias" in self.parameters.op.inputs

    @property
    def name(self) -> str:
        """A name for the kernel. Equal norms have equal names; different norms can have the same name."""
        layout = "columns" if self.columns else "rows"
        size = "any" if self.size is None else str(self.size)
        op = self.parameters.op.value.replace("RMSNorm", "_rms_norm").lstrip("_").lower()
        return f"{op}_{layout}_{size}_{self.dtype}"


def to_text(parameters: NormParameters) -> str:
    """``parameters`` as they stand in a module."""
    values: dict[str, Any] = dataclasses.asdict(parameters)
    return json.dumps(values | {"op": parameters.op.value}, sort_keys=True)


def from_text(text: str) -> NormParameters:
    """The inverse of :func:`to_text`."""
    values = json.loads(text)
    return NormParameters(**(values | {"op": Op(values["op"]), "axes": tuple(values["axes"])}))
