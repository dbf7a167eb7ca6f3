"""Sizes that a file declares cost neither memory nor time, whatever operators make vectors of them."""

import json
import subprocess
import sys

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import rmsnorm_deploy
from rmsnorm_deploy.model.load import to_ir
from rmsnorm_deploy.recognise import long_vectors
from rmsnorm_deploy.recognise.engine import facts_of
from tests.support.graphs import chain, same_results
from tests.support.spellings.graph import I64, F, Graph, V

LONG = 40_000_000
SHAPE = ("b", 5, 8)


def norm(g):
    """A norm with a shape to be inferred, so that inference runs."""
    x = g.input("x", F, SHAPE)
    shape = g.op("Concat", g.op("Shape", x, dtype=I64, start=0, end=2), g.constant([1], I64), axis=0)
    mean = g.reduce("ReduceMean", x * x, (-1,), keepdims=0)
    v = g.op("Reshape", mean + 1e-3, shape)
    g.output(x / g.op("Sqrt", v), "y", SHAPE)


def ints(g, *values):
    return g.constant(list(values), I64)


def index(g, value):
    return g.constant(value, I64)


def vector(g, length=LONG):
    return g.input("u", F, (length,))


def reshaped_weight(g):
    g.initializers.append(
        TensorProto(
            name="heavy",
            data_type=F,
            dims=[2**16, 2**16],
            data_location=TensorProto.EXTERNAL,
            external_data=[onnx.StringStringEntryProto(key="location", value="w.bin")],
        )
    )
    return g.op("Reshape", V(g, "heavy", F), ints(g, -1)) * 2.0


def doubled(g, length=4096, dtype=F):
    v = g.input("u", dtype, (length,))
    for _ in range(24):
        v = g.op("Concat", v, v, axis=0)
    return v


def tiled_twice(g):
    v = g.input("u", F, (4096,))
    for _ in range(2):
        v = g.op("Tile", v, ints(g, 64)) * 2.0
    return v


def sliced_long(g):
    return g.op("Slice", vector(g), ints(g, 0), ints(g, 2**63 - 1), ints(g, 0))


def said_to_be_long(g, length, dtype=I64):
    """A constant of a few bytes that says to be long."""
    tensor = TensorProto(data_type=dtype, dims=length, raw_data=b"12345678")
    g.nodes.append(helper.make_node("Constant", [], ["false"], value=tensor))
    return V(g, "false", dtype)


def flattened_by_parts(g):
    shape = g.op("Concat", ints(g, -1), axis=0)
    return g.op("Reshape", g.input("u", F, (2**13, 2**13)), shape) * 2.0


def as_a_shape(g, shape):
    return g.op("Expand", g.input("u2", F, (1,)), shape) * 2.0


def said_of_a_shape(g):
    shape = g.op("Shape", g.input("u", F, (8, 8)), dtype=I64)
    g.value_info.append(helper.make_tensor_value_info(shape.name, F, (2**40,)))
    return as_a_shape(g, shape)


def product_with_itself(g, v, times):
    for _ in range(times):
        v = g.op("Reshape", g.along("Unsqueeze", v, [0]) + g.along("Unsqueeze", v, [1]), ints(g, -1))
    return v


def squeezed_products(g, times):
    """Vectors that a Squeeze leaves, which are no numbers: each time as many elements more as one has."""
    v = g.op("ConstantOfShape", ints(g, 7, 1), dtype=I64)
    for _ in range(times):
        v = g.along("Squeeze", v, [1])
        v = g.op("Reshape", g.along("Unsqueeze", v, [0]) + g.along("Unsqueeze", v, [1]), ints(g, -1))
        v = g.along("Unsqueeze", v, [1])
    return g.along("Squeeze", v, [1])


MAKERS = {
    "a constant": lambda g: said_to_be_long(g, [LONG]) * ints(g, 2),
    "a constant behind others": lambda g: g.op("Neg", g.op("Abs", said_to_be_long(g, [2**40], F))) * 2.0,
    "a slice of a constant": lambda g: g.op(
        "Slice", said_to_be_long(g, [LONG]), ints(g, 0), ints(g, 2**63 - 1), ints(g, 0)
    ),
    "a sum over rows": lambda g: g.reduce("ReduceSum", said_to_be_long(g, [2, 2**40], F), (0,), keepdims=0) * 2.0,
    "squeezed": lambda g: g.along("Squeeze", said_to_be_long(g, [1, 2**20], F), [0]) * 2.0,
    "reshaped by a number": lambda g: g.op("Reshape", g.input("u", F, (8, 8)), said_to_be_long(g, [])) * 2.0,
    "flattened by parts": flattened_by_parts,
    "mul": lambda g: vector(g) * 2.0,
    "add": lambda g: vector(g) + 2.0,
    "sub": lambda g: vector(g) - 2.0,
    "cast": lambda g: g.cast(vector(g), 11),
    "concat": lambda g: g.op("Concat", vector(g), vector(g), axis=0),
    "gather": lambda g: g.op("Gather", vector(g), ints(g, 0)),
    "slice": sliced_long,
    "squeeze": lambda g: g.op("Squeeze", vector(g)),
    "unsqueeze": lambda g: g.along("Unsqueeze", vector(g), [0]),
    "behind others": lambda g: g.op("Relu", g.op("Tanh", vector(g))) * 2.0,
    "the longest": lambda g: vector(g, 2**62) * 2.0,
    "flattened": lambda g: g.op("Reshape", g.input("u", F, (2**13, 2**13)), ints(g, -1)) * 2.0,
    "a flattened weight": reshaped_weight,
    "constant of shape": lambda g: g.op("ConstantOfShape", ints(g, LONG), dtype=F) * 2.0,
    "constant of a computed shape": lambda g: (
        g.op("ConstantOfShape", g.op("Concat", ints(g, LONG), axis=0), dtype=F) * 2.0
    ),
    "constant of a product": lambda g: g.op("ConstantOfShape", ints(g, 2**12) * ints(g, 2**13), dtype=F) * 2.0,
    "constant of a size": lambda g: (
        g.op("ConstantOfShape", g.op("Shape", vector(g), dtype=I64), dtype=F) * g.constant(2.0)
    ),
    "range": lambda g: g.op("Range", index(g, 0), index(g, LONG), index(g, 1)) + index(g, 1),
    "expand": lambda g: g.op("Expand", g.constant([1.0]), ints(g, LONG)) * 2.0,
    "tile": lambda g: g.op("Tile", g.input("u", F, (4096,)), ints(g, 10_000)) * 2.0,
    "tile twice": tiled_twice,
    "pad": lambda g: g.op("Pad", g.constant([1.0]), ints(g, 0, LONG)) * 2.0,
    "doubled": doubled,
    "reshaped": lambda g: g.op("Reshape", g.input("u", F, (8, 8)), ints(g, 2**40)) + 2.0,
}


SHAPES = {
    "a shape": lambda g: as_a_shape(g, g.input("u", I64, (LONG,))),
    "a shape behind others": lambda g: as_a_shape(g, g.op("Neg", g.op("Abs", g.input("u", I64, (LONG,))))),
    "a shape that is squeezed": lambda g: as_a_shape(g, g.along("Squeeze", g.input("u", I64, (1, LONG)), [0])),
    "a false constant as a shape": lambda g: as_a_shape(g, said_to_be_long(g, [LONG])),
    "what is said of a shape": said_of_a_shape,
    "a shape of doubled parts": lambda g: as_a_shape(g, doubled(g, 3, I64)),
    "a shape of rows and columns": lambda g: as_a_shape(g, product_with_itself(g, g.input("u", I64, (7,)), 4)),
    "a shape of squeezed rows and columns": lambda g: as_a_shape(g, squeezed_products(g, 4)),
    "a shape of what is long behind its middle": lambda g: as_a_shape(
        g, g.op("Slice", g.input("u", I64, (LONG,)), ints(g, -1), ints(g, 2**31 - 2))
    ),
    "a reshaped shape": lambda g: as_a_shape(g, g.op("Reshape", g.input("u", I64, (8,)), ints(g, 2**40))),
    "a tiled shape": lambda g: as_a_shape(g, g.op("Tile", g.input("u", I64, (8,)), ints(g, 2**30))),
}
"""Of as many dimensions as a vector is long, which onnx writes down for an Expand of an older opset."""


def model_of(maker):
    g = Graph(opset=11 if maker in SHAPES else 17)
    norm(g)
    if maker is not None:
        value = (MAKERS | SHAPES)[maker](g)
        g.output(value, "z", None)
        if maker == "concat":
            del g.inputs[-1]
    return g.model()


WORK = """
import json, re, sys, time
import onnx, rmsnorm_deploy

def peak_mib():  # not ru_maxrss, which begins with the peak of the process that started this one
    return int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]) / 1024

rmsnorm_deploy.explain(onnx.load(sys.argv[1]))
found = {}
for path in sys.argv[1:]:
    model = onnx.load(path, load_external_data=False)
    start = time.process_time()
    report = rmsnorm_deploy.explain(model)
    found[path] = (len(report.fused), time.process_time() - start, peak_mib())
print(json.dumps(found))
"""


def test_no_declared_size_costs_memory_or_time(tmp_path):
    """In one process: what it took at most is what one of them took."""
    paths = []
    for maker in (None, *MAKERS, *SHAPES):
        path = tmp_path / f"{maker}.onnx"
        path.write_bytes(model_of(maker).SerializeToString())
        paths.append(str(path))
    done = subprocess.run([sys.executable, "-c", WORK, *paths], check=True, capture_output=True, text=True)
    found = json.loads(done.stdout)
    first = found[paths[0]][2]
    for path, (fused, seconds, peak) in found.items():
        assert fused == 1, path
        assert seconds < 2, path
        assert peak < first + 100, path


SIZES = {
    "gathered": lambda g, s, i: g.along("Unsqueeze", g.op("Gather", s, index(g, i)), [0]),
    "sliced from the end": lambda g, s, i: g.op("Slice", s, ints(g, i - 3), ints(g, i - 2 if i < 2 else 2**63 - 1)),
    "sliced and squeezed": lambda g, s, i: g.along(
        "Unsqueeze", g.along("Squeeze", g.op("Slice", s, ints(g, i), ints(g, i + 1), ints(g, 0)), [0]), [0]
    ),
    "cast, sliced and squeezed": lambda g, s, i: g.along(
        "Unsqueeze", g.along("Squeeze", g.op("Slice", g.cast(s, 7), ints(g, i), ints(g, i + 1)), [0]), [0]
    ),
}


@pytest.mark.parametrize("opset", [14, 17])
@pytest.mark.parametrize("how", SIZES)
def test_a_shape_put_together_from_sizes_that_exporters_cut_out_is_followed(how, opset):
    g = Graph(opset=opset)
    x = g.input("x", F, ("b", 7, 32))
    shape = g.op("Shape", x, dtype=I64)
    flat = g.op("Reshape", x, g.op("Concat", ints(g, -1), SIZES[how](g, shape, 2), axis=0))
    whole = g.op("Reshape", flat, g.op("Concat", *(SIZES[how](g, shape, i) for i in range(2)), ints(g, 32), axis=0))
    g.output(whole, "y", None)
    model = to_ir(g.model())
    facts = facts_of(model)
    found = {v.name: v for node in model.graph for v in node.outputs}
    assert (facts.rank(found[flat.name]), facts.rank(model.graph.outputs[0])) == (2, 3)


def is_followed_whole(model):
    return long_vectors.followable(model, onnx.shape_inference.infer_shapes(model)) is model


def test_what_fuses_beside_a_long_vector_is_what_fuses_without():
    for maker in ("mul", "range", "flattened"):
        g = Graph(opset=17)
        norm(g)
        g.output(MAKERS[maker](g), "z", None)
        model = g.model()
        assert not is_followed_whole(model)
        fused, report = rmsnorm_deploy.fuse(model)
        assert [n.spelling for n in report.fused] == [n.spelling for n in rmsnorm_deploy.explain(model_of(None)).fused]
        assert len(fused.graph.node) < len(model.graph.node)


def test_ordinary_models_are_looked_at_once():
    g = Graph(opset=17)
    x = g.input("x", F, ("b", "s", 4096))
    h = chain(g, x, g.weight(np.ones(4096), F))["y"]
    heads = g.op("Reshape", h, ints(g, 0, 0, 32, 128))
    flat = g.op("Reshape", heads, ints(g, 0, 0, 4096))
    positions = g.op("Range", index(g, 0), g.op("Gather", g.op("Shape", x, dtype=I64), index(g, 1)), index(g, 1))
    g.output(flat, "y", ("b", "s", 4096))
    g.output(g.op("Slice", positions, ints(g, 0), ints(g, 2**63 - 1)), "p", None)
    assert is_followed_whole(g.model())


@pytest.mark.parametrize(
    "inside", ["subgraph", "subgraph, of a weight around it", "function", "function with a constant"]
)
def test_long_vectors_in_subgraphs_and_functions(inside, tmp_path):
    g = Graph(opset=17)
    norm(g)
    if inside.endswith("weight around it"):
        g.initializers.append(TensorProto(name="u", data_type=I64, dims=[LONG], raw_data=b"12"))
    else:
        vector(g)
    nodes = [helper.make_node("Mul", ["u", "u"], ["t"]), helper.make_node("Add", ["t", "t"], ["z_inner"])]
    model = g.model()
    if inside == "function with a constant":
        nodes[0] = said_to_be_long(Graph(opset=17), [LONG], F).graph.nodes[0]
        nodes[0].output[0] = "t"
    if inside.startswith("subgraph"):
        output = helper.make_tensor_value_info("z_inner", I64 if "weight" in inside else F, None)
        body = helper.make_graph(nodes, "body", [], [output])
        model.graph.input.append(helper.make_tensor_value_info("c", TensorProto.BOOL, ()))
        model.graph.node.append(helper.make_node("If", ["c"], ["z"], then_branch=body, else_branch=body))
    else:
        imports = [helper.make_opsetid("", 17)]
        model.functions.append(helper.make_function("this", "twice", ["u"], ["z_inner"], nodes, imports))
        model.opset_import.append(helper.make_opsetid("this", 1))
        model.graph.node.append(helper.make_node("twice", ["u"], ["z"], domain="this"))
    model.graph.output.append(helper.make_tensor_value_info("z", I64 if "weight" in inside else F, None))
    path = tmp_path / "m.onnx"
    path.write_bytes(model.SerializeToString())
    done = subprocess.run([sys.executable, "-c", WORK, path], check=True, capture_output=True, text=True)
    ((fused, seconds, peak),) = json.loads(done.stdout).values()
    assert fused == 1
    assert seconds < 2
    assert peak < 600


def test_the_shortened_model_only_serves_inference():
    g = Graph(opset=17)
    norm(g)
    u = g.input("u", F, (5000,))
    g.output(u * 2.0, "z", (5000,))
    model = g.model()
    fused, _ = rmsnorm_deploy.fuse(model)
    feeds = {"x": np.ones((2, 5, 8), np.float32), "u": np.ones(5000, np.float32)}
    same_results(model, fused, feeds)
