"""Nodes: what they are, what they read, what they give, and their attributes."""

import math

import onnx
from onnx import AttributeProto, TensorProto, helper

from tests.fuzz.mutations import pick
from tests.fuzz.mutations.pick import harmless

_UNARY = ("Abs", "Neg", "Sqrt", "Reciprocal", "Identity", "Exp", "Relu", "Sigmoid", "Tanh", "Dropout", "Log", "Erf")
_BINARY = ("Add", "Sub", "Mul", "Div", "Pow", "Max", "Min", "Mean", "Sum", "PRelu")
_REDUCE = ("ReduceMean", "ReduceSum", "ReduceL2", "ReduceSumSquare", "ReduceL1", "ReduceMax", "ReduceLogSumExp")
_OTHER = (
    *("Cast", "CastLike", "Clip", "Where", "Reshape", "Unsqueeze", "Squeeze", "Expand", "Shape", "Size", "Transpose"),
    *("Slice", "Split", "Gather", "Concat", "Einsum", "LpNormalization", "LayerNormalization", "MatMul", "Constant"),
    *("RMSNormalization", "SimplifiedLayerNormalization", "SkipSimplifiedLayerNormalization", "ConstantOfShape"),
    *("RMSNorm", "AddRMSNorm", "GeneralRMSNorm", "If", "Loop", "Scan", "SequenceAt", "Optional", "", "NoSuchOp"),
)
_DOMAINS = ("", "ai.onnx", "com.microsoft", "rmsnorm_deploy", "ai.onnx.ml", "pkg.test", "local")
_ATTRIBUTES = (
    *("axis", "axes", "keepdims", "epsilon", "to", "p", "stash_type", "scale_type", "output_type", "partial_size"),
    *("noop_with_empty_axes", "equation", "value", "value_float", "perm", "version", "allowzero", "num_outputs"),
    *("rms_floor", "epsilon_outside", "min", "max", "saturate"),
)


def drop(model, rng):
    del (nodes := pick.holder(model, rng).node)[rng.randrange(len(nodes))]


def copy(model, rng):
    nodes = pick.holder(model, rng).node
    nodes.insert(rng.randrange(len(nodes) + 1), rng.choice(nodes))


@harmless
def copy_with_new_outputs(model, rng):
    """The same values twice: a fuser may take either."""
    nodes = pick.holder(model, rng).node
    at = rng.randrange(len(nodes))
    twin = onnx.NodeProto()
    twin.CopyFrom(nodes[at])
    renamed = {n: pick.new_name(model, rng, "twin") for n in twin.output if n}
    twin.output[:] = [renamed.get(n, n) for n in twin.output]
    twin.name = pick.new_name(model, rng, "node")
    nodes.insert(at + 1, twin)
    for node in nodes[at + 2 :]:
        node.input[:] = [renamed[n] if n in renamed and rng.random() < 0.5 else n for n in node.input]


def move(model, rng):
    nodes = pick.holder(model, rng).node
    taken = nodes.pop(rng.randrange(len(nodes)))
    nodes.insert(rng.randrange(len(nodes) + 1), taken)


@harmless
def another_operator_of_its_kind(model, rng):
    node = pick.node(model, rng)
    kind = next((k for k in (_UNARY, _BINARY, _REDUCE) if node.op_type in k), None)
    if kind:
        node.op_type = rng.choice(kind)


def another_operator(model, rng):
    pick.node(model, rng).op_type = rng.choice(_UNARY + _BINARY + _REDUCE + _OTHER)


def another_domain(model, rng):
    pick.node(model, rng).domain = rng.choice(_DOMAINS)


@harmless
def swap_inputs(model, rng):
    node = pick.node(model, rng)
    i, j = rng.sample(range(len(node.input)), 2)
    node.input[i], node.input[j] = node.input[j], node.input[i]


@harmless
def read_something_before(model, rng):
    """A node reads another value, which is there already."""
    graph = pick.graph(model, rng)
    at = rng.randrange(len(graph.node))
    known = [v.name for v in (*graph.input, *graph.initializer)]
    known += [n for node in graph.node[:at] for n in node.output if n]
    node = graph.node[at]
    node.input[rng.randrange(len(node.input))] = rng.choice(known)


def read_anything(model, rng):
    node = pick.node(model, rng)
    node.input[rng.randrange(len(node.input))] = rng.choice([*pick.names(model), "", "nowhere"])


def more_or_fewer_inputs(model, rng):
    node = pick.node(model, rng)
    if rng.random() < 0.5:
        del node.input[rng.randrange(len(node.input))]
    else:
        node.input.extend([rng.choice([*pick.names(model), ""])] * rng.choice([1, 1, 2, 20]))


def more_or_fewer_outputs(model, rng):
    node = pick.node(model, rng)
    if rng.random() < 0.5:
        del node.output[rng.randrange(len(node.output))]
    else:
        node.output.append(rng.choice([*pick.names(model), "", pick.new_name(model, rng, "more")]))


def another_output_name(model, rng):
    node = pick.node(model, rng)
    node.output[rng.randrange(len(node.output))] = rng.choice([*pick.names(model), "", "é\0", "n" * 3000])


@harmless
def no_node_names(model, rng):
    for node in pick.holder(model, rng).node:
        node.name = rng.choice(["", "", "same", node.name])


def node_names(model, rng):
    pick.node(model, rng).name = rng.choice(["", "x" * 5000, "a\0b", "../../x", "\u202e", "rmsnorm_deploy", "x"])


@harmless
def between(model, rng):
    """A value goes through one more node."""
    graph = pick.graph(model, rng)
    at = rng.randrange(len(graph.node))
    node = graph.node[at]
    i = rng.randrange(len(node.input))
    name, new = node.input[i], pick.new_name(model, rng, "between")
    if not name:
        return
    kind = rng.choice(["Identity", "Dropout", "Cast", "Mul", "Add", "Neg", "Abs", "Sqrt", "Transpose", "Reciprocal"])
    attributes = {"to": rng.choice([1, 10, 11, 16])} if kind == "Cast" else {}
    inputs = [name]
    if kind in ("Mul", "Add"):
        constant = pick.new_name(model, rng, "constant")
        value = rng.choice([0.0, 1.0, -1.0, 2.0, 1e-6, 0.5])
        graph.initializer.append(helper.make_tensor(constant, rng.choice([1, 1, 1, 10, 11]), [], [value]))
        inputs.append(constant)
    graph.node.insert(at, helper.make_node(kind, inputs, [new], **attributes))
    graph.node[at + 1].input[i] = new


@harmless
def constant_by_a_node(model, rng):
    graph = pick.graph(model, rng)
    tensor = graph.initializer.pop(rng.randrange(len(graph.initializer)))
    graph.node.insert(0, helper.make_node("Constant", [], [tensor.name], value=tensor))


@harmless
def integers(model, rng):
    node = pick.node(model, rng)
    attribute = rng.choice([a for a in node.attribute if a.type in (AttributeProto.INT, AttributeProto.INTS)])
    if attribute.type == AttributeProto.INT:
        attribute.i = rng.choice([*pick.INTEGERS[:12], attribute.i + 1, attribute.i - 1])
    elif attribute.ints and rng.random() < 0.6:
        attribute.ints[rng.randrange(len(attribute.ints))] = rng.choice(pick.INTEGERS[:12])
    else:
        attribute.ints[:] = [rng.choice(pick.INTEGERS[:12]) for _ in range(rng.choice([0, 1, 2, 3]))]


def hostile_integers(model, rng):
    node = pick.node(model, rng)
    attribute = rng.choice([a for a in node.attribute if a.type in (AttributeProto.INT, AttributeProto.INTS)])
    if attribute.type == AttributeProto.INT:
        attribute.i = rng.choice(pick.INTEGERS)
    else:
        attribute.ints[:] = [rng.choice(pick.INTEGERS) for _ in range(rng.choice([0, 1, 2, 3, 20]))]


@harmless
def floats(model, rng):
    node = pick.node(model, rng)
    rng.choice([a for a in node.attribute if a.type == AttributeProto.FLOAT]).f = rng.choice(pick.FLOATS)


def drop_attribute(model, rng):
    node = pick.node(model, rng)
    del node.attribute[rng.randrange(len(node.attribute))]


def new_attribute(model, rng):
    node = pick.node(model, rng)
    value = rng.choice(
        [rng.choice(pick.INTEGERS), rng.choice(pick.FLOATS), "text", "\0", [1, 2], [rng.choice(pick.INTEGERS)]]
    )
    node.attribute.append(helper.make_attribute(rng.choice(_ATTRIBUTES), value))


def attribute_of_another_type(model, rng):
    """Its type says one thing, its content another; or it refers to an attribute of a function."""
    attribute = rng.choice(pick.node(model, rng).attribute)
    how = rng.randrange(5)
    if how == 0:
        attribute.type = rng.randrange(15)
    elif how == 1:
        attribute.name = rng.choice((*_ATTRIBUTES, ""))
    elif how == 2:
        attribute.ref_attr_name = rng.choice(_ATTRIBUTES)
    elif how == 3:
        attribute.CopyFrom(helper.make_attribute(attribute.name, rng.choice([b"\xff\xfe", 1.5, [1.5], ["a"], 7])))
    else:
        attribute.t.CopyFrom(helper.make_tensor("t", TensorProto.FLOAT, [2], [math.nan, 1.0]))
        attribute.type = AttributeProto.TENSOR
