"""What the pages give to copy: it runs, page by page, from top to bottom, in a folder with a model.

A block behind ``<!-- not run: REASON -->`` is not run, but its commands are known and its Python compiles. Commands
that install or measure for minutes are not run either: their targets, extras and programs are there.
"""

import ast
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys

import onnx
import pytest

from tests.docs import reference
from tests.docs.pages import PAGES, ROOT, Block, blocks, named
from tests.support.torch_environment import run_with_torch

SAMPLES = ROOT / "samples"
ELSEWHERE = {
    "docs/how-to/bench.md": "tests/docs/test_how_to_pages.py",
    "docs/how-to/convert.md": "tests/docs/test_convert_page.py",
    "docs/how-to/pipelines.md": "tests/benchmarks/test_pipelines.py",
    "docs/how-to/report.md": "tests/docs/test_report_page.py",
    "docs/how-to/several-models.md": "tests/docs/test_how_to_pages.py",
}
"""Pages whose code has a test of its own, which also says what comes out."""
TORCH = {"docs/how-to/pytorch.md"}
RUN = [p for p in PAGES if named(p) not in ELSEWHERE and any(b.language in ("sh", "python") for b in blocks(p))]
OTHER_LANGUAGES = {
    "c-and-cpp.md": {"c", "cpp"},
    "csharp.md": {"csharp"},
    "node.md": {"js"},
    "rust.md": {"rust"},
    "triton.md": {"", "protobuf"},
}
"""Of pages whose code tests/docs/test_loading_pages.py looks at."""
COMMANDS = dict(reference.commands())


def tiny(path):
    """One norm of a float32 input x of shape [rows, 8]: what compiles in seconds."""
    text = """<ir_version: 9, opset_import: ["": 18]> norm (float[rows, 8] x) => (float[rows, 8] y)
    <float[8] scale = {1, 2, 3, 4, 5, 6, 7, 8}, float two = {2}, float epsilon = {0.000001}, int64[1] axes = {-1}> {
        square = Pow(x, two)  mean = ReduceMean(square, axes)  stable = Add(mean, epsilon)  rms = Sqrt(stable)
        normalised = Div(x, rms)  y = Mul(normalised, scale)
    }"""
    onnx.save(onnx.parser.parse_model(text), path)


@pytest.fixture
def folder(tmp_path):
    """What the pages assume: an export, and the samples."""
    shutil.copy(SAMPLES / "models" / "t5_encoder_float32.onnx", tmp_path / "model.onnx")
    (tmp_path / "samples").symlink_to(SAMPLES)
    return tmp_path


def lines_of(text):
    """The commands of a block for the shell, without comments, continued lines put together."""
    text = re.sub(r"\\\n\s*", " ", text)
    lines = (" ".join(shlex.split(line, comments=True)) for line in text.splitlines())
    return [line for line in lines if line]


def is_only_looked_at(line):
    """Whether a command is looked at and not run; and whether what it names is there."""
    words = line.split()
    if words[0] == "make":
        assert re.search(rf"^{words[1]}:", (ROOT / "Makefile").read_text(), re.MULTILINE), f"no target: {line}"
        return True
    if words[:2] == ["pip", "install"]:
        project = (ROOT / "pyproject.toml").read_text()
        for extra in re.findall(r"\.\[(\w+)\]", line):
            assert re.search(rf"^{extra} = \[", project, re.MULTILINE), f"no extra: {line}"
        options = re.findall(r"cmake\.define\.(\w+)", line)
        assert all(o in (ROOT / "ops" / "CMakeLists.txt").read_text() for o in options), line
        return True
    if words[:2] == ["python", "-m"] and words[2].startswith("benchmarks."):
        spec = importlib.util.find_spec(words[2])
        assert spec is not None, f"no program: {line}"
        source = (ROOT / (words[2].replace(".", "/") + ".py")).read_text()
        assert all(f'"{option}"' in source for option in words if option.startswith("--")), line
        return True
    return False


def check_known(line):
    """A command of ours has the options that it is given."""
    words = shlex.split(line)
    if words[0] != "rmsnorm-deploy":
        return
    labels = " ".join(label for label, _, _ in reference.parameters(COMMANDS[words[1]]))
    known = {"--help", *re.findall(r"(?<!\w)-{1,2}[a-z][\w-]*", labels)}
    assert {w for w in words if re.match(r"-{1,2}[a-z]", w)} <= known, line


def environment():
    return os.environ | {"PATH": f"{os.path.dirname(sys.executable)}{os.pathsep}{os.environ['PATH']}"}  # noqa: PTH120


@pytest.mark.parametrize("page", RUN, ids=named)
def test_what_a_page_gives_to_copy_runs(page, folder):
    if named(page) == "docs/how-to/tvm.md":
        pytest.importorskip("tvm")
        tiny(folder / "model.onnx")
    if named(page) == "docs/how-to/nvidia.md":
        run_block(Block("sh", "rmsnorm-deploy fuse model.onnx -o fused.onnx", ""), folder)
    python = ""
    for block in blocks(page):
        if block.language == "sh":
            ran = [line for line in lines_of(block.text) if not is_only_looked_at(line)]
            for line in ran:
                check_known(line)
            if ran and not block.reason:
                run_block(block, folder)
        elif block.language == "python":
            ast.parse(block.text)
            if not block.reason:
                python += block.text  # a block goes on where the one before has ended
    if python:
        run_python(python, page, folder)


def run_block(block, folder):
    command = ["bash", "-euo", "pipefail", "-c", block.text]
    done = subprocess.run(command, cwd=folder, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{block.text}\n{done.stdout[-1500:]}{done.stderr[-1500:]}"


def run_python(text, page, folder):
    if named(page) in TORCH:
        run_with_torch(["-c", text], cwd=folder)
        return
    done = subprocess.run(
        [sys.executable, "-c", text], cwd=folder, env=environment(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{text}\n{done.stdout[-1500:]}{done.stderr[-1500:]}"


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_every_command_of_a_page_is_in_a_block_that_is_run(page):
    """A command that is shown indented, as text or as output would be run by nobody."""
    fenced = blocks(page)
    others = OTHER_LANGUAGES.get(page.name, set())
    assert {b.language for b in fenced} <= {"sh", "python", "json", "text"} | others
    own = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    shown = [line.strip() for line in own.splitlines() if line.startswith("    ")]
    shown += [line for b in fenced if b.language == "text" for line in b.text.splitlines()]
    loose = [line for line in shown if re.match(r"(\$ )?(rmsnorm-deploy|python|pip|import|from) ", line)]
    assert not loose or named(page) == "docs/reference/python.md", loose
    for line in shown:
        if line.startswith("make "):
            assert is_only_looked_at(line.partition("#")[0].strip())


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_commands_in_the_text_are_known(page):
    """`make x`, `python -m benchmarks.x` and `pip install '.[x]'` between backticks."""
    own = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    for line in re.findall(r"`((?:make|pip install|python -m benchmarks\.)[^`]*)`", own):
        assert is_only_looked_at(" ".join(shlex.split(line)))


def test_code_that_is_run_elsewhere_is():
    for page, test in ELSEWHERE.items():
        assert (ROOT / page).name in (ROOT / test).read_text()
