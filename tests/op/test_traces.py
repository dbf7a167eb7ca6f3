"""Traces of norms in the bytes of a model."""

import numpy as np
import pytest
from onnx import helper, numpy_helper

from rmsnorm_deploy.op import DOMAIN, NormParameters, Op
from rmsnorm_deploy.op.traces import inlined_norms, worth_a_look


def bytes_of(op_type, output="y"):
    node = helper.make_node(
        op_type, ["x", "w"], [output], domain=DOMAIN, **NormParameters(Op.RMS_NORM, 1).to_attributes()
    )
    weights = np.random.default_rng(0).integers(0, 256, 100_000).astype(np.uint8)
    graph = helper.make_graph([node], "g", [], [], [numpy_helper.from_array(weights, "w")])
    return helper.make_model(graph).SerializeToString()


@pytest.mark.parametrize("op", list(Op))
def test_our_own_names_are_no_trace(op):
    assert not worth_a_look(bytes_of(op.value))


@pytest.mark.parametrize("prefix", ["a_", "decoder/", "x" * 40])
def test_a_prefix_is_seen(prefix):
    assert worth_a_look(bytes_of(f"{prefix}RMSNorm"))
    assert worth_a_look(bytes_of(f"{prefix}AddRMSNorm"))


@pytest.mark.parametrize(
    "name", ["_inlfunc_RMSNorm_mul_15", "_inlfunc_a_AddRMSNorm_token_3_pow_2", "_inlfunc_GeneralRMSNorm_Y"]
)
def test_names_of_inlined_bodies_are_seen(name):
    assert worth_a_look(bytes_of("RMSNorm", name))
    assert inlined_norms([name, "y", "_inlfunc_Block_mul_1"]) == 1


def test_each_norm_is_counted_once():
    names = [f"_inlfunc_{call}_{v}" for call in ("RMSNorm", "RMSNorm_token_1", "AddRMSNorm") for v in ("mul", "pow")]
    assert inlined_norms(names) == 3
    assert inlined_norms(["RMSNorm_mul_1", "x_inlfunc_RMSNorm_mul_1"]) == 0
