"""The C++ sample, built and run against the shared library inside the installed onnxruntime wheel."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

from rmsnorm_deploy import op
from rmsnorm_deploy.op.reference import rms_norm
from rmsnorm_deploy.run.library import library_path
from rmsnorm_deploy.run.session import session
from tests.support.native import needs_cmake

SAMPLE = Path(__file__).resolve().parents[2] / "samples" / "cpp"
ROWS, COLUMNS = 6, 40


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    if sys.platform != "linux":
        pytest.skip("needs Linux")
    needs_cmake()
    build = tmp_path_factory.mktemp("sample")
    for command in (["cmake", "-S", SAMPLE, "-B", build], ["cmake", "--build", build]):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    return build / "run_model"


@pytest.fixture(scope="module")
def runtime_library():
    found = sorted((Path(onnxruntime.__file__).parent / "capi").glob("libonnxruntime.so.*"))
    if not found:
        pytest.skip("this onnxruntime wheel keeps the runtime inside its Python module")
    return found[0]


def fused_model(with_body):
    parameters = op.NormParameters(op.Op.ADD_RMS_NORM, TensorProto.FLOAT, epsilon=1e-5)
    scale = np.linspace(0.5, 2.0, COLUMNS, dtype=np.float32)
    graph = helper.make_graph(
        [
            helper.make_node("Neg", ["X"], ["negative"]),
            helper.make_node(
                "AddRMSNorm", ["X", "half", "scale"], ["Y", "sum"], domain=op.DOMAIN, **parameters.to_attributes()
            ),
        ],
        "g",
        [helper.make_tensor_value_info("X", TensorProto.FLOAT, ["n", COLUMNS])],
        [helper.make_tensor_value_info("Y", TensorProto.FLOAT, ["n", COLUMNS])],
        [helper.make_tensor("scale", TensorProto.FLOAT, [COLUMNS], scale)],
    )
    half = helper.make_node("Mul", ["negative", "minus_half"], ["half"])
    graph.node.insert(1, half)
    graph.initializer.append(helper.make_tensor("minus_half", TensorProto.FLOAT, [], [-0.5]))
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid(op.DOMAIN, op.VERSION)]
    functions = [op.function_body(op.Op.ADD_RMS_NORM, 18)] if with_body else []
    return helper.make_model(graph, opset_imports=opsets, functions=functions, ir_version=9)


def run(program, *arguments):
    return subprocess.run([program, *map(str, arguments)], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("with_body", [False, True])
def test_it_prints_what_python_computes(program, runtime_library, tmp_path, with_body):
    path = tmp_path / "fused.onnx"
    model = fused_model(with_body)
    onnx.save(model, path)
    done = run(program, runtime_library, library_path(), path, ROWS, COLUMNS)
    assert done.returncode == 0, done.stderr
    got = np.array(done.stdout.split(), np.float32).reshape(ROWS, COLUMNS)
    pattern = np.arange(ROWS * COLUMNS) * 37 % 101
    x = ((pattern.astype(np.float32) - np.float32(50)) / np.float32(25)).reshape(ROWS, COLUMNS)
    np.testing.assert_array_equal(got, session(model).run(["Y"], {"X": x})[0])
    wanted, _ = rms_norm(x, np.linspace(0.5, 2.0, COLUMNS), residual=x / 2, epsilon=1e-5, exact=True)
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)


def test_its_errors_are_sentences(program, runtime_library, tmp_path):
    path = tmp_path / "fused.onnx"
    onnx.save(fused_model(with_body=False), path)
    library = library_path()
    done = run(program)
    assert done.returncode == 2
    assert done.stderr.startswith("usage: ")
    for arguments, said in (
        ((tmp_path / "none.so", library, path, 1, COLUMNS), "cannot open onnxruntime"),
        ((library, library, path, 1, COLUMNS), "not an onnxruntime library"),
        ((runtime_library, tmp_path / "none.so", path, 1, COLUMNS), "custom-op library: "),
        ((runtime_library, library, tmp_path / "none.onnx", 1, COLUMNS), "session: "),
        ((runtime_library, library, path, 1, COLUMNS + 1), "run: "),
    ):
        done = run(program, *arguments)
        assert done.returncode == 1
        assert f"run_model: {said}" in done.stderr
