"""What of a model cannot be imported: all of it, each node with the reason, instead of the first one only."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, TypeProto, helper
from tvm import relax

from rmsnorm_deploy.errors import ModelError, RmsNormDeployError, last_line
from rmsnorm_deploy.model.graphs import AI_ONNX, forget_negative_sizes, nodes_of
from rmsnorm_deploy.model.skeleton import without_weights
from rmsnorm_deploy.op import DOMAIN
from rmsnorm_deploy.tvm.importer.operator import shape_expr
from rmsnorm_deploy.tvm.importer.prepare import OWN, PREFIX, REFUSED, Prepared

_FLOATS = ("float16", "bfloat16", "float32", "float64")


class Refusals:
    """The nodes of a model that cannot be converted.

    Args:
        model: the model; what is refused without a look at any input is refused already.
        sizes: variables for the names of the inputs' dimensions.

    Attributes:
        found: a text for each.
        errors: what converters raised, in order.
    """

    def __init__(self, model: Prepared, sizes: Mapping[str, Any]) -> None:
        self.found = list(model.refused)
        self.errors: list[Exception] = []
        self._proto = model.proto
        self._sizes = sizes
        self._nodes: dict[str, tuple[NodeProto, str]] = {}
        self._types: dict[str, TypeProto] | None = None
        self._nothing = relax.const(np.asarray(False))
        self._has_nothing = False
        self._has_branches = any(n.op_type == "If" for n in model.proto.graph.node)

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """For a while, nodes have numbers for names: TVM tells a converter nothing else of its node."""
        self._nodes = {str(i): (node, node.name) for i, node in enumerate(nodes_of(self._proto.graph))}
        for number, (node, _) in self._nodes.items():
            node.name = number
        try:
            yield
        finally:
            for node, name in self._nodes.values():
                node.name = name

    def unknown(self, inputs: Sequence[Any], attr: Mapping[str, Any]) -> Any:
        """What a node gives that reads what nobody could make; None where it reads nothing of that kind."""
        if self._has_nothing and any(isinstance(i, relax.Expr) and self._nothing.same_as(i) for i in inputs):
            return _several([self._nothing] * attr["tvm_custom"]["num_outputs"])
        return None

    def instead(self, bb: Any, name: str, attr: Mapping[str, Any], error: Exception) -> Any:
        """Note that the converter of the operator ``name`` failed; something for its outputs, so that others follow.

        That is zeros of their types, or nothing at all where they may be sizes or their types are not known.
        """
        node, own_name = self._nodes[attr["tvm_custom"]["name"]]
        # behind branches that give nothing a converter may fail for want of its inputs
        if name != REFUSED and not (self._has_nothing and self._has_branches):
            self._note(node, own_name, error)
        return _several([self._zeros(bb, output) for output in node.output])

    def error(self, fixed_shapes_help: bool) -> RmsNormDeployError:
        """The error that names all."""
        (only,) = self.errors if len(self.errors) == len(self.found) == 1 else (None,)
        if isinstance(only, RmsNormDeployError):
            return only
        count = f"{len(self.found)} node{'s' if len(self.found) > 1 else ''}"
        these = "these operators" if len(self.found) > 1 else "this operator"
        return ModelError(
            f"TVM cannot import {count}: {'; '.join(self.found)}",
            "With fixed shapes it can: export the model without dynamic dimensions."
            if fixed_shapes_help
            else f"Run the model in onnxruntime, or export it without {these}.",
        )

    def _note(self, node: NodeProto, name: str, error: Exception) -> None:
        kind = node.op_type.removeprefix(PREFIX)
        original = next(((d, n) for (d, n), own in OWN.items() if own == kind and node.op_type != kind), None)
        domain, kind = original or (node.domain, kind)
        kind = kind if domain in (*AI_ONNX, DOMAIN) else f"{domain}::{kind}"
        reason = error.message if isinstance(error, RmsNormDeployError) else last_line(error)
        where = name or next((o for o in node.output if o), "")
        self.found.append(f"{kind} '{where}' ({reason})")
        self.errors.append(error)

    def _zeros(self, bb: Any, output: str) -> Any:
        if self._types is None:
            self._types = _types(self._proto)
        found = self._types.get(output)
        if output and found is not None and found.tensor_type.HasField("shape"):
            dtype = str(helper.tensor_dtype_to_np_dtype(found.tensor_type.elem_type))
            dims = found.tensor_type.shape.dim
            sizes = [d.dim_value if d.HasField("dim_value") else self._sizes.get(d.dim_param) for d in dims]
            if dtype in _FLOATS and None not in sizes:
                return bb.emit(relax.op.zeros(shape_expr(sizes), dtype))
        self._has_nothing = True
        return self._nothing


def _several(outputs: list[Any]) -> Any:
    return outputs[0] if len(outputs) == 1 else relax.Tuple(outputs)


def _types(proto: ModelProto) -> dict[str, TypeProto]:
    """The types of the main graph's values, as far as they can be inferred behind operators that have our names."""
    bare = without_weights(proto)
    forget_negative_sizes(bare)
    nodes = []
    for node in bare.graph.node:
        kind = node.op_type.removeprefix(PREFIX)
        if kind == node.op_type or kind in ("Refused", "Tensor", "Weight"):
            nodes.append(node)
        elif kind == "Attention":
            node.op_type, node.domain = kind, ""
            nodes.append(node)
        elif kind != "GroupQueryAttention":  # norms and rotations: each output has the first input's type
            nodes += [helper.make_node("Identity", node.input[:1], [o]) for o in node.output if o]
    del bare.graph.node[:]
    bare.graph.node.extend(n for n in nodes if n.op_type != PREFIX + "Tensor")
    with contextlib.suppress(onnx.shape_inference.InferenceError):
        bare = onnx.shape_inference.infer_shapes(bare)
    return {v.name: v.type for v in (*bare.graph.value_info, *bare.graph.output)}
