"""From ONNX to Relax: every norm becomes one call, in its own type, that a schedule replaces later."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import Any

import onnx_ir as ir
import tvm
import tvm_ffi
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, helper
from tvm import relax
from tvm.relax.frontend.onnx import from_onnx

from rmsnorm_deploy.errors import ModelError, RmsNormDeployError
from rmsnorm_deploy.model.files import StrPath
from rmsnorm_deploy.op import ALL_FEATURES, DOMAIN, NormParameters, Op
from rmsnorm_deploy.tvm.importer import gathering, matrices, shaping, table
from rmsnorm_deploy.tvm.importer.attention import attention
from rmsnorm_deploy.tvm.importer.expand import AI_ONNX
from rmsnorm_deploy.tvm.importer.prepare import PREFIX, prepared
from rmsnorm_deploy.tvm.importer.rotary import contrib_rotary_embedding, rotary_embedding
from rmsnorm_deploy.tvm.importer.shaping import Operator
from rmsnorm_deploy.tvm.importer.sixteen_bits import calculated_wide
from rmsnorm_deploy.tvm.schedules.norm import DATA_TYPES, MARKER, to_text
from rmsnorm_deploy.tvm.sizes.dimensions import Dimensions
from rmsnorm_deploy.tvm.sizes.input_shapes import input_shapes
from rmsnorm_deploy.tvm.sizes.shape_values import ShapeValue, folded

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


def import_prepared(proto: ModelProto) -> Any:
    """A model from :func:`rmsnorm_deploy.tvm.importer.prepare.prepared` as a Relax module.

    The module's attribute ``POSITIVE`` names the inputs' dimensions that must not be 0.
    """
    opset = next(o.version for o in proto.opset_import if o.domain in AI_ONNX)
    dims, told = Dimensions(), input_shapes(proto)
    for shape in told.shapes.values():
        dims.bind(shape)
    converters = {PREFIX + name: _without_custom(function) for name, function in _CONVERTERS.items()}
    converters |= {name: _impossible for name in _SPECIAL if name.startswith(PREFIX)}
    converters[PREFIX + "Tensor"] = lambda _bb, inputs, _attr: inputs[0]
    with (
        table.extended(converters, _around(dims, opset), opset) as printed,
        _tensors(proto),
    ):
        try:
            module = from_onnx(proto, shape_dict=told.shapes)
        except RmsNormDeployError:
            raise
        except Exception as error:  # TVM's converters raise whatever comes
            text = (str(error).strip().splitlines() or ["no message"])[-1]
            # "Error converting operator NAME, with inputs: ..." is the only trace of the operator
            found = re.search(r"Error converting operator (\w+)", printed.getvalue())
            where = f" (at a node of type {found[1].removeprefix(PREFIX)})" if found else ""
            raise ModelError(
                f"TVM cannot import the model{where}: {type(error).__name__}: {text}",
                "Fixed shapes often help: export the model without dynamic dimensions.",
            ) from error
    return module.with_attr(POSITIVE, sorted(told.labels[name] for name in dims.positive if name in told.labels))


def _around(dims: Dimensions, opset: int) -> table.Around:
    """Every converter: values of sizes stay values, and only what nothing else can convert is TVM's business."""

    def around(name: str, convert: table.Convert) -> table.Convert:
        def wrapped(bb: Any, inputs: Any, attr: dict[str, Any]) -> Any:
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
    for graph in _graphs(proto.graph):
        for i in reversed([i for i, node in enumerate(graph.node) if node.op_type == "If"]):
            graph.node.insert(i, _tensor(graph.node[i].input[0]))
        graph.node.extend(_tensor(name) for name in dict.fromkeys(o.name for o in graph.output))
    try:
        yield
    finally:
        for graph in _graphs(proto.graph):
            for i in reversed([i for i, node in enumerate(graph.node) if node.op_type == PREFIX + "Tensor"]):
                del graph.node[i]


def _graphs(graph: GraphProto) -> Iterator[GraphProto]:
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == AttributeProto.GRAPH:
                yield from _graphs(attribute.g)


def _tensor(name: str) -> NodeProto:
    return helper.make_node(PREFIX + "Tensor", [name], [name], domain=DOMAIN)


def emit_norm(bb: Any, parameters: NormParameters, inputs: list[Any]) -> Any:
    """The call that stands for a norm; its type is X's, twice for AddRMSNorm."""
    ty = inputs[0].ty
    out = relax.TupleType([ty, ty]) if parameters.op is Op.ADD_RMS_NORM else ty
    call = relax.op.call_pure_packed(MARKER, *inputs, tvm.ir.StringImm(to_text(parameters)), ty_args=out)
    result = bb.emit(call)
    if parameters.op is Op.ADD_RMS_NORM:
        return relax.Tuple([bb.emit(relax.TupleGetItem(result, i)) for i in range(2)])
    return result


def _dtype(value: Any) -> str:
    return str(value.ty.dtype.dtype)


def _known_float(name: str, *values: Any) -> None:
    for value in values:
        if _dtype(value) not in DATA_TYPES or value.ty.ndim < 0:
            raise ModelError(
                f"{name} needs inputs of known rank and float type, not {value.ty}", "Export the model with shapes."
            )


def _ours(op: Op) -> Any:
    def convert(bb: Any, inputs: Any, attr: dict[str, Any]) -> Any:
        given = [inputs[i] for i in range(len(op.inputs))]
        _known_float(op.value, *given)
        sizes = attr.pop("partial_size", (ALL_FEATURES,))
        parameters = NormParameters(
            op=op,
            axes=tuple(attr.pop("axes")),
            partial_size=None if sizes[0] == ALL_FEATURES else sizes[0],
            **attr,
        )
        if DATA_TYPES[_dtype(given[0])] != parameters.output_type:
            raise ModelError(
                f"{op.value} has X of type {_dtype(given[0])} and output_type {parameters.output_type}",
                "Fuse the original model again.",
            )
        return emit_norm(bb, parameters, given)

    return convert


def _plain(name: str) -> Any:
    """RMSNormalization rounds to X's type before the scale, SimplifiedLayerNormalization does not."""

    def convert(bb: Any, inputs: Any, attr: dict[str, Any]) -> Any:
        x, scale = inputs[0], inputs[1]
        _known_float(name, x, scale)
        rank, axis = x.ty.ndim, int(attr.get("axis", -1))
        first = axis % rank
        return _norm_of_mixed(
            bb, x, scale, tuple(range(first - rank, 0)), float(attr.get("epsilon", 1e-5)), name == "RMSNormalization"
        )

    return convert


def _norm_of_mixed(bb: Any, x: Any, scale: Any, axes: tuple[int, ...], epsilon: float, twice: bool) -> Any:
    """A norm whose result has scale's type, as in ai.onnx; computed in the wider type where the two differ."""
    x_dtype, scale_dtype = _dtype(x), _dtype(scale)
    if x_dtype != scale_dtype:
        wide = "float64" if "float64" in (x_dtype, scale_dtype) else "float32"
        x, twice = bb.emit(relax.op.astype(x, wide)), False
    dtype = _dtype(x)
    stash = TensorProto.DOUBLE if dtype == "float64" else TensorProto.FLOAT
    parameters = NormParameters(
        op=Op.RMS_NORM,
        output_type=DATA_TYPES[dtype],
        axes=axes,
        epsilon=epsilon,
        stash_type=stash,
        scale_type=DATA_TYPES[dtype] if twice else stash,
    )
    if _dtype(scale) != dtype and _dtype(scale) != "float32":
        scale = bb.emit(relax.op.astype(scale, dtype))
    y = emit_norm(bb, parameters, [x, scale])
    return y if dtype == scale_dtype else bb.emit(relax.op.astype(y, scale_dtype))


def _skip(bb: Any, inputs: Any, attr: dict[str, Any]) -> Any:
    """Outputs Y, two statistics that nobody may read, and the sum. Nothing is added in 16 bits."""
    x, skip, scale, bias = (inputs[i] for i in range(4))
    _known_float("SkipSimplifiedLayerNormalization", x, skip, scale)
    epsilon, dtype = float(attr.get("epsilon", 1e-12)), _dtype(x)
    nothing = relax.const(0.0, "float32")
    stash = TensorProto.DOUBLE if dtype == "float64" else TensorProto.FLOAT
    parameters = NormParameters(Op.ADD_RMS_NORM, DATA_TYPES[dtype], (-1,), epsilon, stash, stash)
    if bias is None and _same_shape(x, skip):
        y, total = emit_norm(bb, parameters, [x, skip, scale])
        return relax.Tuple([y, nothing, nothing, total])
    wide = "float64" if dtype == "float64" else "float32"
    total = relax.op.add(relax.op.astype(x, wide), relax.op.astype(skip, wide))
    if bias is not None:
        total = relax.op.add(total, relax.op.astype(bias, wide))
    total = bb.emit(relax.op.astype(total, dtype))
    plain = NormParameters(Op.RMS_NORM, DATA_TYPES[dtype], (-1,), epsilon, stash, stash)
    return relax.Tuple([emit_norm(bb, plain, [total, scale]), nothing, nothing, total])


def _same_shape(a: Any, b: Any) -> bool:
    return a.ty.shape is not None and b.ty.shape is not None and tvm_ffi.structural_equal(a.ty.shape, b.ty.shape)


_SPECIAL = {
    **shaping.CONVERTERS,
    **gathering.CONVERTERS,
    **matrices.CONVERTERS,
    PREFIX + "Attention": attention,
    PREFIX + "RotaryEmbedding": rotary_embedding,
    PREFIX + "ContribRotaryEmbedding": contrib_rotary_embedding,
}
"""Converters that come before TVM's; one that returns None leaves it to TVM's."""

_CONVERTERS = {
    **{op.value: _ours(op) for op in Op},
    **{name: _plain(name) for name in ("RMSNormalization", "SimplifiedLayerNormalization")},
    "SkipSimplifiedLayerNormalization": _skip,
}
