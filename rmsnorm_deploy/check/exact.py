"""The same graph in float64: the truth that an original and its fused model are both judged by."""

from __future__ import annotations

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper
from onnx.checker import ValidationError
from onnx.reference import ReferenceEvaluator

from rmsnorm_deploy.check.evaluator import evaluator
from rmsnorm_deploy.errors import first_line
from rmsnorm_deploy.model.graphs import walk
from rmsnorm_deploy.op import DOMAIN, Op, version_of
from rmsnorm_deploy.op.definition import attributes_of
from rmsnorm_deploy.op.dtypes import FLOAT64, FLOAT_TYPES
from rmsnorm_deploy.run.inputs import Array, Feeds, is_float
from rmsnorm_deploy.run.runnable import Runnable
from rmsnorm_deploy.run.runner import Runner

NARROW = tuple(n for n in FLOAT_TYPES if n != FLOAT64.number)
EVALUATOR_NODES = 200
"""The reference evaluator is slow; larger graphs are left to onnxruntime."""
ONLY_WAY_NODES = 10_000
"""The same where nothing else runs the model: onnxruntime's CPU provider lacks most bfloat16 kernels."""
LARGEST_WEIGHTS = 256 * 2**20
"""float64 weights take up to ten times the space while onnxruntime loads them; outputs of larger models are compared
with the original only, their norms still with float64."""
_TYPE_ATTRIBUTES = ("to", "dtype", "stash_type", "scale_type", "output_type")


def in_float64(model: ModelProto) -> ModelProto:
    """A copy of ``model`` in which every narrower float tensor, cast and declared type is float64.

    Args:
        model: with its weights in memory.

    Raises:
        ValueError: it has nodes of ours in a version that this release does not know.
    """
    wide = ModelProto()
    wide.CopyFrom(model)
    imports = {o.domain: o.version for o in wide.opset_import}
    for part in walk(wide):
        if isinstance(part, NodeProto):
            _widen_node(part)
            if part.domain == DOMAIN:
                _widen_absent(part, version_of(imports))
            continue
        for tensor in part.initializer:
            _widen_tensor(tensor)
        for value in [*part.input, *part.output, *part.value_info]:
            _widen_value(value)
    for function in wide.functions:
        for value in function.value_info:
            _widen_value(value)
    return wide


def _widen_value(value: ValueInfoProto) -> None:
    if value.type.tensor_type.elem_type in NARROW:
        value.type.tensor_type.elem_type = TensorProto.DOUBLE


def _widen_node(node: NodeProto) -> None:
    for attribute in list(node.attribute):
        if attribute.HasField("t"):
            _widen_tensor(attribute.t)
        # LayerNormalization accepts only float as stash_type
        typed = (
            attribute.name in _TYPE_ATTRIBUTES
            and (node.domain in ("", DOMAIN))
            and node.op_type != "LayerNormalization"
        )
        if typed and attribute.i in NARROW and not attribute.ref_attr_name:
            attribute.i = TensorProto.DOUBLE
        if (
            node.op_type == "Constant"
            and attribute.name in ("value_float", "value_floats")
            and not attribute.ref_attr_name
        ):
            value = np.array(attribute.f if attribute.name == "value_float" else list(attribute.floats), np.float64)
            node.attribute.remove(attribute)
            node.attribute.append(helper.make_attribute("value", numpy_helper.from_array(value)))


def _widen_absent(node: NodeProto, version: int) -> None:
    """Write the types of a node of ours that it leaves to their defaults, where those are narrower."""
    present = {attribute.name for attribute in node.attribute}
    for attribute in attributes_of(Op(node.op_type), version):
        absent = attribute.name in _TYPE_ATTRIBUTES and attribute.name not in present
        if absent and attribute.default in NARROW:
            node.attribute.append(helper.make_attribute(attribute.name, TensorProto.DOUBLE))


def _widen_tensor(tensor: TensorProto) -> None:
    if tensor.data_type in NARROW:
        tensor.CopyFrom(
            numpy_helper.from_array(np.asarray(numpy_helper.to_array(tensor)).astype(np.float64), tensor.name)
        )


class Truth:
    """Evaluates a model in float64, by onnxruntime where it has the kernels, else by onnx's reference evaluator.

    Attributes:
        how: what evaluates it; empty where nothing can, and then every evaluation is None.
        why_not: the reason where nothing can.
    """

    def __init__(self, model: Runnable) -> None:
        self.how = self.why_not = ""
        self._runner: Runner | None = None
        self._evaluator: ReferenceEvaluator | None = None
        if model.weights > LARGEST_WEIGHTS:
            self.why_not = f"the weights are larger than {LARGEST_WEIGHTS >> 20} MiB"
            return
        try:
            wide = in_float64(model.loaded())
        except (ValueError, ValidationError) as error:
            self.why_not = first_line(error, 150)
            return
        try:
            self._runner = Runner(Runnable.in_memory(wide), optimise=False)
            self.how = "float64 in onnxruntime"
            return
        except Exception as error:  # onnxruntime lacks float64 kernels of many operators and says so in several types
            self.why_not = f"onnxruntime cannot run the model in float64: {first_line(error, 150)}"
        if len(wide.graph.node) <= EVALUATOR_NODES:
            try:
                self._evaluator = ReferenceEvaluator(wide)
                self.how = "float64 in onnx's reference evaluator"
            except Exception:  # operators that it does not know
                self._evaluator = None

    def __call__(self, feeds: Feeds) -> list[Array] | None:
        """The outputs in float64, or None."""
        wide = {k: v.astype(np.float64) if is_float(v) else v for k, v in feeds.items()}
        try:
            if self._runner is not None:
                return self._runner(wide)
            if self._evaluator is not None:
                with np.errstate(all="ignore"):
                    return [np.asarray(v) for v in self._evaluator.run(None, wide)]
        except Exception as error:  # a kernel that is missing only shows when it runs
            self.why_not, self.how = first_line(error, 150), ""
        return None


def by_definition(model: Runnable, feeds: Feeds, *, limit: int | None = EVALUATOR_NODES) -> list[Array] | None:
    """A small model evaluated with every rounding that it states, which onnxruntime's CPU provider leaves out.

    None for models of more than ``limit`` nodes and where the evaluator lacks an operator.
    """
    if (limit is not None and len(model.proto.graph.node) > limit) or model.weights > LARGEST_WEIGHTS:
        return None
    try:
        with np.errstate(all="ignore"):  # rows are meant to overflow, and what comes of it is compared
            return [np.asarray(v) for v in evaluator(model.loaded()).run(None, dict(feeds))]
    except Exception:  # it raises whatever NumPy raises
        return None
