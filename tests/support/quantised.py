"""Models of a norm of ours and what quantises it."""

import numpy as np
import onnx_ir as ir
from onnx import TensorProto, helper, numpy_helper

from rmsnorm_deploy.op import DOMAIN, NormParameters, Op, function_body
from rmsnorm_deploy.op.dtypes import float_type

F, U8, I8, F8 = TensorProto.FLOAT, TensorProto.UINT8, TensorProto.INT8, TensorProto.FLOAT8E4M3FN
DYNAMIC = None


def initializer(value, data_type, name):
    return numpy_helper.from_array(np.asarray(value).astype(ir.DataType(data_type).numpy()), name)


def pair(
    shape,
    quantised=I8,
    kind=F,
    *,
    residual=False,
    keep=True,
    scale=0.02,
    zero=5,
    scale_type=None,
    opset=21,
    epsilon=1e-6,
    weight=None,
    extra=(),
    readers=1,
    **attributes,
):
    """RMSNorm or AddRMSNorm of ours, then QuantizeLinear (DynamicQuantizeLinear where ``quantised`` is DYNAMIC).

    The outputs are q (and q2 and so on for more ``readers``), s and z where they are made, y where it is kept, sum.
    """
    op, n = Op.ADD_RMS_NORM if residual else Op.RMS_NORM, shape[-1]
    weights = [initializer(np.linspace(0.5, 2, n) if weight is None else weight, kind, "w")]
    given = ["x", "r", "w"] if residual else ["x", "w"]
    p = NormParameters(op, kind, epsilon=epsilon)
    norm = helper.make_node(
        op.value, given, ["y", "sum"][: len(op.outputs)], "norm", domain=DOMAIN, **p.to_attributes()
    )
    nodes, to = [norm], U8 if quantised is DYNAMIC else quantised
    outputs = []
    for i in range(readers):
        q = f"q{i + 1}" if i else "q"
        outputs.append((q, to, shape))
        if quantised is DYNAMIC:
            made = [q, *(f"{name}{i + 1}" if i else name for name in "sz")]
            nodes.append(helper.make_node("DynamicQuantizeLinear", ["y"], made, q))
            outputs += [(made[1], F, []), (made[2], U8, [])]
        else:
            nodes.append(helper.make_node("QuantizeLinear", ["y", "s", "z"], [q], q, **attributes))
    if quantised is not DYNAMIC:
        weights += [initializer(scale, scale_type or kind, "s"), initializer(zero, to, "z")]
    outputs += [("y", kind, shape)] * keep + [("sum", kind, shape)] * residual
    nodes += extra
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes, "g", [info(i, kind, shape) for i in given[:-1]], [info(*o) for o in outputs], weights
    )
    return helper.make_model(
        graph,
        opset_imports=[helper.make_opsetid("", opset), helper.make_opsetid(DOMAIN, 1)],
        functions=[function_body(op, opset)],
        ir_version=10,
    )


def feeds_of(model, seed=0, spread=1.0):
    rng = np.random.default_rng(seed)
    types = {i.name: i.type.tensor_type for i in model.graph.input}
    shapes = {name: [d.dim_value for d in t.shape.dim] for name, t in types.items()}
    return {
        name: (spread * rng.standard_normal(shapes[name])).astype(float_type(t.elem_type).dtype)
        for name, t in types.items()
    }
