"""Raising a model's ai.onnx opset, without its weights passing through the converter."""

from __future__ import annotations

from collections.abc import Iterable

import onnx
import onnx_ir as ir

from rmsnorm_deploy.errors import first_line
from rmsnorm_deploy.model import many_dimensions
from rmsnorm_deploy.model.graphs import AI_ONNX, forget_negative_sizes
from rmsnorm_deploy.model.skeleton import ir_without_weights, put_back
from rmsnorm_deploy.model.validity import complaint, with_stated_types

_ASIDE = "rmsnorm_deploy.aside"
"""A domain for operators that the converter does not know: it leaves those of other domains as they are."""


def raised(model: ir.Model, opset: int) -> ir.Model:
    """A copy of ``model`` at ai.onnx ``opset``, converted by onnx's version converter; tensors are shared.

    Raises:
        ValueError: the converter cannot do it; the message says why.
    """
    if model.functions:
        raise ValueError("onnx's version converter does not convert models with local functions")
    try:
        skeleton, weights = ir_without_weights(model)
    except (RuntimeError, ValueError) as error:
        raise ValueError(f"onnx_ir cannot copy it: {error}") from error
    if any(a.is_ref() for node in _nodes(skeleton) for a in node.attributes.values()):
        # the converter drops what stands outside of a function, where onnxruntime takes the value beside the reference
        raise ValueError("a node outside of every function refers to an attribute of a function")
    aside = _set_aside(skeleton)
    proto = ir.to_proto(skeleton)
    forget_negative_sizes(proto)
    many_dimensions.forget(proto)
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    found = complaint(with_stated_types(copy), full=False)
    if found:  # the converter ends the process at an attribute of another type than the operator has
        raise ValueError(f"the model is not valid: {found}")
    try:
        converted = onnx.version_converter.convert_version(proto, opset)
    except Exception as error:  # the converter raises RuntimeError and its own types
        raise ValueError(first_line(error)) from error
    if [v.name for v in converted.graph.output] != [v.name for v in proto.graph.output]:
        raise ValueError("onnx's version converter renamed an output")
    converted.ir_version = max(converted.ir_version, 10)
    converted.metadata_props.extend(p for p in proto.metadata_props if p not in converted.metadata_props)
    result = ir.from_proto(converted)
    if _bring_back(result) != aside:
        raise ValueError("onnx's version converter lost an operator that it does not know")
    result.graph.metadata_props.update(model.graph.metadata_props)
    result.graph.meta.update(model.graph.meta)
    if put_back(result, weights) < len(weights):
        raise ValueError("onnx's version converter lost a weight")
    return result


def _set_aside(model: ir.Model) -> int:
    """Move every operator of ai.onnx that onnx has no schema of to the other domain. Returns how many."""
    unknown = [n for n in _nodes(model) if n.domain in AI_ONNX and not onnx.defs.has(n.op_type)]
    for node in unknown:
        node.domain = _ASIDE
    if unknown:
        model.opset_imports[_ASIDE] = 1
    return len(unknown)


def _bring_back(model: ir.Model) -> int:
    """Undo :func:`_set_aside`. Returns how many operators were there."""
    aside = [n for n in _nodes(model) if n.domain == _ASIDE]
    for node in aside:
        node.domain = ""
    model.opset_imports.pop(_ASIDE, None)
    return len(aside)


def _nodes(model: ir.Model) -> Iterable[ir.Node]:
    return ir.traversal.RecursiveGraphIterator(model.graph)
