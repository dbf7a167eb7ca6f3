"""What a model says of its values: types, shapes, names of dimensions; inputs, outputs, leftover declarations."""

import numpy as np
import onnx
from onnx import TensorProto, helper

from tests.fuzz.mutations import pick
from tests.fuzz.mutations.pick import harmless

_PARAMS = ("N", "batch", "seq", "2*N", "N+1", "N//2", "-N", "N/0", "2**999", "a b", "", "unk__0", "floor(N/2)", "((((")
_FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE, TensorProto.BFLOAT16)


def _dims(value):
    return value.type.tensor_type.shape.dim


@harmless
def symbolic(model, rng):
    dim = rng.choice(_dims(rng.choice(pick.declared(model))))
    dim.dim_param = rng.choice(_PARAMS)


@harmless
def sizes_of_an_input(model, rng):
    dim = rng.choice(_dims(rng.choice(model.graph.input)))
    dim.dim_value = rng.choice([0, 1, 2, 3, 5, 8])


def sizes(model, rng):
    dim = rng.choice(_dims(rng.choice(pick.declared(model))))
    dim.dim_value = rng.choice(pick.SIZES)


def rank(model, rng):
    value = rng.choice(pick.declared(model))
    dims = _dims(value)
    how = rng.randrange(4)
    if how == 0:
        value.type.tensor_type.ClearField("shape")
    elif how == 1:
        del dims[rng.randrange(len(dims))]
    elif how == 2:
        dims.add(dim_value=rng.choice([0, 1, 2, 8, 2**62]))
    else:
        value.type.tensor_type.shape.Clear()
        for _ in range(rng.choice([0, 1, 3, 40])):
            dims.add()


@harmless
def no_output_shapes(model, rng):
    for value in model.graph.output:
        if rng.random() < 0.5:
            value.type.tensor_type.ClearField("shape")
        else:
            for dim in _dims(value):
                dim.Clear()


@harmless
def element_type_of_everything(model, rng):
    """One float type becomes another, everywhere in the model: it is still a model."""
    old = rng.choice(sorted({v.type.tensor_type.elem_type for v in pick.declared(model)} & set(_FLOATS)))
    new = rng.choice(_FLOATS)
    for value in pick.declared(model):
        if value.type.tensor_type.elem_type == old:
            value.type.tensor_type.elem_type = new
    for node in pick.nodes_of(model):
        for attribute in node.attribute:
            if attribute.name in ("to", "output_type", "stash_type", "scale_type") and attribute.i == old:
                attribute.i = new
    for tensor in pick.all_tensors(model):
        if tensor.data_type == old:
            with np.errstate(all="ignore"):
                array = onnx.numpy_helper.to_array(tensor).astype(helper.tensor_dtype_to_np_dtype(new))
            tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))


def element_type(model, rng):
    value = rng.choice(pick.declared(model))
    value.type.tensor_type.elem_type = rng.choice([*range(26), 99, -1])


def another_kind_of_type(model, rng):
    value = rng.choice(pick.declared(model))
    how = rng.randrange(5)
    inner = helper.make_tensor_type_proto(1, [2])
    if how == 0:
        value.ClearField("type")
    elif how == 1:
        value.type.CopyFrom(helper.make_sequence_type_proto(inner))
    elif how == 2:
        value.type.CopyFrom(helper.make_optional_type_proto(inner))
    elif how == 3:
        value.type.CopyFrom(helper.make_map_type_proto(7, inner))
    else:
        value.type.CopyFrom(helper.make_sparse_tensor_type_proto(1, [2, 8]))


def name(model, rng):
    value = rng.choice(pick.declared(model))
    value.name = rng.choice([*pick.names(model), "", "\0", "n" * 3000])


def drop(model, rng):
    values = rng.choice([model.graph.input, model.graph.output, model.graph.value_info])
    del values[rng.randrange(len(values))]


def twice(model, rng):
    values = rng.choice([model.graph.input, model.graph.output])
    values.append(rng.choice(values))


@harmless
def one_more_output(model, rng):
    """A value inside a norm is wanted from outside."""
    nodes = [n for node in model.graph.node for n in node.output if n]
    name = rng.choice(nodes)
    if name not in {v.name for v in model.graph.output}:
        model.graph.output.append(onnx.ValueInfoProto(name=name))
        model.graph.output[-1].type.tensor_type.elem_type = rng.choice([1, 1, 1, 10, 11, 7])


def any_output(model, rng):
    name = rng.choice([*pick.names(model), "nowhere"])
    model.graph.output.append(helper.make_tensor_value_info(name, rng.choice([1, 10, 7]), None))


@harmless
def inferred(model, rng):
    """As some exporters leave a model: every value with its type and shape."""
    model.CopyFrom(onnx.shape_inference.infer_shapes(model, data_prop=False))


def stale(model, rng):
    """A declaration that is left over, and wrong."""
    graph = pick.graph(model, rng)
    name = rng.choice(pick.names(model))
    sizes = [rng.choice([*pick.SIZES, "N", None]) for _ in range(rng.choice([0, 1, 2, 3, 4]))]
    graph.value_info.append(helper.make_tensor_value_info(name, rng.choice([1, 1, 10, 7, 16, 0]), sizes))


def long_values(model, rng):
    """A value of one dimension with very many elements."""
    size = rng.choice([2**20, 2**25, 2**31, 2**62])
    if rng.random() < 0.5:
        model.graph.input.append(helper.make_tensor_value_info("long", rng.choice([1, 7]), [size]))
    graph = pick.graph(model, rng)
    reader = pick.new_name(model, rng, "long")
    known = "long" if model.graph.input and model.graph.input[-1].name == "long" else rng.choice(pick.names(model))
    graph.node.append(helper.make_node(rng.choice(["Add", "Mul", "Concat"]), [known, known], [reader]))
    if graph.node[-1].op_type == "Concat":
        graph.node[-1].attribute.append(helper.make_attribute("axis", 0))
    graph.value_info.append(helper.make_tensor_value_info(reader, rng.choice([1, 7]), [size]))
