"""The operators as PyTorch's own: ``torch.ops.rmsnorm_deploy.rms_norm`` and the others, from the one definition."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from onnx import AttributeProto, TensorProto

from rmsnorm_deploy.op import DOMAIN, NormParameters, Op, newest
from rmsnorm_deploy.op.definition import Attribute, attributes_of
from rmsnorm_deploy.op.dtypes import TYPES
from rmsnorm_deploy.torch.eager import evaluate
from rmsnorm_deploy.torch.naming import OPERATORS, snake_case

_KINDS = {AttributeProto.INTS: "int[]?", AttributeProto.FLOAT: "float?", AttributeProto.INT: "int?"}
_DATA_TYPES = {getattr(torch, t.name): t.number for t in TYPES}


def given_by_caller(op: Op) -> tuple[Attribute, ...]:
    """The attributes that a call may give; the type of X is X's own, and the version that of this release."""
    return tuple(a for a in attributes_of(op) if a.name not in ("output_type", "version"))


def schema_of(op: Op) -> str:
    """The signature in PyTorch's words: the operator's inputs, then its attributes, each by name and optional."""
    tensors = ", ".join(f"Tensor {name}" for name in op.inputs)
    attributes = ", ".join(f"{_KINDS[a.kind]} {a.name}=None" for a in given_by_caller(op))
    outputs = "Tensor" if len(op.outputs) == 1 else f"({', '.join('Tensor' for _ in op.outputs)})"
    return f"{snake_case(op)}({tensors}, *, {attributes}) -> {outputs}"


def parameters_of(op: Op, x_type: int, attributes: dict[str, Any]) -> NormParameters:
    """The norm that a call means; in float64, what is not said is float64, too.

    Args:
        op: the operator.
        x_type: data type of X.
        attributes: as they were given; None for one that was not.

    Raises:
        ValueError: an attribute is outside its range.
    """
    given = {name: value for name, value in attributes.items() if value is not None}
    version = newest()
    if x_type == TensorProto.DOUBLE:
        given.setdefault("scale_type", x_type)
    if any(a.name == "version" for a in attributes_of(op, version)):
        given["version"] = version
    return NormParameters.from_attributes(op, given, version=version, x_type=x_type)


def function_of(op: Op) -> Any:
    """The operator that PyTorch has registered; it takes tensors and, by name, attributes."""
    return getattr(getattr(torch.ops, DOMAIN), snake_case(op))


def overload_of(op: Op) -> Any:
    """The same as it stands in an exported graph."""
    return function_of(op).default


def _eager(op: Op) -> Callable[..., Any]:
    def compute(*inputs: Any, **attributes: Any) -> Any:
        x = inputs[0]
        if x.dtype not in _DATA_TYPES:
            raise ValueError(f"X must be float32, float16, bfloat16 or float64, not {x.dtype}")
        parameters = parameters_of(op, _DATA_TYPES[x.dtype], attributes)
        # an output of a custom operator must not be one of its inputs
        outputs = evaluate(parameters, dict(zip(op.inputs, inputs, strict=True)))
        return outputs[0] if len(outputs) == 1 else outputs

    return compute


def _gradients(op: Op) -> tuple[Callable[..., Any], Callable[..., None]]:
    """The backward of an operator, and what it keeps: the inputs. It runs the formula again."""

    def keep(ctx: Any, inputs: tuple[Any, ...], keyword_only_inputs: dict[str, Any], output: Any) -> None:
        del output
        ctx.save_for_backward(*inputs)
        ctx.attributes = keyword_only_inputs

    def backward(ctx: Any, *gradients: Any) -> tuple[Any, ...]:
        with torch.enable_grad():
            inputs = [t.detach().requires_grad_(t.is_floating_point()) for t in ctx.saved_tensors]
            parameters = parameters_of(op, _DATA_TYPES[inputs[0].dtype], ctx.attributes)
            outputs = evaluate(parameters, dict(zip(op.inputs, inputs, strict=True)))
            asked = [(o, g) for o, g in zip(outputs, gradients, strict=True) if g is not None]
            found = torch.autograd.grad([o for o, _ in asked], inputs, [g for _, g in asked], allow_unused=True)
        return tuple(found)

    return backward, keep


def _register() -> Any:
    library = torch.library.Library(DOMAIN, "DEF")
    for name, op in OPERATORS.items():
        library.define(schema_of(op))
        library.impl(name, _eager(op), "CompositeExplicitAutograd")
        backward, keep = _gradients(op)
        torch.library.register_autograd(f"{DOMAIN}::{name}", backward, setup_context=keep, lib=library)
    return library


_LIBRARY = _register()
"""PyTorch forgets the operators when this goes."""
