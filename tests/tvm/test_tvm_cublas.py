"""Products by cuBLAS, on a machine without a GPU: what it is asked for, how it is found, and what is said without it.

Loops on the host's memory stand in for cuBLAS, and tensors say that they are a GPU's.
"""

import ctypes
import dataclasses
import json
import os
import subprocess
from pathlib import Path

import ml_dtypes
import numpy as np
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

pytest.importorskip("tvm.relax", reason="apache-tvm is not installed: pip install 'rmsnorm-deploy[tvm]'")

import tvm as tvm_itself
import tvm_ffi

from benchmarks.models import decoder as decoders
from benchmarks.models.encoders import vit, whisper
from rmsnorm_deploy import tvm
from rmsnorm_deploy.errors import MissingEnvironment, UsageError
from rmsnorm_deploy.tvm import compiling
from rmsnorm_deploy.tvm.artefact import carried, linking
from rmsnorm_deploy.tvm.importer.convert import import_prepared
from rmsnorm_deploy.tvm.importer.prepare import prepared
from rmsnorm_deploy.tvm.passes import pipeline
from rmsnorm_deploy.tvm.passes.by_cublas import functions_of, lower_products_by_cublas
from rmsnorm_deploy.tvm.passes.views import is_call
from rmsnorm_deploy.tvm.targets import cublas
from rmsnorm_deploy.tvm.targets.cublas import Cublas
from rmsnorm_deploy.tvm.targets.resolve import resolve, triple_of
from tests.support.native import compiler
from tests.support.tvm.cublas import CUDA, DEVICE, TYPES, Fake, OnGpu

FLOATS = {
    "float32": (TensorProto.FLOAT, np.float32, 2e-6),
    "float64": (TensorProto.DOUBLE, np.float64, 1e-14),
    "float16": (TensorProto.FLOAT16, np.float16, 1e-3),
    "bfloat16": (TensorProto.BFLOAT16, ml_dtypes.bfloat16, 8e-3),
}
LLAMA = Path(__file__).parents[2] / "samples" / "models" / "llama_float16.onnx"
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

KERNELS = [
    (name, dtype)
    for i, name in enumerate(CASES)
    for dtype in FLOATS
    if dtype == list(FLOATS)[i % 4] or name in ("matrix", "batches")
]
"""Not every case in every type: only the number of a type depends on it."""
STREAM = 0x5EED


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
    kernels = [f for f in module.functions.values() if isinstance(f, tvm_itself.tirx.PrimFunc)]
    assert len(kernels) == 1, (case, module.script())
    main = module["main"]
    values = [b.value for block in main.body.blocks for b in block.bindings]
    calls = [v for v in values if is_call(v, "call_tir")]
    assert [a.name for a in calls[0].args[1].fields] == ["x", "v"]
    return kernels[0]


@pytest.fixture(scope="module")
def fake(tmp_path_factory):
    return Fake(tmp_path_factory.mktemp("cublas"))


def built(kernels):
    """``{name: kernel}`` built for a GPU, and the functions that they call."""
    module = tvm_itself.IRModule({name: f.with_attr("global_symbol", name) for name, f in kernels.items()})
    return tvm_itself.tirx.build(module, target=resolve("cuda")), functions_of(module)


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
    return tvm_itself.runtime.load_module(str(folder / "kernels.so"))


@pytest.fixture(scope="module")
def kernels(tmp_path_factory, fake):
    made = built({f"{name}_{dtype}": kernel_for(CASES[name], dtype) for name, dtype in KERNELS})
    return linked(*made, tmp_path_factory.mktemp("kernels"), fake)


@pytest.fixture(scope="module")
def chosen():
    """The devices that kernels have made the current one; a library looks once for the function that does it."""
    found = []
    name = "__tvm_set_device"
    before = tvm_ffi.get_global_func(name)
    tvm_ffi.register_global_func(name, lambda *device: found.append(device), override=True)
    yield found
    tvm_ffi.register_global_func(name, before, override=True)


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


def problems(kernel, case, dtype, fake, chosen):
    """What is wrong with a product and with how cuBLAS was asked for it."""
    fake.taken()
    chosen.clear()
    try:
        (x, v, y), got, want = run(kernel, case, dtype)
    except RuntimeError as error:
        return [str(error)]
    calls = fake.taken()
    found = []

    def check(good, problem):
        if not good:
            found.append(problem)

    with np.errstate(invalid="ignore"):
        check((abs(got - want) <= FLOATS[dtype][2] * np.maximum(8, abs(want))).all(), "the result")
    check(all(o.untouched() for o in (x, v, y)), "something around it was written")
    check(chosen == [(CUDA, DEVICE)], "the device")
    check(len(calls) == case.calls, f"{len(calls)} calls")
    for call in calls:
        check(call.batch == case.batch, f"a batch of {call.batch}")
        check({o.type for o in (call.a, call.b, call.c)} == {TYPES[dtype][0]}, "types")
        check(call.sums == (70 if dtype == "float64" else 68), "the type of sums")  # never TF32
        check(call.math == 16, "sums of parts")
        check(call.workspace == 32 << 20, "the workspace")
        check(call.stream == STREAM, "the stream")
        for theirs, ours in ((call.a, v), (call.b, x), (call.c, y)):
            check(ours.address <= theirs.first <= theirs.last <= ours.address + ours.size, "beyond the end")
    return found


@pytest.mark.parametrize(("name", "dtype"), KERNELS)
def test_the_product_is_the_exact_one(kernels, fake, chosen, name, dtype):
    assert problems(kernels[f"{name}_{dtype}"], CASES[name], dtype, fake, chosen) == []


FAULTS = {
    "the order of factors": ("b_turned, a_turned, n, m, k", "a_turned, b_turned, n, m, k"),
    "rows of A": ("if (single) lda = dim.a", "if (false) lda = dim.a"),
    "rows of C": ("&& follow && dim.c == m * ldc", "&& dim.c == m * ldc"),
    "a batch of C": ("c.type(), ldc, batch.c,", "c.type(), ldc, batch.a,"),
    "another place of B": ("at_b += place * dim.b", "at_b += place * dim.a"),
    "matrices that follow": ("b == inner.b * inner.size &&", "true &&"),
    "the largest batch twice": ("if (largest < dims.size()) dims.erase", "if (false) dims.erase"),
    "the type of C": ("c.type(), ldc", "0, ldc"),
    "TF32": ("float_sums = 68", "float_sums = 77"),
    "the stream last": ("if (!status) status = cublas.set_stream", "if (false) status = cublas.set_stream"),
    "no workspace": ("if (!status) status = cublas.set_workspace", "if (false) status = cublas.set_workspace"),
    "sums in 16 bits": ("set_math(*handle, exact_sums)", "set_math(*handle, 0)"),
}
IN_THE_SUITE = ("rows of A", "no workspace")
"""The others are seen as well: each takes a second."""
SEEN_BY = ["matrix", "v", "queries", "grouped", "grouped_turned", "grouped_token", "any_batch"]


@pytest.fixture(scope="module")
def few():
    """Kernels to link again and again."""
    return built({name: kernel_for(CASES[name], "float16") for name in SEEN_BY})


@pytest.mark.parametrize("fault", FAULTS if os.environ.get("RMSNORM_DEPLOY_ALL_FAULTS") else IN_THE_SUITE)
def test_a_fault_is_seen(few, fake, chosen, tmp_path, fault):
    right, wrong = FAULTS[fault]

    def planted(source):
        assert source.count(right) == 1, right
        return source.replace(right, wrong)

    kernels = linked(*few, tmp_path, fake, planted)
    assert any(problems(kernels[name], CASES[name], "float16", fake, chosen) for name in SEEN_BY)


def test_each_stream_has_its_handle_and_its_workspace(kernels, fake, chosen):
    case = CASES["matrix"]
    fake.taken()
    for stream in (11, 12, 11):
        run(kernels["matrix_float32"], case, "float32", stream)
    assert [c.stream for c in fake.taken()] == [11, 12, 11]
    run(kernels["matrix_float32"], case, "float32", 12)
    run(kernels["matrix_float32"], case, "float32", 11)
    second, first = fake.taken()
    assert second.handle != first.handle
    assert {second.workspace, first.workspace} == {32 << 20}


# -- which products, and in which types -------------------------------------------------------------------------------


def lowered(nodes, inputs, weights=()):
    """The types of factors and results, as kernels' names have them, and the module."""
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node(op, list(read), [out], **attributes) for op, read, out, attributes in nodes],
        "g",
        [info(name, kind, shape) for name, (kind, shape) in inputs.items()],
        [info("y", TensorProto.UNDEFINED, None)],
        list(weights),
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    module = lower_products_by_cublas(import_prepared(prepared(model)))
    names = [v.name_hint for v in module.get_global_vars() if v.name_hint.startswith("product_")]
    return [name.split("_", 2)[2] for name in names], module


F16, F32, BF16 = TensorProto.FLOAT16, TensorProto.FLOAT, TensorProto.BFLOAT16


@pytest.mark.parametrize(
    ("kind", "name"), [(F32, "float32"), (F16, "float16"), (BF16, "bfloat16"), (TensorProto.DOUBLE, "float64")]
)
def test_a_result_is_rounded_where_it_is_made(kind, name):
    assert lowered(PLAIN, {"x": (kind, ("n", 8)), "v": (kind, (8, 4))})[0] == [name]


def test_a_sum_that_is_read_before_it_is_rounded_stays_wide():
    nodes = [("Gemm", ("x", "v", "c"), "y", {})]
    inputs = {"x": (F16, ("n", 8)), "v": (F16, (8, 4)), "c": (F16, (4,))}
    assert lowered(nodes, inputs)[0] == ["float16_float32"]


def test_values_that_were_widened_are_multiplied_as_they_were():
    widened = [("Cast", (n,), n + "w", {"to": F32}) for n in "xv"]
    nodes = [*widened, ("MatMul", ("xw", "vw"), "y", {})]
    assert lowered(nodes, {"x": (BF16, (5, 8)), "v": (BF16, (8, 4))})[0] == ["bfloat16_float32"]
    assert lowered(nodes, {"x": (BF16, (5, 8)), "v": (F16, (8, 4))})[0] == ["float32"]
    nodes = [widened[0], ("MatMul", ("xw", "v"), "y", {})]
    assert lowered(nodes, {"x": (F16, (5, 8)), "v": (F32, (8, 4))})[0] == ["float32"]


def test_whole_numbers_and_sums_of_nothing_stay_tvms():
    eight = {"x": (TensorProto.UINT8, (5, 8)), "v": (TensorProto.INT8, (8, 4))}
    names, module = lowered([("MatMulInteger", ("x", "v"), "y", {})], eight)
    assert names == []
    assert "R.matmul" in module.script()
    assert lowered(PLAIN, {"x": (F32, (5, 0)), "v": (F32, (0, 4))})[0] == []


def test_equal_products_share_a_kernel_and_others_have_functions_of_their_own():
    nodes = [
        ("MatMul", ("x", "v"), "a", {}),
        ("MatMul", ("a", "v"), "b", {}),
        ("Transpose", ("v",), "t", {}),
        ("MatMul", ("b", "t"), "y", {}),
    ]
    names, module = lowered(nodes, {"x": (F32, (8, 8)), "v": (F32, (8, 8))})
    assert sorted(names) == ["float32", "float32_2"]
    assert len(set(functions_of(module))) == 2


# -- whole models -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "products"),
    [(lambda: decoders.decoder("float16", past=True), 7), (lambda: whisper("float32", 1), 5), (lambda: vit("float32", 1), 5)],
    ids=["llama", "whisper", "vit"],
)
def test_no_product_of_a_model_is_left_to_tvm(make, products, monkeypatch):
    monkeypatch.setattr(decoders, "LAYERS", 1)
    target = resolve("cuda")
    passes = pipeline.passes(target, cublas=True)
    passes = passes[: [name for name, _ in passes].index("schedule_rest")]
    module = pipeline.through(passes, import_prepared(prepared(make())), target)
    kernels = [v.name_hint for v, f in module.functions_items() if isinstance(f, tvm_itself.tirx.PrimFunc)]
    assert not [name for name in kernels if "matmul" in name]
    assert len([name for name in kernels if name.startswith("product_")]) == len(functions_of(module)) == products


def test_without_cublas_they_are():
    target = resolve("cuda")
    made = import_prepared(prepared(model_of(CASES["matrix"], "float32")))
    module = pipeline.through(pipeline.passes(target), made, target)
    assert [v.name_hint for v in module.get_global_vars() if "matmul" in v.name_hint]


def test_a_model_computes_what_onnxruntime_does(fake, monkeypatch, tmp_path):
    """On a CPU, but for where its memory is the same: products by the stand-in, and the rest by TVM."""
    real = carried.linked

    def with_fake(*arguments):
        found = real(*arguments)
        return dataclasses.replace(found, source=fake.instead(found.source))

    monkeypatch.setattr(carried, "linked", with_fake)
    monkeypatch.setattr(compiling, "_library_for", lambda *_: (Cublas((str(fake.path),)), ""))
    made = tvm.compile(LLAMA, output=tmp_path / "c")
    assert made.blas == fake.path.name
    said = json.loads((tmp_path / "c" / "model.json").read_text())["blas"]
    assert said == {"name": fake.path.name, "version": "", "file": None}
    feeds = {"x": np.arange(8, dtype=np.int64)[None]}
    fake.taken()
    (got,) = tvm.load(tmp_path / "c")(feeds).values()
    assert len(fake.taken()) == 19
    (want,) = ort.InferenceSession(LLAMA).run(None, feeds)
    np.testing.assert_allclose(got.astype(np.float32), want.astype(np.float32), rtol=0, atol=4e-3 * abs(want).max())


# -- the library ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (("libnone_at_all.so.13", "libnone_at_all.so.12"), "cuBLAS is missing .*: pip install nvidia-cublas"),
        (("libm.so.6",), "cuBLAS or the driver is too old: no cublasCreate_v2"),
    ],
)
def test_the_first_product_says_what_is_missing(fake, chosen, tmp_path, names, said):
    made = built({"matrix": kernel_for(CASES["matrix"], "float32")})
    kernels = linked(*made, tmp_path, fake, names=names)
    for _ in range(2):
        with pytest.raises(RuntimeError, match=said):
            run(kernels["matrix"], CASES["matrix"], "float32")


def test_loading_says_what_is_missing(monkeypatch):
    monkeypatch.setattr(cublas, "_PLACES", (("libnone_at_all.so.13", "nothing.at_all"),))
    with pytest.raises(MissingEnvironment, match=r"(?s)libnone_at_all\.so\.13.*pip install nvidia-cublas"):
        carried.open_beforehand({"blas": {"name": "cublas", "version": "", "file": None}})
    for blas in (None, {"name": "libcublas.so", "version": "", "file": None}):
        carried.open_beforehand({"blas": blas})


def test_pips_library_is_found_by_its_name(monkeypatch, tmp_path):
    name = "libfake_cublas_of_pip.so.13"
    folder = tmp_path / "fake_nvidia" / "cu13" / "lib"
    folder.mkdir(parents=True)
    (tmp_path / "empty.cpp").write_text("")
    command = [*compiler(), "-shared", "-fPIC", f"-Wl,-soname,{name}", tmp_path / "empty.cpp", "-o", folder / name]
    subprocess.run(command, check=True)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(cublas, "_PLACES", ((name, "fake_nvidia.cu13"),))
    with pytest.raises(OSError, match=name):
        ctypes.CDLL(name)
    cublas.open_installed()
    ctypes.CDLL(name)


def test_the_choice(fake, tmp_path):
    assert cublas.find("none") is None
    assert cublas.find("cublas").names == ("libcublas.so.13", "libcublas.so.12")
    assert cublas.find(str(fake.path)).names == (str(fake.path),)
    (tmp_path / "text.so").write_text("x")
    for choice, said in ((tmp_path / "nowhere.so", "there is no library"), (tmp_path / "text.so", "is not a cuBLAS")):
        with pytest.raises(UsageError, match=said):
            cublas.find(str(choice))


def test_targets_have_their_own_libraries():
    choose, triple = compiling._library_for, triple_of(resolve("llvm"))
    assert choose("cuda", None, triple) == (Cublas(), "--blas none")
    assert choose("cuda", "none", triple) == (None, "--blas none")
    with pytest.raises(UsageError, match="there is no library openblas"):
        choose("cuda", "openblas", triple)
    with pytest.raises(UsageError, match="there is no BLAS library cublas"):
        choose("llvm", "cublas", triple)
    assert choose("opencl", None, triple)[0] is choose("opencl", "none", triple)[0] is None
    with pytest.raises(UsageError, match="there is no library of products for target 'opencl'"):
        choose("opencl", "cublas", triple)
