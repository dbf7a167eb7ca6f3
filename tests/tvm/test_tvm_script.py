"""The quick way from TVMScript to a kernel: the same function that TVM's parser makes, and what it leaves to that."""

import pytest

pytest.importorskip("tvm.relax", reason="apache-tvm is not installed: pip install '.[tvm]'")

import tvm_ffi
from onnx import TensorProto
from tvm.script import from_source
from tvm.script import ir as I
from tvm.script import tirx as T

from rmsnorm_deploy.op import NormParameters, Op
from rmsnorm_deploy.tvm.schedules import script
from rmsnorm_deploy.tvm.schedules.norm import Norm
from rmsnorm_deploy.tvm.schedules.products import cblas
from rmsnorm_deploy.tvm.schedules.products.product import Operand, Product
from rmsnorm_deploy.tvm.schedules.reductions.softmax import Softmax
from rmsnorm_deploy.tvm.schedules.registry import schedules_for
from rmsnorm_deploy.tvm.targets.resolve import resolve


def parsed(source):
    return from_source(source, {"T": T, "I": I})


def product():
    a, b, c = (Operand(shape, (), (0,), (1,)) for shape in (("s0", 8), (8, 600), ("s0", 600)))
    return cblas.Kernel(Product("float32", (), a, b, c), "x_").source()


def norm(target="llvm", size=24, **more):
    parameters = NormParameters(Op.RMS_NORM, TensorProto.FLOAT, epsilon=1e-6, scale_type=TensorProto.FLOAT)
    wanted = Norm(parameters, "float32", size, **more)
    schedules = schedules_for(resolve(target))
    return schedules.source(wanted, schedules.default(wanted))


SOURCES = {
    "norm of columns": lambda: norm(columns=True),
    "norm of a GPU": lambda: norm("cuda", 896),
    "norm of long rows": lambda: norm("opencl", 100_000),
    "norm of a size known at run time": lambda: norm("webgpu", None),
    "norm of columns of a GPU": lambda: norm("metal", columns=True),
    "softmax": lambda: Softmax((2, "s0", "s1"), 2, False, "float32", "float16", 0.5, True, (1, "s1")).source(8),
    "columns": lambda: Softmax((2, "s0", "s1"), 1, True, "float16", "float32").source(16),
    "product": product,
}


@pytest.mark.parametrize("name", SOURCES)
def test_the_function_is_the_one_that_tvm_parses(name, monkeypatch):
    source = SOURCES[name]()
    monkeypatch.setattr(script, "from_source", None)  # it is not asked
    assert tvm_ffi.structural_equal(script.kernel_of(source), parsed(source))


PLAIN = """
@T.prim_func(s_tir=True)
def f(pA: T.handle):
    A = T.match_buffer(pA, (8,), "float32")
    for i in range(8):
        {line}
"""
OTHERS = {
    "a name for two things": "for i in range(2):\n            A[i] = T.float32(1)",
    "a list": "A[i] = [T.float32(k) for k in range(2)][0]",
    "a variable": "x = A[i]\n        A[i] = x",
    "while": "while A[i] < T.float32(1):\n            A[i] = A[i] + T.float32(1)",
}


@pytest.mark.parametrize("line", OTHERS)
def test_everything_else_is_parsed_by_tvm(line, monkeypatch):
    asked = []
    monkeypatch.setattr(script, "from_source", lambda source, names: asked.append(parsed(source)) or asked[-1])
    source = PLAIN.format(line=OTHERS[line])
    assert script.kernel_of(source) is asked[0]
