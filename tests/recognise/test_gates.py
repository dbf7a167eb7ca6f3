"""Gates of norms: how they are written, where they stand, and what only looks like one."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import rmsnorm_deploy
from rmsnorm_deploy.errors import UsageError
from rmsnorm_deploy.op.reference import rms_norm
from tests.support.graphs import nodes_of, same_results
from tests.support.spellings.graph import I64, D, F, Graph, H, V

SHAPE, SIZE = (2, 3, 8), 8
WEIGHT = np.linspace(0.5, 2, SIZE)
NUMPY = {F: np.float32, H: np.float16, D: np.float64}


def ints(g, values):
    return g.constant(values, I64)


def mean(g, value, axes=(-1,)):
    return g.reduce("ReduceMean", value, axes)


def half(g, z):
    """The second output of a Split."""
    names = [g.name("split"), g.name("split")]
    g.nodes.append(onnx.helper.make_node("Split", [z.name], names, name=g.name("node"), axis=-1, num_outputs=2))
    return V(g, names[1], z.dtype)


def cast(g, v, dtype):
    return v if v.dtype == dtype else g.cast(v, dtype)


def silu(g, z):
    return z * g.op("Sigmoid", z)


SIGMOIDS = {
    "Sigmoid": lambda g, z: g.op("Sigmoid", z),
    "1/(1+exp(-z))": lambda g, z: 1.0 / (g.op("Exp", g.op("Neg", z)) + 1.0),
    "Reciprocal": lambda g, z: g.op("Reciprocal", g.op("Exp", g.op("Neg", z)) + 1.0),
    "Mul -1": lambda g, z: 1.0 / (1.0 + g.op("Exp", z * -1.0)),
    "0-z": lambda g, z: 1.0 / (1.0 + g.op("Exp", g.constant(0.0, z.dtype) - z)),
    "Identity": lambda g, z: g.op("Identity", g.op("Sigmoid", g.op("Identity", z))),
}
SILUS = {
    **{f"z*{name}": (lambda g, z, s=s: z * s(g, z)) for name, s in SIGMOIDS.items()},
    **{f"{name}*z": (lambda g, z, s=s: s(g, z) * z) for name, s in SIGMOIDS.items()},
    "z/(1+exp(-z))": lambda g, z: z / (g.op("Exp", g.op("Neg", z)) + 1.0),
}
CONTRIB = {
    "QuickGelu": lambda g, z: g.op("QuickGelu", z, domain="com.microsoft", alpha=1.0),
}


def norm(g, x, epsilon=1e-5):
    return x / g.op("Sqrt", mean(g, x * x) + epsilon)


def model_of(build, dtype=F, gate_dtype=None, opset=18, shape=SHAPE):
    """A model of ``build(g, x, z, w)``, whose output is of x's type."""
    g = Graph(opset)
    x, z = g.input("x", dtype, shape), g.input("z", dtype if gate_dtype is None else gate_dtype, shape)
    y = build(g, x, z, g.weight(WEIGHT, dtype, "w"))
    for i, value in enumerate(y if isinstance(y, tuple) else (y,)):
        g.output(value, "y" if i == 0 else f"other{i}", shape)
    return g.model()


def fused_of(model, form="plugin"):
    fused, report = rmsnorm_deploy.fuse(model, form=form, also=["gates"])
    onnx.checker.check_model(fused, full_check=True)
    return fused, report


def data(dtype=F, gate_dtype=None, shape=SHAPE):
    rng = np.random.default_rng(5)
    x = rng.standard_normal(shape).astype(NUMPY[dtype])
    return {"x": x, "z": (3 * rng.standard_normal(shape)).astype(NUMPY[dtype if gate_dtype is None else gate_dtype])}


def found(model, at, activation, **attributes):
    """The fused model, which has to be one GatedRMSNorm and nothing else."""
    fused, report = fused_of(model)
    assert [n.op_type for n in fused.graph.node] == ["GatedRMSNorm"]
    (one,) = report.fused
    given = {"gate_at": at, "activation": activation, **attributes}
    assert {name: one.attributes[name] for name in given} == given
    assert (one.x, one.gate) == ("x", "z")
    return fused, one


PLACES = {
    0: lambda g, x, a, w: norm(g, x * a) * w,
    1: lambda g, x, a, w: norm(g, x) * a * w,
    2: lambda g, x, a, w: norm(g, x) * w * a,
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("name", [*SIGMOIDS, *SILUS])
def test_every_spelling_at_every_place(name, place):
    act = SIGMOIDS.get(name) or SILUS[name]
    model = model_of(lambda g, x, z, w: PLACES[place](g, x, act(g, z), w))
    fused, _ = found(model, place, int(name in SILUS), scale_type=F)
    feeds = data()
    same_results(model, fused, feeds)
    truth, _ = rms_norm(
        feeds["x"], WEIGHT, epsilon=1e-5, gate=feeds["z"], gate_at=place, activation=int(name in SILUS), exact=True
    )
    for form in ("plugin", "standard"):
        got = onnx.reference.ReferenceEvaluator(fused_of(model, form)[0]).run(None, feeds)[0]
        np.testing.assert_allclose(got, truth, rtol=3e-6, atol=1e-6)


def test_operators_of_newer_opsets_and_of_onnxruntime():
    model = model_of(lambda g, x, z, w: norm(g, x * g.op("Swish", z, alpha=1.0)) * w, opset=24)
    found(model, 0, 1)
    model = model_of(lambda g, x, z, w: norm(g, x * CONTRIB["QuickGelu"](g, z)) * w)
    model.opset_import.append(onnx.helper.make_opsetid("com.microsoft", 1))
    assert nodes_of(rmsnorm_deploy.fuse(model, also=["gates"])[0]) == ["GatedRMSNorm"]


@pytest.mark.parametrize(
    ("place", "build", "rounding"),
    [
        (0, lambda g, x, a, w: w * g.cast(norm(g, x * a), H), H),  # Mamba2
        (0, lambda g, x, a, w: g.cast(g.cast(w, F) * norm(g, x * a), H), F),  # Falcon-H1
        (2, lambda g, x, a, w: g.cast(g.cast(w * g.cast(norm(g, x), H), F) * a, H), H),  # Qwen3-Next
        (2, lambda g, x, a, w: g.cast(g.cast(w, F) * norm(g, x) * a, H), F),  # Kimi-Linear
        (1, lambda g, x, a, w: g.cast(norm(g, x) * a * g.cast(w, F), H), F),
    ],
)
@pytest.mark.parametrize("gate_dtype", [H, F])
def test_each_order_of_casts_keeps_its_roundings(place, build, rounding, gate_dtype):
    model = model_of(lambda g, x, z, w: build(g, g.cast(x, F), silu(g, cast(g, z, F)), w), H, gate_dtype)
    fused, one = found(model, place, 1, scale_type=rounding, output_type=H)
    assert one.rounding == "same"
    same_results(model, fused, data(H, gate_dtype), slack=1)
    plain, _ = fused_of(model, "standard")
    same_results(model, plain, data(H, gate_dtype), slack=1)


@pytest.mark.parametrize("wide", [False, True])
def test_a_gate_computed_in_16_bits_is_said_to_round_less(wide):
    """Whether the product is widened for the norm or not."""

    def build(g, x, z, w):
        product = x * silu(g, z)
        return (g.cast(norm(g, g.cast(product, F)), H) if wide else norm(g, product)) * w

    _, one = found(model_of(build, H), 0, 1)
    assert one.rounding == "fewer"


def test_a_product_in_16_bits_that_is_widened_for_others_too_stays():
    def build(g, x, z, w):
        product = g.cast(x * silu(g, z), F)
        return g.cast(norm(g, product), H) * w, g.cast(product * 2.0, H)

    fused, _ = fused_of(model_of(build, H))
    assert [n.op_type for n in fused.graph.node if n.domain == "rmsnorm_deploy"] == ["RMSNorm"]


@pytest.mark.parametrize("gate_dtype", [H, F])
@pytest.mark.parametrize("at", PLACES)
def test_an_activation_in_float32_that_is_rounded_to_16_bits(at, gate_dtype):
    """As ``x * silu(gate.float()).to(x.dtype)`` is."""

    def build(g, x, z, w):
        a = g.cast(silu(g, cast(g, z, F)), H)
        if at == 0:
            return g.cast(norm(g, g.cast(x * a, F)), H) * w
        n = g.cast(norm(g, g.cast(x, F)), H)
        return n * a * w if at == 1 else n * w * a

    model = model_of(build, H, gate_dtype)
    fused, one = found(model, at, 1)
    assert one.rounding == "fewer"
    same_results(model, fused, data(H, gate_dtype), slack=3)


def grouped(g, value):
    return g.op("Reshape", value, ints(g, [0, 0, 2, 4]))


def whole(g, value):
    return g.op("Reshape", value, ints(g, [0, 0, 8]))


@pytest.mark.parametrize(
    "build",
    [
        lambda g, x, z, w: whole(g, norm(g, grouped(g, x * silu(g, z)))) * w,  # Mamba2 of several groups
        lambda g, x, z, w: whole(g, norm(g, grouped(g, x * silu(g, z))) * g.op("Reshape", w, ints(g, [2, 4]))),
        lambda g, x, z, w: whole(g, norm(g, grouped(g, x)) * g.op("Reshape", w, ints(g, [2, 4]))) * silu(g, z),
    ],
)
def test_groups_are_made_of_x_and_the_gate(build):
    model = model_of(build)
    for form in ("plugin", "standard"):
        fused, report = fused_of(model, form)
        assert report.fused[0].op == "GatedRMSNorm"
        assert report.fused[0].gate == "z"
        assert sum(n.op_type == "Sigmoid" for n in fused.graph.node) == (form == "standard")
        same_results(model, fused, data())


def test_one_group_needs_no_reshape():
    def build(g, x, z, w):
        one = norm(g, g.op("Reshape", x * silu(g, z), ints(g, [0, 0, 1, 8])))
        return whole(g, one) * w

    found(model_of(build), 0, 1)


def test_shapes_that_are_asked_of_the_product_are_asked_of_x():
    def build(g, x, z, w):
        product = x * silu(g, z)
        sizes = g.op("Slice", g.op("Shape", product, dtype=7), ints(g, [0]), ints(g, [2]))
        into = g.op("Concat", sizes, ints(g, [2, 4]), axis=0)
        back = g.op("Concat", sizes, ints(g, [8]), axis=0)
        return g.op("Reshape", norm(g, g.op("Reshape", product, into)), back) * w

    model = model_of(build)
    fused, report = fused_of(model)
    assert report.fused[0].gate == "z"
    assert "Mul" not in nodes_of(fused, "")
    assert [n.input[0] for n in fused.graph.node if n.op_type == "Shape"] == ["x"]
    same_results(model, fused, data())


def test_a_gate_may_come_from_anywhere():
    for cut in (
        half,
        lambda g, z: g.op("Slice", z, ints(g, [8]), ints(g, [16]), ints(g, [2])),
        lambda g, z: g.op("Gather", z, ints(g, list(range(8))), axis=2),
        lambda g, z: g.op("MatMul", z, g.weight(np.ones((16, 8)), F)),
    ):
        g = Graph()
        x, z = g.input("x", F, SHAPE), g.input("z", F, (2, 3, 16))
        g.output(norm(g, x * silu(g, cut(g, z))) * g.weight(WEIGHT, F), "y", SHAPE)
        fused, report = fused_of(g.model())
        assert report.fused[0].op == "GatedRMSNorm"
        assert "Sigmoid" not in nodes_of(fused, "")


def test_a_residual_stays_in_front_of_a_gate():
    model = model_of(lambda g, x, z, w: norm(g, x + g.op("Tanh", x)) * w * silu(g, z))
    fused, _ = fused_of(model)
    assert [n.op_type for n in fused.graph.node] == ["Tanh", "Add", "GatedRMSNorm"]
    same_results(model, fused, data())


@pytest.mark.parametrize("form", ["plugin", "standard"])
def test_without_being_asked_for_a_gate_stays_and_a_note_says_how_it_goes(form):
    model = model_of(lambda g, x, z, w: norm(g, x * silu(g, z)) * w)
    fused, report = rmsnorm_deploy.fuse(model, form=form)
    (one,) = report.fused
    assert (one.op, one.gate) == ("RMSNorm", "")
    assert "'gates'" in one.notes[-1]
    same_results(model, fused, data())
    assert rmsnorm_deploy.explain(model).fused[0].op == "RMSNorm"
    assert rmsnorm_deploy.explain(model, also=["gates"]).fused[0].op == "GatedRMSNorm"


def test_one_that_has_taken_its_gate_in_keeps_it():
    fused, _ = fused_of(model_of(lambda g, x, z, w: norm(g, x * silu(g, z)) * w))
    again, report = rmsnorm_deploy.fuse(fused)
    assert again == fused
    assert not report.fused


@pytest.mark.parametrize(("also", "said"), [("gates", "sequence"), (["gate"], "no neighbours 'gate'")])
def test_names_of_neighbours_are_checked(also, said):
    with pytest.raises(UsageError, match=said):
        rmsnorm_deploy.fuse(model_of(lambda g, x, z, w: norm(g, x) * w), also=also)


def test_the_pass_takes_gates_in():
    model = model_of(lambda g, x, z, w: norm(g, x * silu(g, z)) * w)
    ours = rmsnorm_deploy.RmsNormFusionPass(also=["gates"])
    result = ours(ir.from_proto(model))
    assert [n.op_type for n in result.model.graph] == ["GatedRMSNorm"]


@pytest.mark.parametrize("form", ["onnx", "ort"])
def test_other_forms_leave_the_gate_to_nodes_of_its_own_and_say_so(form):
    model = model_of(lambda g, x, z, w: norm(g, x * silu(g, z)) * w, opset=23)
    fused, report = rmsnorm_deploy.fuse(model, form=form, also=["gates"])
    assert nodes_of(fused, "").count("Mul") == 2
    assert "has no gate" in report.fused[0].notes[-1]
    same_results(model, fused, data())


def another(g, z):
    return g.op("Tanh", z)


NO_GATES = {
    "sigmoid of another value": lambda g, x, z, w: norm(g, x * (z * g.op("Sigmoid", another(g, z)))) * w,
    "HardSwish": lambda g, x, z, w: norm(g, x * g.op("HardSwish", z)) * w,
    "HardSigmoid": lambda g, x, z, w: norm(g, x * g.op("HardSigmoid", z)) * w,
    "Tanh": lambda g, x, z, w: norm(g, x * another(g, z)) * w,
    "no activation": lambda g, x, z, w: norm(g, x * z) * w,
    "2 + exp(-z)": lambda g, x, z, w: norm(g, x * (1.0 / (g.op("Exp", g.op("Neg", z)) + 2.0))) * w,
    "1 + exp(z)": lambda g, x, z, w: norm(g, x * (1.0 / (g.op("Exp", z) + 1.0))) * w,
    "2 / (1 + exp(-z))": lambda g, x, z, w: norm(g, x * (2.0 / (g.op("Exp", g.op("Neg", z)) + 1.0))) * w,
    "the product is read by others": lambda g, x, z, w: (lambda p: norm(g, p) * w + p)(x * silu(g, z)),
    "the product is an output": lambda g, x, z, w: (lambda p: (norm(g, p) * w, p))(x * silu(g, z)),
    "the norm is read by others": lambda g, x, z, w: (lambda n: n * silu(g, z) + n)(norm(g, x) * w),
    "the norm is an output": lambda g, x, z, w: (lambda n: (n * silu(g, z), n))(norm(g, x) * w),
    "the gate reads the norm": lambda g, x, z, w: (lambda n: n * g.op("Sigmoid", n * z))(norm(g, x) * w),
    "the norm is the gate": lambda g, x, z, w: z * silu(g, norm(g, x) * w),
    "a sum of the two": lambda g, x, z, w: norm(g, x) * w + silu(g, z),
    "a quotient": lambda g, x, z, w: norm(g, x) * w / g.op("Sigmoid", z),
    "one gate for all features": lambda g, x, z, w: norm(g, x * silu(g, mean(g, z))) * w,
    "one gate for all rows": lambda g, x, z, w: norm(g, x) * w * silu(g, mean(g, z, (0, 1))),
    "another axis": lambda g, x, z, w: x * silu(g, z) / g.op("Sqrt", mean(g, (x * silu(g, z)) * z, (1,)) + 1e-5),
}


@pytest.mark.parametrize("name", NO_GATES)
def test_what_only_looks_like_a_gate_stays(name):
    model = model_of(NO_GATES[name])
    fused, _ = fused_of(model)
    assert "GatedRMSNorm" not in nodes_of(fused)
    same_results(model, fused, data())


def test_a_gate_of_another_shape_stays():
    g = Graph()
    x, z = g.input("x", F, SHAPE), g.input("z", F, (2, 3, 1))
    g.output(norm(g, x * silu(g, z)) * g.weight(WEIGHT, F), "y", SHAPE)
    assert "GatedRMSNorm" not in nodes_of(fused_of(g.model())[0])
    g = Graph()
    x, z = g.input("x", F, (1, 3, 8)), g.input("z", F, SHAPE)  # which enlarges x
    g.output(norm(g, x * silu(g, z)) * g.weight(WEIGHT, F), "y", SHAPE)
    assert "GatedRMSNorm" not in nodes_of(fused_of(g.model())[0])


def test_a_product_between_two_norms_belongs_to_one_of_them():
    model = model_of(lambda g, x, z, w: norm(g, norm(g, x) * w * silu(g, z)) * w)
    fused, _ = fused_of(model)
    assert sorted(nodes_of(fused)) == ["GatedRMSNorm", "RMSNorm"]
    same_results(model, fused, data())


def test_both_activated_operands_and_a_norm_of_silu_alone():
    for build in (
        lambda g, x, z, w: norm(g, silu(g, x) * silu(g, z)) * w,
        lambda g, x, z, w: norm(g, silu(g, z)) * w + x,
        lambda g, x, z, w: norm(g, silu(g, x) * z) * w,
    ):
        model = model_of(build)
        fused, _ = fused_of(model)
        assert "GatedRMSNorm" in nodes_of(fused)
        same_results(model, fused, data())


@pytest.mark.parametrize("before", [True, False])
def test_a_norm_without_scale_may_have_a_gate(before):
    model = model_of(lambda g, x, z, w: norm(g, x * silu(g, z)) if before else norm(g, x) * silu(g, z))
    fused, one = found(model, 0 if before else 1, 1)
    assert one.scale == ""
    same_results(model, fused, data())


def test_fused_files_are_unfused_again():
    model = model_of(lambda g, x, z, w: whole(g, norm(g, grouped(g, x * silu(g, z)))) * w)
    fused, _ = fused_of(model)
    plain, report = rmsnorm_deploy.unfuse(fused)
    assert report.fused[0].op == "GatedRMSNorm"
    assert not any(n.domain for n in plain.graph.node)
    same_results(model, plain, data())
    again, _ = fused_of(plain)
    assert nodes_of(again).count("GatedRMSNorm") == 1
