"""An ONNX model as TVM's importer can read it: fused, without local functions, its norms under names of our own."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import onnx
import onnx.inliner
import onnx_ir as ir
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper

from rmsnorm_deploy.fusing.fuse import fuse
from rmsnorm_deploy.model.calls import require_bounded
from rmsnorm_deploy.model.external import weights_folder
from rmsnorm_deploy.model.files import StrPath
from rmsnorm_deploy.model.graphs import AI_ONNX, nodes_of
from rmsnorm_deploy.op import DOMAIN, Op
from rmsnorm_deploy.op.versions import newest
from rmsnorm_deploy.tvm.importer import table
from rmsnorm_deploy.tvm.importer.expand import expanded
from rmsnorm_deploy.tvm.importer.large import NODE, taken_out

CONTRIB = "com.microsoft"
PREFIX = "RmsNormDeploy_"
"""Before the operator's name, so that no foreign operator of the same name is taken for ours."""
REFUSED = PREFIX + "Refused"
"""The operator of a node that cannot be imported."""

NORMS = {
    **{(DOMAIN, op.value): op.value for op in Op},
    **{
        (domain, name): name
        for name in ("RMSNormalization", "SimplifiedLayerNormalization")
        for domain in (*AI_ONNX, CONTRIB)
    },
    (CONTRIB, "SkipSimplifiedLayerNormalization"): "SkipSimplifiedLayerNormalization",
}
"""Domain and name of every operator that becomes one of our kernels."""

OWN = {
    **{(domain, name): name for name in ("Attention", "RotaryEmbedding") for domain in AI_ONNX},
    (CONTRIB, "RotaryEmbedding"): "ContribRotaryEmbedding",
    **{(CONTRIB, name): name for name in ("FusedMatMul", "TransposeMatMul")},
    (CONTRIB, "MatMulNBits"): "MatMulNBits",
    (CONTRIB, "GroupQueryAttention"): "GroupQueryAttention",
    **{(domain, "QLinearMatMul"): "QLinearMatMul" for domain in AI_ONNX},
}
"""Domain and name of every other operator that TVM lacks and that is converted here."""

_CONTRIB_OF_TVM = frozenset(
    ("BiasGelu", "EmbedLayerNormalization", "FastGelu", "MatMulInteger16", "SkipLayerNormalization")
)
"""Operators of onnxruntime's own that TVM converts."""


_READABLE: dict[str, tuple[int, ...]] = {
    **{op.value: tuple(range(len(op.outputs))) for op in Op},
    "SkipSimplifiedLayerNormalization": (0, 3),
}
"""Places of the outputs of a norm that are not a statistic."""


@dataclasses.dataclass
class Prepared:
    """A model as TVM's importer can read it.

    Attributes:
        proto: the fused model, with every norm renamed to ``PREFIX`` + its name.
        weights: its large weights, as TVM's tensors; a node of :data:`~rmsnorm_deploy.tvm.importer.large.NODE` stands
            for each.
        refused: a text for each node that cannot be imported, whatever its inputs are; they are called ``REFUSED``.
    """

    proto: ModelProto
    weights: list[Any]
    refused: list[str]


def prepared(model: StrPath | ModelProto | ir.Model) -> Prepared:
    """A fused copy of ``model`` for :func:`rmsnorm_deploy.tvm.importer.convert.import_prepared`.

    Raises:
        ModelError: the model cannot be read or fused.
        UsageError: the weights are in files of an unknown folder.
    """
    proto, weights = _fused(model)
    # ours would be inlined as well, and are to stay one operator
    kept = [f for f in proto.functions if not (f.domain == DOMAIN and f.name in {op.value for op in Op})]
    del proto.functions[:]
    proto.functions.extend(kept)
    if proto.functions:
        require_bounded(proto)
        proto = onnx.inliner.inline_local_functions(proto)
    proto = expanded(proto, lambda n: (n.domain, n.op_type) in {**NORMS, **OWN} or _convertible(n))
    refused = []
    for node in list(nodes_of(proto.graph)):
        reason = _refusal(node)
        if reason is not None:
            refused.append(_place(node) + reason)
            node.op_type, node.domain = REFUSED, DOMAIN
            del node.attribute[:]
        elif (node.domain, node.op_type) in NORMS:
            node.op_type, node.domain = PREFIX + NORMS[node.domain, node.op_type], DOMAIN
        elif (node.domain, node.op_type) in OWN:
            node.op_type, node.domain = PREFIX + OWN[node.domain, node.op_type], DOMAIN
    _write_out_scalars(proto.graph)
    if DOMAIN not in {o.domain for o in proto.opset_import}:
        proto.opset_import.append(helper.make_opsetid(DOMAIN, newest()))
    return Prepared(proto, weights, refused)


def _fused(model: StrPath | ModelProto | ir.Model) -> tuple[ModelProto, list[Any]]:
    result, _ = fuse(model)
    if isinstance(result, ir.Model):
        result = ir.to_proto(result)
    if isinstance(model, ModelProto | ir.Model):  # what is fused may share tensors with what was given
        copy = ModelProto()
        copy.CopyFrom(result)
        result = copy
    return taken_out(result, _folder(model))


def _folder(model: StrPath | ModelProto | ir.Model) -> Path | None:
    if isinstance(model, ModelProto):
        return None
    if isinstance(model, ir.Model):
        return weights_folder(model)
    return Path(model).parent


def _place(node: NodeProto) -> str:
    name = node.op_type if node.domain in AI_ONNX else f"{node.domain}::{node.op_type}"
    where = node.name or next((o for o in node.output if o), "")
    return f"{name} '{where}'"


def _convertible(node: NodeProto) -> bool:
    """Whether TVM converts the node, and into what it is: a foreign operator may share a standard one's name."""
    if node.op_type not in table.names():
        return False
    if node.domain in AI_ONNX:
        return True
    return node.domain == CONTRIB and node.op_type in _CONTRIB_OF_TVM


def _refusal(node: NodeProto) -> str | None:
    """Why a node cannot be imported whatever its inputs are: nothing, or words in brackets; None where it can be.

    A Constant is given the attribute that TVM reads.
    """
    if node.op_type == "Constant" and node.domain in AI_ONNX:
        return None if _normalise_constant(node) else " (a Constant of strings or a sparse one)"
    if (node.domain, node.op_type) in NORMS:
        reason = _unreadable_outputs(node)
        return f" ({reason})" if reason else None
    known = (node.domain, node.op_type) in OWN or node.op_type == NODE or _convertible(node)
    return None if known else ""


def _unreadable_outputs(node: NodeProto) -> str:
    allowed = _READABLE.get(node.op_type, (0,))
    wrong = [o for i, o in enumerate(node.output) if o and i not in allowed]
    return f"its output '{wrong[0]}', a statistic, cannot be had" if wrong else ""


def _normalise_constant(node: NodeProto) -> bool:
    """Give a Constant its ``value``: TVM reads no other attribute. False where that cannot be."""
    (given,) = node.attribute
    if given.name == "value":
        return bool(given.t.data_type != TensorProto.STRING)
    kinds = {"value_float": TensorProto.FLOAT, "value_floats": TensorProto.FLOAT}
    kinds |= {"value_int": TensorProto.INT64, "value_ints": TensorProto.INT64}
    if given.name not in kinds:
        return False
    value = helper.get_attribute_value(given)
    scalar = not given.name.endswith("s")
    tensor = helper.make_tensor(
        node.output[0], kinds[given.name], [] if scalar else [len(value)], [value] if scalar else value
    )
    node.attribute[0].CopyFrom(helper.make_attribute("value", tensor))
    return True


def _write_out_scalars(graph: GraphProto) -> None:
    """A ConstantOfShape of no dimensions as the Constant that it is: TVM makes a vector of it and then fails."""
    empty = {t.name for t in graph.initializer if list(t.dims) == [0]}
    for node in nodes_of(graph):
        if node.op_type == "Constant" and list(node.attribute[0].t.dims) == [0]:
            empty.add(node.output[0])
        elif node.op_type == "ConstantOfShape" and node.input[0] in empty:
            tensor = helper.make_tensor("value", TensorProto.FLOAT, [], [0.0])
            if node.attribute:
                tensor.CopyFrom(node.attribute[0].t)
                del tensor.dims[:]
            node.op_type = "Constant"
            del node.input[:], node.attribute[:]
            node.attribute.append(helper.make_attribute("value", tensor))
