"""LayerNorms that are spelled out in 16 bits: what they become rounds once, and is off by what new weights are off."""

import numpy as np
import onnx
import pytest

import rmsnorm_deploy
from rmsnorm_deploy.check.ulp import units
from rmsnorm_deploy.op.dtypes import float_type
from tests.support.run import run
from tests.support.spellings.graph import NUMPY, B, F, H
from tests.support.streams import TOKENS, D, Streams, feeds, mean_error, truth

LAYERS = 6
"""Enough for the roundings of the norms to add up to more than the bar."""


def parameters(g, dtype):
    """Scale and bias."""
    return g.weight(1 + 0.2 * g.rng.standard_normal(D), dtype), g.weight(0.3 * g.rng.standard_normal(D), dtype)


def in_16_bits(g, x):
    """PyTorch's graph of a model in 16 bits, all of it in that type."""
    d = x - g.reduce("ReduceMean", x, [-1])
    scale, bias = parameters(g, g.dtype)
    return d / g.op("Sqrt", g.reduce("ReduceMean", d**2.0, [-1]) + 1e-5) * scale + bias


def torchscript(g, x):
    """TorchScript's exporter widens the difference, and comes back in front of the scale."""
    d = g.cast(x - g.reduce("ReduceMean", x, [-1]), F)
    scale, bias = parameters(g, g.dtype)
    return g.cast(d / g.op("Sqrt", g.reduce("ReduceMean", d**2.0, [-1]) + 1e-5), g.dtype) * scale + bias


def widened(g, x, square=lambda d: d * d):
    """All of the statistics in float32."""
    x = g.cast(x, F)
    d = x - g.reduce("ReduceMean", x, [-1])
    scale, bias = parameters(g, g.dtype)
    inverse = g.op("Reciprocal", g.op("Sqrt", g.reduce("ReduceMean", square(d), [-1]) + 1e-5))
    return bias + scale * g.cast(d * inverse, g.dtype)


def scaled_wide(g, x):
    """The scale in float32, and the bias in 16 bits."""
    x = g.cast(x, F)
    d = x - g.reduce("ReduceMean", x, [-1])
    scale, bias = parameters(g, F)
    normalised = d / g.op("Sqrt", g.reduce("ReduceMean", d * d, [-1]) + 1e-5)
    return g.cast(normalised * scale, g.dtype) + g.cast(bias, g.dtype)


def difference(g, x):
    """The variance is the mean of the squares without the square of the mean."""
    mean = g.reduce("ReduceMean", x, [-1])
    variance = g.reduce("ReduceMean", x * x, [-1]) - mean * mean
    scale, bias = parameters(g, g.dtype)
    return (x - mean) / g.op("Sqrt", variance + 1e-5) * scale + bias


def shifted(g, x):
    """As batch normalisation is written: x * s + (bias - mean * s)."""
    return g.spelled_out(x, how="shift")


SPELLINGS = [in_16_bits, torchscript, widened, scaled_wide, difference, shifted]


def model_of(norm, opset=18, dtype=H, seed=0, layers=LAYERS):
    g = Streams(opset, dtype, seed)
    return g.finish(g.layers(g.embedded(), layers, lambda x: norm(g, x)), lambda x: norm(g, x))


def norms_of(model):
    return [n for n in model.graph.node if n.domain == "rmsnorm_deploy"]


def type_of(node, name="scale_type"):
    return next(a.i for a in node.attribute if a.name == name)


@pytest.mark.parametrize(("spelling", "opset"), [*((s, 18) for s in SPELLINGS), (torchscript, 13)])
def test_the_error_is_that_of_new_weights(spelling, opset):
    """Rounding them again cannot be helped, nor what rounding the result makes of it; norms add next to nothing."""
    errors, weights = [], []
    for seed in range(2):
        model = model_of(spelling, opset, seed=seed)
        plain, report = rmsnorm_deploy.convert(model, fuse=False)
        fused, _ = rmsnorm_deploy.convert(model)
        assert report.converted == report.found == LAYERS + 1
        onnx.checker.check_model(plain, full_check=True)
        assert [n.op_type for n in norms_of(fused)] == ["GeneralRMSNorm"] * (LAYERS + 1)
        assert {type_of(n) for n in norms_of(fused)} == {F}
        given = [feeds(model, i) for i in range(4)]
        wanted = [truth(model, one) for one in given]
        for one, right in zip(given, wanted, strict=True):
            weights.append(units(truth(plain, one)[0], right[0], float_type(H)))
        errors += [mean_error(m, given, wanted, opt) for m in (plain, fused) for opt in (False, True)]
    assert np.mean(errors) <= np.mean(weights) + 0.5


@pytest.mark.parametrize("form", ["onnx", "ort", "standard"])
def test_other_forms_round_once_as_well(form):
    model = model_of(torchscript, 23)
    fused, report = rmsnorm_deploy.convert(model, form=form)
    assert len(report.fusion.fused) == report.converted == LAYERS + 1
    given = [feeds(model, i) for i in range(4)]
    wanted = [truth(model, one) for one in given]
    assert mean_error(fused, given, wanted, optimise=False) < 2


def test_bfloat16():
    model = model_of(torchscript, dtype=B, layers=2)
    fused, report = rmsnorm_deploy.convert(model)
    assert report.converted == 3
    assert [type_of(n) for n in norms_of(fused)] == [F] * 3


def one_norm(end):
    """A model with one norm more, which ``end`` makes of the normalised value, in float16, and its scale."""
    g = Streams(18, H)
    x = g.embedded()
    d = x - g.reduce("ReduceMean", x, [-1])
    y = end(g, d / g.op("Sqrt", g.reduce("ReduceMean", d * d, [-1]) + 1e-5))
    x = x + g.linear(g.op("Tanh", y))
    return g.finish(g.layers(x, 1, lambda x: torchscript(g, x)), lambda x: torchscript(g, x))


def no_scale(g, y):
    return y


def no_bias(g, y):
    return y * parameters(g, H)[0]


def bias_alone(g, y):
    return y + parameters(g, H)[1]


@pytest.mark.parametrize("end", [no_scale, no_bias, bias_alone], ids=lambda e: e.__name__)
def test_a_norm_without_scale_or_bias(end):
    model = one_norm(end)
    fused, report = rmsnorm_deploy.convert(model)
    assert report.converted == 3
    assert [type_of(n) for n in norms_of(fused)] == [F] * 3
    _is_right(fused, model)


def two_readers(g, y):
    scale, bias = parameters(g, H)
    y = y * scale
    return (y + bias) + g.linear(y)


def a_residual(g, y):
    """What is added is no parameter."""
    return y * parameters(g, H)[0] + g.input("r", H, (2, TOKENS, D))


def larger(g, y):
    """What is added has a dimension more, which the norm has not."""
    added = g.weight(g.rng.standard_normal((1, 1, 1, D)), H)
    return g.along("Squeeze", y * parameters(g, H)[0] + added, [0])


def a_bias_of_an_input(g, y):
    """A caller may give another, but it is a parameter all the same."""
    g.inputs.append(onnx.helper.make_tensor_value_info("b", H, (D,)))
    return y * parameters(g, H)[0] + g.weight(np.linspace(-1, 1, D), H, "b")


@pytest.mark.parametrize("end", [two_readers, a_residual, larger, a_bias_of_an_input], ids=lambda e: e.__name__)
def test_what_is_added_and_is_no_bias_of_the_norm(end):
    model = one_norm(end)
    fused, report = rmsnorm_deploy.convert(model)
    assert report.converted == 3
    assert [n.op_type for n in norms_of(fused)].count("GeneralRMSNorm") == 2 + (end is a_bias_of_an_input)
    _is_right(fused, model)


def test_a_norm_that_is_an_output():
    g = Streams(18, H)
    x = g.layers(g.embedded(), 1, lambda x: torchscript(g, x))
    y = torchscript(g, x)
    g.output(y, "y", (2, TOKENS, D))
    model = g.model()
    fused, report = rmsnorm_deploy.convert(model)
    assert report.converted == 2
    assert norms_of(fused)[-1].output[0] == "y"
    _is_right(fused, model)


def test_an_order_that_the_operator_lacks_stays():
    """The inverse is rounded alone: nothing is known that rounds so, and nothing is changed but the mean."""

    def norm(g, x):
        wide = g.cast(x, F)
        d = wide - g.reduce("ReduceMean", wide, [-1])
        inverse = g.op("Reciprocal", g.op("Sqrt", g.reduce("ReduceMean", d * d, [-1]) + 1e-5))
        return g.cast(d, H) * g.cast(inverse, H) * parameters(g, H)[0]

    model = model_of(norm, layers=2)
    fused, report = rmsnorm_deploy.convert(model)
    assert report.converted == 3
    assert not any(n.op_type == "Sub" for n in fused.graph.node)
    _is_right(fused, model, least=4.0)


def test_norms_that_had_no_mean_before_are_not_written_again():
    g = Streams(18, H)
    x = g.layers(g.embedded(), 1, lambda x: torchscript(g, x))
    y = torchscript(g, x)
    wide = g.cast(y, F)
    rms = g.op("Sqrt", g.reduce("ReduceMean", wide * wide, [-1]) + 1e-5)
    scale, bias = parameters(g, H)
    g.output(g.cast(wide / rms, H) * scale + bias, "y", (2, TOKENS, D))
    fused, report = rmsnorm_deploy.convert(g.model())
    assert report.converted == 2
    assert [type_of(n) for n in norms_of(fused)] == [F, F, H]


def test_in_float32_a_bias_stays_an_addition():
    model = model_of(in_16_bits, dtype=F, layers=2)
    fused, report = rmsnorm_deploy.convert(model)
    assert report.converted == 3
    assert not any(n.op_type == "GeneralRMSNorm" for n in fused.graph.node)


def _is_right(fused, model, least=2.5):
    given = [feeds(model, i) for i in range(4)]
    for one in given:
        for a in one.values():
            assert a.dtype in (NUMPY[H], np.int64)
    wanted = [truth(model, one) for one in given]
    for optimise in (False, True):
        assert mean_error(fused, given, wanted, optimise) <= least
        assert run(fused, given[0], optimise)[0].dtype == np.float16
