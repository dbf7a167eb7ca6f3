"""Who may import whom, and what importing the package loads."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import rmsnorm_deploy

PACKAGE = Path(rmsnorm_deploy.__file__).parent

# module (or package) -> the modules of ours that it may import; cli may import everything
ALLOWED = {
    "errors": set(),
    "op": set(),
    "reference": {"op"},
    "recognise": {"op", "recognise"},
    "report": {"recognise"},
    "emit": {"op", "recognise"},
    "opset": set(),
    "splice": set(),
    "paths": {"errors"},
    "load": {"errors", "paths"},
    "save": {"errors", "paths", "load"},
    "fuse": {"op", "opset", "recognise", "emit", "report", "splice", "load", "errors"},
    "inputs": {"errors"},
    "cuda": set(),
    "runtime": {"cuda", "errors"},
    "running": {"runtime", "inputs", "errors", "op", "load", "paths"},
    "exact": {"inputs", "running", "op"},
    "cut": set(),
    "verify": {"exact", "inputs", "running", "errors", "op"},
    "bench": {"cut", "fuse", "inputs", "running", "report", "errors", "op"},
    "doctor": {"cuda", "runtime", "running", "errors"},
    "tvm": {"tvm", "cuda", "op", "reference", "fuse", "paths", "errors"},
    "demo": {"bench", "verify", "fuse", "running", "inputs", "save", "load", "errors", "report"},
}
FREE = {"cli", "__init__", "__main__"}


def modules():
    return sorted(p for p in PACKAGE.rglob("*.py"))


def imported(path):
    """Our own modules that a file imports, by the first part of their name."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("rmsnorm_deploy"):
            parts = node.module.split(".")
            found |= {parts[1]} if len(parts) > 1 else {a.name for a in node.names}
        elif isinstance(node, ast.Import):
            found |= {a.name.split(".")[1] for a in node.names if a.name.startswith("rmsnorm_deploy.")}
    return found


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_follow_the_arrows(path):
    name = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    if name in FREE:
        return
    assert name in ALLOWED, f"{name} is new: say what it may import"
    assert imported(path) <= ALLOWED[name]


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_only_the_command_line_prints(path):
    if path.name == "cli.py":
        return
    for node in ast.walk(ast.parse(path.read_text())):
        called = node.func if isinstance(node, ast.Call) else None
        assert not (isinstance(called, ast.Name) and called.id == "print"), f"{path.name}:{node.lineno} prints"


def test_importing_the_package_loads_no_runtime_and_registers_nothing():
    code = (
        "import sys, rmsnorm_deploy, onnx; "
        "heavy = {'onnxruntime', 'tvm', 'torch', 'typer', 'rich'} & set(sys.modules); assert not heavy, heavy; "
        "assert not onnx.defs.has('RMSNorm', 'rmsnorm_deploy')"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_no_machine_or_registry_is_named():
    root = PACKAGE.parent
    if not (root / ".git").exists():
        pytest.skip("not a checkout")
    files = subprocess.run(["git", "ls-files"], cwd=root, capture_output=True, text=True, check=True).stdout.split()
    for name in files:
        path = root / name
        if path.suffix in {".onnx", ".bin"} or not path.is_file() or path == Path(__file__):
            continue
        text = path.read_text(errors="ignore")
        for wrong in ("/wo" + "rk/", "index-" + "url"):
            assert wrong not in text, f"{name} names {wrong}"
