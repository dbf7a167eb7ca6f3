"""Unfusing, and the form 'standard': norms as standard operators, losslessly."""

import collections
import json
import subprocess

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import rmsnorm_deploy
from rmsnorm_deploy.errors import UsageError
from rmsnorm_deploy.model.graphs import nodes_of
from rmsnorm_deploy.op import DOMAIN, NormParameters, Op, function_body, min_opset
from tests.support.damaged import DAMAGES, exported, feeds_of
from tests.support.graphs import chain, if_model, same_results
from tests.support.judge import rows
from tests.support.older import ROOT, VERSIONS, python_with
from tests.support.run import run
from tests.support.spellings.graph import NUMPY, B, D, F, Graph, H
from tests.support.spellings.norms import LAYOUTS, Spelling, build

SAMPLES = sorted((ROOT / "samples" / "models").glob("*.onnx"))


def named(path):
    return path.stem


def is_plain(model):
    """Nothing but standard operators, each with a name, and constants that every tool can read."""
    onnx.checker.check_model(model, full_check=True)
    assert not model.functions
    assert {o.domain for o in model.opset_import} == {""}
    for node in nodes_of(model):
        assert node.domain == ""
        assert node.name
        assert node.op_type != "Constant" or [a.name for a in node.attribute] == ["value"]
    return True


# -- there and back ---------------------------------------------------------------------------------------------------

FEATURES = {
    "plain": {},
    "residual": {"residual": True},
    "without_scale": {"scale": "none"},
    "scalar_scale": {"scale": "scalar"},
    "one_plus_scale": {"scale": "one_plus"},
    "two_axes": {"axes": (-2, -1)},
    "channels": {"axes": (1,), "shape": (2, 4, 3, 5)},
    "epsilon_outside": {"outside": 1e-3},
    "outside_and_bias": {"outside": 1e-3, "bias": True},
    "floor": {"clamp": "max", "floor": 0.1, "inside": "none"},
    "partial": {"partial": 3},
    "no_epsilon": {"inside": "none"},
    "open_sizes": {"shape": ("b", "s", 8)},
}


@pytest.mark.parametrize("opset", [11, 13, 17, 18, 24])
@pytest.mark.parametrize("feature", FEATURES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_fuse_unfuse_fuse_gives_the_same_file(layout, feature, opset):
    if opset < 13 and layout.endswith("bf16"):
        pytest.skip("bfloat16 came in opset 13")
    model = build(Spelling(layout=layout, opset=opset, epsilon=1e-5, **FEATURES[feature])).model
    fused, report = rmsnorm_deploy.fuse(model)
    if not report.fused:
        pytest.skip(f"no such norm: {report.missed[0].reason}")
    plain, report = rmsnorm_deploy.unfuse(fused)
    assert (len(report.fused), report.already, report.missed) == (1, 0, ())
    assert is_plain(plain)
    assert {o.domain: o.version for o in plain.opset_import} == {
        o.domain: o.version for o in fused.opset_import if o.domain != DOMAIN
    }
    again, _ = rmsnorm_deploy.fuse(plain)
    assert again.SerializeToString(deterministic=True) == fused.SerializeToString(deterministic=True)


@pytest.mark.parametrize("path", SAMPLES, ids=named)
def test_samples_there_and_back(path):
    fused, first = rmsnorm_deploy.fuse(path)
    plain, report = rmsnorm_deploy.unfuse(fused)
    assert report.summary() == f"unfused {len(first.fused)} of {len(first.fused)}"
    assert is_plain(plain)
    again, _ = rmsnorm_deploy.fuse(plain)
    assert again.SerializeToString(deterministic=True) == fused.SerializeToString(deterministic=True)


# -- numbers ----------------------------------------------------------------------------------------------------------

GATED = tuple({"activation": a, "gate_at": at} for a in (0, 1) for at in (0, 1, 2))
GENERAL = (
    {},
    {"partial_size": 3},
    {"epsilon_outside": 1e-3},
    {"rms_floor": 0.7},
    {"partial_size": 5, "epsilon_outside": 0.1, "rms_floor": 0.2},
)
TYPES = (  # X, arithmetic, rounding, scale
    *((F, F, F, F), (H, F, F, F), (H, F, F, H), (H, F, H, H), (H, F, H, F), (B, F, F, F), (B, F, B, B), (B, F, B, F)),
    *((D, D, D, D), (F, D, F, F), (F, D, D, F), (H, D, H, H), (H, D, D, F), (D, D, D, F)),
)


def by_hand(parameters, scale_type, opset, bias=None):
    """A model of one node of ours, x of shape [2, 3, 8]."""
    rng, shape, p = np.random.default_rng(0), (2, 3, 8), parameters
    first = min(a % 3 for a in p.axes)
    scale = [n if i + first in {a % 3 for a in p.axes} else 1 for i, n in enumerate(shape[first:])]

    def tensor(name, array):
        return numpy_helper.from_array(np.asarray(array).astype(NUMPY[scale_type]), name)

    names = {"X": "x", "residual": "r", "gate": "z", "scale": "w", "bias": "b", "Y": "y", "sum": "s"}
    weights = [tensor("w", rng.uniform(0.5, 2, scale))]
    if "bias" in p.op.inputs:
        weights.append(tensor("b", rng.standard_normal(scale) if bias is None else bias))
    node = helper.make_node(
        p.op.value, [names[i] for i in p.op.inputs], [names[o] for o in p.op.outputs], "norm", domain=DOMAIN
    )
    node.attribute.extend(helper.make_attribute(name, value) for name, value in p.to_attributes().items())
    values = {n: helper.make_tensor_value_info(n, p.output_type, shape) for n in "xrzys"}
    graph = helper.make_graph(
        [node],
        "g",
        [values[names[i]] for i in p.op.inputs if i in ("X", "residual", "gate")],
        [values[o] for o in node.output],
        weights,
    )
    imports = [helper.make_opsetid("", opset), helper.make_opsetid(DOMAIN, 1)]
    functions = [function_body(p.op, opset)]
    return helper.make_model(graph, opset_imports=imports, functions=functions, ir_version=8)


def bits(array):
    """The bits of every number; every NaN has the same."""
    kind = {2: np.uint16, 4: np.uint32, 8: np.uint64}[array.dtype.itemsize]
    return np.where(
        np.isnan(array.astype(np.float64)), kind(-1 & np.iinfo(kind).max), np.ascontiguousarray(array).view(kind)
    )


@pytest.mark.parametrize("opset", [12, 13, 18])
@pytest.mark.parametrize("op", [op for op in Op if not op.quantises])
@pytest.mark.parametrize("types", TYPES, ids=str)
def test_numbers_are_those_of_the_body_bit_for_bit(types, op, opset):
    output, stash, rounding, scale = types
    checked = 0
    for special in {Op.GENERAL_RMS_NORM: GENERAL, Op.GATED_RMS_NORM: GATED}.get(op, ({},)):
        for axes, epsilon in (((-1,), 1e-5), ((-1,), 0.0), ((1,), 1e-6), ((-2, -1), 1e-6)):
            if len(axes) > 1 and "partial_size" in special:
                continue
            p = NormParameters(op, output, axes=axes, epsilon=epsilon, stash_type=stash, scale_type=rounding, **special)
            if min_opset(p) > opset:
                pytest.skip("bfloat16 came in opset 13")
            model = by_hand(p, scale, opset)
            plain, report = rmsnorm_deploy.unfuse(model)
            assert report.fused[0].attributes == p.to_attributes()
            assert is_plain(plain)
            feeds = {i.name: (rows((2, 3, 8), np.float32, k) * 3) for k, i in enumerate(model.graph.input)}
            feeds["x"][0, 0] = 0
            feeds["x"][0, 1, 0], feeds["x"][0, 2, 1] = np.nan, np.inf
            feeds = {name: value.astype(NUMPY[output]) for name, value in feeds.items()}
            with np.errstate(all="ignore"):
                want, got = (ReferenceEvaluator(m).run(None, feeds) for m in (model, plain))
            for a, b in zip(want, got, strict=True):
                np.testing.assert_array_equal(bits(np.asarray(a)), bits(np.asarray(b)), err_msg=str(p))
            checked += 1
    assert checked


@pytest.mark.parametrize("epsilon", [1e-5, 1e-6, 2.0**-126, 9.99999974e-06, 0.1])
@pytest.mark.parametrize("dtype", [F, H, D])
def test_epsilon_stays_to_the_bit(dtype, epsilon):
    stash = D if dtype == D else F
    # float64 norms are of this operator, since nothing else has such arithmetic
    op = Op.GENERAL_RMS_NORM if dtype == D else Op.RMS_NORM
    p = NormParameters(op, dtype, epsilon=epsilon, stash_type=stash, scale_type=stash)
    plain, _ = rmsnorm_deploy.unfuse(by_hand(p, dtype, 18, bias=-0.0))
    (node,) = rmsnorm_deploy.fuse(plain)[0].graph.node
    assert NormParameters.from_node(node, version=1) == p


@pytest.mark.parametrize("layout", ["llamabf16", "gemmabf16"])
@pytest.mark.parametrize("residual", [False, True])
def test_bfloat16_runs_on_the_cpu(layout, residual):
    """onnxruntime has no bfloat16 kernels for sums and products there."""
    fused, _ = rmsnorm_deploy.fuse(build(Spelling(layout=layout, residual=residual)).model)
    plain, _ = rmsnorm_deploy.unfuse(fused)
    feeds = {n: rows((2, 3, 8), ml_dtypes.bfloat16, k) for k, n in enumerate("xr" if residual else "x")}
    for optimise in (False, True):
        for a, b in zip(run(fused, feeds, False), run(plain, feeds, optimise), strict=True):
            np.testing.assert_array_equal(bits(a), bits(b))


# -- where norms live -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("opset", [16, 18])
def test_norms_in_branches(opset, dtype):
    model = exported(opset, dtype)
    fused, _ = rmsnorm_deploy.fuse(model)
    plain, report = rmsnorm_deploy.unfuse(fused)
    assert len(report.fused) == 5
    assert is_plain(plain)
    assert rmsnorm_deploy.fuse(plain)[0] == fused
    feeds = feeds_of(model)
    for a, b in zip(
        ReferenceEvaluator(fused).run(None, feeds), ReferenceEvaluator(plain).run(None, feeds), strict=True
    ):
        np.testing.assert_array_equal(a, b)


def test_both_branches_of_an_if():
    fused, _ = rmsnorm_deploy.fuse(if_model())
    plain, report = rmsnorm_deploy.unfuse(fused)
    assert len(report.fused) == 2
    assert is_plain(plain)
    assert rmsnorm_deploy.fuse(plain)[0] == fused


def in_a_function(opset, inner):
    """The norm of a local function that imports another opset than the model."""
    g = Graph(opset=inner)
    x, w = g.input("fx", F, (2, 3, 8)), g.input("fw", F, (8,))
    y = chain(g, x, w)["y"]
    for tensor in g.initializers:
        g.nodes.insert(0, helper.make_node("Constant", [], [tensor.name], value=tensor))
    imports = [helper.make_opsetid("", inner)]
    function = helper.make_function("local", "Norm", ["fx", "fw"], [y.name], g.nodes, imports)
    outer = Graph(opset=opset)
    x, w = outer.input("x", F, (2, 3, 8)), outer.input("w", F, (8,))
    outer.output(outer.op("Norm", x, w, domain="local"), "y", (2, 3, 8))
    return outer.model([function], [helper.make_opsetid("local", 1)])


@pytest.mark.parametrize(("opset", "inner"), [(17, 17), (18, 18), (18, 17), (17, 18)])
def test_a_norm_in_a_function_is_written_in_the_models_opset(opset, inner):
    """Runtimes and onnx's checker take no operator in a function that is another one in the model's opset."""
    fused, report = rmsnorm_deploy.fuse(in_a_function(opset, inner))
    assert len(report.fused) == 1
    plain, _ = rmsnorm_deploy.unfuse(fused)
    (function,) = plain.functions
    assert {o.domain: o.version for o in function.opset_import} == {"": opset}
    assert {o.domain for o in plain.opset_import} == {"", "local"}
    assert all(n.name for n in function.node if n.op_type != "Constant")
    (mean,) = (n for n in function.node if n.op_type == "ReduceMean")
    assert len(mean.input) == (2 if opset >= 18 else 1)
    same_results(fused, plain, {"x": rows((2, 3, 8), np.float32), "w": np.linspace(1, 2, 8, dtype=np.float32)})
    assert rmsnorm_deploy.fuse(plain)[1].summary() == "fused 1 of 1"


@pytest.mark.parametrize("form", ["standard", "plugin"])
@pytest.mark.parametrize(("opset", "inner"), [(24, 23), (23, 24), (21, 20), (22, 18)])
def test_what_is_written_into_a_function_is_valid_beside_the_models_opset(opset, inner, form):
    """Constant and Cast are other operators in each of these opsets; RMSNormalization and Mul are not."""
    if inner < 23 or opset < 23:
        nodes = [helper.make_node("SimplifiedLayerNormalization", ["fx", "fw"], ["fy"], axis=-1, epsilon=1e-3)]
    else:
        nodes = [helper.make_node("RMSNormalization", ["fx", "fw"], ["fy"], axis=-1, epsilon=1e-3)]
    function = helper.make_function("local", "Norm", ["fx", "fw"], ["fy"], nodes, [helper.make_opsetid("", inner)])
    outer = Graph(opset=opset)
    x, w = outer.input("x", F, (2, 3, 8)), outer.input("w", F, (8,))
    outer.output(outer.op("Norm", x, w, domain="local"), "y", (2, 3, 8))
    model = outer.model([function], [helper.make_opsetid("local", 1)])
    fused, report = rmsnorm_deploy.fuse(model, form=form)
    assert len(report.fused) + report.already == 1
    onnx.checker.check_model(fused)
    onnx.checker.check_model(rmsnorm_deploy.unfuse(fused)[0])


def test_what_is_not_ours_stays():
    g = Graph()
    x = g.input("x", F, (2, 3, 8))
    g.output(chain(g, x, g.weight(np.ones(8), F))["y"], "y", (2, 3, 8))
    model = g.model()
    plain, report = rmsnorm_deploy.unfuse(model)
    assert plain == model
    assert report.summary() == "there is no norm to unfuse"
    assert not report.fused


def test_other_norms_stay_and_the_form_takes_them_too():
    original = onnx.load(SAMPLES[0])
    fused, _ = rmsnorm_deploy.fuse(original)
    half = onnx.compose.merge_models(
        onnx.compose.add_prefix(fused, "one_"), onnx.compose.add_prefix(original, "two_"), []
    )
    plain, report = rmsnorm_deploy.unfuse(half)
    assert len(report.fused) == 5
    kept = {n.name for n in half.graph.node if n.name.startswith("two_")}
    assert kept <= {n.name for n in plain.graph.node}
    both, report = rmsnorm_deploy.fuse(half, form="standard")
    assert (len(report.fused), report.already) == (10, 0)
    assert is_plain(both)


@pytest.mark.parametrize("damage", DAMAGES)
def test_what_tools_have_done_is_no_obstacle(damage):
    model = exported()
    fused, _ = rmsnorm_deploy.fuse(model)
    plain, report = rmsnorm_deploy.unfuse(DAMAGES[damage][0](fused))
    assert len(report.fused) == 5
    assert is_plain(plain)
    want, got = (ReferenceEvaluator(m).run(None, feeds_of(model)) for m in (model, plain))
    np.testing.assert_allclose(got[0], want[0], rtol=1e-5, atol=1e-6)


def test_a_node_that_means_nothing_stays_with_a_warning():
    p = NormParameters(Op.RMS_NORM, F)
    model = by_hand(p, F, 18)
    model.graph.node[0].attribute.append(helper.make_attribute("unheard_of", 1))
    kept, report = rmsnorm_deploy.unfuse(model)
    assert report.summary() == "unfused 0 of 1"
    assert report.already == 1
    assert "no attribute unheard_of" in report.missed[0].reason
    assert "unheard_of" in report.warnings[0]
    assert kept.functions


# -- what it takes and gives ------------------------------------------------------------------------------------------


def test_nothing_of_the_callers_changes():
    fused, _ = rmsnorm_deploy.fuse(SAMPLES[0])
    before = fused.SerializeToString()
    rmsnorm_deploy.unfuse(fused)
    assert fused.SerializeToString() == before
    same, report = rmsnorm_deploy.unfuse(fused, dry_run=True)
    assert same.SerializeToString() == before
    assert len(report.fused) == 5
    model = ir.from_proto(fused)
    plain, _ = rmsnorm_deploy.unfuse(model)
    assert isinstance(plain, ir.Model)
    assert ir.to_proto(model).SerializeToString() == ir.to_proto(ir.from_proto(fused)).SerializeToString()
    assert is_plain(ir.to_proto(plain))
    with pytest.raises(UsageError, match="cannot unfuse a int"):
        rmsnorm_deploy.unfuse(3)


def test_weights_beside_the_file_are_not_read(tmp_path):
    original = onnx.load(SAMPLES[0])
    onnx.save(original, tmp_path / "m.onnx", save_as_external_data=True, location="w.bin", size_threshold=512)
    fused, _ = rmsnorm_deploy.fuse(tmp_path / "m.onnx")
    rmsnorm_deploy.save(fused, tmp_path / "f.onnx", source=tmp_path / "m.onnx")
    weights = (tmp_path / "w.bin").read_bytes()
    (tmp_path / "w.bin").write_bytes(bytes(len(weights)))
    plain, report = rmsnorm_deploy.unfuse(tmp_path / "f.onnx")
    assert len(report.fused) == 5
    rmsnorm_deploy.save(plain, tmp_path / "p.onnx", source=tmp_path / "f.onnx")
    (tmp_path / "w.bin").write_bytes(weights)
    rmsnorm_deploy.verify(SAMPLES[0], tmp_path / "p.onnx").require()


@pytest.mark.parametrize("form", ["onnx", "ort", "standard"])
@pytest.mark.parametrize("path", SAMPLES, ids=named)
def test_a_fused_file_in_another_form_is_the_original_in_that_form(path, form):
    direct, first = rmsnorm_deploy.fuse(path, form=form)
    fused, _ = rmsnorm_deploy.fuse(path)
    there, second = rmsnorm_deploy.fuse(fused, form=form)
    assert [n.op_type for n in there.graph.node] == [n.op_type for n in direct.graph.node]
    assert not there.functions
    assert (len(second.fused), second.already) == (len(first.fused), 0)
    assert second.ops_after == first.ops_after
    assert not any("plugin" in w for w in second.warnings)


def test_what_another_form_cannot_express_needs_no_library_either():
    fused, _ = rmsnorm_deploy.fuse(build(Spelling(partial=3)).model)
    there, report = rmsnorm_deploy.fuse(fused, form="ort")
    assert is_plain(there)
    assert (len(report.fused), len(report.missed), report.already) == (0, 1, 0)
    same_results(fused, there, {"x": rows((2, 3, 8), np.float32)})


# -- runtimes fuse it -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", SAMPLES, ids=named)
def test_onnxruntime_fuses_every_norm_of_the_samples(path, tmp_path):
    model, report = rmsnorm_deploy.fuse(path, form="standard")
    assert rmsnorm_deploy.verify(path, model).passed
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.optimized_model_filepath = str(tmp_path / "optimised.onnx")
    ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    found = collections.Counter(n.op_type for n in nodes_of(onnx.load(tmp_path / "optimised.onnx")))
    assert found["SimplifiedLayerNormalization"] == len(report.fused)


HAZARDS = {
    # onnxruntime 1.20 fuses a scale of shape [1] and refuses it then
    "scale_of_one_element": lambda g, x: chain(g, x, g.weight(np.full(1, 1.5), F))["y"],
    # onnxruntime takes a vector that enlarges the norm for its scale
    "enlarging_factor": lambda g, x: chain(g, x)["y"] * g.weight(np.linspace(1, 2, 8), F),
}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("hazard", HAZARDS)
def test_what_onnxruntime_would_fuse_wrongly_is_spelled_so_that_it_does_not(hazard, version, tmp_path):
    g = Graph()
    shape = (2, 3, 8) if hazard == "scale_of_one_element" else (2, 3, 1)
    x = g.input("x", F, shape)
    g.output(HAZARDS[hazard](g, x), "y", (2, 3, 8))
    model = g.model()
    fused, report = rmsnorm_deploy.fuse(model)
    assert [f.op for f in report.fused] == ["GeneralRMSNorm"]
    plain, _ = rmsnorm_deploy.unfuse(fused)
    again, _ = rmsnorm_deploy.fuse(plain)
    assert [n.attribute for n in again.graph.node] == [n.attribute for n in fused.graph.node]
    onnx.save(plain, tmp_path / "m.onnx")
    value = rows(shape, np.float32)
    np.save(tmp_path / "x.npy", value)
    script = (
        "import json, numpy, onnxruntime as ort; s = ort.InferenceSession('m.onnx', providers=['CPUExecutionProvider'])"
        "\nprint(json.dumps(s.run(None, {'x': numpy.load('x.npy')})[0].tolist()))"
    )
    done = subprocess.run(
        [python_with(version), "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    want = ReferenceEvaluator(model).run(None, {"x": value})[0]
    np.testing.assert_allclose(np.array(json.loads(done.stdout)), want, rtol=1e-5, atol=1e-6)
