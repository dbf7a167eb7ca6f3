"""The operators: their names, inputs, outputs and attributes. Everything else reads them from here.

With ``c`` the arithmetic type (``stash_type``) and ``T`` the type of X::

    s    = T(c(x) + c(residual))                  AddRMSNorm only; returned as ``sum``; from here on x is s
    ms   = mean of c(x)^2 over ``axes``           General: over the first ``partial_size`` features of the one axis
    rms  = sqrt(ms + epsilon)                     General: max(sqrt(ms + epsilon) + epsilon_outside, rms_floor)
    n    = scale_type(c(x) / rms)
    y    = scale_type(c(n) * c(scale_type(scale)))
                                                  General: y = scale_type(c(y) + c(scale_type(bias)))
    Y    = T(y)

GatedRMSNorm multiplies by ``g = act(c(gate))``, which is never rounded: ``sigmoid(z)``, or ``z * sigmoid(z)`` (SiLU)
where ``activation`` is 1. Where, says ``gate_at``::

    0    c(x) * g in place of c(x), not rounded   the statistics are those of the product (Mamba2)
    1    scale_type(c(n) * g) in place of n       in front of the scale
    2    Y = T(c(y) * g)                          behind it (Qwen3-Next)

An operator whose name ends in QuantizeLinear or DynamicQuantizeLinear then does to Y what that one of ai.onnx does::

    quantized = saturated(round(precision(Y) / precision(y_scale)) + y_zero_point)     round half to even

The scale and zero point are inputs; or, for DynamicQuantizeLinear, outputs that are made of the range of all of Y.

RMSNorm is from Zhang & Sennrich, "Root Mean Square Layer Normalization", NeurIPS 2019, arXiv:1910.07467, section 4;
``partial_size`` is the paper's pRMSNorm (section 4.1), ``epsilon_outside`` the place of epsilon in its published code.
"""

from __future__ import annotations

import dataclasses
import enum
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np
from onnx import AttributeProto, NodeProto, TensorProto, helper

from rmsnorm_deploy.op import versions
from rmsnorm_deploy.op.dtypes import FLOAT_TYPES
from rmsnorm_deploy.op.versions import DOMAIN

ALL_FEATURES = 2**63 - 1
"""``partial_size`` of a norm whose statistic covers every feature."""


class Op(str, enum.Enum):
    """The operators."""

    RMS_NORM = "RMSNorm"
    ADD_RMS_NORM = "AddRMSNorm"
    RMS_NORM_QUANTIZE = "RMSNormQuantizeLinear"
    ADD_RMS_NORM_QUANTIZE = "AddRMSNormQuantizeLinear"
    RMS_NORM_DYNAMIC_QUANTIZE = "RMSNormDynamicQuantizeLinear"
    ADD_RMS_NORM_DYNAMIC_QUANTIZE = "AddRMSNormDynamicQuantizeLinear"
    GENERAL_RMS_NORM = "GeneralRMSNorm"
    GATED_RMS_NORM = "GatedRMSNorm"

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the inputs, in order; all are required."""
        return _SIGNATURES[self][0]

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the outputs, in order; all are there, for onnxruntime 1.20 aborts on a missing one.

        All but :attr:`optional` have names.
        """
        return _SIGNATURES[self][1]

    @property
    def optional(self) -> tuple[str, ...]:
        """The outputs whose name is empty where nobody reads them. None is the last, since tools drop those."""
        return ("Y",) if self.quantises else ()

    @property
    def quantises(self) -> bool:
        """Whether the norm is quantised in the same operator."""
        return self is not self.norm

    @property
    def is_dynamic(self) -> bool:
        """Whether it is quantised by a scale of its own range."""
        return self.quantises and "y_scale" in self.outputs

    @property
    def norm(self) -> Op:
        """The operator that is the norm alone."""
        return _NORMS.get(self, self)

    def quantised(self, *, dynamic: bool) -> Op | None:
        """The operator that does the same and quantises the result; None where there is none."""
        return next((op for op, norm in _NORMS.items() if norm is self and op.is_dynamic == dynamic), None)


_SIGNATURES: dict[Op, tuple[tuple[str, ...], tuple[str, ...]]] = {
    Op.RMS_NORM: (("X", "scale"), ("Y",)),
    Op.ADD_RMS_NORM: (("X", "residual", "scale"), ("Y", "sum")),
    Op.RMS_NORM_QUANTIZE: (("X", "scale", "y_scale", "y_zero_point"), ("Y", "quantized")),
    Op.ADD_RMS_NORM_QUANTIZE: (("X", "residual", "scale", "y_scale", "y_zero_point"), ("Y", "quantized", "sum")),
    Op.RMS_NORM_DYNAMIC_QUANTIZE: (("X", "scale"), ("Y", "quantized", "y_scale", "y_zero_point")),
    Op.ADD_RMS_NORM_DYNAMIC_QUANTIZE: (
        ("X", "residual", "scale"),
        ("Y", "quantized", "y_scale", "y_zero_point", "sum"),
    ),
    Op.GENERAL_RMS_NORM: (("X", "scale", "bias"), ("Y",)),
    Op.GATED_RMS_NORM: (("X", "gate", "scale"), ("Y",)),
}
OPERANDS: dict[str, tuple[str, str]] = {
    "X": ("T", "The value to normalise."),
    "residual": ("T", "Added to X first; of X's shape."),
    "gate": ("G", "What the activation is applied to, of X's shape; multiplies X, the normalised or the scaled value."),
    "scale": ("S", "Multiplies the normalised value; broadcasts into X and never enlarges it."),
    "bias": ("S", "Added at the end; broadcasts into X and never enlarges it. -0.0 is neutral."),
    "Y": ("T", "The normalised value, of X's shape."),
    "sum": ("T", "X + residual, rounded to T."),
    "y_scale": ("P", "Scale of the quantized value, one number."),
    "y_zero_point": ("Q", "Zero point of the quantized value, one number; 0 for float8."),
    "quantized": ("Q", "The quantized value, of X's shape."),
}
"""Type and meaning of every input and output: T is the type of X; S, G and P are T or float, Q is a type of 8 bits."""
_NORMS = {
    Op.RMS_NORM_QUANTIZE: Op.RMS_NORM,
    Op.ADD_RMS_NORM_QUANTIZE: Op.ADD_RMS_NORM,
    Op.RMS_NORM_DYNAMIC_QUANTIZE: Op.RMS_NORM,
    Op.ADD_RMS_NORM_DYNAMIC_QUANTIZE: Op.ADD_RMS_NORM,
}
"""What each operator that quantises is without that."""


@dataclasses.dataclass(frozen=True)
class Attribute:
    """One attribute of the operators.

    Attributes:
        name: as nodes and :class:`NormParameters` call it.
        kind: how a node stores it.
        doc: what it means, in a sentence or two.
        default: what a node without it means; None where no constant can say it. That of a float changes nothing, and
            is the neutral value that ops/include/rms_norm.h has for it.
        ops: the operators that have it.
        since: the version of the domain in which it came.
        required: whether every node must have it.
    """

    name: str
    kind: AttributeProto.AttributeType
    doc: str
    default: Any
    ops: tuple[Op, ...] = tuple(Op)
    since: int = 1
    required: bool = False


_QUANTISED = (Op.RMS_NORM_QUANTIZE, Op.ADD_RMS_NORM_QUANTIZE)
_GENERAL = (Op.GENERAL_RMS_NORM,)
_GATED = (Op.GATED_RMS_NORM,)
SIGMOID, SILU = 0, 1
"""Values of ``activation``."""
GATED_FIRST, GATED_NORMALISED, GATED_LAST = 0, 1, 2
"""Values of ``gate_at``."""
_VERSION = "version"
ATTRIBUTES = (
    Attribute(
        "axes", AttributeProto.INTS, "The normalised dimensions: one contiguous run, usually the last one.", [-1]
    ),
    Attribute("epsilon", AttributeProto.FLOAT, "Added to the mean square, inside the root.", 0.0),
    Attribute("stash_type", AttributeProto.INT, "Type of all arithmetic: 1 (float) or 11 (double).", 1),
    Attribute(
        "scale_type",
        AttributeProto.INT,
        "Type to which the normalised value is rounded before the scale is applied.",
        1,
    ),
    Attribute("output_type", AttributeProto.INT, "Type of X and Y.", None),
    Attribute("epsilon_outside", AttributeProto.FLOAT, "Added to the RMS, outside the root.", 0.0, _GENERAL),
    Attribute("rms_floor", AttributeProto.FLOAT, "The RMS is at least this.", 0.0, _GENERAL),
    Attribute(
        "partial_size",
        AttributeProto.INTS,
        "One integer for each entry of axes: how many leading features the mean square covers; 2^63 - 1 for all.",
        None,
        _GENERAL,
    ),
    Attribute("activation", AttributeProto.INT, "Of the gate: 0 (sigmoid) or 1 (SiLU, z * sigmoid(z)).", SILU, _GATED),
    Attribute(
        "gate_at",
        AttributeProto.INT,
        "What the activated gate multiplies: 0 (X, before the norm), 1 (the normalised value) or 2 (the scaled one).",
        GATED_FIRST,
        _GATED,
    ),
    Attribute("precision", AttributeProto.INT, "Type of the quotient of Y and y_scale: 1 (float) or T.", 1, _QUANTISED),
    Attribute(
        _VERSION, AttributeProto.INT, "The version of the domain that the model imports.", None, since=2, required=True
    ),
)
"""Every attribute, in the order in which nodes carry them. An absent ``output_type`` means the type of X, an absent
``partial_size`` all features, and an absent ``stash_type`` of a float64 norm double."""


def attributes_of(op: Op, version: int | None = None) -> tuple[Attribute, ...]:
    """The attributes of ``op`` in a version of the domain (None is the newest), in the order in which they stand."""
    version = versions.newest() if version is None else version
    versions.check(version)
    return tuple(
        dataclasses.replace(a, default=versions.default(a.name, a.default, version))
        for a in ATTRIBUTES
        if op in a.ops and a.since <= version
    )


def attribute_names(op: Op, version: int | None = None) -> tuple[str, ...]:
    """Names of the attributes that a node of ``op`` carries, in the order in which they are written."""
    return tuple(a.name for a in attributes_of(op, version))


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
            ``stash_type`` double, or ``output_type``. Not the type of the input ``scale``; see :attr:`rounding`.
        epsilon_outside: added to the RMS, outside the root. GeneralRMSNorm only.
        rms_floor: the RMS is at least this. GeneralRMSNorm only.
        partial_size: number of leading features in the statistic, or None for all. GeneralRMSNorm only.
        activation: of the gate: :data:`SIGMOID` or :data:`SILU`. GatedRMSNorm only.
        gate_at: what the gate multiplies: :data:`GATED_FIRST`, :data:`GATED_NORMALISED` or :data:`GATED_LAST`.
            GatedRMSNorm only.
        precision: type of the quotient of Y and its scale: float, or ``output_type``. Where the scale is given only.

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
    activation: int = SILU
    gate_at: int = GATED_FIRST
    precision: int = TensorProto.FLOAT

    @property
    def rounding(self) -> int:
        """``scale_type`` under a name that says what it is: the type that the normalised value is rounded to."""
        return self.scale_type

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
        for name in (a.name for a in ATTRIBUTES if a.kind == AttributeProto.FLOAT):
            value = getattr(self, name)
            if not 0.0 <= value < float("inf"):
                raise ValueError(f"{name} must be a finite number and not negative, not {value}")
            object.__setattr__(self, name, as_float32(value))
        if self.partial_size is not None and (self.partial_size < 1 or len(self.axes) != 1):
            raise ValueError("partial_size must be at least 1 and needs exactly one axis")
        if self.activation not in (SIGMOID, SILU):
            raise ValueError(f"activation must be 0 (sigmoid) or 1 (SiLU), not {self.activation}")
        if self.gate_at not in (GATED_FIRST, GATED_NORMALISED, GATED_LAST):
            raise ValueError(f"gate_at must be 0, 1 or 2, not {self.gate_at}")
        if self.op.quantises and self.stash_type != TensorProto.FLOAT:
            raise ValueError(f"stash_type of {self.op.value} must be 1 (float)")
        if self.op.is_dynamic and self.output_type != TensorProto.FLOAT:
            raise ValueError(f"X of {self.op.value} must be float32")
        if self.precision not in (TensorProto.FLOAT, self.output_type):
            raise ValueError(f"precision must be 1 (float) or the type of X, not {self.precision}")
        fields = {f.name: f.default for f in dataclasses.fields(self)}
        lacking = [a.name for a in ATTRIBUTES if self.op not in a.ops and a.name in fields]
        if set_ := [name for name in lacking if getattr(self, name) != fields[name]]:
            raise ValueError(f"{self.op.value} has no {' and no '.join(set_)}")

    def to_attributes(self, version: int | None = None) -> dict[str, int | float | list[int]]:
        """Every attribute as a node stores it. All are written: function bodies need them, and kernels see no defaults.

        Args:
            version: of the domain, as the model imports it; None is the newest.

        Raises:
            ValueError: the version is unknown, or it lacks an attribute that is not neutral here.
        """
        version = versions.newest() if version is None else version
        names = attribute_names(self.op, version)
        for a in attributes_of(self.op):
            if a.name not in names and a.name != _VERSION and getattr(self, a.name) != a.default:
                raise ValueError(f"version {version} of the domain {DOMAIN} has no {a.name}")
        values: dict[str, Any] = {name: version if name == _VERSION else getattr(self, name) for name in names}
        values["axes"] = list(self.axes)
        if "partial_size" in values:
            size = ALL_FEATURES if self.partial_size is None else self.partial_size
            values["partial_size"] = [size] * len(self.axes)
        return values

    @classmethod
    def from_attributes(
        cls, op: Op, values: Mapping[str, Any], *, version: int, x_type: int | None = None
    ) -> NormParameters:
        """Read the attributes of a node; an absent one has its default.

        Args:
            op: which operator.
            values: the attributes that the node has: integers, floats and sequences of integers.
            version: of the domain, as the model imports it: see :func:`rmsnorm_deploy.op.versions.version_of`.
            x_type: data type of X, where it is known; what an absent ``output_type`` means.

        Raises:
            ValueError: an attribute is unknown, is of another kind, or holds a value outside its range; or the version
                is unknown.
        """
        known = attributes_of(op, version)
        unknown = sorted(set(values) - {a.name for a in known})
        if unknown:
            raise ValueError(f"{op.value} has no attribute {', '.join(unknown)} in version {version} of {DOMAIN}")
        if missing := [a.name for a in known if a.required and a.name not in values]:
            raise ValueError(f"the attribute {missing[0]} is missing")
        read = {a.name: _read(a, values[a.name]) if a.name in values else a.default for a in known}
        if read.pop(_VERSION, version) != version:
            raise ValueError(
                f"the attribute version is {values[_VERSION]}, but the model imports {version} of {DOMAIN}"
            )
        if read["output_type"] is None:
            if x_type is None:
                raise ValueError("output_type is absent, and the type of X is not known")
            read["output_type"] = x_type
        if "stash_type" not in values and read["output_type"] == TensorProto.DOUBLE:
            read["stash_type"] = int(TensorProto.DOUBLE)  # a float64 norm has no other arithmetic
        read["axes"] = tuple(read["axes"])
        if read.get("partial_size") is not None:
            sizes = set(read["partial_size"])
            if len(sizes) > 1 or len(read["partial_size"]) != len(read["axes"]):
                raise ValueError("partial_size must hold one integer for each axis, all the same")
            read["partial_size"] = next(iter(sizes - {ALL_FEATURES}), None)
        return cls(op=op, **read)

    @classmethod
    def from_node(cls, node: NodeProto, *, version: int, x_type: int | None = None) -> NormParameters:
        """Read a node of this domain, as :meth:`from_attributes` does.

        Raises:
            ValueError: the node is of another domain, or see :meth:`from_attributes`.
        """
        if node.domain != DOMAIN:
            raise ValueError(f"node '{node.name}' is of domain '{node.domain}', not '{DOMAIN}'")
        try:
            values = {a.name: helper.get_attribute_value(a) for a in node.attribute}
            return cls.from_attributes(Op(node.op_type), values, version=version, x_type=x_type)
        except ValueError as error:
            raise ValueError(f"node '{node.name}' ({node.op_type}): {error}") from error


def _read(attribute: Attribute, value: Any) -> Any:
    """``value`` as a plain Python one, or a complaint about its kind."""
    if attribute.kind == AttributeProto.INT and isinstance(value, (int, np.integer)):
        return int(value)
    if attribute.kind == AttributeProto.FLOAT and isinstance(value, (float, np.floating)):
        return float(value)
    if attribute.kind == AttributeProto.INTS and not isinstance(value, (str, bytes)):
        listed: list[Any] = list(value) if hasattr(value, "__iter__") else [None]
        if all(isinstance(v, (int, np.integer)) for v in listed):
            return [int(v) for v in listed]
    wanted = {AttributeProto.INT: "an integer", AttributeProto.FLOAT: "a float"}
    raise ValueError(
        f"the attribute {attribute.name} must be {wanted.get(attribute.kind, 'a list of integers')}, not {value!r}"
    )
