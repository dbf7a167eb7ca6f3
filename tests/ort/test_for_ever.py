"""Files fused by each release run for ever: domain version 1 never changes its meaning."""

from pathlib import Path

import numpy as np
import onnx
import pytest

import rmsnorm_deploy
from rmsnorm_deploy.op import DOMAIN, NormParameters
from rmsnorm_deploy.op.dtypes import float_type
from tests.support.judge import units
from tests.support.run import run

FILES = sorted((Path(__file__).parents[1] / "data").glob("*/*.onnx"))


def test_there_are_files_of_the_first_release():
    assert len([f for f in FILES if f.parent.name == "0.1.0"]) == 10


@pytest.mark.parametrize("path", FILES, ids=lambda p: f"{p.parent.name}/{p.stem}")
@pytest.mark.parametrize("optimise", [False, True])
@pytest.mark.parametrize("hook", [None, rmsnorm_deploy.register], ids=["body", "library"])
def test_a_fused_file_gives_what_it_gave(path, optimise, hook):
    model = onnx.load(path)
    onnx.checker.check_model(model, full_check=True)
    (node,) = (n for n in model.graph.node if n.domain == DOMAIN)
    p = NormParameters.from_node(node, version=1)
    stored = dict(np.load(path.with_suffix(".npz")))
    truth = stored.pop("truth")
    feeds = {k: v.astype(float_type(p.output_type).dtype) for k, v in stored.items()}
    got = run(model, feeds, optimise, hook)[0]
    slack = 6 if p.output_type in (1, 11) else 1.01 if p.scale_type == 1 else 3
    assert units(got, truth, axis=p.axes) <= slack
