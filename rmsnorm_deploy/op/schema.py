"""The operators as ONNX schemas, for ``onnx.checker`` and ``onnx.shape_inference``."""

from __future__ import annotations

import functools
import threading

import onnx
from onnx import AttributeProto
from onnx.defs import OpSchema

from rmsnorm_deploy.op import definition, versions
from rmsnorm_deploy.op.definition import OPERANDS, Attribute, Op, attributes_of
from rmsnorm_deploy.op.dtypes import QUANTISED_TYPES, TYPES
from rmsnorm_deploy.op.versions import DOMAIN

_ONE_AT_A_TIME = threading.Lock()  # two threads would both find a schema missing, and onnx refuses the second one


def _infer_outputs(context: onnx.shape_inference.InferenceContext, op: Op) -> None:
    """X's type and shape for every output, since scale and bias broadcast into X and never enlarge it.

    A quantized value has the shape alone, and its scale and zero point are one number each.
    """
    proto = context.get_input_type(0)
    if proto is None:
        return
    for i in range(context.get_num_outputs()):
        name = op.outputs[i] if i < len(op.outputs) else "Y"
        if name == "y_scale":
            context.set_output_type(i, onnx.helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, []))
        elif name in ("quantized", "y_zero_point"):
            kind = int(onnx.TensorProto.UINT8)
            if not op.is_dynamic:
                zero = context.get_input_type(op.inputs.index("y_zero_point"))
                if zero is None:
                    continue
                kind = zero.tensor_type.elem_type
            made = onnx.TypeProto()
            made.CopyFrom(proto)
            made.tensor_type.elem_type = kind
            if name == "y_zero_point":
                made = onnx.helper.make_tensor_type_proto(kind, [])
            context.set_output_type(i, made)
        else:
            context.set_output_type(i, proto)


def _attribute(attribute: Attribute) -> OpSchema.Attribute:
    if attribute.default is not None:
        value = onnx.helper.make_attribute(attribute.name, attribute.default)
        return OpSchema.Attribute(attribute.name, value, attribute.doc)
    kind = getattr(OpSchema.AttrType, AttributeProto.AttributeType.Name(attribute.kind))
    return OpSchema.Attribute(attribute.name, kind, attribute.doc, required=attribute.required)


_OPTION = (OpSchema.FormalParameterOption.Single, OpSchema.FormalParameterOption.Optional)


def _quantised_types(op: Op) -> list[tuple[str, list[str], str]]:
    if op.is_dynamic:
        return [("P", ["tensor(float)"], "Type of y_scale."), ("Q", ["tensor(uint8)"], "Type of the quantized value.")]
    scales = [t.onnx_name for t in TYPES if t.itemsize <= 4]
    return [
        ("P", scales, "Type of y_scale: T or float."),
        ("Q", [f"tensor({name})" for name in QUANTISED_TYPES.values()], "Type of the quantized value."),
    ]


def schemas() -> list[OpSchema]:
    """The operators of every version as onnx schemas, with type and shape inference. This call registers nothing."""
    made = []
    for version in (v.number for v in versions.VERSIONS):
        for op in Op:
            schema = OpSchema(
                op.value,
                DOMAIN,
                version,
                doc=definition.__doc__ or "",
                inputs=[OpSchema.FormalParameter(name, *OPERANDS[name]) for name in op.inputs],
                outputs=[
                    OpSchema.FormalParameter(
                        name,
                        *OPERANDS[name],
                        param_option=_OPTION[name in op.optional],
                    )
                    for name in op.outputs
                ],
                type_constraints=[
                    ("T", [t.onnx_name for t in TYPES], "Type of X and Y."),
                    ("S", [t.onnx_name for t in TYPES], "Type of scale and bias: T or float."),
                    *(
                        [("G", [t.onnx_name for t in TYPES], "Type of gate: T or float.")]
                        if "gate" in op.inputs
                        else []
                    ),
                    *(_quantised_types(op) if op.quantises else ()),
                ],
                attributes=[_attribute(a) for a in attributes_of(op, version)],
            )
            schema.set_type_and_shape_inference_function(functools.partial(_infer_outputs, op=op))
            made.append(schema)
    return made


def register_schemas() -> None:
    """Make ``onnx.checker`` and ``onnx.shape_inference`` of this process know the operators.

    Fused models do not need it (their function bodies suffice); nodes without a body do. It may be called
    again, and by any thread.
    """
    with _ONE_AT_A_TIME:
        known = {(s.name, s.since_version) for s in onnx.defs.get_all_schemas_with_history() if s.domain == DOMAIN}
        for schema in schemas():
            if (schema.name, schema.since_version) not in known:
                onnx.defs.register_schema(schema)
