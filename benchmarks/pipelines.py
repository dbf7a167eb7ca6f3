"""Fusing before and after the other tools of a pipeline: what is left of the norms, and whether the file is right.

    python -m benchmarks.pipelines [--only quantize_dynamic] [--json OUT]      # tools of onnx and onnxruntime
    make pipelines                                                             # others, too, in an environment it makes
    make pipelines-torch                                                       # optimum and Olive, which need PyTorch

Each step is done to two of the samples in three orders: fuse, step; fuse, step, fuse; step, fuse. A cell says how many
norms of both models then run in the library's kernels, as onnxruntime's profile has it. The results are compared with
those of the step alone. "library only" means that a file does not load without the library; "fails" that the
step raises; "wrong" that the numbers differ by more than `LIMIT` of the largest one.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import importlib.util
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort

import rmsnorm_deploy
from rmsnorm_deploy.op import Op
from rmsnorm_deploy.run.inputs import make_inputs

SAMPLES = Path(__file__).parents[1] / "samples" / "models"
MODELS = ("qwen3_float32", "t5_encoder_float32")
LIMIT = 0.05
"""Of the largest output: quantised layers move by a step of their grid where a norm rounds otherwise."""
ORDERS = ("fuse, step", "fuse, step, fuse", "step, fuse")


def symbolic_shape_inference(source: Path, target: Path) -> None:
    from onnxruntime.tools.symbolic_shape_infer import SymbolicShapeInference

    onnx.save(SymbolicShapeInference.infer_shapes(onnx.load(source), auto_merge=True), target)


def quantize_dynamic(source: Path, target: Path) -> None:
    from onnxruntime.quantization import quantize_dynamic as quantize

    quantize(source, target)


def matmul_nbits(source: Path, target: Path) -> None:
    from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

    quantizer = MatMulNBitsQuantizer(onnx.load(source), block_size=32, is_symmetric=True)
    quantizer.process()
    quantizer.model.save_model_to_file(str(target))


def quant_pre_process(source: Path, target: Path) -> None:
    from onnxruntime.quantization.shape_inference import quant_pre_process as prepare

    prepare(source, target, auto_merge=True)


def quant_pre_process_plain(source: Path, target: Path) -> None:
    from onnxruntime.quantization.shape_inference import quant_pre_process as prepare

    prepare(source, target, auto_merge=True, skip_optimization=True)


def quantize_static(source: Path, target: Path, **only: Any) -> None:
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat
    from onnxruntime.quantization import quantize_static as quantize

    class Reader(CalibrationDataReader):
        def __init__(self) -> None:
            self._left = [make_inputs(onnx.load(source), seed=seed) for seed in range(4)]

        def get_next(self) -> dict[str, Any] | None:
            return self._left.pop() if self._left else None

    quantize(source, target, Reader(), quant_format=QuantFormat.QDQ, **only)


def quantize_static_matmul(source: Path, target: Path) -> None:
    quantize_static(source, target, op_types_to_quantize=["MatMul", "Gemm"])


def float16(source: Path, target: Path) -> None:
    from onnxruntime.transformers.float16 import convert_float_to_float16

    onnx.save(convert_float_to_float16(onnx.load(source), keep_io_types=True), target)


def transformers_optimizer(source: Path, target: Path) -> None:
    from onnxruntime.transformers.optimizer import optimize_model

    optimize_model(str(source), model_type="bert", num_heads=4, hidden_size=64, opt_level=0).save_model_to_file(
        str(target)
    )


def saved_optimised(source: Path, target: Path) -> None:
    options = _options()
    options.optimized_model_filepath = str(target)
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    ort.InferenceSession(source, options, providers=["CPUExecutionProvider"])


def ort_format(source: Path, target: Path) -> None:
    _to_ort(source, target)


def ort_format_with_library(source: Path, target: Path) -> None:
    _to_ort(source, target, "--custom_op_library", str(rmsnorm_deploy.library_path()))


def _to_ort(source: Path, target: Path, *more: str) -> None:
    command = [sys.executable, "-m", "onnxruntime.tools.convert_onnx_models_to_ort", str(source)]
    style = ["--optimization_style", "Fixed", "--output_dir", str(target.parent)]
    done = subprocess.run([*command, *style, *more], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr.strip().splitlines()[-1])
    (target.parent / f"{source.stem}.ort").replace(target)


def version_converter(source: Path, target: Path) -> None:
    onnx.save(onnx.version_converter.convert_version(onnx.load(source), 21), target)


def common_float16(source: Path, target: Path) -> None:
    from onnxconverter_common import float16 as converter

    onnx.save(converter.convert_float_to_float16(onnx.load(source), keep_io_types=True), target)


def common_mixed_precision(source: Path, target: Path) -> None:
    from onnxconverter_common import auto_mixed_precision

    model = onnx.load(source)
    feeds = make_inputs(model)
    done = auto_mixed_precision.auto_convert_mixed_precision(model, feeds, rtol=0.05, atol=0.05, keep_io_types=True)
    onnx.save(done, target)


def onnxslim(source: Path, target: Path) -> None:
    import onnxslim as tool

    onnx.save(tool.slim(onnx.load(source)), target)


def onnxsim(source: Path, target: Path) -> None:
    import onnxsim as tool

    model, good = tool.simplify(onnx.load(source))
    if not good:
        raise RuntimeError("the simplified model is not right")
    onnx.save(model, target)


def optimum_quantizer(source: Path, target: Path) -> None:
    from optimum.onnxruntime import ORTQuantizer
    from optimum.onnxruntime.configuration import AutoQuantizationConfig

    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(source, Path(folder) / "model.onnx")
        quantizer = ORTQuantizer.from_pretrained(folder, file_name="model.onnx")
        configuration = AutoQuantizationConfig.avx2(is_static=False, per_channel=False)
        quantizer.quantize(save_dir=f"{folder}/out", quantization_config=configuration)
        shutil.copy(next(Path(folder, "out").glob("*.onnx")), target)


def _olive(name: str, **configuration: Any) -> Callable[[Path, Path], None]:
    def apply(source: Path, target: Path) -> None:
        from olive.workflows import run

        with tempfile.TemporaryDirectory() as folder:
            run(
                {
                    "input_model": {"type": "ONNXModel", "model_path": str(source)},
                    "passes": {"only": {"type": name, **configuration}},
                    "output_dir": f"{folder}/out",
                    "cache_dir": f"{folder}/cache",
                    "log_severity_level": 4,
                    "evaluate_input_model": False,
                }
            )
            onnx.save(onnx.load(next(Path(folder, "out").rglob("*.onnx"))), target)

    apply.__name__ = f"olive_{name}"
    return apply


@dataclasses.dataclass(frozen=True)
class Step:
    """A row of the table.

    Attributes:
        label: for readers.
        apply: from one file to another.
        needs: a package that is not this project's dependency.
        suffix: of the file that it writes.
    """

    label: str
    apply: Callable[[Path, Path], None]
    needs: str = ""
    suffix: str = ".onnx"

    @property
    def name(self) -> str:
        return self.apply.__name__


STEPS = (
    Step("symbolic shape inference", symbolic_shape_inference),
    Step("`quant_pre_process`", quant_pre_process),
    Step("`quant_pre_process(skip_optimization=True)`", quant_pre_process_plain),
    Step("`quantize_dynamic`", quantize_dynamic),
    Step("`MatMulNBitsQuantizer`", matmul_nbits),
    Step("`quantize_static`, QDQ", quantize_static),
    Step('`quantize_static`, QDQ, `op_types_to_quantize=["MatMul", "Gemm"]`', quantize_static_matmul),
    Step("`onnxruntime.transformers.float16`", float16),
    Step("`onnxruntime.transformers.optimizer`, `opt_level=0`", transformers_optimizer),
    Step("saved by onnxruntime, optimised", saved_optimised),
    Step("ORT format", ort_format, suffix=".ort"),
    Step("ORT format, `--custom_op_library`", ort_format_with_library, suffix=".ort"),
    Step("`onnx.version_converter` to opset 21", version_converter),
    Step("`onnxconverter_common.float16`", common_float16, "onnxconverter_common"),
    Step("`onnxconverter_common.auto_mixed_precision`", common_mixed_precision, "onnxconverter_common"),
    Step("onnxslim", onnxslim, "onnxslim"),
    Step("onnxsim", onnxsim, "onnxsim"),
    Step("optimum, `ORTQuantizer`, dynamic", optimum_quantizer, "optimum"),
    Step("Olive, `OnnxDynamicQuantization`", _olive("OnnxDynamicQuantization"), "olive"),
    Step("Olive, `OnnxBlockWiseRtnQuantization`", _olive("OnnxBlockWiseRtnQuantization"), "olive"),
    Step("Olive, `OnnxFloatToFloat16`", _olive("OnnxFloatToFloat16", keep_io_types=True), "olive"),
    Step("Olive, `OnnxPeepholeOptimizer`", _olive("OnnxPeepholeOptimizer"), "olive"),
    Step(
        "Olive, `OrtTransformersOptimization`, `opt_level=0`",
        _olive("OrtTransformersOptimization", model_type="bert", num_heads=4, hidden_size=64, opt_level=0),
        "olive",
    ),
)


@dataclasses.dataclass(frozen=True)
class Outcome:
    """One model after one order.

    Attributes:
        kernels: norms that run in the library's kernels.
        norms: of the model.
        alone: the file loads without the library.
        problem: "fails", "wrong" or nothing.
        reason: for it.
    """

    kernels: int
    norms: int
    alone: bool = True
    problem: str = ""
    reason: str = ""


def tried(step: Step, name: str, order: str) -> Outcome | None:
    """Do one order to one sample; None where the step's file cannot be fused, being of another format."""
    model = SAMPLES / f"{name}.onnx"
    norms = len(rmsnorm_deploy.explain(model).fused)
    if step.suffix != ".onnx" and not order.endswith("step"):
        return None
    with tempfile.TemporaryDirectory() as folder:
        alone = Path(folder) / f"alone{step.suffix}"
        step.apply(model, alone)
        now = model
        try:
            for i, part in enumerate(order.split(", ")):
                following = Path(folder) / f"{i}{step.suffix if part == 'step' else '.onnx'}"
                if part == "step":
                    step.apply(now, following)
                else:
                    fused, _ = rmsnorm_deploy.fuse(now)
                    rmsnorm_deploy.save(fused, following)
                now = following
            feeds = make_inputs(onnx.load(model))
            got, kernels = _run(now, feeds, Path(folder), library=True)
        except Exception as error:
            return Outcome(0, norms, problem="fails", reason=f"{type(error).__name__}: {error}"[:300])
        expected, _ = _run(alone, feeds, Path(folder))
        far = _distance(got, expected)
        try:
            far = max(far, _distance(_run(now, feeds, Path(folder))[0], expected))
            loads = True
        except Exception:
            loads = False
        wrong = far > LIMIT
        return Outcome(kernels, norms, loads, "wrong" if wrong else "", f"{far:.2g} of the largest" if wrong else "")


def _options() -> ort.SessionOptions:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    return options


def _run(path: Path, feeds: dict[str, Any], folder: Path, *, library: bool = False) -> tuple[list[Any], int]:
    options = _options()
    if library:
        rmsnorm_deploy.register(options)
    options.enable_profiling = True
    options.profile_file_prefix = str(folder / "profile")
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    outputs = session.run(None, feeds)
    ran = collections.Counter(
        event["args"]["op_name"]
        for event in json.loads(Path(session.end_profiling()).read_text())
        if event["name"].endswith("_kernel_time")
    )
    return outputs, sum(ran[op.value] for op in Op)


def _distance(got: Sequence[Any], expected: Sequence[Any]) -> float:
    pairs = [(np.asarray(a, np.float64), np.asarray(b, np.float64)) for a, b in zip(got, expected, strict=True)]
    return max(float(np.abs(a - b).max() / np.abs(b).max()) for a, b in pairs)


def cell(outcomes: Sequence[Outcome | None]) -> str:
    """What is said of both models together."""
    real = [o for o in outcomes if o is not None]
    if not real:
        return ""
    problems = [o.problem for o in real if o.problem]
    if problems:
        return problems[0]
    text = f"{sum(o.kernels for o in real)} of {sum(o.norms for o in real)}"
    return text + ("" if all(o.alone for o in real) else ", library only")


def main(arguments: Sequence[str] | None = None) -> int:
    """Try everything and print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pipelines", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default="", help=f"steps, with commas, of: {', '.join(s.name for s in STEPS)}")
    parser.add_argument("--json", type=Path, help="write every outcome to this file")
    parser.add_argument("--needs", default="", help="only steps that need one of these packages")
    options = parser.parse_args(arguments)
    needs = {name for name in options.needs.split(",") if name}
    only = [name for name in options.only.split(",") if name]
    if unknown := sorted(set(only) - {s.name for s in STEPS}):
        parser.error(f"there is no step '{unknown[0]}'")
    record = []
    print(f"| step | {' | '.join(ORDERS)} |\n|{'---|' * (len(ORDERS) + 1)}")
    for step in (s for s in STEPS if (s.name in only or not only) and (s.needs in needs or not needs)):
        if step.needs and importlib.util.find_spec(step.needs) is None:
            print(f"{step.needs} is not installed", file=sys.stderr)
            continue
        cells = []
        for order in ORDERS:
            outcomes = [tried(step, name, order) for name in MODELS]
            cells.append(cell(outcomes))
            for name, outcome in zip(MODELS, outcomes, strict=True):
                if outcome is not None:
                    record.append({"step": step.name, "order": order, "model": name} | dataclasses.asdict(outcome))
                    if outcome.problem:
                        print(f"{step.name}, {order}, {name}: {outcome.problem}: {outcome.reason}", file=sys.stderr)
        print(f"| {step.label} | {' | '.join(cells)} |".replace("|  ", "| "), flush=True)
    if options.json:
        options.json.write_text(json.dumps(record, indent=1))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
