"""Products as kernels that call cuBLAS: how factors may lie, the kernels, and what they compute."""

import dataclasses

import ml_dtypes
import numpy as np
import pytest
import tvm
import tvm_ffi
from onnx import TensorProto, helper

from rmsnorm_deploy.tvm.artefact import carried, linking
from rmsnorm_deploy.tvm.importer.convert import import_prepared
from rmsnorm_deploy.tvm.importer.prepare import prepared
from rmsnorm_deploy.tvm.passes.by_cublas import functions_of, lower_products_by_cublas
from rmsnorm_deploy.tvm.passes.views import is_call
from rmsnorm_deploy.tvm.targets.cublas import Cublas
from rmsnorm_deploy.tvm.targets.resolve import resolve, triple_of
from tests.support.tvm.cublas import CUDA, DEVICE, OnGpu

STREAM = 0x5EED
FLOATS = {
    "float32": (TensorProto.FLOAT, np.float32, 2e-6),
    "float64": (TensorProto.DOUBLE, np.float64, 1e-14),
    "float16": (TensorProto.FLOAT16, np.float16, 1e-3),
    "bfloat16": (TensorProto.BFLOAT16, ml_dtypes.bfloat16, 8e-3),
}
PLAIN = [("MatMul", ("x", "v"), "y", {})]


def behind(which, perm):
    """A product with a transposition in front of one factor."""
    read = ("t", "v") if which == "x" else ("x", "t")
    return [("Transpose", (which,), "t", {"perm": perm}), ("MatMul", read, "y", {})]


def grouped(times, queries_turned=False):
    """Heads of ``v`` that ``times`` heads of ``x`` share: each repeated, as exporters write it."""
    nodes = [
        ("Unsqueeze", ("v", "two"), "u", {}),
        ("Expand", ("u", "wide"), "w", {}),
        ("Reshape", ("w", "flat"), "r", {}),
    ]
    if queries_turned:
        nodes.append(("Transpose", ("x",), "q", {"perm": [0, 2, 1, 3]}))
    return [*nodes, ("MatMul", ("q" if queries_turned else "x", "r"), "y", {})]


def shapes_of_heads(batch, heads, times, length, size):
    """The constants of :func:`grouped`."""
    return {
        "two": np.array([2], np.int64),
        "wide": np.array([batch, heads, times, length, size], np.int64),
        "flat": np.array([batch, heads * times, length, size], np.int64),
    }


@dataclasses.dataclass(frozen=True)
class Case:
    """A product: nodes, sizes of the factors, sizes that vary, constants, and how many calls it is to be."""

    nodes: list
    x: tuple
    v: tuple
    calls: int = 1
    batch: int = 1
    varying: tuple = ()
    constants: dict = dataclasses.field(default_factory=dict)


CASES = {
    "matrix": Case(PLAIN, (7, 33), (33, 19)),
    "row": Case(PLAIN, (1, 65), (65, 70)),
    "column": Case(PLAIN, (37, 65), (65, 1)),
    "number": Case(PLAIN, (1, 9), (9, 1)),
    "front": Case(PLAIN, (33,), (33, 19)),
    "term": Case(PLAIN, (5, 1), (1, 6)),
    "rows": Case(PLAIN, (2, 5, 33), (33, 19)),
    "batches": Case(PLAIN, (3, 2, 5, 7), (3, 2, 7, 4), batch=6),
    "ones": Case(PLAIN, (3, 1, 5, 7), (1, 2, 7, 4), calls=2, batch=3),
    "longer": Case(PLAIN, (2, 5, 7), (4, 2, 7, 3), calls=2, batch=4),
    "x": Case(behind("x", [0, 2, 1]), (2, 7, 5), (2, 7, 4), batch=2),
    "v": Case(behind("v", [0, 2, 1]), (2, 5, 7), (2, 4, 7), batch=2),
    "weight": Case(behind("v", [1, 0]), (2, 5, 7), (4, 7)),
    "x_one": Case(behind("x", [0, 2, 1]), (2, 7, 5), (7, 4), batch=2),
    "queries": Case(behind("x", [0, 2, 1, 3]), (2, 5, 3, 8), (2, 3, 8, 6), calls=2, batch=3),
    "keys": Case(behind("v", [0, 2, 3, 1]), (2, 3, 5, 8), (2, 6, 3, 8), calls=2, batch=3),
    "grouped": Case(grouped(3), (2, 6, 5, 8), (2, 2, 8, 4), batch=4, constants=shapes_of_heads(2, 2, 3, 8, 4)),
    "grouped_turned": Case(
        grouped(3, True), (2, 5, 6, 8), (2, 2, 8, 4), calls=4, batch=3, constants=shapes_of_heads(2, 2, 3, 8, 4)
    ),
    "grouped_token": Case(
        grouped(3, True), (2, 1, 6, 8), (2, 2, 8, 4), batch=4, constants=shapes_of_heads(2, 2, 3, 8, 4)
    ),
    "any_rows": Case(PLAIN, (2, 5, 33), (33, 19), varying=("x0", "x1")),
    "no_rows": Case(PLAIN, (2, 0, 33), (33, 19), calls=0, varying=("x1",)),
    "any_batch": Case(PLAIN, (3, 2, 5, 7), (3, 2, 7, 4), batch=6, varying=("x0", "v0", "x2", "v3")),
    "any_keys": Case(behind("v", [0, 2, 3, 1]), (2, 3, 5, 8), (2, 6, 3, 8), calls=2, batch=3, varying=("v1", "x2")),
}


def model_of(case, dtype):
    number = FLOATS[dtype][0]
    info = helper.make_tensor_value_info

    def sizes(name, shape):
        shared = {"v0": "x0"} if case.x[0] == case.v[0] else {}
        names = [f"{name}{i}" for i in range(len(shape))]
        return [shared.get(n, n) if n in case.varying else s for n, s in zip(names, shape, strict=True)]

    graph = helper.make_graph(
        [helper.make_node(op, list(read), [out], **attributes) for op, read, out, attributes in case.nodes],
        "g",
        [info("x", number, sizes("x", case.x)), info("v", number, sizes("v", case.v))],
        [info("y", number, None)],
        [helper.make_tensor(n, TensorProto.INT64, a.shape, a) for n, a in case.constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


def kernel_for(case, dtype):
    """The one product of a model as a kernel, which reads the model's inputs where they lie."""
    module = lower_products_by_cublas(import_prepared(prepared(model_of(case, dtype))))
    kernels = [f for f in module.functions.values() if isinstance(f, tvm.tirx.PrimFunc)]
    assert len(kernels) == 1, (case, module.script())
    main = module["main"]
    values = [b.value for block in main.body.blocks for b in block.bindings]
    calls = [v for v in values if is_call(v, "call_tir")]
    assert [a.name for a in calls[0].args[1].fields] == ["x", "v"]
    return kernels[0]


def built(kernels):
    """``{name: kernel}`` built for a GPU, and the functions that they call."""
    module = tvm.IRModule({name: f.with_attr("global_symbol", name) for name, f in kernels.items()})
    return tvm.tirx.build(module, target=resolve("cuda")), functions_of(module)


def linked(made, functions, folder, fake, changed=lambda source: source, names=None):
    """Kernels as a loaded library, with the stand-ins."""
    with pytest.MonkeyPatch.context() as patch:
        real = carried.linked

        def with_fake(*arguments):
            found = real(*arguments)
            return dataclasses.replace(found, source=changed(fake.instead(found.source)))

        patch.setattr(carried, "linked", with_fake)
        blas = Cublas(names or (str(fake.path),))
        linking.export(made, folder / "kernels.so", triple_of(resolve("cuda")), blas, functions)
    return tvm.runtime.load_module(str(folder / "kernels.so"))


def exact(case, x, v):
    """NumPy's, in float64."""
    known = {"x": np.asarray(x, np.float64), "v": np.asarray(v, np.float64), **case.constants}
    for op, read, out, attributes in case.nodes:
        values = [known[name] for name in read]
        if op == "Unsqueeze":
            known[out] = np.expand_dims(values[0], int(values[1][0]))
        elif op == "Expand":
            known[out] = np.broadcast_to(values[0], values[1])
        elif op == "Reshape":
            known[out] = values[0].reshape(values[1])
        elif op == "Transpose":
            known[out] = values[0].transpose(attributes["perm"])
        else:
            known[out] = values[0] @ values[1]
    return known["y"]


def run(kernel, case, dtype, stream=STREAM):
    """The operands, the result, and the exact one."""
    generator = np.random.default_rng(1)
    x, v = (generator.standard_normal(shape).astype(FLOATS[dtype][1]) for shape in (case.x, case.v))
    want = exact(case, x, v)
    operands = [OnGpu(array, dtype) for array in (x, v, np.zeros(want.shape, FLOATS[dtype][1]))]
    with tvm_ffi.use_raw_stream(tvm_ffi.device(CUDA, DEVICE), stream):
        kernel(*(tvm_ffi.from_dlpack(o) for o in operands))
    with np.errstate(invalid="ignore"):
        return operands, np.asarray(operands[2].array, np.float64), want
