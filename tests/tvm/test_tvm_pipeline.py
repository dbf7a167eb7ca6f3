"""What the passes leave to do at run time: no memory from a pool, no tensor object twice."""

import numpy as np
import pytest
from onnx import TensorProto, helper

pytest.importorskip("tvm.relax", reason="apache-tvm is not installed: pip install 'rmsnorm-deploy[tvm]'")

import tvm

from rmsnorm_deploy.op import NormParameters, Op
from rmsnorm_deploy.tvm import import_onnx, pipeline, targets
from rmsnorm_deploy.tvm.norm import DTYPES, Norm
from rmsnorm_deploy.tvm.schedules import family

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
        y = y / np.sqrt((y**2).mean(-1, keepdims=True) + 1e-6 * (i + 1)) * np.linspace(0.5, 2, 24).astype(np.float32)
    return y


@pytest.mark.parametrize("shape", [(5, 24), ("rows", 24), (2, 3, 24), ("batch", "seq", 24)])
def test_a_chain_has_one_tensor_object_for_each_place_in_memory(shape):
    target = targets.resolve("llvm")
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
    norm = Norm(NormParameters(op, dtype, stash_type=stash, scale_type=stash), DTYPES[dtype], size, columns)
    target = targets.resolve("llvm")
    schedules = family(target)
    for schedule in schedules.candidates(norm, target):
        module = tvm.IRModule({"norm": schedules.kernel(norm, schedule).with_attr("global_symbol", "norm")})
        text = tvm.compile(module, target=target).mod.inspect_source("ll")
        assert "TVMBackendParallelLaunch" in text
        assert "TVMBackendAllocWorkspace" not in text
