"""Models whose sizes are known when they run only: shape arithmetic, broadcasting, odd inputs and outputs."""

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

pytest.importorskip("tvm.relax", reason="apache-tvm is not installed: pip install '.[tvm]'")

import tvm
from tvm import relax

from rmsnorm_deploy.errors import ModelError
from rmsnorm_deploy.tvm import import_onnx
from rmsnorm_deploy.tvm.importer.convert import POSITIVE
from rmsnorm_deploy.tvm.passes import pipeline
from rmsnorm_deploy.tvm.targets.resolve import resolve

F32, F16, F64, I64, BOOL = (
    TensorProto.FLOAT,
    TensorProto.FLOAT16,
    TensorProto.DOUBLE,
    TensorProto.INT64,
    TensorProto.BOOL,
)
node = helper.make_node


def model(nodes, inputs, outputs, constants=None, opset=18, types=None):
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "g",
        [info(name, kind, shape) for name, (kind, shape) in inputs.items()],
        [info(name, (types or {}).get(name, F32), None) for name in outputs],
        [numpy_helper.from_array(np.asarray(v), k) for k, v in (constants or {}).items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


class Compiled:
    def __init__(self, proto):
        self.module = import_onnx(proto)
        target = resolve("llvm")
        lowered = pipeline.run(self.module, target)
        self.kernels = [variable.name_hint for variable in lowered.get_global_vars()]
        built = relax.build(lowered, target=target, relax_pipeline=None)
        self.main = relax.VirtualMachine(built, tvm.cpu())["main"]

    def __call__(self, feeds):
        results = self.main(*(tvm.runtime.tensor(np.asarray(v)) for v in feeds.values()))
        return [r.numpy() for r in (results if not isinstance(results, tvm.runtime.Tensor) else [results])]


def agrees(proto, *feeds, tolerance=1e-6):
    """What TVM computes against ONNX's reference, for every set of inputs."""
    compiled, reference = Compiled(proto), ReferenceEvaluator(proto)
    for given in feeds:
        for got, wanted in zip(compiled(given), reference.run(None, given), strict=True):
            assert got.dtype == wanted.dtype
            assert got.shape == wanted.shape
            np.testing.assert_allclose(got.astype(float), wanted.astype(float), rtol=0, atol=tolerance)
    return compiled


def random(*shape, dtype=np.float32):
    return np.random.default_rng(sum(shape) + 7).standard_normal(shape).astype(dtype)


def mask_of_an_export():
    """The causal mask as today's exporter writes it in the graph: Shape, Squeeze, Range, Add, Reshape, GatherND."""
    nodes = [
        node("Shape", ["ids"], ["batch_"], start=0, end=1),
        node("Squeeze", ["batch_"], ["batch"]),
        node("Shape", ["ids"], ["length_"], start=1, end=2),
        node("Squeeze", ["length_"], ["length"]),
        node("Range", ["zero", "length", "one"], ["positions"]),
        node("Unsqueeze", ["positions", "v0"], ["row"]),
        node("Concat", ["batch_", "minus"], ["to"], axis=0),
        node("Expand", ["row", "v1"], ["same"]),
        node("Slice", ["same", "v0", "v1", "v1", "v1"], ["first"]),
        node("Sub", ["first", "one"], ["before"]),
        node("Concat", ["before", "same"], ["longer"], axis=-1),
        node("Add", ["one", "length"], ["next"]),
        node("Reshape", ["next", "minus"], ["next_"]),
        node("Slice", ["longer", "v0", "length_", "minus", "v1"], ["left"]),
        node("Slice", ["longer", "v1", "next_", "minus", "v1"], ["right"]),
        node("Sub", ["right", "left"], ["steps"]),
        node("Equal", ["steps", "one"], ["even"]),
        node("Not", ["even"], ["packed"]),
        node("Cast", ["packed"], ["packed_"], to=I64),
        node("CumSum", ["packed_", "minus_"], ["document"]),
        node("Range", ["zero", "batch", "one"], ["batches"]),
        node("Unsqueeze", ["batches", "v123"], ["b4"]),
        node("Unsqueeze", ["positions", "v013"], ["q4"]),
        node("Unsqueeze", ["positions", "v012"], ["k4"]),
        node("LessOrEqual", ["k4", "q4"], ["causal"]),
        node("Max", ["b4", "k4"], ["both"]),
        node("Shape", ["both"], ["both_"], start=0),
        node("Expand", ["b4", "both_"], ["b"]),
        node("Expand", ["k4", "both_"], ["k"]),
        node("Unsqueeze", ["b", "minus"], ["b5"]),
        node("Unsqueeze", ["k", "minus"], ["k5"]),
        node("Concat", ["b5", "k5"], ["places"], axis=-1),
        node("GatherND", ["ids", "places"], ["picked"]),
        node("Greater", ["picked", "zero"], ["kept"]),
        node("And", ["causal", "kept"], ["mask"]),
        node("Concat", ["batch_", "v1", "length_", "length_"], ["full"], axis=0),
        node("Expand", ["mask", "full"], ["y"]),
        node("Mul", ["length", "batch"], ["area"]),
        node("ConstantOfShape", ["length_"], ["zeros"]),
    ]
    constants = {"zero": 0, "one": 1, "minus": [-1], "minus_": -1, "v0": [0], "v1": [1]}
    constants |= {"v123": [1, 2, 3], "v013": [0, 1, 3], "v012": [0, 1, 2]}
    kinds = {"y": BOOL, "area": I64, "document": I64}
    return model(nodes, {"ids": (I64, ("batch", "length"))}, ["y", "area", "document", "zeros"], constants, types=kinds)


def test_the_mask_that_an_export_makes_from_its_input_sizes():
    shapes = [(1, 2), (2, 7), (4, 33), (3, 16), (1, 64)]
    compiled = agrees(mask_of_an_export(), *({"ids": np.arange(b * n).reshape(b, n) % 5} for b, n in shapes))
    # a first element is taken of each row, so that a row needs one; a batch does not
    assert list(compiled.module.attrs[POSITIVE]) == ["length"]


def test_arithmetic_on_sizes():
    nodes = [
        node("Shape", ["x"], ["s"]),
        node("Gather", ["s", "i1"], ["n"]),
        node("Gather", ["s", "i2"], ["four"]),
        node("Div", ["n", "two"], ["half"]),
        node("Mod", ["n", "two"], ["odd"]),
        node("Sub", ["half", "n"], ["negative"]),
        node("Abs", ["negative"], ["positive"]),
        node("Min", ["n", "three"], ["least"]),
        node("Max", ["n", "three"], ["most"]),
        node("Equal", ["n", "three"], ["is_three"]),
        node("Where", ["is_three", "two", "n"], ["chosen"]),
        node("Greater", ["n", "two"], ["large"]),
        node("Cast", ["large"], ["large_"], to=I64),
        node("ReduceProd", ["s"], ["area"], keepdims=0),
        node("Unsqueeze", ["half", "v0"], ["half_"]),
        node("Unsqueeze", ["most", "v0"], ["most_"]),
        node("Concat", ["half_", "s", "most_"], ["joined"], axis=0),
        node("Slice", ["joined", "v1", "far"], ["rest"]),
        node("Split", ["joined", "sizes"], ["part", "other"]),
        node("Cast", ["n"], ["float"], to=F32),
        node("Sqrt", ["float"], ["root"]),
        node("Cast", ["four"], ["four_"], to=F32),
        node("Sqrt", ["four_"], ["two_"]),
        node("Cast", ["two_"], ["last"], to=I64),
        node("Unsqueeze", ["last", "v0"], ["last_"]),
        node("Concat", ["zeros", "minus", "last_"], ["shape"], axis=0),
        node("Reshape", ["x", "shape"], ["y"]),
        node("Size", ["x"], ["size"]),
    ]
    outputs = ["half", "odd", "negative", "positive", "least", "most", "chosen", "large_", "area", "joined", "rest"]
    outputs += ["part", "other", "size", "root", "y"]
    constants = {"i1": 1, "i2": -1, "two": 2, "three": 3, "v0": [0], "v1": [1], "far": [2**63 - 1], "sizes": [1, 4]}
    constants |= {"zeros": [0], "minus": [-1]}
    proto = model(
        nodes,
        {"x": (F32, ("b", "n", 4))},
        outputs,
        constants,
        types={o: I64 for o in outputs[:-2]},
    )
    agrees(proto, *({"x": random(b, n, 4)} for b, n in ((2, 3), (1, 8), (5, 1), (3, 2))))


def test_slices_of_sizes_that_vary():
    cases = {
        "last": ([-1], [2**63 - 1], 1),
        "clipped": ([2], [5], 1),
        "before": ([0], [-1], 1),
        "far": ([-(2**63)], [2**63 - 1], 1),
        "second": ([1], [2**63 - 1], 2),
        "reversed": ([-1], [-(2**63)], -1),
        "empty": ([4], [2], 1),
    }
    nodes, constants = [], {"axis": [1]}
    for name, (start, end, step) in cases.items():
        constants |= {f"{name}_s": start, f"{name}_e": end, f"{name}_t": [step]}
        nodes.append(node("Slice", ["x", f"{name}_s", f"{name}_e", "axis", f"{name}_t"], [name]))
    proto = model(nodes, {"x": (F32, ("b", "n", 3))}, list(cases), constants)
    agrees(proto, *({"x": random(2, n, 3)} for n in (1, 2, 3, 9)))


def test_shapes_made_of_sizes():
    nodes = [
        node("Shape", ["x"], ["n_"], start=0, end=1),
        node("Squeeze", ["n_"], ["n"]),
        node("Concat", ["n_", "v2"], ["twice"], axis=0),
        node("Tile", ["w", "twice"], ["tiled"]),
        node("Split", ["x"], ["part", "other"], axis=0, num_outputs=2),
        node("Trilu", ["square", "n"], ["upper"], upper=1),
        node("Trilu", ["square"], ["lower"], upper=0),
        node("Range", ["n", "ten", "three"], ["range"]),
        node("Range", ["n", "zero", "back"], ["down"]),
        node("Reshape", ["x", "pairs"], ["paired"]),
        node("Reshape", ["x", "kept"], ["split"]),
        node("Cast", ["n"], ["f"], to=F32),
        node("Mul", ["x", "f"], ["scaled"]),
        node("Gather", ["x", "picks"], ["picked"], axis=0),
    ]
    constants = {"v2": [2], "w": random(1, 3), "ten": 10, "zero": 0, "three": 3, "back": -2, "pairs": [-1, 2]}
    constants |= {"kept": [0, 2, -1], "picks": [-1, 0]}
    outputs = ["tiled", "part", "other", "upper", "lower", "range", "down", "paired", "split", "scaled", "picked"]
    proto = model(
        nodes,
        {"x": (F32, ("n", 4)), "square": (F32, ("m", "m"))},
        outputs,
        constants,
        types={"range": I64, "down": I64},
    )
    agrees(proto, *({"x": random(n, 4), "square": random(m, m)} for n, m in ((2, 3), (5, 5), (4, 1))))


def test_sizes_of_different_names_broadcast_if_they_are_one_or_equal():
    nodes = [
        node("Add", ["a", "b"], ["sum"]),
        node("Max", ["a", "b"], ["most"]),
        node("Where", ["c", "a", "b"], ["chosen"]),
        node("Shape", ["b"], ["shape"]),
        node("Expand", ["a", "shape"], ["expanded"]),
        node("MatMul", ["a", "d"], ["product"]),
        node("Concat", ["a", "b2"], ["joined"], axis=1),
    ]
    inputs = {"a": (F32, ("n", "m", 4)), "b": (F32, ("k", "l", 4)), "c": (BOOL, ("p", 1, 1)), "d": (F32, ("q", "r", 2))}
    inputs["b2"] = (F32, ("s", "t", "u"))
    proto = model(nodes, inputs, ["sum", "most", "chosen", "expanded", "product", "joined"])

    def feeds(n, m, k, l, p, q):  # noqa: E741
        a, b = random(n, m, 4), random(k, l, 4)
        return {
            "a": a,
            "b": b,
            "c": np.arange(p).reshape(p, 1, 1) % 2 == 0,
            "d": random(q, 4, 2),
            "b2": random(n, 5, 4),
        }

    compiled = agrees(proto, feeds(2, 3, 2, 3, 2, 2), feeds(2, 1, 1, 3, 1, 1), feeds(1, 3, 4, 1, 4, 1), tolerance=1e-5)
    with pytest.raises(RuntimeError, match="mismatch"):
        compiled(feeds(2, 3, 3, 3, 2, 2))


@pytest.mark.parametrize(
    ("flat", "indexed", "interleaved", "width"),
    [(False, False, 0, 0), (True, True, 0, 0), (False, True, 1, 0), (True, False, 1, 4), (False, True, 0, 4)],
)
def test_rotary_embedding(flat, indexed, interleaved, width):
    half = (width or 8) // 2
    x = ("b", "n", 24) if flat else ("b", 3, "n", 8)
    tables = (20, half) if indexed else ("b", "n", half)
    inputs = {"x": (F32, x), "cos": (F32, tables), "sin": (F32, tables)}
    if indexed:
        inputs["at"] = (I64, ("b", "n"))
    attributes = {"interleaved": interleaved, "rotary_embedding_dim": width} | ({"num_heads": 3} if flat else {})
    proto = model([node("RotaryEmbedding", list(inputs), ["y"], **attributes)], inputs, ["y"], opset=23)

    def feeds(b, n):
        table = (20, half) if indexed else (b, n, half)
        given = {"x": random(b, n, 24) if flat else random(b, 3, n, 8), "cos": random(*table), "sin": random(*table)}
        return given | ({"at": np.arange(b * n).reshape(b, n) % 20} if indexed else {})

    agrees(proto, feeds(2, 5), feeds(1, 1))


ATTENTION = {
    "plain": ({}, [], 1),
    "groups": ({"scale": 0.3}, [], 3),
    "causal": ({"is_causal": 1}, [], 3),
    "bool mask": ({"softcap": 2.0}, ["mask"], 1),
    "past": ({"is_causal": 1}, ["past"], 3),
    "past and mask": ({}, ["mask", "past"], 3),
    "scores": ({"qk_matmul_output_mode": 2}, ["bias", "past"], 1),
}


@pytest.mark.parametrize(
    ("name", "flat"),
    [(n, False) for n in ("groups", "causal", "bool mask", "past and mask", "scores")]
    + [(n, True) for n in ("plain", "past")],
)
def test_attention(name, flat):
    attributes, extra, shared = ATTENTION[name]
    groups, size = 2, 8
    heads = groups * shared
    past = 4 if "past" in extra else 0

    def shape(number, length):
        return ("b", length, number * size) if flat else ("b", number, length, size)

    inputs = {"q": (F32, shape(heads, "n")), "k": (F32, shape(groups, "m")), "v": (F32, shape(groups, "m"))}
    names = ["q", "k", "v", "", "", ""]
    if "mask" in extra or "bias" in extra:
        names[3] = "mask"
        inputs["mask"] = (BOOL if "mask" in extra else F32, ("b", 1, "n", "t"))
    if past:
        names[4:] = ["pk", "pv"]
        inputs |= {p: (F32, ("b", groups, "p", size)) for p in ("pk", "pv")}
    outputs = ["y", "present_key", "present_value", "scores"] if past else ["y"]
    given = attributes | ({"q_num_heads": heads, "kv_num_heads": groups} if flat else {})
    proto = model([node("Attention", names, outputs, **given)], inputs, outputs, opset=23)

    def feeds(b, n):
        def values(number, length):
            return random(b, length, number * size) if flat else random(b, number, length, size)

        result = {"q": values(heads, n), "k": values(groups, n), "v": values(groups, n)}
        if names[3]:
            mask = random(b, 1, n, n + past)
            mask = mask > -0.3 if "mask" in extra else mask
            if "mask" in extra:
                mask[0, 0, 0] = False  # nothing to attend to: zeros, not NaN
            result["mask"] = mask
        if past:
            result |= {p: random(b, groups, past, size) for p in ("pk", "pv")}
        return result

    compiled = agrees(proto, feeds(2, 5), feeds(1, 2), tolerance=1e-5)
    # such a kernel divides by sizes that TVM cannot compare: LLVM's code of it takes minutes
    assert flat or not past or not [kernel for kernel in compiled.kernels if "reshape" in kernel]


def test_sixteen_bits_are_for_storing():
    rng = np.random.default_rng(3)
    a, b = (rng.standard_normal(s).astype(np.float16) for s in ((8, 2048), (2048, 8)))
    nodes = [
        node("MatMul", ["a", "b"], ["product"]),
        node("Gemm", ["a", "b", "c"], ["gemm"], alpha=0.5, beta=2.0),
        node("Softmax", ["a"], ["softmax"]),
        node("ReduceSum", ["a"], ["sum"], keepdims=0),
    ]
    outputs = ["product", "gemm", "softmax", "sum"]
    proto = model(
        nodes,
        {"a": (F16, ("n", 2048)), "b": (F16, (2048, 8)), "c": (F16, (8,))},
        outputs,
        types={o: F16 for o in outputs},
    )
    c = np.arange(8, dtype=np.float16)
    x, y = a.astype(float), b.astype(float)
    e = np.exp(x - x.max(1, keepdims=True))
    truth = [x @ y, 0.5 * (x @ y) + 2 * c.astype(float), e / e.sum(1, keepdims=True), x.sum()]
    for got, wanted in zip(Compiled(proto)({"a": a, "b": b, "c": c}), truth, strict=True):
        # one rounding and what float32 sums lose: half an ULP of the result, and a little
        ulp = np.maximum(np.spacing(np.abs(wanted).astype(np.float16)).astype(float), 2.0**-24)
        assert (np.abs(got.astype(float) - wanted) <= 0.55 * ulp + 1e-5).all()


def test_outputs_and_inputs_of_every_kind():
    w = random(40, 40)
    nodes = [
        node("Relu", ["a.b/c:0"], ["y.1"]),
        node("Identity", ["w"], ["v"]),
        node("Not", ["flag"], ["no"]),
        node("Mul", ["a.b/c:0", "k"], ["scaled"]),
        node("Shape", ["a.b/c:0"], ["s"]),
        node("Identity", ["n"], ["same"]),
    ]
    inputs = {
        "a.b/c:0": (F32, ("batch-size", None)),
        "flag": (BOOL, ("batch_size",)),
        "k": (F32, ()),
        "n": (I64, ("+",)),
    }
    inputs["unused"] = (F32, ("u",))
    outputs = ["y.1", "v", "w", "no", "scaled", "s", "a.b/c:0", "same"]
    proto = model(nodes, inputs, outputs, {"w": w}, types={"no": BOOL, "s": I64, "same": I64})

    def feeds(n):
        return {
            "a.b/c:0": random(n, 5),
            "flag": np.arange(3) > 1,
            "k": np.float32(3),
            "n": np.arange(4),
            "unused": w[0],
        }

    agrees(proto, feeds(3), feeds(0))


def test_conditions_on_sizes():
    info = helper.make_tensor_value_info
    branches = {
        key: helper.make_graph([node(op, ["a"], [key])], key, [], [info(key, F32, None)])
        for key, op in (("then_branch", "Relu"), ("else_branch", "Neg"))
    }
    nodes = [node("Size", ["a"], ["s"]), node("Equal", ["s", "one"], ["c"]), node("If", ["c"], ["y"], **branches)]
    agrees(model(nodes, {"a": (F32, ("n",))}, ["y"], {"one": 1}), {"a": random(3)}, {"a": np.array([-2], np.float32)})


def test_what_only_running_can_tell():
    nodes = [
        node("NonZero", ["a"], ["i"]),
        node("Transpose", ["i"], ["j"]),
        node("GatherND", ["a", "j"], ["g"]),
        node("Add", ["g", "g"], ["y"]),
    ]
    agrees(
        model(nodes, {"a": (F32, ("n",))}, ["y"]),
        *({"a": np.array(a, np.float32)} for a in ([0, 1, -2, 0], [3], [1, 2, 3])),
    )


def test_an_index_beyond_the_end_reads_nothing_else():
    proto = model([node("Gather", ["x", "i"], ["y"])], {"x": (F32, (4, 3)), "i": (I64, ("n",))}, ["y"])
    x = random(4, 3)
    (y,) = Compiled(proto)({"x": x, "i": np.array([2**40, -(2**40), -1])})
    np.testing.assert_array_equal(y, x[[3, 0, 3]])


@pytest.mark.parametrize(("op", "opset"), [("Swish", 24), ("Celu", 18)])
def test_operators_that_onnx_defines_by_others(op, opset):
    agrees(model([node(op, ["x"], ["y"])], {"x": (F32, ("n",))}, ["y"], opset=opset), {"x": random(9)})


def test_expressions_in_the_names_of_dimensions():
    nodes = [node("Concat", ["past", "x"], ["all"], axis=1), node("Add", ["all", "mask"], ["y"])]
    inputs = {"past": (F32, ("b", "p")), "x": (F32, ("b", "n")), "mask": (F32, ("b", "p + n"))}
    compiled = agrees(model(nodes, inputs, ["y"]), {"past": random(2, 3), "x": random(2, 4), "mask": random(2, 7)})
    assert not any("broadcast" in v.name_hint for v in compiled.module.get_global_vars())


def test_operators_in_functions_and_branches_are_named_in_one_list():
    info = helper.make_tensor_value_info
    branch = helper.make_graph([node("Det", ["x"], ["t"], "inner")], "t", [], [info("t", F32, None)])
    other = helper.make_graph([node("ReduceSum", ["x"], ["e"])], "e", [], [info("e", F32, None)])
    function = helper.make_function(
        "mine",
        "F",
        ["x"],
        ["y"],
        [node("Hardmax2", ["x"], ["y"], domain="far")],
        [helper.make_opsetid("", 18), helper.make_opsetid("far", 1)],
    )
    proto = model(
        [
            node("If", ["c"], ["a"], then_branch=branch, else_branch=other),
            node("F", ["x"], ["b"], domain="mine"),
        ],
        {"x": (F32, (3, 3)), "c": (BOOL, ())},
        ["a", "b"],
    )
    proto.functions.append(function)
    proto.opset_import.extend([helper.make_opsetid("mine", 1), helper.make_opsetid("far", 1)])
    with pytest.raises(ModelError, match=r"2 nodes: Det 'inner'; far::Hardmax2"):
        import_onnx(proto)


def test_a_sum_of_sizes_needs_only_one_that_is_not_0():
    """A cache of nothing before the first token: what joins both is not empty as long as there are tokens."""
    nodes = [
        node("Concat", ["x", "past"], ["all"], axis=0),
        node("Slice", ["all", "v0", "v1", "v0"], ["first"]),
        node("Shape", ["all"], ["s"]),
        node("Expand", ["w", "s"], ["wide"]),
    ]
    proto = model(
        nodes,
        {"x": (F32, ("n", 3)), "past": (F32, ("p", 3))},
        ["first", "wide"],
        {"v0": [0], "v1": [1], "w": random(1, 3)},
    )
    compiled = agrees(proto, *({"x": random(n, 3), "past": random(p, 3)} for n, p in ((2, 3), (1, 0), (4, 0))))
    assert list(compiled.module.attrs[POSITIVE]) == ["n"]
