"""Norms that end in 8 bits, compiled: the norm's kernel and what quantises it, behind it."""

import numpy as np
import pytest

import rmsnorm_deploy
from rmsnorm_deploy.errors import ModelError
from tests.support.quantised import DYNAMIC, F8, I8, U8, feeds_of, pair
from tests.support.run import run

pytest.importorskip("tvm.relax", reason="apache-tvm is not installed: pip install '.[tvm]'")

from rmsnorm_deploy import tvm


@pytest.mark.parametrize(
    ("quantised", "residual", "keep"),
    [(DYNAMIC, True, False), (DYNAMIC, False, True), (I8, True, True), (U8, False, False)],
)
def test_a_compiled_norm_is_quantised(quantised, residual, keep, tmp_path):
    fused, _ = rmsnorm_deploy.fuse(pair((6, 40), quantised, residual=residual, keep=keep), also=["quantizers"])
    rmsnorm_deploy.save(fused, tmp_path / "m.onnx")
    assert tvm.compile(tmp_path / "m.onnx", output=tmp_path / "c").norms == 1
    feeds = feeds_of(fused)
    got = tvm.load(tmp_path / "c")(feeds)
    wanted = dict(zip([o.name for o in fused.graph.output], run(fused, feeds, False), strict=True))
    assert set(got) == set(wanted)
    for name, value in wanted.items():
        assert got[name].dtype == value.dtype
        slack = 1 if value.dtype.kind in "iu" else 2e-6
        assert np.abs(got[name].astype(np.float64) - value.astype(np.float64)).max() <= slack


def test_what_it_cannot_quantise_to_is_named(tmp_path):
    fused, _ = rmsnorm_deploy.fuse(pair((6, 40), F8, zero=0, keep=False), also=["quantizers"])
    rmsnorm_deploy.save(fused, tmp_path / "m.onnx")
    with pytest.raises(ModelError, match="float8"):
        tvm.compile(tmp_path / "m.onnx", output=tmp_path / "c")
