"""Reading and writing models: one clear sentence for each bad file, and all or nothing on the disk."""

import os
import shutil
import stat
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

import rmsnorm_deploy
from rmsnorm_deploy import ModelError, UsageError, save
from rmsnorm_deploy.model import atomic
from rmsnorm_deploy.model.load import load_model, load_proto
from tests.support.graphs import chain
from tests.support.spellings.graph import F, Graph

SAVE = sys.modules["rmsnorm_deploy.model.save"]
SAMPLES = Path(__file__).parents[2] / "samples" / "models"
LLAMA = SAMPLES / "llama_float16.onnx"


def listing(folder):
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*"))


def model_with_weights(width=64):
    """y = W2 (W1 x), with weights large enough to be put into a file of their own."""
    rng = np.random.default_rng(0)
    tensors = [numpy_helper.from_array(rng.standard_normal((width, width)).astype(np.float32), f"w{i}") for i in (1, 2)]
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w1"], ["h"]), helper.make_node("MatMul", ["h", "w2"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", width])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", width])],
        tensors,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
    model.ir_version = 9
    return model


def external(folder, name="model.onnx", location="model.data"):
    """The same with its weights in a file; the model's path."""
    onnx.save(model_with_weights(), folder / name, save_as_external_data=True, location=location, size_threshold=1024)
    return folder / name


def relocated(path, location, offset=None):
    """The model at ``path``, naming another weight file."""
    model = onnx.load(path, load_external_data=False)
    for tensor in model.graph.initializer:
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = str(location)
            if entry.key == "offset" and offset is not None:
                entry.value = str(offset)
    path.write_bytes(model.SerializeToString())
    return path


def weights_of(path):
    return {t.name: t.raw_data for t in onnx.load(path).graph.initializer}


# -- reading ----------------------------------------------------------------------------------------------------------


def no_graph():
    return onnx.ModelProto(ir_version=9, producer_name="nobody").SerializeToString()


def no_opset():
    model = model_with_weights()
    del model.opset_import[:]
    return model.SerializeToString()


BAD_BYTES = {
    "empty": (b"", "is empty"),
    "text": (b"this is a text file, not a model\n", "not an ONNX model"),
    "picture": (b"\x89PNG\r\n\x1a\n" + bytes(64), "is a PNG picture"),
    "ort": (b"\x18\x00\x00\x00ORTM" + bytes(64), "in onnxruntime's ORT format"),
    "archive": (b"PK\x03\x04" + bytes(64), "is a ZIP archive"),
    "pointer": (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 3\n", "Git LFS pointer"),
    "zeros": (bytes(100), "not an ONNX model"),
    "random": (np.random.default_rng(0).bytes(4096), "not an ONNX model"),
    "right length, wrong inside": (b"\x08\x09" + b"\x3a\x40" + b"\xff" * 64, "not an ONNX model"),
    "no graph": (no_graph(), "has no graph"),
    "no opset": (no_opset(), "which opset"),
}


@pytest.mark.parametrize("name", BAD_BYTES)
def test_a_file_that_is_no_model_is_named_for_what_it_is(tmp_path, name):
    content, words = BAD_BYTES[name]
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    with pytest.raises(ModelError) as caught:
        load_model(path)
    assert words in caught.value.message
    assert str(path) in caught.value.message
    assert caught.value.hint
    assert "\n" not in caught.value.message


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 0.999])
def test_a_truncated_model_is_said_to_be_cut_off(tmp_path, share):
    data = LLAMA.read_bytes()
    path = tmp_path / "model.onnx"
    path.write_bytes(data[: int(len(data) * share)])
    with pytest.raises(ModelError, match="cut off"):
        load_model(path)


def test_a_missing_file_and_a_folder_are_told_apart(tmp_path):
    with pytest.raises(ModelError, match="is not there"):
        load_model(tmp_path / "none.onnx")
    (tmp_path / "link.onnx").symlink_to("none.onnx")
    with pytest.raises(ModelError, match="a link to nothing"):
        load_model(tmp_path / "link.onnx")
    with pytest.raises(ModelError, match="is a folder"):
        load_model(tmp_path)


def test_a_file_above_two_gib_is_refused_by_its_size(tmp_path):
    path = tmp_path / "huge.onnx"
    with path.open("wb") as file:
        file.truncate(2**31)  # sparse: takes no space
    with pytest.raises(ModelError, match=r"2\.0 GiB.*larger than 2 GiB"):
        load_model(path)


def test_external_weights_are_not_read(tmp_path):
    path = external(tmp_path)
    model = load_model(path)
    tensor = model.graph.initializers["w1"].const_value
    assert isinstance(tensor, ir.ExternalTensor)
    assert tensor.raw is None
    np.testing.assert_array_equal(tensor.numpy(), numpy_helper.to_array(model_with_weights().graph.initializer[0]))


def test_a_model_is_found_by_a_relative_name(tmp_path, monkeypatch):
    external(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert load_model("model.onnx").graph.initializers["w2"].const_value.numpy().shape == (64, 64)


def break_missing(path):
    (path.parent / "model.data").unlink()


def break_short(path):
    os.truncate(path.parent / "model.data", 100)


def break_offset(path):
    relocated(path, "model.data", offset=-4)


def break_absolute(path):
    relocated(path, path.parent / "model.data")


def break_windows(path):
    relocated(path, "C:\\weights\\model.data")


def break_dots(path):
    outside = path.parent.parent / "outside.data"
    shutil.move(path.parent / "model.data", outside)
    relocated(path, "../outside.data")


def break_hidden_dots(path):
    (path.parent / "sub").mkdir()
    break_dots(path)
    relocated(path, "sub/../../outside.data")


def break_link(path):
    outside = path.parent.parent / "outside.data"
    shutil.move(path.parent / "model.data", outside)
    (path.parent / "model.data").symlink_to(outside)


def break_linked_folder(path):
    outside = path.parent.parent / "blobs"
    outside.mkdir()
    shutil.move(path.parent / "model.data", outside / "model.data")
    (path.parent / "sub").symlink_to(outside)
    relocated(path, "sub/model.data")


def break_hard_link(path):
    os.link(path.parent / "model.data", path.parent.parent / "second")


def break_folder(path):
    break_missing(path)
    (path.parent / "model.data").mkdir()


BAD_WEIGHTS = {
    break_missing: "is missing",
    break_short: "too short",
    break_offset: "malformed",
    break_absolute: "absolute path",
    break_windows: "absolute path",
    break_dots: "outside the model's folder",
    break_hidden_dots: "outside the model's folder",
    break_link: "a link that leaves",
    break_linked_folder: "a link that leaves",
    break_hard_link: "hard link",
    break_folder: "not a regular file",
}


@pytest.mark.parametrize("breakage", BAD_WEIGHTS, ids=lambda f: f.__name__)
def test_bad_weight_files_are_refused(tmp_path, breakage):
    folder = tmp_path / "model"
    folder.mkdir()
    path = external(folder)
    breakage(path)
    with pytest.raises(ModelError) as caught:
        load_model(path)
    assert BAD_WEIGHTS[breakage] in caught.value.message
    assert caught.value.hint
    assert "\n" not in caught.value.message + caught.value.hint


def test_the_hugging_face_cache_is_explained(tmp_path):
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "abc"
    blobs.mkdir()
    snapshot.mkdir(parents=True)
    path = external(snapshot)
    for name in ("model.onnx", "model.data"):
        shutil.move(snapshot / name, blobs / name)
        (snapshot / name).symlink_to(Path("..", "..", "blobs", name))
    with pytest.raises(ModelError) as caught:
        load_model(path)
    assert "Hugging Face" in caught.value.hint
    shutil.copytree(snapshot, tmp_path / "copy")  # follows links, as the hint's cp -rL
    load_model(tmp_path / "copy" / "model.onnx")


def test_a_link_within_the_folder_is_followed(tmp_path):
    path = external(tmp_path, location="real.data")
    (tmp_path / "alias.data").symlink_to("real.data")
    load_model(relocated(path, "alias.data"))


def test_weights_in_subgraphs_and_functions_are_checked_too(tmp_path):
    tensor = TensorProto(name="hidden", data_type=TensorProto.FLOAT, dims=[4], data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value="../../etc/passwd")
    constant = helper.make_node("Constant", [], ["c"], value=tensor)
    model = model_with_weights()
    model.functions.append(helper.make_function("local", "F", ["a"], ["c"], [constant], [helper.make_opsetid("", 18)]))
    (tmp_path / "model.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(ModelError, match="outside"):
        load_model(tmp_path / "model.onnx")


# -- writing ----------------------------------------------------------------------------------------------------------


def test_equal_models_give_equal_bytes(tmp_path):
    model = load_proto(LLAMA)
    save(model, tmp_path / "a.onnx")
    save(ir.from_proto(model), tmp_path / "b.onnx")
    save(model, tmp_path / "c.onnx")
    assert (tmp_path / "a.onnx").read_bytes() == (tmp_path / "c.onnx").read_bytes()
    assert listing(tmp_path) == ["a.onnx", "b.onnx", "c.onnx"]


def test_the_file_has_ordinary_permissions(tmp_path):
    save(model_with_weights(), tmp_path / "a.onnx")
    (tmp_path / "plain").write_text("")
    assert (tmp_path / "a.onnx").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_beside_the_original_the_weight_file_is_shared(tmp_path):
    path = external(tmp_path)
    before = (tmp_path / "model.data").stat()
    done = save(load_proto(path), tmp_path / "fused.onnx", source=path)
    after = (tmp_path / "model.data").stat()
    assert (before.st_mtime_ns, before.st_ino, before.st_size) == (after.st_mtime_ns, after.st_ino, after.st_size)
    assert listing(tmp_path) == ["fused.onnx", "model.data", "model.onnx"]
    assert (done.copied, done.weight_files) == (0, ("model.data",))
    assert weights_of(tmp_path / "fused.onnx") == weights_of(path)


@pytest.mark.parametrize("kind", ["proto", "ir"])
def test_elsewhere_the_weights_are_copied(tmp_path, kind):
    (tmp_path / "in").mkdir()
    (tmp_path / "out").mkdir()
    path = external(tmp_path / "in")
    if kind == "proto":
        done = save(load_proto(path), tmp_path / "out" / "fused.onnx", source=path)
    else:
        done = save(load_model(path), tmp_path / "out" / "fused.onnx")
    assert listing(tmp_path / "out") == ["fused.onnx", "fused.onnx.data"]
    assert done.copied == 2 * 64 * 64 * 4
    assert "copied" in done.note
    assert "fused.onnx.data" in done.note
    shutil.rmtree(tmp_path / "in")
    assert weights_of(tmp_path / "out" / "fused.onnx") == {
        t.name: t.raw_data for t in model_with_weights().graph.initializer
    }


def test_one_place_used_twice_is_copied_once(tmp_path):
    (tmp_path / "out").mkdir()
    path = external(tmp_path)
    model = load_proto(path)
    first, second = model.graph.initializer
    del second.external_data[:]
    second.external_data.extend(first.external_data)
    done = save(model, tmp_path / "out" / "fused.onnx", source=path)
    assert done.copied == 64 * 64 * 4


def test_a_model_above_protobufs_limit_gets_external_weights(tmp_path, monkeypatch):
    monkeypatch.setattr(SAVE, "PROTOBUF_LIMIT", SAVE._SPARE + 20_000)  # two matrices of 16 KiB are too much
    model = model_with_weights()
    before = model.SerializeToString(deterministic=True)
    save(model, tmp_path / "big.onnx")
    assert listing(tmp_path) == ["big.onnx", "big.onnx.data"]
    assert weights_of(tmp_path / "big.onnx") == {t.name: t.raw_data for t in model.graph.initializer}
    assert model.SerializeToString(deterministic=True) == before
    onnx.checker.check_model(tmp_path / "big.onnx")


def test_a_model_between_two_forms_keeps_both_kinds_of_weights(tmp_path, monkeypatch):
    path = external(tmp_path)
    model = load_proto(path)
    inline = numpy_helper.from_array(np.ones((64, 128), np.float32), "w3")
    model.graph.initializer.append(inline)
    model.graph.node.append(helper.make_node("MatMul", ["y", "w3"], ["z"]))
    monkeypatch.setattr(SAVE, "PROTOBUF_LIMIT", SAVE._SPARE + 20_000)
    save(model, tmp_path / "big.onnx", source=path)
    assert weights_of(tmp_path / "big.onnx") == weights_of(path) | {"w3": inline.raw_data}


def test_large_sparse_weights_are_copied_without_being_held(tmp_path):
    """A weight file of 3 GiB, sparse, on a machine that may have less memory than that."""
    (tmp_path / "out").mkdir()
    path = external(tmp_path)
    os.truncate(tmp_path / "model.data", 3 * 2**30)
    model = relocated(path, "model.data", offset=3 * 2**30 - 64 * 64 * 4)
    save(load_proto(model), tmp_path / "out" / "f.onnx", source=model)
    assert (tmp_path / "out" / "f.onnx.data").stat().st_size == 64 * 64 * 4  # only what the model uses


def refusal(*args, **kwargs):
    with pytest.raises(UsageError) as caught:
        save(*args, **kwargs)
    assert caught.value.exit_code == 2
    assert caught.value.hint
    return caught.value.message


def test_an_existing_output_is_replaced_only_when_asked(tmp_path):
    target = tmp_path / "out.onnx"
    target.write_text("precious")
    assert "exists" in refusal(model_with_weights(), target)
    assert target.read_text() == "precious"
    save(model_with_weights(), target, overwrite=True)
    load_model(target)
    assert listing(tmp_path) == ["out.onnx"]


def test_the_input_is_never_the_output(tmp_path):
    path = tmp_path / "in.onnx"
    shutil.copy(LLAMA, path)
    (tmp_path / "link.onnx").symlink_to(path)
    os.link(path, tmp_path / "hard.onnx")
    for name in ("in.onnx", "link.onnx", "hard.onnx", "../" + tmp_path.name + "/in.onnx"):
        assert "is the input" in refusal(load_proto(path), tmp_path / name, source=path, overwrite=True)
    assert path.read_bytes() == LLAMA.read_bytes()


def test_a_weight_file_is_never_the_output(tmp_path):
    path = external(tmp_path)
    before = (tmp_path / "model.data").read_bytes()
    assert "weight file" in refusal(load_proto(path), tmp_path / "model.data", source=path, overwrite=True)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "f.onnx.data").symlink_to(tmp_path / "model.data")
    assert "over themselves" in refusal(load_proto(path), tmp_path / "out" / "f.onnx", source=path, overwrite=True)
    assert (tmp_path / "model.data").read_bytes() == before


def test_a_missing_folder_is_named(tmp_path):
    assert "does not exist" in refusal(model_with_weights(), tmp_path / "no" / "out.onnx")
    (tmp_path / "file").write_text("")
    assert "is not a folder" in refusal(model_with_weights(), tmp_path / "file" / "out.onnx")
    assert "is a folder" in refusal(model_with_weights(), tmp_path)


def test_a_folder_without_write_permission_is_named(tmp_path, monkeypatch):
    if os.geteuid() == 0:  # root may write everywhere, so ask the question in root's place
        monkeypatch.setattr(os, "access", lambda path, mode: False)
    tmp_path.chmod(stat.S_IRUSR | stat.S_IXUSR)
    try:
        assert "not writable" in refusal(model_with_weights(), tmp_path / "out.onnx")
    finally:
        tmp_path.chmod(stat.S_IRWXU)


def test_an_invalid_result_leaves_nothing_behind(tmp_path):
    model = model_with_weights()
    model.graph.node.reverse()  # no longer in order
    with pytest.raises(ModelError, match="not be a valid model"):
        save(model, tmp_path / "out.onnx")
    assert listing(tmp_path) == []


def test_an_operator_of_onnxruntime_is_no_fault_but_hides_none(tmp_path):
    model = model_with_weights()
    model.graph.node.insert(1, helper.make_node("SimplifiedLayerNormalization", ["h", "w1"], ["n"], axis=-1))
    model.graph.node[2].input[0] = "n"
    save(model, tmp_path / "good.onnx")
    assert not any(n.domain for n in load_proto(tmp_path / "good.onnx").graph.node)
    model.graph.node.reverse()
    with pytest.raises(ModelError, match="not be a valid model"):
        save(model, tmp_path / "bad.onnx")
    assert listing(tmp_path) == ["good.onnx"]


def test_a_fault_that_the_original_has_as_well_is_no_obstacle(tmp_path):
    model = model_with_weights()
    model.graph.node.reverse()
    (tmp_path / "in.onnx").write_bytes(model.SerializeToString())
    save(model, tmp_path / "out.onnx", source=tmp_path / "in.onnx")
    assert load_proto(tmp_path / "out.onnx").graph.node == model.graph.node


@pytest.mark.parametrize("kind", ["proto", "ir"])
@pytest.mark.parametrize(
    ("which", "lacks"), [("input", "shape"), ("output", "shape"), ("output", "element type"), ("output", "type")]
)
def test_what_the_original_does_not_say_of_a_value_is_no_fault(tmp_path, which, lacks, kind):
    """As tf2onnx writes where the rank is not known; onnxruntime takes it."""
    model = model_with_weights()
    (value,) = getattr(model.graph, which)
    if lacks == "shape":
        value.type.tensor_type.ClearField("shape")
    elif lacks == "element type":
        value.type.tensor_type.ClearField("elem_type")
    else:
        value.ClearField("type")
    given = model if kind == "proto" else ir.from_proto(model)
    save(given, tmp_path / "out.onnx")
    (tmp_path / "in.onnx").write_bytes(model.SerializeToString())
    save(given, tmp_path / "with_source.onnx", source=tmp_path / "in.onnx")
    assert listing(tmp_path) == ["in.onnx", "out.onnx", "with_source.onnx"]
    for name in ("out.onnx", "with_source.onnx"):
        (written,) = getattr(load_proto(tmp_path / name).graph, which)
        assert kind == "ir" or written == value
    model.graph.node.reverse()  # no longer in order
    with pytest.raises(ModelError, match="not be a valid model"):
        save(model, tmp_path / "bad.onnx")
    with pytest.raises(ModelError, match="not be a valid model"):
        save(model, tmp_path / "bad.onnx", source=tmp_path / "in.onnx")


def test_two_faults_that_the_original_has_as_well_are_no_obstacle(tmp_path):
    model = model_with_weights()
    model.graph.node.reverse()
    model.graph.output[0].type.tensor_type.ClearField("shape")
    (tmp_path / "in.onnx").write_bytes(model.SerializeToString())
    save(model, tmp_path / "out.onnx", source=tmp_path / "in.onnx")
    with pytest.raises(ModelError, match="not be a valid model"):
        save(model, tmp_path / "alone.onnx")


def test_a_fault_that_only_a_newer_ir_version_shows_is_the_originals(tmp_path):
    """The checker looks at functions from IR version 8 on, which the norms' own functions need."""
    model = model_with_weights()
    broken = helper.make_function("local", "f", ["a"], ["b"], [helper.make_node("Abs", ["nothing"], ["b"])], [])
    broken.opset_import.extend(model.opset_import)
    model.functions.append(broken)
    model.opset_import.add(domain="local", version=1)
    model.ir_version = 7
    (tmp_path / "in.onnx").write_bytes(model.SerializeToString())
    model.ir_version = 8
    save(model, tmp_path / "out.onnx", source=tmp_path / "in.onnx")
    with pytest.raises(ModelError, match="not be a valid model"):
        save(model, tmp_path / "alone.onnx")
    model.graph.node.reverse()
    with pytest.raises(ModelError, match="not be a valid model"):
        save(model, tmp_path / "other.onnx", source=tmp_path / "in.onnx")


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, OSError])
@pytest.mark.parametrize("place", ["shared", "elsewhere"])
def test_whatever_goes_wrong_nothing_appears(tmp_path, error, place):
    (tmp_path / "out").mkdir()
    path = external(tmp_path)
    target = tmp_path / ("out" if place == "elsewhere" else "") / "fused.onnx"
    before = listing(tmp_path)

    def check(staged):
        load_model(staged)  # complete, under another name
        assert not target.exists()
        raise error("stop")

    with pytest.raises(UsageError if error is OSError else error):
        save(load_proto(path), target, source=path, check=check)
    assert listing(tmp_path) == before


def test_a_failure_between_two_renames_brings_the_old_files_back(tmp_path, monkeypatch):
    (tmp_path / "out").mkdir()
    path = external(tmp_path)
    target = tmp_path / "out" / "f.onnx"
    save(load_proto(path), target, source=path)
    old = {p.name: p.read_bytes() for p in (tmp_path / "out").iterdir()}
    original = atomic.Staging.publish

    def fail_on_the_model(self, staged, goal, **options):
        if goal == target:
            raise KeyboardInterrupt
        original(self, staged, goal, **options)

    monkeypatch.setattr(atomic.Staging, "publish", fail_on_the_model)
    model = load_proto(path)
    model.graph.initializer.reverse()  # another order in the weight file
    with pytest.raises(KeyboardInterrupt):
        save(model, target, source=path, overwrite=True)
    assert {p.name: p.read_bytes() for p in (tmp_path / "out").iterdir()} == old


def test_an_existing_weight_file_of_the_output_is_not_overwritten(tmp_path):
    (tmp_path / "out").mkdir()
    path = external(tmp_path)
    (tmp_path / "out" / "f.onnx.data").write_text("precious")
    assert "f.onnx.data exists" in refusal(load_proto(path), tmp_path / "out" / "f.onnx", source=path)


def test_an_output_link_is_replaced_and_not_followed(tmp_path):
    (tmp_path / "other.onnx").write_text("precious")
    (tmp_path / "out.onnx").symlink_to("other.onnx")
    save(model_with_weights(), tmp_path / "out.onnx", overwrite=True)
    assert (tmp_path / "other.onnx").read_text() == "precious"
    assert not (tmp_path / "out.onnx").is_symlink()


def test_two_writers_of_one_name_do_not_mix(tmp_path):
    model = model_with_weights()
    threads = [
        threading.Thread(target=save, args=(model, tmp_path / "out.onnx"), kwargs={"overwrite": True}) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert listing(tmp_path) == ["out.onnx"]
    load_model(tmp_path / "out.onnx")


def test_a_fused_model_with_external_weights_goes_round(tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "out").mkdir()
    path = tmp_path / "in" / "m.onnx"
    onnx.save(onnx.load(LLAMA), path, save_as_external_data=True, location="m.data", size_threshold=1024)
    fused, report = rmsnorm_deploy.fuse(path)
    save(fused, tmp_path / "in" / "beside.onnx", source=path)
    save(fused, tmp_path / "out" / "away.onnx", source=path)
    assert len(report.fused) == 5
    assert weights_of(tmp_path / "in" / "beside.onnx") == weights_of(tmp_path / "out" / "away.onnx")


def test_memory_stays_far_below_the_weights(tmp_path):
    """Fusing and saving beside the original a model whose (sparse) weights are 4 GiB."""
    if sys.platform != "linux":
        pytest.skip("reads the peak of memory as Linux tells it")
    path = external(tmp_path)
    os.truncate(tmp_path / "model.data", 4 * 2**30)
    model = onnx.load(path, load_external_data=False)
    first = model.graph.initializer[0]
    first.dims[:] = [2**14, 2**16]
    for entry in first.external_data:
        entry.value = {"offset": "0", "length": str(4 * 2**30)}.get(entry.key, entry.value)
    path.write_bytes(model.SerializeToString())
    code = (
        "import sys, rmsnorm_deploy\n"
        "fused, _ = rmsnorm_deploy.fuse(sys.argv[1])\n"
        "rmsnorm_deploy.save(fused, sys.argv[2], source=sys.argv[1])\n"
        # getrusage would count the memory of the process that this one was forked from
        "print(next(line for line in open('/proc/self/status') if line.startswith('VmHWM:')).split()[1])\n"
    )
    arguments = [sys.executable, "-c", code, str(path), str(tmp_path / "fused.onnx")]
    done = subprocess.run(arguments, capture_output=True, text=True, check=True)
    assert int(done.stdout) < 1_000_000  # KiB


def test_a_file_that_appears_meanwhile_is_not_overwritten(tmp_path):
    path = external(tmp_path)
    target = tmp_path / "late.onnx"
    with pytest.raises(UsageError, match="exists by now"):
        save(load_proto(path), target, source=path, check=lambda _: target.write_text("precious"))
    assert target.read_text() == "precious"


def test_a_pipe_is_no_output_even_with_force(tmp_path):
    path = external(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UsageError, match="a pipe"):
        save(load_proto(path), tmp_path / "pipe", source=path, overwrite=True)


def test_a_replaced_output_keeps_its_permissions(tmp_path):
    path = external(tmp_path)
    target = tmp_path / "f.onnx"
    save(load_proto(path), target, source=path)
    target.chmod(0o600)
    save(load_proto(path), target, source=path, overwrite=True)
    assert target.stat().st_mode & 0o777 == 0o600


def test_a_stored_length_below_the_tensors_is_refused(tmp_path):
    path = external(tmp_path)
    model = onnx.load(path, load_external_data=False)
    for tensor in model.graph.initializer:
        if tensor.external_data:
            for entry in [e for e in tensor.external_data if e.key == "length"]:
                tensor.external_data.remove(entry)
            tensor.external_data.add(key="length", value="4")
            break
    path.write_bytes(model.SerializeToString())
    with pytest.raises(ModelError, match="malformed place"):
        load_proto(path)


def test_a_classifiers_output_stays(tmp_path):
    """onnx_ir knows no maps, which the probabilities of a classifier are."""
    g = Graph(opset=17)
    x = g.input("x", F, (2, 3))
    y = chain(g, x, g.weight(np.ones(3), F))["y"]
    g.output(y, "y", (2, 3))
    model = g.model()
    labels = helper.make_node("ZipMap", ["y"], ["z"], domain="ai.onnx.ml", classlabels_int64s=[0, 1, 2])
    model.graph.node.append(labels)
    numbers = helper.make_tensor_type_proto(TensorProto.FLOAT, [])
    maps = helper.make_sequence_type_proto(helper.make_map_type_proto(TensorProto.INT64, numbers))
    model.graph.output.append(helper.make_value_info("z", maps))
    model.opset_import.append(helper.make_opsetid("ai.onnx.ml", 1))
    onnx.save(model, tmp_path / "m.onnx")
    for given in (model, tmp_path / "m.onnx"):
        for form in ("plugin", "standard", "ort"):
            fused, report = rmsnorm_deploy.fuse(given, form=form)
            assert len(report.fused) == 1
            assert fused.graph.output == model.graph.output
            assert fused.graph.node[-1] == labels
    session = rmsnorm_deploy.session(rmsnorm_deploy.fuse(model)[0])
    (found,) = session.run(["z"], {"x": np.ones((2, 3), np.float32)})
    assert found[0] == pytest.approx({0: 1, 1: 1, 2: 1}, abs=1e-3)
