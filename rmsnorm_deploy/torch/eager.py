"""What the operators compute, in PyTorch: the formula on tensors, for any device and with gradients."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch

from rmsnorm_deploy.op import NormParameters, formula
from rmsnorm_deploy.op.dtypes import float_type

_COMBINED = {"Add": torch.add, "Mul": torch.mul, "Max": torch.maximum}


def evaluate(parameters: NormParameters, inputs: Mapping[str, Any]) -> tuple[Any, ...]:
    """The outputs of a norm, in the operator's order.

    Args:
        parameters: of the norm.
        inputs: tensors by the operator's names; X of any shape.
    """
    steps = _Steps(parameters, inputs)
    formula.write(parameters.op, steps)
    return tuple(steps.outputs[name] for name in parameters.op.outputs)


def torch_type(data_type: int) -> Any:
    """PyTorch's type for an ``onnx.TensorProto`` data type."""
    return getattr(torch, float_type(data_type).name)


class _Steps(formula.Writer[Any]):
    def __init__(self, parameters: NormParameters, inputs: Mapping[str, Any]) -> None:
        self.outputs: dict[str, Any] = {}
        self._inputs = inputs
        # by name, so that a step may ask for an attribute that only its own operator has
        self._values = {f.name: getattr(parameters, f.name) for f in dataclasses.fields(parameters)}
        self._own = inputs["X"].dtype
        self._wide = torch_type(parameters.stash_type)
        self._narrow = torch_type(parameters.scale_type)

    def wide(self, operand: str) -> Any:
        return self._inputs[operand].to(self._wide)

    def total(self) -> Any:
        self.outputs["sum"] = (self.wide("X") + self.wide("residual")).to(self._own)
        return self.outputs["sum"].to(self._wide)

    def first_features(self, x: Any) -> Any:
        size = self._values["partial_size"]
        if size is None:
            return x
        (axis,) = self._values["axes"]
        return x.narrow(axis, 0, min(size, x.shape[axis]))

    def mean_square(self, x: Any) -> Any:
        return (x * x).mean(dim=list(self._values["axes"]), keepdim=True)

    def combined(self, op_type: str, value: Any, attribute: str) -> Any:
        return _COMBINED[op_type](value, torch.full((), self._values[attribute], dtype=self._wide, device=value.device))

    def root(self, value: Any) -> Any:
        return torch.sqrt(value)

    def divided(self, x: Any, rms: Any) -> Any:
        return (x / rms).to(self._narrow)

    def applied(self, op_type: str, value: Any, operand: str) -> Any:
        other = self._inputs[operand].to(self._narrow).to(self._wide)
        return _COMBINED[op_type](value.to(self._wide), other).to(self._narrow)

    def gated(self, value: Any, at: int, *, rounded: bool) -> Any:
        """Of the operators that have a gate; ``activation`` 0 is the sigmoid, 1 is SiLU."""
        if self._values["gate_at"] != at:
            return value
        gate = self.wide("gate")
        gate = torch.sigmoid(gate) if self._values["activation"] == 0 else torch.nn.functional.silu(gate)
        product = value.to(self._wide) * gate
        return product.to(self._narrow) if rounded else product

    def finish(self, value: Any) -> None:
        self.outputs["Y"] = value.to(self._own)

    def quantise(self, *, dynamic: bool) -> None:
        raise NotImplementedError("PyTorch has none of the operators that quantise")
