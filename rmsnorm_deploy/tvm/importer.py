"""From ONNX to Relax: every norm becomes one call, in its own type, that a schedule replaces later."""

from __future__ import annotations

import re
from typing import Any

import onnx_ir as ir
import tvm
import tvm_ffi
from onnx import ModelProto, TensorProto
from tvm import relax
from tvm.relax.frontend.onnx import from_onnx

from rmsnorm_deploy.errors import ModelError, RmsNormDeployError
from rmsnorm_deploy.op import ALL_FEATURES, NormParameters, Op
from rmsnorm_deploy.paths import StrPath
from rmsnorm_deploy.tvm import converter_table
from rmsnorm_deploy.tvm.norm import DATA_TYPES, MARKER, to_text
from rmsnorm_deploy.tvm.prepare import PREFIX, prepared


def import_onnx(model: StrPath | ModelProto | ir.Model) -> Any:
    """``model``, fused, as a Relax module with the function ``main``.

    A norm is ``call_pure_packed("rmsnorm_deploy.norm", X, ..., parameters)``, with its operator's inputs in order;
    AddRMSNorm gives a tuple. :func:`rmsnorm_deploy.tvm.pipeline.lower_norms` makes kernels of them.

    Args:
        model: a path, an ``onnx.ModelProto`` or an ``onnx_ir.Model``, fused or not; it is not changed.

    Returns:
        A ``tvm.ir.IRModule``; weights are constants in it.

    Raises:
        ModelError: the model cannot be read, or TVM cannot import it; every operator without a converter is named.
    """
    return import_prepared(prepared(model))


def import_prepared(proto: ModelProto) -> Any:
    """A model from :func:`rmsnorm_deploy.tvm.prepare.prepared` as a Relax module."""
    converters = {PREFIX + name: converter_table.converter(function) for name, function in _CONVERTERS.items()}
    with converter_table.extended(converters) as printed:
        try:
            return from_onnx(proto)
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


_CONVERTERS = {
    **{op.value: _ours(op) for op in Op},
    **{name: _plain(name) for name in ("RMSNormalization", "SimplifiedLayerNormalization")},
    "SkipSimplifiedLayerNormalization": _skip,
}
