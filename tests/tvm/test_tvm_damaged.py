"""Compiled folders that were damaged or tampered with: an error of ours, never another one, and never other numbers."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

pytest.importorskip("tvm.relax", reason="apache-tvm is not installed: pip install '.[tvm]'")

from rmsnorm_deploy import tvm
from rmsnorm_deploy.cli.app import main
from rmsnorm_deploy.errors import ModelError, RmsNormDeployError
from rmsnorm_deploy.model import files
from rmsnorm_deploy.tvm.artefact import description as describing
from tests.support.replaced import replaced


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A compiled model whose weights are in their file; the folder beside ``m.onnx``."""
    folder = tmp_path_factory.mktemp("whole")
    weights = np.arange(4096, dtype=np.float32).reshape(64, 64) / 4096
    graph = helper.make_graph(
        [helper.make_node("RMSNormalization", ["x", "w"], ["h"]), helper.make_node("MatMul", ["h", "k"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ("rows", 64))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ("rows", 64))],
        [numpy_helper.from_array(np.ones(64, np.float32), "w"), numpy_helper.from_array(weights, "k")],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=11), folder / "m.onnx")
    tvm.compile(folder / "m.onnx", output=folder / "c")
    return folder / "c"


@pytest.fixture
def copy(whole, tmp_path):
    shutil.copytree(whole, tmp_path / "c")
    return tmp_path / "c"


def changed(file, at):
    """One byte of ``file`` is another one; ``at`` is its place, from 0 to 1."""
    data = bytearray(file.read_bytes())
    data[min(int(len(data) * at), len(data) - 1)] ^= 0x55
    file.write_bytes(data)


@pytest.mark.parametrize("at", [0, 0.1, 0.5, 0.9, 1])
@pytest.mark.parametrize("name", ["model.so", "model.params"])
def test_a_changed_byte_is_noticed(copy, name, at):
    changed(copy / name, at)
    with pytest.raises(ModelError, match="other bytes"):
        tvm.load(copy)


@pytest.mark.parametrize("name", ["model.so", "model.params"])
def test_a_part_that_is_cut_off_is_refused_even_where_its_size_was_corrected(copy, name):
    """The system's loader would end the process."""
    file, said = copy / name, json.loads((copy / "model.json").read_text())
    data = file.read_bytes()
    for size in (0, 10, len(data) // 10, len(data) - 1):
        file.write_bytes(data[:size])
        said["library" if name == "model.so" else "weights"]["bytes"] = size
        (copy / "model.json").write_text(json.dumps(said))
        with pytest.raises(ModelError):
            tvm.load(copy)


def test_the_hash_of_the_weights_can_be_left_out_but_not_their_size_and_beginning(copy):
    file = copy / "model.params"
    data = file.read_bytes()
    large = data + bytes(2 * describing.HEAD)
    said = json.loads((copy / "model.json").read_text())
    file.write_bytes(large)
    del said["sha256"]
    describing.write(copy, {**said, "weights": {**said["weights"], **describing.part(file)}})
    file.write_bytes(large[:-1] + b"1")
    tvm.load(copy, verify_weights=False)
    with pytest.raises(ModelError, match="other bytes"):
        tvm.load(copy)
    for content in (large[:-1], b"1" + large[1:]):
        file.write_bytes(content)
        with pytest.raises(ModelError, match=r"other bytes|bytes instead of"):
            tvm.load(copy, verify_weights=False)


ODD = [None, True, -1, 2**70, 1.5, float("nan"), "", "nonsense", "llvm", [], {}, [None], [[]], [1], ["x"], {"a": 1}]


@pytest.mark.parametrize("hashed", [False, True], ids=["as it is", "with its hash corrected"])
@pytest.mark.parametrize("odd", ODD, ids=repr)
def test_a_description_that_was_changed_is_refused_by_name(copy, odd, hashed):
    """A hash is against damage, not against whoever corrects it; what they write still is of the right types."""
    said = json.loads((copy / "model.json").read_text())
    own = json.loads(json.dumps(said))
    refused = 0
    for change in replaced(said, odd):
        if change == own:
            continue
        if hashed and isinstance(change, dict):
            change = {**change, "sha256": describing._own_hash({k: v for k, v in change.items() if k != "sha256"})}
        (copy / "model.json").write_text(json.dumps(change))
        try:
            tvm.load(copy)
        except RmsNormDeployError:
            refused += 1
        else:
            assert hashed, change
    assert refused > 20


@pytest.mark.parametrize("text", ["", "[", "[" * 100_000, "null", "3", '"x"', "\xff", "{}", '{"schema_version": []}'])
def test_a_file_that_describes_nothing_is_refused(copy, text):
    (copy / "model.json").write_text(text, encoding="latin-1")
    with pytest.raises(ModelError):
        tvm.load(copy)


def test_a_description_without_end_is_refused(copy):
    (copy / "model.json").unlink()
    (copy / "model.json").symlink_to("/dev/zero")
    with pytest.raises(ModelError, match="cannot be read"):
        tvm.load(copy)


def test_a_description_that_is_no_text_for_its_length_is_refused(copy, monkeypatch):
    monkeypatch.setattr(files, "MOST_TEXT", (copy / "model.json").stat().st_size - 1)
    with pytest.raises(ModelError, match="cannot be read"):
        tvm.load(copy)
    monkeypatch.setattr(files, "MOST_TEXT", files.MOST_TEXT + 1)
    tvm.load(copy)


def test_a_name_that_no_folder_can_have_is_refused(tmp_path):
    for name in ("a\0b", "n" * 300, "a\ud800"):
        with pytest.raises(ModelError, match="not a compiled model"):
            tvm.load(tmp_path / name)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("options", [[], ["--json"]], ids=str)
def test_a_result_that_cannot_be_told_leaves_no_folder(whole, tmp_path, options):
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "rmsnorm_deploy", "compile", whole.parent / "m.onnx", "-o", tmp_path / "c"]
        assert subprocess.run([*command, *options], stdout=full, stderr=subprocess.DEVNULL, check=False).returncode == 4
    assert list(tmp_path.iterdir()) == []


def test_the_command_prints_data_on_stdout_alone(whole, tmp_path, capfd):
    assert main(["compile", str(whole.parent / "m.onnx"), "-o", str(tmp_path / "c"), "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["norms"] == 1
