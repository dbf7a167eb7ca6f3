"""onnxruntime's own operators run by our kernels: all that the built-in kernels take, run by both and compared.

This file needs onnxruntime, NumPy, onnx, ml_dtypes and pytest only: test_older_onnxruntime.py runs it again in
environments that have nothing else, with the library named by RMSNORM_DEPLOY_LIBRARY and the other one beside it.
"""

import ctypes
import itertools
import os
import subprocess
import sys
import threading
from pathlib import Path

import ml_dtypes
import numpy as np
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

MINOR = int(ort.__version__.split(".")[1])
F32, F16, F64, BF16 = TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE, TensorProto.BFLOAT16
DTYPES = {F32: np.float32, F16: np.float16, F64: np.float64, BF16: ml_dtypes.bfloat16}
NAMES = {"tensor(float)": F32, "tensor(float16)": F16, "tensor(double)": F64, "tensor(bfloat16)": BF16}
BAR = {F32: 3e-7, F16: 2.0**-10, BF16: 2.0**-7, F64: 1e-15}
"""Largest error, as part of the row's largest value."""
SIMPLIFIED, RMS, SKIP = "SimplifiedLayerNormalization", "RMSNormalization", "SkipSimplifiedLayerNormalization"
PAIRS = [(F32, F32), (F32, F16), (F16, F32), (F16, F16), (BF16, BF16), (F64, F64)]
OPS = [SIMPLIFIED, RMS] if MINOR >= 23 else [SIMPLIFIED]
pytestmark = pytest.mark.filterwarnings("ignore:invalid value encountered")


OURS, OVERRIDE = "librmsnorm_deploy.so", "librmsnorm_deploy_override.so"


def library(name):
    """The path of our library, or of the one beside it that replaces onnxruntime's operators."""
    if os.environ.get("RMSNORM_DEPLOY_LIBRARY"):
        path = Path(os.environ["RMSNORM_DEPLOY_LIBRARY"])
    else:
        from rmsnorm_deploy.run.library import library_path

        path = library_path()
    return str(path.with_name(name))


def options(*registered, threads=1):
    made = ort.SessionOptions()
    made.intra_op_num_threads = threads
    made.inter_op_num_threads = 1
    made.log_severity_level = 3
    for name in registered:
        made.register_custom_ops_library(library(name))
    return made


def value(name, data_type=None, rank=None):
    if data_type is None:  # left to inference
        return helper.make_empty_tensor_value_info(name)
    return helper.make_tensor_value_info(name, data_type, None if rank is None else [None] * rank)


def make_model(nodes, inputs, outputs, initializers=(), opset=17):
    graph = helper.make_graph(nodes, "g", inputs, outputs, list(initializers))
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    opsets.append(helper.make_opsetid("rmsnorm_deploy", 1))
    return helper.make_model(graph, opset_imports=opsets, ir_version=9 if opset < 23 else 10).SerializeToString()


def domain_of(op):
    return "com.microsoft" if op == SKIP else ""


def tensor(name, array, data_type):
    return helper.make_tensor(name, data_type, array.shape, array.tobytes(), raw=True)


def model(op, feeds, types, inputs, outputs, opset=None, constants=(), declared=True, **attributes):
    """A model of one node; `outputs` are the names behind Y, empty where one is absent."""
    node = helper.make_node(op, inputs, ["Y", *outputs], domain=domain_of(op), name="the_node", **attributes)
    y_type = types[inputs[1]]
    known = {"Y": y_type, "sum": y_type, "mean": F32, "inverse": F32}
    return make_model(
        [node],
        [value(n, types[n], feeds[n].ndim) for n in inputs if n and n not in constants],
        [value(n, known[n] if declared else None) for n in ["Y", *outputs] if n],
        [tensor(n, feeds[n], types[n]) for n in constants],
        opset or (23 if op == RMS else 17),
    )


def run(data, feeds, types, made):
    """Outputs by name. On bare addresses, since onnxruntime takes no NumPy arrays of bfloat16."""
    session = ort.InferenceSession(data, made, providers=["CPUExecutionProvider"])
    return run_session(session, feeds, types)


def run_session(session, feeds, types):
    binding = session.io_binding()
    kept = []
    for each in session.get_inputs():
        array = feeds[each.name]
        kept.append(array)
        binding.bind_input(each.name, "cpu", 0, types[each.name], list(array.shape), array.ctypes.data)
    for output in session.get_outputs():
        binding.bind_output(output.name, "cpu")
    session.run_with_iobinding(binding)
    found = {}
    for output, made in zip(session.get_outputs(), binding.get_outputs(), strict=True):
        dtype = np.dtype(DTYPES[NAMES[made.data_type()]])
        shape = tuple(made.shape())
        size = int(np.prod(shape)) * dtype.itemsize
        raw = bytes((ctypes.c_char * size).from_address(made.data_ptr())) if size else b""
        found[output.name] = np.frombuffer(raw, dtype).reshape(shape)
    return found


def truth(x, scale, axis=-1, epsilon=1e-5):
    x, axes = x.astype(np.float64), tuple(range(axis % x.ndim, x.ndim))
    inverse = 1 / np.sqrt((x * x).mean(axes, keepdims=True) + float(np.float32(epsilon)))
    return x * inverse * scale.astype(np.float64), inverse


def judge(got, wanted, data_type, axis=-1):
    assert got.dtype == DTYPES[data_type]
    assert got.shape == wanted.shape
    if not got.size:
        return
    largest = np.abs(wanted).max(tuple(range(axis % wanted.ndim, wanted.ndim)), keepdims=True)
    assert (np.abs(got.astype(np.float64) - wanted) <= BAR[data_type] * np.maximum(largest, 2.0**-14)).all()
    if data_type in (F16, BF16):  # rounded once, so nearly always to the nearest
        assert (got != wanted.astype(got.dtype)).mean() <= 0.01


def alike(ours, builtin, data_type):
    """The built-in kernel sums in float32 without care, so it needs a little more room than ours."""
    assert ours.dtype == builtin.dtype
    assert ours.shape == builtin.shape
    if ours.size:
        a, b = ours.astype(np.float64), builtin.astype(np.float64)
        bar = {F32: 1e-6, F64: 1e-12}.get(data_type, BAR[data_type])
        assert np.abs(a - b).max() <= bar * max(np.abs(b).max(), 2.0**-14)


def feeds_of(shapes, types, seed=1, factor=1.0):
    rng = np.random.default_rng(seed)
    return {n: np.array(rng.standard_normal(s) * factor, order="C").astype(DTYPES[types[n]]) for n, s in shapes.items()}


def both(data, feeds, types, builtin_too=True):
    """Outputs of our kernel, and of the built-in one, which must take the model too (None where it is known not to)."""
    ours = run(data, feeds, types, options(OVERRIDE))
    return ours, run(data, feeds, types, options()) if builtin_too else None


def builtin_takes(op, x_type):
    """bfloat16 kernels came after 1.24, and RMSNormalization still has none."""
    return x_type != BF16 or (MINOR >= 32 and op != RMS)


# ----------------------------------------------------------------------------------------------------------------------
# SimplifiedLayerNormalization and RMSNormalization


def pairs_of(op):
    return [pair for pair in PAIRS if op == SIMPLIFIED or pair[0] == pair[1]]


@pytest.mark.parametrize(
    ("op", "x_type", "scale_type"), [(op, *pair) for op in OPS for pair in pairs_of(op)], ids=lambda v: str(v)
)
def test_every_type_optional_output_and_attribute(op, x_type, scale_type):
    types = {"X": x_type, "scale": scale_type}
    takes = builtin_takes(op, x_type)
    attributes = [{}, {"epsilon": 0.25}, {"axis": 1}, {"axis": -2, "stash_type": 1, "epsilon": 1e-6}]
    outputs = [[], [""], ["inverse"]] if op == SIMPLIFIED else [[]]
    ran = 0
    for given, more, constant, declared in itertools.product(attributes, outputs, [False, True], [False, True]):
        axis = given.get("axis", -1)
        shapes = {"X": (3, 5, 40), "scale": (5, 40) if axis != -1 else (40,)}
        # Small enough for the default epsilon to matter.
        feeds = feeds_of(shapes, types, seed=ran, factor=0.02)
        constants = ["scale"] if constant else []
        data = model(op, feeds, types, ["X", "scale"], more, constants=constants, declared=declared, **given)
        # Before some release after 1.24, no built-in kernel for float64 has that output.
        takes_this = takes and (x_type != F64 or "inverse" not in more or MINOR >= 32)
        ours, builtin = both(data, feeds, types, takes_this)
        y, inverse = truth(feeds["X"], feeds["scale"], axis, given.get("epsilon", 1e-5))
        judge(ours["Y"], y, scale_type, axis)
        if "inverse" in more:
            assert ours["inverse"].dtype == np.float32
            np.testing.assert_allclose(ours["inverse"], inverse, rtol=3e-7)
        assert set(ours) == {"Y", *filter(None, more)}
        if takes_this:
            assert set(builtin) == set(ours)
            alike(ours["Y"], builtin["Y"], scale_type)
            if more == ["inverse"]:
                np.testing.assert_allclose(ours["inverse"], builtin["inverse"], rtol=1e-5)
        ran += 1
    assert ran == len(attributes) * len(outputs) * 4


@pytest.mark.parametrize("op", OPS)
def test_a_norm_of_known_shape_has_the_type_of_its_scale(op):
    """Shape inference hands on the shape of X, and must not hand on its type."""
    ran = 0
    for pair, shape, declared, constant in itertools.product(
        pairs_of(op), [["a", 40], [3, 40], ["a", "b"]], [False, True], [False, True]
    ):
        types = dict(zip(("X", "scale"), pair, strict=True))
        feeds = feeds_of({"X": (3, 40), "scale": (40,)}, types)
        nodes = [
            helper.make_node(op, ["X", "scale"], ["n"], axis=-1),
            helper.make_node("Cast", ["n"], ["wide"], to=F32),
            helper.make_node("Identity", ["n"], ["Y"]),
        ]
        inputs = [helper.make_tensor_value_info("X", pair[0], shape)]
        data = make_model(
            nodes,
            inputs if constant else [*inputs, value("scale", pair[1], 1)],
            [value("Y", pair[1] if declared else None), value("wide", F32)],
            [tensor("scale", feeds["scale"], pair[1])] if constant else [],
            23 if op == RMS else 17,
        )
        ours, builtin = both(data, feeds, types, builtin_takes(op, pair[0]))
        judge(ours["Y"], truth(feeds["X"], feeds["scale"])[0], pair[1])
        if builtin:
            alike(ours["Y"], builtin["Y"], pair[1])
            alike(ours["wide"], builtin["wide"], pair[1] if pair[1] == F16 else F32)
        ran += 1
    assert ran == 12 * len(pairs_of(op))


BROADCASTS = [
    *[((2, 3, 8), s, -1) for s in [(8,), (), (1,), (1, 8), (1, 1, 8), (3, 8), (2, 1, 8), (2, 3, 8), (3, 1), (2, 1, 1)]],
    *[((2, 3, 8), s, -1) for s in [(1, 1, 1), (2, 3, 1), (1, 3, 8), (1, 3, 1)]],
    *[((2, 3, 8), s, 1) for s in [(3, 8), (8,), (1, 8), (3, 1), (), (1,), (2, 1, 1), (2, 3, 8), (1, 3, 8)]],
    *[((2, 3, 8), s, 0) for s in [(2, 3, 8), (8,), (3, 8), (2, 1, 1)]],
    *[((2, 3, 8), (8,), a) for a in [2, -1]],
    *[((2, 3, 8), (2, 3, 8), a) for a in [0, -3]],
    *[((8, 8), s, -1) for s in [(8,), (1, 8), (8, 8)]],
    *[((8,), s, 0) for s in [(8,), (1,), ()]],
    ((0, 8), (8,), -1),
    ((0, 3, 8), (3, 8), -1),
    ((1,) * 7 + (8,), (8,), -1),
    ((2, 3, 1), (3, 1), -1),
    ((2, 1), (1,), -1),
]


@pytest.mark.parametrize("op", OPS)
def test_every_scale_shape_and_axis(op):
    for (shape, scale_shape, axis), pair, constant in itertools.product(BROADCASTS, pairs_of(op), [False, True]):
        types = dict(zip(("X", "scale"), pair, strict=True))
        feeds = feeds_of({"X": shape, "scale": scale_shape}, types)
        data = model(op, feeds, types, ["X", "scale"], [], constants=["scale"] if constant else [], axis=axis)
        normalised = int(np.prod(shape[axis % len(shape) :]))
        takes = builtin_takes(op, pair[0]) and (MINOR >= 24 or int(np.prod(scale_shape)) == normalised)
        takes = takes and (normalised > 1 or MINOR not in (21, 22, 23))
        ours, builtin = both(data, feeds, types, takes)
        judge(ours["Y"], truth(feeds["X"], feeds["scale"], axis)[0], pair[1], axis)
        if takes:
            alike(ours["Y"], builtin["Y"], pair[1])


@pytest.mark.parametrize(
    ("shape", "scale_shape", "axis"),
    [
        ((2, 3, 8), (8, 1), -1),
        ((2, 3, 8), (1, 8, 1), -1),
        ((2, 3, 8), (1, 1, 1, 8), -1),
        ((2, 3, 8), (24,), 1),
        ((2, 3, 8), (6, 4), 1),
        ((2, 3, 8), (48,), 0),
        ((8, 8), (8, 1), -1),
        ((1, 8), (8, 1), -1),
        ((2, 8, 1), (8,), 1),
    ],
)
def test_a_scale_that_fits_by_its_size_is_what_this_runtime_makes_of_it(shape, scale_shape, axis):
    """Before 1.24 the size alone counts; since then the scale must broadcast, and [8, 1] is one value a row."""
    for pair in [(F32, F32), (F16, F32), (F32, F16)]:
        types = dict(zip(("X", "scale"), pair, strict=True))
        feeds = feeds_of({"X": shape, "scale": scale_shape}, types)
        data = model(SIMPLIFIED, feeds, types, ["X", "scale"], [], axis=axis)
        if MINOR < 24 or shape == (8, 8):
            ours, builtin = both(data, feeds, types)
            alike(ours["Y"], builtin["Y"], pair[1])
        else:
            for made in (options(), options(OVERRIDE)):
                with pytest.raises(Exception, match=r"[Ss]cale .*broadcast"):
                    run(data, feeds, types, made)


@pytest.mark.parametrize("op", OPS)
def test_every_opset(op):
    types = {"X": F32, "scale": F32}
    feeds = feeds_of({"X": (3, 8), "scale": (8,)}, types)
    newest = {20: 21, 21: 22, 22: 22, 23: 23, 24: 24}.get(MINOR, 26)
    for opset in range(23 if op == RMS else 7, newest + 1):
        data = model(op, feeds, types, ["X", "scale"], [], opset=opset)
        ours, builtin = both(data, feeds, types)
        alike(ours["Y"], builtin["Y"], F32)


def test_long_rows_on_several_threads():
    """More than fits into one piece, and more rows than one block."""
    for pair, shape in itertools.product(PAIRS, [(3, 9001), (300, 1031), (1, 5)]):
        types = dict(zip(("X", "scale"), pair, strict=True))
        feeds = feeds_of({"X": shape, "scale": shape[1:]}, types)
        data = model(SIMPLIFIED, feeds, types, ["X", "scale"], ["inverse"])
        ours = run(data, feeds, types, options(OVERRIDE, threads=3))
        y, inverse = truth(feeds["X"], feeds["scale"])
        judge(ours["Y"], y, pair[1])
        np.testing.assert_allclose(ours["inverse"], inverse, rtol=3e-7)


# ----------------------------------------------------------------------------------------------------------------------
# SkipSimplifiedLayerNormalization


def skip_truth(feeds, epsilon=1e-12):
    """The sum, the normed sum and the inverse rms; skip is read over and over for as many rows as X has."""
    x, skip = feeds["X"].astype(np.float64), feeds["skip"].astype(np.float64)
    total = x + np.resize(skip.reshape(-1, x.shape[-1]), (x.size // x.shape[-1], x.shape[-1])).reshape(x.shape)
    if "bias" in feeds:
        total = total + feeds["bias"].astype(np.float64)
    return total, *truth(total, feeds["gamma"], epsilon=epsilon)


def judge_skip(ours, builtin, feeds, data_type, epsilon=1e-12):
    total, y, inverse = skip_truth(feeds, epsilon)
    judge(ours["Y"], y, data_type)
    if "sum" in ours:
        judge(ours["sum"], total, data_type)
    if "inverse" in ours:
        np.testing.assert_allclose(ours["inverse"], inverse, rtol=5e-7)
    if "mean" in ours:
        assert (ours["mean"] == 0).all()
        assert ours["mean"].shape == inverse.shape
    if builtin:
        assert set(builtin) == set(ours)
        for name in ours:
            alike(ours[name], builtin[name], data_type if name in ("Y", "sum") else F32)


def skip_types(data_type):
    return dict.fromkeys(["X", "skip", "gamma", "bias"], data_type)


@pytest.mark.parametrize("data_type", [F32, F16, BF16])
@pytest.mark.parametrize("bias", [None, "", "bias"])
def test_every_optional_input_and_output_of_skip(data_type, bias):
    types = skip_types(data_type)
    inputs = ["X", "skip", "gamma", *([] if bias is None else [bias])]
    outputs = [list(names) for names in itertools.product(["", "mean"], ["", "inverse"], ["", "sum"])]
    outputs += [[], ["mean"], ["", "inverse"], ["mean", "inverse"]]
    for more, constant, declared, given in itertools.product(
        outputs, [False, True], [False, True], [{}, {"epsilon": 0.25}]
    ):
        shapes = {"X": (2, 5, 300), "skip": (2, 5, 300), "gamma": (300,), "bias": (300,)}
        # Small enough for an epsilon of 1e-5 to matter, were it the default.
        feeds = feeds_of({n: s for n, s in shapes.items() if n in inputs}, types, factor=0.02)
        constants = [n for n in ("gamma", "bias") if n in inputs] if constant else []
        data = model(SKIP, feeds, types, inputs, more, constants=constants, declared=declared, **given)
        # The statistics are only there since some release after 1.24: before, the process ends.
        takes = builtin_takes(SKIP, data_type) and (MINOR >= 32 or not {"mean", "inverse"} & set(more))
        ours, builtin = both(data, feeds, types, takes)
        assert set(ours) == {"Y", *filter(None, more)}
        judge_skip(ours, builtin, feeds, data_type, given.get("epsilon", 1e-12))


@pytest.mark.parametrize("data_type", [F32, F16, BF16])
def test_every_shape_of_skip(data_type):
    types = skip_types(data_type)
    shapes = [((3, 8), (3, 8)), ((2, 3, 8), (2, 3, 8)), ((2, 3, 8), (3, 8)), ((2, 3, 8), (1, 3, 8))]
    shapes += [((1, 3, 8), (3, 8)), ((1, 1, 8), (1, 8)), ((2, 1, 8), (1, 8)), ((4, 3, 8), (2, 3, 8))]
    shapes += [((1, 3, 8), (2, 3, 8)), ((2, 3, 8), (4, 3, 8))]  # the rest of skip is not read
    shapes += [((300, 1031), (300, 1031)), ((3, 9001), (3, 9001)), ((64, 7, 33), (7, 33))]
    empty = [((0, 8), (0, 8)), ((2, 0, 8), (2, 0, 8)), ((2, 0, 8), (0, 8))]
    for (shape, skip), bias, more in itertools.product(shapes + empty, [False, True], [[], ["", "", "sum"]]):
        given = {"X": shape, "skip": skip, "gamma": shape[-1:]} | ({"bias": shape[-1:]} if bias else {})
        feeds = feeds_of(given, types)
        data = model(SKIP, feeds, types, list(given), more)
        # The built-in kernels divide by the size of skip: before some release after 1.24, by zero.
        takes = builtin_takes(SKIP, data_type) and (0 not in shape or MINOR >= 32)
        ours, builtin = both(data, feeds, types, takes)
        if 0 in shape:
            assert ours["Y"].shape == shape
        else:
            judge_skip(ours, builtin, feeds, data_type)
            threaded = run(data, feeds, types, options(OVERRIDE, threads=3))
            for name in ours:
                np.testing.assert_array_equal(ours[name], threaded[name])


# ----------------------------------------------------------------------------------------------------------------------
# It is our kernel that runs


def pow_chain(x_rank, scale):
    nodes = [
        helper.make_node("Pow", ["X", "two"], ["squares"]),
        helper.make_node("ReduceMean", ["squares"], ["mean"], axes=[-1], keepdims=1),
        helper.make_node("Add", ["mean", "epsilon"], ["shifted"]),
        helper.make_node("Sqrt", ["shifted"], ["rms"]),
        helper.make_node("Div", ["X", "rms"], ["normalised"]),
        helper.make_node("Mul", ["normalised", "scale"], ["Y"]),
    ]
    constants = {"two": np.array(2, "f"), "epsilon": np.array(1e-5, "f"), "scale": scale}
    initializers = [tensor(n, a, F32) for n, a in constants.items()]
    return make_model(nodes, [value("X", F32, x_rank)], [value("Y", F32, x_rank)], initializers)


def ours_alone(x, scale):
    """The same norm by our own operator, from the other library."""
    attributes = {"axes": [-1], "epsilon": 1e-5, "stash_type": F32, "scale_type": F32, "output_type": F32}
    node = helper.make_node("RMSNorm", ["X", "scale"], ["Y"], domain="rmsnorm_deploy", **attributes)
    data = make_model([node], [value("X", F32, 2)], [value("Y", F32, 2)], [tensor("scale", scale, F32)])
    return run(data, {"X": x}, {"X": F32}, options(OURS))["Y"]


def test_a_node_that_onnxruntime_fuses_is_run_by_our_kernel(tmp_path):
    rng = np.random.default_rng(3)
    x, scale = rng.standard_normal((64, 300)).astype("f"), rng.standard_normal(300).astype("f")
    made = options(OVERRIDE)
    made.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    made.optimized_model_filepath = str(tmp_path / "optimised.onnx")
    got = run(pow_chain(2, scale), {"X": x}, {"X": F32}, made)["Y"]
    assert b"SimplifiedLayerNormalization" in (tmp_path / "optimised.onnx").read_bytes()
    builtin = run(pow_chain(2, scale), {"X": x}, {"X": F32}, options())["Y"]
    np.testing.assert_array_equal(got, ours_alone(x, scale))
    assert (got != builtin).any()  # which divides where we multiply by the reciprocal
    alike(got, builtin, F32)


def test_such_a_node_speaks_our_sentences():
    x = np.ones((1,) * 16 + (8,), np.float32)
    data = pow_chain(17, np.ones(8, "f"))
    assert run(data, {"X": x}, {"X": F32}, options())["Y"].shape == x.shape
    with pytest.raises(Exception, match="17 dimensions; at most 16 are supported"):
        run(data, {"X": x}, {"X": F32}, options(OVERRIDE))


@pytest.mark.parametrize("order", list(itertools.permutations([OURS, OVERRIDE])), ids=["ours first", "override first"])
def test_both_libraries_on_one_options_object(order):
    attributes = {"axes": [-1], "epsilon": 1e-12, "stash_type": F32, "scale_type": F32, "output_type": F32}
    nodes = [
        helper.make_node("AddRMSNorm", ["X", "skip", "gamma"], ["a", "s"], domain="rmsnorm_deploy", **attributes),
        helper.make_node(SKIP, ["X", "skip", "gamma"], ["b", "", "", "t"], domain="com.microsoft", epsilon=1e-12),
    ]
    types = skip_types(F32)
    feeds = feeds_of({"X": (64, 300), "skip": (64, 300), "gamma": (300,)}, types)
    data = make_model(nodes, [value(n, F32, a.ndim) for n, a in feeds.items()], [value(n, F32) for n in "asbt"])
    got = run(data, feeds, types, options(*order))
    np.testing.assert_array_equal(got["a"], got["b"])
    np.testing.assert_array_equal(got["s"], got["t"])


def test_without_the_library_the_built_in_kernels_run():
    """What one session registers does not reach another."""
    types = {"X": F32, "scale": F32}
    feeds = feeds_of({"X": (64, 300), "scale": (300,)}, types)
    data = model(SIMPLIFIED, feeds, types, ["X", "scale"], [])
    before = run(data, feeds, types, options())["Y"]
    ours = run(data, feeds, types, options(OVERRIDE))["Y"]
    np.testing.assert_array_equal(run(data, feeds, types, options())["Y"], before)
    np.testing.assert_array_equal(run(data, feeds, types, options(OURS))["Y"], before)
    assert (ours != before).any()


LEVELS = ["DISABLE_ALL", "ENABLE_BASIC", "ENABLE_EXTENDED", "ENABLE_ALL"]


@pytest.mark.parametrize("level", LEVELS)
def test_a_domain_that_the_model_does_not_import_can_be_left_alone(level):
    """onnxruntime's optimizer makes com.microsoft.QuickGelu here, which a replaced domain of version 1000 lacks."""
    nodes = [
        helper.make_node(SIMPLIFIED, ["X", "scale"], ["n"], axis=-1),
        helper.make_node("Sigmoid", ["n"], ["s"]),
        helper.make_node("Mul", ["n", "s"], ["Y"]),
    ]
    feeds, types = feeds_of({"X": (64, 300), "scale": (300,)}, dict.fromkeys(["X", "scale"], F32)), {"X": F32}
    graph = helper.make_graph(
        nodes, "g", [value("X", F32, 2)], [value("Y", F32, 2)], [tensor("scale", feeds["scale"], F32)]
    )
    data = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9).SerializeToString()
    made = [options(), options()]
    made[1].add_session_config_entry("rmsnorm_deploy.override.com.microsoft", "0")
    made[1].register_custom_ops_library(library(OVERRIDE))
    for each in made:
        each.graph_optimization_level = getattr(ort.GraphOptimizationLevel, f"ORT_{level}")
    builtin, ours = (run(data, feeds, types, each)["Y"] for each in made)
    alike(ours, builtin, F32)
    assert (ours != builtin).any()  # it is our kernel that ran


@pytest.mark.parametrize("value_of_switch", ["1", "", "00", "0 "])
def test_only_a_zero_leaves_a_domain_alone(value_of_switch):
    types = skip_types(F32)
    feeds = feeds_of({"X": (64, 300), "skip": (64, 300), "gamma": (300,)}, types)
    data = model(SKIP, feeds, types, list(feeds), [])
    made = [options(), options(OVERRIDE), options(), options()]
    for each, switch in zip(made[2:], [value_of_switch, "0"], strict=True):
        each.add_session_config_entry("rmsnorm_deploy.override.com.microsoft", switch)
        each.register_custom_ops_library(library(OVERRIDE))
    builtin, ours, switched, off = (run(data, feeds, types, each)["Y"] for each in made)
    assert (ours != builtin).any()
    np.testing.assert_array_equal(switched, ours)
    np.testing.assert_array_equal(off, builtin)


def test_a_domain_that_was_left_alone_can_be_added():
    types = skip_types(F32)
    feeds = feeds_of({"X": (64, 300), "skip": (64, 300), "gamma": (300,)}, types)
    data = model(SKIP, feeds, types, list(feeds), [])
    made = options()
    for switch in ("0", "1", "1"):
        made.add_session_config_entry("rmsnorm_deploy.override.com.microsoft", switch)
        made.register_custom_ops_library(library(OVERRIDE))
    np.testing.assert_array_equal(run(data, feeds, types, made)["Y"], run(data, feeds, types, options(OVERRIDE))["Y"])


def test_a_chain_that_reuses_memory():
    """Each output may lie where an input was."""
    for data_type, threads in itertools.product([F32, F16, BF16], [1, 3]):
        nodes, x, skip = [], "X", "skip"
        for i in range(4):
            made = ["", "", f"s{i}"]
            nodes.append(helper.make_node(SKIP, [x, skip, "gamma"], [f"y{i}", *made], domain="com.microsoft"))
            nodes.append(helper.make_node(SIMPLIFIED, [f"y{i}", "gamma"], [f"z{i}", f"inverse{i}"]))
            x, skip = f"z{i}", f"s{i}"
        types = skip_types(data_type)
        feeds = feeds_of({"X": (350, 300), "skip": (350, 300)}, types)
        gamma = np.abs(feeds_of({"gamma": (300,)}, types)["gamma"])
        shape = ["n", 300]
        known = [helper.make_tensor_value_info(f"{c}{i}", data_type, shape) for c in "yzs" for i in range(4)]
        graph = helper.make_graph(
            nodes,
            "g",
            [helper.make_tensor_value_info(n, data_type, shape) for n in feeds],
            [helper.make_tensor_value_info(n, data_type, shape) for n in (x, skip)]
            + [value(f"inverse{i}", F32) for i in range(4)],
            [tensor("gamma", gamma, data_type)],
            value_info=[info for info in known if info.name not in (x, skip)],
        )
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
        data = helper.make_model(graph, opset_imports=opsets, ir_version=9).SerializeToString()
        got = run(data, feeds, types, options(OVERRIDE, threads=threads))
        a, b = feeds["X"], feeds["skip"]
        for i in range(4):
            total, y, _ = skip_truth({"X": a, "skip": b, "gamma": gamma})
            y, b = y.astype(a.dtype), total.astype(a.dtype)
            a, inverse = truth(y, gamma)
            a = a.astype(y.dtype)
            np.testing.assert_allclose(got[f"inverse{i}"], inverse, rtol=BAR[data_type])
        for name, wanted in ((x, a), (skip, b)):
            difference = np.abs(got[name].astype(np.float64) - wanted.astype(np.float64))
            assert difference.max() <= 8 * BAR[data_type] * np.abs(wanted.astype(np.float64)).max()


@pytest.mark.parametrize("data_type", [F32, F16, BF16])
def test_what_is_not_finite_is_so_in_both(data_type):
    types = skip_types(data_type)
    feeds = feeds_of({"X": (5, 40), "skip": (5, 40), "gamma": (40,)}, types)
    feeds["X"][1, 3], feeds["X"][2, 17], feeds["X"][3, 39] = np.nan, np.inf, -np.inf
    feeds["X"][4, 5] = feeds["skip"][4, 5] = {F32: 3e38, F16: 6e4, BF16: 3e38}[data_type]
    data = model(SKIP, feeds, types, list(feeds)[:3], ["", "", "sum"])
    ours, builtin = both(data, feeds, types, builtin_takes(SKIP, data_type))
    assert np.isnan(ours["Y"][1].astype("f")).all()
    assert np.isnan(ours["Y"][2, 17])
    assert np.isinf(ours["sum"][4, 5])
    if builtin:
        for name in ours:
            np.testing.assert_array_equal(np.isnan(ours[name]), np.isnan(builtin[name]))
            np.testing.assert_array_equal(np.isinf(ours[name]), np.isinf(builtin[name]))


def test_one_session_on_several_threads():
    nodes = [
        helper.make_node(SKIP, ["X", "skip", "gamma"], ["a", "", "", "s"], domain="com.microsoft"),
        helper.make_node("Cast", ["s"], ["wide"], to=F32),
        helper.make_node(SIMPLIFIED, ["wide", "gamma"], ["b", "inverse"]),
    ]
    types = skip_types(F16)
    gamma = np.linspace(0.5, 2, 96).astype(np.float16)
    outputs = [value("a", F16), value("b", F16), value("inverse", F32)]
    data = make_model(nodes, [value(n, F16, 2) for n in ("X", "skip")], outputs, [tensor("gamma", gamma, F16)])
    session = ort.InferenceSession(data, options(OVERRIDE, threads=2))
    failures, finished = [], []

    def work(seed):
        rows = int(np.random.default_rng(seed).integers(1, 400)) + 1024 * (seed % 2)
        feeds = feeds_of({"X": (rows, 96), "skip": (rows, 96)}, types, seed)
        first = run_session(session, feeds, types)
        for _ in range(30):
            again = run_session(session, feeds, types)
            if not all(np.array_equal(first[n], again[n]) for n in first):
                failures.append(seed)
        finished.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert len(finished) == 6


# ----------------------------------------------------------------------------------------------------------------------
# Sentences


@pytest.mark.parametrize(
    ("op", "attributes", "sentence"),
    [
        (SIMPLIFIED, {"epsilon": -1.0}, "epsilon must be finite and not negative, not -1"),
        (SKIP, {"epsilon": float("nan")}, "epsilon must be finite and not negative, not nan"),
        (SIMPLIFIED, {"epsilon": 1}, "the attribute epsilon must be a float"),
        (SIMPLIFIED, {"axis": 1.0}, "the attribute axis must be an integer"),
    ],
)
def test_wrong_attributes_are_refused_when_the_model_is_loaded(op, attributes, sentence):
    inputs = ["X", "skip", "gamma"] if op == SKIP else ["X", "scale"]
    types = dict.fromkeys(inputs, F32)
    feeds = feeds_of({n: (8,) if n in ("scale", "gamma") else (3, 8) for n in inputs}, types)
    data = model(op, feeds, types, inputs, [], **attributes)
    with pytest.raises(Exception, match=f"{op} 'the_node': {sentence}"):
        ort.InferenceSession(data, options(OVERRIDE))


@pytest.mark.parametrize(
    ("shapes", "attributes", "sentence"),
    [
        ([(3, 8), (7,)], {}, "scale of shape [7] does not broadcast into X of shape [3,8]"),
        ([(1, 8), (3, 8)], {}, "scale of shape [3,8] does not broadcast into X of shape [1,8]"),
        ([(3, 8), (8,)], {"axis": 2}, "axis 2 is outside X of shape [3,8]"),
        ([(3, 8), (8,)], {"axis": -3}, "axis -3 is outside X of shape [3,8]"),
        ([(8,), (8,), (8,)], {}, "X must have 2 or 3 dimensions, not the shape [8]"),
        ([(1, 2, 3, 8), (1, 2, 3, 8), (8,)], {}, "X must have 2 or 3 dimensions, not the shape [1,2,3,8]"),
        (
            [(2, 3, 8), (8,), (8,)],
            {},
            "skip of shape [8] must have the shape of X, [2,3,8], or its last two dim",
        ),
        ([(2, 3, 8), (2, 1, 8), (8,)], {}, "skip of shape [2,1,8] must have the shape of X"),
        ([(3, 8), (1, 3, 8), (8,)], {}, "skip of shape [1,3,8] must have the shape of X"),
        ([(2, 3, 8), (0, 3, 8), (8,)], {}, "skip of shape [0,3,8] is empty"),
        ([(3, 8), (3, 8), (1, 8)], {}, "gamma of shape [1,8] must have the shape [8]"),
        ([(3, 8), (3, 8), (8,), (1,)], {}, "bias of shape [1] must have the shape [8]"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(shapes, attributes, sentence):
    op = SIMPLIFIED if len(shapes) == 2 else SKIP
    names = ["X", "scale"] if op == SIMPLIFIED else ["X", "skip", "gamma", "bias"][: len(shapes)]
    types = dict.fromkeys(names, F32)
    feeds = feeds_of(dict(zip(names, shapes, strict=True)), types)
    data = model(op, feeds, types, names, [], **attributes)
    with pytest.raises(Exception) as caught:  # noqa: PT011  onnxruntime's exceptions share no base of their own
        run(data, feeds, types, options(OVERRIDE))
    assert f"{op} 'the_node': {sentence}" in str(caught.value)


def test_an_unknown_instruction_set_is_refused_at_registration():
    code = "import onnxruntime, sys; onnxruntime.SessionOptions().register_custom_ops_library(sys.argv[1])"
    done = subprocess.run(
        [sys.executable, "-c", code, library(OVERRIDE)],
        env=os.environ | {"RMSNORM_DEPLOY_ISA": "abacus"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert "RMSNORM_DEPLOY_ISA is 'abacus'" in done.stderr


@pytest.mark.skipif("RMSNORM_DEPLOY_ISA" in os.environ, reason="is that run")
@pytest.mark.parametrize("isa", ["portable", "avx2"])
def test_every_instruction_set(isa):
    command = [sys.executable, "-m", "pytest", "-q", "--noconftest", "-c", os.devnull, "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, "-k", "every_optional or every_type or long_rows or chain", __file__],
        env=os.environ | {"RMSNORM_DEPLOY_ISA": isa, "RMSNORM_DEPLOY_LIBRARY": library(OURS)},
        capture_output=True,
        text=True,
        check=False,
    )
    if "which this library or this machine lacks" in done.stdout:
        pytest.skip(f"this machine has no {isa}")
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert " passed" in done.stdout
