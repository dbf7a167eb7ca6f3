"""The paper's measure: how much time RMSNorm saves over LayerNorm, for the norm alone and for whole models.

    python -m benchmarks.paper --json paper.json --plot paper.png [--quick]
    python -m benchmarks.paper --summary paper.json [--plot paper.png]

benchmarks/README.md says what is compared, and what of it can be compared with the paper (arXiv:1910.07467).
"""

from __future__ import annotations

import argparse
import functools
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from onnx import ModelProto, numpy_helper

import rmsnorm_deploy
from benchmarks import paper_plot
from benchmarks.buffers import Buffers
from benchmarks.chains import LAYER_NORM, Chain, session
from benchmarks.models import encoders, language
from benchmarks.profile import times_by_operator
from benchmarks.timing import Contestant, alternate, median, quartiles, ratios
from rmsnorm_deploy import op
from rmsnorm_deploy.run.registering import register

SIZES = [64, 128, 512, 768, 1024, 4096]
ROWS = [1, 512]
PARTS = {"RMSNorm": None, "pRMSNorm 6.25%": 0.0625, "pRMSNorm 25%": 0.25}
PAPER = (0.07, 0.64)
"""Least and most time saved that the paper reports, of models on a GPU of 2019 in three frameworks."""
SKIP = "GPT-2 of SkipLayerNormalization"
NORMS = {"LayerNormalization", "SkipLayerNormalization", *(kind.value for kind in op.Op)}
CHAIN_LENGTH = 16
PAIRS = 6
"""Pairs of sessions of a model, made anew: where its weights happen to lie in memory is worth 5 % at one row."""
Record = dict[str, Any]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, or only show what was measured."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.paper", description=__doc__.partition("\n")[0])
    parser.add_argument("--json", type=Path, help="where the records go")
    parser.add_argument("--summary", type=Path, help="show the records of this file; measure nothing")
    parser.add_argument("--plot", type=Path, help="where the plot goes, a PNG; needs matplotlib, the extra 'plot'")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see that it works")
    given = parser.parse_args(arguments)
    if given.summary:
        records = json.loads(given.summary.read_text())
    else:
        records = [*norms(given.quick), *models(given.quick)]
    if given.json:
        given.json.write_text(json.dumps(records, indent=1) + "\n")
    sys.stdout.write(table(records))
    if given.plot:
        paper_plot.draw(records, PAPER, given.plot)
    return 0


# -- the norm alone ----------------------------------------------------------------------------------------------------


def norms(quick: bool) -> list[Record]:
    """RMSNorm and pRMSNorm beside LayerNorm, all in onnxruntime on the same buffers, one thread."""
    found = []
    for rows in [1, 4] if quick else ROWS:
        for size in [64] if quick else SIZES:
            found += _norms_of(rows, size, quick)
    return found


def _norms_of(rows: int, size: int, quick: bool) -> list[Record]:
    buffers = Buffers(rows, size, "float32", tensors=1)
    length = CHAIN_LENGTH if rows * size <= 65536 else 1

    def contestant(form: str, part: float | None = None) -> Contestant:
        partial = None if part is None else max(1, round(part * size))
        chain = Chain(form, rows, size, "float32", length, partial_size=partial)
        return Contestant(buffers.bind(session(chain, 1), chain), length, threads=1, round_us=100 if quick else 1000)

    layer = contestant(LAYER_NORM)
    ours = {
        name: contestant(op.Op.RMS_NORM.value if part is None else op.Op.GENERAL_RMS_NORM.value, part)
        for name, part in PARTS.items()
    }
    _take_turns([layer, *ours.values()], quick)
    whole = ours["RMSNorm"]
    return [
        _record(f"{rows}x{size}", name, rows, layer, one)
        | {"what": "norm", "size": size, "of_whole_norm": median(ratios(one, whole))}
        for name, one in ours.items()
    ]


def _take_turns(contestants: Sequence[Contestant], quick: bool, seconds: float = 3.0) -> None:
    rounds, seconds = (11, 0.1) if quick else (60, seconds)
    alternate(contestants, judged=len(contestants), most_rounds=rounds, seconds=seconds, precision=0.005)


def _record(case: str, form: str, rows: int, theirs: Contestant, ours: Contestant) -> Record:
    ratio = ratios(ours, theirs)
    return {
        "case": case,
        "form": form,
        "rows": rows,
        "ours_us": median(ours.rounds),
        "layer_norm_us": median(theirs.rounds),
        "saved": 1 - 1 / median(ratio),
        "saved_spread": [1 - 1 / value for value in quartiles(ratio)],
        "rounds": len(ratio),
        "onnxruntime": ort.__version__,
    }


# -- whole models ------------------------------------------------------------------------------------------------------


def models(quick: bool) -> list[Record]:
    """Models with LayerNorm as onnxruntime optimises them, beside the same converted and fused, one thread."""
    layers = 1 if quick else 4
    tokens = lambda *shape: {"tokens": np.random.default_rng(1).integers(0, language.VOCABULARY, shape)}  # noqa: E731
    gpt2 = functools.partial(language.gpt2, "float32", layers, 128 if quick else 768)
    counts = (1, 4) if quick else (1, 256)
    gru = functools.partial(language.gru, "float32", *((2, 64) if quick else (16, 512)))
    vit = functools.partial(encoders.vit, "float32", 1 if quick else 6, 32 if quick else 224)
    frames, image = (20, 32) if quick else (3000, 224)
    whisper = functools.partial(encoders.whisper, "float32", layers, frames)
    found = []
    for name, build, sets in (
        *(("GPT-2", functools.partial(gpt2, count=n), {n: tokens(1, n)}) for n in counts),
        *((SKIP, functools.partial(gpt2, count=n, skip=True), {n: tokens(1, n)}) for n in counts),
        ("ViT", vit, {b * ((image // 16) ** 2 + 1): {"image": _random(b, 3, image, image)} for b in (1, 4)}),
        ("Whisper encoder", whisper, {frames // 2: {"features": _random(1, encoders.MELS, frames)}}),
        ("GRU", gru, {b: tokens(b, 2 if quick else 16) for b in ((1, 4) if quick else (1, 64))}),
    ):
        found += _model(name, build, sets, quick)
    return found


def _random(*shape: int) -> Any:
    return np.random.default_rng(1).standard_normal(shape, np.float32)


def _model(name: str, build: Callable[[], ModelProto], sets: dict[int, dict[str, Any]], quick: bool) -> list[Record]:
    original = _trained(build())
    converted, report = rmsnorm_deploy.convert(original)
    if report.converted != report.found:
        raise AssertionError(f"{name}: {report.summary()}")
    found = []
    for rows, feeds in sets.items():
        theirs, ours = _paired(name, (original, converted), feeds, quick)
        record = _record(f"{name}, {rows} rows", name, rows, theirs, ours)
        for side, model in (("layer_norm", original), ("ours", converted)):
            spent = times_by_operator(_session, model, feeds, 2 if quick else 10)
            total = sum(spent.values())
            record[f"{side}_norms_us"] = sum(time for kind, time in spent.items() if kind in NORMS)
            record[f"{side}_share"] = record[f"{side}_norms_us"] / total
            record[f"{side}_additions_us"] = spent.get("Add", 0.0)
            record[f"{side}_norm_kinds"] = {kind: time for kind, time in sorted(spent.items()) if kind in NORMS}
        found.append(record | {"what": "model"})
    return found


def _paired(
    name: str, models: Sequence[ModelProto], feeds: dict[str, Any], quick: bool
) -> tuple[Contestant, Contestant]:
    """The original and the converted model, with the rounds of several pairs of sessions, each made first in turn."""
    pairs: list[list[Contestant]] = []
    for i in range(1 if quick else PAIRS):
        order = (0, 1) if i % 2 == 0 else (1, 0)
        made = {which: _session(models[which]) for which in order}
        theirs, ours = made[0], made[1]
        _agree(name, theirs.run(None, feeds), ours.run(None, feeds))
        pair = [
            Contestant([functools.partial(one.run, None, feeds)], 1, threads=1, round_us=100 if quick else 20_000)
            for one in (theirs, ours)
        ]
        _take_turns(pair, quick, seconds=0.5)
        pairs.append(pair)
    for first, *more in zip(*pairs, strict=True):
        first.rounds += [time for one in more for time in one.rounds]
    return pairs[0][0], pairs[0][1]


def _trained(model: ModelProto) -> ModelProto:
    """With scales and biases of norms that are not 1 and 0, which would be left out."""
    rng = np.random.default_rng(5)
    held = {tensor.name: tensor for tensor in model.graph.initializer}
    for node in model.graph.node:
        first = {LAYER_NORM: 1, "SkipLayerNormalization": 2}.get(node.op_type)
        if first is not None:
            for name, mean in zip(node.input[first : first + 2], (1.0, 0.0), strict=True):
                values = (mean + 0.1 * rng.standard_normal(held[name].dims)).astype(np.float32)
                held[name].CopyFrom(numpy_helper.from_array(values, name))
    return model


def _session(model: ModelProto, **entries: Any) -> Any:
    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    for name, value in entries.items():
        setattr(options, name, value)
    register(options)
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def _agree(name: str, wanted: Sequence[Any], got: Sequence[Any]) -> None:
    for a, b in zip(wanted, got, strict=True):
        if not np.allclose(a, b, rtol=1e-2, atol=1e-3 * float(np.abs(a).max())):
            raise AssertionError(f"{name}: the converted model computes something else")


# -- what is shown -----------------------------------------------------------------------------------------------------


def table(records: Sequence[Record]) -> str:
    """The records as Markdown."""
    lines = [
        f"The paper: {PAPER[0]:.0%} to {PAPER[1]:.0%} saved",
        "",
        "| norm alone | rows x features | saved | times as fast as RMSNorm |",
    ]
    lines.append("| --- | --- | ---: | ---: |")
    for r in records:
        if r["what"] == "norm":
            lines.append(f"| {r['form']} | {r['case']} | {r['saved']:.0%} | {r['of_whole_norm']:.2f} |")
    lines += ["", "| model | rows | saved | norms' share before | after | norms' time left | with additions |"]
    lines.append("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    for r in records:
        if r["what"] == "model":
            left = r["ours_norms_us"] / r["layer_norm_norms_us"]
            before, after = (r[f"{side}_norms_us"] + r[f"{side}_additions_us"] for side in ("layer_norm", "ours"))
            shares = f"{r['layer_norm_share']:.1%} | {r['ours_share']:.1%}"
            lines.append(
                f"| {r['form']} | {r['rows']} | {r['saved']:.1%} | {shares} | {left:.2f} | {after / before:.2f} |"
            )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
