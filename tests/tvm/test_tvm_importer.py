"""From ONNX to Relax: what becomes a norm, what is refused and how, and that TVM is left as it was."""

import dataclasses
import sys
import threading
import types

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

pytest.importorskip("tvm.relax", reason="apache-tvm is not installed: pip install '.[tvm]'")

import tvm
from tvm.relax.frontend.onnx import onnx_frontend

from rmsnorm_deploy.errors import MissingEnvironment, ModelError, UsageError
from rmsnorm_deploy.op import ALL_FEATURES, DOMAIN, NormParameters, Op, function_body
from rmsnorm_deploy.op.reference import evaluate, rms_norm
from rmsnorm_deploy.tvm import import_onnx
from rmsnorm_deploy.tvm.importer import table
from rmsnorm_deploy.tvm.passes import pipeline
from rmsnorm_deploy.tvm.schedules.norm import MARKER
from rmsnorm_deploy.tvm.targets.resolve import resolve
from tests.support.contract import F16, F32, F64, Call, agrees, values
from tests.support.judge import units

OPSETS = [helper.make_opsetid("", 18), helper.make_opsetid(DOMAIN, 1), helper.make_opsetid("com.microsoft", 1)]


def model(nodes, inputs, outputs, opset=18, functions=(), initializers=()):
    """Inputs and outputs are (name, type, shape)."""
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(*i) for i in inputs],
        [helper.make_tensor_value_info(*o) for o in outputs],
        list(initializers),
    )
    opsets = [helper.make_opsetid("", opset), *OPSETS[1:], *(helper.make_opsetid(f.domain, 1) for f in functions)]
    opsets = list({o.domain: o for o in opsets}.values())
    return helper.make_model(graph, opset_imports=opsets, functions=list(functions), ir_version=10)


def run(module, feeds, dump=None):
    """Through our passes, in this process."""
    target = resolve("llvm")
    built = tvm.relax.build(pipeline.run(module, target, dump), target=target, relax_pipeline=None)
    machine = tvm.relax.VirtualMachine(built, tvm.cpu())
    result = machine["main"](*(tvm.runtime.tensor(np.asarray(f, order="C")) for f in feeds))
    return [r.numpy() for r in result] if isinstance(result, tvm.ir.Array) else [result.numpy()]


def calls(module):
    """The norms of an imported module, as (operator, type of X)."""
    found = []

    def visit(expression):
        if isinstance(expression, tvm.relax.Call) and expression.op == tvm.ir.Op.get("relax.call_pure_packed"):
            assert expression.args[0].global_symbol == MARKER
            found.append(str(expression.args[1].ty.dtype.dtype))

    tvm.relax.analysis.post_order_visit(module["main"], visit)
    return found


def ours(op, index, parameters):
    inputs = [f"{name}{index}" for name in op.inputs]
    outputs = [f"{name}{index}" for name in op.outputs]
    return helper.make_node(op.value, inputs, outputs, f"norm{index}", domain=DOMAIN, **parameters.to_attributes())


LAYOUTS = [
    ((5, 96), (-1,), (96,)),
    ((2, 3, 4, 10), (-2, -1), (4, 10)),
    ((2, 3, 4, 10), (-2, -1), (10,)),
    ((3, 7), (0,), (3, 1)),
    ((2, 5, 3, 7), (1,), (5, 1, 1)),
    ((2, 3, 4, 35), (1, 2), (3, 4, 1)),
    ((2, 3, 37), (2,), ()),
    ((2, 3, 37), (2,), (2, 1, 1)),
    ((2, 21, 5, 20), (-3,), (20,)),
]


@pytest.mark.parametrize("op", [op for op in Op if not op.quantises])
def test_our_operators_in_every_layout_and_type(op):
    rng = np.random.default_rng(3)
    nodes, inputs, outputs, tests = [], [], [], []
    kinds = [(F32, F32, F32, F32), (F16, F16, F32, F16), (F16, F32, F32, F32), (F64, F64, F64, F64)]
    for index, (shape, axes, scale_shape) in enumerate(LAYOUTS):
        x_type, scale_type, stash_type, round_type = kinds[index % len(kinds)]
        extra = {}
        if op is Op.GENERAL_RMS_NORM:
            extra = {"epsilon_outside": 0.125, "rms_floor": 0.5, "partial_size": 2 if len(axes) == 1 else None}
        parameters = NormParameters(op, x_type, axes, 1e-3, stash_type, round_type, **extra)
        call = Call(
            values(rng, shape, x_type),
            values(rng, scale_shape, scale_type),
            x_type,
            scale_type,
            round_type,
            stash_type,
            axes,
            1e-3,
        )
        feeds = {"X": call.x, "scale": call.scale}
        if "residual" in op.inputs:
            feeds["residual"] = call.residual = values(rng, shape, x_type)
        if op is Op.GENERAL_RMS_NORM:
            feeds["bias"] = call.bias = values(rng, scale_shape, scale_type)
            call.epsilon_outside, call.rms_floor = 0.125, 0.5
            call.partial_size = parameters.partial_size or ALL_FEATURES
        if op is Op.GATED_RMS_NORM:
            parameters = dataclasses.replace(parameters, activation=index % 2, gate_at=index % 3)
            feeds["gate"] = values(rng, shape, x_type)
        nodes.append(ours(op, index, parameters))
        types = {"scale": scale_type, "bias": scale_type}
        inputs += [(f"{n}{index}", types.get(n, x_type), feeds[n].shape) for n in op.inputs]
        outputs += [(f"{n}{index}", x_type, shape) for n in op.outputs]
        tests.append((call, [feeds[n] for n in op.inputs], parameters))
    proto = model(nodes, inputs, outputs, functions=[function_body(op, 18)])
    results = run(import_onnx(proto), [f for _, feeds, _ in tests for f in feeds])
    for index, (call, feeds, parameters) in enumerate(tests):
        each = results[index * len(op.outputs) : (index + 1) * len(op.outputs)]
        if op is Op.GATED_RMS_NORM:
            wanted = evaluate(parameters, *feeds, exact=True)[0]
            # the gate is rounded to the arithmetic's type, and the product with it
            assert units(each[0], wanted, parameters.axes) <= (64 if call.x_type == F64 else 8)
            continue
        agrees(call, each[0], each[1] if len(each) > 1 else None)


def test_equal_norms_share_one_kernel_for_any_number_of_rows(tmp_path):
    rng = np.random.default_rng(5)
    p = NormParameters(Op.RMS_NORM, F32, epsilon=1e-6)
    nodes = [ours(Op.RMS_NORM, i, p) for i in range(3)]
    inputs = [(f"{n}{i}", F32, (i + 1, "n", 24) if n == "X" else (24,)) for i in range(3) for n in ("X", "scale")]
    proto = model(nodes, inputs, [(f"Y{i}", F32, None) for i in range(3)], functions=[function_body(Op.RMS_NORM, 18)])
    module = import_onnx(proto)
    assert len(calls(module)) == 3
    feeds = [values(rng, (i + 1, 5, 24) if n == "X" else (24,), F32) for i in range(3) for n in ("X", "scale")]
    for i, y in enumerate(run(module, feeds, tmp_path)):
        agrees(Call(feeds[2 * i], feeds[2 * i + 1]), y, None)
    names = [name for name, _ in pipeline.passes(resolve("llvm"))]
    assert [p.name for p in sorted(tmp_path.iterdir())] == [
        "00_imported.py",
        *(f"{i:02}_{name}.py" for i, name in enumerate(names, 1)),
    ]
    assert (tmp_path / "01_lower_norms.py").read_text().count("def rms_norm_") == 1


def test_a_decomposed_norm_is_fused_first_and_keeps_its_type():
    nodes = [
        helper.make_node("Cast", ["x"], ["wide"], to=F32),
        helper.make_node("Constant", [], ["two"], value_float=2.0),
        helper.make_node("Pow", ["wide", "two"], ["square"]),
        helper.make_node("Constant", [], ["axes"], value_ints=[-1]),
        helper.make_node("ReduceMean", ["square", "axes"], ["mean"]),
        helper.make_node("Constant", [], ["epsilon"], value_float=1e-6),
        helper.make_node("Add", ["mean", "epsilon"], ["biased"]),
        helper.make_node("Sqrt", ["biased"], ["rms"]),
        helper.make_node("Div", ["wide", "rms"], ["n"]),
        helper.make_node("Cast", ["n"], ["narrow"], to=F16),
        helper.make_node("Mul", ["narrow", "w"], ["y"]),
    ]
    proto = model(nodes, [("x", F16, (3, 40)), ("w", F16, (40,))], [("y", F16, (3, 40))])
    before = proto.SerializeToString()
    for form in (proto, ir.from_proto(proto)):
        assert calls(import_onnx(form)) == ["float16"]
    assert proto.SerializeToString() == before


@pytest.mark.parametrize("kinds", [(F32, F32), (F16, F16), (F32, F16), (F16, F32), (F64, F64)])
@pytest.mark.parametrize(
    ("name", "domain", "opset"),
    [
        ("RMSNormalization", "", 23),
        ("SimplifiedLayerNormalization", "", 18),
        ("SimplifiedLayerNormalization", "com.microsoft", 18),
    ],
)
def test_fused_norms_of_others(name, domain, opset, kinds):
    rng = np.random.default_rng(7)
    node = helper.make_node(name, ["x", "w"], ["y"], domain=domain, axis=1, epsilon=1e-3)
    proto = model([node], [("x", kinds[0], (3, 4, 10)), ("w", kinds[1], (4, 10))], [("y", kinds[1], (3, 4, 10))], opset)
    x, w = values(rng, (3, 4, 10), kinds[0]), values(rng, (4, 10), kinds[1])
    module = import_onnx(proto)
    assert len(calls(module)) == 1
    (y,) = run(module, [x, w])
    truth, _ = rms_norm(x, w, axes=(1, 2), epsilon=1e-3, exact=True)
    assert y.dtype == w.dtype
    np.testing.assert_allclose(y.astype(np.float64), truth, rtol=0, atol=6e-3 if F16 in kinds else 2e-6)


@pytest.mark.parametrize("bias", [False, True])
def test_skip_norms_of_onnxruntime(bias):
    rng = np.random.default_rng(9)
    names = ["x", "r", "w", *(["b"] if bias else [])]
    node = helper.make_node(
        "SkipSimplifiedLayerNormalization", names, ["y", "", "", "s"], domain="com.microsoft", epsilon=1e-3
    )
    shapes = {"x": (2, 3, 40), "r": (2, 3, 40), "w": (40,), "b": (40,)}
    feeds = [values(rng, shapes[n], F32) for n in names]
    outputs = [("y", F32, (2, 3, 40)), ("s", F32, (2, 3, 40))]
    module = import_onnx(model([node], [(n, F32, shapes[n]) for n in names], outputs))
    assert len(calls(module)) == 1
    y, s = run(module, feeds)
    np.testing.assert_allclose(s, feeds[0] + feeds[1] + (feeds[3] if bias else 0), rtol=1e-6, atol=1e-6)
    agrees(Call(s, feeds[2], epsilon=1e-3), y, None)


def test_every_operator_that_tvm_lacks_is_named_with_its_node():
    nodes = [
        helper.make_node("Det", ["x"], ["a"], "first"),
        helper.make_node("RMSNorm", ["x", "x"], ["b"], "second", domain="somebody.else"),
        helper.make_node("Add", ["x", "x"], ["c"], "third", domain="somebody.else"),
        helper.make_node("Relu", ["x"], ["d"], "fine"),
        helper.make_node("Hardmax2", ["x"], ["e"], domain="somebody.else"),
    ]
    proto = model(nodes, [("x", F32, (4, 4))], [("d", F32, (4, 4))])
    proto.opset_import.append(helper.make_opsetid("somebody.else", 1))
    with pytest.raises(ModelError) as raised:
        import_onnx(proto)
    text = raised.value.message
    assert "4 nodes" in text
    for part in (
        "Det 'first'",
        "somebody.else::RMSNorm 'second'",
        "somebody.else::Add 'third'",
        "somebody.else::Hardmax2 'e'",
    ):
        assert part in text
    assert "fine" not in text


def test_a_statistic_that_somebody_reads_is_refused():
    node = helper.make_node("SimplifiedLayerNormalization", ["x", "w"], ["y", "inv"], "norm")
    proto = model([node], [("x", F32, (3, 4)), ("w", F32, (4,))], [("y", F32, (3, 4)), ("inv", F32, (3, 1))])
    with pytest.raises(ModelError, match="'inv', a statistic"):
        import_onnx(proto)


def test_local_functions_are_inlined_and_their_constants_readable():
    constants = [
        helper.make_node("Constant", [], ["a"]),
        helper.make_node("Constant", [], ["i"], value_ints=[1]),
        helper.make_node("ReduceSum", ["x", "i"], ["total"]),
        helper.make_node("Mul", ["total", "a"], ["y"]),
    ]
    constants[0].attribute.append(
        onnx.AttributeProto(name="value_float", ref_attr_name="by", type=onnx.AttributeProto.FLOAT)
    )
    # the name is one that TVM knows, with another meaning
    function = helper.make_function("mine", "Relu", ["x"], ["y"], constants, OPSETS[:1], attributes=["by"])
    node = helper.make_node("Relu", ["x"], ["y"], domain="mine", by=3.0)
    proto = model([node], [("x", F32, (2, 4))], [("y", F32, (2, 1))], functions=[function])
    x = np.arange(-4, 4, dtype=np.float32).reshape(2, 4)
    np.testing.assert_array_equal(run(import_onnx(proto), [x])[0], x.sum(1, keepdims=True) * 3)


def test_weights_beside_the_file_are_found(tmp_path):
    weight = helper.make_tensor("w", F32, [600], np.arange(600, dtype=np.float32).tobytes(), raw=True)
    proto = model(
        [helper.make_node("Mul", ["x", "w"], ["y"])], [("x", F32, (600,))], [("y", F32, (600,))], initializers=[weight]
    )
    onnx.save(proto, tmp_path / "m.onnx", save_as_external_data=True, location="m.bin", size_threshold=0)
    x = np.ones(600, np.float32)
    np.testing.assert_array_equal(run(import_onnx(tmp_path / "m.onnx"), [x])[0], np.arange(600, dtype=np.float32))
    with pytest.raises(UsageError, match="unknown folder"):
        import_onnx(onnx.load(tmp_path / "m.onnx", load_external_data=False))


def test_tvm_is_left_as_it_was_also_after_a_failure_and_from_several_threads():
    original, names = onnx_frontend._get_convert_map, table.names()
    warned = helper.make_node("Squeeze", ["x", "missing"], ["y"])
    bad = model([warned], [("x", F32, (4, 4))], [("y", F32, (4, 4))])
    good = model([helper.make_node("Relu", ["x"], ["y"])], [("x", F32, (4, 4))], [("y", F32, (4, 4))])
    stdout, failures = sys.stdout, []

    def work(proto):
        try:
            for _ in range(5):
                import_onnx(proto)
        except ModelError:
            failures.append(proto)

    threads = [threading.Thread(target=work, args=(p,)) for p in (good, bad, good, bad)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert [f is bad for f in failures] == [True, True]
    assert onnx_frontend._get_convert_map is original
    assert table.names() == names
    assert sys.stdout is stdout
    assert not any(n.startswith("RmsNormDeploy") for n in names)


def test_a_tvm_that_keeps_its_table_elsewhere_is_refused(monkeypatch):
    monkeypatch.setattr(table, "onnx_frontend", types.SimpleNamespace())
    with pytest.raises(MissingEnvironment, match="somewhere else"):
        table.names()


@pytest.mark.parametrize("kind", [TensorProto.INT64, TensorProto.FLOAT])
def test_constants_of_numbers_become_tensors(kind):
    name, value = ("value_int", 7) if kind == TensorProto.INT64 else ("value_floats", [7.0])
    nodes = [helper.make_node("Constant", [], ["c"], **{name: value}), helper.make_node("Add", ["x", "c"], ["y"])]
    x = np.ones(2, np.int64 if kind == TensorProto.INT64 else np.float32)
    proto = model(nodes, [("x", kind, (2,))], [("y", kind, (2,))])
    np.testing.assert_array_equal(run(import_onnx(proto), [x])[0], x + x.dtype.type(7))


def test_a_converter_that_fails_is_named_and_nothing_is_printed(capsys):
    node = helper.make_node("Reshape", ["x", "shape"], ["y"])
    proto = model([node], [("x", F32, (4,)), ("shape", TensorProto.INT64, (2,))], [("y", F32, (2, 2))])
    with pytest.raises(ModelError, match="cannot import 1 node: Reshape 'y'"):
        import_onnx(proto)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("value", [None, 3])
def test_a_scalar_made_by_constant_of_shape(value):
    fill = helper.make_node("ConstantOfShape", ["none"], ["c"])
    if value is not None:
        fill.attribute.append(helper.make_attribute("value", helper.make_tensor("v", F32, [1], [float(value)])))
    none = helper.make_node("Constant", [], ["none"], value=helper.make_tensor("n", TensorProto.INT64, [0], []))
    add = helper.make_node("Add", ["x", "c"], ["y"])
    proto = model([none, fill, add], [("x", F32, (2, 2))], [("y", F32, (2, 2))])
    x = np.ones((2, 2), np.float32)
    np.testing.assert_array_equal(run(import_onnx(proto), [x])[0], x + (value or 0))
