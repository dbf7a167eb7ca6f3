"""Long work shows itself on a terminal, and nowhere else."""

import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import onnx
import pytest

from rmsnorm_deploy.check.verify import verify
from rmsnorm_deploy.cli import printing

LLAMA = Path(__file__).parents[2] / "samples" / "models" / "llama_float16.onnx"


def stderr_of(*arguments, where):
    """What a command writes to stderr, which is a terminal or a pipe; and to stdout, which is a pipe."""
    reader, writer = pty.openpty() if where == "terminal" else os.pipe()
    command = [sys.executable, "-m", "rmsnorm_deploy", *map(str, arguments)]
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "300"}
    with subprocess.Popen(command, stderr=writer, stdout=subprocess.PIPE, env=environment) as child:
        os.close(writer)
        said = b""
        try:
            while chunk := os.read(reader, 65536):
                said += chunk
        except OSError:
            pass  # a terminal's end of file
        os.close(reader)
        out = child.stdout.read()
    assert child.returncode == 0, said
    return said, out


@pytest.fixture
def outside(tmp_path):
    """A model with its weights in a file."""
    path = tmp_path / "in" / "m.onnx"
    path.parent.mkdir()
    onnx.save(onnx.load(LLAMA), path, save_as_external_data=True, location="w.data")
    return path


def test_fusing_copying_and_verifying_are_shown_on_a_terminal(outside, tmp_path):
    pytest.importorskip("onnxruntime")
    said, out = stderr_of("fuse", outside, "-o", tmp_path / "f.onnx", "--verify", where="terminal")
    text = re.sub(rb"\x1b\[[0-9;?]*[A-Za-z]", b"", said)
    assert b"running the fused model" in text or b"comparing norms" in text or b"running the original" in text
    assert b"\x1b" not in out
    assert b"MiB of weights to f.onnx.data" in text


@pytest.mark.parametrize(
    ("where", "options"), [("pipe", []), ("terminal", ["--json"]), ("terminal", ["--quiet"])], ids=str
)
def test_nothing_on_pipes_nor_beside_json_nor_when_quiet(outside, tmp_path, where, options):
    said, out = stderr_of("fuse", outside, "-o", tmp_path / "f.onnx", *options, where=where)
    assert b"\x1b" not in said
    assert b"copying weights to" not in said
    assert (said == b"") == ("--quiet" in options)
    if "--json" in options:
        assert json.loads(out)["output"]["copied"]


def test_verify_tells_every_step(tmp_path, run):
    pytest.importorskip("onnxruntime")
    run("fuse", LLAMA, "-o", tmp_path / "f.onnx")
    told = []
    result = verify(LLAMA, tmp_path / "f.onnx", progress=lambda *step: told.append(step))
    runs = list(dict.fromkeys(check.run for check in result.checks))
    expected = ["running the original", *(f"running the fused model, {name}" for name in runs), "comparing norms"]
    assert [words for words, _, _ in told] == expected
    assert [(done, total) for _, done, total in told] == [(i, len(expected)) for i in range(len(expected))]


@pytest.mark.parametrize(
    ("done", "total", "words"),
    [(0, 0, ""), (3, 7, "3/7"), (5 * 2**20, 2**31, "5/2,048 MiB"), (2**20 - 1, 2**20 - 1, "1048575/1048575")],
)
def test_steps_and_bytes_are_told_in_their_own_units(done, total, words):
    assert printing._share(done, total) == words
