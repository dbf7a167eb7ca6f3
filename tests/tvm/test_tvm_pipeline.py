"""What the passes leave to do at run time: no memory from a pool, no tensor object twice."""

import dataclasses
import re

import numpy as np
import pytest
from onnx import TensorProto, helper

pytest.importorskip("tvm.relax", reason="apache-tvm is not installed: pip install '.[tvm]'")

import tvm

from rmsnorm_deploy.op import NormParameters, Op
from rmsnorm_deploy.op.dtypes import float_type
from rmsnorm_deploy.op.reference import evaluate, rms_norm
from rmsnorm_deploy.tvm import import_onnx
from rmsnorm_deploy.tvm.passes import pipeline
from rmsnorm_deploy.tvm.schedules.norm import Norm
from rmsnorm_deploy.tvm.schedules.registry import schedules_for
from rmsnorm_deploy.tvm.targets.resolve import resolve

F32, F16, BF16, F64 = TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE


def chain(length, shape=("rows", 24)):
    nodes = [
        helper.make_node("RMSNormalization", [f"x{i}", "w"], [f"x{i + 1}"], epsilon=1e-6 * (i + 1))
        for i in range(length)
    ]
    info = helper.make_tensor_value_info
    weight = helper.make_tensor("w", F32, [24], np.linspace(0.5, 2, 24))
    graph = helper.make_graph(nodes, "g", [info("x0", F32, shape)], [info(f"x{length}", F32, shape)], [weight])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=11)


def truth(x, length):
    y = x.astype(float)
    for i in range(length):
        y, _ = rms_norm(y, np.linspace(0.5, 2, 24).astype(np.float32), epsilon=1e-6 * (i + 1), exact=True)
    return y


@pytest.mark.parametrize("shape", [(5, 24), ("rows", 24), (2, 3, 24), ("batch", "seq", 24)])
def test_a_chain_has_one_tensor_object_for_each_place_in_memory(shape):
    target = resolve("llvm")
    module = pipeline.run(import_onnx(chain(9, shape)), target)
    assert module["main"].script(show_meta=False).count("vm.alloc_tensor") <= 3
    built = tvm.relax.build(module, target=target, relax_pipeline=None, exec_mode="compiled")
    main = tvm.relax.VirtualMachine(built, tvm.cpu())["main"]
    for sizes in ((5, 24), (2, 24)) if shape == ("rows", 24) else ((2, 3, 24),) if len(shape) == 3 else ((5, 24),):
        x = np.random.default_rng(3).standard_normal(sizes).astype(np.float32)
        first = main(tvm.runtime.tensor(x))
        second = main(tvm.runtime.tensor(2 * x))  # results of two runs are not one memory
        np.testing.assert_allclose(first.numpy(), truth(x, 9), rtol=0, atol=1e-5)
        np.testing.assert_allclose(second.numpy(), truth(2 * x, 9), rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("op", "dtype", "stash", "size"),
    [
        (Op.RMS_NORM, F32, F32, 24),
        (Op.ADD_RMS_NORM, F16, F32, 9000),
        (Op.GENERAL_RMS_NORM, BF16, F32, 130),
        (Op.RMS_NORM, F64, F64, 9000),
    ],
)
@pytest.mark.parametrize("columns", [False, True])
def test_scratch_is_on_the_stack(op, dtype, stash, size, columns):
    norm = Norm(NormParameters(op, dtype, stash_type=stash, scale_type=stash), float_type(dtype).name, size, columns)
    target = resolve("llvm")
    schedules = schedules_for(target)
    # a sum that goes past the caches is held in scratch of any length
    schedule = dataclasses.replace(schedules.default(norm), stream_from=0)
    module = tvm.IRModule({"norm": schedules.kernel(norm, schedule).with_attr("global_symbol", "norm")})
    text = tvm.compile(module, target=target).mod.inspect_source("ll")
    assert "TVMBackendParallelLaunch" in text
    assert "TVMBackendAllocWorkspace" not in text


@pytest.mark.parametrize(
    ("op", "shape", "axis", "scale_shape"),
    [
        (Op.RMS_NORM, (2, 3, 4, 24), -1, (24,)),
        (Op.ADD_RMS_NORM, (2, 3, 24), -1, (24,)),
        (Op.RMS_NORM, (2, 6, 3, 5), 1, (6, 1, 1)),
        (Op.GENERAL_RMS_NORM, (2, 6, 3, 5), 1, (6, 1, 1)),
        (Op.RMS_NORM, (2, 3, 24), -1, (2, 1, 24)),
    ],
)
@pytest.mark.parametrize("known", [True, False])
def test_tensors_of_any_rank_are_taken_as_they_are(op, shape, axis, scale_shape, known):
    parameters = NormParameters(op, F32, (axis,), epsilon=1e-3, stash_type=F32, scale_type=F32)
    given = {"X": shape, "residual": shape, "scale": scale_shape, "bias": scale_shape}
    inputs = [name for name in given if name in op.inputs]
    info = helper.make_tensor_value_info
    dims = list(shape) if known else [s if i == axis % len(shape) else f"d{i}" for i, s in enumerate(shape)]
    node = helper.make_node(
        op.value, inputs, list(op.outputs), domain="rmsnorm_deploy", **dict(parameters.to_attributes())
    )
    graph = helper.make_graph(
        [node],
        "g",
        [info(n, F32, dims if given[n] == shape else list(given[n])) for n in inputs],
        [info(n, F32, dims) for n in op.outputs],
    )
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("rmsnorm_deploy", 1)]
    target = resolve("llvm")
    module = pipeline.run(import_onnx(helper.make_model(graph, opset_imports=opsets, ir_version=9)), target)
    reshaped = re.findall(r'reshape"?[(,] ?(\w+)', module["main"].script(show_meta=False))
    assert not set(reshaped) - {"scale", "bias"}, reshaped
    built = tvm.relax.build(module, target=target, relax_pipeline=None, exec_mode="compiled")
    rng = np.random.default_rng(5)
    values = {n: rng.standard_normal(given[n]).astype(np.float32) for n in inputs}
    got = tvm.relax.VirtualMachine(built, tvm.cpu())["main"](*(tvm.runtime.tensor(values[n]) for n in inputs))
    wanted, *total = evaluate(parameters, *values.values(), exact=True)
    if total:
        np.testing.assert_array_equal(got[1].numpy(), total[0])
        got = got[0]
    np.testing.assert_allclose(got.numpy(), wanted, rtol=0, atol=1e-5)


@pytest.mark.parametrize(("rows", "ways"), [(5, 1), (5000, 2), (70000, 3), (None, 3)])
def test_a_kernel_has_only_the_ways_that_the_model_can_take(rows, ways):
    norm = Norm(NormParameters(Op.RMS_NORM, F32, epsilon=1e-6, scale_type=F32), "float32", 64)
    target = resolve("llvm")
    schedules = schedules_for(target)
    schedule = schedules.trimmed(norm, schedules.default(norm), None if rows is None else rows * 64)
    kernel = schedules.kernel(norm, schedule).with_attr("global_symbol", "norm")
    text = kernel.script()
    assert text.count('T.sblock("task")') == ways
    assert ("T.parallel" in text) is (ways > 1)
    assert ("pragma_import_llvm" in text) is (ways > 2)
    built = tvm.compile(tvm.IRModule({"norm": kernel}), target)
    x = np.random.default_rng(1).standard_normal((70001, 64)).astype(np.float32)  # and it is right for more
    y = tvm.runtime.tensor(np.zeros_like(x))
    built["norm"](tvm.runtime.tensor(x), tvm.runtime.tensor(np.ones(64, np.float32)), y)
    wanted, _ = rms_norm(x, np.ones(64), epsilon=1e-6, exact=True)
    np.testing.assert_allclose(y.numpy(), wanted, rtol=0, atol=1e-5)


@pytest.mark.parametrize(("shape", "parallel"), [((5, 24), False), ((9000, 24), True), (("rows", 24), True)])
def test_the_sizes_of_a_model_decide_on_the_ways_of_its_kernels(shape, parallel):
    module = pipeline.run(import_onnx(chain(2, shape)), resolve("llvm"))
    kernels = [f.script() for v, f in module.functions_items() if "rms_norm" in v.name_hint]
    assert ["T.parallel" in text for text in kernels] == [parallel] * 2
