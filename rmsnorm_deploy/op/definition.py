"""The operators: names, attributes, meaning, schemas and function bodies. Everything else reads them from here.

With ``c`` the arithmetic type (``stash_type``) and ``T`` the type of X::

    s    = T(c(x) + c(residual))                  AddRMSNorm only; returned as ``sum``; from here on x is s
    ms   = mean of c(x)^2 over ``axes``           General: over the first ``partial_size`` features of the one axis
    rms  = sqrt(ms + epsilon)                     General: max(sqrt(ms + epsilon) + epsilon_outside, rms_floor)
    n    = scale_type(c(x) / rms)
    y    = scale_type(c(n) * c(scale_type(scale)))
                                                  General: y = scale_type(c(y) + c(scale_type(bias)))
    Y    = T(y)

RMSNorm is from Zhang & Sennrich, "Root Mean Square Layer Normalization", NeurIPS 2019, arXiv:1910.07467, section 4;
``partial_size`` is the paper's pRMSNorm (section 4.1), ``epsilon_outside`` the place of epsilon in its published code.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import struct
from collections.abc import Sequence

import onnx
from onnx import AttributeProto, FunctionProto, NodeProto, TensorProto, helper

from rmsnorm_deploy.op.dtypes import FLOAT_TYPES, TYPES

DOMAIN = "rmsnorm_deploy"
VERSION = 1
"""Version of the domain. Version 1 never changes its meaning: fused files must run for ever."""

MIN_OPSET = 11
"""Oldest ai.onnx opset in which the function bodies can be written."""
MIN_IR_VERSION = 8
"""Oldest IR version that has model-local functions."""
ALL_FEATURES = 2**63 - 1
"""``partial_size`` of a norm whose statistic covers every feature."""


class Op(str, enum.Enum):
    """The three operators."""

    RMS_NORM = "RMSNorm"
    ADD_RMS_NORM = "AddRMSNorm"
    GENERAL_RMS_NORM = "GeneralRMSNorm"

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the inputs, in order; all are required."""
        return {
            Op.RMS_NORM: ("X", "scale"),
            Op.ADD_RMS_NORM: ("X", "residual", "scale"),
            Op.GENERAL_RMS_NORM: ("X", "scale", "bias"),
        }[self]

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the outputs, in order; all are required (onnxruntime 1.20 aborts on a missing one)."""
        return ("Y", "sum") if self is Op.ADD_RMS_NORM else ("Y",)


def as_float32(value: float) -> float:
    """``value`` as a float attribute stores it: rounded to float32."""
    return float(struct.unpack("<f", struct.pack("<f", value))[0])


@dataclasses.dataclass(frozen=True)
class NormParameters:
    """Every attribute of one norm, validated.

    Attributes:
        op: which operator.
        output_type: element type of X and Y (an ``onnx.TensorProto`` data type); the last Cast of the body.
        axes: the normalised dimensions, one contiguous run; negative counts from the end.
        epsilon: added to the mean square, inside the root; not negative. Stored as float32.
        stash_type: type of all arithmetic: float (1) or double (11).
        scale_type: type to which the normalised value is rounded before the scale is applied: float, double with
            ``stash_type`` double, or ``output_type``.
        epsilon_outside: added to the RMS, outside the root. GeneralRMSNorm only.
        rms_floor: the RMS is at least this. GeneralRMSNorm only.
        partial_size: number of leading features in the statistic, or None for all. GeneralRMSNorm only.

    Raises:
        ValueError: an attribute is outside its range, or set on an operator that lacks it.
    """

    op: Op
    output_type: int
    axes: tuple[int, ...] = (-1,)
    epsilon: float = 0.0
    stash_type: int = TensorProto.FLOAT
    scale_type: int = TensorProto.FLOAT
    epsilon_outside: float = 0.0
    rms_floor: float = 0.0
    partial_size: int | None = None

    def __post_init__(self) -> None:
        if self.output_type not in FLOAT_TYPES:
            raise ValueError(f"X must be float32, float16, bfloat16 or float64, not data type {self.output_type}")
        if self.stash_type not in (TensorProto.FLOAT, TensorProto.DOUBLE):
            raise ValueError(f"stash_type must be 1 (float) or 11 (double), not {self.stash_type}")
        if self.output_type == TensorProto.DOUBLE and self.stash_type != TensorProto.DOUBLE:
            raise ValueError("stash_type of a float64 norm must be 11 (double)")
        if self.scale_type not in (self.output_type, self.stash_type, TensorProto.FLOAT):
            raise ValueError(f"scale_type must be the type of X, stash_type or float, not {self.scale_type}")
        if not self.axes:
            raise ValueError("axes must name at least one dimension")
        ordered = sorted(self.axes)
        if ordered != list(range(ordered[0], ordered[0] + len(ordered))) or ordered[0] < 0 <= ordered[-1]:
            raise ValueError(f"axes must be one contiguous run of dimensions, all of one sign, not {list(self.axes)}")
        for name in ("epsilon", "epsilon_outside", "rms_floor"):
            value = getattr(self, name)
            if not 0.0 <= value < float("inf"):
                raise ValueError(f"{name} must be a finite number and not negative, not {value}")
            object.__setattr__(self, name, as_float32(value))
        if self.partial_size is not None and (self.partial_size < 1 or len(self.axes) != 1):
            raise ValueError("partial_size must be at least 1 and needs exactly one axis")
        if self.op is not Op.GENERAL_RMS_NORM and (self.epsilon_outside or self.rms_floor or self.partial_size):
            raise ValueError(f"{self.op.value} has no epsilon_outside, rms_floor or partial_size")

    def to_attributes(self) -> dict[str, int | float | list[int]]:
        """Every attribute as a node stores it. All are written: neither kernels nor the checker see defaults."""
        values: dict[str, int | float | list[int]] = {
            "axes": list(self.axes),
            "epsilon": self.epsilon,
            "stash_type": self.stash_type,
            "scale_type": self.scale_type,
            "output_type": self.output_type,
        }
        if self.op is Op.GENERAL_RMS_NORM:
            size = ALL_FEATURES if self.partial_size is None else self.partial_size
            values |= {
                "epsilon_outside": self.epsilon_outside,
                "rms_floor": self.rms_floor,
                "partial_size": [size] * len(self.axes),
            }
        return values

    @classmethod
    def from_node(cls, node: NodeProto) -> NormParameters:
        """Read the parameters of a node of this domain.

        Raises:
            ValueError: the node is of another domain, lacks an attribute, or holds a value outside its range.
        """
        if node.domain != DOMAIN:
            raise ValueError(f"node '{node.name}' is of domain '{node.domain}', not '{DOMAIN}'")
        op = Op(node.op_type)
        given = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        missing = sorted(set(attribute_names(op)) - set(given))
        if missing:
            raise ValueError(f"node '{node.name}' ({op.value}) lacks the attributes {missing}")
        sizes = set(given.pop("partial_size", ()))
        if len(sizes) > 1:
            raise ValueError(f"node '{node.name}': every entry of partial_size must be the same")
        size = sizes.pop() if sizes else ALL_FEATURES
        return cls(
            op=op,
            axes=tuple(given.pop("axes")),
            partial_size=None if size == ALL_FEATURES else size,
            **given,
        )


_ATTRIBUTES: dict[str, tuple[AttributeProto.AttributeType, str]] = {
    "axes": (AttributeProto.INTS, "The normalised dimensions: one contiguous run, usually the last one."),
    "epsilon": (AttributeProto.FLOAT, "Added to the mean square, inside the root."),
    "stash_type": (AttributeProto.INT, "Type of all arithmetic: 1 (float) or 11 (double)."),
    "scale_type": (AttributeProto.INT, "Type to which the normalised value is rounded before the scale is applied."),
    "output_type": (AttributeProto.INT, "Type of X and Y."),
    "epsilon_outside": (AttributeProto.FLOAT, "Added to the RMS, outside the root."),
    "rms_floor": (AttributeProto.FLOAT, "The RMS is at least this."),
    "partial_size": (
        AttributeProto.INTS,
        "One integer for each entry of axes: how many leading features the mean square covers; 2^63 - 1 for all.",
    ),
}
_COMMON = ("axes", "epsilon", "stash_type", "scale_type", "output_type")


def attribute_names(op: Op) -> tuple[str, ...]:
    """Names of the attributes that a node of ``op`` carries, in the order in which they are written."""
    return tuple(_ATTRIBUTES) if op is Op.GENERAL_RMS_NORM else _COMMON


# ---------------------------------------------------------------------------------------------------------------------
# Schemas


def _infer(context: onnx.shape_inference.InferenceContext) -> None:
    """X's type and shape for every output: scale and bias broadcast into X and never enlarge it."""
    proto = context.get_input_type(0)
    if proto is None:
        return
    for i in range(context.get_num_outputs()):
        context.set_output_type(i, proto)


def schemas() -> list[onnx.defs.OpSchema]:
    """The operators as onnx schemas, with type and shape inference. They are not registered by this call."""
    made = []
    for op in Op:
        parameter = onnx.defs.OpSchema.FormalParameter
        kinds = {"scale": "S", "bias": "S"}
        schema = onnx.defs.OpSchema(
            op.value,
            DOMAIN,
            VERSION,
            doc=__doc__ or "",
            inputs=[parameter(name, kinds.get(name, "T"), _INPUT_DOCS[name]) for name in op.inputs],
            outputs=[parameter(name, "T", _OUTPUT_DOCS[name]) for name in op.outputs],
            type_constraints=[
                ("T", [t.onnx_name for t in TYPES], "Type of X and Y."),
                ("S", [t.onnx_name for t in TYPES], "Type of scale and bias: T or float."),
            ],
            attributes=[
                onnx.defs.OpSchema.Attribute(
                    name, getattr(onnx.defs.OpSchema.AttrType, AttributeProto.AttributeType.Name(kind)), text
                )
                for name in attribute_names(op)
                for kind, text in [_ATTRIBUTES[name]]
            ],
        )
        schema.set_type_and_shape_inference_function(_infer)
        made.append(schema)
    return made


_INPUT_DOCS = {
    "X": "The value to normalise.",
    "residual": "Added to X first; of X's shape.",
    "scale": "Multiplies the normalised value; broadcasts into X and never enlarges it.",
    "bias": "Added at the end; broadcasts into X and never enlarges it. -0.0 is neutral.",
}
_OUTPUT_DOCS = {"Y": "The normalised value, of X's shape.", "sum": "X + residual, rounded to T."}


def register_schemas() -> None:
    """Make ``onnx.checker`` and ``onnx.shape_inference`` of this process know the operators. Safe to call again.

    Fused models do not need it (their function bodies suffice); nodes without a body do.
    """
    for schema in schemas():
        if not onnx.defs.has(schema.name, DOMAIN):
            onnx.defs.register_schema(schema)


# ---------------------------------------------------------------------------------------------------------------------
# Function bodies


class _Body:
    """Collects the nodes of one function body; every method returns the name of the value it made."""

    def __init__(self, opset: int) -> None:
        self.nodes: list[NodeProto] = []
        self.opset = opset

    def add(self, op_type: str, inputs: Sequence[str], output: str = "", **references: str) -> str:
        """A node whose attributes are references to the function's: ``to="stash_type"``."""
        output = output or f"{op_type.lower()}_{len(self.nodes)}"
        node = helper.make_node(op_type, list(inputs), [output])
        for name, reference in references.items():
            kind = _ATTRIBUTES[reference][0]
            node.attribute.append(AttributeProto(name=name, ref_attr_name=reference, type=kind))
        self.nodes.append(node)
        return output

    def cast(self, value: str, to: str, output: str = "") -> str:
        return self.add("Cast", [value], output, to=to)

    def rounded(self, value: str, to: str) -> str:
        """``value`` rounded to the type ``to`` and back: nothing is ever computed in a 16-bit type."""
        return self.cast(self.cast(value, to), "stash_type")

    def constant(self, value: object) -> str:
        output = f"constant_{len(self.nodes)}"
        self.nodes.append(helper.make_node("Constant", [], [output], value=value))
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

    def mean(self, value: str) -> str:
        if self.opset < 18:
            mean = self.add("ReduceMean", [value], axes="axes")
        else:
            mean = self.add("ReduceMean", [value, self.add("Constant", [], value_ints="axes")])
        self.nodes[-1].attribute.append(helper.make_attribute("keepdims", 1))
        return mean

    def first_features(self, value: str) -> str:
        """The first ``partial_size`` features. The slice starts at axes * 0, a zero for each axis."""
        axes = self.add("Constant", [], value_ints="axes")
        ends = self.add("Constant", [], value_ints="partial_size")
        zero = self.constant(helper.make_tensor("zero", TensorProto.INT64, [1], [0]))
        return self.add("Slice", [value, self.add("Mul", [axes, zero]), ends, axes])


def function_body(op: Op, opset: int) -> FunctionProto:
    """``op`` in standard ONNX operators, parameterised by its attributes, for a model of ai.onnx ``opset``.

    The spelling is the one that onnxruntime's own optimizer fuses where the meaning allows: Cast, Pow, ReduceMean, Add,
    Sqrt, Div, Mul. All arithmetic is in ``stash_type``; 16-bit types occur only in Casts, since onnxruntime lacks
    bfloat16 kernels on the CPU and drops float16 round trips between float16 operators.

    Raises:
        ValueError: the opset is too old. ``GeneralRMSNorm`` at opset 11 has no ``partial_size`` in its body (Constant
            cannot hold a list of integers there): see :func:`min_opset`.
    """
    if opset < MIN_OPSET:
        raise ValueError(f"function bodies need ai.onnx opset {MIN_OPSET} or newer, not {opset}")
    copy = FunctionProto()
    copy.CopyFrom(_function_body(op, opset))
    return copy


@functools.lru_cache
def _function_body(op: Op, opset: int) -> FunctionProto:
    """The body itself, made once; nobody else may change it."""
    body = _Body(opset)
    if op is Op.ADD_RMS_NORM:
        total = body.add("Add", [body.cast("X", "stash_type"), body.cast("residual", "stash_type")])
        x = body.cast(body.cast(total, "output_type", "sum"), "stash_type")
    else:
        x = body.cast("X", "stash_type")
    general = op is Op.GENERAL_RMS_NORM
    measured = body.first_features(x) if general and opset >= 12 else x
    # Pow below opset 12 wants both operands of one type; TVM's importer wants it at every opset.
    two = body.cast(body.constant(helper.make_tensor("two", TensorProto.FLOAT, [], [2.0])), "stash_type")
    mean_square = body.mean(body.add("Pow", [measured, two]))
    rms = body.add("Sqrt", [body.add("Add", [mean_square, body.float_attribute("epsilon")])])
    if general:
        rms = body.add("Add", [rms, body.float_attribute("epsilon_outside")])
        rms = body.add("Max", [rms, body.float_attribute("rms_floor")])
    normalised = body.rounded(body.add("Div", [x, rms]), "scale_type")
    y = body.cast(body.add("Mul", [normalised, body.rounded("scale", "scale_type")]), "scale_type")
    if general:
        scaled = body.cast(y, "stash_type")
        y = body.cast(body.add("Add", [scaled, body.rounded("bias", "scale_type")]), "scale_type")
    body.cast(y, "output_type", "Y")
    return helper.make_function(
        DOMAIN,
        op.value,
        list(op.inputs),
        list(op.outputs),
        body.nodes,
        [helper.make_opsetid("", opset)],
        attributes=list(attribute_names(op)),
        doc_string="RMSNorm, arXiv:1910.07467, in standard operators; a runtime with a kernel for it skips this body.",
    )


def min_opset(parameters: NormParameters) -> int:
    """The oldest ai.onnx opset whose body expresses ``parameters``: bfloat16 casts need 13, partial norms 12."""
    types = (parameters.output_type, parameters.scale_type)
    if TensorProto.BFLOAT16 in types:
        return 13
    return 12 if parameters.partial_size is not None else MIN_OPSET
