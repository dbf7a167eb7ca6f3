"""Several models at once, folders and patterns, stdin and stdout: one summary, nothing overwritten, nothing stopped."""

import io
import json
import os
import pty
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from rmsnorm_deploy.cli import sources
from rmsnorm_deploy.cli.sources import jobs_of
from rmsnorm_deploy.errors import UsageError
from rmsnorm_deploy.model.load import load_proto

SAMPLES = Path(__file__).parents[2] / "samples" / "models"


def norm(near_miss=False, layer_norm=False, outside=None, width=8):
    """A model with one RMSNorm; if asked for with what looks like a second one, or with a LayerNorm beside it."""
    value = helper.make_tensor_value_info
    tensors = [numpy_helper.from_array(np.array(v, np.float32), n) for n, v in (("two", 2), ("eps", 1e-5))]
    tensors += [numpy_helper.from_array(np.ones(width, np.float32), "w")]

    def chain(x, out, middle=()):
        return [
            helper.make_node("Pow", [x, "two"], [f"{out}_sq"]),
            helper.make_node("ReduceMean", [f"{out}_sq"], [f"{out}_ms"], name=f"{out}_mean", axes=[-1], keepdims=1),
            helper.make_node("Add", [f"{out}_ms", "eps"], [f"{out}_a"]),
            *middle,
            helper.make_node("Sqrt", [f"{out}_a"], [f"{out}_rms"]),
            helper.make_node("Div", [x, f"{out}_rms"], [f"{out}_n"]),
            helper.make_node("Mul", [f"{out}_n", "w"], [out]),
        ]

    nodes, outputs = chain("x", "y"), ["y"]
    if layer_norm:
        nodes += [
            helper.make_node("ReduceMean", ["y"], ["mean"], axes=[-1], keepdims=1),
            helper.make_node("Sub", ["y", "mean"], ["d"]),
            *chain("d", "z"),
        ]
        outputs = ["z"]
    if near_miss:
        odd = chain("x", "o")
        odd[3] = helper.make_node("Exp", ["o_a"], ["o_rms"])  # the place of the root
        nodes, outputs = nodes + odd, [*outputs, "o"]
    values = [value(o, 1, ["n", width]) for o in outputs]
    graph = helper.make_graph(nodes, "g", [value("x", 1, ["n", width])], values, tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


@pytest.fixture
def folder(tmp_path):
    """Two models, one of them in a folder below, and a file that is none."""
    root = tmp_path / "in"
    (root / "b").mkdir(parents=True)
    onnx.save(norm(), root / "m.onnx")
    onnx.save(norm(), root / "b" / "m.onnx")
    (root / "b" / "bad.onnx").write_text("no model")
    return root


def fused(path):
    return sum(n.domain == "rmsnorm_deploy" for n in load_proto(path).graph.node)


def listing(root):
    return sorted(str(p.relative_to(root)) for p in root.rglob("*") if p.is_file())


def test_a_folder_keeps_its_paths_and_a_failure_stops_nothing(run, folder, tmp_path):
    status, out, err = run("fuse", folder, "-o", tmp_path / "out")
    assert status == 3  # of the worst
    assert listing(tmp_path / "out") == ["b/m.onnx", "m.onnx"]
    assert fused(tmp_path / "out" / "b" / "m.onnx") == 1
    assert "error: " in err
    assert "bad.onnx: " in err
    assert "FAILED (3)" in out
    assert "2 of 3 models done; wrote anew 2 of 2 norms" in out
    # once more: what was made before is neither fused again nor replaced
    (folder / "b" / "bad.onnx").unlink()
    status, _, err = run("fuse", folder, "-o", tmp_path / "out")
    assert (status, err.count("exists")) == (2, 2)
    assert run("fuse", folder, "-o", tmp_path / "out", "--force")[0] == 0
    inside = folder / "fused"
    assert run("fuse", folder, "-o", f"{inside}/")[0] == 0
    assert run("fuse", folder, "-o", inside, "--force")[0] == 0
    assert listing(inside) == ["b/m.onnx", "m.onnx"]


def test_one_basename_is_told_apart(run, folder, tmp_path):
    status, _, _ = run("fuse", folder / "m.onnx", folder / "b" / "m.onnx", folder / "m.onnx", "-o", tmp_path / "out")
    assert status == 0
    assert listing(tmp_path / "out") == ["b/m.onnx", "m.onnx"]


def test_a_pattern_keeps_the_paths_that_it_leaves_open(run, folder, tmp_path):
    assert run("fuse", f"{folder}/*/m.onnx", "-o", tmp_path / "out")[0] == 0
    assert listing(tmp_path / "out") == ["b/m.onnx"]
    assert run("fuse", f"{folder}/**/m*.onnx", "--dry-run")[0] == 0
    status, _, err = run("fuse", f"{folder}/*.nothing", "-o", tmp_path / "out")
    assert (status, "no file matches" in err) == (3, True)
    odd = folder / "[1].onnx"
    shutil.copy(folder / "m.onnx", odd)
    assert run("fuse", odd, "-o", tmp_path / "odd.onnx")[0] == 0  # a file of that name is not a pattern


def test_results_that_would_meet_are_refused_before_any_work(folder, tmp_path):
    (tmp_path / "other" / "b").mkdir(parents=True)
    (tmp_path / "other" / "c").mkdir(parents=True)
    for name in ("b", "c"):
        shutil.copy(folder / "m.onnx", tmp_path / "other" / name / "m.onnx")
    alike = [str(tmp_path / "other" / name / "m.onnx") for name in ("b", "c")]
    alone = tmp_path / "alone" / "b"
    alone.mkdir(parents=True)
    shutil.copy(folder / "m.onnx", alone / "m.onnx")
    with pytest.raises(UsageError, match="would both be"), jobs_of([str(alone.parent), *alike], "out"):
        pass
    given = [str(tmp_path / "other" / "b" / "m.onnx"), str(folder / "b" / "bad.onnx")]
    meeting = [alike[0], str(alone.parent)], str(tmp_path / "other")
    with pytest.raises(UsageError, match="another of the models"), jobs_of(*meeting):
        pass
    with jobs_of(given, "out") as jobs:
        assert [j.output for j in jobs.jobs] == ["out/m.onnx", "out/bad.onnx"]


def test_a_folder_without_models_and_a_file_as_folder(run, folder, tmp_path):
    (tmp_path / "empty").mkdir()
    assert run("fuse", tmp_path / "empty", "-o", tmp_path / "out")[0] == 3
    status, _, err = run("fuse", folder, "-o", folder / "m.onnx")
    assert (status, "is not a folder" in err) == (2, True)
    assert "-o is missing" in run("fuse", folder)[2]


def test_one_model_into_a_new_folder(run, folder, tmp_path):
    new = tmp_path / "x" / "new"
    assert run("fuse", folder / "m.onnx", "-o", f"{new}/")[0] == 0
    assert listing(new) == ["m.onnx"]
    assert run("unfuse", new / "m.onnx", "-o", f"{tmp_path / 'y'}/")[0] == 0
    assert fused(tmp_path / "y" / "m.onnx") == 0
    assert run("fuse", folder / "b" / "bad.onnx", "-o", f"{tmp_path / 'z' / 'z'}/")[0] == 3
    assert run("fuse", folder / "m.onnx", "-o", f"{tmp_path / 'z' / 'z'}/", "--dry-run")[0] == 0
    assert not (tmp_path / "z").exists()


def test_a_result_that_fails_takes_its_new_folder_away(run, folder, tmp_path):
    assert run("fuse", folder / "m.onnx", "-o", f"{tmp_path / 'z' / 'z'}/", "--weights", "burn")[0] == 2
    assert not (tmp_path / "z").exists()


def test_several_as_json_are_one_line_each(run, folder, tmp_path):
    status, out, _ = run("fuse", folder, "-o", tmp_path / "out", "--json")
    lines = [json.loads(line) for line in out.splitlines()]
    assert status == lines[-1]["summary"]["exit_code"] == 3
    assert lines[-1]["summary"] == {"models": 3, "failed": 1, "norms": 2, "exit_code": 3}
    by_name = {Path(line["model"]).name: line for line in lines[:-1]}
    assert by_name["bad.onnx"]["error"]["exit_code"] == 3
    assert by_name["m.onnx"]["output"]["path"].startswith(str(tmp_path / "out"))
    assert {line["schema_version"] for line in lines} == {1}


def test_an_unexpected_error_of_one_stops_nothing(run, folder, tmp_path, monkeypatch):
    right = sys.modules["rmsnorm_deploy.fusing.fuse"].fuse

    def odd(path, **kwargs):
        if path.name == "bad.onnx":
            raise ZeroDivisionError("who knows")
        return right(path, **kwargs)

    monkeypatch.setattr(sys.modules["rmsnorm_deploy.fusing.fuse"], "fuse", odd)
    status, _, err = run("fuse", folder, "-o", tmp_path / "out")
    assert status == 70
    assert "unexpected ZeroDivisionError: who knows" in err
    assert listing(tmp_path / "out") == ["b/m.onnx", "m.onnx"]


def test_control_c_ends_all_even_where_foreign_code_makes_another_error_of_it(run, folder, tmp_path, monkeypatch):
    seen = []

    def odd(path, **kwargs):
        seen.append(path)
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt as error:
            raise RuntimeError("some foreign error") from error

    monkeypatch.setattr(sys.modules["rmsnorm_deploy.fusing.fuse"], "fuse", odd)
    status, _, err = run("fuse", folder, "-o", tmp_path / "out")
    assert (status, len(seen)) == (130, 1)
    assert err == "error: interrupted\n"
    assert not (tmp_path / "out").exists()


# -- stdin and stdout -------------------------------------------------------------------------------------------------


def piped(*arguments, data):
    command = [sys.executable, "-m", "rmsnorm_deploy", *map(str, arguments)]
    return subprocess.run(command, input=data, capture_output=True, check=False, timeout=120)


def test_from_stdin_to_stdout(folder, tmp_path):
    done = piped("fuse", "-", "-o", "-", data=(folder / "m.onnx").read_bytes())
    assert done.returncode == 0, done.stderr
    assert sum(n.domain == "rmsnorm_deploy" for n in onnx.load_from_string(done.stdout).graph.node) == 1
    assert b"fused 1 of 1" in done.stderr
    assert b"wrote the model to stdout" in done.stderr
    bad = piped("fuse", "-", "-o", "-", data=b"no model")
    assert (bad.returncode, bad.stdout) == (3, b"")
    empty = piped("fuse", "-", "-o", "-", data=b"")
    assert (empty.returncode, empty.stderr.splitlines()[0]) == (3, b"error: stdin is empty")
    other = piped("explain", "-", data=(folder / "m.onnx").read_bytes())
    assert (other.returncode, b"fuse, unfuse and convert read a model from stdin" in other.stderr) == (3, True)
    json_too = piped("fuse", "-", "-o", "-", "--json", data=(folder / "m.onnx").read_bytes())
    assert json_too.returncode == 2
    assert json.loads(json_too.stdout)["error"]["exit_code"] == 2


def test_weights_outside_go_to_stdout_inside_and_do_not_come_from_stdin(run, folder, tmp_path, monkeypatch):
    path = tmp_path / "w.onnx"
    onnx.save(norm(width=600), path, save_as_external_data=True, location="w.data", size_threshold=0)
    done = piped("fuse", path, "-o", "-", data=b"")
    assert done.returncode == 0, done.stderr
    made = onnx.load_from_string(done.stdout)
    assert numpy_helper.to_array(next(t for t in made.graph.initializer if t.name == "w")).tolist() == [1.0] * 600
    assert run_status(run, "fuse", path, "-o", "-", "--weights", "copy") == 2
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(path.read_bytes())))
    assert run_status(run, "fuse", "-", "-o", tmp_path / "f.onnx") == 3
    assert not (tmp_path / "f.onnx").exists()


def run_status(run, *arguments):
    return run(*arguments)[0]


def test_a_terminal_gets_no_model_and_gives_none(folder):
    master, slave = pty.openpty()
    try:
        command = [sys.executable, "-m", "rmsnorm_deploy", "fuse"]
        to = subprocess.run([*command, folder / "m.onnx", "-o", "-"], stdout=slave, stderr=subprocess.PIPE, check=False)
        of = subprocess.run([*command, "-", "-o", "x"], stdin=slave, stderr=subprocess.PIPE, check=False)
    finally:
        os.close(slave)
        os.close(master)
    assert (to.returncode, b"which is a terminal" in to.stderr) == (2, True)
    assert (of.returncode, b"which is a terminal" in of.stderr) == (2, True)


def test_stdout_is_for_one_model(run, folder):
    status, _, err = run("fuse", folder, "-o", "-")
    assert (status, "these are several" in err) == (2, True)


# -- require and allow ------------------------------------------------------------------------------------------------


def test_a_layer_norm_beside_a_norm_is_not_required(run, tmp_path):
    onnx.save(norm(layer_norm=True), tmp_path / "m.onnx")
    assert run("fuse", tmp_path / "m.onnx", "--dry-run", "--require", "all")[0] == 0
    status, _, _ = run("fuse", tmp_path / "m.onnx", "--dry-run", "--require", "2")
    assert status == 1


def test_what_may_be_a_norm_is_required_unless_it_is_allowed(run, tmp_path):
    onnx.save(norm(near_miss=True), tmp_path / "m.onnx")
    require = ("fuse", tmp_path / "m.onnx", "--dry-run", "--require", "all")
    status, out, err = run(*require)
    assert (status, out) == (1, "")
    assert "left is o_mean" in err
    assert "--allow NODE" in err
    assert run(*require, "--allow", "o_mean")[0] == 0
    status, _, err = run(*require, "--allow", "o_mean", "--allow", "nobody")
    assert (status, "warning: --allow nobody exempts nothing" in err) == (0, True)
    assert run("fuse", tmp_path / "m.onnx", "--dry-run", "--allow", "o_mean")[0] == 2


def test_the_weights_option_reaches_the_output(run, tmp_path):
    path = tmp_path / "w.onnx"
    onnx.save(norm(width=600), path, save_as_external_data=True, location="w.data", size_threshold=0)
    for way, files in (("keep", ["w.data"]), ("copy", [f"{tmp_path.name}.onnx.data"]), ("embed", [])):
        output = tmp_path / f"{tmp_path.name}.onnx"
        status, out, _ = run("fuse", path, "-o", output, "--weights", way, "--json", "--force")
        assert status == 0
        assert json.loads(out)["output"]["weight_files"] == files


def test_hidden_files_and_links_to_folders_are_no_models(folder):
    (folder / ".hidden").mkdir()
    shutil.copy(folder / "m.onnx", folder / ".hidden" / "m.onnx")
    shutil.copy(folder / "m.onnx", folder / ".m.onnx")
    (folder / "loop").symlink_to(folder)
    found = sources._models_below(folder, None)
    assert [str(p.relative_to(folder)) for p in found] == ["m.onnx", "b/bad.onnx", "b/m.onnx"]


def test_quiet_says_only_what_is_wrong(run, folder, tmp_path):
    status, out, err = run("--quiet", "fuse", folder / "m.onnx", "-o", tmp_path / "f.onnx")
    assert (status, err) == (0, "")
    assert "fused 1 of 1" in out
    status, _, err = run("fuse", folder / "m.onnx", "-o", tmp_path / "f.onnx", "--quiet")
    assert (status, len(err.splitlines())) == (2, 2)
