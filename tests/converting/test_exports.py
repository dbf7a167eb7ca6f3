"""Exports of transformers' models, from the folder RMSNORM_DEPLOY_EXPORTS: see ``tests/converting/exports.py``."""

import os
from pathlib import Path

import onnx
import pytest

import rmsnorm_deploy
from rmsnorm_deploy.run.inputs import make_inputs
from tests.support.streams import converted

FOLDER = Path(os.environ.get("RMSNORM_DEPLOY_EXPORTS", "nowhere"))
FILES = sorted(FOLDER.glob("*__*.onnx"))
STAY = {"bert": "post-norm", "t5": ""}
"""Families of which nothing is converted, and what the reason says."""


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_an_export_is_converted_as_a_whole_or_not_at_all(path):
    model = onnx.load(path)
    _, report = converted(model, exact=False, make=lambda model, seed: make_inputs(model, seed=seed))
    family = path.stem.partition("__")[0]
    if family in STAY:
        assert report.converted == 0
        assert all(STAY[family] in stream.reason for stream in report.streams)
        return
    assert report.converted == report.found > 2
    assert len(rmsnorm_deploy.convert(model)[1].fusion.fused) == report.converted
