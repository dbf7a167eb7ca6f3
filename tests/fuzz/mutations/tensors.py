"""Tensors: their numbers, sizes, types, and where their data lie."""

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.fuzz.mutations import pick
from tests.fuzz.mutations.pick import harmless

_FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE, TensorProto.BFLOAT16)
_LOCATIONS = (
    "weights.bin",
    "weights.bin",
    "../secret",
    "/etc/passwd",
    "",
    "a\0b",
    "x" * 5000,
    ".",
    "sub/../weights.bin",
)


def _set(tensor, array):
    name = tensor.name
    tensor.CopyFrom(numpy_helper.from_array(array, name))


@harmless
def numbers(model, rng):
    """One element, or all of them."""
    tensor = rng.choice(pick.all_tensors(model))
    array = np.array(numpy_helper.to_array(tensor))
    if not array.size:
        return
    choices = pick.FLOATS if tensor.data_type in _FLOATS else pick.INTEGERS[:12]
    value = rng.choice(choices)
    with np.errstate(all="ignore"):
        if rng.random() < 0.5:
            array.reshape(-1)[rng.randrange(array.size)] = np.asarray(value).astype(array.dtype)
        else:
            array[...] = np.asarray(value).astype(array.dtype)
    _set(tensor, array)


@harmless
def scaled(model, rng):
    tensor = rng.choice([t for t in pick.all_tensors(model) if t.data_type in _FLOATS])
    array = np.asarray(numpy_helper.to_array(tensor))
    with np.errstate(all="ignore"):
        _set(tensor, (array.astype(np.float64) * rng.choice([-1.0, 2.0, 0.5, 1e3, 1e-3, 1e-20])).astype(array.dtype))


@harmless
def shaped(model, rng):
    """The same elements in another shape, or fewer, or more of them."""
    tensor = rng.choice(pick.all_tensors(model))
    array = np.array(numpy_helper.to_array(tensor))
    how = rng.randrange(5)
    if how == 0:
        array = array.reshape((1,) * rng.randint(0, 3) + array.shape)
    elif how == 1:
        array = array.reshape(-1)[:1].reshape(())
    elif how == 2:
        array = array.reshape(*array.shape, 1)
    elif how == 3:
        array = array[..., : rng.randint(0, max(array.shape[-1:] or (1,)))] if array.ndim else array.reshape(1)
    else:
        array = np.stack([array] * rng.randint(1, 3))
    _set(tensor, array)


@harmless
def as_fields(model, rng):
    """The numbers in the typed field instead of the bytes."""
    tensor = rng.choice([t for t in pick.all_tensors(model) if t.data_type in (1, 10, 11, 7, 6)])
    array = numpy_helper.to_array(tensor)
    made = helper.make_tensor(tensor.name, tensor.data_type, array.shape, array.reshape(-1))
    tensor.CopyFrom(made)


def another_type(model, rng):
    rng.choice(pick.all_tensors(model)).data_type = rng.choice([*range(26), 99, -1])


@harmless
def cast(model, rng):
    tensor = rng.choice([t for t in pick.all_tensors(model) if t.data_type in _FLOATS])
    dtype = helper.tensor_dtype_to_np_dtype(rng.choice(_FLOATS))
    with np.errstate(all="ignore"):
        _set(tensor, np.asarray(numpy_helper.to_array(tensor)).astype(dtype))


def dims(model, rng):
    """Sizes that the data do not have."""
    tensor = rng.choice(pick.all_tensors(model))
    if tensor.dims and rng.random() < 0.6:
        tensor.dims[rng.randrange(len(tensor.dims))] = rng.choice(pick.SIZES)
    else:
        tensor.dims[:] = [rng.choice(pick.SIZES) for _ in range(rng.choice([0, 1, 2, 3, 9]))]


def data(model, rng):
    """Too few bytes, too many, none, or in two places."""
    tensor = rng.choice(pick.all_tensors(model))
    how = rng.randrange(4)
    if how == 0:
        tensor.raw_data = tensor.raw_data[: rng.randint(0, len(tensor.raw_data))]
    elif how == 1:
        tensor.raw_data += b"\xff" * rng.choice([1, 3, 64])
    elif how == 2:
        tensor.ClearField("raw_data")
    else:
        rng.choice([tensor.float_data, tensor.int32_data, tensor.int64_data, tensor.double_data]).append(1)


def outside(model, rng):
    """Data in another file."""
    tensor = rng.choice(pick.all_tensors(model))
    tensor.data_location = rng.choice([TensorProto.EXTERNAL, TensorProto.EXTERNAL, TensorProto.EXTERNAL, 0])
    if rng.random() < 0.7:
        tensor.ClearField("raw_data")
    entries = {"location": rng.choice(_LOCATIONS)}
    if rng.random() < 0.6:
        entries["offset"] = rng.choice(["0", "64", "-1", "4096", "9999999999999999999999", "0x10", "", "1e3", "٣"])
    if rng.random() < 0.6:
        entries["length"] = rng.choice(["4", "32", "0", "-4", "9223372036854775807", "nan", " 32 "])
    if rng.random() < 0.1:
        entries["no_such_key"] = "x"
    for key, value in entries.items():
        tensor.external_data.add(key=key, value=value)


def segment(model, rng):
    tensor = rng.choice(pick.all_tensors(model))
    tensor.segment.begin, tensor.segment.end = rng.choice(pick.INTEGERS), rng.choice(pick.INTEGERS)


def name(model, rng):
    tensor = rng.choice(pick.all_tensors(model))
    tensor.name = rng.choice([*pick.names(model), "", "\0", "n" * 3000])


def drop(model, rng):
    graph = pick.graph(model, rng)
    del graph.initializer[rng.randrange(len(graph.initializer))]


def twice(model, rng):
    graph = pick.graph(model, rng)
    graph.initializer.append(rng.choice(graph.initializer))


@harmless
def also_an_input(model, rng):
    """An initializer that the caller may override is no constant."""
    tensor = rng.choice(model.graph.initializer)
    model.graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims)))


@harmless
def an_input_instead(model, rng):
    tensor = model.graph.initializer.pop(rng.randrange(len(model.graph.initializer)))
    model.graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims)))


def sparse(model, rng):
    """A sparse initializer, right or wrong."""
    values = helper.make_tensor(rng.choice([*pick.names(model), "sparse"]), 1, [2], [1.0, 2.0])
    indices = helper.make_tensor("indices", 7, [2], [0, rng.choice([1, 7, 2**40, -1])])
    made = helper.make_sparse_tensor(values, indices, [rng.choice([8, 2, 0, 2**40])])
    if rng.random() < 0.5:
        model.graph.sparse_initializer.append(made)
    else:
        pick.node(model, rng).attribute.append(
            onnx.AttributeProto(name="sparse_value", type=onnx.AttributeProto.SPARSE_TENSOR, sparse_tensor=made)
        )
