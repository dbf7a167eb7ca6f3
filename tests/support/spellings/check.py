"""What has to hold for every spelling: it is found, and means what it meant in four ways of running."""

import onnx
import pytest

import rmsnorm_deploy
from rmsnorm_deploy.op import DOMAIN, NormParameters
from rmsnorm_deploy.op.reference import rms_norm
from tests.support.judge import rows, units
from tests.support.run import run
from tests.support.spellings.graph import NUMPY
from tests.support.spellings.norms import build


def feeds_for(s):
    feeds = {"x": rows(s.shape, NUMPY[s.io_type], seed=s.seed)}
    if s.residual:
        feeds["r"] = rows(s.shape, NUMPY[s.io_type], seed=s.seed + 1)
    return feeds


def our_nodes(model):
    return [n for n in model.graph.node if n.domain == DOMAIN]


def check(s, register=rmsnorm_deploy.register):
    """Build, fuse, and compare with the float64 reference in four ways of running."""
    built = build(s)
    before = built.model.SerializeToString()
    fused, report = rmsnorm_deploy.fuse(built.model)
    assert built.model.SerializeToString() == before, "the caller's model changed"
    assert len(report.fused) == 1, [m for m in report.missed]
    nodes = our_nodes(fused)
    assert len(nodes) == 1
    assert not any(n.op_type.startswith("Reduce") for n in fused.graph.node), "the chain is still there"
    p = NormParameters.from_node(nodes[0], version=1)
    assert p.epsilon == pytest.approx(built.meaning["epsilon"], rel=2e-6 if s.layout != "plain16" else 2e-3)
    onnx.checker.check_model(fused, full_check=True)
    feeds = feeds_for(s)
    residual = feeds.get("r")
    # the attributes are float32: what a float64 graph says is met to that precision, and the rest is judged exactly
    for name in ("epsilon_outside", "rms_floor"):
        assert getattr(p, name) == pytest.approx(built.meaning[name], rel=1e-6, abs=0)
        built.meaning[name] = getattr(p, name)
    given = {**built.meaning, "epsilon": p.epsilon, "residual": residual, "bias": built.bias}
    if p.scale_type != given["scale_type"]:
        given["scale_type"] = p.scale_type
        assert s.scale == "none" or report.fused[0].rounding == "fewer" or s.scale in ("into_x", "into_inverse")
    truth = rms_norm(feeds["x"], built.scale, exact=True, **given)[0]
    for optimise, hook in ((False, None), (True, None), (True, register), (False, register)):
        got = run(fused, feeds, optimise, hook)[0]
        # six steps of float arithmetic; one rounding to 16 bits, and that of the residual sum, which onnxruntime drops
        # between float16 operators (half an ULP of the sum, up to a whole one of the result); or two, of which the
        # first may fall the other way and is then multiplied by the scale
        once = 1.51 if s.residual else 1.01
        slack = 6 if p.output_type in (1, 11) else once if p.scale_type == 1 else 3
        assert units(got, truth, axis=tuple(s.axes)) <= slack, (optimise, hook)
    return fused, report
