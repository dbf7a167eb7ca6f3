"""Every combination of types that fusing writes loads and is right: each onnxruntime, with the library or without."""

import subprocess
import sys

import numpy as np
import onnx
import pytest

import rmsnorm_deploy
from rmsnorm_deploy.op import DOMAIN
from rmsnorm_deploy.run.library import library_path
from tests.support.judge import units
from tests.support.older import ROOT, VERSIONS, python_with
from tests.support.run import run
from tests.support.run_files import WAYS
from tests.support.spellings.graph import NUMPY, B, D, F, Graph, H

SIZE = 16
TYPES = {"float32": F, "float16": H, "bfloat16": B, "float64": D}
# what the mean square becomes; what x / that is multiplied by; whether GeneralRMSNorm alone can be it
STATISTICS = {
    "epsilon": (lambda g, x: g.op("Sqrt", g.reduce("ReduceMean", x * x, (-1,)) + 1e-3), 1.0),
    "floor": (lambda g, x: g.op("Clip", g.reduce("ReduceL2", x, (-1,)), g.constant(1e-3, x.dtype)), SIZE**-0.5),
    "outside": (lambda g, x: g.op("Sqrt", g.reduce("ReduceMean", x * x, (-1,))) + 1e-3, 1.0),
    "multiple": (lambda g, x: g.op("Sqrt", g.reduce("ReduceSum", x * x, (-1,)) + 1e-3), SIZE**-0.5),
}
PARAMETERS = ("none", "narrow", "narrow, widened", "wide")


def data(dtype):
    x = np.random.default_rng(0).standard_normal((3, SIZE)).astype(NUMPY[dtype])
    x[1] = 0
    return x


def truth_of(x, how, scale, bias):
    wide = x.astype(np.float64)
    square = (wide**2).mean(-1, keepdims=True)
    rms = {
        "epsilon": lambda: np.sqrt(square + 1e-3),
        "floor": lambda: np.maximum(np.sqrt(square * SIZE), 1e-3),
        "outside": lambda: np.sqrt(square) + 1e-3,
        "multiple": lambda: np.sqrt(square * SIZE + 1e-3),
    }[how]()
    return wide / rms * scale + bias


def norm(g, x, dtype, how, scale, bias):
    """One norm, and its scale and bias as numbers."""
    inner = F if dtype in (H, B) else dtype
    wide = g.cast(x, inner)
    y = wide / STATISTICS[how][0](g, wide)
    values = np.linspace(0.5, 2, SIZE), np.linspace(-1, 1, SIZE)

    def parameter(kind, numbers):
        if kind == "wide":
            return g.cast(g.weight(numbers, F), inner), numbers.astype(np.float32)
        return g.weight(numbers, dtype), numbers.astype(NUMPY[dtype])

    given = []
    narrow = False
    for op, kind, numbers in (("Mul", scale, values[0]), ("Add", bias, values[1])):
        if kind == "none":
            given.append(np.float64(op == "Mul"))
            continue
        value, exact = parameter(kind, numbers)
        given.append(exact.astype(np.float64))
        if kind == "narrow" and inner != dtype and not narrow:
            y, narrow = g.cast(y, dtype), True
        y = g.op(op, y, value if kind != "narrow, widened" else g.cast(value, inner))
    return (g.cast(y, dtype) if inner != dtype and not narrow else y), *given


def grid(dtype):
    """The model of all combinations of a type: its one output has them all."""
    opset = 17
    g, x_there, truths = Graph(opset), data(dtype), []
    x, r = (g.input(n, dtype, ["n", SIZE]) for n in "xr")
    parts = []
    for how, (_, factor) in STATISTICS.items():
        general = how in ("floor", "outside")
        for scale in PARAMETERS:
            for bias in PARAMETERS if general else ("none",):
                narrowed = dtype in (H, B) and "narrow" in (scale, bias)
                # a graph cannot add two types; and what the operator does not round as the graph does stays outside
                if narrowed and (len({scale, bias} - {"none"}) > 1 or factor != 1):
                    continue
                y, *given = norm(g, x, dtype, how, scale, bias)
                truths.append(truth_of(x_there, how, *given))
                parts.append(y)
                if how == "epsilon":
                    y, *given = norm(g, x + r, dtype, how, scale, bias)
                    truths.append(truth_of((x_there + x_there[::-1]).astype(x_there.dtype), how, *given))
                    parts.append(y)
    out = D if dtype == D else F
    y = g.op("Concat", *(p if dtype == out else g.cast(p, out) for p in parts), dtype=out, axis=0)
    g.output(y, "y", ["rows", SIZE])
    return g.model(), {"x": x_there, "r": x_there[::-1]}, np.concatenate(truths), len(parts)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A folder with the fused grid of each type, and what is known of each."""
    folder, known = tmp_path_factory.mktemp("types"), {}
    for name, dtype in TYPES.items():
        model, feeds, truth, count = grid(dtype)
        fused, report = rmsnorm_deploy.fuse(model)
        assert len(report.fused) == count, [m.reason for m in report.missed]
        onnx.save(fused, folder / f"{name}.onnx")
        np.savez(folder / f"{name}.npz", **{k: v.astype(np.float64) for k, v in feeds.items()})
        known[name] = fused, truth
    return folder, known


@pytest.mark.parametrize("name", TYPES)
def test_the_grid_has_every_combination_of_types(files, name):
    fused, dtype = files[1][name][0], TYPES[name]
    inferred = onnx.shape_inference.infer_shapes(fused)
    types = {i.name: i.type.tensor_type.elem_type for i in [*inferred.graph.value_info, *inferred.graph.input]}
    types |= {t.name: t.data_type for t in inferred.graph.initializer}
    found = {(n.op_type, *(types[i] for i in n.input)) for n in fused.graph.node if n.domain == DOMAIN}
    kinds = {dtype} if dtype == D else {dtype, F}
    wanted = {("GeneralRMSNorm", dtype, s, s) for s in kinds}
    if dtype != D:  # float64 norms are GeneralRMSNorm: onnxruntime before 1.31 fuses the other bodies wrongly
        wanted |= {("RMSNorm", dtype, s) for s in kinds} | {("AddRMSNorm", dtype, dtype, s) for s in kinds}
    assert found == wanted


@pytest.mark.parametrize("runtime", ["installed", *VERSIONS])
def test_every_combination_loads_and_is_right(files, tmp_path, runtime):
    folder, known = files
    python = sys.executable if runtime == "installed" else python_with(runtime)
    command = [python, "-m", "tests.support.run_files", folder, tmp_path, library_path()]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    for name, (_, truth) in known.items():
        made = np.load(tmp_path / f"{name}.npz")
        assert set(made) == set(WAYS)
        for way in WAYS:
            got = made[way].astype(NUMPY[TYPES[name]])
            slack = 8 if TYPES[name] == F else 3
            assert units(got, truth) <= slack or TYPES[name] == D, (name, way)
            np.testing.assert_allclose(made[way], truth, atol=1e-6 if TYPES[name] in (F, D) else 0.04)


@pytest.mark.parametrize("x", TYPES)
@pytest.mark.parametrize("scale", TYPES)
@pytest.mark.parametrize(
    "operator", ["RMSNormalization", "SimplifiedLayerNormalization", "SkipSimplifiedLayerNormalization"]
)
def test_operators_of_two_types_become_what_loads_or_stay(operator, x, scale):
    g, x_type, scale_type = Graph(23), TYPES[x], TYPES[scale]
    skip = operator.startswith("Skip")
    inputs = [g.input(n, x_type, ["n", SIZE]) for n in ("xr" if skip else "x")]
    w = np.linspace(0.5, 2, SIZE)
    attributes = {"domain": "com.microsoft"} if skip else {"axis": -1}
    dtype = x_type if skip else scale_type
    g.output(
        g.op(operator, *inputs, g.weight(w, scale_type), dtype=dtype, epsilon=1e-3, **attributes), "y", ["n", SIZE]
    )
    model = g.model(extra_opsets=[onnx.helper.make_opsetid("com.microsoft", 1)])
    fused, report = rmsnorm_deploy.fuse(model)
    fits = x_type != D and scale_type in (x_type, F) if skip else scale_type != D or x_type == D
    assert bool(report.fused) == fits
    if not report.fused:
        assert fused.SerializeToString() == model.SerializeToString()
        return
    there = data(x_type)
    feeds = {"x": there, "r": there} if skip else {"x": there}
    total = (there + there if skip else there).astype(np.float64)
    truth = total / np.sqrt((total**2).mean(-1, keepdims=True) + 1e-3) * w.astype(NUMPY[scale_type]).astype(np.float64)
    for hook in (None, rmsnorm_deploy.register):
        got = run(fused, feeds, True, hook)[0].astype(np.float64)
        np.testing.assert_allclose(got, truth, rtol=2e-2 if {x_type, scale_type} & {H, B} else 1e-6, atol=1e-6)


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_one_number_beside_a_factor_leaves_all_operands_of_one_type(name):
    """The square root of n that the L2 norm leaves out goes into the scale, which is float32 then: so is the bias."""
    g, dtype = Graph(22), TYPES[name]
    x = g.input("x", dtype, ["n", SIZE])
    g.output(g.op("Mul", g.op("LpNormalization", x, axis=-1, p=2), g.constant(3.0, dtype)), "y", ["n", SIZE])
    fused, report = rmsnorm_deploy.fuse(g.model())
    assert len(report.fused) == 1
    (norm_node,) = (n for n in fused.graph.node if n.domain == DOMAIN)
    types = {t.name: t.data_type for t in fused.graph.initializer}
    assert [types[i] for i in norm_node.input[1:]] == [F, F]
    again, second = rmsnorm_deploy.fuse(fused)
    assert second.repaired == ()
    assert again.SerializeToString() == fused.SerializeToString()
