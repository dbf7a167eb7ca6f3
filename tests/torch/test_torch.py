"""PyTorch: what its exporter writes with our table, what the operators compute, and what ``export`` makes."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from rmsnorm_deploy.torch.naming import OPERATORS, snake_case
from tests.support.torch_environment import run_with_torch

DTYPES = ("float32", "float16", "bfloat16", "float64")
CALLS = ("plain", "no_epsilon", "no_weight", "two_axes", "two_axes_no_weight", "wide_weight")
EPSILON = {"no_epsilon": None, "two_axes_no_weight": None, "two_axes": 1e-3}
DATA_TYPE = {"float32": 1, "float16": 10, "bfloat16": 16, "float64": 11}


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What all programs found, by name."""
    folder = tmp_path_factory.mktemp("torch")
    run_with_torch(["-m", "tests.torch.programs", folder])
    return {path.stem: json.loads(path.read_text()) for path in folder.glob("*.json")}


def of(found, name):
    assert "error" not in found[name], found[name].get("error")
    return found[name]


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_norm_of_pytorch_is_one_node(found, dtype, call):
    """16-bit norms are computed in float32, so that an epsilon that is not given is float32's."""
    made = of(found, "functional")[f"{dtype} {call}"]
    double = dtype == "float64"
    assert made["op"] == ("GeneralRMSNorm" if double else "RMSNorm")
    assert set(made["others"]) <= {"Cast"}
    attributes = made["attributes"]
    given = EPSILON.get(call, 1e-6)
    expected = np.finfo(np.float64 if double else np.float32).eps if given is None else given
    assert attributes["epsilon"] == pytest.approx(expected, rel=1e-6)
    assert attributes["axes"] == ([-2, -1] if "two_axes" in call else [-1])
    assert attributes["output_type"] == DATA_TYPE[dtype]
    assert attributes["scale_type"] == attributes["stash_type"] == (11 if double else 1)
    assert made["scale"] == {"two_axes": [4, 8], "two_axes_no_weight": []}.get(call, [8])
    assert made["repaired"] == [f"bodies of {len(CALLS)} norms"]


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_file_computes_what_pytorch_does(found, dtype, call):
    """In units of the last place of the largest value; an epsilon in float32 moves a float64 norm."""
    made = of(found, "functional")[f"{dtype} {call}"]
    most = 2.0**29 if dtype == "float64" else 1.0 if dtype in ("float16", "bfloat16") else 2.0
    assert made["with_library"] <= most
    assert made["without"] <= most


@pytest.mark.parametrize("op", OPERATORS.values())
def test_an_operator_computes_what_the_reference_says(found, op):
    made = of(found, "eager")
    assert made[f"{op.value} float32"] <= 2
    assert made[f"{op.value} float16"] <= 0.6, "rounded once, at the end"
    assert made[f"{op.value} float64"] <= 4
    assert made[f"{op.value} gradients"]
    assert made[f"{op.value} checks"] == ["SUCCESS"], "PyTorch's own checks of operators"


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_eager_the_exported_graph_and_the_file_agree(found, dtype):
    made = of(found, "operators")[dtype]
    assert made["in_graph"] == sorted(f"rmsnorm_deploy.{snake_case(op)}.default" for op in OPERATORS.values())
    assert made["graph_differs"] == 0
    assert made["file"] <= 4
    assert made["fused"] == len(OPERATORS)


def test_export_writes_a_file_in_which_every_norm_is_fused(found):
    made = of(found, "whole")
    assert made["ops"] == ["AddRMSNorm", "RMSNorm"], "the addition in front of PyTorch's own norm is taken in"
    assert made["summary"] == "fused 2 of 2"
    assert made["difference"] <= 8
    assert len(made["onnx"]) == 2
    assert made["kinds"] == {"dynamic": "fused 2 of 2", "branch": "fused 1 of 1", "program": "fused 2 of 2"}


@pytest.mark.parametrize("what", ["exists", "form", "dynamo", "f", "integers"])
def test_a_call_that_makes_no_sense_is_refused(found, what):
    said = of(found, "whole")["refused"][what]
    assert {"exists": "exists", "form": "none", "dynamo": "dynamo", "f": "'f'", "integers": "int64"}[what] in said


def test_without_pytorch_the_hint_says_what_to_install():
    hide = (
        "import sys; sys.modules['torch'] = None\nimport rmsnorm_deploy.torch as t\n"
        "try: t.export\n"
        "except t.MissingEnvironment as e: print(e.hint)\n"
        "try: t.nothing\n"
        "except AttributeError as e: print(e)\n"
    )
    done = subprocess.run([sys.executable, "-c", hide], env=os.environ, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        "Install the extra 'torch': pip install '.[torch]' in the repository, or, with a wheel, "
        "pip install 'FILE.whl[torch]'.",
        "module 'rmsnorm_deploy.torch' has no attribute 'nothing'",
    ]
