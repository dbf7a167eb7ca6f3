"""The forms in which a norm can be written: from a Match to the nodes that stand for it."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir

from rmsnorm_deploy.op import DOMAIN, Op
from rmsnorm_deploy.recognise.match import Match

METADATA = "rmsnorm_deploy."
"""Prefix of what we write into metadata."""
ONNX_OPSET = 23
"""The ai.onnx opset that brought RMSNormalization."""

FLOAT, DOUBLE = ir.DataType.FLOAT, ir.DataType.DOUBLE
_SIXTEEN_BIT = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)


class Form(str, enum.Enum):
    """What the fused norms are written as."""

    PLUGIN = "plugin"
    """Nodes of our own domain with a function body: fast with our library, right without it."""
    ONNX = "onnx"
    """RMSNormalization of ai.onnx opset 23."""
    ORT = "ort"
    """SimplifiedLayerNormalization and SkipSimplifiedLayerNormalization, which onnxruntime alone knows."""


@dataclasses.dataclass(frozen=True)
class Emission:
    """The nodes that replace one norm.

    Attributes:
        nodes: in topological order; the last one gives ``y``.
        norm: the one among them that is the norm.
        y: replaces ``Match.output``.
        sum: replaces ``Match.sum``; None without a visible sum.
    """

    nodes: tuple[ir.Node, ...]
    norm: ir.Node
    y: ir.Value
    sum: ir.Value | None


def suited(match: Match, form: Form) -> Match | str:
    """``match`` as ``form`` can write it, or one sentence that says why it cannot.

    A residual addition that the form does not take in stays the node that it was.
    """
    p = match.parameters
    if form is Form.PLUGIN:
        return match
    extra = [
        text
        for given, text in (
            (p.partial_size, "statistic over a part of the features"),
            (p.epsilon_outside, "epsilon outside the root"),
            (p.rms_floor, "least RMS"),
            (match.bias, "bias"),
        )
        if given
    ]
    name = "RMSNormalization" if form is Form.ONNX else "SimplifiedLayerNormalization"
    if extra:
        return f"{name} has no {' and no '.join(extra)}"
    if p.axes[-1] != -1:
        return f"{name} normalises trailing dimensions, and this norm reduces {list(p.axes)}"
    if p.stash_type != int(FLOAT) and p.output_type != int(DOUBLE):
        return f"onnxruntime computes {name} in float32, and this norm in float64"
    if p.op is Op.GENERAL_RMS_NORM:
        match = dataclasses.replace(match, parameters=dataclasses.replace(p, op=Op.RMS_NORM))
    if match.plain is not None and not (form is Form.ORT and _has_skip_kernel(match)):
        match = match.plain
    if form is Form.ORT and p.scale_type in _SIXTEEN_BIT and match.scale is not None:
        match = dataclasses.replace(
            match,
            fewer_roundings=True,
            notes=(*match.notes, "SimplifiedLayerNormalization rounds once, behind the scale; the original twice"),
        )
    return match


def _has_skip_kernel(match: Match) -> bool:
    """Whether onnxruntime's residual norm takes it: float32, rank 2 or 3, a scale vector.

    In 16 bits its CUDA kernel adds up in 16 bits and gives zeros or NaN (microsoft/onnxruntime issue 29034).
    """
    scale_rank = 1 if match.scale is None else match.scale_rank
    return (
        match.parameters.output_type == int(FLOAT)
        and match.rank in (2, 3)
        and scale_rank == 1
        and match.parameters.axes == (-1,)
        and match.size is not None
    )


class Emitter:
    """Writes norms into one model.

    Args:
        unique: gives a name that the model does not use yet, from a wish.
        constant: gives a value of the model that holds an array, from a name and the array; equal arrays are shared.
    """

    def __init__(self, unique: Callable[[str], str], constant: Callable[[str, ir.Tensor[Any]], ir.Value]) -> None:
        self._unique = unique
        self._constant = constant

    def emit(self, match: Match, form: Form) -> Emission:
        """The nodes for ``match``, which :func:`suited` has approved for ``form``."""
        writer = {Form.PLUGIN: self._plugin, Form.ONNX: self._onnx, Form.ORT: self._ort}[form]
        return writer(_Site(self, match))

    # -- our own domain -----------------------------------------------------------------------------------------------

    def _plugin(self, site: _Site) -> Emission:
        match, parameters = site.match, site.match.parameters
        x, residual, total = site.operands()
        scale = site.scale()
        inputs = [x, scale]
        if parameters.op is Op.ADD_RMS_NORM:
            assert residual is not None
            inputs = [x, residual, scale]
        elif parameters.op is Op.GENERAL_RMS_NORM:
            # -0.0 is the number that changes nothing when added, not even the sign of a zero
            neutral = _full([], -0.0, match.scale_dtype)
            inputs.append(match.bias if match.bias is not None else self._constant("rmsnorm_no_bias", neutral))
        outputs = [site.value(site.T, match.output)]
        if parameters.op is Op.ADD_RMS_NORM:
            outputs.append(site.value(site.T, match.sum or match.x))
            total = outputs[1]
            if match.sum is None:
                total.name = self._unique(f"{site.name}_sum")  # onnxruntime 1.20 aborts on an output without a name
        norm = site.norm(DOMAIN, parameters.op.value, inputs, parameters.to_attributes(), outputs)
        return site.done(norm, outputs[0], total)

    # -- ai.onnx ------------------------------------------------------------------------------------------------------

    def _onnx(self, site: _Site) -> Emission:
        """RMSNormalization casts to x's type before the scale; where the norm does not, it is done in float32."""
        match, p = site.match, site.match.parameters
        x, _, total = site.operands()
        scale = site.scale()
        # a norm without scale rounds once either way, and onnxruntime's CPU provider has no bfloat16 kernel for it
        needs_float = match.scale is not None or site.T == ir.DataType.BFLOAT16
        in_float = site.T in _SIXTEEN_BIT and p.scale_type == int(FLOAT) and needs_float
        kind = FLOAT if in_float else site.T
        if in_float:
            x = site.cast(x, FLOAT, "float")
        scale = site.as_type(scale, kind)
        attributes = {"axis": p.axes[0], "epsilon": p.epsilon, "stash_type": p.stash_type}
        y = site.value(kind, match.output)
        norm = site.norm("", "RMSNormalization", [x, scale], attributes, [y])
        if in_float:
            y.name = self._unique(f"{site.name}_wide")
            y = site.cast(y, site.T, "narrow")
        return site.done(norm, y, total)

    # -- onnxruntime --------------------------------------------------------------------------------------------------

    def _ort(self, site: _Site) -> Emission:
        """Only pairs of types that have a kernel: x and scale alike, or float16 beside float32."""
        match, p = site.match, site.match.parameters
        x, residual, total = site.operands()
        scale = site.scale()
        if p.op is Op.ADD_RMS_NORM:
            assert residual is not None
            outputs = [site.value(site.T, match.output), *(ir.Value(name="") for _ in range(2))]
            total = site.value(site.T, match.sum or match.x)
            if match.sum is None:
                total.name = self._unique(f"{site.name}_sum")
            norm = site.norm(
                "com.microsoft",
                "SkipSimplifiedLayerNormalization",
                [x, residual, scale],
                {"epsilon": p.epsilon},
                [*outputs, total],
            )
            return site.done(norm, outputs[0], total)
        kind = site.scale_type
        if kind != site.T and (site.T, kind) != (ir.DataType.FLOAT16, FLOAT):
            x = site.cast(x, kind, "float")
        attributes = {"axis": p.axes[0], "epsilon": p.epsilon, "stash_type": 1}
        y = site.value(kind, match.output)
        norm = site.norm("", "SimplifiedLayerNormalization", [x, scale], attributes, [y])
        if kind != site.T:
            y.name = self._unique(f"{site.name}_wide")
            y = site.cast(y, site.T, "narrow")
        return site.done(norm, y, total)


class _Site:
    """What all forms need while they write one norm."""

    def __init__(self, emitter: Emitter, match: Match) -> None:
        self.match = match
        self.nodes: list[ir.Node] = []
        self.T = ir.DataType(match.parameters.output_type)
        self.name = match.nodes[-1].name or match.output.name or "norm"
        self.scale_type = match.scale_dtype
        self._unique = emitter._unique
        self._constant = emitter._constant

    def operands(self) -> tuple[ir.Value, ir.Value | None, ir.Value | None]:
        """x, residual and the sum, with the addition or the Cast in front of them written out where it has to be."""
        match = self.match
        x, residual, total = match.x, match.residual, None
        if match.add_outside:
            assert residual is not None
            x = total = self.node("Add", [x, residual], "residual", like=match.x, dtype=self.T)
            residual = None
        if match.cast_x:
            x = self.cast(x, self.T, "cast")
        return x, residual, total

    def value(self, dtype: ir.DataType, like: ir.Value) -> ir.Value:
        """A new value without a name, of ``like``'s shape."""
        return ir.Value(type=ir.TensorType(dtype), shape=like.shape)

    def node(self, op_type: str, inputs: list[ir.Value], name: str, *, like: ir.Value, dtype: ir.DataType) -> ir.Value:
        """A standard node in front of the norm or behind it; returns its output."""
        output = self.value(dtype, like)
        output.name = self._unique(f"{self.name}_{name}")
        self.nodes.append(ir.Node("", op_type, inputs, outputs=[output], name=self._unique(f"{output.name}_node")))
        return output

    def cast(self, value: ir.Value, to: ir.DataType, name: str) -> ir.Value:
        """``value`` cast to ``to``."""
        output = self.node("Cast", [value], name, like=value, dtype=to)
        producer = output.producer()
        assert producer is not None
        producer.attributes["to"] = ir.AttrInt64("to", int(to))
        return output

    def as_type(self, scale: ir.Value, to: ir.DataType) -> ir.Value:
        """The scale in the type ``to``."""
        if self.scale_type == to:
            return scale
        self.scale_type = to
        return self.cast(scale, to, "scale_cast")

    def scale(self) -> ir.Value:
        """The scale: ones where there is none, times the factor where there is one."""
        match = self.match
        if match.scale is None:
            if match.factor != 1.0:
                self.scale_type = DOUBLE if self.T == DOUBLE else FLOAT
                if match.bias is not None:
                    self.scale_type = match.scale_dtype
                return self._constant(f"{self.name}_scale", _full([], match.factor, self.scale_type))
            return self._constant("rmsnorm_ones", _full(self._ones_shape(), 1.0, self.scale_type))
        if match.factor == 1.0:
            return match.scale
        scale = match.scale
        if self.scale_type in _SIXTEEN_BIT:
            scale = self.as_type(scale, FLOAT)
        factor = self._constant("rmsnorm_factor", _full([], match.factor, self.scale_type))
        return self.node("Mul", [scale, factor], "scale", like=scale, dtype=self.scale_type)

    def _ones_shape(self) -> list[int]:
        """[d] behind the last axis; [d, 1, 1] for channels in front of two dimensions; no dimension if d is unknown."""
        match, axes = self.match, self.match.parameters.axes
        if match.size is None or len(axes) != 1 or (axes[0] >= 0 and match.rank is None):
            return []  # not [1], which onnxruntime 1.20 would fuse and then refuse
        behind = -axes[0] - 1 if axes[0] < 0 else (match.rank or 0) - axes[0] - 1
        return [match.size] + [1] * behind

    def norm(
        self, domain: str, op_type: str, inputs: list[ir.Value], attributes: dict[str, Any], outputs: list[ir.Value]
    ) -> ir.Node:
        """The node that is the norm, named after the last node that it replaces, with its history as metadata."""
        last = self.match.nodes[-1]
        node = ir.Node(
            domain,
            op_type,
            inputs,
            [_attribute(k, v) for k, v in attributes.items()],
            outputs=outputs,
            name=self._unique(f"{self.name}_rmsnorm"),
            doc_string=last.doc_string,
            metadata_props={
                **last.metadata_props,
                METADATA + "replaces": ",".join(n.name for n in self.match.nodes if n.name),
                METADATA + "spelling": self.match.spelling,
            },
        )
        self.nodes.append(node)
        return node

    def done(self, norm: ir.Node, y: ir.Value, total: ir.Value | None) -> Emission:
        return Emission(tuple(self.nodes), norm, y, total if self.match.sum is not None else None)


def _attribute(name: str, value: int | float | list[int]) -> ir.Attr:
    if isinstance(value, list):
        return ir.AttrInt64s(name, value)
    return ir.AttrFloat32(name, value) if isinstance(value, float) else ir.AttrInt64(name, value)


def _full(shape: list[int], value: float, dtype: ir.DataType) -> ir.Tensor[Any]:
    return ir.Tensor(np.full(shape, value, dtype.numpy()), dtype=dtype)
