"""Where the weights of an output are: kept, copied or inside; told on the way; copied by the system where it can."""

import errno
import os
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from rmsnorm_deploy import UsageError, save
from rmsnorm_deploy.model import copying
from rmsnorm_deploy.model.load import load_proto

SIZE = 5000


@pytest.fixture
def original(tmp_path):
    """A model with two weights in a file beside it."""
    folder = tmp_path / "in"
    folder.mkdir()
    value = helper.make_tensor_value_info
    tensors = [numpy_helper.from_array(np.arange(SIZE, dtype=np.float32) + i, f"w{i}") for i in range(2)]
    nodes = [helper.make_node("Add", ["x", "w0"], ["s"]), helper.make_node("Add", ["s", "w1"], ["y"])]
    graph = helper.make_graph(nodes, "g", [value("x", 1, [SIZE])], [value("y", 1, [SIZE])], tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.save(model, folder / "m.onnx", save_as_external_data=True, location="w.data", size_threshold=0)
    return folder / "m.onnx"


def weights(path):
    return [numpy_helper.to_array(t)[:2].tolist() for t in onnx.load(path).graph.initializer]


RIGHT = [[0.0, 1.0], [1.0, 2.0]]


def test_kept_in_the_same_folder_and_refused_elsewhere(original, tmp_path):
    saved = save(load_proto(original), original.parent / "f.onnx", source=original, weights="keep")
    assert (saved.weight_files, saved.copied) == (("w.data",), 0)
    with pytest.raises(UsageError, match="only use those in its own folder"):
        save(load_proto(original), tmp_path / "f.onnx", source=original, weights="keep")
    assert [p.name for p in tmp_path.iterdir()] == ["in"]


def test_copied_beside_the_original(original):
    saved = save(load_proto(original), original.parent / "f.onnx", source=original, weights="copy")
    assert saved.weight_files == ("f.onnx.data",)
    assert saved.copied >= 2 * 4 * SIZE
    (original.parent / "w.data").unlink()
    assert weights(original.parent / "f.onnx") == RIGHT


@pytest.mark.parametrize("there", ["in", "."])
def test_embedded(original, tmp_path, there):
    output = tmp_path / there / "f.onnx"
    proto = load_proto(original)
    saved = save(proto, output, source=original, weights="embed")
    assert saved.weight_files == ()
    assert "MiB of weights inside" in saved.note
    assert len(proto.graph.initializer[0].external_data)  # the caller's model is as it was
    (original.parent / "w.data").unlink()
    assert weights(output) == RIGHT


def test_an_unknown_way_is_refused(original, tmp_path):
    with pytest.raises(UsageError, match="keep, copy, embed"):
        save(load_proto(original), tmp_path / "f.onnx", source=original, weights="burn")


def test_what_is_copied_is_told(original, tmp_path):
    told = []
    save(load_proto(original), tmp_path / "f.onnx", source=original, progress=lambda *step: told.append(step))
    copying_steps = [step for step in told if step[0] == "copying weights to f.onnx.data"]
    assert [done for _, done, _ in copying_steps] == [0, 4 * SIZE, 8 * SIZE]
    assert {total for _, _, total in copying_steps} == {8 * SIZE}


@pytest.mark.parametrize("refusal", [None, errno.EXDEV, errno.ENOSYS, "nothing"])
def test_the_bytes_are_the_same_whoever_copies_them(original, tmp_path, monkeypatch, refusal):
    asked = []
    real = os.copy_file_range

    def copy(source, target, most, **kwargs):
        asked.append(most)
        if refusal == "nothing":
            return 0
        if refusal is not None:
            raise OSError(refusal, "no")
        return real(source, target, most, **kwargs)

    monkeypatch.setattr(os, "copy_file_range", copy)
    save(load_proto(original), tmp_path / "f.onnx", source=original)
    assert asked
    assert weights(tmp_path / "f.onnx") == RIGHT
    data = (tmp_path / "f.onnx.data").read_bytes()
    assert data[: 4 * SIZE] == np.arange(SIZE, dtype=np.float32).tobytes()
    assert len(data) % 4096 == 4 * SIZE % 4096  # the second begins at a multiple of a page


def test_a_disk_that_is_full_is_not_taken_for_a_refusal(original, tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "copy_file_range", full)
    with pytest.raises(UsageError, match="No space left"):
        save(load_proto(original), tmp_path / "f.onnx", source=original)
    assert [p.name for p in tmp_path.iterdir()] == ["in"]


def test_a_part_of_a_file_is_copied_to_the_place_where_the_other_stands(tmp_path, monkeypatch):
    monkeypatch.setattr(copying, "CHUNK", 7)
    (tmp_path / "a").write_bytes(bytes(range(100)))
    for by_system in (True, False):
        if not by_system:
            monkeypatch.setattr(copying.sys, "platform", "other")
        counts = []
        with Path(tmp_path / "a").open("rb") as source, Path(tmp_path / "b").open("wb", buffering=0) as target:
            target.write(b"begin")
            assert copying.copy_part(source.fileno(), 10, target.fileno(), 20, counts.append) == 20
            assert copying.copy_part(source.fileno(), 95, target.fileno(), 20, counts.append) == 5  # it ends there
            assert source.tell() == 0
        assert (tmp_path / "b").read_bytes() == b"begin" + bytes(range(10, 30)) + bytes(range(95, 100))
        assert counts == [7, 7, 6, 5]
