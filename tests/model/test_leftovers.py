"""Runs that are killed: what stands under a name is whole at any moment, and the next run removes what is left."""

import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from rmsnorm_deploy.model import atomic, leftovers
from rmsnorm_deploy.model.load import load_proto
from rmsnorm_deploy.model.save import save, saving
from tests.support.changes import kills

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="numbers of processes, forks and audit events of Linux")


def listing(folder):
    return sorted(p.name for p in folder.iterdir())


def model(value, folder=None):
    """y = x + w, where w is full of ``value``; with ``folder`` its path there, the weights in a file."""
    tensor = numpy_helper.from_array(np.full(1024, value, np.float32), "w")
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "w"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1024])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1024])],
        [tensor],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    if folder is None:
        return made
    folder.mkdir(exist_ok=True)
    onnx.save(made, folder / "m.onnx", save_as_external_data=True, location="w.bin", size_threshold=0)
    return folder / "m.onnx"


def value_of(path):
    """What the model at ``path`` adds; it has to be whole."""
    load_proto(path)
    return float(numpy_helper.to_array(onnx.load(path).graph.initializer[0])[-1])


@pytest.mark.parametrize("inside", [True, False], ids=["one file", "with weights"])
def test_a_killed_run_leaves_the_old_output_or_the_new_one(tmp_path, inside):
    first, second = (model(i) if inside else model(i, tmp_path / f"in{i}") for i in (1, 2))
    out = tmp_path / "out"
    out.mkdir()
    target = out / "f.onnx"

    def put(what, overwrite):
        if inside:
            save(what, target, overwrite=overwrite)
        else:
            save(load_proto(what), target, source=what, overwrite=overwrite)

    killed = 0
    for at in kills(lambda: put(second, False)):
        assert not target.exists() or value_of(target) == 2, at
        if target.exists():
            target.unlink()
            (out / "f.onnx.data").unlink(missing_ok=True)
        put(first, False)  # what the dead run left is not in its way
        assert listing(out) == (["f.onnx"] if inside else ["f.onnx", "f.onnx.data"]), at
        for file in out.iterdir():
            file.unlink()
        killed += 1
    assert killed >= 5
    put(first, True)
    killed = 0
    for at in kills(lambda: put(second, True)):
        assert value_of(target) in (1, 2), at
        put(first, True)
        assert value_of(target) == 1, at
        there = listing(out)
        assert there[0] == "f.onnx", there
        assert len(there) == (1 if inside else 2), there
        killed += 1
    assert killed > 5


def test_a_killed_run_with_shared_weights_leaves_nothing_for_long(tmp_path):
    path = model(1, tmp_path)
    before = listing(tmp_path)
    for _ in kills(lambda: save(load_proto(path), tmp_path / "f.onnx", source=path, overwrite=True)):
        assert not (tmp_path / "f.onnx").exists() or value_of(tmp_path / "f.onnx") == 1
    save(load_proto(path), tmp_path / "f.onnx", source=path, overwrite=True)
    assert listing(tmp_path) == sorted([*before, "f.onnx"])


def test_the_same_weights_keep_their_name_and_others_get_a_new_one(tmp_path):
    one, two = model(1, tmp_path / "in1"), model(2, tmp_path / "in2")
    (tmp_path / "out").mkdir()
    target = tmp_path / "out" / "f.onnx"
    save(load_proto(one), target, source=one)
    first = target.read_bytes()
    saved = save(load_proto(one), target, source=one, overwrite=True)
    assert target.read_bytes() == first
    assert saved.weight_files == ("f.onnx.data",)
    saved = save(load_proto(two), target, source=two, overwrite=True)
    assert saved.weight_files == ("f.onnx.1.data",)
    assert value_of(target) == 2
    assert listing(target.parent) == ["f.onnx", "f.onnx.1.data"]
    second = target.read_bytes()
    save(load_proto(two), target, source=two, overwrite=True)
    assert target.read_bytes() == second


def test_old_weights_stay_where_another_model_uses_them(tmp_path):
    one, two = model(1, tmp_path / "in1"), model(2, tmp_path / "in2")
    (tmp_path / "out").mkdir()
    target, other = tmp_path / "out" / "f.onnx", tmp_path / "out" / "g.onnx"
    save(load_proto(one), target, source=one)
    save(load_proto(target), other, source=target)
    save(load_proto(two), target, source=two, overwrite=True)
    assert value_of(other) == 1
    assert value_of(target) == 2


def test_what_cannot_be_told_is_taken_back(tmp_path):
    one, two = model(1, tmp_path / "in1"), model(2, tmp_path / "in2")
    (tmp_path / "out").mkdir()
    target = tmp_path / "out" / "f.onnx"
    for overwrite, source, there in ((False, one, []), (True, two, ["f.onnx", "f.onnx.data"])):

        def tell(source=source, overwrite=overwrite):
            with saving(load_proto(source), target, source=source, overwrite=overwrite):
                assert target.exists()
                raise BrokenPipeError

        with pytest.raises(BrokenPipeError):  # as it is: not an error of the output
            tell()
        assert listing(tmp_path / "out") == there
        if not overwrite:
            save(load_proto(one), target, source=one)
    assert value_of(target) == 1


def test_weights_reach_the_disk_before_the_model_appears(tmp_path, monkeypatch):
    path = model(1, tmp_path / "in")
    (tmp_path / "out").mkdir()
    synced = []
    fsync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda f: (synced.append(Path(f"/proc/self/fd/{f}").readlink().name), fsync(f)))
    save(load_proto(path), tmp_path / "out" / "f.onnx", source=path)
    assert synced[:2] == ["f.onnx.data", "model.onnx"]
    assert synced[-2:] == ["out", "out"]


def left_by(process, folder, here=None, age=0):
    """A leftover, as a run with this process number would leave it."""
    made = folder / f".rmsnorm-deploy.{here or leftovers._here()}.{process}.abc_1234.tmp"
    made.mkdir()
    (made / "f.onnx").write_bytes(b"half")
    os.utime(made, (time.time() - age,) * 2)
    return made


def test_only_what_dead_runs_left_is_removed(tmp_path):
    gone = subprocess.Popen(["true"])
    gone.wait()
    dead, old = left_by(gone.pid, tmp_path), left_by(os.getppid(), tmp_path, age=2 * 24 * 3600)
    elsewhere, older = left_by(gone.pid, tmp_path, here="0" * 8), left_by(1, tmp_path, here="1" * 8, age=2 * 24 * 3600)
    mine, parents = left_by(os.getpid(), tmp_path), left_by(1, tmp_path)
    beside = Path(f"{dead}.onnx")
    beside.write_bytes(b"half")
    linked = tmp_path / f".rmsnorm-deploy.{leftovers._here()}.{gone.pid}.linked__.tmp"
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "file").touch()
    linked.symlink_to(tmp_path / "precious")
    others = [".keep.tmp", "notes.txt", f"{dead.name}.txt", ".rmsnorm-deploy.x.tmp"]
    for name in others:
        (tmp_path / name).touch()
    atomic.write(tmp_path / "log", b"text")
    assert not [p for p in (dead, old, older, beside) if os.path.lexists(p)]
    assert sorted(listing(tmp_path)) == sorted(["log", "precious", elsewhere.name, mine.name, parents.name, *others])
    assert (tmp_path / "precious" / "file").exists()


def test_a_journal_that_names_others_files_is_not_followed(tmp_path):
    gone = subprocess.Popen(["true"])
    gone.wait()
    (tmp_path / "in").mkdir()
    left = left_by(gone.pid, tmp_path / "in")
    (tmp_path / "precious").touch()
    inode = (tmp_path / "precious").stat().st_ino
    for text in (f'{{"../precious": {inode}}}', f'{{"..": {inode}, "\\u0000": 1}}', "[1, 2]", "{}", "[", "null"):
        left.mkdir(exist_ok=True)
        (left / "journal").write_text(text)
        atomic.write(tmp_path / "in" / "log", b"text")
        assert not left.exists(), text
        assert (tmp_path / "precious").exists()
