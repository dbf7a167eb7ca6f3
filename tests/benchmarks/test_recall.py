"""The comparison with other tools counts what they find, and sees what they break."""

import json

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests.support.spellings.norms import Spelling, build

pytest.importorskip("onnxruntime", reason="results are run in onnxruntime")
from benchmarks import recall
from benchmarks.peers import judge
from benchmarks.peers.worker import Worker, WorkerFailed

PLUGGED = """
import os
import time

import onnx


def wrong_epsilon():
    import rmsnorm_deploy

    def transform(source, target):
        model, _ = rmsnorm_deploy.fuse(source)
        for node in model.graph.node:
            for attribute in node.attribute:
                if attribute.name == "epsilon":
                    attribute.f *= 4
        onnx.save(model, target)

    return transform


def invalid():
    def transform(source, target):
        model = onnx.load(source)
        model.graph.node[0].op_type = "NoSuchOperator"
        onnx.save(model, target)

    return transform


def raises():
    def transform(source, target):
        raise RuntimeError("no")

    return transform


def dies():
    return lambda source, target: os._exit(3)


def hangs():
    return lambda source, target: time.sleep(60)


def absent():
    import no_such_module
"""


def fused_by_the_exporter():
    scale = helper.make_tensor("scale", TensorProto.FLOAT, [8], np.ones(8, np.float32).tobytes(), raw=True)
    node = helper.make_node("SimplifiedLayerNormalization", ["x", "scale"], ["y"], axis=-1, epsilon=1e-6)
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, (3, 8)) for n in "xy")
    graph = helper.make_graph([node], "g", [x], [y], [scale])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def no_norm():
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, (3, 8)) for n in "xy")
    graph = helper.make_graph([helper.make_node("Softmax", ["x"], ["y"])], "g", [x], [y])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpus")
    models = {
        "single/div.onnx": (build(Spelling(normalise="sqrt_div")).model, 1),  # onnxruntime fuses this one
        "single/reciprocal.onnx": (build(Spelling()).model, 1),  # and this one not
        "single/float16.onnx": (build(Spelling(layout="llama16")).model, 1),
        "single/exporter.onnx": (fused_by_the_exporter(), 1),
        "hazard/no_norm.onnx": (no_norm(), 0),
    }
    for name, (model, _) in models.items():
        (folder / name).parent.mkdir(exist_ok=True)
        onnx.save(model, folder / name)
    entries = [{"file": name, "must_fuse": n, "kind": "plain", "dtype": None} for name, (_, n) in models.items()]
    (folder / "manifest.json").write_text(json.dumps(entries))
    (folder / "plugged_tools.py").write_text(PLUGGED)
    return folder


@pytest.fixture(scope="module")
def record(corpus):
    """One comparison of everything, as JSON."""
    tools = ["wrong_epsilon", "invalid", "raises", "dies", "absent"]
    peers = ["onnxruntime", *(f"plugged_tools:{name}" for name in tools)]
    out = corpus / "out.json"
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(corpus)  # the tools' processes inherit it
        assert recall.main([str(corpus), "--peers", ",".join(peers), "--json", str(out)]) == 0
    return json.loads(out.read_text())


def row(record, tool, part=recall.ALL):
    return next(r for r in record["totals"] if (r["part"], r["tool"]) == (part, tool))


def test_ours_finds_every_norm_and_breaks_nothing(record):
    ours = row(record, "rmsnorm_deploy")
    assert (ours["models"], ours["norms"], ours["found"], ours["sound"]) == (5, 4, 4, 4)
    assert ours["wrong"] == ours["not_running"] == ours["crashes"] == ours["unjudged"] == 0
    assert row(record, "rmsnorm_deploy", "hazard")["norms"] == 0


def test_onnxruntime_finds_what_it_knows_and_keeps_what_the_exporter_fused(record):
    found = {m["file"]: m["tools"]["onnxruntime"]["found"] for m in record["models"]}
    assert (found["single/div.onnx"], found["single/exporter.onnx"]) == (1, 1)
    assert (found["single/reciprocal.onnx"], found["hazard/no_norm.onnx"]) == (0, 0)
    assert row(record, "onnxruntime")["wrong"] == 0
    assert record["versions"]["onnxruntime"]


def test_a_wrong_epsilon_is_found_in_small_rows(record):
    wrong = row(record, "wrong_epsilon")
    assert (wrong["found"], wrong["wrong"], wrong["sound"]) == (4, 4, 0)
    assert all(model["inputs"] == ["normal", "scaled", "small"] for model in record["models"])
    reasons = [model["tools"]["wrong_epsilon"]["reason"] for model in record["models"] if model["must_fuse"]]
    assert [reason.startswith("scaled inputs") for reason in reasons] == [True] * 4


def test_what_does_not_load_and_what_crashes_is_counted_as_such(record):
    assert row(record, "invalid")["not_running"] == 5
    for tool in ("raises", "dies"):
        assert (row(record, tool)["crashes"], row(record, tool)["found"]) == (5, 0)
    assert "ended with 3" in record["models"][0]["tools"]["dies"]["reason"]


def test_a_tool_that_is_not_installed_is_left_out(record):
    assert record["tools"]["absent"].startswith("not installed")
    assert all("absent" not in m["tools"] for m in record["models"])


def test_reasons_name_no_temporary_files(record, corpus):
    assert str(corpus) not in json.dumps(record["models"])
    assert "/tmp" not in json.dumps(record["models"])


def test_a_hang_is_a_crash_and_the_next_call_has_a_new_process(corpus):
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(corpus)
        worker = Worker(recall.RUN, "plugged_tools:hangs", timeout=0.2)
        for _ in range(2):
            with pytest.raises(WorkerFailed, match=r"no answer in 0.2 s"):
                worker.call(source="", target="")
        worker.close()


def test_table_and_json_go_to_stdout(corpus, capfd):
    arguments = [str(corpus), "--peers", "", "--match", "div"]
    assert recall.main(arguments) == 0
    header, *_, last = capfd.readouterr().out.strip().splitlines()
    assert header.startswith("rmsnorm_deploy ")
    assert last.split("|")[1:7] == [" single ", " rmsnorm_deploy ", *["      1 ", "     1 ", "     1 ", "     1 "]]
    assert recall.main([*arguments, "--json", "-"]) == 0
    assert json.loads(capfd.readouterr().out)["totals"][0]["found"] == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--peers", "nobody"], "there is no peer 'nobody'"),
        (["--match", "nothing"], "no model of"),
    ],
)
def test_usage_errors_say_what_is_wrong(corpus, capsys, arguments, message):
    with pytest.raises(SystemExit) as stopped:
        recall.main([str(corpus), *arguments])
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err


def test_only_live_norms_count():
    model = fused_by_the_exporter()
    dead = helper.make_node("RMSNormalization", ["x", "scale"], ["unread"])
    model.graph.node.append(dead)
    assert judge.count_norms(model) == 1


def test_embeddings_are_shrunk_by_content():
    table = np.random.default_rng(0).standard_normal((16, 8)).astype(np.float32)

    def model(name):
        x = helper.make_tensor_value_info("x", TensorProto.INT64, (3,))
        y = helper.make_tensor_value_info("y", TensorProto.FLOAT, (3, 8))
        tensor = helper.make_tensor(name, TensorProto.FLOAT, table.shape, table.tobytes(), raw=True)
        return helper.make_model(
            helper.make_graph([helper.make_node("Gather", [name, "x"], ["y"])], "g", [x], [y], [tensor])
        )

    tables = judge._embeddings(model("a"))
    small = judge.shrunk(judge.Runnable.of(model("renamed")), tables).proto
    np.testing.assert_array_equal(onnx.numpy_helper.to_array(small.graph.initializer[0]), table * 2.0**-7)
    with pytest.raises(LookupError):
        judge.shrunk(judge.Runnable.of(no_norm()), tables)
