"""Names that no output can have, and weight files that are described oddly or swapped while they are copied."""

import os
import shutil
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

import rmsnorm_deploy
from rmsnorm_deploy import ModelError, UsageError, save
from rmsnorm_deploy.model.external import open_weights
from rmsnorm_deploy.model.load import load_proto
from rmsnorm_deploy.model.weights import references, with_weights_in


def listing(folder):
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*"))


def model(dims=(64,), kind=TensorProto.FLOAT, **places):
    """y = x + w, whose w is in a weight file."""
    made = helper.make_model(
        helper.make_graph(
            [helper.make_node("Add", ["x", "w"], ["y"])],
            "g",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, [64])],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, [64])],
        ),
        opset_imports=[helper.make_opsetid("", 18)],
        ir_version=9,
    )
    tensor = made.graph.initializer.add(name="w", data_type=kind, dims=dims, data_location=TensorProto.EXTERNAL)
    for key, value in {"location": "w.data", **places}.items():
        tensor.external_data.add(key=key, value=value)
    return made


def written(folder, made):
    folder.mkdir(exist_ok=True)
    (folder / "w.data").write_bytes(np.ones(64, np.float32).tobytes())
    (folder / "m.onnx").write_bytes(made if isinstance(made, bytes) else made.SerializeToString())
    return folder / "m.onnx"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("n" * 300, "too long"),
        ("n" * 251 + "/m.onnx", "does not exist"),
        ("a\0b.onnx", "NUL"),
        ("new/", "names a folder"),
        ("new/.", "names a folder"),
        ("new//", "names a folder"),
        ("there/", "is a folder"),
        ("there/.", "is a folder"),
        ("there/..", "is a folder"),
        ("a\ud800.onnx", "cannot write"),
        ("file/m.onnx", "is not a folder"),
        ("x/" * 2100 + "m.onnx", "too long"),
        ("", "is a folder"),
        (".", "is a folder"),
    ],
)
def test_a_name_that_no_output_can_have_is_refused(tmp_path, monkeypatch, name, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there").mkdir()
    (tmp_path / "file").touch()
    before = listing(tmp_path)
    for overwrite in (False, True):
        with pytest.raises(UsageError) as caught:
            save(helper.make_model(model().graph), name, overwrite=overwrite)
        assert words in caught.value.message
    assert listing(tmp_path) == before


def test_the_longest_name_is_written(tmp_path):
    made = model()
    del made.graph.initializer[:]
    made.graph.input.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, [64]))
    name = "n" * 250 + ".onnx"
    save(made, tmp_path / name)
    assert listing(tmp_path) == [name]


def test_a_name_that_is_not_utf_8_is_written_without_weights_of_its_own_only(tmp_path):
    path = written(tmp_path / "in", model())
    (tmp_path / "out").mkdir()
    name = os.fsdecode(b"b\xff.onnx")
    save(load_proto(path), path.with_name(name), source=path)
    load_proto(path.with_name(name))
    (tmp_path / os.fsdecode(b"d\xff")).mkdir()
    for place in (tmp_path / name, tmp_path / os.fsdecode(b"d\xff") / name):
        save(onnx.load(path), place)
        load_proto(place)
    with pytest.raises(UsageError, match="UTF-8"):
        save(load_proto(path), tmp_path / "out" / name, source=path)
    assert listing(tmp_path / "out") == []


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (model(dims=[-64]), "negative dimension"),
        (model(dims=[-8, -8]), "negative dimension"),
        (model(dims=[2**62, 4]), "too short"),
        (model(dims=[2**62, 2**62, 2**62]), "too short"),
        (model(offset="-1"), "malformed"),
        (model(offset="1_0"), "malformed"),
        (model(offset=" 4"), "malformed"),
        (model(offset="+4"), "malformed"),
        (model(offset="\N{ARABIC-INDIC DIGIT THREE}"), "malformed"),
        (model(offset="9" * 5000), "malformed"),
        (model(offset=str(2**63 - 1)), "too short"),
        (model(offset="nan"), "malformed"),
        (model(length="-256"), "malformed"),
        (model(length="255"), "malformed"),
        (model(length="0"), "malformed"),
        (model(length=str(2**63 - 1)), "too short"),
        (model(location=""), "does not name it"),
        (model(location="."), "not a regular file"),
        (model(location="w\0.data"), "not safe"),
        (model(location="n" * 300), "missing"),
        (model(location="n/" * 3000), "missing"),
        (model(kind=TensorProto.UNDEFINED), "element type"),
        (model(kind=TensorProto.STRING), "element type"),
        (model().SerializeToString().replace(b"w.data", b"w\xffdata"), "UTF-8"),
    ],
)
def test_an_odd_description_of_weights_is_refused(tmp_path, made, words):
    path = written(tmp_path / "in", made)
    with pytest.raises(ModelError) as caught:
        load_proto(path)
    assert words in caught.value.message
    proto = onnx.ModelProto.FromString(path.read_bytes())
    (tmp_path / "out").mkdir()
    with pytest.raises((ModelError, UsageError)):
        save(proto, tmp_path / "out" / "f.onnx", source=path)
    assert listing(tmp_path / "out") == []
    with pytest.raises(ModelError):
        rmsnorm_deploy.fuse(path)


@pytest.mark.parametrize(
    ("kind", "size"), [(TensorProto.INT4, 32), (TensorProto.UINT4, 32), (25, 16), (26, 16)], ids=str
)
def test_elements_of_less_than_a_byte_share_bytes(tmp_path, kind, size):
    path = written(tmp_path, model(kind=kind))
    (tmp_path / "w.data").write_bytes(bytes(size))
    load_proto(path)
    (tmp_path / "w.data").write_bytes(bytes(size - 1))
    with pytest.raises(ModelError, match="too short"):
        load_proto(path)


def swap_for_link(file, secret):
    file.unlink()
    file.symlink_to(secret)


def swap_for_hard_link(file, secret):
    file.unlink()
    os.link(secret, file)


def swap_for_pipe(file, _):
    file.unlink()
    os.mkfifo(file)


def swap_folder(file, secret):
    shutil.copy(secret, secret.with_name("w.data"))
    shutil.rmtree(file.parent)
    file.parent.symlink_to(secret.parent)


def swap_for_less(file, _):
    os.truncate(file, 100)


@pytest.mark.parametrize("swap", [swap_for_link, swap_for_hard_link, swap_for_pipe, swap_folder, swap_for_less])
def test_weights_that_are_swapped_after_they_were_checked_are_not_copied(tmp_path, swap):
    (tmp_path / "secrets").mkdir()
    secret = tmp_path / "secrets" / "key"
    secret.write_bytes(b"secret" * 100)
    path = written(tmp_path / "in", model(location="sub/w.data"))
    (tmp_path / "in" / "sub").mkdir()
    (tmp_path / "in" / "w.data").rename(tmp_path / "in" / "sub" / "w.data")
    known = references(load_proto(path), tmp_path / "in")
    swap(tmp_path / "in" / "sub" / "w.data", secret)
    with (tmp_path / "copy").open("xb") as out, pytest.raises(ModelError):
        with_weights_in(onnx.load(path, load_external_data=False), known, out, "copy", all_large=False)
    assert b"secret" not in (tmp_path / "copy").read_bytes()


def test_a_link_that_comes_between_resolving_and_opening_is_not_followed(tmp_path, monkeypatch):
    (tmp_path / "secret").write_bytes(b"secret")
    path = written(tmp_path / "in", model())
    resolved = os.path.realpath

    def swapped(name, **options):
        found = resolved(name, **options)
        if Path(found).name == "w.data":
            swap_for_link(Path(found), tmp_path / "secret")
        return found

    monkeypatch.setattr(os.path, "realpath", swapped)
    with pytest.raises(ModelError, match="without following links"):
        open_weights(path.parent, "w.data")


def test_a_link_within_the_folder_is_copied_from(tmp_path):
    path = written(tmp_path / "in", model(location="alias.data"))
    (tmp_path / "in" / "alias.data").symlink_to("w.data")
    (tmp_path / "out").mkdir()
    save(load_proto(path), tmp_path / "out" / "f.onnx", source=path)
    assert (tmp_path / "out" / "f.onnx.data").read_bytes() == (tmp_path / "in" / "w.data").read_bytes()


def test_an_onnx_ir_model_that_cannot_be_written_is_said_to_be(tmp_path):
    made = ir.from_proto(model())
    made.graph.initializers.clear()
    made.graph.inputs[0].name = None
    with pytest.raises(ModelError, match="cannot be written"):
        save(made, tmp_path / "f.onnx")
    assert listing(tmp_path) == []


@pytest.mark.parametrize("kind", ["initializer", "value", "value_int", "value_floats"])
def test_an_output_that_is_a_constant_has_its_type(kind):
    """onnxruntime takes the constant's, inference what is declared; onnx's full check refuses it."""
    made = helper.make_model(
        helper.make_graph([], "g", [], [helper.make_tensor_value_info("c", TensorProto.FLOAT16, None)]),
        opset_imports=[helper.make_opsetid("", 18)],
    )
    tensor = helper.make_tensor("c", TensorProto.FLOAT, [1], [2.0])
    if kind == "initializer":
        made.graph.initializer.append(tensor)
    else:
        value = {"value": tensor, "value_int": 3, "value_floats": [2.0]}[kind]
        made.graph.node.append(helper.make_node("Constant", [], ["c"], **{kind: value}))
    own = "INT64" if kind == "value_int" else "FLOAT"
    with pytest.raises(ModelError, match=f"output 'c' is a constant of type {own}, and declared as FLOAT16"):
        rmsnorm_deploy.fuse(made)
    made.graph.output[0].type.tensor_type.elem_type = TensorProto.DataType.Value(own)
    rmsnorm_deploy.fuse(made)
