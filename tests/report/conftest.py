"""Reports that the tests of this folder look at."""

import types
from pathlib import Path

import numpy as np
import pytest

import rmsnorm_deploy
from rmsnorm_deploy.check.measured import BenchResult, Comparison
from rmsnorm_deploy.check.timing import Timing
from rmsnorm_deploy.report.write import write_report
from tests.support.spellings.graph import F, Graph

GEMMA = Path(__file__).parents[2] / "samples" / "models" / "gemma_float16.onnx"
COMMANDS = ("rmsnorm-deploy fuse 'a <b>.onnx' -o fused.onnx --verify",)
EVIL = (
    "<script>alert(1)</script>",
    "a\"b'c&amp;\n\r|`x`",
    "L" * 3000,
    "\u202ereversed\u2066",
    "\u05e9\u05dc\u05d5\u05dd",
    "a" + "\u0301" * 400,
    "\u6f22\u5b57" * 40,
    "</style></title><svg onload=alert(1)>",
    "]]>--><!--",
    "@someone #123 https://evil.example/x",
    "\x00\x07\x1b[31m",
    "![x](https://evil.example/x.png) **b** <img src=x>",
)
"""Names that a model may have."""


def evil_model():
    """Three norms and three near-misses, all of whose names are hostile."""
    g = Graph()
    x, w = g.input("x", F, (2, 3, 8)), g.weight(np.ones(8), F)
    for k in range(6):
        mean = g.reduce("ReduceMean", x**2.0, (-1,), 1) + 1e-6
        rms = g.op("Sqrt", mean if k < 3 else g.op("Relu", mean))
        x = x * g.op("Reciprocal", rms) * w
    g.output(x, "y", (2, 3, 8))
    model = g.model()
    names = {}
    for i, node in enumerate(model.graph.node):
        node.name = f"{EVIL[i % len(EVIL)]}{i}"
        for j, name in enumerate(node.input):
            node.input[j] = names.get(name, name)
        for j, name in enumerate(node.output):
            if name != "y":
                names[name] = f"{EVIL[(i + 5) % len(EVIL)]}v{i}"
                node.output[j] = names[name]
    model.graph.name = EVIL[0]
    del model.graph.value_info[:]
    return model


def timings(place):
    """A measurement as ``bench`` gives it, of a model and one of its norms."""
    sides = Timing("original", 120.0, 100.0, 2900.0, 50), Timing("fused, library's kernels", 60.5, 50.0, 90.0, 50)
    of = dict(before=sides[0], after=sides[1], baseline="onnxruntime 1.32.0", ratio=1.98, ratio_p10=1.2, ratio_p90=2.1)
    comparisons = (Comparison("model", "x int64[1, 8]", **of), Comparison("one norm", "x[1, 8]", **of, place=place))
    return BenchResult(comparisons, "", "a machine", "1.32.0", 0, ("a note",), kernels={place: 4.5})


@pytest.fixture(scope="session")
def reports(tmp_path_factory):
    """Pages and summaries of a real model that was verified and timed, and of a hostile one, by name."""
    folder = tmp_path_factory.mktemp("reports")
    fused, fusion = rmsnorm_deploy.fuse(GEMMA)
    full = {
        "fused": fused,
        "verification": rmsnorm_deploy.verify(GEMMA, fused),
        "bench": timings(fusion.fused[0].output),
        "commands": COMMANDS,
    }
    evil = evil_model()
    made = {}
    for ending in ("html", "md"):
        for name, model, report, rest in (("full", GEMMA, fusion, full), ("evil", evil, None, {"commands": EVIL})):
            path = write_report(folder / f"{name}.{ending}", model, report, **rest)
            made[f"{name}.{ending}"] = path.read_text(encoding="utf-8")
    return types.SimpleNamespace(**{"texts": made, "fusion": fusion, "full": full})
