"""The C++ sample for TVM, built against the installed wheels and run without Python."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

pytest.importorskip("tvm.relax", reason="apache-tvm is not installed: pip install '.[tvm]'")

from rmsnorm_deploy import tvm
from rmsnorm_deploy.op.reference import rms_norm
from tests.support.native import needs_cmake

SAMPLE = Path(__file__).resolve().parents[2] / "samples" / "tvm_cpp"
ROWS, COLUMNS, EPSILON = 6, 40, 1e-5


@pytest.fixture(scope="module")
def site_packages():
    import tvm as apache_tvm
    import tvm_ffi

    folder = Path(apache_tvm.__file__).parents[1]
    if folder != Path(tvm_ffi.__file__).parents[1] or not (folder / "tvm" / "lib" / "libtvm_runtime.so").exists():
        pytest.skip("needs apache-tvm and apache-tvm-ffi as wheels in one folder: pip install '.[tvm]'")
    return folder


@pytest.fixture(scope="module")
def program(tmp_path_factory, site_packages):
    if sys.platform != "linux":
        pytest.skip("needs Linux")
    needs_cmake()
    build = tmp_path_factory.mktemp("sample")
    configure = ["cmake", "-S", SAMPLE, "-B", build, f"-DSITE_PACKAGES={site_packages}"]
    for command in (configure, ["cmake", "--build", build]):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    return build / "run_compiled"


@pytest.fixture
def run(program, site_packages):
    libraries = f"{site_packages}/tvm/lib:{site_packages}/tvm_ffi/lib"

    def run(*arguments, environment=None):
        return subprocess.run(
            [program, *map(str, arguments)],
            env={"LD_LIBRARY_PATH": libraries} if environment is None else environment,  # no Python, no paths
            capture_output=True,
            text=True,
            check=False,
        )

    return run


def compiled(folder, with_constant):
    nodes = [helper.make_node("RMSNormalization", ["x", "w"], ["n" if with_constant else "y"], epsilon=EPSILON)]
    nodes += [helper.make_node("Mul", ["n", "one"], ["y"])] if with_constant else []
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "g",
        [info("x", TensorProto.FLOAT, ("rows", COLUMNS)), info("w", TensorProto.FLOAT, (COLUMNS,))],
        [info("y", TensorProto.FLOAT, ("rows", COLUMNS))],
        [helper.make_tensor("one", TensorProto.FLOAT, [COLUMNS], np.ones(COLUMNS))] if with_constant else [],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=11)
    onnx.checker.check_model(model)
    return tvm.compile(model, output=folder / "c").path


@pytest.mark.parametrize("with_constant", [False, True])
def test_it_prints_what_the_formula_says(run, tmp_path, with_constant):
    done = run(compiled(tmp_path, with_constant), ROWS, COLUMNS, EPSILON)
    assert done.returncode == 0, done.stderr
    assert "largest error" in done.stderr
    got = np.array(done.stdout.split(), np.float32).reshape(ROWS, COLUMNS)
    x = ((np.arange(ROWS * COLUMNS) * 37 % 101 - 50) / np.float32(25)).astype(np.float32).reshape(ROWS, COLUMNS)
    scale = 0.5 + np.arange(COLUMNS) % 7 / 4
    wanted, _ = rms_norm(x, scale, epsilon=EPSILON, exact=True)
    unit = np.finfo(np.float32).eps * np.abs(wanted).max(axis=1, keepdims=True)
    assert (np.abs(got - wanted) / unit).max() <= 1


def test_its_errors_are_sentences(run, tmp_path):
    folder = compiled(tmp_path, with_constant=False)
    assert run().returncode == 2
    assert run().stderr.startswith("usage: ")
    done = run(tmp_path / "none", ROWS, COLUMNS, EPSILON)
    assert done.returncode == 1
    assert "run_compiled: " in done.stderr
    assert "none/model.so" in done.stderr
    done = run(folder, ROWS, COLUMNS + 1, EPSILON)
    assert done.returncode == 1
    assert "mismatch" in done.stderr
    assert run(folder, ROWS, COLUMNS, 1.0).returncode == 1  # its own check of the result
    assert "libtvm_runtime.so" in run(folder, ROWS, COLUMNS, EPSILON, environment={}).stderr


def test_what_is_missing_for_the_build_is_said(tmp_path):
    needs_cmake()
    done = subprocess.run(
        ["cmake", "-S", SAMPLE, "-B", tmp_path, "-DSITE_PACKAGES=/none"], capture_output=True, text=True, check=False
    )
    assert done.returncode != 0
    assert "-DSITE_PACKAGES=FOLDER" in done.stderr
