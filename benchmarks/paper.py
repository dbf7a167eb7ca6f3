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
from benchmarks import paper_plot, sets
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
Record = dict[str, Any]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, or only show what was measured."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.paper", description=__doc__.partition("\n")[0])
    parser.add_argument("--json", type=Path, help="where the records go")
    parser.add_argument("--summary", type=Path, help="show the records of this file; measure nothing")
    parser.add_argument("--plot", type=Path, help="where the plot goes, a PNG; needs matplotlib, the extra 'plot'")
    parser.add_argument("--models", help="only the models whose name and rows contain this; no norm alone")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see that it works")
    given = parser.parse_args(arguments)
    if given.summary:
        records = json.loads(given.summary.read_text())
    else:
        records = [*([] if given.models else norms(given.quick)), *models(given.quick, given.models or "")]
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


def _model_record(name: str, rows: int, usual: sets.Sets, same_place: sets.Sets | None) -> Record:
    record = {
        "case": _case(name, rows),
        "form": name,
        "rows": rows,
        "ours_us": median(usual.second_us),
        "layer_norm_us": median(usual.first_us),
        "sets": len(usual.saved),
        "onnxruntime": ort.__version__,
    }
    for what, measured in (("", usual), ("_same_place", same_place)):
        for part in ("saved", "control"):
            found = None if measured is None else sets.interval(getattr(measured, part))
            record[f"{part}{what}"] = None if found is None else found[0]
            record[f"{part}{what}_spread"] = None if found is None else found[1:]
    return record


# -- whole models ------------------------------------------------------------------------------------------------------


def models(quick: bool, only: str = "") -> list[Record]:
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
    for name, build, inputs in (
        *(("GPT-2", functools.partial(gpt2, count=n), {n: tokens(1, n)}) for n in counts),
        *((SKIP, functools.partial(gpt2, count=n, skip=True), {n: tokens(1, n)}) for n in counts),
        ("ViT", vit, {b * ((image // 16) ** 2 + 1): {"image": _random(b, 3, image, image)} for b in (1, 4)}),
        ("Whisper encoder", whisper, {frames // 2: {"features": _random(1, encoders.MELS, frames)}}),
        ("GRU", gru, {b: tokens(b, 2 if quick else 16) for b in ((1, 4) if quick else (1, 64))}),
    ):
        wanted = {rows: feeds for rows, feeds in inputs.items() if only in _case(name, rows)}
        found += _model(name, build, wanted, quick) if wanted else []
    return found


def _case(name: str, rows: int) -> str:
    return f"{name}, {rows} rows"


def _random(*shape: int) -> Any:
    return np.random.default_rng(1).standard_normal(shape, np.float32)


def _model(name: str, build: Callable[[], ModelProto], inputs: dict[int, dict[str, Any]], quick: bool) -> list[Record]:
    original = _trained(build())
    converted, report = rmsnorm_deploy.convert(original)
    if report.converted != report.found:
        raise AssertionError(f"{name}: {report.summary()}")
    found = []
    for rows, feeds in inputs.items():
        usual, same_place = _compared(name, (original, converted), feeds, quick)
        record = _model_record(name, rows, usual, same_place)
        for side, model in (("layer_norm", original), ("ours", converted)):
            spent = times_by_operator(_session, model, feeds, 2 if quick else 10)
            total = sum(spent.values())
            record[f"{side}_norms_us"] = sum(time for kind, time in spent.items() if kind in NORMS)
            record[f"{side}_share"] = record[f"{side}_norms_us"] / total
            record[f"{side}_additions_us"] = spent.get("Add", 0.0)
            record[f"{side}_norm_kinds"] = {kind: time for kind, time in sorted(spent.items()) if kind in NORMS}
        found.append(record | {"what": "model"})
    return found


def _compared(
    name: str, models: Sequence[ModelProto], feeds: dict[str, Any], quick: bool
) -> tuple[sets.Sets, sets.Sets | None]:
    """The original and the converted model, as they are; of one row with all weights in the same place, too."""
    results = [_session(model).run(None, feeds) for model in models]
    _agree(name, *results)

    def as_it_is(model: ModelProto) -> Callable[[], Any]:
        return functools.partial(_session(model).run, None, feeds)

    place = sets.Place()
    usual, same_place = (
        [functools.partial(make, model) for model in models]
        for make in (as_it_is, lambda model: place.runner(_session, model, feeds))
    )
    is_one = len(next(iter(results[0])).reshape(-1, results[0][0].shape[-1])) == 1
    return (
        sets.measure(*usual, quick=quick),
        sets.measure(*same_place, quick=quick, seconds=2.0) if is_one else None,
    )


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
    lines += [
        "",
        "| model | rows | saved | against itself | saved, weights in the same place | against itself "
        "| norms' share before | after | norms' time left | with additions |",
    ]
    lines.append("| --- | ---: |" + " ---: |" * 8)
    for r in records:
        if r["what"] == "model":
            left = r["ours_norms_us"] / r["layer_norm_norms_us"]
            before, after = (r[f"{side}_norms_us"] + r[f"{side}_additions_us"] for side in ("layer_norm", "ours"))
            shares = f"{r['layer_norm_share']:.1%} | {r['ours_share']:.1%}"
            saved = " | ".join(_with_interval(r, f"{w}{p}") for p in ("", "_same_place") for w in ("saved", "control"))
            lines.append(f"| {r['form']} | {r['rows']} | {saved} | {shares} | {left:.2f} | {after / before:.2f} |")
    return "\n".join(lines) + "\n"


def _with_interval(record: Record, what: str) -> str:
    if record[what] is None:
        return ""
    low, high = record[f"{what}_spread"]
    return f"{record[what]:.1%} ({low:.1%} to {high:.1%})"


if __name__ == "__main__":
    sys.exit(main())
