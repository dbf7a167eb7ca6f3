"""Whole models compiled, and run by a process that knows nothing else of them."""

import contextlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

pytest.importorskip("tvm.relax", reason="apache-tvm is not installed: pip install '.[tvm]'")

from rmsnorm_deploy import tvm
from rmsnorm_deploy.cli.app import main
from rmsnorm_deploy.errors import MissingEnvironment, ModelError, UsageError
from rmsnorm_deploy.op.reference import rms_norm
from rmsnorm_deploy.run.inputs import make_inputs
from rmsnorm_deploy.tvm.targets.resolve import this_cpu

MODELS = sorted((Path(__file__).parent.parent.parent / "samples" / "models").glob("*.onnx"))
RUN = (
    "import sys, numpy as np; from rmsnorm_deploy import tvm; f = tvm.load(sys.argv[1]); "
    "np.savez(sys.argv[3], **f(dict(np.load(sys.argv[2]))))"
)


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A model of one norm, and it compiled."""
    folder = tmp_path_factory.mktemp("small")
    node = helper.make_node("RMSNormalization", ["x", "w"], ["y"], epsilon=1e-6)
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        [node],
        "g",
        [info("x", TensorProto.FLOAT, ("rows", 24)), info("w", TensorProto.FLOAT, (24,))],
        [info("y", TensorProto.FLOAT, ("rows", 24))],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=11), folder / "m.onnx")
    tvm.compile(folder / "m.onnx", output=folder / "c")
    return folder


@pytest.mark.parametrize("path", MODELS, ids=lambda p: p.stem)
def test_exports_run_in_a_fresh_process_as_in_onnxruntime(path, tmp_path):
    ort = pytest.importorskip("onnxruntime")
    feeds = make_inputs(onnx.load(path))
    made = tvm.compile(path, output=tmp_path / "c")
    assert made.norms >= 5
    assert 1 <= made.kernels < made.norms
    np.savez(tmp_path / "in.npz", **feeds)
    subprocess.run([sys.executable, "-c", RUN, tmp_path / "c", tmp_path / "in.npz", tmp_path / "out.npz"], check=True)
    got = np.load(tmp_path / "out.npz")
    session = ort.InferenceSession(path)
    for value, wanted in zip(session.get_outputs(), session.run(None, feeds), strict=True):
        assert got[value.name].dtype == wanted.dtype
        bar = 5e-3 if wanted.dtype == np.float16 else 1e-5
        assert np.abs(got[value.name].astype(float) - wanted.astype(float)).max() <= bar
        assert np.abs(wanted.astype(float)).max() > 0.1


def test_the_folder_says_what_it_is(small):
    said = json.loads((small / "c" / "model.json").read_text())
    assert said["inputs"] == [
        {"name": "x", "type": "float32", "shape": ["rows", 24]},
        {"name": "w", "type": "float32", "shape": [24]},
    ]
    assert [o["name"] for o in said["outputs"]] == ["y"]
    assert (said["target"], said["mcpu"], said["norms"], said["kernels"]) == ("llvm", this_cpu(), 1, 1)
    assert sorted(p.name for p in small.iterdir()) == ["c", "m.onnx"]


def heavy(folder):
    """A model with a large weight and a small one, of which a norm needs a first element."""
    weights = [np.arange(1024, dtype=np.float32).reshape(32, 32) / 1024, np.ones(32, np.float32)]
    nodes = [
        helper.make_node("MatMul", ["x", "big"], ["a"]),
        helper.make_node("RMSNormalization", ["a", "small"], ["b"]),
        helper.make_node("MatMul", ["b", "big"], ["y"]),
        helper.make_node("Slice", ["x", "zero", "one"], ["first"]),
    ]
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "g",
        [info("x", TensorProto.FLOAT, ("rows", 32))],
        [info("y", TensorProto.FLOAT, ("rows", 32)), info("first", TensorProto.FLOAT, (1, 32))],
        [
            *(onnx.numpy_helper.from_array(w, n) for w, n in zip(weights, ("big", "small"), strict=True)),
            onnx.numpy_helper.from_array(np.array([0]), "zero"),
            onnx.numpy_helper.from_array(np.array([1]), "one"),
        ],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=11), folder / "m.onnx")
    tvm.compile(folder / "m.onnx", output=folder / "c")
    return folder / "c"


def test_weights_are_a_file_of_their_own_that_has_to_be_whole(tmp_path):
    folder = heavy(tmp_path)
    assert sorted(p.name for p in folder.iterdir()) == [
        *("libscipy_openblas.so", "libscipy_openblas.so.LICENSE.txt"),
        *("model.json", "model.params", "model.so"),
    ]
    said = json.loads((folder / "model.json").read_text())
    path = folder / "model.params"
    whole = path.read_bytes()
    # one tensor that is used twice is there once; the small one stays in the library
    assert said["weights"]["bytes"] == len(whole)
    assert len(said["weights"]["tensors"]) == 1
    assert 4096 < len(whole) < 4500
    weight = (np.arange(1024, dtype=np.float32) / 1024).tobytes()
    assert weight in whole
    assert weight[:512] not in (folder / "model.so").read_bytes()
    x = np.random.default_rng(2).standard_normal((3, 32)).astype(np.float32)
    a = x @ np.frombuffer(weight, np.float32).reshape(32, 32)
    normed, _ = rms_norm(a, np.ones(32), epsilon=1e-5, exact=True)
    got = tvm.load(folder)({"x": x})
    np.testing.assert_allclose(got["y"], normed @ np.frombuffer(weight, np.float32).reshape(32, 32), atol=1e-4)
    for content, wrong in ((whole[:-1], "bytes instead of"), (b"\0" * len(whole), "other bytes"), (None, "lacks")):
        path.unlink() if content is None else path.write_bytes(content)
        with pytest.raises(ModelError, match=wrong) as raised:
            tvm.load(folder)
        assert "compile it again" in raised.value.hint


def test_a_size_that_may_not_be_zero_is_refused(tmp_path):
    folder = heavy(tmp_path)
    assert json.loads((folder / "model.json").read_text())["not_empty"] == ["rows"]
    with pytest.raises(UsageError, match="dimension 'rows' of input 'x' is 0"):
        tvm.load(folder)({"x": np.ones((0, 32), np.float32)})


def test_any_number_of_rows_and_threads(small):
    f = tvm.load(small / "c")
    rng = np.random.default_rng(1)
    w = rng.standard_normal(24).astype(np.float32)
    for rows in (1, 7, 3000):
        x = rng.standard_normal((rows, 24)).astype(np.float32)
        truth, _ = rms_norm(x, w, epsilon=1e-6, exact=True)
        np.testing.assert_allclose(f({"x": x, "w": w})["y"], truth, rtol=0, atol=3e-6)


@pytest.mark.parametrize(
    ("feeds", "said"),
    [
        ({"x": np.ones((2, 24), np.float32)}, "input 'w' is missing"),
        ({"x": np.ones((2, 24)), "w": np.ones(24, np.float32)}, "is float64, not float32"),
        ({"x": np.ones((2, 23), np.float32), "w": np.ones(24, np.float32)}, "has shape"),
        ({"x": np.ones(24, np.float32), "w": np.ones(24, np.float32)}, "has shape"),
        ({"z": np.ones(24, np.float32)}, "no input 'z'"),
    ],
)
def test_wrong_inputs_are_refused(small, feeds, said):
    with pytest.raises(UsageError, match=said):
        tvm.load(small / "c")(feeds)


@pytest.mark.parametrize(
    ("target", "mcpu", "said"),
    [
        ("llvm", "abacus", "knows no CPU 'abacus'"),
        ("llvm", "native", "knows no CPU 'native'"),
        ("llvm", "znver33", "Perhaps znver3"),
        ("toaster", None, "no schedules for target 'toaster'"),
    ],
)
def test_unknown_targets_and_processors_are_refused(small, tmp_path, target, mcpu, said):
    with pytest.raises(UsageError) as raised:
        tvm.compile(small / "m.onnx", target, mcpu, output=tmp_path / "c")
    assert said in str(raised.value)
    assert not list(tmp_path.iterdir())


def test_a_generic_processor_on_request(small, tmp_path):
    assert tvm.compile(small / "m.onnx", mcpu="generic", output=tmp_path / "c").mcpu == "generic"
    x, w = np.ones((2, 24), np.float32), np.ones(24, np.float32)
    np.testing.assert_allclose(tvm.load(tmp_path / "c")({"x": x, "w": w})["y"], x, rtol=1e-5)


def test_nothing_is_overwritten_and_nothing_half_done_stays(small, tmp_path):
    with pytest.raises(UsageError, match="exists already"):
        tvm.compile(small / "m.onnx", output=small / "c")
    with pytest.raises(ModelError):
        tvm.compile(small / "c" / "model.json", output=tmp_path / "c")
    assert not list(tmp_path.iterdir())


def test_folders_that_are_no_compiled_models_are_refused(small, tmp_path):
    with pytest.raises(ModelError, match=r"not a compiled model"):
        tvm.load(tmp_path)
    said = json.loads((small / "c" / "model.json").read_text())
    for change, error in (
        ({"schema_version": 99}, ModelError),
        ({"tvm": "0.1.0"}, MissingEnvironment),
        ({}, ModelError),
    ):
        (tmp_path / "model.json").write_text(json.dumps(said | change))
        with pytest.raises(error, match=r"format 99|made by TVM 0.1.0|lacks model.params"):
            tvm.load(tmp_path)
    (tmp_path / "model.json").write_text(json.dumps({"schema_version": said["schema_version"]}))
    with pytest.raises(ModelError, match="not a compiled model"):
        tvm.load(tmp_path)


def test_a_folder_that_cannot_be_is_refused(small, tmp_path):
    for name in ("n" * 300, "a\0b", "a\ud800", "missing/c"):
        with pytest.raises(UsageError):
            tvm.compile(small / "m.onnx", output=tmp_path / name)
        with pytest.raises(UsageError):
            tvm.tune(small / "m.onnx", log=f"{tmp_path / name}", seconds=0.01)
    with pytest.raises(UsageError, match="names a folder"):
        tvm.tune(small / "m.onnx", log=f"{tmp_path}/logs/", seconds=0.01)
    assert not list(tmp_path.iterdir())


def test_a_library_that_is_not_whole_is_refused(small, tmp_path):
    """The system's loader would end the process."""
    shutil.copytree(small / "c", tmp_path / "c")
    path = tmp_path / "c" / "model.so"
    whole = path.read_bytes()
    for content, said in ((whole[:5000], "has 5000 bytes instead of"), (b"\0" * len(whole), "other bytes")):
        path.write_bytes(content)
        with pytest.raises(ModelError, match=said):
            tvm.load(tmp_path / "c")


def test_a_folder_that_was_made_again_is_loaded_again(tmp_path):
    """The system's loader takes a path that it knows for the library that was there before."""
    x, functions = np.ones((2, 8), np.float32), []
    for epsilon in (0.0, 3.0):
        shutil.rmtree(tmp_path / "c", ignore_errors=True)
        tvm.compile(one_norm(8, epsilon), output=tmp_path / "c")
        functions.append(tvm.load(tmp_path / "c"))
        np.testing.assert_allclose(functions[-1]({"x": x})["y"], x / np.sqrt(1 + epsilon), rtol=1e-6)
    np.testing.assert_allclose(functions[0]({"x": x})["y"], x, rtol=1e-6)


def one_norm(size, epsilon=1e-6, rows="rows"):
    node = helper.make_node("RMSNormalization", ["x", "w"], ["y"], epsilon=epsilon)
    info = helper.make_tensor_value_info
    shape = (rows, size)
    graph = helper.make_graph(
        [node],
        "g",
        [info("x", TensorProto.FLOAT, shape)],
        [info("y", TensorProto.FLOAT, shape)],
        [onnx.numpy_helper.from_array(np.ones(size, np.float32), "w")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=11)


def test_empty_tensors(tmp_path):
    """No rows at all, and a constant past of length 0; TVM can read neither of them back."""
    tvm.compile(one_norm(8, rows=0), output=tmp_path / "none")
    assert tvm.load(tmp_path / "none")({"x": np.ones((0, 8), np.float32)})["y"].shape == (0, 8)
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("Concat", ["past", "x"], ["y"], axis=2)],
        "g",
        [info("x", TensorProto.FLOAT, (1, 2, 3, 4))],
        [info("y", TensorProto.FLOAT, (1, 2, 3, 4)), info("past", TensorProto.FLOAT, (1, 2, 0, 4))],
        [onnx.numpy_helper.from_array(np.zeros((1, 2, 0, 4), np.float32), "past")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    tvm.compile(model, output=tmp_path / "past")
    x = np.arange(24, dtype=np.float32).reshape(1, 2, 3, 4)
    got = tvm.load(tmp_path / "past")({"x": x})
    np.testing.assert_array_equal(got["y"], x)
    assert got["past"].shape == (1, 2, 0, 4)


@pytest.mark.skipif(sys.platform == "win32", reason="there is no /bin/false")
@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("PATH", "/nowhere", "there is no C++ compiler"),
        ("CXX", "/nowhere/g++", "CXX names '/nowhere/g++', which is not a program"),
        ("CXX", 'g++ "', "CXX cannot be read: no closing quotation"),
        ("CXX", "COMPILER", ": ld: no such thing"),
    ],
)
def test_a_compiler_that_is_not_there_or_fails(small, tmp_path, monkeypatch, capfd, variable, value, said):
    compiler = tmp_path / "compiler"
    compiler.write_text("#!/bin/sh\necho 'ld: no such thing'\necho 'collect2: error: ld returned 1'\nexit 1\n")
    compiler.chmod(0o755)
    if variable == "PATH":
        monkeypatch.delenv("CXX", raising=False)
        monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv(variable, str(compiler) if value == "COMPILER" else value)
    assert main(["compile", str(small / "m.onnx"), "-o", str(tmp_path / "c")]) == MissingEnvironment.exit_code
    assert said in capfd.readouterr().err
    assert [p.name for p in tmp_path.iterdir()] == ["compiler"]


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="needs a folder that nobody can write into: /proc")
def test_places_where_nothing_can_be_written(small, tmp_path, capfd):
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for options, said in (
        (["-o", "link"], "exists already"),
        (["-o", "/proc/c"], "no folder can be made in /proc"),
        (["-o", "c", "--dump-ir", str(small / "m.onnx")], "cannot be written"),
    ):
        options[1] = str(tmp_path / options[1])
        assert main(["compile", str(small / "m.onnx"), *options]) == UsageError.exit_code
        assert said in capfd.readouterr().err
        assert [p.name for p in tmp_path.iterdir()] == ["link"]


def test_the_command(small, tmp_path, capfd):
    assert (
        main(["compile", str(small / "m.onnx"), "-o", str(tmp_path / "c"), "--json", "--dump-ir", str(tmp_path / "ir")])
        == 0
    )
    assert json.loads(capfd.readouterr().out)["kernels"] == 1
    assert (tmp_path / "ir" / "01_lower_norms.py").exists()
    assert main(["compile", str(small / "m.onnx"), "-o", str(tmp_path / "d"), "--mcpu", "abacus"]) == 2
    assert "knows no CPU 'abacus'" in capfd.readouterr().err


def test_where_time_goes_is_known(small, tmp_path, capfd):
    steps = []
    made = tvm.compile(small / "m.onnx", output=tmp_path / "c", progress=lambda *step: steps.append(step))
    assert list(made.timings) == [name for name, _, _ in steps[:-1]]
    assert [done for _, done, _ in steps] == list(range(len(steps)))
    assert steps[-1] == ("", len(made.timings), len(made.timings))
    assert {total for _, _, total in steps} == {len(made.timings)}
    assert list(made.timings)[:3] == ["read_and_fuse", "import", "lower_norms"]
    assert list(made.timings)[-3:] == ["compile_kernels", "write_library", "write_weights"]
    assert 0.8 * made.seconds < sum(made.timings.values()) <= made.seconds
    assert capfd.readouterr() == ("", "")  # the library itself says nothing
    assert main(["compile", str(small / "m.onnx"), "-o", str(tmp_path / "d"), "--timings"]) == 0
    out, err = capfd.readouterr()
    assert "compile kernels" in out
    assert "100%" in out
    assert "lower norms" not in err
    assert main(["compile", str(small / "m.onnx"), "-o", str(tmp_path / "e"), "--timings", "--json"]) == 0
    said = json.loads(capfd.readouterr().out)
    assert said["timings"].keys() == made.timings.keys()


def test_a_compiled_model_is_replaced_and_nothing_else(small, tmp_path, capfd):
    folder = tmp_path / "c"
    command = ["compile", str(small / "m.onnx"), "-o", str(folder)]
    folder.mkdir()
    (folder / "letter").write_text("precious")
    assert main([*command, "--force"]) == 2
    assert "not a compiled model" in capfd.readouterr().err
    (folder / "letter").unlink()
    assert main(command) == 2
    assert "--force" in capfd.readouterr().err
    assert main([*command, "--force"]) == 0
    first = (folder / "model.json").stat().st_ino
    assert main([*command, "--force"]) == 0
    assert (folder / "model.json").stat().st_ino != first
    tvm.load(folder)
    assert [p.name for p in tmp_path.iterdir()] == ["c"]


@pytest.mark.skipif(sys.platform == "win32", reason="there are no pseudo-terminals")
@pytest.mark.parametrize("where", ["terminal", "pipe"])
def test_a_progress_bar_on_a_terminal_only(small, tmp_path, where):
    import pty

    reader, writer = pty.openpty() if where == "terminal" else os.pipe()
    command = [sys.executable, "-m", "rmsnorm_deploy", "compile", small / "m.onnx", "-o", tmp_path / "c"]
    with subprocess.Popen(
        command, stderr=writer, stdout=subprocess.PIPE, env=os.environ | {"TERM": "xterm"}
    ) as process:
        os.close(writer)
        said = b""
        with contextlib.suppress(OSError):  # a terminal's end of file
            while chunk := os.read(reader, 65536):
                said += chunk
        os.close(reader)
        out = process.stdout.read()
    assert process.returncode == 0
    assert b"\x1b" not in out
    assert (b"\x1b[" in said) == (where == "terminal")
    assert (b"lower_norms" in said or b"compile_kernels" in said) == (where == "terminal")
    assert b"took" in said


@pytest.mark.parametrize("steps", [20, 300])
def test_models_of_few_and_of_many_steps(steps, tmp_path):
    """The order of many steps is not machine code: LLVM would take seconds for it."""
    nodes = [helper.make_node("MatMul", [f"x{i}", f"x{i}"], [f"x{i + 1}"]) for i in range(steps)]
    info = helper.make_tensor_value_info
    graph = helper.make_graph(nodes, "g", [info("x0", 1, (2, 2))], [info(f"x{steps}", 1, (2, 2))])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    tvm.compile(made, output=tmp_path / "c", blas="none")
    turned = np.array([[0, -1], [1, 0]], np.float32)
    # squared it is -1, and squared again 1
    np.testing.assert_array_equal(tvm.load(tmp_path / "c")({"x0": turned})[f"x{steps}"], np.eye(2))
    library = (tmp_path / "c" / "model.so").read_bytes()
    assert (b"__vmtir__main" in library) == (steps < 256)
