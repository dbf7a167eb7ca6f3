"""The command line: exit codes, two-line errors, stdout for data only, and nothing left behind."""

import importlib.metadata
import json
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from rmsnorm_deploy import __version__
from rmsnorm_deploy.cli import app as cli
from rmsnorm_deploy.fusing.fuse import fuse
from rmsnorm_deploy.model.load import load_proto
from tests.support.seeded import Norm

SAMPLES = Path(__file__).parents[2] / "samples" / "models"
LLAMA = SAMPLES / "llama_float16.onnx"
ESCAPE = "\x1b"


@pytest.fixture
def fails(run):
    """Runs it and checks the shape of an error: the status, an error line, a hint line, nothing else."""

    def call(status, *arguments, stdout=False):
        got, out, err = run(*arguments)
        assert got == status, err
        lines = err.splitlines()
        assert len(lines) == 2, err
        assert lines[0].startswith("error: ")
        assert lines[1].startswith("hint: ")
        assert len(lines[0]) > len("error: ")
        assert len(lines[1]) > len("hint: ")
        assert "Traceback" not in err
        if "--json" in arguments:
            assert json.loads(out)["error"]["exit_code"] == status
        elif not stdout:
            assert out == ""
        return err

    return call


def listing(folder):
    return sorted(p.name for p in folder.iterdir())


def process(*arguments, env=None, **kwargs):
    """Runs it as a process of its own."""
    command = [sys.executable, "-m", "rmsnorm_deploy", *(str(a) for a in arguments)]
    environment = {**os.environ, **(env or {})}
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False, timeout=120, **kwargs)


def model(nodes, opset=18, data_type=TensorProto.FLOAT, tensors=(), shape=(2, 8)):
    """A one-input model from nodes."""
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", data_type, shape)],
        [helper.make_tensor_value_info("y", data_type, shape)],
        list(tensors),
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    made.ir_version = 7
    return made


def norm(opset, data_type=TensorProto.FLOAT, **kwargs):
    """A norm in the spelling of old exporters."""
    dtype = helper.tensor_dtype_to_np_dtype(data_type)
    tensors = [numpy_helper.from_array(np.array(v, dtype), n) for n, v in (("two", 2), ("eps", 1e-5), ("w", [1] * 8))]
    nodes = [
        helper.make_node("Pow", ["x", "two"], ["sq"]),
        helper.make_node("ReduceMean", ["sq"], ["ms"], axes=[-1], keepdims=1),
        helper.make_node("Add", ["ms", "eps"], ["a"]),
        helper.make_node("Sqrt", ["a"], ["rms"]),
        helper.make_node("Div", ["x", "rms"], ["n"]),
        helper.make_node("Mul", ["n", "w"], ["y"]),
    ]
    return model(nodes, opset, data_type, tensors, **kwargs)


def without_norms():
    return model([helper.make_node("Relu", ["x"], ["y"])])


# -- fuse -------------------------------------------------------------------------------------------------------------


def test_fuse_writes_a_model_and_says_so(run, tmp_path):
    status, out, err = run("fuse", LLAMA, "-o", tmp_path / "f.onnx")
    assert status == 0
    assert "fused 5 of 5" in out
    assert re.search(r"^ReduceMean +5 +0$", out, re.M)
    assert "MatMul" not in out  # only what changed
    assert "wrote" in err
    assert re.search(r"took [\d.]+ s", err)
    assert sum(n.domain == "rmsnorm_deploy" for n in load_proto(tmp_path / "f.onnx").graph.node) == 5
    assert listing(tmp_path) == ["f.onnx"]


def test_fuse_twice_gives_the_same_bytes(run, tmp_path):
    run("fuse", LLAMA, "-o", tmp_path / "a.onnx")
    run("fuse", LLAMA, "-o", tmp_path / "b.onnx")
    assert (tmp_path / "a.onnx").read_bytes() == (tmp_path / "b.onnx").read_bytes()


def test_fuse_as_json_prints_nothing_else(run, tmp_path):
    status, out, _ = run("fuse", LLAMA, "-o", tmp_path / "f.onnx", "--verify", "--json")
    value = json.loads(out)
    assert status == 0
    assert value["schema_version"] == 1
    assert len(value["fused"]) == 5
    assert value["output"]["path"] == str(tmp_path / "f.onnx")
    assert value["verification"]["passed"] is True
    assert {"fused", "missed", "ops_before", "ops_after", "warnings", "opset", "form"} <= value.keys()


def test_an_error_is_data_too_where_data_are_asked_for(run, tmp_path):
    for status, arguments in (
        (3, ("fuse", tmp_path / "none.onnx", "-o", tmp_path / "f.onnx", "--json")),
        (2, ("fuse", LLAMA, "--json")),
        (1, ("fuse", LLAMA, "--dry-run", "--require", "6", "--json")),
        (3, ("verify", tmp_path / "none.onnx", LLAMA, "--json")),
        (2, ("explain", LLAMA, "--json", "--nonsense")),
    ):
        got, out, err = run(*arguments)
        assert got == status
        error = json.loads(out)["error"]
        assert error["exit_code"] == status
        assert err.splitlines()[0] == f"error: {error['message']}"
        assert err.splitlines()[1] == f"hint: {error['hint']}"


def test_what_verify_runs_on(run, fails, tmp_path):
    pytest.importorskip("onnxruntime")
    path, out = tmp_path / "m.onnx", tmp_path / "f.onnx"
    onnx.save(norm(13, shape=("n", 8)), path)
    value = json.loads(run("fuse", path, "-o", out, "--verify", "--shapes", "x:5,8", "--seed", 3, "--json")[1])
    assert (value["verification"]["shapes"], value["verification"]["seed"]) == ({"x": [5, 8]}, 3)
    np.savez(tmp_path / "i.npz", x=np.ones((3, 8), np.float32))
    given = ("--force", "--verify", "--inputs", tmp_path / "i.npz", "--json")
    assert json.loads(run("fuse", path, "-o", out, *given)[1])["verification"]["shapes"] == {"x": [3, 8]}
    assert "for --verify, which is missing" in fails(2, "fuse", path, "-o", tmp_path / "g.onnx", "--seed", "5")
    fails(2, "fuse", path, "-o", tmp_path / "g.onnx", "--verify", "--shapes", "y:5,8", stdout=True)
    assert not (tmp_path / "g.onnx").exists()


def test_odd_names_are_told_from_the_disk_being_full(fails, run, tmp_path):
    (tmp_path / "damaged.npz").write_bytes(b"PK\x03\x04" + bytes(30))
    long = tmp_path / ("n" * 300)
    fails(3, "explain", long)
    fails(3, "verify", LLAMA, long)
    fails(2, "fuse", LLAMA, "-o", long)
    fails(2, "fuse", LLAMA, "-o", f"{tmp_path / 'damaged.npz'}/")
    fails(2, "fuse", LLAMA, "-o", tmp_path / "f.onnx", "--verify", "--inputs", tmp_path / "damaged.npz")
    before = listing(tmp_path)
    assert run("fuse", LLAMA, "-o", tmp_path / os.fsdecode(b"f\xff.onnx"), "--json")[0] == 0
    assert len(listing(tmp_path)) == len(before) + 1


def test_another_form_of_a_fused_model_is_that_of_the_original(run, tmp_path):
    run("fuse", LLAMA, "-o", tmp_path / "once.onnx")
    assert run("fuse", tmp_path / "once.onnx", "-o", tmp_path / "again.onnx", "--form", "ort", "--verify")[0] == 0
    run("fuse", LLAMA, "-o", tmp_path / "direct.onnx", "--form", "ort")
    again, direct = (onnx.load(tmp_path / f"{name}.onnx") for name in ("again", "direct"))
    assert [n.op_type for n in again.graph.node] == [n.op_type for n in direct.graph.node]
    assert not again.functions
    report = json.loads(run("fuse", tmp_path / "once.onnx", "--dry-run", "--form", "ort", "--json")[1])
    assert (len(report["fused"]), report["already_fused"]) == (5, 0)
    assert sum(count for name, count in report["ops_before"].items() if name.startswith("rmsnorm_deploy::")) == 5


def test_unfusing_is_the_way_back(run, fails, tmp_path):
    fused, plain, again = (tmp_path / f"{name}.onnx" for name in ("fused", "plain", "again"))
    run("fuse", LLAMA, "-o", fused)
    status, out, err = run("unfuse", fused, "-o", plain, "--verify")
    assert (status, out.splitlines()[-1]) == (0, "unfused 5 of 5")
    assert "verified: " in err
    assert f"wrote {plain}" in err
    assert {o.domain for o in onnx.load(plain).opset_import} == {""}
    run("fuse", plain, "-o", again)
    assert again.read_bytes() == fused.read_bytes()

    status, out, err = run("unfuse", plain, "--dry-run")
    assert (status, out) == (0, "there is no norm to unfuse\n")
    assert "would unfuse 5 of 5" in run("unfuse", fused, "--dry-run")[1]
    value = json.loads(run("unfuse", fused, "-o", plain, "--force", "--json")[1])
    assert (value["task"], value["form"], len(value["fused"])) == ("unfuse", "standard", 5)
    assert Path(value["output"]["path"]) == plain
    assert "there is no output" in fails(2, "unfuse", fused)
    assert "exists" in fails(2, "unfuse", fused, "-o", plain)
    fails(3, "unfuse", tmp_path / "nothing.onnx", "-o", tmp_path / "x.onnx")


def test_a_dry_run_writes_nothing(run, tmp_path):
    status, out, err = run("fuse", LLAMA, "-o", tmp_path / "f.onnx", "--dry-run", "--json")
    assert status == 0
    assert json.loads(out)["output"] is None
    assert listing(tmp_path) == []
    assert "wrote" not in err
    assert "would fuse 5 of 5" in run("fuse", LLAMA, "--dry-run")[1]


def test_require(run, fails, tmp_path):
    out = tmp_path / "f.onnx"
    for enough in ("5", "1", "0", "all"):
        assert run("fuse", LLAMA, "-o", out, "--force", "--require", enough)[0] == 0
    out.unlink()
    assert "--require asks for 6 norms" in fails(1, "fuse", LLAMA, "-o", out, "--require", "6")
    assert listing(tmp_path) == []
    fails(1, "fuse", LLAMA, "--dry-run", "--require", "6", stdout=True)
    assert "takes a number or 'all'" in fails(2, "fuse", LLAMA, "-o", out, "--require", "most")
    run("fuse", LLAMA, "-o", tmp_path / "once.onnx")
    assert run("fuse", tmp_path / "once.onnx", "--dry-run", "--require", "5")[0] == 0  # fused before counts


def replace_fuse(monkeypatch, function):
    """The package exports a function by the module's name, so the module has to be asked for."""
    monkeypatch.setattr(sys.modules["rmsnorm_deploy.fusing.fuse"], "fuse", function)


def test_a_failed_verification_leaves_no_output(fails, tmp_path, monkeypatch):
    pytest.importorskip("onnxruntime")
    right = sys.modules["rmsnorm_deploy.fusing.fuse"].fuse

    def wrong(*args, **kwargs):
        fused, report = right(*args, **kwargs)
        for node in fused.graph.node:
            for attribute in node.attribute:
                if attribute.name == "epsilon" and node.domain == "rmsnorm_deploy":
                    attribute.f = 0.5
        return fused, report

    replace_fuse(monkeypatch, wrong)
    err = fails(1, "fuse", LLAMA, "-o", tmp_path / "f.onnx", "--verify")  # and no table of what was fused
    assert "differs from its original" in err
    assert listing(tmp_path) == []
    fails(1, "fuse", LLAMA, "-o", tmp_path / "f.onnx", "--verify", "--json")


def test_a_model_without_norms_is_no_error(run, tmp_path):
    path = tmp_path / "m.onnx"
    onnx.save(without_norms(), path)
    status, out, _ = run("fuse", path, "-o", tmp_path / "f.onnx")
    assert status == 0
    assert "no RMSNorm found" in out
    assert load_proto(tmp_path / "f.onnx").graph == load_proto(path).graph
    assert run("fuse", path, "--dry-run", "--require", "all")[0] == 1


def test_a_model_of_layer_norms_leads_to_convert(run, fails, tmp_path):
    path = tmp_path / "m.onnx"
    weights = [helper.make_node("Constant", [], ["w"], value_floats=[1.0] * 8)]
    onnx.save(model([*weights, helper.make_node("LayerNormalization", ["x", "w"], ["y"])]), path)
    for command in (("explain",), ("fuse", "--dry-run")):
        assert "there is 1 LayerNorm, which 'rmsnorm-deploy convert' may turn" in run(*command, path)[1]
    assert json.loads(run("explain", path, "--json")[1])["layer_norms"] == 1
    err = fails(1, "fuse", path, "-o", tmp_path / "f.onnx", "--require", "all")
    assert "1 LayerNorm, which 'rmsnorm-deploy convert' may turn" in err
    assert "'rmsnorm-deploy explain MODEL --all' says" in err  # without --all nothing is listed
    assert listing(tmp_path) == ["m.onnx"]


def test_an_opset_too_old_is_one_clear_line(fails, tmp_path):
    path = tmp_path / "m.onnx"
    onnx.save(norm(10), path)
    err = fails(3, "fuse", path, "-o", tmp_path / "f.onnx")
    assert "opset 10" in err
    assert listing(tmp_path) == ["m.onnx"]


def test_integers_are_not_a_norm_and_not_an_error(run, tmp_path):
    path = tmp_path / "m.onnx"
    onnx.save(norm(13, TensorProto.INT32), path)
    status, out, err = run("fuse", path, "-o", tmp_path / "f.onnx")
    assert status == 0, err
    assert "no RMSNorm found" in out


@pytest.mark.parametrize("form", ["onnx", "ort"])
def test_the_other_forms_are_written_and_verified(run, tmp_path, form):
    pytest.importorskip("onnxruntime")
    status, out, err = run("fuse", LLAMA, "-o", tmp_path / "f.onnx", "--form", form, "--verify")
    assert status == 0, err
    assert "fused 5 of 5" in out
    assert "verified" in err
    assert listing(tmp_path) == ["f.onnx"]


def bad_files(folder):
    """Inputs that no command can read, by what they are."""
    good = LLAMA.read_bytes()
    for name, content in {
        "empty": b"",
        "text": b"hello, this is no model",
        "picture": b"\x89PNG\r\n\x1a\n" + bytes(50),
        "truncated": good[: len(good) // 2],
        "no_graph": onnx.ModelProto(ir_version=8).SerializeToString(),
    }.items():
        (folder / f"{name}.onnx").write_bytes(content)
    (folder / "folder.onnx").mkdir()
    tensors = [numpy_helper.from_array(np.ones((8, 64), np.float32), "w")]
    inside = model([helper.make_node("MatMul", ["x", "w"], ["y"])], tensors=tensors)
    for name, location in (("gone", "gone.data"), ("dots", "../x.data"), ("absolute", "/etc/passwd")):
        copy = onnx.ModelProto()
        copy.CopyFrom(inside)
        tensor = copy.graph.initializer[0]
        tensor.ClearField("raw_data")
        tensor.data_location = TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value=location)
        (folder / f"{name}.onnx").write_bytes(copy.SerializeToString())


BAD = ["missing", "empty", "text", "picture", "truncated", "no_graph", "folder", "gone", "dots", "absolute"]


@pytest.mark.parametrize("name", BAD)
def test_unreadable_models_are_exit_code_3_in_every_command(fails, tmp_path, name):
    (tmp_path / "in").mkdir()
    (tmp_path / "out").mkdir()
    bad_files(tmp_path / "in")
    path = tmp_path / "in" / f"{name}.onnx"
    before = listing(tmp_path / "in")
    fails(3, "fuse", path, "-o", tmp_path / "out" / "f.onnx")
    fails(3, "fuse", path, "-o", tmp_path / "out" / "f.onnx", "--json")
    fails(3, "explain", path, "--json")
    fails(3, "verify", path, LLAMA)
    fails(3, "verify", LLAMA, path)
    fails(3, "bench", path)
    assert listing(tmp_path / "out") == []
    assert listing(tmp_path / "in") == before


def test_output_refusals_are_exit_code_2(fails, run, tmp_path):
    path = tmp_path / "m.onnx"
    shutil.copy(LLAMA, path)
    (tmp_path / "there.onnx").write_text("precious")
    (tmp_path / "link.onnx").symlink_to("m.onnx")
    os.link(path, tmp_path / "hard.onnx")
    assert "-o is missing" in fails(2, "fuse", path)
    assert "exists" in fails(2, "fuse", path, "-o", tmp_path / "there.onnx")
    assert "does not exist" in fails(2, "fuse", path, "-o", tmp_path / "no" / "f.onnx")
    for same in ("m.onnx", "link.onnx", "hard.onnx", "."):
        assert "is the input" in fails(2, "fuse", path, "-o", tmp_path / same, "--force")
    assert "there is no form" in fails(2, "fuse", path, "-o", tmp_path / "f.onnx", "--form", "magic")
    assert "--dry-run makes none" in fails(2, "fuse", path, "--dry-run", "--verify")
    assert (tmp_path / "there.onnx").read_text() == "precious"
    assert path.read_bytes() == LLAMA.read_bytes()
    assert run("fuse", path, "-o", tmp_path / "there.onnx", "--force")[0] == 0
    load_proto(tmp_path / "there.onnx")


def test_an_unwritable_folder_is_exit_code_2(tmp_path):
    folder = tmp_path / "locked"
    folder.mkdir()
    folder.chmod(0o555)
    for parent in [tmp_path, *tmp_path.parents]:  # pytest's folders are for their owner only
        if os.geteuid() == 0 and str(parent).startswith("/tmp/"):
            parent.chmod(parent.stat().st_mode | 0o055)
    # root may write everywhere; another user may not even read this checkout, so everything is imported before
    code = (
        "import os, sys; from pathlib import Path; from rmsnorm_deploy.errors import UsageError;"
        "from rmsnorm_deploy.model.files import check_output\n"
        "if os.geteuid() == 0: os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "try: check_output(Path(sys.argv[1]), source=None, overwrite=False)\n"
        "except UsageError as error: print(error.message, error.exit_code)"
    )
    command = [sys.executable, "-c", code, str(folder / "f.onnx")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "is not writable 2" in done.stdout, done.stderr


@pytest.mark.parametrize(
    "arguments",
    [["fuse"], [], ["melt"], ["fuse", "a", "--foo"], ["verify", "a"], ["verify", "a", "b", "--rtol", "x"], ["bench"]],
    ids=" ".join,
)
def test_typers_own_usage_errors_have_the_same_form(fails, arguments):
    assert "--help" in fails(2, *arguments)


def test_debug_shows_the_traceback_before_and_behind_the_command(run, tmp_path):
    for arguments in (["--debug", "explain", tmp_path / "no"], ["explain", tmp_path / "no", "--debug"]):
        status, out, err = run(*arguments)
        assert (status, out) == (3, "")
        assert "Traceback" in err
        assert "error: the model" in err


def test_an_unexpected_error_is_one_line(fails, monkeypatch):
    def broken(*_, **__):
        raise ZeroDivisionError("who would\nhave thought")

    replace_fuse(monkeypatch, broken)
    err = fails(70, "explain", LLAMA)
    assert "unexpected ZeroDivisionError: who would" in err
    assert "--debug" in err


def test_help_and_version(run):
    for version in ("--version", "-V"):
        assert run(version)[:2] == (0, f"rmsnorm-deploy {__version__}\n")
    for command in ("fuse", "explain", "verify", "bench", "doctor", "demo"):
        status, out, err = run(command, "--help")
        assert (status, err) == (0, "")
        assert "--json" in out
    assert "Exit codes" in run("--help")[1]


def test_help_loads_no_runtime():
    code = (
        "import sys; from rmsnorm_deploy.cli.app import main; main(['--help']); "
        "assert not {'onnxruntime', 'rich.table'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)


# -- explain ----------------------------------------------------------------------------------------------------------


def test_explain_names_every_norm(run):
    status, out, err = run("explain", LLAMA)
    assert status == 0
    assert out.count("fused   ") == 5
    assert "spelling: " in out
    assert "would fuse 5 of 5" in out
    assert err == ""


def test_explain_tells_what_is_fused_already(run, tmp_path):
    run("fuse", LLAMA, "-o", tmp_path / "once.onnx")
    assert "no RMSNorm is left to fuse (5 fused before)" in run("explain", tmp_path / "once.onnx")[1]


def test_fuse_says_that_it_verified_without_the_kernels(run, tmp_path, monkeypatch):
    pytest.importorskip("onnxruntime")
    monkeypatch.setenv("RMSNORM_DEPLOY_LIBRARY", str(tmp_path / "none.so"))
    status, _, err = run("fuse", LLAMA, "-o", tmp_path / "f.onnx", "--verify")
    assert status == 0
    assert "warning: verified without the library's kernels: " in err


def test_explain_a_site(run, fails):
    whole = json.loads(run("explain", LLAMA, "--json")[1])
    node = whole["fused"][2]["node"]
    one = json.loads(run("explain", LLAMA, "--site", node, "--json")[1])
    assert [f["node"] for f in one["fused"]] == [node]
    assert one["missed"] == []
    assert "no candidate 'nothing'" in fails(2, "explain", LLAMA, "--site", "nothing")


def test_explain_a_near_miss(run, tmp_path):
    almost = norm(13)
    almost.graph.node[3].op_type = "Exp"  # in place of the root
    onnx.save(almost, tmp_path / "m.onnx")
    status, out, _ = run("explain", tmp_path / "m.onnx")
    assert status == 0
    assert "left    " in out
    assert "got as far as" in out
    assert "0 of 1" in out


def test_the_form_had_another_name_which_is_not_listed(run):
    for option in ("--op", "--form"):
        status, out, err = run("explain", LLAMA, option, "ort", "--json")
        assert status == 0, err
        assert json.loads(out)["form"] == "ort"
    assert "--op" not in run("explain", "--help")[1]


def test_the_entry_point_has_a_short_name(capsys):
    from rmsnorm_deploy.cli import main

    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"rmsnorm-deploy {__version__}\n"


def test_names_cannot_reach_the_terminal_as_control_characters(run, tmp_path):
    nasty = norm(13)
    for node in nasty.graph.node:
        node.name = f"{ESCAPE}[31m[bold]{node.op_type}\nfused 99 of 99"
    onnx.save(nasty, tmp_path / "m.onnx")
    status, out, err = run("explain", tmp_path / "m.onnx")
    assert status == 0
    assert ESCAPE not in out + err
    assert "[bold]" in out  # nor is it taken for markup
    assert not any(line.startswith("fused 99") for line in (out + err).splitlines())  # nor for a line of ours


# -- verify and bench -------------------------------------------------------------------------------------------------


def fuse_to(path, source=LLAMA):
    assert cli.main(["fuse", str(source), "-o", str(path)]) == 0
    return path


def test_verify_passes_and_fails_by_exit_code(run, tmp_path, capsys):
    pytest.importorskip("onnxruntime")
    good = fuse_to(tmp_path / "f.onnx")
    capsys.readouterr()
    status, out, _ = run("verify", LLAMA, good)
    assert status == 0
    assert "PASSED" in out
    wrong = load_proto(good)
    for tensor in wrong.graph.initializer:
        if tensor.name.endswith("norm.weight"):
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor) * np.float16(3), tensor.name))
    onnx.save(wrong, tmp_path / "w.onnx")
    status, out, _ = run("verify", LLAMA, tmp_path / "w.onnx")
    assert status == 1
    assert "FAILED" in out
    status, out, _ = run("verify", LLAMA, tmp_path / "w.onnx", "--json")
    value = json.loads(out)
    assert status == 1
    assert (value["schema_version"], value["passed"]) == (1, False)
    check = value["checks"][0]
    errors = {"error", "original_error", "as_run_error", "allowed"}
    assert {"output", "run", "inputs", "passed", "index", "reason"} | errors == set(check)


def test_verify_takes_inputs_and_shapes(run, fails, tmp_path):
    pytest.importorskip("onnxruntime")
    path = tmp_path / "m.onnx"
    onnx.save(norm(13, shape=("n", 8)), path)
    fused = fuse_to(tmp_path / "f.onnx", path)
    np.savez(tmp_path / "i.npz", x=np.ones((3, 8), np.float32))
    run("doctor")
    value = json.loads(run("verify", path, fused, "--inputs", tmp_path / "i.npz", "--json")[1])
    assert value["shapes"] == {"x": [3, 8]}
    value = json.loads(run("verify", path, fused, "--shapes", "x:5,8", "--seed", 3, "--json")[1])
    assert (value["shapes"], value["seed"]) == ({"x": [5, 8]}, 3)
    assert run("verify", path, fused, "--rtol", "1e-5", "--atol", "1e-6")[0] == 0
    fails(2, "verify", path, fused, "--shapes", "x:5,9")
    fails(2, "verify", path, fused, "--shapes", "five")
    fails(2, "verify", path, fused, "--inputs", path)


def test_a_missing_onnxruntime_is_exit_code_4(fails, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    assert "onnxruntime is not installed" in fails(4, "verify", LLAMA, LLAMA)
    assert "pip install" in fails(4, "bench", LLAMA)


def test_a_missing_onnxruntime_does_not_stop_fuse_or_doctor(run, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    assert run("fuse", LLAMA, "-o", tmp_path / "f.onnx")[0] == 0
    status, out, _ = run("doctor", "--json")
    assert status == 0
    assert json.loads(out)["ready"] is False


def test_bench_prints_data(run):
    pytest.importorskip("onnxruntime")
    status, out, _ = run("bench", LLAMA, "--seconds", "0.05", "--json")
    value = json.loads(out)
    assert status == 0
    assert value["schema_version"] == 1
    assert [c["what"] for c in value["comparisons"]] == ["model", "one norm"]
    status, out, _ = run("bench", LLAMA, "--seconds", "0.05")
    assert status == 0
    assert "its optimizer on" in out


def test_bench_of_two_unrelated_models(fails):
    assert "not one and the same" in fails(2, "bench", LLAMA, SAMPLES / "t5_encoder_float32.onnx", stdout=True)


def test_doctor(run, monkeypatch):
    status, out, _ = run("doctor", "--json")
    value = json.loads(out)
    assert status == 0
    assert {"schema_version", "ready", "versions", "providers", "library", "runs", "advice"} <= value.keys()
    monkeypatch.setenv("RMSNORM_DEPLOY_LIBRARY", "/nowhere.so")
    value = json.loads(run("doctor", "--json")[1])
    assert value["ready"] is False
    assert "/nowhere.so" in value["library"]["problem"]
    assert value["advice"]
    status, out, err = run("doctor")
    assert status == 0
    assert "library" in out
    assert "hint: " in err


@pytest.mark.parametrize(
    ("version", "compilers", "said"),
    [
        (None, ["g++", "nvcc"], {"compile, tune": "not here: apache-tvm is not installed"}),
        ("0.26.0", ["g++", "nvcc"], {"compile, tune": "not here: apache-tvm is 0.26.0, and 0.27 is needed"}),
        ("0.27.0", [], {"compile, tune": "not here: there is no C++ compiler"}),
        ("0.27.0", ["g++", "nvcc"], {"compile, tune": "here", "compile --target cuda": "here"}),
        ("0.27.0", ["g++"], {"compile, tune": "here", "compile --target cuda": "not here: there is no nvcc"}),
        ("0.27.0", ["clang++"], {"compile, tune": "here", "compile --target cuda": "not here: there is no nvcc"}),
        ("0.27.0", ["cc"], {"compile, tune": "here", "compile --target cuda": "not here: there is no nvcc"}),
    ],
)
def test_doctor_says_what_tvm_compiles_here(run, monkeypatch, tmp_path, version, compilers, said):
    asked = importlib.metadata.version

    def installed(package):
        if package == "apache-tvm":
            if version is None:
                raise importlib.metadata.PackageNotFoundError
            return version
        return asked(package)

    for name in compilers:
        (tmp_path / name).touch(mode=0o755)
    monkeypatch.setattr(importlib.metadata, "version", installed)
    monkeypatch.setenv("PATH", str(tmp_path))
    for name in ("CC", "CXX", "CUDA_HOME", "CUDA_PATH"):
        monkeypatch.delenv(name, raising=False)
    runs = json.loads(run("doctor", "--json")[1])["runs"]
    assert {k: v for k, v in runs.items() if k.startswith("compile")} == said


# -- the terminal -----------------------------------------------------------------------------------------------------


def on_a_terminal(*arguments, env):
    """What a terminal would get."""
    master, slave = pty.openpty()
    command = [sys.executable, "-m", "rmsnorm_deploy", *map(str, arguments)]
    environment = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "FORCE_COLOR")}
    environment |= {"TERM": "xterm-256color", "COLUMNS": "200"} | env
    child = subprocess.Popen(command, stdout=slave, stderr=subprocess.DEVNULL, env=environment)
    os.close(slave)
    text = b""
    try:
        while chunk := os.read(master, 4096):
            text += chunk
    except OSError:
        pass  # Linux reports the other end's closing as an error
    os.close(master)
    assert child.wait(60) == 0
    return text.decode()


def test_colours_only_on_a_terminal_and_never_with_no_color(tmp_path):
    pytest.importorskip("onnxruntime")
    arguments = ["verify", LLAMA, fuse_to(tmp_path / "f.onnx")]
    colour = re.compile(ESCAPE + r"\[[0-9;]*3[12]")  # red or green
    assert colour.search(on_a_terminal(*arguments, env={}))
    assert not colour.search(on_a_terminal(*arguments, env={"NO_COLOR": "1"}))
    piped = process(*arguments, env={"FORCE_COLOR": "1", "TERM": "xterm-256color"})
    assert ESCAPE not in piped.stdout + piped.stderr


def test_as_a_process_data_and_talk_are_apart(tmp_path):
    done = process("fuse", LLAMA, "-o", tmp_path / "f.onnx", "--json")
    assert done.returncode == 0
    json.loads(done.stdout)
    assert "wrote" in done.stderr
    failed = process("explain", tmp_path / "no.onnx")
    assert (failed.returncode, failed.stdout) == (3, "")


def test_an_ascii_terminal_gets_ascii(tmp_path):
    path = tmp_path / "m\N{LATIN SMALL LETTER U WITH DIAERESIS}.onnx"
    done = process("explain", path, env={"PYTHONIOENCODING": "ascii", "LC_ALL": "C"})
    assert done.returncode == 3
    assert done.stderr.count("\n") == 2
    foreign = norm(13)
    for node in foreign.graph.node:
        node.name = "\N{GREEK SMALL LETTER OMEGA}" + node.op_type
    onnx.save(foreign, path)
    done = process("explain", path, env={"PYTHONIOENCODING": "ascii", "LC_ALL": "C"})
    assert done.returncode == 0, done.stderr
    assert "?Mul" in done.stdout
    done = process("fuse", path, "--dry-run", env={"PYTHONIOENCODING": "ascii", "LC_ALL": "C"})
    assert done.returncode == 0, done.stderr


def test_a_reader_that_goes_away_is_no_error():
    command = [sys.executable, "-m", "rmsnorm_deploy", "explain", str(LLAMA), "--json"]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    child.stdout.close()
    assert child.wait(60) == 141
    assert child.stderr.read() == ""
    child.stderr.close()


def test_control_c_is_clean(tmp_path):
    code = (
        "import sys, time, rmsnorm_deploy.model.save as m\n"
        "from rmsnorm_deploy.cli.app import main\n"
        "def slow(*_): print('ready', flush=True); time.sleep(60)\n"
        "m.check_written = slow\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    command = [sys.executable, "-c", code, "fuse", str(LLAMA), "-o", str(tmp_path / "f.onnx")]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    end = time.monotonic() + 60
    while "ready" not in child.stdout.readline() and time.monotonic() < end:
        pass
    child.send_signal(signal.SIGINT)
    _, err = child.communicate(timeout=60)
    assert child.returncode == 130
    assert err == "error: interrupted\n"
    assert listing(tmp_path) == []


def test_verify_names_the_norm_that_differs_where_no_output_does(run, tmp_path):
    spoilt = Norm(fuse(LLAMA)[0])
    spoilt.set("epsilon", 2 * spoilt.attributes["epsilon"])
    onnx.save(spoilt.model, tmp_path / "spoilt.onnx")
    status, out, _ = run("verify", LLAMA, tmp_path / "spoilt.onnx", "--save-inputs", tmp_path / "kept")
    assert status == 1
    last = out.splitlines()[-1]
    assert last.startswith("FAILED: norm m.model.layers.1.input_layernorm: fused ")
    assert "probably epsilon: epsilon is " in last
    assert sum(line.startswith("norm ") for line in out.splitlines()) == 5
    assert (tmp_path / "kept" / "normal.npz").exists()
    status, out, _ = run("verify", LLAMA, tmp_path / "spoilt.onnx", "--json")
    found = json.loads(out)
    assert (status, found["passed"]) == (1, False)
    assert [s["name"] for s in found["sites"] if not s["passed"]] == ["m.model.layers.1.input_layernorm"]
