"""Norms: each becomes one call, in its own type, that a schedule replaces later."""

from __future__ import annotations

import dataclasses
from typing import Any

import tvm
import tvm_ffi
from onnx import TensorProto
from tvm import relax

from rmsnorm_deploy.errors import ModelError
from rmsnorm_deploy.op import GATED_FIRST, GATED_LAST, GATED_NORMALISED, SILU, NormParameters, Op, following
from rmsnorm_deploy.op.dtypes import TYPES, float_type
from rmsnorm_deploy.tvm.importer.dtypes import dtype_of
from rmsnorm_deploy.tvm.importer.quantising import dynamically_quantised, linearly_quantised
from rmsnorm_deploy.tvm.importer.table import Convert
from rmsnorm_deploy.tvm.schedules.norm import MARKER, to_text

_NAMES = frozenset(t.name for t in TYPES)


def emit_norm(bb: Any, parameters: NormParameters, inputs: list[Any]) -> Any:
    """The call that stands for a norm; each of its results has X's type."""
    ty, count = inputs[0].ty, len(parameters.op.outputs)
    out = relax.TupleType([ty] * count) if count > 1 else ty
    call = relax.op.call_pure_packed(MARKER, *inputs, tvm.ir.StringImm(to_text(parameters)), ty_args=out)
    result = bb.emit(call)
    if count > 1:
        return relax.Tuple([bb.emit(relax.TupleGetItem(result, i)) for i in range(count)])
    return result


def _known_float(name: str, *values: Any) -> None:
    for value in values:
        if dtype_of(value) not in _NAMES or value.ty.ndim < 0:
            raise ModelError(
                f"{name} needs inputs of known rank and float type, not {value.ty}", "Export the model with shapes."
            )


def _read(op: Op, version: int, inputs: Any, attr: dict[str, Any]) -> tuple[NormParameters, list[Any]]:
    given = [inputs[i] for i in range(len(op.inputs))]
    _known_float(op.value, *given[: len(op.norm.inputs)])
    x_type = float_type(dtype_of(given[0])).number
    try:
        meant = following(attr, x_type)
        return NormParameters.from_attributes(op, meant, version=version, x_type=x_type), given
    except ValueError as error:
        raise ModelError(f"{op.value} cannot be read: {error}", "Fuse the original model again.") from error


def _ours(op: Op, version: int) -> Convert:
    def convert(bb: Any, inputs: Any, attr: dict[str, Any]) -> Any:
        parameters, given = _read(op, version, inputs, attr)
        return _quantised(bb, parameters, given) if op.quantises else emit_norm(bb, parameters, given)

    return convert


def _gated(version: int) -> Convert:
    """The norm is one call, and the gate is of TVM's operators around it, which it fuses as it does others."""

    def convert(bb: Any, inputs: Any, attr: dict[str, Any]) -> Any:
        p, (x, gate, scale) = _read(Op.GATED_RMS_NORM, version, inputs, attr)
        dtype, wide, rounding = dtype_of(x), float_type(p.stash_type).name, float_type(p.scale_type).name

        def cast(value: Any, to: str) -> Any:
            return value if dtype_of(value) == to else bb.emit(relax.op.astype(value, to))

        def times(value: Any, factor: Any) -> Any:
            return bb.emit(relax.op.multiply(cast(value, wide), cast(factor, wide)))

        gate = cast(gate, wide)
        factor = bb.emit(relax.op.sigmoid(gate))
        if p.activation == SILU:
            factor = times(gate, factor)
        x = cast(x, wide)
        if p.gate_at == GATED_FIRST:
            x = times(x, factor)
        whole = p.gate_at != GATED_NORMALISED and rounding == wide
        plain = NormParameters(Op.RMS_NORM, p.stash_type, p.axes, p.epsilon, p.stash_type, p.stash_type)
        y = emit_norm(bb, plain, [x, cast(scale, wide) if whole else relax.const(1.0, wide)])
        if not whole:
            y = cast(y, rounding)
            if p.gate_at == GATED_NORMALISED:
                y = cast(times(y, factor), rounding)
            y = cast(times(y, cast(scale, rounding)), rounding)
        if p.gate_at == GATED_LAST:
            y = times(y, factor)
        return cast(y, dtype)

    return convert


def _quantised(bb: Any, parameters: NormParameters, given: list[Any]) -> Any:
    """A norm, and what quantises it, each in kernels of its own; all outputs of the operator."""
    op = parameters.op
    alone = dataclasses.replace(parameters, op=op.norm, precision=TensorProto.FLOAT)
    found = emit_norm(bb, alone, given[: len(op.norm.inputs)])
    made = dict(zip(op.norm.outputs, found if len(op.norm.outputs) > 1 else [found], strict=True))
    if op.is_dynamic:
        values = dynamically_quantised(bb, made["Y"])
        made |= dict(zip(("quantized", "y_scale", "y_zero_point"), values, strict=True))
    else:
        scale, zero = given[len(op.norm.inputs) :]
        made["quantized"] = linearly_quantised(bb, made["Y"], scale, zero, float_type(parameters.precision).name)
    return relax.Tuple([made[name] for name in op.outputs])


def _plain(name: str) -> Convert:
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
    x_dtype, scale_dtype = dtype_of(x), dtype_of(scale)
    if x_dtype != scale_dtype:
        wide = "float64" if "float64" in (x_dtype, scale_dtype) else "float32"
        x, twice = bb.emit(relax.op.astype(x, wide)), False
    dtype = dtype_of(x)
    stash = TensorProto.DOUBLE if dtype == "float64" else TensorProto.FLOAT
    parameters = NormParameters(
        op=Op.RMS_NORM,
        output_type=float_type(dtype).number,
        axes=axes,
        epsilon=epsilon,
        stash_type=stash,
        scale_type=float_type(dtype).number if twice else stash,
    )
    if dtype_of(scale) != dtype and dtype_of(scale) != "float32":
        scale = bb.emit(relax.op.astype(scale, dtype))
    y = emit_norm(bb, parameters, [x, scale])
    return y if dtype == scale_dtype else bb.emit(relax.op.astype(y, scale_dtype))


def _skip(bb: Any, inputs: Any, attr: dict[str, Any]) -> Any:
    """Outputs Y, two statistics that nobody may read, and the sum. Nothing is added in 16 bits."""
    x, skip, scale, bias = (inputs[i] for i in range(4))
    _known_float("SkipSimplifiedLayerNormalization", x, skip, scale)
    epsilon, dtype = float(attr.get("epsilon", 1e-12)), dtype_of(x)
    nothing = relax.const(0.0, "float32")
    stash = TensorProto.DOUBLE if dtype == "float64" else TensorProto.FLOAT
    parameters = NormParameters(Op.ADD_RMS_NORM, float_type(dtype).number, (-1,), epsilon, stash, stash)
    if bias is None and _same_shape(x, skip):
        y, total = emit_norm(bb, parameters, [x, skip, scale])
        return relax.Tuple([y, nothing, nothing, total])
    wide = "float64" if dtype == "float64" else "float32"
    total = relax.op.add(relax.op.astype(x, wide), relax.op.astype(skip, wide))
    if bias is not None:
        total = relax.op.add(total, relax.op.astype(bias, wide))
    total = bb.emit(relax.op.astype(total, dtype))
    plain = NormParameters(Op.RMS_NORM, float_type(dtype).number, (-1,), epsilon, stash, stash)
    return relax.Tuple([emit_norm(bb, plain, [total, scale]), nothing, nothing, total])


def _same_shape(a: Any, b: Any) -> bool:
    return a.ty.shape is not None and b.ty.shape is not None and tvm_ffi.structural_equal(a.ty.shape, b.ty.shape)


def converters(version: int) -> dict[str, Convert]:
    """By the operator's name: ours in a ``version`` of our domain, ONNX's, and onnxruntime's."""
    return {
        **{op.value: _gated(version) if op is Op.GATED_RMS_NORM else _ours(op, version) for op in Op},
        **{name: _plain(name) for name in ("RMSNormalization", "SimplifiedLayerNormalization")},
        "SkipSimplifiedLayerNormalization": _skip,
    }
