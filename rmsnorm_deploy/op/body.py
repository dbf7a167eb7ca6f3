"""The operators as model-local functions of standard operators: a fused model runs wherever functions are known."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from onnx import AttributeProto, FunctionProto, NodeProto, TensorProto, helper

from rmsnorm_deploy.op import formula
from rmsnorm_deploy.op.definition import ATTRIBUTES, SILU, NormParameters, Op, attribute_names
from rmsnorm_deploy.op.dtypes import SIXTEEN_BIT
from rmsnorm_deploy.op.versions import DOMAIN
from rmsnorm_deploy.op.words import documentation

MIN_OPSET = 11
"""Oldest ai.onnx opset in which the function bodies can be written."""
MIN_IR_VERSION = 8
"""Oldest IR version that has model-local functions."""
_CAST_LIKE = 15
"""The opset in which CastLike came."""
_KINDS = {a.name: a.kind for a in ATTRIBUTES}


class _Body(formula.Writer[str]):
    """Collects the nodes of one function body; every method returns the name of the value it made."""

    def __init__(self, opset: int, like_x: bool) -> None:
        self.nodes: list[NodeProto] = []
        self.opset = opset
        self.like_x = like_x
        self._gate = self._one = ""

    def _append(self, node: NodeProto) -> None:
        """Every node has a name: compilers that inline a function make the names of its nodes from them."""
        node.name = f"{node.op_type}_{len(self.nodes)}"
        self.nodes.append(node)

    def add(self, op_type: str, inputs: Sequence[str], output: str = "", **references: str) -> str:
        """A node whose attributes are references to the function's: ``to="stash_type"``."""
        output = output or f"{op_type.lower()}_{len(self.nodes)}"
        node = helper.make_node(op_type, list(inputs), [output])
        for name, reference in references.items():
            node.attribute.append(AttributeProto(name=name, ref_attr_name=reference, type=_KINDS[reference]))
        self._append(node)
        return output

    def cast(self, value: str, to: str, output: str = "") -> str:
        """``value`` in the type ``to``; what is to have X's type gets it from X, whatever a tool has made of that."""
        if to == "output_type" and self.like_x:
            return self.add("CastLike", [value, "X"], output)
        return self.add("Cast", [value], output, to=to)

    def constant(self, value: object) -> str:
        output = f"constant_{len(self.nodes)}"
        self._append(helper.make_node("Constant", [], [output], value=value))
        return output

    def float_attribute(self, name: str) -> str:
        """The float attribute ``name`` as a scalar in the arithmetic type."""
        if self.opset >= 12:
            value = self.add("Constant", [], value_float=name)
        else:
            # Constant has no value_float yet; LeakyRelu turns its float attribute into a value, exactly: -(-1 * a).
            minus_one = self.constant(helper.make_tensor("minus_one", TensorProto.FLOAT, [], [-1.0]))
            value = self.add("Neg", [self.add("LeakyRelu", [minus_one], alpha=name)])
        return self.cast(value, "stash_type")

    def wide(self, operand: str) -> str:
        return self.cast(operand, "stash_type")

    def total(self) -> str:
        total = self.add("Add", [self.wide("X"), self.wide("residual")])
        return self.wide(self.cast(total, "output_type", "sum"))

    def first_features(self, x: str) -> str:
        """The slice starts at axes * 0, a zero for each axis."""
        if self.opset < 12:
            return x  # Constant cannot hold a list of integers yet: see min_opset
        axes = self.add("Constant", [], value_ints="axes")
        ends = self.add("Constant", [], value_ints="partial_size")
        zero = self.constant(helper.make_tensor("zero", TensorProto.INT64, [1], [0]))
        return self.add("Slice", [x, self.add("Mul", [axes, zero]), ends, axes])

    def mean_square(self, x: str) -> str:
        # Pow below opset 12 wants both operands of one type; TVM's importer wants it at every opset.
        two = self.wide(self.constant(helper.make_tensor("two", TensorProto.FLOAT, [], [2.0])))
        square = self.add("Pow", [x, two])
        if self.opset < 18:
            mean = self.add("ReduceMean", [square], axes="axes")
        else:
            mean = self.add("ReduceMean", [square, self.add("Constant", [], value_ints="axes")])
        self.nodes[-1].attribute.append(helper.make_attribute("keepdims", 1))
        return mean

    def combined(self, op_type: str, value: str, attribute: str) -> str:
        return self.add(op_type, [value, self.float_attribute(attribute)])

    def root(self, value: str) -> str:
        return self.add("Sqrt", [value])

    def divided(self, x: str, rms: str) -> str:
        return self.cast(self.add("Div", [x, rms]), "scale_type")

    def applied(self, op_type: str, value: str, operand: str) -> str:
        # rounded to scale_type and back: nothing is ever computed in a 16-bit type
        value, other = self.wide(value), self.wide(self.cast(operand, "scale_type"))
        return self.cast(self.add(op_type, [value, other]), "scale_type")

    def _is(self, attribute: str, number: int) -> str:
        """Whether the integer attribute has this value, which is 0, 1 or 2."""
        if self.opset >= 12:
            value = self.add("Constant", [], value_int=attribute)
        else:
            # Constant has no value_int yet; Flatten turns its axis into a size, 2^axis
            cube = self.constant(helper.make_tensor("cube", TensorProto.FLOAT, [2, 2, 2], [0.0] * 8))
            first = self.constant(helper.make_tensor("first", TensorProto.INT64, [], [0]))
            value = self.add("Gather", [self.add("Shape", [self.add("Flatten", [cube], axis=attribute)]), first])
            number = 2**number
        return self.add("Equal", [value, self.constant(helper.make_tensor("value", TensorProto.INT64, [], [number]))])

    def _activated(self) -> str:
        if not self._gate:
            gate = self.wide("gate")
            self._one = self.wide(self.constant(helper.make_tensor("one", TensorProto.FLOAT, [], [1.0])))
            factor = self.add("Where", [self._is("activation", SILU), gate, self._one])
            self._gate = self.add("Mul", [self.add("Sigmoid", [gate]), factor])
        return self._gate

    def gated(self, value: str, at: int, *, rounded: bool) -> str:
        # every model has one body, so it has each of the places, and multiplies by 1 at two of them
        factor = self.add("Where", [self._is("gate_at", at), self._activated(), self._one])
        product = self.add("Mul", [self.wide(value), factor])
        return self.cast(product, "scale_type") if rounded else product

    def finish(self, value: str) -> None:
        self.cast(value, "output_type", "Y")

    def quantise(self, *, dynamic: bool) -> None:
        if dynamic:
            self._append(helper.make_node("DynamicQuantizeLinear", ["Y"], ["quantized", "y_scale", "y_zero_point"]))
            return
        y, scale = self.cast("Y", "precision"), self.cast("y_scale", "precision")
        self.add("QuantizeLinear", [y, scale, "y_zero_point"], "quantized")


def function_body(op: Op, opset: int, version: int | None = None) -> FunctionProto:
    """``op`` in standard ONNX operators, parameterised by its attributes, for a model of ai.onnx ``opset``.

    The spelling is the one that onnxruntime's own optimizer fuses where the meaning allows: Cast, Pow, ReduceMean, Add,
    Sqrt, Div, Mul. All arithmetic is in ``stash_type``; 16-bit types occur only in Casts, since onnxruntime lacks
    bfloat16 kernels on the CPU and drops float16 round trips between float16 operators. From opset 15 on, the type of
    the result is X's and not the attribute ``output_type``, which converters of types leave behind.

    Attributes are referred to and never written into the body, though some tools (pnnx) do not resolve references:
    one body means the same in every model, so tools that put models together may keep any one of two.

    Args:
        op: which operator.
        opset: of ai.onnx, as the model imports it.
        version: of the operators' domain, as the model imports it; None is the newest.

    Raises:
        ValueError: the version is unknown, or the opset is too old. ``GeneralRMSNorm`` at opset 11 has no
            ``partial_size`` in its body (Constant cannot hold a list of integers there): see :func:`min_opset`.
    """
    if opset < MIN_OPSET:
        raise ValueError(f"function bodies need ai.onnx opset {MIN_OPSET} or newer, not {opset}")
    copy = FunctionProto()
    names, doc = attribute_names(op, version), documentation(op, version)
    copy.CopyFrom(_function_body(op, opset, names, doc, opset >= _CAST_LIKE))
    return copy


@functools.lru_cache
def _function_body(op: Op, opset: int, attributes: tuple[str, ...], doc: str, like_x: bool) -> FunctionProto:
    """The body itself, made once; nobody else may change it."""
    body = _Body(opset, like_x)
    formula.write(op, body)
    return helper.make_function(
        DOMAIN,
        op.value,
        list(op.inputs),
        list(op.outputs),
        body.nodes,
        [helper.make_opsetid("", opset)],
        attributes=list(attributes),
        doc_string=doc,
    )


def min_opset(parameters: NormParameters) -> int:
    """The oldest ai.onnx opset whose body expresses ``parameters``.

    bfloat16 casts need 13, partial norms 12, quotients of 16 bits 19.
    """
    if parameters.precision in SIXTEEN_BIT:
        return 19
    types = (parameters.output_type, parameters.scale_type)
    if TensorProto.BFLOAT16 in types:
        return 13
    return 12 if parameters.partial_size is not None else MIN_OPSET
