"""Every norm alone: seeded faults are found, placed and named, and correct models have none."""

from pathlib import Path

import pytest

import rmsnorm_deploy
from rmsnorm_deploy.check.site_check import check_sites
from rmsnorm_deploy.run.inputs import make_inputs
from rmsnorm_deploy.run.runnable import Runnable
from tests.support.seeded import FAULTS, Norm

pytest.importorskip("onnxruntime", reason="verification runs models in onnxruntime")

SAMPLES = sorted((Path(__file__).parents[2] / "samples" / "models").glob("*.onnx"))


@pytest.fixture(scope="module", params=SAMPLES, ids=lambda p: p.stem)
def sample(request):
    before = Runnable.of(request.param)
    return before, rmsnorm_deploy.fuse(request.param)[0], make_inputs(before.proto)


def test_correct_models_have_no_fault(sample):
    before, fused, feeds = sample
    sites, notes = check_sites(before, Runnable.of(fused), feeds)
    assert len(sites) == sum(n.domain == "rmsnorm_deploy" for n in fused.graph.node) >= 5
    assert [str(s) for s in sites if not s.passed] == []
    assert all(s.error < 3 and s.original_error is not None and not s.fault for s in sites)
    assert notes == []


@pytest.mark.parametrize("fault", FAULTS)
def test_a_seeded_fault_is_placed_and_named(sample, fault):
    before, fused, feeds = sample
    norm = Norm(fused)
    seed, word = FAULTS[fault]
    seed(norm)
    sites, _ = check_sites(before, Runnable.of(norm.model), feeds)
    wrong = [s for s in sites if not s.passed]
    swapped = fault == "scales of two norms swapped"
    places = [norm.other.output[0]] * swapped + [norm.y]
    assert [s.output for s in wrong] == places
    assert all(word in s.fault and s.reason for s in wrong), [str(s) for s in wrong]
