"""The page about reports: what it gives to copy runs, and its numbers are those of the code."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import onnx

from rmsnorm_deploy.fusing.provenance import FORM, FUSED_BY
from rmsnorm_deploy.report.content import MOST_MISSES, MOST_NORMS, MOST_SPELLINGS

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "how-to" / "report.md").read_text()


def test_what_the_page_gives_to_copy_runs(tmp_path):
    shutil.copy(ROOT / "samples" / "models" / "gemma_float16.onnx", tmp_path / "model.onnx")
    blocks = re.findall(r"^```(\w+)\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
    assert [language for language, _ in blocks] == ["sh", "python"]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    for language, text in blocks:
        command = [sys.executable, "-c", text] if language == "python" else ["bash", "-ec", text]
        done = subprocess.run(
            command, cwd=tmp_path, env=os.environ | {"PATH": path}, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr[-1500:]
    named = set(re.findall(r"\w+\.(?:html|md)\b", "".join(text for _, text in blocks)))
    assert named == {p.name for p in tmp_path.iterdir() if p.suffix in (".html", ".md")}
    everything = (tmp_path / "everything.html").read_text()
    for part in re.findall(r"^\| ([A-Z][\w ]+) \|", TEXT, re.MULTILINE):
        assert re.search(rf"<h2[^>]*>{part}", everything), part
    assert "python pipeline.py" in everything
    assert "1 May" in everything
    said = {p.key: p.value for p in onnx.load(tmp_path / "fused.onnx").metadata_props}
    assert set(said) == {FUSED_BY, FORM}
    assert all(f"`{key}`" in TEXT for key in said)


def test_its_numbers_are_those_of_the_code():
    assert f"{MOST_NORMS} norms" in TEXT
    assert f"{MOST_SPELLINGS}\nspellings and {MOST_MISSES // 2} near-misses" in TEXT
