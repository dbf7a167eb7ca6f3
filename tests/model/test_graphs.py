"""What every reader of a model builds on: walks over graphs, the copy without weights, files that appear whole."""

import os

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from rmsnorm_deploy.errors import UsageError, first_line, last_line
from rmsnorm_deploy.model import atomic
from rmsnorm_deploy.model.external import external_tensors, weights_folder
from rmsnorm_deploy.model.graphs import graphs_of, ir_subgraphs, nodes_of, opset_of, subgraphs, walk
from rmsnorm_deploy.model.skeleton import ir_without_weights, is_left_out, put_back, without_weights
from rmsnorm_deploy.model.validity import complaint
from tests.support.graphs import if_model


def listing(folder):
    return sorted(p.name for p in folder.iterdir())


def with_function():
    """An If with two branches, beside a local function and a training graph."""
    model = if_model()
    body = [helper.make_node("Relu", ["a"], ["b"], name="inside")]
    model.functions.append(helper.make_function("local", "F", ["a"], ["b"], body, [helper.make_opsetid("", 18)]))
    model.training_info.add().initialization.node.append(helper.make_node("Neg", ["a"], ["c"], name="trained"))
    return model


# -- walking ----------------------------------------------------------------------------------------------------------


def test_the_walk_meets_every_graph_before_its_nodes_and_every_node_before_its_subgraphs():
    model = with_function()
    order = [found.name if isinstance(found, onnx.GraphProto) else found.op_type for found in walk(model.graph)]
    assert order[0] == model.graph.name
    assert order.index("If") < order.index("else") < order.index("then")
    assert order.count("Sqrt") == 2
    names = {n.name for n in nodes_of(model)}
    assert {"inside", "trained", "if"} <= names
    assert [g.name for g in graphs_of(model.graph)] == [model.graph.name, "else", "then"]


def test_both_kinds_of_model_have_the_same_subgraphs():
    model = if_model()
    (node,) = (n for n in model.graph.node if n.op_type == "If")
    assert [(name, i, g.name) for name, i, g in subgraphs(node)] == [
        ("else_branch", 0, "else"),
        ("then_branch", 0, "then"),
    ]
    (same,) = (n for n in ir.from_proto(model).graph if n.op_type == "If")
    assert [(name, i, count, g.name) for name, i, count, g in ir_subgraphs(same)] == [
        ("else_branch", 0, 1, "else"),
        ("then_branch", 0, 1, "then"),
    ]


def test_a_list_of_graphs_is_numbered():
    graphs = [helper.make_graph([], name, [], []) for name in ("a", "b")]
    node = helper.make_node("Many", [], ["y"], domain="other", bodies=graphs)
    assert [(name, i, g.name) for name, i, g in subgraphs(node)] == [("bodies", 0, "a"), ("bodies", 1, "b")]


def test_walking_adds_nothing_to_the_model():
    model = with_function()
    before = model.SerializeToString(deterministic=True)
    assert len(list(walk(model))) > 10
    list(external_tensors(model))
    assert model.SerializeToString(deterministic=True) == before


@pytest.mark.parametrize("domain", ["", "ai.onnx"])
def test_the_opset_is_found_under_both_names(domain):
    model = helper.make_model(helper.make_graph([], "g", [], []), opset_imports=[helper.make_opsetid(domain, 17)])
    assert opset_of(model) == opset_of(ir.from_proto(model)) == 17


# -- without weights --------------------------------------------------------------------------------------------------


def with_weights():
    small, large = np.ones(64, np.float32), np.ones((64, 64), np.float32)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "large"], ["h"]), helper.make_node("Mul", ["h", "small"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 64])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 64])],
        [numpy_helper.from_array(large, "large"), numpy_helper.from_array(small, "small")],
        doc_string="documented",
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9, producer_name="me")


def test_the_copy_without_weights_differs_in_large_tensors_only():
    model = with_weights()
    before = model.SerializeToString(deterministic=True)
    copy = without_weights(model)
    assert [is_left_out(t) for t in copy.graph.initializer] == [True, False]
    assert len(copy.SerializeToString()) < 1000
    del copy.graph.initializer[:]
    rest = onnx.ModelProto()
    rest.CopyFrom(model)
    del rest.graph.initializer[:]
    assert copy == rest
    assert model.SerializeToString(deterministic=True) == before


def test_weights_that_were_left_out_come_back_in_every_graph():
    model = if_model()
    for graph in graphs_of(model.graph):
        graph.initializer.append(numpy_helper.from_array(np.full(2048, len(graph.name), np.float32), "same_name"))
    given = ir.from_proto(model)
    copy, left = ir_without_weights(given)
    assert len(left) == 3
    again = ir.from_proto(ir.to_proto(copy))
    assert put_back(again, left) == 3
    assert ir.to_proto(again) == ir.to_proto(given)


def test_a_complaint_is_one_line_and_nothing_where_the_model_is_valid():
    assert complaint(with_weights()) == ""
    wrong = with_weights()
    wrong.graph.node[0].op_type = "Nonsense"
    assert "Nonsense" in complaint(wrong)
    assert "\n" not in complaint(wrong)


def test_weights_from_two_folders_are_refused(tmp_path):
    model = ir.from_proto(with_weights())
    assert weights_folder(model) is None
    for value, folder in zip(model.graph.initializers.values(), ("a", "b"), strict=True):
        shape = ir.Shape([2])
        value.const_value = ir.ExternalTensor(
            "w", 0, 8, ir.DataType.FLOAT, shape=shape, name=value.name, base_dir=tmp_path / folder
        )
    with pytest.raises(UsageError, match="several folders"):
        weights_folder(model)


# -- files that appear whole ------------------------------------------------------------------------------------------


def test_a_file_is_replaced_whole_and_keeps_its_permissions(tmp_path):
    path = tmp_path / "log.json"
    atomic.write(path, b"one")
    path.chmod(0o640)
    atomic.write(path, b"two")
    assert path.read_bytes() == b"two"
    assert path.stat().st_mode & 0o777 == 0o640
    assert listing(tmp_path) == ["log.json"]


def test_a_folder_appears_with_all_that_is_in_it(tmp_path):
    target = tmp_path / "compiled"
    with atomic.staging(target) as stage:
        made = stage.folder / "made"
        made.mkdir()
        (made / "library").write_bytes(b"x")
        assert not target.exists()
        stage.publish(made, target)
    assert listing(tmp_path) == ["compiled"]
    assert listing(target) == ["library"]


@pytest.mark.parametrize("stop", [KeyboardInterrupt, OSError(28, "No space left on device")])
def test_what_was_published_before_a_failure_is_taken_back(tmp_path, stop):
    old, new, folder = tmp_path / "old", tmp_path / "new", tmp_path / "folder"
    old.write_bytes(b"before")

    def publish_all_and_stop():
        with atomic.staging(new) as stage:
            for target in (old, new):
                made = stage.folder / target.name
                made.write_bytes(b"after")
                stage.publish(made, target, overwrite=target is old)
            (stage.folder / "folder").mkdir()
            stage.publish(stage.folder / "folder", folder)
            assert listing(tmp_path)[-3:] == ["folder", "new", "old"]
            raise stop

    with pytest.raises(UsageError if isinstance(stop, OSError) else stop):
        publish_all_and_stop()
    assert listing(tmp_path) == ["old"]
    assert old.read_bytes() == b"before"


@pytest.mark.parametrize("used", [True, False])
def test_weights_that_another_run_has_found_of_use_meanwhile_are_not_taken_back(tmp_path, used):
    weights, model = tmp_path / "f.onnx.data", tmp_path / "f.onnx"

    def publish_and_stop():
        with atomic.staging(model) as stage:
            made = stage.folder / weights.name
            made.write_bytes(b"weights")
            stage.doubt({weights.name: made})
            stage.publish(made, weights)
            model.write_bytes(b"another's model, with f.onnx.data" if used else b"another's model")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        publish_and_stop()
    assert weights.exists() == used
    assert model.exists()


@pytest.mark.parametrize("links", [True, False])
@pytest.mark.parametrize("kind", ["file", "folder"])
def test_what_has_appeared_meanwhile_is_not_replaced(tmp_path, monkeypatch, kind, links):
    if not links:
        monkeypatch.setattr(os, "link", lambda *_, **__: (_ for _ in ()).throw(OSError("no links here")))
    target = tmp_path / "out"

    def publish_after_another():
        with atomic.staging(target) as stage:
            made = stage.folder / "made"
            made.mkdir() if kind == "folder" else made.write_bytes(b"ours")
            target.write_bytes(b"another's")
            stage.publish(made, target)

    with pytest.raises(UsageError, match="exists by now"):
        publish_after_another()
    assert target.read_bytes() == b"another's"
    assert listing(tmp_path) == ["out"]


# -- what errors say --------------------------------------------------------------------------------------------------


def test_errors_are_told_in_one_line():
    assert first_line(ValueError("\n a\n b ")) == "a"
    assert last_line(ValueError("\n a\n b ")) == "b"
    assert first_line(KeyError()) == last_line(KeyError()) == "KeyError"
    assert first_line("x" * 1000, 10) == "x" * 10
    assert first_line("") == ""
