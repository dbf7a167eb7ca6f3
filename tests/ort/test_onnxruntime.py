"""The custom operators in onnxruntime: models with our nodes alone, so that no function body can stand in for a kernel.

This file needs onnxruntime, NumPy, onnx, ml_dtypes and pytest only: test_older_onnxruntime.py runs it again in
environments that have nothing else, with the library named by RMSNORM_DEPLOY_LIBRARY.
"""

import gc
import itertools
import os
import subprocess
import sys
import threading

import ml_dtypes
import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

DOMAIN = "rmsnorm_deploy"
ALL = 2**63 - 1
F32, F16, F64, BF16 = TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE, TensorProto.BFLOAT16
DTYPES = {F32: np.float32, F16: np.float16, F64: np.float64, BF16: ml_dtypes.bfloat16}
TYPE_PAIRS = [(F32, F32), (F16, F16), (BF16, BF16), (F64, F64), (F16, F32), (BF16, F32), (F64, F32)]
INPUTS = {
    "RMSNorm": ["X", "scale"],
    "AddRMSNorm": ["X", "residual", "scale"],
    "GeneralRMSNorm": ["X", "scale", "bias"],
}


def library():
    if os.environ.get("RMSNORM_DEPLOY_LIBRARY"):
        return os.environ["RMSNORM_DEPLOY_LIBRARY"]
    from rmsnorm_deploy.run.library import library_path

    return str(library_path())


def options(threads=1):
    made = ort.SessionOptions()
    made.intra_op_num_threads = threads
    made.inter_op_num_threads = 1
    made.register_custom_ops_library(library())
    return made


def attributes(op, x_type, **changes):
    """Every attribute of a node, with changes; None leaves one out."""
    values = {
        "axes": [-1],
        "epsilon": 1e-5,
        "stash_type": F64 if x_type == F64 else F32,
        "scale_type": x_type,
        "output_type": x_type,
    }
    if op == "GeneralRMSNorm":
        values |= {"epsilon_outside": 0.0, "rms_floor": 0.0, "partial_size": [ALL]}
    values |= changes
    return {name: value for name, value in values.items() if value is not None}


def tensor(name, array, data_type):
    return helper.make_tensor(name, data_type, array.shape, array.tobytes(), raw=True)


def node(op, inputs, outputs, x_type, name="the_node", **changes):
    return helper.make_node(op, inputs, outputs, domain=DOMAIN, name=name, **attributes(op, x_type, **changes))


def model(nodes, inputs, outputs, initializers=()):
    """Serialized model; inputs and outputs are (name, type, shape)."""
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(*i) for i in inputs],
        [helper.make_tensor_value_info(*o) for o in outputs],
        list(initializers),
    )
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid(DOMAIN, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9).SerializeToString()


def norm_model(op, x_type, weight_type, rank=2, constants=None, **changes):
    """One node whose inputs are graph inputs of unknown sizes, but for ``constants``, which are initializers."""
    constants = constants or {}
    types = {"X": x_type, "residual": x_type, "scale": weight_type, "bias": weight_type}
    outputs = ["Y", "sum"] if op == "AddRMSNorm" else ["Y"]
    shape = [f"d{i}" for i in range(rank)]
    shapes = {"X": shape, "residual": shape}
    return model(
        [node(op, INPUTS[op], outputs, x_type, **changes)],
        [(n, types[n], shapes.get(n)) for n in INPUTS[op] if n not in constants],
        [(n, x_type, shape) for n in outputs],
        [tensor(n, a, types[n]) for n, a in constants.items()],
    )


def run(session, feeds, types):
    """Run on bare addresses, since onnxruntime takes no NumPy arrays of bfloat16."""
    binding = session.io_binding()
    kept = []
    for name, array in feeds.items():
        array = np.ascontiguousarray(array)
        kept.append(array)
        binding.bind_input(name, "cpu", 0, types[name], list(array.shape), array.ctypes.data)
    found = []
    x = feeds["X"]
    for output in session.get_outputs():
        y = np.empty_like(x)
        binding.bind_output(output.name, "cpu", 0, types["X"], list(y.shape), y.ctypes.data)
        found.append(y)
    session.run_with_iobinding(binding)
    return found


def rounded(value, data_type):
    return value.astype(DTYPES[data_type]).astype(np.float64)


def expected(op, feeds, x_type, axes=(-1,), epsilon=1e-5, scale_type=None):
    with np.errstate(all="ignore"):
        x = feeds["X"].astype(np.float64)
        if op == "AddRMSNorm":
            x = rounded(x + feeds["residual"].astype(np.float64), x_type)
        order = scale_type or x_type
        rms = np.sqrt((x * x).mean(axis=axes, keepdims=True) + float(np.float32(epsilon)))
        y = rounded(rounded(x / rms, order) * rounded(feeds["scale"].astype(np.float64), order), order)
        if op == "GeneralRMSNorm":
            y = rounded(y + rounded(feeds["bias"].astype(np.float64), order), order)
        return y, x


def agree(got, wanted, x_type):
    """Equal but for a few last places: the exact bars are in test_contract.py."""
    bits = {F32: 21, F16: 9, F64: 48, BF16: 6}[x_type]
    difference = np.abs(got.astype(np.float64) - wanted)
    assert (difference <= 2.0**-bits * np.maximum(np.abs(wanted).max(initial=0), 2.0**-10)).all()
    if x_type in (F16, BF16):
        assert (got.astype(np.float64) != rounded(wanted, x_type)).mean() <= 0.01


def random_feeds(op, shape, scale_shape, x_type, scale_type, seed=1):
    rng = np.random.default_rng(seed)
    types = {"X": x_type, "residual": x_type, "scale": scale_type, "bias": scale_type}
    shapes = {"X": shape, "residual": shape, "scale": scale_shape, "bias": scale_shape}
    feeds = {n: np.asarray(rng.standard_normal(shapes[n])).astype(DTYPES[types[n]]) for n in INPUTS[op]}
    return feeds, types


@pytest.mark.parametrize("op", list(INPUTS))
@pytest.mark.parametrize(("x_type", "scale_type"), TYPE_PAIRS)
@pytest.mark.parametrize("constant", [False, True])
def test_every_type(op, x_type, scale_type, constant):
    feeds, types = random_feeds(op, (5, 40), (40,), x_type, scale_type)
    constants = {n: feeds[n] for n in ("scale", "bias") if n in feeds} if constant else {}
    for order in {x_type, F32}:
        data = norm_model(op, x_type, scale_type, constants=constants, scale_type=order)
        session = ort.InferenceSession(data, options(), providers=["CPUExecutionProvider"])
        got = run(session, {n: a for n, a in feeds.items() if n not in constants}, types)
        wanted = expected(op, feeds, x_type, scale_type=order)
        agree(got[0], wanted[0], x_type)
        if op == "AddRMSNorm":
            np.testing.assert_array_equal(got[1].astype(np.float64), wanted[1])


@pytest.mark.parametrize("op", list(INPUTS))
@pytest.mark.parametrize(
    ("shape", "axes", "scale_shape"),
    [
        ((2, 3, 8), [-1], (1, 1, 8)),
        ((2, 3, 8), [2], ()),
        ((2, 3, 8), [-2, -1], (3, 8)),
        ((2, 3, 8), [-1], (3, 1)),
        ((2, 6, 5, 7), [1], (6, 1, 1)),
        ((2, 6, 5, 7), [-3], (1,)),
        ((2, 3, 4, 8), [-1], (3, 1, 8)),
        ((0, 8), [-1], (8,)),
        ((4, 0), [-1], (1,)),
    ],
)
def test_axes_and_broadcasts(op, shape, axes, scale_shape):
    feeds, types = random_feeds(op, shape, scale_shape, F32, F32)
    partial = {"partial_size": [ALL] * len(axes)} if op == "GeneralRMSNorm" else {}
    data = norm_model(op, F32, F32, rank=len(shape), axes=axes, **partial)
    session = ort.InferenceSession(data, options(), providers=["CPUExecutionProvider"])
    got = run(session, feeds, types)
    assert got[0].shape == shape
    if feeds["X"].size:
        agree(got[0], expected(op, feeds, F32, axes=tuple(axes))[0], F32)


@pytest.mark.parametrize("x_type", [F32, F16, BF16, F64])
@pytest.mark.parametrize("bias", ["-0.0 throughout", "0.0 throughout", "one -0.0 among others", "one other among -0.0"])
@pytest.mark.parametrize("constant", [("bias",), ("scale", "bias")])
def test_a_bias_that_is_known_changes_no_bit(x_type, bias, constant):
    """A constant bias of -0.0 is left out of the work; nothing else may be, and zeros keep their signs."""
    feeds, types = random_feeds("GeneralRMSNorm", (5, 70), (70,), x_type, x_type)
    feeds["X"][::2, ::3] = -0.0
    if bias == "-0.0 throughout":
        feeds["bias"][:] = -0.0
    elif bias == "0.0 throughout":
        feeds["bias"][:] = 0.0
    elif bias == "one -0.0 among others":
        feeds["bias"][3] = -0.0
    else:
        feeds["bias"][:] = -0.0
        feeds["bias"][69] = 0.5
    results = []
    for constants in ((), constant):
        data = norm_model("GeneralRMSNorm", x_type, x_type, constants={n: feeds[n] for n in constants})
        session = ort.InferenceSession(data, options())
        results.append(run(session, {n: a for n, a in feeds.items() if n not in constants}, types)[0])
    assert results[0].tobytes() == results[1].tobytes()


@pytest.mark.parametrize("shape", [(7,), (0,), (3, 2, 8)])
@pytest.mark.parametrize("constant", [("bias",), ("scale", "bias")])
def test_a_neutral_bias_has_to_fit_as_well(shape, constant):
    feeds, _ = random_feeds("GeneralRMSNorm", (2, 8), (8,), F32, F32)
    feeds["bias"] = np.full(shape, -0.0, np.float32)
    data = norm_model("GeneralRMSNorm", F32, F32, constants={n: feeds[n] for n in constant})
    session = ort.InferenceSession(data, options())
    with pytest.raises(Exception, match=r"bias of shape .* does not broadcast"):
        session.run(None, {n: a for n, a in feeds.items() if n not in constant})


def test_partial_size_floor_and_outer_epsilon():
    feeds, types = random_feeds("GeneralRMSNorm", (4, 10), (10,), F32, F32)
    values = {"epsilon": 0.0, "epsilon_outside": 0.25, "rms_floor": 1.25, "partial_size": [3]}
    session = ort.InferenceSession(norm_model("GeneralRMSNorm", F32, F32, **values), options())
    x = feeds["X"].astype(np.float64)
    rms = np.maximum(np.sqrt((x[:, :3] ** 2).mean(axis=1, keepdims=True)) + 0.25, 1.25)
    agree(run(session, feeds, types)[0], x / rms * feeds["scale"] + feeds["bias"], F32)


@pytest.mark.parametrize("x_type", [F32, F16])
def test_in_place_chains_leave_other_readers_alone(x_type):
    """onnxruntime may put Y where X was and the sum where the residual was, but only after their last use."""
    feeds, _ = random_feeds("AddRMSNorm", (6, 64), (64,), x_type, x_type)
    names = ["X", "residual"]
    nodes = [node("RMSNorm", ["X", "scale"], ["a"], x_type, name="n0")]
    previous, residual = "a", "residual"
    for i in range(6):
        nodes.append(node("AddRMSNorm", [previous, residual, "scale"], [f"y{i}", f"s{i}"], x_type, name=f"a{i}"))
        nodes.append(node("RMSNorm", [f"y{i}", "scale"], [f"z{i}"], x_type, name=f"r{i}"))
        previous, residual = f"z{i}", f"s{i}"
    outputs = ["a", "z2", "y4", "s5", "z5"]
    data = model(
        nodes,
        [(n, x_type, ["n", 64]) for n in names],
        [(n, x_type, ["n", 64]) for n in outputs],
        [tensor("scale", feeds["scale"], x_type)],
    )
    session = ort.InferenceSession(data, options())
    wanted = {"X": feeds["X"], "residual": feeds["residual"]}
    for n in nodes:
        arguments = dict(zip(INPUTS[n.op_type], n.input, strict=True))
        given = {k: feeds["scale"] if k == "scale" else wanted[v] for k, v in arguments.items()}
        for name, value in zip(n.output, expected(n.op_type, given, x_type), strict=False):
            wanted[name] = value.astype(DTYPES[x_type])
    before = {n: feeds[n].copy() for n in names}
    got = session.run(outputs, {n: feeds[n] for n in names})
    for name, value in zip(outputs, got, strict=True):
        tolerance = 2e-2 if x_type == F16 else 1e-5
        np.testing.assert_allclose(value, wanted[name], rtol=tolerance, atol=tolerance)
    for n in names:
        np.testing.assert_array_equal(feeds[n], before[n])


@pytest.mark.parametrize(
    ("shape", "axes", "scale_shape"),
    [
        ((700, 900), [-1], (900,)),
        ((3, 64, 3000), [1], (64, 1)),
        ((2, 300_000), [-1], ()),
        ((40_001, 16), [-1], (16,)),
        ((2, 7, 300, 64), [-1], (7, 1, 64)),
        ((2, 7, 10, 700), [2], (7, 1, 1)),
    ],
)
@pytest.mark.parametrize("x_type", [F32, F16, F64])
@pytest.mark.parametrize("op", list(INPUTS))
def test_threads_change_no_bit(op, shape, axes, scale_shape, x_type):
    feeds, types = random_feeds(op, shape, scale_shape, x_type, x_type)
    data = norm_model(op, x_type, x_type, rank=len(shape), axes=axes)
    alone, together = (run(ort.InferenceSession(data, options(t)), feeds, types) for t in (1, 3))
    for one, other in zip(alone, together, strict=True):
        np.testing.assert_array_equal(one, other)
    agree(alone[0], expected(op, feeds, x_type, axes=tuple(axes))[0], x_type)


CHAIN = """
import sys
import numpy as np, onnxruntime as ort
def peak():  # in KiB; getrusage would count the memory of the process that this one was forked from
    return int(next(line for line in open("/proc/self/status") if line.startswith("VmHWM:")).split()[1])
options = ort.SessionOptions()
options.register_custom_ops_library(sys.argv[1])
options.intra_op_num_threads = 1
options.enable_mem_pattern = options.enable_cpu_mem_arena = False
session = ort.InferenceSession(sys.argv[2], options)
x = np.ones((1 << 18, 64), np.float32)
y = np.zeros_like(x)
binding = session.io_binding()
binding.bind_input("X", "cpu", 0, np.float32, x.shape, x.ctypes.data)
binding.bind_output("Y", "cpu", 0, np.float32, y.shape, y.ctypes.data)
before = peak()
session.run_with_iobinding(binding)
print((peak() - before) * 1024 / x.nbytes)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak of memory as Linux counts it")
@pytest.mark.parametrize(("op", "most"), [("RMSNorm", 1.5), ("AddRMSNorm", 2.5)])
def test_memory_is_reused(op, most, tmp_path):
    """A chain of nodes needs one tensor beside its input and output, two with the residual stream; not twice that."""
    nodes, value, residual = [], "X", "X"
    for i in range(6):
        made = [f"y{i}" if i < 5 else "Y", f"s{i}"]
        given = [value, "scale"] if op == "RMSNorm" else [value, residual, "scale"]
        nodes.append(node(op, given, made[: 1 if op == "RMSNorm" else 2], F32, name=f"n{i}"))
        value, residual = made
    scale = tensor("scale", np.ones(64, np.float32), F32)
    path = tmp_path / "chain.onnx"
    path.write_bytes(model(nodes, [("X", F32, ["n", 64])], [("Y", F32, ["n", 64])], [scale]))
    done = subprocess.run([sys.executable, "-c", CHAIN, library(), path], capture_output=True, text=True, check=True)
    assert 0.5 < float(done.stdout) < most


def test_one_session_on_several_threads():
    data = norm_model("AddRMSNorm", F16, F16, constants={"scale": np.linspace(0.5, 2, 96).astype(np.float16)})
    session = ort.InferenceSession(data, options(2))
    failures = []

    def work(seed):
        rng = np.random.default_rng(seed)
        rows = int(rng.integers(1, 400)) + 1024 * (seed % 2)
        feeds = {n: rng.standard_normal((rows, 96)).astype(np.float16) for n in ("X", "residual")}
        first = session.run(None, feeds)
        for _ in range(40):
            again = session.run(None, feeds)
            if not all(np.array_equal(a, b) for a, b in zip(first, again, strict=True)):
                failures.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_sessions_outlive_their_options():
    feeds, types = random_feeds("RMSNorm", (2, 8), (8,), F32, F32)
    data = norm_model("RMSNorm", F32, F32)
    sessions = [ort.InferenceSession(data, options()) for _ in range(3)]
    gc.collect()
    first, *others = (run(session, feeds, types)[0] for session in sessions)
    for other in others:
        np.testing.assert_array_equal(first, other)


@pytest.mark.parametrize("shape", [["n", 8], [None, 8], [None, None], None])
@pytest.mark.parametrize("op", ["RMSNorm", "AddRMSNorm"])
def test_dimensions_that_are_not_known(op, shape, capfd):
    """Named, unnamed and unknown dimensions, and an unknown rank: nothing wrong is inferred from them."""
    outputs = {"RMSNorm": ["a"], "AddRMSNorm": ["a", "s"]}[op]
    nodes = [
        node(op, INPUTS[op], outputs, F32, name="first"),
        node("RMSNorm", ["a", "scale"], ["b"], F32, name="second"),
        helper.make_node("Neg", ["b"], ["Y"]),
    ]
    data = model(
        nodes,
        [(n, F32, shape) for n in INPUTS[op] if n != "scale"] + [("scale", F32, [8])],
        [("Y", F32, None)],
    )
    feeds, _ = random_feeds(op, (3, 8), (8,), F32, F32)
    got = ort.InferenceSession(data, options()).run(None, feeds)[0]
    a = expected(op, feeds, F32)[0].astype(np.float32)
    agree(-got, expected("RMSNorm", {"X": a, "scale": feeds["scale"]}, F32)[0], F32)
    assert capfd.readouterr().err == ""  # where onnxruntime writes that a shape is not as it was inferred


def refused_at_load(data):
    with pytest.raises(Exception) as caught:  # noqa: PT011  onnxruntime's exceptions share no base of their own
        ort.InferenceSession(data, options())
    return str(caught.value)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"axes": [0, 2]}, "axes must be one contiguous run of dimensions, all of one sign, not [0,2]"),
        ({"axes": [-1, 0]}, "axes must be one contiguous run"),
        ({"axes": [-1, -1]}, "axes must be one contiguous run"),
        ({"epsilon": -1.0}, "epsilon must be finite and not negative, not -1"),
        ({"epsilon_outside": float("nan")}, "epsilon_outside must be finite"),
        ({"rms_floor": float("inf")}, "rms_floor must be finite"),
        ({"stash_type": F16}, "stash_type must be 1 (float) or 11 (double)"),
        ({"scale_type": BF16}, "scale_type must be the type of X, float, or double"),
        ({"scale_type": F64}, "scale_type must be the type of X, float, or double"),
        ({"partial_size": [0]}, "partial_size must hold one integer for each axis, all the same and at least 1"),
        ({"partial_size": [3, 3]}, "partial_size must hold one integer for each axis"),
        ({"partial_size": [-4]}, "partial_size must hold one integer for each axis"),
    ],
)
def test_wrong_attributes_are_refused_when_the_model_is_loaded(changes, sentence):
    message = refused_at_load(norm_model("GeneralRMSNorm", F16, F16, **changes))
    assert f"GeneralRMSNorm 'the_node': {sentence}" in message


DEFAULTS = {
    "axes": [-1],
    "epsilon": 0.0,
    "stash_type": F32,
    "scale_type": F32,
    "epsilon_outside": 0.0,
    "rms_floor": 0.0,
    "partial_size": [ALL],
}
"""Of version 1, for ever."""


@pytest.mark.parametrize("absent", [*((name,) for name in DEFAULTS), tuple(DEFAULTS)], ids=",".join)
@pytest.mark.parametrize("op", list(INPUTS))
def test_an_absent_attribute_means_its_default(op, absent):
    feeds, _ = random_feeds(op, (4, 10), (10,), F16, F16)
    general = {"epsilon_outside": 0.25, "rms_floor": 1.25, "partial_size": [3]} if op == "GeneralRMSNorm" else {}
    values = {"axes": [-1], "epsilon": 0.5, "scale_type": F16, **general}
    written = {n: DEFAULTS[n] for n in absent if n in attributes(op, F16)}
    results = []
    for changes in (written, dict.fromkeys(absent), {}):
        session = ort.InferenceSession(norm_model(op, F16, F16, **{**values, **changes}), options())
        results.append(session.run(None, feeds)[0].tobytes())
    assert results[0] == results[1]
    if absent in (("epsilon",), ("scale_type",)) or set(absent) & set(general):
        assert results[1] != results[2]  # or the default would not show


def test_an_absent_output_type_means_that_of_x():
    feeds, _ = random_feeds("RMSNorm", (4, 10), (10,), F16, F16)
    results = [
        ort.InferenceSession(norm_model("RMSNorm", F16, F16, **changes), options()).run(None, feeds)[0]
        for changes in ({}, {"output_type": None})
    ]
    np.testing.assert_array_equal(*results)


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        ({"axes": -1}, "a list of integers"),
        ({"axes": [1.5]}, "a list of integers"),
        ({"axes": "last"}, "a list of integers"),
        ({"epsilon": 1}, "a float"),
        ({"epsilon": [0.5]}, "a float"),
        ({"stash_type": 1.0}, "an integer"),
        ({"scale_type": "float"}, "an integer"),
        ({"output_type": [1]}, "an integer"),
        ({"epsilon_outside": 0}, "a float"),
        ({"rms_floor": "none"}, "a float"),
        ({"partial_size": 3}, "a list of integers"),
        ({"version": 1.0}, "an integer"),
    ],
)
def test_an_attribute_of_another_type_is_not_taken_for_an_absent_one(changes, wanted):
    (name,) = changes
    message = refused_at_load(norm_model("GeneralRMSNorm", F32, F32, **changes))
    assert f"GeneralRMSNorm 'the_node': the attribute {name} must be {wanted}" in message


@pytest.mark.parametrize("version", [0, 2])
def test_a_node_of_a_version_that_the_library_does_not_know_is_refused(version):
    message = refused_at_load(norm_model("RMSNorm", F32, F32, version=version))
    assert f"RMSNorm 'the_node': the node is of version {version} of its domain, and this library knows 1" in message


@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize("shape", [(7,), (2, 8), (1, 1, 8), (4, 3, 8)])
def test_a_scale_that_would_enlarge_x_is_refused(shape, constant):
    scale = np.ones(shape, np.float32)
    x = np.ones((3, 8), np.float32)
    session = ort.InferenceSession(
        norm_model("RMSNorm", F32, F32, constants={"scale": scale} if constant else {}), options()
    )
    text = ",".join(map(str, shape))
    with pytest.raises(Exception, match=rf"scale of shape \[{text}\] does not broadcast into X of shape \[3,8\]"):
        session.run(None, {"X": x} if constant else {"X": x, "scale": scale})


def test_a_scale_does_not_stretch_a_dimension_of_one():
    session = ort.InferenceSession(norm_model("RMSNorm", F32, F32), options())
    with pytest.raises(Exception, match=r"scale of shape \[3,8\] does not broadcast into X of shape \[1,8\]"):
        session.run(None, {"X": np.ones((1, 8), "f"), "scale": np.ones((3, 8), "f")})


def test_a_residual_of_another_shape_is_refused():
    session = ort.InferenceSession(norm_model("AddRMSNorm", F32, F32), options())
    feeds = {"X": np.ones((3, 8), "f"), "residual": np.ones((1, 8), "f"), "scale": np.ones(8, "f")}
    with pytest.raises(Exception, match=r"residual of shape \[1,8\] must have the shape of X, \[3,8\]"):
        session.run(None, feeds)


def test_a_bias_that_would_enlarge_x_is_refused():
    session = ort.InferenceSession(norm_model("GeneralRMSNorm", F32, F32), options())
    feeds = {"X": np.ones((3, 8), "f"), "scale": np.ones(8, "f"), "bias": np.ones((3, 1, 8), "f")}
    with pytest.raises(Exception, match=r"bias of shape \[3,1,8\] does not broadcast into X of shape \[3,8\]"):
        session.run(None, feeds)


@pytest.mark.parametrize("axes", [[2], [-3], [1, 2], [-3, -2]])
def test_axes_outside_x_are_refused(axes):
    session = ort.InferenceSession(norm_model("RMSNorm", F32, F32, axes=axes), options())
    with pytest.raises(Exception, match=r"axes \[.*\] are outside X of shape \[3,8\]"):
        session.run(None, {"X": np.ones((3, 8), "f"), "scale": np.ones(8, "f")})


def test_a_partial_size_over_several_axes_is_refused():
    changes = {"axes": [-2, -1], "partial_size": [5, 5]}
    session = ort.InferenceSession(norm_model("GeneralRMSNorm", F32, F32, **changes), options())
    feeds = {"X": np.ones((3, 8), "f"), "scale": np.ones(8, "f"), "bias": np.ones(8, "f")}
    with pytest.raises(Exception, match="needs exactly one axis"):
        session.run(None, feeds)


def test_more_dimensions_than_supported_are_refused():
    x = np.ones((1,) * 16 + (8,), np.float32)
    session = ort.InferenceSession(norm_model("RMSNorm", F32, F32, rank=17), options())
    with pytest.raises(Exception, match="17 dimensions; at most 16 are supported"):
        session.run(None, {"X": x, "scale": np.ones(8, "f")})


def test_sixteen_dimensions_work():
    feeds, types = random_feeds("RMSNorm", (1, 2) * 7 + (3, 8), (8,), F32, F32)
    session = ort.InferenceSession(norm_model("RMSNorm", F32, F32, rank=16), options())
    agree(run(session, feeds, types)[0], expected("RMSNorm", feeds, F32)[0], F32)


def test_nan_stays_where_it_is():
    for floor, value in itertools.product((0.0, 8.0), (np.nan, np.inf)):
        session = ort.InferenceSession(norm_model("GeneralRMSNorm", F32, F32, rms_floor=floor), options())
        x = np.ones((3, 9), np.float32)
        x[1, 4] = value
        feeds = {"X": x, "scale": np.ones(9, "f"), "bias": np.zeros(9, "f")}
        y = session.run(None, feeds)[0]
        assert np.isnan(y[1, 4])
        assert np.isfinite(y[[0, 2]]).all()


def test_an_unknown_instruction_set_is_refused_at_registration():
    code = "import onnxruntime, sys; onnxruntime.SessionOptions().register_custom_ops_library(sys.argv[1])"
    done = subprocess.run(
        [sys.executable, "-c", code, library()],
        env=os.environ | {"RMSNORM_DEPLOY_ISA": "abacus"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert (
        "RMSNORM_DEPLOY_ISA is 'abacus', which this library or this machine lacks; this machine can run:" in done.stderr
    )
    assert " portable" in done.stderr


def test_registering_twice_on_the_same_options_is_registering_once():
    made = options()
    for _ in range(2):
        made.register_custom_ops_library(library())
    x = np.float32([[3, 4]])
    feeds = {"X": x, "scale": np.ones(2, np.float32)}
    for _ in range(2):
        (y,) = ort.InferenceSession(norm_model("RMSNorm", F32, F32, epsilon=0.0), made).run(None, feeds)
        np.testing.assert_allclose(y, x / np.sqrt(12.5), rtol=1e-6)


@pytest.mark.parametrize("x_type", [F16, BF16])
@pytest.mark.parametrize("optimise", [False, True])
def test_no_cast_is_put_between_two_nodes_of_sixteen_bits(x_type, optimise, tmp_path):
    """onnxruntime #25692: casts to float32 were inserted there, and the second op then refused its input."""
    nodes = [
        node("RMSNorm", ["X", "scale"], ["a"], x_type, name="first"),
        node("AddRMSNorm", ["a", "X", "scale"], ["b", "unread"], x_type, name="second"),
        node("GeneralRMSNorm", ["b", "scale", "scale"], ["Y"], x_type, name="third"),
    ]
    scale = tensor("scale", np.ones(8, DTYPES[x_type]), x_type)
    chain = model(nodes, [("X", x_type, ["n", 8])], [("Y", x_type, ["n", 8])], [scale])
    made = options()
    made.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    if not optimise:
        made.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(chain, made)
    kept = onnx.load(tmp_path / "optimized.onnx")
    assert [n.op_type for n in kept.graph.node] == list(INPUTS)
    x = np.random.default_rng(5).standard_normal((3, 8)).astype(DTYPES[x_type])
    (y,) = run(session, {"X": x}, {"X": x_type})
    first = x.astype(float) / np.sqrt((x.astype(float) ** 2).mean(-1, keepdims=True))
    second = first + x.astype(float)
    second /= np.sqrt((second**2).mean(-1, keepdims=True))
    np.testing.assert_allclose(y.astype(float), second / np.sqrt((second**2).mean(-1, keepdims=True)) + 1, atol=0.06)
