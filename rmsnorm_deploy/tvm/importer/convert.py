"""From ONNX to Relax, with TVM's importer: what it cannot convert, or not as well, is converted here."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import onnx_ir as ir
from onnx import ModelProto, NodeProto, helper
from tvm import relax
from tvm.relax.frontend.onnx import from_onnx

from rmsnorm_deploy.errors import ModelError, last_line
from rmsnorm_deploy.model.files import StrPath
from rmsnorm_deploy.model.graphs import graphs_of, opset_of
from rmsnorm_deploy.op import DOMAIN
from rmsnorm_deploy.op.versions import version_of
from rmsnorm_deploy.tvm.importer import fitting, gathering, matrices, norms, quantised, shaping, slicing, table
from rmsnorm_deploy.tvm.importer.attention import attention
from rmsnorm_deploy.tvm.importer.grouped_query import grouped_query_attention
from rmsnorm_deploy.tvm.importer.large import NODE
from rmsnorm_deploy.tvm.importer.layer_norm import instance_normalization, layer_normalization
from rmsnorm_deploy.tvm.importer.operator import Operator
from rmsnorm_deploy.tvm.importer.prepare import PREFIX, REFUSED, Prepared, prepared
from rmsnorm_deploy.tvm.importer.refusals import Refusals
from rmsnorm_deploy.tvm.importer.rotary import contrib_rotary_embedding, rotary_embedding
from rmsnorm_deploy.tvm.importer.sixteen_bits import calculated_wide
from rmsnorm_deploy.tvm.sizes.dimensions import Dimensions
from rmsnorm_deploy.tvm.sizes.folding import folded
from rmsnorm_deploy.tvm.sizes.input_shapes import input_shapes
from rmsnorm_deploy.tvm.sizes.shape_values import ShapeValue

POSITIVE = "rmsnorm_deploy.positive"
"""A module's attribute: names of the inputs' dimensions that must not be 0."""


def import_onnx(model: StrPath | ModelProto | ir.Model) -> Any:
    """``model``, fused, as a Relax module with the function ``main``.

    A norm is ``call_pure_packed("rmsnorm_deploy.norm", X, ..., parameters)``, with its operator's inputs in order;
    AddRMSNorm gives a tuple. :func:`rmsnorm_deploy.tvm.passes.pipeline.lower_norms` makes kernels of them.

    Args:
        model: a path, an ``onnx.ModelProto`` or an ``onnx_ir.Model``, fused or not; it is not changed.

    Returns:
        A ``tvm.ir.IRModule``; weights are constants in it.

    Raises:
        ModelError: the model cannot be read, or TVM cannot import it; every operator without a converter is named.
    """
    return import_prepared(prepared(model))


def import_prepared(model: Prepared) -> Any:
    """A model from :func:`rmsnorm_deploy.tvm.importer.prepare.prepared` as a Relax module; they share the weights.

    The module's attribute ``POSITIVE`` names the inputs' dimensions that must not be 0.
    """
    told = input_shapes(model.proto)
    dims, refusals = Dimensions(), Refusals(model, told.variables)
    module = _converted(model, told.shapes, dims, refusals)
    if module is None:
        fixed = told.fixed(_SIZE)
        helps = bool(told.labels) and not model.refused
        raise refusals.error(helps and _converted(model, fixed, Dimensions(), Refusals(model, {})) is not None)
    return module.with_attr(POSITIVE, sorted(told.labels[name] for name in dims.positive if name in told.labels))


_SIZE = 4
"""Of every dimension, where it is tried whether fixed sizes would help."""


def _converted(model: Prepared, shapes: dict[str, list[Any]], dims: Dimensions, refusals: Refusals) -> Any:
    """The module, or None where something was refused."""
    proto, weights = model.proto, model.weights
    opset, version = opset_of(proto), version_of({o.domain: o.version for o in proto.opset_import})
    for shape in shapes.values():
        dims.bind(shape)
    converters = {PREFIX + name: _without_custom(function) for name, function in norms.converters(version).items()}
    converters |= {name: _impossible for name in (REFUSED, *_SPECIAL) if name.startswith(PREFIX)}
    converters[PREFIX + "Tensor"] = lambda _bb, inputs, _attr: inputs[0]
    # behind a variable TVM's converters do not see that it is a constant, and calculate nothing with it
    converters[NODE] = lambda bb, _inputs, attr: bb.emit(relax.const(weights[attr["index"]]))
    around = _around(dims, opset, refusals)
    with table.extended(converters, around, opset), _tensors(proto), refusals.watching():
        try:
            module = from_onnx(proto, shape_dict=shapes)
        except Exception as error:  # TVM's importer raises whatever comes
            if not refusals.found:
                raise ModelError(
                    f"TVM cannot import the model: {type(error).__name__}: {last_line(error)}",
                    "Run the model in onnxruntime.",
                ) from error
            return None
    return None if refusals.found else module


def _around(dims: Dimensions, opset: int, refusals: Refusals) -> table.Around:
    """Every converter: values of sizes stay values, and only what nothing else can convert is TVM's business."""

    def around(name: str, convert: table.Convert) -> table.Convert:
        def converted(bb: Any, inputs: Any, attr: dict[str, Any]) -> Any:
            value = folded(name, inputs, attr, opset, dims)
            if value is not None:
                return value if isinstance(value, ShapeValue) else relax.Tuple([v.tensor(bb) for v in value])
            operator = Operator(bb, inputs, attr, dims)
            special = _SPECIAL.get(name)
            result = None if special is None else special(operator)
            if result is None:
                given = [operator.input(i) for i in range(len(operator.inputs))]
                result = calculated_wide(name, convert)(bb, given, attr)
            return _with_shape(bb, dims, result)

        def wrapped(bb: Any, inputs: Any, attr: dict[str, Any]) -> Any:
            unknown = refusals.unknown(inputs, attr)
            if unknown is not None:
                return unknown
            try:
                return converted(bb, inputs, attr)
            except Exception as error:  # TVM's converters raise whatever comes
                return refusals.instead(bb, name, attr, error)

        return wrapped

    return around


def _impossible(_bb: Any, _inputs: Any, _attr: dict[str, Any]) -> Any:
    raise ValueError("this form of the operator is not supported")


def _with_shape(bb: Any, dims: Dimensions, result: Any) -> Any:
    """A tensor of unknown sizes with a name for each of them, so that what follows has something to hold on to."""
    if not isinstance(result, relax.Expr) or isinstance(result, relax.Tuple):
        return result
    result = bb.normalize(result)
    if isinstance(result.ty, relax.TensorType) and result.ty.shape is None and result.ty.ndim > 0:
        sizes = [dims.fresh("size") for _ in range(result.ty.ndim)]
        return bb.match_cast(bb.emit(result), relax.TensorType(sizes, result.ty.dtype.dtype))
    return result


def _without_custom(convert: table.Convert) -> table.Convert:
    return lambda bb, inputs, attr: convert(bb, _Inputs(inputs), {k: v for k, v in attr.items() if k != "tvm_custom"})


class _Inputs(list[Any]):
    """Inputs of a node, None where it has none."""

    def __getitem__(self, i: Any) -> Any:
        return super().__getitem__(i) if i < len(self) else None


@contextlib.contextmanager
def _tensors(proto: ModelProto) -> Iterator[None]:
    """For a while, a node where TVM needs a tensor: behind outputs and before conditions, for the same name."""
    for graph in graphs_of(proto.graph):
        for i in reversed([i for i, node in enumerate(graph.node) if node.op_type == "If"]):
            graph.node.insert(i, _tensor(graph.node[i].input[0]))
        graph.node.extend(_tensor(name) for name in dict.fromkeys(o.name for o in graph.output))
    try:
        yield
    finally:
        for graph in graphs_of(proto.graph):
            for i in reversed([i for i, node in enumerate(graph.node) if node.op_type == PREFIX + "Tensor"]):
                del graph.node[i]


def _tensor(name: str) -> NodeProto:
    return helper.make_node(PREFIX + "Tensor", [name], [name], domain=DOMAIN)


_SPECIAL = {
    **shaping.CONVERTERS,
    **slicing.CONVERTERS,
    **fitting.CONVERTERS,
    **gathering.CONVERTERS,
    **matrices.CONVERTERS,
    **quantised.CONVERTERS,
    **{PREFIX + name: convert for name, convert in quantised.OWN.items()},
    "LayerNormalization": layer_normalization,
    "InstanceNormalization": instance_normalization,
    PREFIX + "Attention": attention,
    PREFIX + "GroupQueryAttention": grouped_query_attention,
    PREFIX + "RotaryEmbedding": rotary_embedding,
    PREFIX + "ContribRotaryEmbedding": contrib_rotary_embedding,
}
"""Converters that come before TVM's; one that returns None leaves it to TVM's."""
