"""verify of norms that end in 8 bits: a value beside a tie may move by one, and nothing else."""

import numpy as np
import pytest
from onnx import helper

import rmsnorm_deploy
from rmsnorm_deploy.check.comparison import Comparison, quantised_outputs
from rmsnorm_deploy.check.original import Outcome
from rmsnorm_deploy.op.dtypes import FLOAT16, FLOAT32
from tests.support.quantised import DYNAMIC, I8, U8, F, initializer, pair

ALSO = ["quantizers"]


def fused_of(quantised=I8):
    model = pair((16, 64), quantised, residual=True, keep=False)
    fused, _ = rmsnorm_deploy.fuse(model, also=ALSO)
    return model, fused


def _zero_point(fused):
    fused.graph.initializer[2].CopyFrom(initializer(6, I8, "z"))


def _scale(fused):
    fused.graph.initializer[1].CopyFrom(initializer(0.0204, F, "s"))


def _epsilon(fused):
    (attribute,) = (a for a in fused.graph.node[0].attribute if a.name == "epsilon")
    attribute.f = 0.5


@pytest.mark.parametrize("change", [_zero_point, _scale, _epsilon])
def test_a_fault_is_found(change):
    model, fused = fused_of()
    assert rmsnorm_deploy.verify(model, fused).passed
    change(fused)
    assert not rmsnorm_deploy.verify(model, fused).passed


@pytest.mark.parametrize("form", ["onnx", "ort", "standard"])
@pytest.mark.parametrize("quantised", [DYNAMIC, I8])
def test_norms_that_are_quantised_by_a_node_of_its_own_are_compared_alone(quantised, form):
    model = pair((16, 64), quantised, keep=False)
    plain, _ = rmsnorm_deploy.unfuse(model)
    fused, _ = rmsnorm_deploy.fuse(plain, form=form, also=ALSO)
    result = rmsnorm_deploy.verify(plain, fused)
    assert result.passed
    assert [site.output for site in result.sites] == ["y"]
    ours = rmsnorm_deploy.verify(plain, rmsnorm_deploy.fuse(plain, also=ALSO)[0])
    assert ours.passed
    assert [site.output for site in ours.sites] == ["q"]


def test_a_fault_of_a_dynamic_one_is_found():
    model, fused = fused_of(DYNAMIC)
    assert rmsnorm_deploy.verify(model, fused).passed
    _epsilon(fused)
    assert not rmsnorm_deploy.verify(model, fused).passed


@pytest.mark.parametrize(
    ("narrowest", "changed", "by", "passed"),
    [
        (FLOAT32, 1, 1, True),
        (FLOAT32, 10, 1, True),
        (FLOAT32, 11, 1, False),
        (FLOAT32, 1, 2, False),
        (FLOAT16, 250, 1, True),
        (FLOAT16, 400, 1, False),
    ],
)
def test_few_values_may_be_one_step_off(narrowest, changed, by, passed):
    a = np.random.default_rng(0).integers(5, 250, 1000).astype(np.uint8)
    b = a.copy()
    b[:changed] += by
    compare = Comparison((("q", U8),), narrowest, whole=False, quantised=frozenset("q"))
    (check,) = compare("plain", "made", Outcome(None, [[a]]), [b])
    assert check.passed == passed
    assert passed or f"{changed} of 1000 values differ, by at most {by} steps" in check.reason
    strict = Comparison((("q", U8),), narrowest, whole=False)
    assert not strict("plain", "made", Outcome(None, [[a]]), [b])[0].passed


def test_only_what_a_norm_of_ours_quantises_may_move():
    _, fused = fused_of(DYNAMIC)
    other = helper.make_node("QuantizeLinear", ["a", "b", "c"], ["d"])
    assert quantised_outputs([*fused.graph.node, other]) == {"q", "s", "z", "sum"}
