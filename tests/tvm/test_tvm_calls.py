"""Calls of a compiled model move nothing: what is passed is read where it is, what comes back is the caller's own."""

import re
import subprocess
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

pytest.importorskip("tvm.relax", reason="apache-tvm is not installed: pip install '.[tvm]'")

import tvm as apache_tvm

from rmsnorm_deploy import tvm
from rmsnorm_deploy.errors import UsageError
from rmsnorm_deploy.tvm.artefact import arrays

ROOT = Path(__file__).parent.parent.parent
TORCH = ROOT / ".venvs" / "torch" / "lib"
TYPES = {
    "float32": (TensorProto.FLOAT, np.float32),
    "float16": (TensorProto.FLOAT16, np.float16),
    "bfloat16": (TensorProto.BFLOAT16, ml_dtypes.bfloat16),
}


def model_of(nodes, inputs, outputs, *weights, opset=23):
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node(op, read, written) for op, read, written in nodes],
        "g",
        [value(name, number, shape) for name, number, shape in inputs],
        [value(name, number, None) for name, number in outputs],
        [onnx.numpy_helper.from_array(w, n) for n, w in weights],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=11)


@pytest.fixture(scope="module", params=TYPES)
def cache(request, tmp_path_factory):
    """A model that puts x behind what came before, and adds 1 to it all."""
    number, dtype = TYPES[request.param]
    folder = tmp_path_factory.mktemp(request.param) / "c"
    nodes = [("Concat", ["past", "x"], ["present"]), ("Add", ["present", "one"], ["y"])]
    nodes = [("Identity", ["past"], ["p"]), *nodes]
    proto = model_of(
        nodes,
        [("past", number, (2, "before", 8)), ("x", number, (2, "new", 8))],
        [("present", number), ("y", number)],
        ("one", np.ones(1, dtype)),
    )
    proto.graph.node[1].attribute.append(helper.make_attribute("axis", 1))
    tvm.compile(proto, output=folder)
    return tvm.load(folder), np.dtype(dtype)


def address(array):
    return array.__array_interface__["data"][0]


@pytest.fixture
def seen(monkeypatch):
    """The addresses of the tensors and arrays that the model was called with, call by call."""
    calls = []
    original = tvm.CompiledModel.run_tensors

    def run(self, *inputs):
        calls.append([address(i) if isinstance(i, np.ndarray) else i.data_ptr() for i in inputs])
        return original(self, *inputs)

    monkeypatch.setattr(tvm.CompiledModel, "run_tensors", run)
    return calls


def placed(values, offset):
    """A copy of ``values`` that begins ``offset`` bytes behind a multiple of 64."""
    raw = np.zeros(values.nbytes + 128, np.uint8)
    start = -address(raw) % 64 + offset
    made = raw[start : start + values.nbytes].view(values.dtype).reshape(values.shape)
    made[...] = values
    return made


def read_only(values):
    values = values.copy()
    values.flags.writeable = False
    return values


FORMS = {
    "as it is": (lambda a: placed(a, 0), True),
    "16 bytes behind": (lambda a: placed(a, 16), True),
    "one element behind": (lambda a: placed(a, a.itemsize), True),
    "read-only": (read_only, True),
    "with gaps": (lambda a: np.repeat(a, 2, axis=2)[:, :, ::2], False),
    "transposed": (lambda a: np.ascontiguousarray(a.T).T, False),
    "backwards": (lambda a: np.ascontiguousarray(a[::-1])[::-1], False),
    "across an element": (lambda a: placed(a, 1), False),
    "a tensor of TVM": (lambda a: apache_tvm.runtime.tensor(a), True),
}


@pytest.mark.parametrize("form", FORMS)
def test_an_array_of_any_form_is_read_in_place_where_it_can_be(cache, seen, form):
    f, dtype = cache
    make, in_place = FORMS[form]
    plain = np.random.default_rng(1).standard_normal((2, 3, 8)).astype(dtype)
    given = make(plain)
    got = f({"past": given, "x": plain})
    at = given.data_ptr() if form == "a tensor of TVM" else address(given)
    assert (seen[0][0] == at) == in_place
    np.testing.assert_array_equal(got["present"], np.concatenate([plain, plain], 1))
    assert got["y"].dtype == dtype
    np.testing.assert_allclose(got["y"].astype(float), got["present"].astype(float) + 1, atol=2e-2)
    np.testing.assert_array_equal(given.numpy() if form == "a tensor of TVM" else given, plain)


def test_what_a_call_before_had_is_not_taken_for_granted(cache, seen):
    """The second call with the same shapes is not looked at as closely; whatever differs is."""
    f, dtype = cache
    rng = np.random.default_rng(2)
    good = {name: rng.standard_normal((2, 3, 8)).astype(dtype) for name in ("past", "x")}

    def present():
        return np.concatenate([good["past"], good["x"]], 1)

    for _ in range(3):
        np.testing.assert_array_equal(f(good)["present"], present())
        assert seen[-1] == [address(good["past"]), address(good["x"])]
        good["x"][...] = rng.standard_normal((2, 3, 8)).astype(dtype)
    for make, _ in FORMS.values():
        np.testing.assert_array_equal(f(good | {"x": make(good["x"])})["present"], present())
        assert seen[-1][1] != address(good["x"])
    longer = np.ones((2, 5, 8), dtype)
    np.testing.assert_array_equal(f(good | {"x": longer})["present"][:, 3:], longer)
    for wrong in ({"x": np.ones((3, 3, 8), dtype)}, {"x": np.ones((2, 3, 8), np.int16)}, {"z": longer}):
        with pytest.raises(UsageError):
            f(good | wrong)
        with pytest.raises(UsageError):
            f({"past": good["past"]} | wrong)
    np.testing.assert_array_equal(f(good)["present"], present())


def test_strides_that_say_nothing(cache, seen):
    """Of a dimension of 1 or beside one of 0: such an array has no gaps, whatever its strides."""
    f, dtype = cache
    for shape in ((2, 1, 8), (2, 0, 8)):
        base = np.ones((2, 1, 8), dtype)
        odd = np.lib.stride_tricks.as_strided(base, shape, (8 * dtype.itemsize, 5 * dtype.itemsize, dtype.itemsize))
        assert odd.flags.c_contiguous
        for given in (odd, Elsewhere(odd)) if dtype.kind != "V" else (odd,):
            got = f({"past": given, "x": base})
            assert got["present"].shape == (2, shape[1] + 1, 8)
            assert (got["present"] == 1).all()
            if odd.size:
                assert seen[-1][0] == address(odd)


def test_the_other_byte_order_is_copied(cache):
    f, dtype = cache
    if dtype.kind == "V":
        pytest.skip("bfloat16 has no other byte order in NumPy")
    x = np.random.default_rng(1).standard_normal((2, 3, 8)).astype(dtype)
    got = f({"past": x, "x": x.astype(dtype.newbyteorder(">"))})
    np.testing.assert_array_equal(got["present"][:, 3:], x)


def test_a_cache_from_output_to_input_is_not_moved(cache, seen):
    f, dtype = cache
    past = np.zeros((2, 0, 8), dtype)
    x = np.ones((2, 1, 8), dtype)
    for step in range(4):
        out = f({"past": past, "x": x})
        if step:
            assert seen[-1][0] == address(past)
        past = out["present"]
        assert past.shape == (2, step + 1, 8)
        assert address(past) % 64 == 0
        del out
    assert (past == 1).all()


def test_outputs_are_the_callers_own(cache):
    f, dtype = cache
    x = np.random.default_rng(2).standard_normal((2, 3, 8)).astype(dtype)
    kept = x.copy()
    calls = [f({"past": x, "x": x}) for _ in range(4)]
    every = [a for out in calls for a in out.values()]
    for i, a in enumerate(every):
        assert a.flags.writeable
        assert not np.shares_memory(a, x)
        assert not any(np.shares_memory(a, b) for b in every[:i])
    wanted = [a.copy() for a in every]
    every[0][...] = 7
    again = f({"past": x, "x": x})
    for a, b in zip(every[1:], wanted[1:], strict=True):
        np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(again["present"], wanted[0])
    np.testing.assert_array_equal(x, kept)


def test_outputs_outlive_the_model(tmp_path):
    tvm.compile(model_of([("Tanh", ["x"], ["y"])], [("x", 1, ("n",))], [("y", 1)]), output=tmp_path / "c")
    f = tvm.load(tmp_path / "c")
    y = f({"x": np.arange(5000, dtype=np.float32)})["y"]
    wanted = y.copy()
    for _ in range(20):
        f({"x": np.zeros(5000, np.float32)})
    del f
    np.testing.assert_array_equal(y, wanted)


def test_outputs_that_are_inputs_weights_or_one_another_are_copies(tmp_path):
    """As nodes that do nothing make them."""
    big, small = np.arange(500, dtype=np.float32), np.arange(4, dtype=np.float32)
    nodes = [
        ("Identity", ["x"], ["same"]),
        ("Reshape", ["x", "flat"], ["view"]),
        ("Identity", ["big"], ["weight"]),
        ("Reshape", ["big", "flat"], ["weight2"]),
        ("Identity", ["small"], ["constant"]),
        ("Tanh", ["x"], ["y"]),
        ("Identity", ["y"], ["y2"]),
        ("Reshape", ["y", "flat"], ["y3"]),
        ("Split", ["x"], ["left", "right"]),
        ("Identity", ["left"], ["left2"]),
    ]
    names = ["same", "view", "weight", "weight2", "constant", "y", "y2", "y3", "left", "right", "left2"]
    proto = model_of(
        nodes,
        [("x", 1, ("n", 6))],
        [(n, 1) for n in names],
        ("big", big),
        ("small", small),
        ("flat", np.array([-1])),
    )
    proto.graph.node[8].attribute.extend([helper.make_attribute("axis", 1), helper.make_attribute("num_outputs", 2)])
    tvm.compile(proto, output=tmp_path / "c")
    f = tvm.load(tmp_path / "c")
    x = np.random.default_rng(0).standard_normal((3, 6)).astype(np.float32)
    wanted = {"same": x, "view": x.ravel(), "weight": big, "weight2": big, "constant": small, "left": x[:, :3]}
    wanted |= {"right": x[:, 3:], "left2": x[:, :3], "y": np.tanh(x), "y2": np.tanh(x), "y3": np.tanh(x).ravel()}
    kept = {n: np.array(a) for n, a in wanted.items()}
    given, before = x.copy(), x.copy()
    for _ in range(2):
        got = f({"x": given})
        for i, name in enumerate(names):
            np.testing.assert_allclose(got[name], kept[name], atol=1e-6)
            assert not np.shares_memory(got[name], given)
            assert not any(np.shares_memory(got[name], got[other]) for other in names[:i]), name
        for name in names:  # the first call's results are written over: the model does not notice
            got[name][...] = 9
        np.testing.assert_array_equal(given, before)


def test_branches_that_return_an_input_or_a_weight_give_copies(tmp_path):
    value, weight = helper.make_tensor_value_info, np.arange(6, dtype=np.float32).reshape(1, 6)
    branches = {
        name: helper.make_graph([helper.make_node("Identity", [of], [name])], name, [], [value(name, 1, (1, 6))])
        for name, of in (("then", "x"), ("other", "w"))
    }
    node = helper.make_node("If", ["which"], ["y"], then_branch=branches["then"], else_branch=branches["other"])
    graph = helper.make_graph(
        [node],
        "g",
        [value("which", TensorProto.BOOL, ()), value("x", 1, (1, 6))],
        [value("y", 1, (1, 6))],
        [onnx.numpy_helper.from_array(weight, "w")],
    )
    tvm.compile(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), output=tmp_path / "c"
    )
    f, x = tvm.load(tmp_path / "c"), np.ones((1, 6), np.float32)
    for which, wanted in ((True, np.ones((1, 6))), (False, np.arange(6).reshape(1, 6))) * 2:
        got = f({"which": np.array(which), "x": x})["y"]
        np.testing.assert_array_equal(got, wanted)
        got[...] = 5
    assert (x == 1).all()


class Elsewhere:
    """What CuPy's arrays are to us: they know DLPack and nothing of NumPy."""

    def __init__(self, array, *, versions=True, refuses=None):
        self.array, self.versions, self.refuses = array, versions, refuses

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()

    def __dlpack__(self, **options):
        if self.refuses is not None:
            raise self.refuses
        if options and not self.versions:
            raise TypeError("unexpected keyword")
        return self.array.__dlpack__(**options)

    def __array__(self, *_args, **_options):
        raise TypeError("implicit conversion is not allowed")


@pytest.mark.parametrize("versions", [True, False], ids=["with versions", "before versions"])
def test_what_has_dlpack_is_taken_in_place(cache, seen, versions):
    f, dtype = cache
    if dtype.kind == "V":
        pytest.skip("NumPy exports no bfloat16")
    past, x = (placed(np.full((2, 2, 8), v, dtype), 16) for v in (1, 2))
    got = f({"past": Elsewhere(past, versions=versions), "x": Elsewhere(x, versions=versions)})
    assert seen == [[address(past), address(x)]]
    np.testing.assert_array_equal(got["present"], np.concatenate([past, x], 1))
    # with gaps it is copied
    wide = np.random.default_rng(0).standard_normal((2, 2, 16)).astype(dtype)[:, :, ::2]
    for gaps in (wide, wide[::-1], wide[:, :, ::-1], wide.T.copy().T):
        np.testing.assert_array_equal(f({"past": Elsewhere(gaps), "x": x})["present"][:, :2], gaps)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (Elsewhere(np.ones((2, 2, 8))), "is float64, not b?float"),
        (Elsewhere(np.ones((2, 2, 7), np.float32)), "is float32, not|has shape"),
        (Elsewhere(None, refuses=BufferError("gradients are needed\nmore")), "through DLPack: gradients are needed$"),
        (Elsewhere(None, refuses=RuntimeError()), "through DLPack: RuntimeError"),
    ],
    ids=["type", "shape", "refused", "no reason"],
)
def test_what_cannot_be_taken_is_an_error_of_the_user(cache, value, said):
    f, dtype = cache
    with pytest.raises(UsageError, match="input 'past'") as raised:
        f({"past": value, "x": np.ones((2, 1, 8), dtype)})
    assert re.search(said, raised.value.message)


def test_tensors_of_another_device_that_tvm_cannot_read_are_refused(cache):
    class OnGpu:
        shape, dtype = (2, 3, 8), "float32"
        device = apache_tvm.runtime.device("cuda")

        def is_contiguous(self):
            return True

        def data_ptr(self):
            return 64

        def copyto(self, _device):
            raise RuntimeError("Device API cuda is not enabled")

    f, _ = cache
    wanted = f._feeds._inputs[0]
    with pytest.raises(UsageError, match="input 'past' is on cuda"):
        f._feeds._here(wanted, OnGpu())


def test_outputs_as_tensors_for_other_libraries(cache, seen):
    f, dtype = cache
    x = np.ones((2, 1, 8), dtype)
    first = f.tensors({"past": x, "x": x})
    assert list(first) == ["present", "y"]
    second = f.tensors({"past": first["present"], "x": x})
    assert seen[1][0] == first["present"].data_ptr()
    np.testing.assert_array_equal(arrays.numpy_of(second["present"]), np.ones((2, 3, 8)))


def test_inputs_that_are_no_arrays(tmp_path):
    tvm.compile(
        model_of([("Add", ["x", "s"], ["y"])], [("x", 11, (2,)), ("s", 11, ())], [("y", 11)]), output=tmp_path / "c"
    )
    f = tvm.load(tmp_path / "c")
    np.testing.assert_array_equal(f({"x": [1.0, 2.0], "s": 3.0})["y"], [4.0, 5.0])
    np.testing.assert_array_equal(f({"x": [1.0, 2.0], "s": np.float64(3.0)})["y"], [4.0, 5.0])
    for wrong in ({"x": [1, 2], "s": 3.0}, {"x": "text", "s": 1.0}, {"x": None, "s": 1.0}, {1: 2}):
        with pytest.raises(UsageError):
            f(wrong)


def test_every_type_that_a_model_can_have(tmp_path):
    kinds = {"bool": 9, "int8": 3, "uint8": 2, "int32": 6, "int64": 7, "uint16": 4, "float64": 11}
    for kind, number in kinds.items():
        nodes = [("Concat", ["x", "x"], ["y"])]
        proto = model_of(nodes, [("x", number, ("n", 3))], [("y", number)])
        proto.graph.node[0].attribute.append(helper.make_attribute("axis", 0))
        tvm.compile(proto, output=tmp_path / kind)
        x = np.arange(6).reshape(2, 3).astype(kind)
        got = tvm.load(tmp_path / kind)({"x": x})["y"]
        assert got.dtype == x.dtype
        np.testing.assert_array_equal(got, np.concatenate([x, x]))


IN_TORCH = """
import sys
sys.path.append(sys.argv[1])  # PyTorch's environment, behind ours
import torch
from rmsnorm_deploy import tvm
f = tvm.load(sys.argv[2])
kind = getattr(torch, sys.argv[3])
x = torch.arange(48, dtype=torch.float32).reshape(2, 3, 8).to(kind)
seen, original = [], tvm.CompiledModel.run_tensors
def run(self, *inputs):
    seen.append([i.data_ptr() for i in inputs])
    return original(self, *inputs)
tvm.CompiledModel.run_tensors = run
outputs = f.tensors({"past": x, "x": x})
assert seen[-1] == [x.data_ptr()] * 2
present = torch.from_dlpack(outputs["present"])
assert present.data_ptr() == outputs["present"].data_ptr() and present.dtype == kind
assert torch.equal(present, torch.cat([x, x], 1))
f.tensors({"past": present, "x": x})
assert seen[-1] == [present.data_ptr(), x.data_ptr()]
assert torch.equal(torch.from_dlpack(f.tensors({"past": x.flip(0), "x": x})["present"])[:, :3], x.flip(0))
strided = torch.arange(96, dtype=torch.float32).to(kind).reshape(2, 3, 16)[:, :, ::2]
assert torch.equal(torch.from_dlpack(f.tensors({"past": strided, "x": x})["present"])[:, :3], strided)
try:
    f({"past": x.clone().requires_grad_(), "x": x})
except Exception as error:
    print(type(error).__name__, error)
"""


@pytest.mark.skipif(not list(TORCH.glob("python*/site-packages/torch")), reason="no PyTorch: make .venvs/torch/ready")
def test_tensors_of_pytorch(cache, tmp_path):
    _, dtype = cache
    packages = next(TORCH.glob("python*/site-packages"))
    nodes = [("Concat", ["past", "x"], ["present"])]
    number = TYPES[dtype.name][0]
    shapes = [("past", number, (2, "before", 8)), ("x", number, (2, "new", 8))]
    proto = model_of(nodes, shapes, [("present", number)])
    proto.graph.node[0].attribute.append(helper.make_attribute("axis", 1))
    tvm.compile(proto, output=tmp_path / "c")
    done = subprocess.run(
        [sys.executable, "-c", IN_TORCH, packages, tmp_path / "c", dtype.name],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "cannot be taken through DLPack" in done.stdout
